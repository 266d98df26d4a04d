//! Masks: which pixels belong to a detection, one bit for each.
//!
//! A mask has the resolution of the model's input, as Ultralytics' has, and only the part inside
//! the box is kept: the rest is empty by definition. Questions in frame pixels are answered by the
//! input's pixel under the centre of the frame's.

use crate::prepare::Letterbox;

/// Bits in a word.
const WORD: usize = 64;

/// Which pixels belong to a detection.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Left, top, in pixels of the model's input.
    origin: [usize; 2],
    /// Columns and rows of the part that is kept.
    size: [usize; 2],
    /// A row is a whole number of words; the first pixel is the lowest bit.
    words: Vec<u64>,
    letterbox: Letterbox,
}

impl Mask {
    /// An empty mask for a part of the model's input: `origin` and `size` are across, down.
    pub(super) fn new(origin: [usize; 2], size: [usize; 2], letterbox: Letterbox) -> Mask {
        Mask { origin, size, words: vec![0; size[0].div_ceil(WORD) * size[1]], letterbox }
    }

    /// Left and top of the part that is kept, in pixels of the model's input.
    #[must_use]
    pub fn origin(&self) -> [usize; 2] {
        self.origin
    }

    /// Columns and rows of the part that is kept; everything outside is empty.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The rows as words of 64 pixels, the first pixel the lowest bit.
    pub fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.words.chunks_exact(self.size[0].div_ceil(WORD).max(1))
    }

    /// The words of a row, to write to.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [u64] {
        let width = self.size[0].div_ceil(WORD);
        &mut self.words[row * width..(row + 1) * width]
    }

    /// How many pixels of the model's input belong to it.
    #[must_use]
    pub fn area(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether a pixel of the model's input belongs to it.
    #[must_use]
    pub fn has(&self, x: usize, y: usize) -> bool {
        let (Some(x), Some(y)) = (x.checked_sub(self.origin[0]), y.checked_sub(self.origin[1]))
        else {
            return false;
        };
        x < self.size[0]
            && y < self.size[1]
            && self.words[y * self.size[0].div_ceil(WORD) + x / WORD] >> (x % WORD) & 1 == 1
    }

    /// Columns and rows of the frame.
    #[must_use]
    pub fn frame_size(&self) -> [usize; 2] {
        [self.letterbox.frame_width, self.letterbox.frame_height]
    }

    /// Whether a pixel of the frame belongs to it.
    #[must_use]
    pub fn has_in_frame(&self, x: usize, y: usize) -> bool {
        let [width, height] = self.frame_size();
        x < width && y < height && self.has(self.column(x), self.row(y))
    }

    /// The input's column under the centre of a column of the frame.
    fn column(&self, x: usize) -> usize {
        let Letterbox { scale_x, pad_x, width, .. } = self.letterbox;
        pad_x + (((x as f32 + 0.5) * scale_x) as usize).min(width.saturating_sub(1))
    }

    /// The same for a row.
    fn row(&self, y: usize) -> usize {
        let Letterbox { scale_y, pad_y, height, .. } = self.letterbox;
        pad_y + (((y as f32 + 0.5) * scale_y) as usize).min(height.saturating_sub(1))
    }

    /// The mask over the whole frame as run lengths, column by column from the top left, a run of
    /// zeros first: COCO's uncompressed form.
    #[must_use]
    pub fn run_lengths(&self) -> Vec<u32> {
        let [width, height] = self.frame_size();
        let rows: Vec<usize> = (0..height).map(|y| self.row(y)).collect();
        let (mut runs, mut ones, mut run) = (Vec::new(), false, 0_u32);
        let [first, columns] = [self.origin[0], self.size[0]];
        for x in 0..width {
            let column = self.column(x);
            if !(first..first + columns).contains(&column) && !ones {
                run = run.saturating_add(height as u32);
                continue;
            }
            for &row in &rows {
                if self.has(column, row) != ones {
                    runs.push(run);
                    (ones, run) = (!ones, 0);
                }
                run = run.saturating_add(1);
            }
        }
        runs.push(run);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_and_pixels_of_the_frame_say_the_same(
            frame in (1_usize..60, 1_usize..60),
            origin in (0_usize..20, 0_usize..20),
            size in (1_usize..90, 1_usize..20),
            seed in any::<u64>(),
        ) {
            let letterbox = Letterbox::fit(frame, (64, 64)).unwrap();
            let mut mask = Mask::new(origin.into(), size.into(), letterbox);
            let mut state = seed | 1;
            for row in 0..size.1 {
                for x in 0..size.0 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    mask.row_mut(row)[x / WORD] |= (state & 1) << (x % WORD);
                }
            }
            let mut flat = Vec::new();
            for (at, &run) in mask.run_lengths().iter().enumerate() {
                flat.extend(std::iter::repeat_n(at % 2 == 1, run as usize));
            }
            prop_assert_eq!(flat.len(), frame.0 * frame.1);
            for x in 0..frame.1 {
                for y in 0..frame.0 {
                    prop_assert_eq!(flat[x * frame.0 + y], mask.has_in_frame(x, y));
                }
            }
            let counted: u64 = (0..200).map(|y| (0..200).filter(|&x| mask.has(x, y)).count() as u64).sum();
            prop_assert_eq!(mask.area(), counted);
        }
    }
}
