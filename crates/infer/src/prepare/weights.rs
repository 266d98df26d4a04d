//! The tables of interpolation: for each row or column of the result, which two of the
//! frame it lies between, and how much of each it takes.
//!
//! These are OpenCV's numbers for `INTER_LINEAR` on bytes: pixel centres at halves, the
//! position rounded to f32 before it is split, and weights in 11 bits rounded half to
//! even. They depend on sizes alone, so they are kept until a size changes.

/// One, in the weights' fixed point.
const ONE: f32 = 2048.0;

/// The two neighbours of one place, and their weights of 11 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tap {
    /// The first neighbour.
    pub(crate) first: usize,
    /// The second: the next one, or the same at an edge.
    pub(crate) second: usize,
    /// How much of each.
    pub(crate) weights: [i16; 2],
}

/// A tap of the horizontal pass, as the kernels want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Column {
    /// The left neighbour; the right one follows it.
    pub(crate) at: u32,
    /// How much of each.
    pub(crate) weights: [i16; 2],
}

/// The place in the frame where result pixel `index` lies: floor and fraction.
fn place(index: usize, frame: usize, result: usize) -> (i64, f32) {
    // The ratio is turned over twice because OpenCV does so, and the last bit may tell.
    let scale = 1.0 / (result as f64 / frame as f64);
    let position = ((index as f64 + 0.5) * scale - 0.5) as f32;
    let floor = position.floor();
    (floor as i64, position - floor)
}

fn weights(fraction: f32) -> [i16; 2] {
    [1.0 - fraction, fraction].map(|part| (part * ONE).round_ties_even() as i16)
}

/// The taps of the vertical pass. A neighbour without weight is not named, so that its row
/// need not be read.
pub(crate) fn rows(frame: usize, result: usize, taps: &mut Vec<Tap>) {
    taps.clear();
    let last = frame.saturating_sub(1) as i64;
    taps.extend((0..result).map(|index| {
        let (floor, fraction) = place(index, frame, result);
        let weights = weights(fraction);
        let [first, second] = [floor, floor + 1].map(|row| row.clamp(0, last) as usize);
        match weights {
            [_, 0] => Tap { first, second: first, weights },
            [0, _] => Tap { first: second, second, weights },
            _ => Tap { first, second, weights },
        }
    }));
}

/// The taps of the horizontal pass over rows of at least two pixels. At the right edge the
/// last pixel is the second neighbour of the one before it, so that the kernels can
/// always read two.
pub(crate) fn columns(frame: usize, result: usize, taps: &mut Vec<Column>) {
    taps.clear();
    let last = frame.saturating_sub(1) as i64;
    taps.extend((0..result).map(|index| match place(index, frame, result) {
        (floor, _) if floor < 0 => Column { at: 0, weights: weights(0.0) },
        (floor, _) if floor >= last => {
            Column { at: last.saturating_sub(1).max(0) as u32, weights: weights(1.0) }
        }
        (floor, fraction) => Column { at: floor as u32, weights: weights(fraction) },
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_size_takes_half_of_each() {
        let (mut across, mut down) = (Vec::new(), Vec::new());
        columns(8, 4, &mut across);
        rows(8, 4, &mut down);
        for (index, (column, row)) in across.iter().zip(&down).enumerate() {
            assert_eq!((column.at as usize, column.weights), (2 * index, [1024, 1024]));
            assert_eq!((row.first, row.second), (2 * index, 2 * index + 1));
        }
    }

    #[test]
    fn a_third_of_the_size_picks_pixels_and_names_one_row_only() {
        let mut down = Vec::new();
        rows(9, 3, &mut down);
        let picked: Vec<_> = down.iter().map(|tap| (tap.first, tap.second)).collect();
        assert_eq!(picked, [(1, 1), (4, 4), (7, 7)]);
    }

    #[test]
    fn neighbours_stay_inside() {
        for (frame, result) in [(2, 640), (3, 7), (640, 640), (1000, 3), (641, 640)] {
            let (mut across, mut down) = (Vec::new(), Vec::new());
            columns(frame, result, &mut across);
            rows(frame, result, &mut down);
            assert!(across.iter().all(|column| (column.at as usize) + 1 < frame));
            assert!(down.iter().all(|row| row.first < frame && row.second < frame));
        }
    }
}
