//! Latencies in numbers: summaries, intervals, and when two runs differ.
//!
//! Three decisions apply to all of them.
//!
//! - **Percentiles interpolate.** Percentile `p` of `n` sorted values is read at position
//!   `(n − 1)·p`, linearly between its two neighbours: the rule of NumPy and of most
//!   spreadsheets, so that figures can be checked elsewhere.
//! - **Memory is bounded.** [`Samples`] keeps every value up to a cap; beyond it, values
//!   go into buckets no wider than 0.1 %, so that a run of a week takes no more memory
//!   than a run of a minute. Mean, deviation, minimum and maximum stay exact.
//! - **Frames are not independent.** Neighbouring latencies resemble each other and machines
//!   warm up, so `deviation / √n` is far too small an error. [`verdict`] compares batches of
//!   frames, and says "cannot say" when the batches disagree.

pub mod interval;
pub mod samples;
pub mod trace;
pub mod verdict;

use serde::{Deserialize, Serialize};

pub use interval::Interval;
pub use samples::Samples;
pub use trace::{TimePoint, TimeSeries};
pub use verdict::{Judgement, SpeedVerdict};

/// Latencies in milliseconds; percentiles interpolate linearly at position (n − 1)·p.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatencySummary {
    /// The number of frames.
    pub n: u64,
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The least.
    pub min_ms: f64,
    /// The most.
    pub max_ms: f64,
    /// Standard deviation of the sample (divided by n − 1); 0 for a single frame.
    pub std_ms: f64,
}

/// Frames per second by the wall clock: all frames over all of the time that passed, waiting
/// included, and not the inverse of a mean latency. `None` where no time passed.
#[must_use]
pub fn fps(frames: u64, wall: std::time::Duration) -> Option<f64> {
    let seconds = wall.as_secs_f64();
    (seconds > 0.0 && frames > 0).then(|| frames as f64 / seconds)
}

/// The value at position `(n − 1)·p` of sorted numbers; `None` without numbers.
#[must_use]
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = last as f64 * p.clamp(0.0, 1.0);
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

/// The median of numbers in any order; `None` without numbers.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn percentiles_interpolate_as_numpy_does() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(percentile(&values, 0.5), Some(2.5));
        assert_eq!(percentile(&values, 0.9), Some(3.7));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&values, 1.0), Some(4.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn fps_is_by_the_wall_clock() {
        assert_eq!(fps(300, Duration::from_secs(10)), Some(30.0));
        assert_eq!(fps(300, Duration::ZERO), None);
        assert_eq!(fps(0, Duration::from_secs(1)), None);
    }
}
