//! Masks from coefficients and prototypes.
//!
//! A mask is a sum of the model's prototypes, enlarged to the model's input and cut at zero and at
//! the box. Ultralytics makes it for the whole input; here it is made inside the box alone: the
//! sum, then each of its rows across, then two neighbours of those for each row of the mask, whose
//! signs become bits. The order of the roundings is torch's, up to that of the sum.

use super::mask::Mask;
use crate::prepare::Letterbox;
use crate::simd;
use crate::tensor::Tensor;

/// Coefficients that are taken together: with one at a time, fetching and putting back the sum
/// is most of the work.
const TOGETHER: usize = 8;

/// Makes masks, and keeps its room between them.
#[derive(Debug, Default)]
pub(super) struct Painter {
    /// A row of the sum.
    sum: Vec<f32>,
    /// Two rows of it, enlarged across, and which they are.
    wide: [Vec<f32>; 2],
    kept: [Option<usize>; 2],
    /// The first column of the prototypes that the box needs, and where its pixels lie from there.
    first: usize,
    columns: Vec<Neighbours>,
}

/// Where a pixel of the mask lies among the prototypes': between two, and how near to each.
#[derive(Debug, Clone, Copy)]
struct Neighbours {
    first: usize,
    second: usize,
    weights: [f32; 2],
}

impl Neighbours {
    /// Of the pixel `at`, where `from` pixels become `to`.
    fn find(at: usize, from: usize, to: usize) -> Neighbours {
        let scale = from as f32 / to as f32;
        let place = (scale * (at as f32 + 0.5) - 0.5).max(0.0);
        let first = (place as usize).min(from - 1);
        let far = (place - first as f32).clamp(0.0, 1.0);
        Neighbours { first, second: (first + 1).min(from - 1), weights: [1.0 - far, far] }
    }
}

/// The prototypes of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prototypes<'data> {
    data: &'data [f32],
    rows: usize,
    columns: usize,
    /// Rows and columns of the model's input.
    input: (usize, usize),
}

impl<'data> Prototypes<'data> {
    /// `[1, count, rows, columns]`; `None` where the tensor is none of those.
    pub(super) fn read(
        tensor: &'data Tensor,
        count: usize,
        input: Option<(usize, usize)>,
    ) -> Option<Prototypes<'data>> {
        let [1, has, rows, columns] = tensor.shape[..] else { return None };
        let numbers = rows.checked_mul(columns)?.checked_mul(count)?;
        let whole = has == count && numbers == tensor.data.len() && numbers > 0;
        // Ultralytics' prototypes have a quarter of the input's resolution.
        let input = input.unwrap_or((4 * rows, 4 * columns));
        whole.then_some(Prototypes { data: &tensor.data, rows, columns, input })
    }
}

impl Painter {
    /// The mask of a box (in pixels of the model's input); `None` where nothing is in it.
    pub(super) fn paint(
        &mut self,
        prototypes: &Prototypes<'_>,
        coefficients: &[f32],
        bounds: [f32; 4],
        letterbox: &Letterbox,
    ) -> Option<Mask> {
        // A pixel belongs to the box where it is not before its start, and before its end.
        let pixel = |bound: f32, most: usize| (bound.ceil().max(0.0) as usize).min(most);
        let (rows, columns) = prototypes.input;
        let (left, right) = (pixel(bounds[0], columns), pixel(bounds[2], columns));
        let (top, bottom) = (pixel(bounds[1], rows), pixel(bounds[3], rows));
        let size = [right.checked_sub(left)?, bottom.checked_sub(top)?];
        if size.contains(&0) {
            return None;
        }
        self.start(prototypes, left, right);
        let mut mask = Mask::new([left, top], size, *letterbox);
        for y in 0..size[1] {
            let tap = Neighbours::find(top + y, prototypes.rows, rows);
            let upper = self.row(prototypes, coefficients, tap.first, tap.second);
            let lower = self.row(prototypes, coefficients, tap.second, tap.first);
            let words = mask.row_mut(y);
            simd::signs(&self.wide[upper], &self.wide[lower], tap.weights, words);
        }
        (mask.area() > 0).then_some(mask)
    }

