//! What is done on the device beside the model: frames are fitted into its input there, and
//! only the best score of each place comes back. The kernels are in `sys/kernels.cu`.

use std::sync::Arc;

use ort::memory::Allocator;
use ort::value::Tensor as OrtTensor;

use super::sys::driver::{Stage, Stream};
use super::sys::kernels::{Kernels, OnDevice, Shape};
use crate::prepare::Fit;
use crate::source::{Frame, Pixels};

/// Kernels on the stream of a session, with the buffers that they work on.
#[derive(Debug)]
pub(super) struct Aboard {
    stream: Arc<Stream>,
    kernels: Kernels,
    room: Option<Room>,
}

/// The buffers for frames of one shape.
#[derive(Debug)]
struct Room {
    shape: Shape,
    stage: Stage,
    there: OnDevice,
}

impl Aboard {
    /// Compiles the kernels.
    pub(super) fn new(stream: &Arc<Stream>) -> ort::Result<Aboard> {
        let kernels = Kernels::new(stream)?;
        Ok(Aboard { stream: Arc::clone(stream), kernels, room: None })
    }

    /// Puts a frame on its way into `input`, the model's input of so many rows and columns;
    /// `false` where frames of its kind are prepared on the host.
    pub(super) fn load(
        &mut self,
        frame: &Frame,
        fit: &Fit,
        allocator: &Allocator,
        (input, tensor): (&mut OrtTensor<f32>, (usize, usize)),
    ) -> ort::Result<bool> {
        let (pixels, channels, blue_first) = match &frame.pixels {
            Pixels::Rgb8(pixels) => (pixels, 3, false),
            Pixels::Bgr8(pixels) => (pixels, 3, true),
            Pixels::Grey8(pixels) => (pixels, 1, false),
            Pixels::Grey16(_) => return Ok(false),
        };
        let shape = Shape { channels, blue_first, letterbox: fit.letterbox, tensor };
        let room = match &mut self.room {
            Some(room) if room.shape == shape => room,
            room => room.insert(Room::new(shape, fit, allocator, &self.stream)?),
        };
        room.stage.pass(pixels, &mut room.there.frame)?;
        self.kernels.letterbox(&room.there, &room.shape, input)?;
        Ok(true)
    }

    /// Puts the search for the best class of each place on its way.
    pub(super) fn best(
        &self,
        raw: &OrtTensor<f32>,
        classes: usize,
        out: &OrtTensor<f32>,
    ) -> ort::Result<()> {
        self.kernels.best(raw, classes, out)
    }
}

impl Room {
    fn new(
        shape: Shape,
        fit: &Fit,
        allocator: &Allocator,
        stream: &Arc<Stream>,
    ) -> ort::Result<Room> {
        let bytes = fit.letterbox.frame_width * fit.letterbox.frame_height * shape.channels;
        let [columns, rows] = fit.tables();
        let mut there = OnDevice {
            frame: OrtTensor::new(allocator, [bytes])?,
            columns: OrtTensor::new(allocator, [columns.len()])?,
            rows: OrtTensor::new(allocator, [rows.len()])?,
        };
        stream.put(&columns, &mut there.columns)?;
        stream.put(&rows, &mut there.rows)?;
        Ok(Room { shape, stage: Stage::new(stream, bytes)?, there })
    }
}
