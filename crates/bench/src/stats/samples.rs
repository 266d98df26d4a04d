//! Every latency of a run in bounded memory.
//!
//! Up to [`Samples::EXACT`] values are kept as they are, four bytes each. Past that they
//! move into buckets: the exponent and the first ten bits of the fraction of an `f32`,
//! whose order is the order of the numbers. A bucket is at most 1/1024 of its value wide
//! and is represented by its middle, so that no percentile is off by more than 0.05 %.

use std::time::Duration;

use super::LatencySummary;

/// Low bits of an `f32` that a bucket ignores.
const SHIFT: u32 = 13;
/// Values below 2⁻²⁰ ms (a nanosecond) share a bucket, as do those above 2³⁰ ms (twelve days).
const LEAST: f32 = 1.0 / (1 << 20) as f32;
const MOST: f32 = (1u32 << 30) as f32;

/// All latencies of a run.
#[derive(Debug, Clone)]
pub struct Samples {
    exact: Vec<f32>,
    buckets: Vec<u64>,
    n: u64,
    mean: f64,
    /// Sum of squared distances from the mean (Welford's).
    spread: f64,
    min: f64,
    max: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Samples {
            exact: Vec::new(),
            buckets: Vec::new(),
            n: 0,
            mean: 0.0,
            spread: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }
}

fn bucket_of(ms: f32) -> usize {
    let key = |value: f32| (value.to_bits() >> SHIFT) as usize;
    key(ms.clamp(LEAST, MOST)) - key(LEAST)
}

fn middle_of(bucket: usize) -> f64 {
    let base = (LEAST.to_bits() >> SHIFT) + bucket as u32;
    let (low, high) = (f32::from_bits(base << SHIFT), f32::from_bits((base + 1) << SHIFT));
    (f64::from(low) + f64::from(high)) / 2.0
}

impl Samples {
    /// How many values are kept as they are.
    pub const EXACT: usize = 1 << 16;

    /// Takes one latency.
    pub fn push(&mut self, latency: Duration) {
        let ms = latency.as_secs_f64() * 1e3;
        self.n += 1;
        let distance = ms - self.mean;
        self.mean += distance / self.n as f64;
        self.spread += distance * (ms - self.mean);
        self.min = self.min.min(ms);
        self.max = self.max.max(ms);
        if self.buckets.is_empty() && self.exact.len() < Self::EXACT {
            self.exact.push(ms as f32);
        } else {
            self.bucket(ms as f32);
        }
    }

