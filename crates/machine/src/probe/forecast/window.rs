//! The samples of the last seconds, in two dozen buckets.

use std::collections::VecDeque;

const BUCKETS: f64 = 24.0;
/// Fewer say nothing.
pub(super) const LEAST: usize = 8;
/// What a window must span at least before it is full.
const SHORTEST_S: f64 = 18.0;
/// The rise over a window is this many times the scatter around it.
const ABOVE_SCATTER: f64 = 6.0;
/// And this share of the memory at least.
const LEAST_RISE: f64 = 0.004;
/// Each quarter adds this share of what it would add to a straight line.
const STEADY: f64 = 0.4;
/// A value is a new high when it is this share of the rise above the last.
const NEW_HIGH: f64 = 0.02;
/// A bend counts when it is this many times the error of a median, twice which is its own.
const SURE_BEND: f64 = 9.0;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    number: f64,
    t: f64,
    mean: f64,
    max: f64,
    n: f64,
}

#[derive(Debug, Clone)]
pub(super) struct TrendWindow {
    width: f64,
    buckets: VecDeque<Bucket>,
    /// Worked out when a bucket was closed.
    trend: Option<Trend>,
    recent: Option<(f64, f64)>,
}

/// Growth that goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trend {
    /// The middle of the window, where slope and value are those of the fit.
    t: f64,
    value: f64,
    slope: f64,
    pub(super) slope_error: f64,
    /// The slope's own growth; 0 where it is not sure.
    pub(super) bend: f64,
    /// What a value may lie below the fit.
    slack: f64,
    /// How far above the fit the highest values lie, with half of the largest jump.
    high: f64,
    /// The largest jump between two buckets.
    jump: f64,
}

impl Trend {
    /// The fit's value now.
    pub(super) fn middle(&self, t: f64) -> f64 {
        let dt = t - self.t;
        self.value + self.slope * dt + 0.5 * self.bend * dt * dt
    }

    /// Where the next high values lie. Stairs end with a step that finds no room, and the
    /// next step is on average half a step away.
    pub(super) fn level(&self, t: f64) -> f64 {
        self.middle(t) + self.high
    }

    /// Where a step would lie that comes now.
    pub(super) fn highest(&self, t: f64) -> f64 {
        self.level(t) + 0.5 * self.jump
    }

    /// Whether the newest value lies so far below the fit that it does not hold any more, or
    /// not now: one value that is low holds a forecast back for that one sample.
    pub(super) fn is_left_behind(&self, t: f64, newest: [f64; 3]) -> bool {
        let least = self.middle(t) - self.slack;
        newest[2] < least || super::middle(newest) < least
    }

    pub(super) fn slope_at(&self, t: f64) -> f64 {
        self.slope + self.bend * (t - self.t)
    }
}

impl TrendWindow {
    pub(super) fn new(width: f64) -> TrendWindow {
        TrendWindow { width, buckets: VecDeque::new(), trend: None, recent: None }
    }

    pub(super) fn push(&mut self, t: f64, value: f64) {
        let number = (t * BUCKETS / self.width).floor();
        match self.buckets.back_mut().filter(|last| last.number == number) {
            Some(last) => {
                last.n += 1.0;
                last.t += (t - last.t) / last.n;
                last.mean += (value - last.mean) / last.n;
                last.max = last.max.max(value);
            }
            None => {
                self.buckets.push_back(Bucket { number, t, mean: value, max: value, n: 1.0 });
                while self.buckets.front().is_some_and(|old| old.number < number - BUCKETS) {
                    self.buckets.pop_front();
                }
                self.work_out();
            }
        }
    }

    /// How far samples are apart, at most a bucket.
    pub(super) fn step(&self) -> Option<f64> {
        let (first, last) = (self.buckets.front()?, self.buckets.back()?);
        let n: f64 = self.buckets.iter().map(|bucket| bucket.n).sum();
        (n > 1.0).then(|| (last.t - first.t) / (n - 1.0))
    }

    /// The median of the last quarter, and the noise: what one value is from the next.
    pub(super) fn recent(&self) -> Option<(f64, f64)> {
        self.recent
    }

    /// The highest value of the last quarter.
    pub(super) fn peak(&self) -> f64 {
        let from = self.buckets.len().saturating_sub(BUCKETS as usize / 4);
        self.buckets.range(from..).map(|bucket| bucket.max).fold(0.0, f64::max)
    }

    /// Growth that goes on, where there is any.
    pub(super) fn trend(&self, size: f64) -> Option<Trend> {
        self.trend.filter(|_| self.rise() >= LEAST_RISE * size)
    }

    fn rise(&self) -> f64 {
        let span = self.buckets.back().zip(self.buckets.front()).map(|(b, a)| b.t - a.t);
        self.trend.map_or(0.0, |trend| trend.slope * span.unwrap_or(0.0))
    }

    fn work_out(&mut self) {
        let fit = TrendFit::of(&self.buckets);
        self.recent = fit.as_ref().map(|fit| (fit.quarters[3], fit.noise));
        self.trend = fit.and_then(|fit| self.judge(&fit));
    }

