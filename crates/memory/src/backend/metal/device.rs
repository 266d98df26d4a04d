//! A device of Metal's.
//!
//! Blocks are buffers in shared storage, which on Apple silicon is the one memory that
//! there is: the host reads and writes them where they lie. A buffer has no address that
//! could be added to, so addresses are of our own making, as with OpenCL, and the sum is
//! counted here and held at the working set that Metal recommends. A point in a queue is a
//! shared event that the queue signals.

use std::ptr::NonNull;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandQueue, MTLCopyAllDevices, MTLDevice, MTLEvent,
    MTLResourceOptions, MTLSharedEvent,
};

use super::super::blocks::{DeviceBlocks, memory_from_blocks};
use super::super::streams::{DeviceStreams, events_from_streams};
use crate::memory::{Address, Block, Device, DeviceInfo, Event, Memory, Request, Stream};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// Metal wants 256 for constants on every device; buffers start at a page.
const ALIGNMENT: u64 = 256;
/// Pages of Apple silicon.
const GRANULARITY: Bytes = Bytes::kib(16);
/// The value that a marker's event is signalled with.
const PASSED: u64 = 1;
/// How long one wait for an event lasts; it is repeated until the point was passed.
const WAIT_MS: u64 = 1000;

/// A buffer in shared storage.
#[derive(Debug)]
struct MetalBuffer(Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: Metal's objects may be kept and let go of by any thread. What two threads must
// not do, change contents at once, is left to whoever holds the block, as on every device.
#[expect(unsafe_code, reason = "objc2 ties resources to a thread for their contents' sake")]
unsafe impl Send for MetalBuffer {}
// SAFETY: as above; length and contents' address never change.
#[expect(unsafe_code, reason = "objc2 ties resources to a thread for their contents' sake")]
unsafe impl Sync for MetalBuffer {}

/// How many devices there are.
pub(super) fn count() -> Result<u32> {
    match MTLCopyAllDevices().len() {
        0 => Err(Error::Unavailable {
            what: "Metal".to_string(),
            why: "the system has no device; a virtual machine needs one passed to it".to_string(),
        }),
        count => Ok(count.try_into().unwrap_or(u32::MAX)),
    }
}

/// A queue of commands.
#[derive(Debug)]
struct MetalQueue {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Makes the events of its markers.
    device: Retained<ProtocolObject<dyn MTLDevice>>,
}

/// A point in a queue: an event that the queue signals when it gets there.
#[derive(Debug)]
struct MetalMarker(Retained<ProtocolObject<dyn MTLSharedEvent>>);

impl MetalQueue {
    fn new(device: &Retained<ProtocolObject<dyn MTLDevice>>) -> Result<MetalQueue> {
        let queue = device.newCommandQueue().ok_or_else(|| failed("newCommandQueue"))?;
        Ok(MetalQueue { queue, device: device.clone() })
    }

    /// Hands the queue a buffer of commands that was filled by `fill`.
    fn send(&self, fill: impl FnOnce(&ProtocolObject<dyn MTLCommandBuffer>)) -> Result<()> {
        let commands = self.queue.commandBuffer().ok_or_else(|| failed("commandBuffer"))?;
        fill(&commands);
        commands.commit();
        Ok(())
    }

    fn mark(&self) -> Result<MetalMarker> {
        let event = self.device.newSharedEvent().ok_or_else(|| failed("newSharedEvent"))?;
        let as_event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*event);
        self.send(|commands| commands.encodeSignalEvent_value(as_event, PASSED))?;
        Ok(MetalMarker(event))
    }

    fn wait(&self, marker: &MetalMarker) -> Result<()> {
        let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*marker.0);
        self.send(|commands| commands.encodeWaitForEvent_value(event, PASSED))
    }
}

impl MetalMarker {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.signaledValue() >= PASSED)
    }

    fn synchronize(&self) -> Result<()> {
        while !self.is_done()? {
            self.0.waitUntilSignaledValue_timeoutMS(PASSED, WAIT_MS);
        }
        Ok(())
    }
}

fn failed(call: &'static str) -> Error {
    Error::Device { call, why: "Metal gave nothing".to_string() }
}

/// A device of Metal's.
#[derive(Debug)]
pub struct Metal {
    // What was made on the device goes before it.
    streams: DeviceStreams<MetalQueue, MetalMarker>,
    blocks: DeviceBlocks<Arc<MetalBuffer>>,
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    info: DeviceInfo,
}

