//! A small generator of numbers: the same on every machine.
//!
//! Scenes must be the same everywhere, since a detector is judged on them. So the numbers
//! come from SplitMix64, floats are built from 24 of its bits, and the sine is a polynomial
//! of our own: only operations that IEEE 754 rounds in one way are used.

/// SplitMix64, with a stream for each frame.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    /// A generator for one stream of a seed.
    pub(super) fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        rng.bits();
        Rng(rng.bits() ^ seed.rotate_left(32))
    }

    /// The next 64 bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, but without, 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 16_777_216.0
    }

    /// From `low` to `high`.
    pub(super) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// A whole number from `low` to `high`, both included.
    pub(super) fn whole(&mut self, low: i32, high: i32) -> i32 {
        let span = (i64::from(high) - i64::from(low) + 1).max(1) as u64;
        low + (((self.bits() >> 32) * span) >> 32) as i32
    }

    /// True in `share` of all cases.
    pub(super) fn chance(&mut self, share: f32) -> bool {
        self.unit() < share
    }

    /// An index below `count`; 0 where there is none.
    pub(super) fn index(&mut self, count: usize) -> usize {
        self.whole(0, count.saturating_sub(1) as i32) as usize
    }
}

/// Sine and cosine of an angle within a quarter turn.
pub(super) fn sine_cosine(angle: f32) -> (f32, f32) {
    let s = angle * angle;
    let sine = angle * (1.0 - s / 6.0 * (1.0 - s / 20.0 * (1.0 - s / 42.0)));
    let cosine = 1.0 - s / 2.0 * (1.0 - s / 12.0 * (1.0 - s / 30.0 * (1.0 - s / 56.0)));
    (sine, cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_fixed_forever() {
        let mut rng = Rng::new(1, 2);
        let first = [rng.bits(), rng.bits()];
        let mut again = Rng::new(1, 2);
        assert_eq!(first, [again.bits(), again.bits()]);
        assert_ne!(Rng::new(1, 3).bits(), first[0]);
        assert_ne!(Rng::new(2, 2).bits(), first[0]);
    }

    #[test]
    fn numbers_stay_in_their_ranges() {
        let mut rng = Rng::new(7, 0);
        let mut seen = [false; 4];
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&rng.unit()));
            seen[(rng.whole(-1, 2) + 1) as usize] = true;
            assert!(rng.index(3) < 3);
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(rng.index(0), 0);
    }

    #[test]
    fn the_polynomials_are_close_to_the_functions() {
        for i in -100..=100 {
            let angle = i as f32 * 0.0157;
            let (sine, cosine) = sine_cosine(angle);
            assert!((sine - angle.sin()).abs() < 3e-4, "{angle}");
            assert!((cosine - angle.cos()).abs() < 3e-4, "{angle}");
        }
    }
}
