//! Any device that has an OpenCL driver.
//!
//! OpenCL has no pointers and no total: it checks the size of a single buffer, and lets
//! the sum grow past the device until the system kills. So blocks are buffers with
//! addresses of our own making, and the sum is counted here and held at what the device
//! says it has. Many drivers find memory for a buffer only when it is first used: it is
//! made to settle at once, so that a refusal comes from `allocate` and not from a kernel.
//!
//! A pool cuts blocks out of large buffers. A kernel takes a block as a sub-buffer
//! ([`OpenCl::view`]), which costs no memory.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::blocks::{DeviceBlocks, memory_from_blocks};
use super::streams::{DeviceStreams, events_from_streams};
use crate::memory::{Address, Block, Device, DeviceInfo, Event, Memory, Request, Stream};
use crate::stats::MemoryStats;
use crate::sys::opencl::{ClBuffer, ClContext, ClDevice, ClMarker, ClQueue, devices};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::platform::system_memory;
use plimsoll_machine::sys::nvml;
use plimsoll_machine::units::Bytes;

/// How many devices there are, over all drivers.
pub fn count() -> Result<u32> {
    Ok(devices()?.len().try_into().unwrap_or(u32::MAX))
}

/// A device of any driver.
#[derive(Debug)]
pub struct OpenCl {
    // In the order in which they are let go of: what lies in a context before it.
    streams: DeviceStreams<ClQueue, ClMarker>,
    blocks: DeviceBlocks<Arc<ClBuffer>>,
    /// For copies and for buffers that settle; never behind a stream's work.
    copies: ClQueue,
    /// Held while buffers come and go: a driver need not like that from two threads.
    turnover: Mutex<()>,
    context: ClContext,
    found: ClDevice,
    info: DeviceInfo,
}

/// A part of a buffer, as kernels take it. It lives until it is dropped, also when its
/// block was returned before; the block's memory may be somebody else's then.
#[derive(Debug)]
pub struct OpenClView(ClBuffer);

impl OpenClView {
    /// The `cl_mem`.
    #[must_use]
    pub fn raw(&self) -> cl3::types::cl_mem {
        self.0.raw()
    }
}

impl OpenCl {
    /// The device of a number; those of all drivers are counted together, processors last.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] without a loader, a driver or a device, or where there are
    /// not so many; it says which.
    pub fn open(number: u32) -> Result<OpenCl> {
        OpenCl::with_total(number, Bytes::MAX)
    }

    /// The same, with no more of its memory than the caller says.
    pub fn with_total(number: u32, total: Bytes) -> Result<OpenCl> {
        let all = devices()?;
        let found = all.get(number as usize).cloned().ok_or_else(|| Error::Unavailable {
            what: format!("opencl:{number}"),
            why: format!("there are {} OpenCL devices, counted from 0", all.len()),
        })?;
        let context = ClContext::new(&found)?;
        let info = DeviceInfo {
            number,
            alignment: found.alignment.max(256),
            granularity: Bytes::kib(4),
            is_unified: Some(found.is_cpu || found.shares_host_memory),
            compute_capability: found.compute_capability,
            pci_bus: found.pci_bus,
            ..DeviceInfo::new(found.name.clone(), "opencl", total.min(Bytes(found.total)))
        };
        Ok(OpenCl {
            blocks: DeviceBlocks::new(&info, Bytes(found.largest)),
            streams: DeviceStreams::new(context.queue(&found)?),
            copies: context.queue(&found)?,
            turnover: Mutex::new(()),
            context,
            found,
            info,
        })
    }

    /// The driver that the device belongs to: "Portable Computing Language".
    #[must_use]
    pub fn platform(&self) -> &str {
        &self.found.platform
    }

    /// The version that the device speaks: "OpenCL 3.0 CUDA".
    #[must_use]
    pub fn version(&self) -> &str {
        &self.found.version
    }

    /// The largest single buffer.
    #[must_use]
    pub fn largest_buffer(&self) -> Bytes {
        Bytes(self.found.largest).min(self.info.total)
    }

    /// The `cl_device_id`, for callers who compile and launch.
    #[must_use]
    pub fn raw_device(&self) -> cl3::types::cl_device_id {
        self.found.id()
    }

    /// The `cl_context`; it lives as long as the device.
    #[must_use]
    pub fn raw_context(&self) -> cl3::types::cl_context {
        self.context.raw()
    }

    /// The `cl_command_queue` of a stream; it lives as long as the device.
    pub fn raw_queue(&self, stream: Stream) -> Result<cl3::types::cl_command_queue> {
        self.streams.queue(stream).map(|queue| queue.raw())
    }

    /// This many bytes from an address on, as a kernel takes them. The address must be
    /// aligned as blocks are.
    pub fn view(&self, at: Address, size: Bytes) -> Result<OpenClView> {
        let len = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let (buffer, offset) = self.blocks.find(at, len)?;
        buffer.part(offset, len.max(1)).map(OpenClView)
    }

    /// A buffer whose memory is there; `None` where the driver has no more.
    fn make(&self, taken: Bytes) -> Result<Option<Arc<ClBuffer>>> {
        let Ok(size) = usize::try_from(taken.get()) else { return Ok(None) };
        let _turn = self.turnover.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buffer) = self.context.buffer(size)? else { return Ok(None) };
        Ok(self.copies.settle(&buffer)?.then_some(buffer))
    }
}

impl Memory for OpenCl {
    memory_from_blocks!();

    fn allocate(&self, request: Request) -> Result<Block> {
        self.blocks.allocate(request, |taken| Ok(self.make(taken)?.map(|made| (made, None))))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        // The driver would keep the buffer for queued work, but past our count.
        self.streams.queue(stream)?.finish()?;
        let _turn = self.turnover.lock().unwrap_or_else(PoisonError::into_inner);
        self.blocks.release(block, |_| Ok(()))
    }
}

impl Device for OpenCl {
    events_from_streams!();

    /// OpenCL cannot tell what others hold. AMD's extension can, the system can where the
    /// memory is the host's, and NVML can of an NVIDIA card.
    fn free_memory(&self) -> Result<Bytes> {
        let ours = self.available();
        let system = || system_memory(Path::new("/")).ok()?.available;
        let free = match (self.found.free(), self.found.pci_bus) {
            (Some(free), _) => Some(Bytes(free)),
            (None, _) if self.info.is_unified == Some(true) => system(),
            (None, Some(bus)) => nvml::free_on_bus(bus),
            (None, None) => None,
        };
        free.map(|free| free.min(ours)).ok_or_else(|| Error::Unavailable {
            what: format!("free memory of {}", self.info.name),
            why: "its driver lacks cl_amd_device_attribute_query, and OpenCL has no other way"
                .to_string(),
        })
    }

    fn new_stream(&self) -> Result<Stream> {
        self.streams.add(self.context.queue(&self.found)?)
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let (buffer, offset) = self.blocks.find(to, bytes.len())?;
        // OpenCL refuses a copy of nothing.
        if bytes.is_empty() { Ok(()) } else { self.copies.write(&buffer, offset, bytes) }
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (buffer, offset) = self.blocks.find(from, bytes.len())?;
        if bytes.is_empty() { Ok(()) } else { self.copies.read(&buffer, offset, bytes) }
    }
}

impl fmt::Display for OpenCl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.found.name, self.found.platform, self.found.version)
    }
}
