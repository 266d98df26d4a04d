//! Levels and lines of `run.log`, and the trait by which it receives what libraries log.
//!
//! Violations and skipped frames also go to the program's own log, under [`TARGET`]. Whoever
//! collects what libraries log ([`Logged`]) can leave those out: they are in `run.log` already.

use std::fmt;
use std::time::SystemTime;

/// The target of events that are in `run.log` already.
pub const TARGET: &str = "plimsoll_bench::run_log";

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// A failure, or a violation of the limit.
    Error,
    /// A reason to trust a figure less.
    Warn,
    /// What the run did.
    #[default]
    Info,
    /// Details for a developer.
    Debug,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
        })
    }
}

/// A line that a library logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// When it was logged.
    pub time: SystemTime,
    /// Its severity.
    pub level: Level,
    /// The text.
    pub text: String,
}

/// Collects what libraries log during a run. The program provides one.
pub trait Logged: fmt::Debug + Send + Sync {
    /// The lines since the last call.
    fn drain(&self) -> Vec<LogLine>;
}
