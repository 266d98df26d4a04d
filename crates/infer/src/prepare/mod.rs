//! From a frame to the tensor that a detector wants: letterbox, colour order, scale.
//!
//! One walk over the result: for each of its rows, the two rows of the frame that it lies
//! between are interpolated across (two such rows are kept, so that none is made twice),
//! blended, and written as three planes between 0 and 1, while they are still in the
//! nearest cache. Nothing the size of a frame is written but the result, and nothing is
//! allocated while sizes stay as they are.
//!
//! The result equals Ultralytics' letterbox (`cv2.resize` with `INTER_LINEAR`, then a
//! border of grey 114, then a division by 255) to the bit; other framings are in [`Framing`]. A frame that needs no resizing
//! is not interpolated, and one that is halved is summed in fours.

mod crop;
mod letterbox;
pub(crate) mod rows;
mod stretch;
pub(crate) mod weights;

pub use letterbox::Letterbox;

use crop::Crop;

use crate::error::{InferError, InferResult};
use crate::simd;
use crate::source::{Frame, Pixels};
use crate::tensor::Tensor;
use stretch::Stretch;
use weights::{Column, Tap};

/// The grey of the border, as detectors were trained with.
const BORDER: u8 = 114;

/// How a frame is brought to a tensor's size, as Ultralytics does it for each kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// Whole and in its proportions, with a border: most models.
    #[default]
    Letterbox,
    /// Stretched over the tensor: RT-DETR.
    Fill,
    /// In its proportions, the middle taken: classifiers.
    Crop,
}

/// Fits frames into tensors of one size.
#[derive(Debug)]
pub struct Prepare {
    height: usize,
    width: usize,
    framing: Framing,
    crop: Option<Crop>,
    fit: Option<Fit>,
    stretch: Stretch,
    rows: Rows,
}

/// How frames of one size are fitted, with the tables for it.
#[derive(Debug)]
pub(crate) struct Fit {
    /// Where the frame lies.
    pub(crate) letterbox: Letterbox,
    columns: Vec<Column>,
    taps: Vec<Tap>,
}

impl Fit {
    /// The tables as plain numbers, for kernels on a device: the left neighbour and both
    /// weights of each column, both neighbours and both weights of each row.
    pub(crate) fn tables(&self) -> [Vec<i32>; 2] {
        let word = |[first, second]: [i16; 2]| i32::from(first) & 0xffff | i32::from(second) << 16;
        let column = |column: &Column| [column.at as i32, word(column.weights)];
        let row = |tap: &Tap| [tap.first as i32, tap.second as i32, word(tap.weights)];
        [self.columns.iter().flat_map(column).collect(), self.taps.iter().flat_map(row).collect()]
    }

    fn new(letterbox: Letterbox) -> Fit {
        let (mut columns, mut taps) = (Vec::new(), Vec::new());
        weights::columns(letterbox.frame_width, letterbox.width, &mut columns);
        weights::rows(letterbox.frame_height, letterbox.height, &mut taps);
        Fit { letterbox, columns, taps }
    }
}

/// What is kept from one row to the next.
#[derive(Debug, Default)]
struct Rows {
    /// Two rows of the frame, interpolated across.
    mixed: [Vec<i16>; 2],
    /// Which rows they are.
    kept: [Option<usize>; 2],
    /// A row of the result, as bytes.
    bytes: Vec<u8>,
    /// A row of the frame, where it is not used as it lies there.
    source: Vec<u8>,
}

