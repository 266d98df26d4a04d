//! placeholder

/// When a memory runs out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft {
    /// The best guess, in seconds.
    pub seconds: f64,
    /// Likely not sooner.
    pub at_least: f64,
    /// Likely not later; `None` where it may never run out.
    pub at_most: Option<f64>,
    /// The growth that it was worked out from.
    pub bytes_per_second: f64,
}

/// x
#[derive(Debug, Default, Clone)]
pub struct Forecast;

impl Forecast {
    /// x
    pub fn push(&mut self, _t: f64, _used: crate::Bytes, _total: crate::Bytes) -> Option<TimeLeft> {
        None
    }
}