    /// Makes room for a box between two columns of the input.
    fn start(&mut self, prototypes: &Prototypes<'_>, left: usize, right: usize) {
        let find = |at| Neighbours::find(at, prototypes.columns, prototypes.input.1);
        self.columns.clear();
        self.columns.extend((left..right).map(find));
        let first = self.columns.first().map_or(0, |column| column.first);
        self.first = first;
        let last = self.columns.last().map_or(0, |column| column.second);
        for column in &mut self.columns {
            (column.first, column.second) = (column.first - first, column.second - first);
        }
        self.sum.clear();
        self.sum.resize(last + 1 - first, 0.0);
        for wide in &mut self.wide {
            wide.clear();
            wide.resize(right - left, 0.0);
        }
        self.kept = [None; 2];
    }

    /// Which of the two kept rows holds row `wanted` of the prototypes' sum; it is made where
    /// neither does, in the place of the one that is not `other`.
    fn row(
        &mut self,
        prototypes: &Prototypes<'_>,
        coefficients: &[f32],
        wanted: usize,
        other: usize,
    ) -> usize {
        if let Some(slot) = self.kept.iter().position(|&row| row == Some(wanted)) {
            return slot;
        }
        let slot = usize::from(self.kept[0] == Some(other));
        self.kept[slot] = Some(wanted);
        let start = wanted * prototypes.columns + self.first;
        let plane = prototypes.rows * prototypes.columns;
        simd::weigh(&prototypes.data[start..], plane, coefficients, &mut self.sum);
        for (pixel, column) in self.wide[slot].iter_mut().zip(&self.columns) {
            let [near, far] = column.weights;
            *pixel = near * self.sum[column.first] + far * self.sum[column.second];
        }
        slot
    }
}

/// The sum of rows, each times its coefficient: row `k` begins `k` planes into `data`.
#[inline(always)]
pub(crate) fn weigh(data: &[f32], plane: usize, coefficients: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    let length = out.len();
    let (eights, rest) = coefficients.as_chunks::<TOGETHER>();
    for (group, weights) in eights.iter().enumerate() {
        let row = |at: usize| data.get((group * TOGETHER + at) * plane..)?.get(..length);
        let rows: [Option<&[f32]>; TOGETHER] = std::array::from_fn(row);
        if rows.iter().any(Option::is_none) {
            return;
        }
        // Slices of one length that the compiler knows: no check is left in the loop.
        let rows = rows.map(|row| &row.unwrap_or_default()[..length]);
        let out = &mut out[..length];
        for at in 0..length {
            let mut sum = out[at];
            for (row, weight) in rows.iter().zip(weights) {
                sum += row[at] * weight;
            }
            out[at] = sum;
        }
    }
    for (at, weight) in rest.iter().enumerate() {
        let start = (eights.len() * TOGETHER + at) * plane;
        let row = data.get(start..).unwrap_or_default();
        out.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * weight);
    }
}

/// The signs of a mix of two rows, a bit each: set where the mix is above zero.
#[inline(always)]
pub(crate) fn signs(upper: &[f32], lower: &[f32], weights: [f32; 2], out: &mut [u64]) {
    let (uppers, upper) = upper.as_chunks::<WORD>();
    let (lowers, lower) = lower.as_chunks::<WORD>();
    for (word, (upper, lower)) in out.iter_mut().zip(uppers.iter().zip(lowers)) {
        *word = packed(upper, lower, weights);
    }
    if let Some(word) = out.get_mut(uppers.len())
        && !upper.is_empty()
        && upper.len() == lower.len()
    {
        // What is missing of the last word is not above zero.
        let mut ends = [[0.0; WORD]; 2];
        ends[0][..upper.len()].copy_from_slice(upper);
        ends[1][..lower.len()].copy_from_slice(lower);
        *word = packed(&ends[0], &ends[1], weights);
    }
}

