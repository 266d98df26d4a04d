//! What is done on the device beside the model: frames are fitted into its input there, and
//! only the best score of each place comes back. The kernels are in `sys/kernels.cu`.

use std::sync::Arc;

use ort::value::Tensor as OrtTensor;

use super::sys::driver::Stream;
use super::sys::kernels::{Kernels, OnDevice, Shape};
use super::sys::pinned::{Buffer, Shelf, Stage, Waiting};
use crate::prepare::{Fit, Prepare};
use crate::source::{Frame, Pixels, Staged, Stager};

/// Kernels on the stream of a session, with the buffers that they work on.
#[derive(Debug)]
pub(super) struct Aboard {
    stream: Arc<Stream>,
    kernels: Kernels,
    shelf: Arc<Shelf>,
    room: Option<Room>,
}

/// The buffers for frames of one shape.
#[derive(Debug)]
struct Room {
    shape: Shape,
    there: OnDevice,
    /// What frames pass through that wait nowhere else.
    stage: Option<Stage>,
}

impl Aboard {
    /// Compiles the kernels.
    pub(super) fn new(stream: &Arc<Stream>) -> ort::Result<Aboard> {
        let (kernels, shelf) = (Kernels::new(stream)?, Shelf::new(stream));
        Ok(Aboard { stream: Arc::clone(stream), kernels, shelf, room: None })
    }

    /// What brings frames into pinned memory, where the device has memory of its own: a board
    /// whose memory is one would only hold every frame twice.
    pub(super) fn stager(&self) -> Option<Stager> {
        if self.stream.is_integrated() {
            return None;
        }
        let shelf = Arc::clone(&self.shelf);
        Some(Arc::new(move |frame: &Frame| {
            let waiting = plain(frame).and_then(|(pixels, ..)| shelf.take_in(pixels));
            waiting.map(Staged::new).unwrap_or_default()
        }))
    }

    /// Puts a frame on its way into `input`, the model's input of so many rows and columns;
    /// `false` where frames of its kind are prepared on the host.
    pub(super) fn load(
        &mut self,
        frame: &Frame,
        prepare: &mut Prepare,
        (input, tensor): (&mut OrtTensor<f32>, (usize, usize)),
    ) -> ort::Result<bool> {
        let Some((pixels, channels, blue_first)) = plain(frame) else { return Ok(false) };
        let fit = prepare.fit(frame).map_err(ort::Error::wrap)?;
        let shape = Shape { channels, blue_first, letterbox: fit.letterbox, tensor };
        let room = match &mut self.room {
            Some(room) if room.shape == shape => room,
            room => room.insert(Room::new(shape, fit, &self.stream)?),
        };
        let to = &room.there.frame;
        match frame.staged.get::<Waiting>() {
            Some(waiting) if waiting.bytes() == pixels.len() => waiting.pass(to)?,
            _ => {
                let stage = match &mut room.stage {
                    Some(stage) => stage,
                    stage => stage.insert(Stage::new(&self.stream, pixels.len())?),
                };
                stage.pass(pixels, to)?;
            }
        }
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
        Ok(Room { shape, there, stage: None })
    }

    fn bytes(&self) -> usize {
        let OnDevice { frame, columns, rows } = &self.there;
        frame.bytes() + columns.bytes() + rows.bytes()
    }
}

/// The bytes of a frame that a device fits, how many a pixel has, and whether blue is first.
fn plain(frame: &Frame) -> Option<(&[u8], usize, bool)> {
    match &frame.pixels {
        Pixels::Rgb8(pixels) => Some((pixels, 3, false)),
        Pixels::Bgr8(pixels) => Some((pixels, 3, true)),
        Pixels::Grey8(pixels) => Some((pixels, 1, false)),
        Pixels::Grey16(_) => None,
    }
}
