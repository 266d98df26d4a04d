//! What is done on the device beside the model: frames are fitted into its input there, and
//! only the best score of each place comes back. The kernels are in `sys/kernels.cu`.

use std::sync::Arc;

use super::sys::driver::Stream;
use super::sys::kernels::{Kernels, OnDevice, Shape};
use super::sys::pinned::{Buffer, Place, Shelf, Stage, Waiting};
use super::sys::{Failure, Result};
use crate::prepare::{Fit, Prepare};
use crate::source::{Frame, Pixels, Staged, Stager};

/// Kernels on the stream of an engine, with the buffers that they work on.
#[derive(Debug)]
pub(in crate::engine) struct Aboard {
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
    pub(in crate::engine) fn new(stream: &Arc<Stream>) -> Result<Aboard> {
        let (kernels, shelf) = (Kernels::new(stream)?, Shelf::new(stream));
        Ok(Aboard { stream: Arc::clone(stream), kernels, shelf, room: None })
    }

    /// What brings frames into pinned memory, where the device has memory of its own: a board
    /// whose memory is one would only hold every frame twice.
    pub(in crate::engine) fn stager(&self) -> Option<Stager> {
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
    pub(in crate::engine) fn load(
        &mut self,
        frame: &Frame,
        prepare: &mut Prepare,
        (input, tensor): (&Place, (usize, usize)),
    ) -> Result<bool> {
        let Some((pixels, channels, blue_first)) = plain(frame) else { return Ok(false) };
        let fit = prepare.fit(frame).map_err(|error| Failure::new(error.to_string()))?;
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
    pub(in crate::engine) fn found(&self, places: usize) -> Result<Buffer> {
        Buffer::new(&self.stream, 24 * places)
    }

    /// Puts the search for the best class of each place on its way.
    pub(in crate::engine) fn best(&self, raw: &Place, classes: usize, out: &Buffer) -> Result<()> {
        self.kernels.best(raw, classes, out)
    }
}

impl Room {
    fn new(shape: Shape, fit: &Fit, stream: &Arc<Stream>) -> Result<Room> {
        let bytes = fit.letterbox.frame_width * fit.letterbox.frame_height * shape.channels;
        let [columns, rows] = fit.tables();
        let there = OnDevice {
            frame: Buffer::new(stream, bytes)?,
            columns: Buffer::holding(stream, &columns)?,
            rows: Buffer::holding(stream, &rows)?,
        };
        Ok(Room { shape, there, stage: None })
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