    fn judge(&self, fit: &TrendFit) -> Option<Trend> {
        let [first, second, third, fourth] = fit.quarters;
        let rises = [second - first, third - second, fourth - third];
        let even = (fourth - first) / 3.0;
        let rise = fit.slope * fit.span;
        let steady = even > 0.0 && rises.iter().all(|rise| *rise >= STEADY * even);
        if !steady || rise < ABOVE_SCATTER * fit.scatter || has_stopped(&self.buckets, rise) {
            return None;
        }
        Some(fit.trend(&self.buckets))
    }
}

/// A line through the quarters' medians.
struct TrendFit {
    span: f64,
    middle: f64,
    value: f64,
    slope: f64,
    quarters: [f64; 4],
    scatter: f64,
    noise: f64,
}

impl TrendFit {
    fn of(buckets: &VecDeque<Bucket>) -> Option<TrendFit> {
        let n = buckets.len();
        let span = buckets.back()?.t - buckets.front()?.t;
        if n < LEAST || span < SHORTEST_S {
            return None;
        }
        let mut quarters = [0.0; 4];
        let mut times = [0.0; 4];
        for quarter in 0..4 {
            let (from, to) = (n * quarter / 4, n * (quarter + 1) / 4);
            let part = || buckets.range(from..to);
            quarters[quarter] = median(part().map(|bucket| bucket.mean).collect());
            times[quarter] = part().map(|bucket| bucket.t).sum::<f64>() / (to - from) as f64;
        }
        let halves = |of: &[f64; 4]| ((of[0] + of[1]) / 2.0, (of[2] + of[3]) / 2.0);
        let ((early, late), (before, after)) = (halves(&quarters), halves(&times));
        let slope = (late - early) / (after - before);
        let (value, middle) = ((early + late) / 2.0, (before + after) / 2.0);
        let scatter = 1.4826
            * median(
                buckets.iter().map(|b| (b.mean - value - slope * (b.t - middle)).abs()).collect(),
            );
        let noise = noise(buckets, slope);
        Some(TrendFit { span, middle, value, slope, quarters, scatter, noise })
    }

    fn trend(&self, buckets: &VecDeque<Bucket>) -> Trend {
        let n = buckets.len();
        let quarter = self.span / 4.0;
        let [first, second, third, fourth] = self.quarters;
        let change = (fourth - third) - (second - first);
        // Jumps of a staircase fall into one quarter or the next: no bend.
        let jump = buckets
            .iter()
            .zip(buckets.range(1..))
            .map(|(before, after)| after.mean - before.mean)
            .fold(0.0, f64::max);
        let sure = change.abs() > (SURE_BEND * error(self.noise, n)).max(jump);
        let bend = if sure { change / (2.0 * quarter * quarter) } else { 0.0 };
        let fit = |t: f64| {
            let dt = t - self.middle;
            // The quarters' medians lie on the curve, so its middle lies below their mean.
            let sag = bend * 5.0 * quarter * quarter / 8.0;
            self.value - sag + self.slope * dt + 0.5 * bend * dt * dt
        };
        let above = buckets.range(n / 2..).map(|b| b.max - fit(b.t)).fold(0.0, f64::max);
        Trend {
            t: self.middle,
            value: fit(self.middle),
            slope: self.slope,
            slope_error: error(self.scatter, n) / (2.0 * quarter),
            bend,
            slack: (4.0 * self.scatter).max(jump).max(0.2 * self.slope * self.span),
            high: above + 0.5 * jump,
            jump,
        }
    }
}

/// The error of a quarter's median.
fn error(scatter: f64, n: usize) -> f64 {
    1.25 * scatter / (n as f64 / 4.0).sqrt()
}

/// How far neighbours are apart beyond the slope, most of them: neither the fall of a
/// sawtooth nor a bend counts.
fn noise(buckets: &VecDeque<Bucket>, slope: f64) -> f64 {
    let neighbours = buckets.iter().zip(buckets.range(1..));
    let beyond = |(a, b): (&Bucket, &Bucket)| (b.mean - a.mean - slope * (b.t - a.t)).abs();
    median(neighbours.map(beyond).collect())
}

/// Whether there has been no new high for much longer than it took before. The longest
/// wait does not count, as it may be the calm before the growth, and a high that is new by
/// a little is noise.
fn has_stopped(buckets: &VecDeque<Bucket>, rise: f64) -> bool {
    let Some(first) = buckets.front() else { return true };
    let (mut highest, mut since) = (first.max, first.t);
    let (mut longest, mut second, mut now) = (0.0f64, 0.0f64, first.t);
    for bucket in buckets {
        now = bucket.t;
        if bucket.max > highest + NEW_HIGH * rise {
            let wait = bucket.t - since;
            (longest, second) = (longest.max(wait), second.max(wait.min(longest)));
            (highest, since) = (bucket.max, bucket.t);
        }
    }
    now - since > 3.0 * second
}

fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}
