//! Frames for classifiers: made small until the shorter side fits, and the middle taken.
//!
//! The arithmetic is Pillow's, to the bit: across and then down, each pixel a mean of all that it
//! covers (weights fall off to both sides), in whole numbers of 22 bits, rounded after each pass.

use crate::prepare::rows::unit;

/// Bits behind the point of a weight.
const BITS: u32 = 22;

/// Where a pixel of the result lies in a line of the frame.
#[derive(Debug, Clone, PartialEq)]
struct Cover {
    first: usize,
    weights: Vec<i32>,
}

/// How frames of one size are cut.
#[derive(Debug)]
pub(super) struct Crop {
    /// Rows and columns of the frame, and of the result.
    frame: (usize, usize),
    result: (usize, usize),
    columns: Vec<Cover>,
    rows: Vec<Cover>,
    /// Rows of the frame that were made narrow.
    narrow: Vec<u8>,
}

impl Crop {
    /// Of frames of `frame` (rows, columns) to `result`.
    pub(super) fn new(frame: (usize, usize), result: (usize, usize)) -> Crop {
        let (rows, columns) = if result.0 == result.1 {
            // The shorter side fits, and the longer is cut off, not rounded.
            let (short, side) = (frame.0.min(frame.1), result.0);
            let long = |extent: usize| match extent == short {
                true => side,
                false => (side as f64 * extent as f64 / short as f64) as usize,
            };
            (long(frame.0), long(frame.1))
        } else {
            result
        };
        let middle = |all: usize, part: usize| {
            ((all.saturating_sub(part)) as f64 / 2.0).round_ties_even() as usize
        };
        let line = |from: usize, to: usize, part: usize| {
            let start = middle(to, part);
            (start..start + part).map(|at| cover(at, from, to)).collect::<Vec<_>>()
        };
        Crop {
            frame,
            result,
            columns: line(frame.1, columns, result.1),
            rows: line(frame.0, rows, result.0),
            narrow: Vec::new(),
        }
    }

    /// Whether it is for frames of this size.
    pub(super) fn fits(&self, frame: (usize, usize)) -> bool {
        self.frame == frame
    }

    /// Writes a frame whose rows `line` gives, three bytes a pixel, into three planes.
    pub(super) fn run(
        &mut self,
        mut line: impl FnMut(usize, &mut [u8]),
        mut planes: [&mut [f32]; 3],
    ) {
        let stride = 3 * self.result.1;
        let first = self.rows.iter().map(|row| row.first).min().unwrap_or(0);
        let last = self.rows.iter().map(|row| row.first + row.weights.len()).max().unwrap_or(0);
        self.narrow.resize(stride * (last - first), 0);
        let mut wide = vec![0; 3 * self.frame.1];
        for (row, out) in (first..last).zip(self.narrow.chunks_exact_mut(stride)) {
            line(row, &mut wide);
            for (pixel, column) in out.as_chunks_mut::<3>().0.iter_mut().zip(&self.columns) {
                *pixel = std::array::from_fn(|channel| mean(column, |at| wide[3 * at + channel]));
            }
        }
        for (y, row) in self.rows.iter().enumerate() {
            for x in 0..self.result.1 {
                for (channel, plane) in planes.iter_mut().enumerate() {
                    let value =
                        mean(row, |at| self.narrow[(at - first) * stride + 3 * x + channel]);
                    plane[y * self.result.1 + x] = unit(value);
                }
            }
        }
    }
}

/// What the pixel `at` of `to` covers of a line of `from`.
fn cover(at: usize, from: usize, to: usize) -> Cover {
    if from == to {
        return Cover { first: at, weights: vec![1 << BITS] };
    }
    let scale = from as f64 / to as f64;
    let reach = scale.max(1.0);
    let centre = (at as f64 + 0.5) * scale;
    let first = ((centre - reach + 0.5).max(0.0)) as usize;
    let end = ((centre + reach + 0.5) as usize).min(from);
    let weight = |x: usize| (1.0 - ((x as f64 - centre + 0.5) / reach).abs()).max(0.0);
    let sum: f64 = (first..end).map(weight).sum();
    let whole = |x: usize| (weight(x) / sum * f64::from(1 << BITS) + 0.5) as i32;
    Cover { first, weights: (first..end).map(whole).collect() }
}

fn mean(cover: &Cover, pixel: impl Fn(usize) -> u8) -> u8 {
    let mut sum = 1_i64 << (BITS - 1);
    for (at, &weight) in cover.weights.iter().enumerate() {
        sum += i64::from(pixel(cover.first + at)) * i64::from(weight);
    }
    (sum >> BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel of a frame of numbers, cut.
    fn cut(frame: (usize, usize), result: (usize, usize)) -> Vec<u8> {
        let mut planes = [(); 3].map(|()| vec![0.0; result.0 * result.1]);
        let line = |row: usize, out: &mut [u8]| {
            for (x, pixel) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                *pixel = [((row * frame.1 + x) * 37 % 256) as u8; 3];
            }
        };
        let planes_mut = planes.each_mut().map(Vec::as_mut_slice);
        Crop::new(frame, result).run(line, planes_mut);
        assert_eq!(planes[0], planes[2]);
        planes[0].iter().map(|value| (value * 255.0).round() as u8).collect()
    }

    /// From Pillow and torchvision: `CenterCrop(2)(Resize(2)(image))` and the like.
    #[test]
    fn equals_pillow() {
        for (frame, result, wanted) in WANTED {
            assert_eq!(cut(frame, result), wanted, "{frame:?} to {result:?}");
        }
    }

    type Case = ((usize, usize), (usize, usize), &'static [u8]);
    const WANTED: [Case; 4] = [
        ((7, 5), (3, 3), &[101, 73, 100, 124, 143, 113, 121, 91, 110]),
        ((4, 9), (2, 2), &[134, 118, 99, 119]),
        (
            (3, 4),
            (5, 5),
            &[
                0, 19, 43, 68, 93, 59, 78, 102, 127, 101, 148, 167, 191, 216, 113, 83, 102, 126,
                151, 125, 40, 59, 83, 108, 133,
            ],
        ),
        ((6, 8), (2, 4), &[76, 139, 145, 77, 167, 131, 85, 127]),
    ];
}