impl Metal {
    /// The device of a number, in the system's order.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where there are not so many.
    pub fn open(number: u32) -> Result<Metal> {
        Metal::with_total(number, Bytes::MAX)
    }

    /// The same, with no more of its memory than the caller says.
    pub fn with_total(number: u32, total: Bytes) -> Result<Metal> {
        let (count, all) = (count()?, MTLCopyAllDevices());
        let device = all.iter().nth(number as usize).ok_or_else(|| Error::Unavailable {
            what: format!("metal:{number}"),
            why: format!("there are {count} devices, counted from 0"),
        })?;
        let info = DeviceInfo {
            number,
            alignment: ALIGNMENT,
            granularity: GRANULARITY,
            is_unified: Some(device.hasUnifiedMemory()),
            ..DeviceInfo::new(
                device.name().to_string(),
                "metal",
                total.min(Bytes(device.recommendedMaxWorkingSetSize())),
            )
        };
        Ok(Metal {
            streams: DeviceStreams::new(MetalQueue::new(&device)?),
            blocks: DeviceBlocks::new(&info, Bytes(device.maxBufferLength() as u64)),
            device,
            info,
        })
    }

    /// The device, for callers who compile and launch.
    #[must_use]
    pub fn raw_device(&self) -> &ProtocolObject<dyn MTLDevice> {
        &self.device
    }

    /// The queue of a stream.
    pub fn raw_queue(
        &self,
        stream: Stream,
    ) -> Result<Retained<ProtocolObject<dyn MTLCommandQueue>>> {
        self.streams.queue(stream).map(|queue| queue.queue.clone())
    }

    /// The buffer that holds this many bytes from an address on, and where in it they lie, as
    /// an encoder's `setBuffer` takes them.
    pub fn raw_buffer(
        &self,
        at: Address,
        size: Bytes,
    ) -> Result<(Retained<ProtocolObject<dyn MTLBuffer>>, usize)> {
        let len = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let (buffer, offset) = self.blocks.find(at, len)?;
        Ok((buffer.0.clone(), offset))
    }

    /// Where this many bytes from an address on lie in the host's memory. The buffer keeps
    /// them there.
    #[expect(unsafe_code, reason = "a pointer is moved inside a buffer")]
    fn locate(&self, at: Address, len: usize) -> Result<(Arc<MetalBuffer>, NonNull<u8>)> {
        let (buffer, offset) = self.blocks.find(at, len)?;
        let base: NonNull<u8> = buffer.0.contents().cast();
        // SAFETY: the table found the range inside the buffer, whose storage is shared and
        // so has contents of its length.
        let pointer = unsafe { base.add(offset) };
        Ok((buffer, pointer))
    }
}

impl Memory for Metal {
    memory_from_blocks!();

    fn allocate(&self, request: Request) -> Result<Block> {
        self.blocks.allocate(request, |taken| {
            let Ok(size) = usize::try_from(taken.get()) else { return Ok(None) };
            let made = self
                .device
                .newBufferWithLength_options(size, MTLResourceOptions::StorageModeShared);
            Ok(made.map(|buffer| (Arc::new(MetalBuffer(buffer)), None)))
        })
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.blocks.release(block, |_| self.streams.queue(stream)?.mark()?.synchronize())
    }
}

impl Device for Metal {
    events_from_streams!();

    /// The working set that Metal recommends, less what this process has; what others have
    /// Metal does not tell.
    fn free_memory(&self) -> Result<Bytes> {
        let ours = Bytes(self.device.currentAllocatedSize() as u64);
        let recommended = Bytes(self.device.recommendedMaxWorkingSetSize());
        Ok(recommended.saturating_sub(ours).min(self.available()))
    }

    fn new_stream(&self) -> Result<Stream> {
        self.streams.add(MetalQueue::new(&self.device)?)
    }

    #[expect(unsafe_code, reason = "raw memory is written")]
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let (_keeps, pointer) = self.locate(to, bytes.len())?;
        // SAFETY: `locate` found the whole range inside one live buffer, which is kept
        // alive; a borrowed slice of ours cannot overlap memory that Metal handed out.
        unsafe { pointer.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[expect(unsafe_code, reason = "raw memory is read")]
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (_keeps, pointer) = self.locate(from, bytes.len())?;
        // SAFETY: as in `write`; Metal hands out buffers that are zero.
        unsafe { pointer.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}
