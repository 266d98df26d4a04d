//! Faster, slower, or cannot say.
//!
//! A verdict must not be too confident. Latencies of neighbouring frames resemble each other,
//! runs drift as machines warm up, and a few frames are outliers. So:
//!
//! 1. Each run is cut into equal stretches and each stretch is represented by its median, so
//!    outliers have no weight. Stretches are compared in pairs, the first with the first, on a logarithmic
//!    scale: a drift that both runs share cancels.
//! 2. How much the pairs disagree gives the interval (Student's t, 95 %). This is done
//!    with 40, 20, 10 and 5 stretches and the widest interval counts: where frames
//!    resemble each other for long, only long stretches show it. Where they do so
//!    for longer than the run lasted, no stretch can; so the correlation of next
//!    neighbours gives one more interval, as if it decayed geometrically.
//! 3. A trend that is left in the pairs means that one run drifted and the other did not.
//!    It is not known which level is the true one, so half of the trend widens the interval.
//! 4. Two starts of one program differ by more than their frames show (clocks, memory
//!    layout): an allowance for that widens it again. With three repeats or more on both
//!    sides the difference between starts is seen, and neither 3 nor 4 is needed.
//!
//! Only an interval that lies whole on one side of "equal" gives a verdict.

use serde::{Deserialize, Serialize};

use super::interval::{Confidence, Interval, mean_and_error, student};
use super::{LatencySummary, median};

/// Which way it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedVerdict {
    /// The second is faster.
    Faster,
    /// The second is slower.
    Slower,
    /// The measurements do not decide.
    CannotSay,
}

impl std::fmt::Display for SpeedVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            SpeedVerdict::Faster => "faster",
            SpeedVerdict::Slower => "slower",
            SpeedVerdict::CannotSay => "cannot say",
        })
    }
}

/// A verdict, and what it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Which way it went.
    pub verdict: SpeedVerdict,
    /// The second's latency over the first's; above 1 is slower.
    pub ratio: f64,
    /// The interval of the true ratio (95 %, with allowances).
    pub interval: Interval,
}

/// What two starts of the same program may differ by when their frames do not show it.
pub const RUN_TO_RUN: f64 = 0.02;

/// Into how many stretches runs are cut; the widest interval of all counts.
const STRETCHES: [usize; 4] = [40, 20, 10, 5];
/// A stretch of fewer frames has no useful median.
const LEAST_FRAMES: usize = 4;
/// With this many frames the interval is twice as wide as the batches alone would have it.
const SHORT_RUN: f64 = 50.0;
/// Frames of one run count as this many times fewer when only their summary is left.
const RESEMBLANCE: f64 = 20.0;

impl Judgement {
    /// From a difference of logarithms and how far it may be off.
    fn from_log(difference: f64, reach: f64) -> Judgement {
        let interval =
            Interval { low: (difference - reach).exp(), high: (difference + reach).exp() };
        let verdict = match interval {
            Interval { low, .. } if low > 1.0 => SpeedVerdict::Slower,
            Interval { high, .. } if high < 1.0 => SpeedVerdict::Faster,
            _ => SpeedVerdict::CannotSay,
        };
        Judgement { verdict, ratio: difference.exp(), interval }
    }
}

/// Logarithms of the second's medians over the first's, stretch by stretch.
fn pairs(a: &[f64], b: &[f64], stretches: usize) -> Option<Vec<f64>> {
    if a.len().min(b.len()) < stretches * LEAST_FRAMES {
        return None;
    }
    let part = |values: &[f64], at: usize| {
        let edge = |at: usize| values.len() * at / stretches;
        median(&values[edge(at)..edge(at + 1)]).filter(|middle| *middle > 0.0)
    };
    (0..stretches).map(|at| Some((part(b, at)? / part(a, at)?).ln())).collect()
}

/// How much a straight line through the values rises from end to end.
fn trend(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let middle = (n - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / n;
    let (mut up, mut across) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        up += (at as f64 - middle) * (value - mean);
        across += (at as f64 - middle).powi(2);
    }
    if across > 0.0 { up / across * n } else { 0.0 }
}