    fn bucket(&mut self, ms: f32) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; bucket_of(MOST) + 1];
            for kept in std::mem::take(&mut self.exact) {
                self.buckets[bucket_of(kept)] += 1;
            }
        }
        self.buckets[bucket_of(ms)] += 1;
    }

    /// How many values came in.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether none did.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// What they look like; `None` of nothing.
    #[must_use]
    pub fn summary(&self) -> Option<LatencySummary> {
        if self.n == 0 {
            return None;
        }
        let p = self.percentiles(&[0.5, 0.9, 0.95, 0.99]);
        let std_ms = match self.n {
            1 => 0.0,
            n => (self.spread / (n - 1) as f64).max(0.0).sqrt(),
        };
        Some(LatencySummary {
            n: self.n,
            mean_ms: self.mean,
            p50_ms: p[0],
            p90_ms: p[1],
            p95_ms: p[2],
            p99_ms: p[3],
            min_ms: self.min,
            max_ms: self.max,
            std_ms,
        })
    }

    /// The values at rising percentiles; zeros of nothing.
    fn percentiles(&self, wanted: &[f64]) -> Vec<f64> {
        let last = self.n.saturating_sub(1);
        let positions: Vec<f64> = wanted.iter().map(|p| last as f64 * p).collect();
        let ranks = positions.iter().flat_map(|at| [at.floor() as u64, at.ceil() as u64]);
        let values = self.at_ranks(&ranks.collect::<Vec<_>>());
        let between = |(at, pair): (&f64, &[f64])| pair[0] + (pair[1] - pair[0]) * at.fract();
        positions.iter().zip(values.chunks_exact(2)).map(between).collect()
    }

    /// The values at 0-based ranks, in the order of the ranks, which need not be sorted.
    fn at_ranks(&self, ranks: &[u64]) -> Vec<f64> {
        if self.buckets.is_empty() {
            let mut sorted = self.exact.clone();
            sorted.sort_unstable_by(f32::total_cmp);
            let value = |rank: &u64| sorted.get(*rank as usize).copied().map_or(0.0, f64::from);
            return ranks.iter().map(|rank| value(rank).clamp(self.min, self.max)).collect();
        }
        let mut sums = Vec::new();
        let mut sum = 0u64;
        for (bucket, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            sum += count;
            sums.push((sum, middle_of(bucket)));
        }
        let value = |rank: &u64| {
            let at = sums.partition_point(|(sum, _)| sum <= rank);
            sums.get(at).map_or(self.max, |(_, middle)| *middle)
        };
        ranks.iter().map(|rank| value(rank).clamp(self.min, self.max)).collect()
    }

    /// How many values fall into each of `bins` equal ranges from the least to the 99.5th
    /// percentile, with all that lies above in the last; as `(from, to, count)`.
    #[must_use]
    pub fn distribution(&self, bins: usize) -> Vec<(f64, f64, u64)> {
        if self.n == 0 || bins == 0 {
            return Vec::new();
        }
        let top = self.percentiles(&[0.995])[0].max(self.min + f64::EPSILON * self.min.max(1.0));
        let width = (top - self.min) / bins as f64;
        let mut counts = vec![0u64; bins];
        let mut count = |ms: f64, n: u64| {
            let at = ((ms - self.min) / width).max(0.0) as usize;
            counts[at.min(bins - 1)] += n;
        };
        self.exact.iter().for_each(|ms| count(f64::from(*ms), 1));
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.for_each(|(bucket, n)| count(middle_of(bucket), *n));
        let edge = |at: usize| self.min + width * at as f64;
        let end = |at: usize| if at + 1 == bins { self.max.max(edge(bins)) } else { edge(at + 1) };
        counts.into_iter().enumerate().map(|(at, n)| (edge(at), end(at), n)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(n: u64) -> (Samples, Vec<f64>) {
        let mut samples = Samples::default();
        let mut all = Vec::new();
        let mut state = 1u64;
        for _ in 0..n {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let nanos = 1_000_000 + (state >> 33) % 50_000_000;
            samples.push(Duration::from_nanos(nanos));
            all.push(nanos as f64 / 1e6);
        }
        all.sort_unstable_by(f64::total_cmp);
        (samples, all)
    }

    #[test]
    fn both_forms_agree_with_sorting() {
        for n in [1, 2, 10, 1000, Samples::EXACT as u64, 200_000] {
            let (samples, all) = filled(n);
            let summary = samples.summary().unwrap();
            let error = if n > Samples::EXACT as u64 { 5e-4 } else { 1e-6 };
            for (p, got) in [
                (0.5, summary.p50_ms),
                (0.9, summary.p90_ms),
                (0.95, summary.p95_ms),
                (0.99, summary.p99_ms),
            ] {
                let want = super::super::percentile(&all, p).unwrap();
                assert!((got / want - 1.0).abs() < error, "n {n} p {p}: {got} for {want}");
            }
            assert!((summary.min_ms - all[0]).abs() < 1e-9);
            assert!((summary.max_ms - all[all.len() - 1]).abs() < 1e-9);
            let mean = all.iter().sum::<f64>() / n as f64;
            assert!((summary.mean_ms / mean - 1.0).abs() < 1e-9);
            let count: u64 = samples.distribution(40).iter().map(|bin| bin.2).sum();
            assert_eq!(count, n);
        }
    }

    #[test]
    fn deviation_is_the_samples_own() {
        let mut samples = Samples::default();
        for ms in [2u64, 4, 4, 4, 5, 5, 7, 9] {
            samples.push(Duration::from_millis(ms));
        }
        let std = samples.summary().unwrap().std_ms;
        assert!((std - (32.0f64 / 7.0).sqrt()).abs() < 1e-9);
        assert!(Samples::default().summary().is_none());
    }

    #[test]
    fn memory_is_bounded_and_odd_values_are_taken() {
        let (samples, _) = filled(300_000);
        assert!(samples.exact.is_empty() && samples.buckets.len() < 60_000);
        let mut odd = Samples::default();
        for _ in 0..=Samples::EXACT {
            odd.push(Duration::ZERO);
        }
        odd.push(Duration::MAX);
        assert_eq!(odd.summary().unwrap().min_ms, 0.0);
        assert_eq!(odd.summary().unwrap().p50_ms, 0.0f64.max(middle_of(0)));
    }
}
