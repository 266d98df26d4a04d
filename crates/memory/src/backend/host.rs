//! System memory as a device.
//!
//! Work on the host is done when the call returns, so every event has always been
//! passed and streams are only names. Small blocks come from the system's allocator and
//! large ones straight from the kernel, whose pages are zero without being touched: a
//! block of gigabytes takes no memory until it is used.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::blocks::{DeviceBlocks, memory_from_blocks};
use crate::memory::{Address, Block, Device, DeviceInfo, Event, Memory, Request, Stream};
use crate::stats::MemoryStats;
#[cfg(unix)]
use crate::sys::pages;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::platform::system_memory;
use plimsoll_machine::units::Bytes;

const ALIGNMENT: u64 = 256;
/// From here on a block is worth a call to the kernel of its own.
#[cfg(unix)]
const LARGE: usize = 128 << 10;

/// System memory.
#[derive(Debug)]
pub struct Host {
    info: DeviceInfo,
    blocks: DeviceBlocks<Arc<HostBytes>>,
    streams: AtomicU64,
}

/// The bytes of a block. Whoever copies shares them, so a block that is returned meanwhile
/// is freed after the copy.
#[derive(Debug)]
struct HostBytes {
    base: u64,
    layout: Layout,
    /// Held while bytes are copied: two threads must not write the same ones at once.
    copying: Mutex<()>,
}

impl HostBytes {
    /// Zeroed memory; nothing where the system has no more.
    fn new(size: Bytes) -> Option<HostBytes> {
        let size = usize::try_from(size.max(Bytes(1)).get()).ok()?;
        let layout = Layout::from_size_align(size, ALIGNMENT as usize).ok()?;
        let base = take(layout)? as u64;
        Some(HostBytes { base, layout, copying: Mutex::new(()) })
    }

    /// Calls `copy` with a pointer that many bytes into the block, and lets no other in.
    fn copy(&self, offset: usize, copy: impl FnOnce(*mut u8)) {
        let _turn = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        copy((self.base + offset as u64) as *mut u8);
    }
}

impl Drop for HostBytes {
    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn drop(&mut self) {
        // SAFETY: it came from `take` with this layout, and nobody shares it any more.
        unsafe { give_back(self.base as *mut u8, self.layout) };
    }
}

impl Host {
    /// The memory of this machine, by its own account.
    pub fn open() -> Result<Host> {
        let total = system_memory(Path::new("/"))?.total.ok_or_else(|| Error::Unavailable {
            what: "the size of system memory".to_string(),
            why: "/proc/meminfo has no MemTotal".to_string(),
        })?;
        Ok(Host::with_total(total))
    }

    /// As much of system memory as the caller says.
    #[must_use]
    pub fn with_total(total: Bytes) -> Host {
        let info = DeviceInfo {
            alignment: ALIGNMENT,
            granularity: Bytes::kib(4),
            is_unified: Some(true),
            ..DeviceInfo::new("host", "cpu", total)
        };
        // The system's allocator takes blocks as they are asked for.
        let blocks = DeviceBlocks::with_step(&info, total, Bytes(1));
        Host { info, blocks, streams: AtomicU64::new(1) }
    }
}

/// Zeroed memory; nothing where the system has no more.
#[expect(unsafe_code, reason = "the system's allocator is behind an unsafe call")]
fn take(layout: Layout) -> Option<*mut u8> {
    #[cfg(unix)]
    if layout.size() >= LARGE {
        return pages::map(layout.size());
    }
    // SAFETY: the layout's size is at least one byte.
    let pointer = unsafe { alloc_zeroed(layout) };
    (!pointer.is_null()).then_some(pointer)
}

/// Gives back what [`take`] handed out.
///
/// # Safety
///
/// The pointer came from [`take`] with this layout, and nobody uses it any more.
#[expect(unsafe_code, reason = "the system's allocator is behind an unsafe call")]
unsafe fn give_back(pointer: *mut u8, layout: Layout) {
    #[cfg(unix)]
    if layout.size() >= LARGE {
        // SAFETY: of this size, `take` got it from `pages::map`.
        return unsafe { pages::unmap(pointer, layout.size()) };
    }
    // SAFETY: of this size, `take` got it from the allocator with this layout.
    unsafe { dealloc(pointer, layout) };
}

impl Memory for Host {
    memory_from_blocks!();

    fn allocate(&self, request: Request) -> Result<Block> {
        self.blocks.allocate(request, |size| {
            Ok(HostBytes::new(size).map(|bytes| {
                let base = bytes.base;
                (Arc::new(bytes), Some(base))
            }))
        })
    }

    fn release(&self, block: Block, _stream: Stream) -> Result<()> {
        self.blocks.release(block, |_| Ok(()))
    }
}

impl Device for Host {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Result<Bytes> {
        // What the system has, but never more than this device was said to be.
        let ours = self.available();
        Ok(system_memory(Path::new("/"))
            .ok()
            .and_then(|m| m.available)
            .map_or(ours, |m| m.min(ours)))
    }

    fn new_stream(&self) -> Result<Stream> {
        Stream::numbered(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _stream: Stream) -> Result<Event> {
        Ok(Event(0))
    }

    fn is_done(&self, _event: Event) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    #[expect(unsafe_code, reason = "raw memory is written")]
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let (block, offset) = self.blocks.find(to, bytes.len())?;
        // SAFETY: `find` found the whole range inside the block, which it shares, so that it
        // is not freed meanwhile, and `copy` keeps other copies out; a borrowed slice of ours
        // cannot overlap memory that only the table hands out by number.
        block
            .copy(offset, |to| unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) });
        Ok(())
    }

    #[expect(unsafe_code, reason = "raw memory is read")]
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (block, offset) = self.blocks.find(from, bytes.len())?;
        let (to, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: as in `write`; every byte of a block was zeroed when it was allocated.
        block.copy(offset, |from| unsafe { from.copy_to_nonoverlapping(to, count) });
        Ok(())
    }
}
