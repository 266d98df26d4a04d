//! The parts of the pipeline that run on the GPU beside the model: frames are fitted into the
//! model's input there, and only the best class of each box is copied back. The kernels are in
//! `sys/kernels/kernels.cu`.

use std::sync::Arc;

use plimsoll::{Error, Result};

use super::sys::buffer::{DeviceFloats, EngineBuffer};
use super::sys::gpu::EngineGpu;
use super::sys::kernels::{FrameBuffers, FrameKernels, FrameShape};
use super::sys::pinned::{FrameStage, FrameStages, WaitingFrame};
use crate::prepare::{Fit, Prepare};
use crate::source::{Frame, Pixels, Staged, Stager};

/// Bytes for each box that is searched: four numbers of the box, its best score and its class.
const FOUND: usize = 24;

/// Kernels on the stream of an engine, with the buffers that they work on. Buffers are allocated
/// for the first frame of a shape and kept, so a step allocates nothing.
#[derive(Debug)]
pub(in crate::engine) struct DevicePipeline {
    gpu: Arc<EngineGpu>,
    kernels: FrameKernels,
    stages: Arc<FrameStages>,
    input: Option<FrameInput>,
}

/// The buffers for frames of one shape.
#[derive(Debug)]
struct FrameInput {
    shape: FrameShape,
    buffers: FrameBuffers,
    /// The page-locked buffer for frames that were not staged when they were decoded.
    stage: Option<FrameStage>,
}

impl DevicePipeline {
    /// Compiles the kernels.
    pub(in crate::engine) fn new(gpu: &Arc<EngineGpu>) -> Result<DevicePipeline> {
        let (kernels, stages) = (FrameKernels::new(gpu)?, FrameStages::new(gpu));
        Ok(DevicePipeline { gpu: Arc::clone(gpu), kernels, stages, input: None })
    }

    /// Copies frames into page-locked memory on the thread that decodes them. Only for a device
    /// with memory of its own: on a board with shared memory it would only hold every frame
    /// twice.
    pub(in crate::engine) fn stager(&self) -> Option<Stager> {
        if self.gpu.is_integrated() {
            return None;
        }
        let stages = Arc::clone(&self.stages);
        Some(Arc::new(move |frame: &Frame| {
            let waiting = plain(frame).and_then(|(pixels, ..)| stages.stage(pixels));
            waiting.map(Staged::new).unwrap_or_default()
        }))
    }

    /// Queues the copy and the letterbox of a frame into `input`, the model's input of this many
    /// rows and columns; `false` where frames of its kind are prepared on the host.
    pub(in crate::engine) fn load(
        &mut self,
        frame: &Frame,
        prepare: &mut Prepare,
        (input, tensor): (&DeviceFloats, (usize, usize)),
    ) -> Result<bool> {
        let Some((pixels, channels, blue_first)) = plain(frame) else { return Ok(false) };
        let fit = prepare
            .fit(frame)
            .map_err(|error| Error::Device { call: "preparing a frame", why: error.to_string() })?;
        let shape = FrameShape { channels, blue_first, letterbox: fit.letterbox, tensor };
        let to = match &mut self.input {
            Some(known) if known.shape == shape => known,
            other => other.insert(FrameInput::new(shape, fit, &self.gpu)?),
        };
        match frame.staged.get::<WaitingFrame>() {
            Some(waiting) if waiting.bytes() == pixels.len() => waiting.send(&to.buffers.frame)?,
            _ => {
                let stage = match &mut to.stage {
                    Some(stage) => stage,
                    stage => stage.insert(FrameStage::new(&self.gpu, pixels.len())?),
                };
                stage.send_frame(pixels, &to.buffers.frame)?;
            }
        }
        self.kernels.letterbox(&to.buffers, &to.shape, input)?;
        Ok(true)
    }

    /// A buffer for the search of this many boxes.
    pub(in crate::engine) fn found(&self, boxes: usize) -> Result<EngineBuffer> {
        EngineBuffer::new(&self.gpu, FOUND * boxes)
    }

    /// Queues the search for the best class of each box.
    pub(in crate::engine) fn best(
        &self,
        raw: &DeviceFloats,
        classes: usize,
        out: &EngineBuffer,
    ) -> Result<()> {
        self.kernels.best(raw, classes, out)
    }
}

impl FrameInput {
    fn new(shape: FrameShape, fit: &Fit, gpu: &Arc<EngineGpu>) -> Result<FrameInput> {
        let bytes = fit.letterbox.frame_width * fit.letterbox.frame_height * shape.channels;
        let [columns, rows] = fit.tables();
        let buffers = FrameBuffers {
            frame: EngineBuffer::new(gpu, bytes)?,
            columns: EngineBuffer::holding(gpu, &columns)?,
            rows: EngineBuffer::holding(gpu, &rows)?,
        };
        Ok(FrameInput { shape, buffers, stage: None })
    }
}

/// The bytes of a frame that the device can fit, how many a pixel has, and whether blue is first.
fn plain(frame: &Frame) -> Option<(&[u8], usize, bool)> {
    match &frame.pixels {
        Pixels::Rgb8(pixels) => Some((pixels, 3, false)),
        Pixels::Bgr8(pixels) => Some((pixels, 3, true)),
        Pixels::Grey8(pixels) => Some((pixels, 1, false)),
        Pixels::Grey16(_) => None,
    }
}
