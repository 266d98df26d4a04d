//! AMD's devices, by HIP.
//!
//! HIP looks like CUDA's runtime: addresses, streams, events. The few functions that
//! memory needs are looked up at run time, so that one binary serves machines with and
//! without it. What is free is the device's own word; what is ours is counted here.

use std::path::PathBuf;

use super::blocks::{DeviceBlocks, memory_from_blocks};
use super::streams::{DeviceStreams, events_from_streams};
use crate::memory::{Address, Block, Device, DeviceInfo, Event, Memory, Request, Stream};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::sys::hip::{Hip, HipGpu, HipMarker, HipQueue};
use plimsoll_machine::units::Bytes;

/// What hipMalloc aligns to.
const ALIGNMENT: u64 = 256;
/// The step in which the driver maps memory.
const GRANULARITY: Bytes = Bytes::kib(4);

/// How many devices there are, or why there is none.
pub fn count() -> Result<u32> {
    Hip::load(None)?.devices()
}

/// How a device is opened.
#[derive(Debug, Clone, Default)]
pub struct RocmOptions {
    number: u32,
    library: Option<PathBuf>,
    total: Option<Bytes>,
}

impl RocmOptions {
    /// The device of a number.
    #[must_use]
    pub fn new(number: u32) -> RocmOptions {
        RocmOptions { number, ..RocmOptions::default() }
    }

    /// HIP from this file instead of where the system has it.
    #[must_use]
    pub fn library(mut self, file: impl Into<PathBuf>) -> RocmOptions {
        self.library = Some(file.into());
        self
    }

    /// No more of the device's memory than this.
    #[must_use]
    pub fn total(mut self, bytes: impl Into<Bytes>) -> RocmOptions {
        self.total = Some(bytes.into());
        self
    }
}

/// A device of AMD's.
#[derive(Debug)]
pub struct Rocm {
    // Streams and events go before what they ran on.
    streams: DeviceStreams<HipQueue, HipMarker>,
    blocks: DeviceBlocks<u64>,
    gpu: HipGpu,
    info: DeviceInfo,
}

impl Rocm {
    /// The device of a number.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] that names the files tried, the function that is missing,
    /// the version that is too old, or that there is no such device.
    pub fn open(number: u32) -> Result<Rocm> {
        Rocm::open_with(&RocmOptions::new(number))
    }

    /// A device, as the options say.
    pub fn open_with(options: &RocmOptions) -> Result<Rocm> {
        let hip = Hip::load(options.library.as_deref())?;
        let (count, number) = (hip.devices()?, options.number);
        if number >= count {
            return Err(Error::Unavailable {
                what: format!("rocm:{number}"),
                why: format!("there are {count} devices, counted from 0"),
            });
        }
        let gpu = HipGpu::new(hip, number)?;
        let total = Bytes(gpu.total()?);
        let info = DeviceInfo {
            number,
            alignment: ALIGNMENT,
            granularity: GRANULARITY,
            is_unified: gpu.is_integrated(),
            ..DeviceInfo::new(gpu.name()?, "rocm", options.total.map_or(total, |t| t.min(total)))
        };
        Ok(Rocm {
            streams: DeviceStreams::new(gpu.default_queue()),
            blocks: DeviceBlocks::new(&info, info.total),
            gpu,
            info,
        })
    }

    /// The version of HIP: "6.4".
    #[must_use]
    pub fn version(&self) -> String {
        self.gpu.hip().version()
    }

    /// The `hipStream_t` of a stream, null for the default one; it lives as long as the
    /// device.
    pub fn raw_stream(&self, stream: Stream) -> Result<*mut std::ffi::c_void> {
        self.streams.queue(stream).map(|queue| queue.raw())
    }
}

impl Memory for Rocm {
    memory_from_blocks!();

    fn allocate(&self, request: Request) -> Result<Block> {
        self.blocks.allocate(request, |taken| {
            let Ok(size) = usize::try_from(taken.get()) else { return Ok(None) };
            Ok(self.gpu.take(size)?.map(|address| (address, Some(address))))
        })
    }

    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.blocks.release(block, |address| {
            self.streams.queue(stream)?.finish()?;
            // SAFETY: the table had it, so it came from `take`, and struck it out, so it
            // is given back once.
            unsafe { self.gpu.give_back(*address) }
        })
    }
}

impl Device for Rocm {
    events_from_streams!();

    fn free_memory(&self) -> Result<Bytes> {
        Ok(Bytes(self.gpu.free()?).min(self.available()))
    }

    fn new_stream(&self) -> Result<Stream> {
        self.streams.add(self.gpu.queue()?)
    }

    #[expect(unsafe_code, reason = "device memory is written by its address")]
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let (base, offset) = self.blocks.find(to, bytes.len())?;
        // SAFETY: the table found the whole range inside one live block.
        unsafe { self.gpu.write(base + offset as u64, bytes) }
    }

    #[expect(unsafe_code, reason = "device memory is read by its address")]
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (base, offset) = self.blocks.find(from, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { self.gpu.read(base + offset as u64, bytes) }
    }
}

impl Drop for Rocm {
    #[expect(unsafe_code, reason = "memory is returned by its address")]
    fn drop(&mut self) {
        for address in self.blocks.drain() {
            // SAFETY: it was live, and with the device gone nobody can return or reach it
            // any more. An error leaves nothing to be done.
            let _ = unsafe { self.gpu.give_back(address) };
        }
    }
}