/// A frame's pixels as the kernels see them.
#[derive(Clone, Copy)]
enum Plane<'frame> {
    /// Three channels; whether blue comes first.
    Colour(&'frame [u8], bool),
    Grey(&'frame [u8]),
    Deep(&'frame [u16]),
}

impl Prepare {
    /// For tensors of `[1, 3, height, width]`.
    #[must_use]
    pub fn new(height: usize, width: usize) -> Prepare {
        Prepare::framed(height, width, Framing::Letterbox)
    }

    /// The same with another framing.
    #[must_use]
    pub fn framed(height: usize, width: usize, framing: Framing) -> Prepare {
        let (stretch, rows) = (Stretch::default(), Rows::default());
        Prepare { height, width, framing, crop: None, fit: None, stretch, rows }
    }

    /// Whether a device may do the same from the tables of [`Prepare::fit`].
    pub(crate) fn is_by_tables(&self) -> bool {
        self.framing != Framing::Crop
    }

    /// Rows and columns of the tensors.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// Writes a frame into `out`, which takes on the shape `[1, 3, height, width]`, and
    /// says how it was fitted.
    ///
    /// # Errors
    ///
    /// [`InferError::Frame`] where the pixels are not as many as the size says, or nothing of
    /// the frame would be left.
    pub fn run(&mut self, frame: &Frame, out: &mut Tensor) -> InferResult<Letterbox> {
        self.shape(out);
        self.run_into(frame, &mut out.data, &mut None)
    }

    /// Gives a tensor the shape of the result.
    pub(crate) fn shape(&self, out: &mut Tensor) {
        if out.shape != [1, 3, self.height, self.width]
            || out.data.len() != 3 * self.height * self.width
        {
            out.reshape(&[1, 3, self.height, self.width]);
        }
    }

    /// The same into numbers that have their place already. `painted` is the border that
    /// they have, of a frame before: it is painted again only where it is another.
    ///
    /// # Errors
    ///
    /// As [`Prepare::run`], and where `out` has another length than the tensor.
    pub(crate) fn run_into(
        &mut self,
        frame: &Frame,
        out: &mut [f32],
        painted: &mut Option<Letterbox>,
    ) -> InferResult<Letterbox> {
        let plane = plane(frame)?;
        let fitted = self.fit(frame)?.letterbox;
        let area = self.height * self.width;
        if out.len() != 3 * area {
            let why =
                format!("{} numbers for an image of {}x{}", out.len(), self.width, self.height);
            return Err(InferError::Frame { frame: frame.name.clone(), why });
        }
        if let Plane::Deep(pixels) = plane {
            self.stretch.look(pixels);
        }
        let (red, rest) = out.split_at_mut(area);
        let (green, blue) = rest.split_at_mut(area);
        let mut planes = [red, green, blue];
        if self.framing == Framing::Crop {
            self.cut(plane, (frame.height, frame.width), planes);
            *painted = None;
            return Ok(fitted);
        }
        if painted.replace(fitted) != Some(fitted) {
            for plane in &mut planes {
                border(plane, self.width, &fitted);
            }
        }
        self.rows.kept = [None; 2];
        for row in 0..fitted.height {
            let start = (fitted.pad_y + row) * self.width + fitted.pad_x;
            let out = planes.each_mut().map(|plane| &mut plane[start..start + fitted.width]);
            self.row(plane, row, &fitted, out);
        }
        Ok(fitted)
    }

    /// How a frame is fitted. The tables are made anew where its size is another than the
    /// last one's.
    ///
    /// # Errors
    ///
    /// As [`Prepare::run`].
    pub(crate) fn fit(&mut self, frame: &Frame) -> InferResult<&Fit> {
        plane(frame)?;
        let size = (frame.height, frame.width);
        let known = |fit: &Fit| (fit.letterbox.frame_height, fit.letterbox.frame_width) == size;
        let fit = match self.fit.take_if(|fit| known(fit)) {
            Some(fit) => fit,
            None => self.make(frame)?,
        };
        Ok(self.fit.insert(fit))
    }

    fn make(&mut self, frame: &Frame) -> InferResult<Fit> {
        let tensor = (self.height, self.width);
        let size = (frame.height, frame.width);
        let letterbox = match self.framing {
            Framing::Letterbox => Letterbox::fit(size, tensor),
            Framing::Fill | Framing::Crop => Letterbox::fill(size, tensor),
        };
        let letterbox = letterbox.ok_or_else(|| InferError::Frame {
            frame: frame.name.clone(),
            why: format!(
                "{}x{} pixels leave nothing in a tensor of {}x{}",
                frame.width, frame.height, self.width, self.height
            ),
        })?;
        for mixed in &mut self.rows.mixed {
            mixed.resize(4 * letterbox.width, 0);
        }
        self.rows.bytes.resize(4 * letterbox.width, 0);
        // Two pixels at least: the kernels read pairs.
        self.rows.source.resize(3 * letterbox.frame_width.max(2), 0);
        Ok(Fit::new(letterbox))
    }

    /// The middle of a frame, its shorter side fitted.
    fn cut(&mut self, plane: Plane<'_>, size: (usize, usize), planes: [&mut [f32]; 3]) {
        let crop = match self.crop.take_if(|crop| crop.fits(size)) {
            Some(crop) => crop,
            None => Crop::new(size, (self.height, self.width)),
        };
        let (width, stretch) = (size.1, &self.stretch);
        let mut grey = vec![0; width];
        let line = |row: usize, out: &mut [u8]| {
            match plane {
                Plane::Colour(pixels, _) => {
                    return out.copy_from_slice(&pixels[3 * row * width..][..3 * width]);
                }
                Plane::Grey(pixels) => grey.copy_from_slice(&pixels[row * width..][..width]),
                Plane::Deep(pixels) => stretch.row(&pixels[row * width..][..width], &mut grey),
            }
            for (pixel, &value) in out.as_chunks_mut::<3>().0.iter_mut().zip(&grey) {
                *pixel = [value; 3];
            }
        };
        let blue_first = matches!(plane, Plane::Colour(_, true));
        self.crop.insert(crop).run(line, ordered(planes, blue_first));
    }

    /// A row of the result.
    fn row(&mut self, plane: Plane<'_>, row: usize, fitted: &Letterbox, out: [&mut [f32]; 3]) {
        let mut bytes = std::mem::take(&mut self.rows.bytes);
        if let Plane::Colour(pixels, blue_first) = plane {
            self.colour(pixels, row, fitted, &mut bytes);
            simd::split(&bytes, ordered(out, blue_first));
        } else {
            let bytes = &mut bytes[..fitted.width];
            self.single(plane, row, fitted, bytes);
            grey(bytes, out);
        }
        self.rows.bytes = bytes;
    }

    /// A row of three channels, as four lanes.
    fn colour(&mut self, pixels: &[u8], row: usize, fitted: &Letterbox, out: &mut [u8]) {
        let stride = 3 * fitted.frame_width;
        let line = |row: usize| &pixels[stride * row..][..stride];
        if fitted.is_identity() {
            simd::widen(line(row), out);
        } else if fitted.is_half() {
            simd::halve(line(2 * row), line(2 * row + 1), out);
        } else {
            self.interpolate(Plane::Colour(pixels, false), row, fitted, out);
        }
    }

    /// A row of one channel.
    fn single(&mut self, plane: Plane<'_>, row: usize, fitted: &Letterbox, out: &mut [u8]) {
        let width = fitted.frame_width;
        match plane {
            _ if !fitted.is_identity() => self.interpolate(plane, row, fitted, out),
            Plane::Deep(pixels) => self.stretch.row(&pixels[row * width..][..width], out),
            Plane::Grey(pixels) => out.copy_from_slice(&pixels[row * width..][..width]),
            Plane::Colour(..) => {}
        }
    }

    /// A row of the result that lies between two rows of the frame.
    fn interpolate(&mut self, plane: Plane<'_>, row: usize, fitted: &Letterbox, out: &mut [u8]) {
        let Some(&tap) = self.fit.as_ref().and_then(|fit| fit.taps.get(row)) else { return };
        let upper = self.mixed(plane, tap.first, tap.second, fitted);
        let lower = self.mixed(plane, tap.second, tap.first, fitted);
        let Rows { mixed, .. } = &self.rows;
        simd::blend(&mixed[upper], &mixed[lower], tap.weights, out);
    }

    /// Which of the two kept rows holds row `wanted` of the frame; it is made where
    /// neither does, in the place of the one that is not `other`.
    fn mixed(
        &mut self,
        plane: Plane<'_>,
        wanted: usize,
        other: usize,
        fitted: &Letterbox,
    ) -> usize {
        let Rows { mixed, kept, source, .. } = &mut self.rows;
        let columns = self.fit.as_ref().map_or(&[][..], |fit| &fit.columns);
        if let Some(slot) = kept.iter().position(|&row| row == Some(wanted)) {
            return slot;
        }
        let slot = usize::from(kept[0] == Some(other));
        kept[slot] = Some(wanted);
        let width = fitted.frame_width;
        match plane {
            Plane::Colour(pixels, _) => {
                let pixels = &pixels[3 * wanted * width..][..3 * width];
                let pixels = doubled::<3>(pixels, source);
                simd::mix_colour(pixels, columns, &mut mixed[slot]);
            }
            Plane::Grey(pixels) => {
                let pixels = doubled::<1>(&pixels[wanted * width..][..width], source);
                simd::mix_grey(pixels, columns, &mut mixed[slot]);
            }
            Plane::Deep(pixels) => {
                let pixels = &pixels[wanted * width..][..width];
                self.stretch.row(pixels, source);
                if width == 1 {
                    source[1] = source[0];
                }
                simd::mix_grey(&source[..width.max(2)], columns, &mut mixed[slot]);
            }
        }
        slot
    }
}

/// A row as it is, or twice its one pixel: the kernels read pairs.
fn doubled<'row, const CHANNELS: usize>(row: &'row [u8], room: &'row mut [u8]) -> &'row [u8] {
    if row.len() != CHANNELS {
        return row;
    }
    room[..CHANNELS].copy_from_slice(row);
    room[CHANNELS..2 * CHANNELS].copy_from_slice(row);
    &room[..2 * CHANNELS]
}

/// The planes in the order of the channels that are read.
fn ordered(planes: [&mut [f32]; 3], blue_first: bool) -> [&mut [f32]; 3] {
    let [red, green, blue] = planes;
    if blue_first { [blue, green, red] } else { [red, green, blue] }
}

/// The same row in all three planes.
fn grey(bytes: &[u8], planes: [&mut [f32]; 3]) {
    let [red, green, blue] = planes;
    simd::spread(bytes, red);
    green.copy_from_slice(red);
    blue.copy_from_slice(red);
}

/// Paints what of a plane the frame leaves free.
fn border(plane: &mut [f32], width: usize, fitted: &Letterbox) {
    let value = rows::unit(BORDER);
    let (above, rest) = plane.split_at_mut(fitted.pad_y * width);
    let (beside, below) = rest.split_at_mut(fitted.height * width);
    above.fill(value);
    below.fill(value);
    if fitted.width < width {
        for row in beside.chunks_exact_mut(width) {
            row[..fitted.pad_x].fill(value);
            row[fitted.pad_x + fitted.width..].fill(value);
        }
    }
}

/// The pixels, where they are as many as the size says.
fn plane(frame: &Frame) -> InferResult<Plane<'_>> {
    let (plane, has, channels) = match &frame.pixels {
        Pixels::Rgb8(pixels) => (Plane::Colour(pixels, false), pixels.len(), 3),
        Pixels::Bgr8(pixels) => (Plane::Colour(pixels, true), pixels.len(), 3),
        Pixels::Grey8(pixels) => (Plane::Grey(pixels), pixels.len(), 1),
        Pixels::Grey16(pixels) => (Plane::Deep(pixels), pixels.len(), 1),
    };
    let wants = frame.width.checked_mul(frame.height).and_then(|area| area.checked_mul(channels));
    if wants == Some(has) {
        return Ok(plane);
    }
    Err(InferError::Frame {
        frame: frame.name.clone(),
        why: format!(
            "{}x{} pixels of {channels} channels, but {has} values",
            frame.width, frame.height
        ),
    })
}

#[cfg(test)]
mod tests;
