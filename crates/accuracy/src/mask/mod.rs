//! Masks as runs of pixels, column by column from the top left, as COCO counts them.

mod counts;
mod polygon;

pub use counts::CountsError;
pub use polygon::{MOST_CROSSINGS, crossings};

/// The most pixels of an image: places are counted in 32 bits.
pub const MOST_PIXELS: u64 = 1 << 31;

/// The pixels of a mask in an image: runs that do not touch each other, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PixelRuns {
    /// Rows and columns of the image.
    size: (u32, u32),
    /// First place, and the place after the last.
    runs: Vec<(u32, u32)>,
    area: u64,
    /// Left, top, right, bottom of the box around it; right and bottom are outside.
    around: [u32; 4],
}

impl PixelRuns {
    /// From runs in order; runs that touch are joined, empty ones dropped.
    fn from_ordered(size: (u32, u32), ordered: impl Iterator<Item = (u32, u32)>) -> PixelRuns {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (from, to) in ordered.filter(|(from, to)| from < to) {
            match runs.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => runs.push((from, to)),
            }
        }
        let area = runs.iter().map(|(from, to)| u64::from(to - from)).sum();
        let around = around(size.0, &runs);
        PixelRuns { size, runs, area, around }
    }

    /// How many pixels belong to it.
    #[must_use]
    pub fn area(&self) -> u64 {
        self.area
    }

    /// Rows and columns of the image.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// Left, top, width and height of the box around it.
    #[must_use]
    pub fn bounds(&self) -> [f64; 4] {
        let [left, top, right, bottom] = self.around.map(f64::from);
        [left, top, right - left, bottom - top]
    }

    /// All pixels that belong to one of them.
    #[must_use]
    pub fn union(size: (u32, u32), parts: &[PixelRuns]) -> PixelRuns {
        match parts {
            [one] => one.clone(),
            parts => {
                let mut all: Vec<(u32, u32)> =
                    parts.iter().flat_map(|part| part.runs.iter().copied()).collect();
                all.sort_unstable();
                PixelRuns::from_ordered(size, all.into_iter())
            }
        }
    }

    /// How many pixels belong to both.
    fn common(&self, other: &PixelRuns) -> u64 {
        let [left, top, right, bottom] = self.around;
        let [other_left, other_top, other_right, other_bottom] = other.around;
        if left.max(other_left) >= right.min(other_right)
            || top.max(other_top) >= bottom.min(other_bottom)
        {
            return 0;
        }
        // Neither has a pixel in common with the other before the columns of both begin.
        let begin = left.max(other_left) * self.size.0;
        let skip = |runs: &[(u32, u32)]| runs.partition_point(|run| run.1 <= begin);
        let (mut here, mut there) = (skip(&self.runs), skip(&other.runs));
        let mut common = 0;
        while let (Some(a), Some(b)) = (self.runs.get(here), other.runs.get(there)) {
            common += u64::from(a.1.min(b.1).saturating_sub(a.0.max(b.0)));
            if a.1 < b.1 {
                here += 1;
            } else {
                there += 1;
            }
        }
        common
    }

    /// Intersection over union; over this mask alone where the other is a crowd's. Masks of
    /// images of different sizes have nothing in common.
    #[must_use]
    pub fn overlap(&self, truth: &PixelRuns, crowd: bool) -> f64 {
        let common = if self.size == truth.size { self.common(truth) } else { 0 };
        if common == 0 {
            return 0.0;
        }
        let all = if crowd { self.area } else { self.area + truth.area - common };
        common as f64 / all as f64
    }
}

/// The box around runs in columns of so many rows.
fn around(rows: u32, runs: &[(u32, u32)]) -> [u32; 4] {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return [0; 4] };
    let (mut top, mut bottom) = (rows, 0);
    for &(from, to) in runs {
        let (column, last_column) = (from / rows, (to - 1) / rows);
        if column < last_column {
            (top, bottom) = (0, rows);
            break;
        }
        top = top.min(from - column * rows);
        bottom = bottom.max(to - column * rows);
    }
    [first.0 / rows, top, (last.1 - 1) / rows + 1, bottom]
}

#[cfg(test)]
mod tests;
