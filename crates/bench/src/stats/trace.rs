//! A quantity over time, in a bounded number of points.
//!
//! When all points are used, neighbours are merged two by two and each new point takes
//! twice as many values, so the points always cover the whole run. A point keeps the least
//! and the most of its values, so that merging hides no peak.

use serde::{Deserialize, Serialize};

/// Neighbouring values as one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TimePoint {
    /// Seconds since the start, for the first of them.
    pub t: f64,
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub max: f64,
}

/// A quantity over time.
#[derive(Debug, Clone, Default)]
pub struct TimeSeries {
    points: Vec<(TimePoint, u64)>,
    /// How many values a point takes, as a power of two.
    level: u32,
}

fn merged(a: (TimePoint, u64), b: (TimePoint, u64)) -> (TimePoint, u64) {
    let n = a.1 + b.1;
    let mean = (a.0.mean * a.1 as f64 + b.0.mean * b.1 as f64) / n as f64;
    let (min, max) = (a.0.min.min(b.0.min), a.0.max.max(b.0.max));
    (TimePoint { t: a.0.t, min, mean, max }, n)
}

impl TimeSeries {
    /// The most points that are kept.
    pub const POINTS: usize = 480;

    /// Takes a value; values come in the order of time.
    pub fn push(&mut self, t: f64, value: f64) {
        let new = (TimePoint { t, min: value, mean: value, max: value }, 1);
        match self.points.last_mut() {
            Some(last) if last.1 < 1 << self.level => *last = merged(*last, new),
            _ => self.points.push(new),
        }
        if self.points.len() > Self::POINTS {
            let pairs = self.points.chunks(2);
            let one = |pair: &[(TimePoint, u64)]| match *pair {
                [a, b] => merged(a, b),
                ref rest => rest[0],
            };
            self.points = pairs.map(one).collect();
            self.level += 1;
        }
    }

    /// The points so far.
    #[must_use]
    pub fn points(&self) -> Vec<TimePoint> {
        self.points.iter().map(|(point, _)| *point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_stay_small_and_keep_their_peaks() {
        let mut trace = TimeSeries::default();
        for i in 0..100_000u32 {
            trace.push(f64::from(i), if i == 54_321 { 99.0 } else { 1.0 });
        }
        let points = trace.points();
        assert!(points.len() <= TimeSeries::POINTS && points.len() > TimeSeries::POINTS / 3);
        assert_eq!(points.iter().map(|p| p.max).fold(0.0, f64::max), 99.0);
        assert!(points.is_sorted_by(|a, b| a.t < b.t));
        let total: u64 = trace.points.iter().map(|(_, n)| n).sum();
        assert_eq!(total, 100_000);
    }
}
