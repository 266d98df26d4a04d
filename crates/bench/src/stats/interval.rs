//! The confidence interval of a mean of few values, by Student's t.

use serde::{Deserialize, Serialize};

/// A range that contains the true value with a given confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Two-sided quantiles of Student's t for 1 to 30 degrees of freedom: 95 %, 99 %.
const T: [(f64, f64); 30] = [
    (12.706, 63.657),
    (4.303, 9.925),
    (3.182, 5.841),
    (2.776, 4.604),
    (2.571, 4.032),
    (2.447, 3.707),
    (2.365, 3.499),
    (2.306, 3.355),
    (2.262, 3.250),
    (2.228, 3.169),
    (2.201, 3.106),
    (2.179, 3.055),
    (2.160, 3.012),
    (2.145, 2.977),
    (2.131, 2.947),
    (2.120, 2.921),
    (2.110, 2.898),
    (2.101, 2.878),
    (2.093, 2.861),
    (2.086, 2.845),
    (2.080, 2.831),
    (2.074, 2.819),
    (2.069, 2.807),
    (2.064, 2.797),
    (2.060, 2.787),
    (2.056, 2.779),
    (2.052, 2.771),
    (2.048, 2.763),
    (2.045, 2.756),
    (2.042, 2.750),
];

/// The confidence of a two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// 95 %.
    P95,
    /// 99 %.
    P99,
}

/// Student's t for this many degrees of freedom; infinite for none.
#[must_use]
pub fn student(freedom: usize, confidence: Confidence) -> f64 {
    // Past the table the normal quantile with the first term of its expansion in 1/freedom.
    let (p95, p99) = match freedom {
        0 => (f64::INFINITY, f64::INFINITY),
        n @ 1..=30 => T[n - 1],
        n => (1.960 + 2.37 / n as f64, 2.576 + 4.92 / n as f64),
    };
    match confidence {
        Confidence::P95 => p95,
        Confidence::P99 => p99,
    }
}

/// Mean and standard error of the mean; `None` for fewer than two values.
#[must_use]
pub fn mean_and_error(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let spread: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, (spread / (n - 1) as f64 / n as f64).sqrt()))
}

/// The interval of a mean over repeats; `None` for fewer than two of them.
#[must_use]
pub fn over_repeats(values: &[f64]) -> Option<Interval> {
    let (mean, error) = mean_and_error(values)?;
    let reach = error * student(values.len() - 1, Confidence::P95);
    Some(Interval { low: mean - reach, high: mean + reach })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_own_numbers() {
        assert_eq!(student(4, Confidence::P95), 2.776);
        assert!((student(60, Confidence::P95) - 2.000).abs() < 2e-3);
        assert!((student(120, Confidence::P99) - 2.617).abs() < 2e-3);
        assert!(student(0, Confidence::P99).is_infinite());
    }

    #[test]
    fn one_repeat_says_nothing() {
        assert_eq!(over_repeats(&[3.0]), None);
        let Interval { low, high } = over_repeats(&[9.0, 10.0, 11.0]).unwrap();
        assert!((low - (10.0 - 4.303 / 3f64.sqrt())).abs() < 1e-9 && high > 12.4);
    }
}
