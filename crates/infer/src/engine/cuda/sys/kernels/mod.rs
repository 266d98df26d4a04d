//! Our own kernels on the engine's stream: one fits a frame into the model's input, the other
//! finds the best class of each box, so that only that is copied back.
//!
//! A frame has a quarter of the bytes of its tensor, and the best classes a fourteenth of the
//! raw output. The copies save less than the host does: it would read and write all of that on
//! one core.
//!
//! NVRTC compiles the source when a model is opened. It is installed wherever cuDNN is.

use std::sync::Arc;

use plimsoll::Result;
use plimsoll::backend::cuda::{Argument, Function, Launch, compile};

use super::buffer::{DeviceFloats, EngineBuffer};
use super::gpu::EngineGpu;
use super::wrong_size;
use crate::prepare::Letterbox;

const SOURCE: &str = include_str!("kernels.cu");

/// Products and sums are rounded one by one, as on the host.
const EXACT: [&str; 1] = ["--fmad=false"];

/// Threads of a block.
const THREADS: u32 = 128;

/// How a frame lies in the model's input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct FrameShape {
    /// Bytes of a pixel.
    pub(in crate::engine) channels: usize,
    /// Whether blue comes first.
    pub(in crate::engine) blue_first: bool,
    /// How it is fitted.
    pub(in crate::engine) letterbox: Letterbox,
    /// Rows and columns of the input.
    pub(in crate::engine) tensor: (usize, usize),
}

/// A frame and the tables of its fit, on the device.
#[derive(Debug)]
pub(in crate::engine) struct FrameBuffers {
    pub(in crate::engine) frame: EngineBuffer,
    pub(in crate::engine) columns: EngineBuffer,
    pub(in crate::engine) rows: EngineBuffer,
}

/// The kernels, ready to be launched on the stream.
#[derive(Debug)]
pub(in crate::engine) struct FrameKernels {
    gpu: Arc<EngineGpu>,
    letterbox: Function,
    best: Function,
}

impl FrameKernels {
    /// Compiles them for the device.
    pub(in crate::engine) fn new(gpu: &Arc<EngineGpu>) -> Result<FrameKernels> {
        let device = gpu.device();
        let module = device.load(&compile(SOURCE, &device.target(), &EXACT)?)?;
        Ok(FrameKernels {
            gpu: Arc::clone(gpu),
            letterbox: module.function("letterbox")?,
            best: module.function("best")?,
        })
    }

    /// Queues the letterbox of a frame. The buffers must stay until the stream was waited for.
    pub(in crate::engine) fn letterbox(
        &self,
        from: &FrameBuffers,
        shape: &FrameShape,
        out: &DeviceFloats,
    ) -> Result<()> {
        let (fit, (height, width)) = (&shape.letterbox, shape.tensor);
        let enough = from.frame.bytes() >= fit.frame_width * fit.frame_height * shape.channels
            && from.columns.bytes() >= 8 * fit.width
            && from.rows.bytes() >= 12 * fit.height
            && out.numbers() == 3 * width * height;
        if !enough {
            return Err(wrong_size("a buffer is smaller than its frame"));
        }
        let numbers = [
            fit.frame_width,
            shape.channels,
            usize::from(shape.blue_first),
            fit.width,
            fit.height,
            fit.pad_x,
            fit.pad_y,
            width,
            height,
        ];
        let pointers = [from.frame.start(), from.columns.start(), from.rows.start(), out.start()];
        let columns = (width as u32).div_ceil(THREADS);
        self.launch(&self.letterbox, [columns, height as u32], &pointers, &numbers)
    }

    /// Queues the search for the best class of each box. `raw` and `out` must stay until the
    /// stream was waited for.
    pub(in crate::engine) fn best(
        &self,
        raw: &DeviceFloats,
        classes: usize,
        out: &EngineBuffer,
    ) -> Result<()> {
        let places = out.bytes() / 24;
        if raw.numbers() != (4 + classes) * places {
            return Err(wrong_size("the output has another size than its classes need"));
        }
        let blocks = (places as u32).div_ceil(THREADS);
        self.launch(&self.best, [blocks, 1], &[raw.start(), out.start()], &[classes, places])
    }

    fn launch(
        &self,
        kernel: &Function,
        [x, y]: [u32; 2],
        pointers: &[u64],
        numbers: &[usize],
    ) -> Result<()> {
        let pointers = pointers.iter().map(|&pointer| Argument::from(pointer));
        let numbers = numbers.iter().map(|&number| i32::try_from(number).unwrap_or(0).into());
        let arguments: Vec<Argument> = pointers.chain(numbers).collect();
        let launch = Launch { grid: [x, y, 1], block: [THREADS, 1, 1], shared: 0 };
        // SAFETY: the arguments are those of the kernel in kernels.cu, in its order; both callers
        // have checked that the buffers are large enough.
        unsafe { kernel.launch(self.gpu.stream(), launch, &arguments) }
    }
}

#[cfg(test)]
mod tests;
