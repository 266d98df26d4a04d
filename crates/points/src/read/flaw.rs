//! What is wrong with a file, and where.

use std::fmt;
use std::path::Path;

use plimsoll_memory::Error;

/// Where reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlawPlace {
    /// A byte, the first being 0.
    Byte(u64),
    /// A line, the first being 1.
    Line(u64),
}

impl fmt::Display for FlawPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlawPlace::Byte(byte) => write!(f, "byte {byte}"),
            FlawPlace::Line(line) => write!(f, "line {line}"),
        }
    }
}

/// Why a file is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Flaw {
    /// Where.
    pub place: FlawPlace,
    /// What is wrong there.
    pub why: String,
}

impl Flaw {
    /// At a byte.
    pub(crate) fn at(byte: usize, why: impl Into<String>) -> Flaw {
        Flaw { place: FlawPlace::Byte(byte as u64), why: why.into() }
    }

    /// On a line.
    pub(crate) fn on(line: usize, why: impl Into<String>) -> Flaw {
        Flaw { place: FlawPlace::Line(line as u64), why: why.into() }
    }

    /// The same with the name of the file.
    pub(crate) fn of(self, path: &Path) -> Error {
        Error::Malformed { what: format!("{}, {}", path.display(), self.place), why: self.why }
    }
}

/// The result of reading bytes.
pub type Read<T> = std::result::Result<T, Flaw>;