/// Pixels of a word.
const WORD: usize = 64;

#[inline(always)]
fn packed(upper: &[f32; WORD], lower: &[f32; WORD], weights: [f32; 2]) -> u64 {
    let mut above = [0_u8; WORD];
    for at in 0..WORD {
        above[at] = u8::from(weights[0] * upper[at] + weights[1] * lower[at] > 0.0);
    }
    above.as_chunks::<8>().0.iter().rev().fold(0, |bits, eight| {
        // Eight bytes of 0 or 1 to eight bits: the product brings byte k to bit 56 + k.
        bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As Ultralytics computes it, for the whole input.
    fn plain(
        prototypes: &Prototypes<'_>,
        coefficients: &[f32],
        bounds: [f32; 4],
        (x, y): (usize, usize),
    ) -> bool {
        let Prototypes { data, rows, columns, input } = *prototypes;
        let (down, across) =
            (Neighbours::find(y, rows, input.0), Neighbours::find(x, columns, input.1));
        let sum = |row: usize, column: usize| -> f32 {
            let at = |k: usize| data[(k * rows + row) * columns + column];
            coefficients.iter().enumerate().map(|(k, weight)| at(k) * weight).sum()
        };
        let line = |row: usize| {
            across.weights[0] * sum(row, across.first) + across.weights[1] * sum(row, across.second)
        };
        let value = down.weights[0] * line(down.first) + down.weights[1] * line(down.second);
        let (x, y) = (x as f32, y as f32);
        value > 0.0 && x >= bounds[0] && x < bounds[2] && y >= bounds[1] && y < bounds[3]
    }

    proptest! {
        #[test]
        fn a_mask_is_what_the_whole_input_would_give(
            (rows, columns) in (1_usize..12, 1_usize..20),
            count in 1_usize..20,
            left in -5.0_f32..60.0, top in -5.0_f32..30.0,
            width in -1.0_f32..90.0, height in -1.0_f32..50.0,
            seed in any::<u32>(),
        ) {
            // Whole numbers: their sums are exact in any order.
            let number = |at: usize| ((((at as u64 + 1) * (u64::from(seed) | 1)) >> 7) % 7) as f32 - 3.0;
            let data: Vec<f32> = (0..count * rows * columns).map(number).collect();
            let coefficients: Vec<f32> = (0..count).map(|at| number(at + 1000)).collect();
            let tensor = Tensor { shape: vec![1, count, rows, columns], data };
            let prototypes = Prototypes::read(&tensor, count, None).unwrap();
            let bounds = [left, top, left + width, top + height];
            let letterbox = Letterbox::fit((4 * rows, 4 * columns), (4 * rows, 4 * columns)).unwrap();
            let mask = Painter::default().paint(&prototypes, &coefficients, bounds, &letterbox);
            let mut all = 0;
            for y in 0..4 * rows {
                for x in 0..4 * columns {
                    let wanted = plain(&prototypes, &coefficients, bounds, (x, y));
                    all += u64::from(wanted);
                    prop_assert_eq!(mask.as_ref().is_some_and(|mask| mask.has(x, y)), wanted);
                }
            }
            prop_assert_eq!(mask.map_or(0, |mask| mask.area()), all);
        }
    }

    #[test]
    fn other_tensors_are_refused() {
        let of =
            |shape: &[usize], numbers| Tensor { shape: shape.to_vec(), data: vec![0.0; numbers] };
        let read = |tensor: &Tensor| Prototypes::read(tensor, 2, None).is_some();
        assert!(read(&of(&[1, 2, 3, 4], 24)));
        for (shape, numbers) in [
            (&[1, 3, 3, 4][..], 36),
            (&[1, 2, 3, 4], 23),
            (&[1, 2, 12], 24),
            (&[1, 2, 0, 4], 0),
            (&[1, 2, usize::MAX, 2], 0),
        ] {
            assert!(!read(&of(shape, numbers)), "{shape:?}");
        }
    }
}
