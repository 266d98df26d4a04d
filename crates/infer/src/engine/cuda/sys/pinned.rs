//! Page-locked host memory: tensors that the device copies from and to, and frames that wait
//! for their copy.
//!
//! All of it is ordinary memory that is registered with the driver, as results are handed out
//! as ordinary tensors. It is allocated once and used again, so a pool would have nothing to do.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::Result;
use plimsoll::backend::cuda::PinnedRange;

use super::buffer::EngineBuffer;
use super::gpu::EngineGpu;
use super::wrong_size;
use crate::tensor::Tensor;

/// Page-locked memory that copies on the stream may use. It waits for them before it is unlocked.
#[derive(Debug)]
struct StreamPin {
    gpu: Arc<EngineGpu>,
    _range: PinnedRange,
}

impl StreamPin {
    /// # Safety
    ///
    /// The memory stays allocated at this address until the value is dropped, and only our
    /// stream copies from or to it.
    unsafe fn new<T>(gpu: &Arc<EngineGpu>, memory: &mut [T]) -> Result<StreamPin> {
        // SAFETY: the caller's promise; `drop` waits for the copies.
        let range = unsafe { gpu.device().pin(memory) }?;
        Ok(StreamPin { gpu: Arc::clone(gpu), _range: range })
    }
}

impl Drop for StreamPin {
    fn drop(&mut self) {
        // Before the range, which is unlocked after this.
        let _ = self.gpu.synchronize();
    }
}

/// Tensors that are page-locked, where there is a device. Their numbers can be changed, their
/// addresses cannot.
#[derive(Debug)]
pub(in crate::engine) struct PinnedTensors {
    // Before the tensors: unlocked before the memory is freed.
    _pins: Vec<StreamPin>,
    tensors: Vec<Tensor>,
}

impl PinnedTensors {
    /// Page-locks tensors for the rest of their lives.
    pub(in crate::engine) fn new(
        gpu: &Arc<EngineGpu>,
        mut tensors: Vec<Tensor>,
    ) -> Result<PinnedTensors> {
        let mut pins = Vec::new();
        for tensor in &mut tensors {
            // SAFETY: the numbers stay where they are until the pin is dropped: the tensors are
            // private to this value, which gives out slices only and drops its pins first.
            pins.push(unsafe { StreamPin::new(gpu, &mut tensor.data) }?);
        }
        Ok(PinnedTensors { _pins: pins, tensors })
    }

    /// The same where there is no device.
    pub(in crate::engine) fn unpinned(tensors: Vec<Tensor>) -> PinnedTensors {
        PinnedTensors { _pins: Vec::new(), tensors }
    }

    pub(in crate::engine) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The numbers of one of them.
    pub(in crate::engine) fn data_mut(&mut self, index: usize) -> &mut [f32] {
        self.tensors.get_mut(index).map(|tensor| &mut tensor.data[..]).unwrap_or_default()
    }

    /// The numbers of all.
    pub(in crate::engine) fn all_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.tensors.iter_mut().map(|tensor| &mut tensor.data[..])
    }
}

/// A page-locked buffer from which the device copies frames.
#[derive(Debug)]
pub(in crate::engine) struct FrameStage {
    // Before the bytes: unlocked before the memory is freed.
    pin: StreamPin,
    bytes: Vec<u8>,
}

/// How many bytes are copied at a time, so that the device copies one portion while the host
/// copies the next.
const PORTION: usize = 256 << 10;

impl FrameStage {
    /// A buffer of this many bytes.
    pub(in crate::engine) fn new(gpu: &Arc<EngineGpu>, length: usize) -> Result<FrameStage> {
        let mut bytes = vec![0; length];
        // SAFETY: the bytes are private to this value, never grow, and are freed after the pin.
        let pin = unsafe { StreamPin::new(gpu, &mut bytes) }?;
        Ok(FrameStage { pin, bytes })
    }

    /// Queues the copy of a frame to the device, in portions.
    pub(in crate::engine) fn send_frame(&mut self, pixels: &[u8], to: &EngineBuffer) -> Result<()> {
        if pixels.len() > self.bytes.len() {
            return Err(wrong_size("a frame is larger than its buffer"));
        }
        // The copy of the frame before must be over.
        self.pin.gpu.synchronize()?;
        for (number, portion) in pixels.chunks(PORTION).enumerate() {
            let start = number * PORTION;
            self.bytes[start..start + portion.len()].copy_from_slice(portion);
            self.send(start..start + portion.len(), to)?;
        }
        Ok(())
    }

    /// Queues the copy of these bytes to the same offset on the device.
    fn send(&self, range: Range<usize>, to: &EngineBuffer) -> Result<()> {
        let Some(from) = self.bytes.get(range.clone()) else {
            return Err(wrong_size("a frame is larger than its buffer"));
        };
        // SAFETY: the bytes stay locked and unchanged until somebody has waited for the stream:
        // `send_frame` before it writes the next frame, the step that a waiting frame is for
        // before it drops the frame, or the pin when it is dropped.
        unsafe { to.queue_write(range.start, from) }
    }
}

/// Page-locked buffers in which decoded frames wait for their turn. Each is used again and again.
#[derive(Debug)]
pub(in crate::engine) struct FrameStages {
    gpu: Arc<EngineGpu>,
    state: Mutex<FreeStages>,
}

#[derive(Debug, Default)]
struct FreeStages {
    free: Vec<FrameStage>,
    made: usize,
}

/// The frames that are decoded ahead, one between two threads, one at work, and two to spare.
const MOST: usize = 8;

impl FrameStages {
    pub(in crate::engine) fn new(gpu: &Arc<EngineGpu>) -> Arc<FrameStages> {
        Arc::new(FrameStages { gpu: Arc::clone(gpu), state: Mutex::default() })
    }

    /// Copies a frame into a free buffer; `None` where none is free or the driver refuses to
    /// lock more memory.
    pub(in crate::engine) fn stage(self: &Arc<FrameStages>, pixels: &[u8]) -> Option<WaitingFrame> {
        let mut stage = self.take(pixels.len())?;
        stage.bytes[..pixels.len()].copy_from_slice(pixels);
        Some(WaitingFrame { stage: Some(stage), bytes: pixels.len(), stages: Arc::clone(self) })
    }

    /// A buffer that is large enough. One that is too small was made for frames of another size,
    /// and is dropped.
    fn take(&self, bytes: usize) -> Option<FrameStage> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.free.pop() {
            Some(stage) if stage.bytes.len() >= bytes => return Some(stage),
            Some(_) => {}
            None if state.made >= MOST => return None,
            None => state.made += 1,
        }
        drop(state);
        FrameStage::new(&self.gpu, bytes).ok()
    }
}

/// A frame in page-locked memory.
#[derive(Debug)]
pub(in crate::engine) struct WaitingFrame {
    stage: Option<FrameStage>,
    bytes: usize,
    stages: Arc<FrameStages>,
}

impl WaitingFrame {
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues its copy to the device. It must be kept until the stream was waited for, or the
    /// device may read another frame in its place.
    pub(in crate::engine) fn send(&self, to: &EngineBuffer) -> Result<()> {
        self.stage.as_ref().map_or(Ok(()), |stage| stage.send(0..self.bytes, to))
    }
}

impl Drop for WaitingFrame {
    fn drop(&mut self) {
        let mut state = self.stages.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.extend(self.stage.take());
    }
}
