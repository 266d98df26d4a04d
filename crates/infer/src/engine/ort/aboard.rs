//! What is done on the device beside the model: frames are fitted into its input there, and
//! only the best score of each place comes back. The kernels are in `sys/kernels.cu`.

use std::sync::Arc;

use ort::value::Tensor as OrtTensor;

use super::sys::driver::Stream;
use super::sys::kernels::{Kernels, OnDevice, Shape};
use super::sys::pinned::{Buffer, Stage};
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
            room => room.insert(Room::new(shape, fit, &self.stream)?),
        };
        room.stage.pass(pixels, &room.there.frame)?;
        self.kernels.letterbox(&room.there, &room.shape, input)?;
        Ok(true)
    }

    /// A buffer for what is found in so many places.
    pub(super) fn found(&self, places: usize) -> ort::Result<Buffer> {
        Buffer::new(&self.stream, 24 * places)
    }

    /// What it holds on the device for frames.
    pub(super) fn bytes(&self) -> usize {
        self.room.as_ref().map_or(0, Room::bytes)
    }

    /// Puts the search for the best class of each place on its way.
    pub(super) fn best(
        &self,
        raw: &OrtTensor<f32>,
        classes: usize,
        out: &Buffer,
    ) -> ort::Result<()> {
        self.kernels.best(raw, classes, out)
    }
}

impl Room {
    fn new(shape: Shape, fit: &Fit, stream: &Arc<Stream>) -> ort::Result<Room> {
        let bytes = fit.letterbox.frame_width * fit.letterbox.frame_height * shape.channels;
        let [columns, rows] = fit.tables();
        let there = OnDevice {
            frame: Buffer::new(stream, bytes)?,
            columns: Buffer::holding(stream, &columns)?,
            rows: Buffer::holding(stream, &rows)?,
        };
        Ok(Room { shape, stage: Stage::new(stream, bytes)?, there })
    }

    fn bytes(&self) -> usize {
        let OnDevice { frame, columns, rows } = &self.there;
        frame.bytes() + columns.bytes() + rows.bytes()
    }
}
