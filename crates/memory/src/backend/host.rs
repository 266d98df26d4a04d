//! System memory as a device.
//!
//! Work on the host is done when the call returns, so every event has always been
//! passed and streams are only names. Small blocks come from the system's allocator and
//! large ones straight from the kernel, whose pages are zero without being touched: a
//! block of gigabytes takes no memory until it is used. The table of live blocks makes a
//! wrong read, write or return an error.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{
    Address, Block, Device, DeviceInfo, Event, Memory, MemoryId, Request, Stream, refusal, stranger,
};
use crate::stats::{Counters, Figures, MemoryStats};
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
    id: MemoryId,
    info: DeviceInfo,
    table: Mutex<Table>,
    counters: Counters,
    streams: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    /// Live blocks: address → (bytes asked for, generation).
    live: BTreeMap<u64, (u64, u64)>,
    figures: Figures,
    peak: u64,
    generation: u64,
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
        Host {
            id: MemoryId::next(),
            info: DeviceInfo {
                name: "host".to_string(),
                backend: "cpu",
                number: 0,
                total,
                alignment: ALIGNMENT,
                granularity: Bytes::kib(4),
                is_unified: Some(true),
                compute_capability: None,
                pci_bus: None,
            },
            table: Mutex::default(),
            counters: Counters::default(),
            streams: AtomicU64::new(1),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layout(size: u64) -> Option<Layout> {
        let size = usize::try_from(size.max(1)).ok()?;
        Layout::from_size_align(size, ALIGNMENT as usize).ok()
    }

    /// The pointer to `len` bytes inside a live block. The guard keeps the block from
    /// being returned meanwhile.
    fn locate(&self, at: Address, len: usize) -> Result<(*mut u8, MutexGuard<'_, Table>)> {
        let table = self.table();
        let (start, end) = (at.pointer(), at.pointer().checked_add(len as u64));
        let inside = table
            .live
            .range(..=start)
            .next_back()
            .is_some_and(|(base, (size, _))| end.is_some_and(|end| end <= base + size));
        if inside {
            Ok((start as *mut u8, table))
        } else {
            Err(Error::Device {
                call: "host access",
                why: format!("{start:#x}, {len} bytes, is not inside a live block"),
            })
        }
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
    fn name(&self) -> &str {
        &self.info.name
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let size = request.size.0;
        let mut table = self.table();
        let available = self.info.total.saturating_sub(Bytes(table.figures.held));
        let full = || refusal(self.name(), request.size, available, self.info.total);
        if request.size > available {
            return Err(full());
        }
        let layout = Host::layout(size).ok_or_else(full)?;
        let base = take(layout).ok_or_else(full)? as u64;
        table.generation = table.generation.wrapping_add(1);
        let generation = table.generation;
        table.live.insert(base, (size, generation));
        table.figures.held += size;
        table.figures.live += size;
        table.figures.taken += size;
        table.figures.blocks += 1;
        table.figures.misses += 1;
        table.peak = table.peak.max(table.figures.held);
        self.counters.publish(&table.figures);
        let address = Address { buffer: base, offset: 0 };
        Ok(Block::new(self.id, base, generation, request.size, address))
    }

    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn release(&self, block: Block, _stream: Stream) -> Result<()> {
        let mut table = self.table();
        let known = table.live.get(&block.key()) == Some(&(block.size().0, block.generation()));
        if !self.owns(&block) || !known {
            return Err(stranger(self, &block));
        }
        table.live.remove(&block.key());
        if let Some(layout) = Host::layout(block.size().0) {
            // SAFETY: the address was in the table of live blocks, so it came from `take`
            // with the layout of this same size, and it was taken out of the table, so it
            // is returned once.
            unsafe { give_back(block.key() as *mut u8, layout) };
        }
        table.figures.held -= block.size().0;
        table.figures.live -= block.size().0;
        table.figures.taken -= block.size().0;
        table.figures.blocks -= 1;
        self.counters.publish(&table.figures);
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        let peak = Bytes(self.table().peak);
        self.counters.snapshot().stats(peak)
    }

    fn capacity(&self) -> Bytes {
        self.info.total
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
        let (pointer, _guard) = self.locate(to, bytes.len())?;
        // SAFETY: `locate` found the whole range inside one live block, and its guard
        // keeps the block alive and other calls out; a borrowed slice of ours cannot
        // overlap memory that only this table hands out by number.
        unsafe { pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[expect(unsafe_code, reason = "raw memory is read")]
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (pointer, _guard) = self.locate(from, bytes.len())?;
        // SAFETY: as in `write`; every byte of a block was zeroed when it was allocated.
        unsafe { pointer.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Host {
    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (base, (size, _)) in std::mem::take(&mut table.live) {
            if let Some(layout) = Host::layout(size) {
                // SAFETY: every entry of the table is a live block of this layout, and
                // with the device gone nobody can return or reach it any more.
                unsafe { give_back(base as *mut u8, layout) };
            }
        }
    }
}
