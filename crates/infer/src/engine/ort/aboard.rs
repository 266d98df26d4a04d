//! What is done on the device beside the model: frames are fitted into its input there, and
//! only the best score of each place comes back. The kernels are in `sys/kernels.cu`.

use std::sync::Arc;

use ort::value::Tensor as OrtTensor;

use super::sys::driver::Stream;
use super::sys::kernels::{Kernels, OnDevice, Shape};
use super::sys::pinned::{Buffer, Stage};
use crate::prepare::{Fit, Letterbox, Prepare};
use crate::source::{Frame, Pixels};

/// Set to `whole`, frames travel as they are, however large.
const FRAMES: &str = "PLIMSOLL_FRAMES";

/// Kernels on the stream of a session, with the buffers that they work on.
#[derive(Debug)]
pub(super) struct Aboard {
    stream: Arc<Stream>,
    kernels: Kernels,
    room: Option<Room>,
    /// Whether large frames are brought to their size in the tensor before they travel.
    shrink: bool,
}

/// The buffers for frames of one shape.
#[derive(Debug)]
struct Room {
    shape: Shape,
    stage: Stage,
    there: OnDevice,
    /// The shape of the frames, as they are on the host.
    from: Letterbox,
}

impl Aboard {
    /// Compiles the kernels.
    pub(super) fn new(stream: &Arc<Stream>) -> ort::Result<Aboard> {
        let kernels = Kernels::new(stream)?;
        let shrink = std::env::var_os(FRAMES).is_none_or(|how| how != "whole");
        Ok(Aboard { stream: Arc::clone(stream), kernels, room: None, shrink })
    }

    /// Puts a frame on its way into `input`, the model's input of so many rows and columns;
    /// `false` where frames of its kind are prepared on the host.
    ///
    /// A frame must be copied into pinned memory, byte for byte. Where it is at least twice as
    /// large as what the tensor keeps of it, reading it is most of that copy, and shrinking it
    /// on the way costs no more: a third of the bytes and less are then left to travel.
    pub(super) fn load(
        &mut self,
        frame: &Frame,
        prepare: &mut Prepare,
        (input, tensor): (&mut OrtTensor<f32>, (usize, usize)),
    ) -> ort::Result<bool> {
        let (pixels, channels, blue_first) = match &frame.pixels {
            Pixels::Rgb8(pixels) => (pixels, 3, false),
            Pixels::Bgr8(pixels) => (pixels, 3, true),
            Pixels::Grey8(pixels) => (pixels, 1, false),
            Pixels::Grey16(_) => return Ok(false),
        };
        let fit = prepare.fit(frame).map_err(ort::Error::wrap)?;
        let from = fit.letterbox;
        let shrink = self.shrink && channels == 3 && 2 * from.width <= from.frame_width;
        let channels = if shrink { 4 } else { channels };
        let known = |room: &Room| {
            (room.from, room.shape.channels, room.shape.blue_first, room.shape.tensor)
                == (from, channels, blue_first, tensor)
        };
        let room = match &mut self.room {
            Some(room) if known(room) => room,
            room => {
                let fitted = shrink.then(|| fit.fitted());
                let fit = fitted.as_ref().unwrap_or(fit);
                let shape = Shape { channels, blue_first, letterbox: fit.letterbox, tensor };
                room.insert(Room::new(shape, from, fit, &self.stream)?)
            }
        };
        let row = 4 * from.width;
        let (bytes, unit) = if shrink { (row * from.height, row) } else { (pixels.len(), 1) };
        room.stage.pass((bytes, unit), &room.there.frame, |start, stage| {
            if shrink {
                let first = start / row;
                return prepare.lanes(frame, first..first + stage.len() / row, stage);
            }
            stage.copy_from_slice(&pixels[start..start + stage.len()]);
            true
        })?;
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
    fn new(shape: Shape, from: Letterbox, fit: &Fit, stream: &Arc<Stream>) -> ort::Result<Room> {
        let bytes = fit.letterbox.frame_width * fit.letterbox.frame_height * shape.channels;
        let [columns, rows] = fit.tables();
        let there = OnDevice {
            frame: Buffer::new(stream, bytes)?,
            columns: Buffer::holding(stream, &columns)?,
            rows: Buffer::holding(stream, &rows)?,
        };
        Ok(Room { shape, stage: Stage::new(stream, bytes)?, there, from })
    }

    fn bytes(&self) -> usize {
        let OnDevice { frame, columns, rows } = &self.there;
        frame.bytes() + columns.bytes() + rows.bytes()
    }
}