/// The standard error of the median of logarithms, if the resemblance of neighbours fades
/// geometrically.
fn error_by_neighbours(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values.iter().map(|value| value.max(1e-9).ln()).collect();
    let middle = median(&logs)?;
    let far = median(&logs.iter().map(|log| (log - middle).abs()).collect::<Vec<_>>())? * 5.0;
    let away: Vec<f64> = logs.iter().map(|log| (log - middle).clamp(-far, far)).collect();
    let n = away.len() as f64;
    let square: f64 = away.iter().map(|x| x * x).sum();
    if square == 0.0 {
        return Some(0.0);
    }
    let next: f64 = away.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let seen = next / square;
    // In a short run the resemblance looks smaller than it is (Marriott and Pope, 1954).
    let likeness = (seen + (1.0 + 3.0 * seen.max(0.0)) / n).clamp(0.0, 0.995);
    let inflation = (1.0 + likeness) / (1.0 - likeness);
    Some(1.2533 * (square / n / n * inflation).sqrt())
}

/// Judges two runs by their frames, in the order of time; `None` where either has too few
/// (20), and nothing can be said at all.
#[must_use]
pub fn by_frames(a: &[f64], b: &[f64], run_to_run: f64) -> Option<Judgement> {
    let difference = (median(b)? / median(a)?).ln();
    if !difference.is_finite() {
        return None;
    }
    let mut reach: Option<f64> = None;
    let mut drift: f64 = 0.0;
    for values in STRETCHES.iter().filter_map(|stretches| pairs(a, b, *stretches)) {
        let (_, error) = mean_and_error(&values)?;
        let wide = error * student(values.len() - 1, Confidence::P95);
        reach = Some(reach.map_or(wide, |reach| reach.max(wide)));
        drift = drift.max(trend(&values).abs());
    }
    let faded = 1.96 * error_by_neighbours(a)?.hypot(error_by_neighbours(b)?);
    // A short run has seen too little of the machine for any formula to correct.
    let short = 1.0 + SHORT_RUN / a.len().min(b.len()) as f64;
    let reach = reach?.max(faded) * short + drift / 2.0 + run_to_run.max(0.0).ln_1p();
    Some(Judgement::from_log(difference, reach))
}

/// Judges two sets of repeats by one figure of each, such as its median latency; `None`
/// for fewer than three on either side.
#[must_use]
pub fn by_repeats(a: &[f64], b: &[f64]) -> Option<Judgement> {
    let logs = |values: &[f64]| -> Option<Vec<f64>> {
        let enough = values.len() >= 3 && values.iter().all(|value| *value > 0.0);
        enough.then(|| values.iter().map(|value| value.ln()).collect())
    };
    let (a, b) = (logs(a)?, logs(b)?);
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error(&a)?, mean_and_error(&b)?);
    // The fewer degrees of freedom of the two: wider than Welch's, and never wrong.
    let freedom = a.len().min(b.len()) - 1;
    let reach = error_a.hypot(error_b) * student(freedom, Confidence::P95);
    Some(Judgement::from_log(mean_b - mean_a, reach))
}

/// Judges two runs by their summaries alone: frames are taken to resemble their
/// neighbours, so the interval is wide. `None` where either says too little.
#[must_use]
pub fn by_summary(a: &LatencySummary, b: &LatencySummary, run_to_run: f64) -> Option<Judgement> {
    let error = |s: &LatencySummary| {
        let enough = s.n >= 20 && s.mean_ms > 0.0 && s.p50_ms > 0.0;
        // 1.2533 = √(π/2): a median is that much less certain than a mean.
        enough.then(|| 1.2533 * s.std_ms / s.mean_ms / (s.n as f64 / RESEMBLANCE).sqrt())
    };
    let reach = error(a)?.hypot(error(b)?) * student(4, Confidence::P95);
    let difference = (b.p50_ms / a.p50_ms).ln();
    Some(Judgement::from_log(difference, reach + run_to_run.max(0.0).ln_1p()))
}
