//! A sheet of pixels, and the two inks that it takes: colour and heat.
//!
//! Backgrounds and shapes are drawn by the same code for both kinds of camera; only the ink
//! differs. Mixing is done in whole numbers, so that every machine draws the same bits.

/// What a pixel can be made of.
pub(super) trait Ink: Copy + Default + Send {
    /// `self` at 0, `other` at 256.
    fn mix(self, other: Self, part: u32) -> Self;
    /// How far apart two inks look.
    fn distance(self, other: Self) -> u32;
}

/// Red, green, blue.
pub(super) type Colour = [u8; 3];
/// Hundredths of a kelvin.
pub(super) type Heat = u16;

impl Ink for Colour {
    fn mix(self, other: Self, part: u32) -> Self {
        let one = |a: u8, b: u8| ((u32::from(a) * (256 - part) + u32::from(b) * part) >> 8) as u8;
        [one(self[0], other[0]), one(self[1], other[1]), one(self[2], other[2])]
    }

    fn distance(self, other: Self) -> u32 {
        (0..3).map(|c| u32::from(self[c].abs_diff(other[c]))).max().unwrap_or(0)
    }
}

impl Ink for Heat {
    fn mix(self, other: Self, part: u32) -> Self {
        ((u32::from(self) * (256 - part) + u32::from(other) * part) >> 8) as u16
    }

    fn distance(self, other: Self) -> u32 {
        u32::from(self.abs_diff(other))
    }
}

/// Rows of ink.
#[derive(Debug, Clone)]
pub(super) struct Canvas<I> {
    /// Columns.
    pub(super) width: usize,
    /// Rows.
    pub(super) height: usize,
    /// The pixels, row by row.
    pub(super) pixels: Vec<I>,
}

/// A box on a canvas in whole pixels: left, top, right, bottom, the last two not included.
pub(super) type Area = [usize; 4];

impl<I: Ink> Canvas<I> {
    /// An empty sheet.
    pub(super) fn new(width: usize, height: usize) -> Canvas<I> {
        Canvas { width, height, pixels: vec![I::default(); width * height] }
    }

    /// A row.
    pub(super) fn row(&mut self, y: usize) -> &mut [I] {
        let start = y * self.width;
        &mut self.pixels[start..start + self.width]
    }

    /// The ink at a place; the nearest one where the place is outside.
    pub(super) fn at(&self, x: f32, y: f32) -> I {
        let x = (x.max(0.0) as usize).min(self.width - 1);
        let y = (y.max(0.0) as usize).min(self.height - 1);
        self.pixels[y * self.width + x]
    }

    /// The part of a box that lies on the canvas; `None` where nothing does.
    pub(super) fn clip(&self, bounds: [f32; 4]) -> Option<Area> {
        let left = bounds[0].max(0.0) as usize;
        let top = bounds[1].max(0.0) as usize;
        let right = (bounds[2].max(0.0) as usize).min(self.width);
        let bottom = (bounds[3].max(0.0) as usize).min(self.height);
        (left < right && top < bottom).then_some([left, top, right, bottom])
    }

    /// A filled rectangle.
    pub(super) fn rectangle(&mut self, bounds: [f32; 4], ink: I) {
        if let Some([left, top, right, bottom]) = self.clip(bounds) {
            for y in top..bottom {
                self.row(y)[left..right].fill(ink);
            }
        }
    }

    /// A filled ellipse that fits a box.
    pub(super) fn ellipse(&mut self, bounds: [f32; 4], ink: I) {
        let Some([_, top, _, bottom]) = self.clip(bounds) else { return };
        let (cx, cy) = ((bounds[0] + bounds[2]) / 2.0, (bounds[1] + bounds[3]) / 2.0);
        let (rx, ry) = ((bounds[2] - bounds[0]) / 2.0, (bounds[3] - bounds[1]) / 2.0);
        for y in top..bottom {
            let v = (y as f32 + 0.5 - cy) / ry;
            let reach = (1.0 - v * v).max(0.0).sqrt() * rx;
            self.rectangle([cx - reach, y as f32, cx + reach, y as f32 + 1.0], ink);
        }
    }
}
