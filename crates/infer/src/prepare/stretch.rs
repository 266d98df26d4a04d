//! Thermal frames of 16 bits, stretched to 8.
//!
//! A thermal camera counts in 16 bits and a scene fills a few hundred of them, so a plain
//! shift by 8 would leave a flat picture. The 1st and 99th percentile of each frame become
//! black and white: percentiles and not the extremes, because one dead pixel is an
//! extreme. Rows are stretched as the interpolation asks for them; only the histogram is
//! a pass of its own.

use crate::simd;

/// Every value that a pixel may have.
const VALUES: usize = 1 << 16;

/// Finds what of a frame is black and what is white, and maps rows between them.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// How often each value occurs among even and odd pixels; empty until the first frame
    /// of 16 bits. Neighbours are often equal, and adding to the same count twice in a row
    /// would wait for the first to be stored.
    histogram: Vec<[u32; 2]>,
    low: u16,
    high: u16,
}

impl Stretch {
    /// Looks at a whole frame.
    pub(crate) fn look(&mut self, pixels: &[u16]) {
        self.histogram.clear();
        self.histogram.resize(VALUES, [0; 2]);
        let (pairs, rest) = pixels.as_chunks::<2>();
        for &[even, odd] in pairs {
            self.histogram[usize::from(even)][0] += 1;
            self.histogram[usize::from(odd)][1] += 1;
        }
        for &pixel in rest {
            self.histogram[usize::from(pixel)][0] += 1;
        }
        let last = pixels.len().saturating_sub(1);
        // Ranks as floor and ceiling, so that the two never cross.
        self.low = self.at_rank(last / 100);
        self.high = self.at_rank(last - last / 100);
    }

    /// The value of the pixel that has `rank` pixels before it in order.
    fn at_rank(&self, rank: usize) -> u16 {
        let mut seen = 0;
        for (value, &[even, odd]) in self.histogram.iter().enumerate() {
            seen += even as usize + odd as usize;
            if seen > rank {
                return value as u16;
            }
        }
        u16::MAX
    }

    /// Maps a row to bytes. A frame of one value becomes black.
    pub(crate) fn row(&self, pixels: &[u16], bytes: &mut [u8]) {
        simd::stretch(pixels, self.low, self.high.saturating_sub(self.low).max(1), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_become_black_and_white_and_a_dead_pixel_does_not() {
        let mut pixels: Vec<u16> = (0..1000).map(|at| 20_000 + at / 4).collect();
        pixels[500] = 65_535;
        let mut stretch = Stretch::default();
        stretch.look(&pixels);
        assert_eq!((stretch.low, stretch.high), (20_002, 20_247));
        let mut bytes = [0; 5];
        stretch.row(&[0, 20_002, 20_125, 20_247, 65_535], &mut bytes);
        assert_eq!(bytes, [0, 0, 128, 255, 255]);
    }

    #[test]
    fn one_value_is_black() {
        let mut stretch = Stretch::default();
        stretch.look(&[7; 12]);
        let mut bytes = [9; 3];
        stretch.row(&[7; 3], &mut bytes);
        assert_eq!(bytes, [0; 3]);
    }
}
