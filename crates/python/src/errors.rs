//! The library's errors as Python's. The classes are Python's own (`plimsoll.errors`), as each has
//! two bases: one of this package, and the one that programs already catch.

use plimsoll::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::import_exception;

import_exception!(plimsoll.errors, OutOfMemory);
import_exception!(plimsoll.errors, NeverFits);
import_exception!(plimsoll.errors, Unavailable);

/// The Python error for one of the library's.
pub(crate) fn raised(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory { .. } => OutOfMemory::new_err(text),
        Error::NeverFits { .. } => NeverFits::new_err(text),
        Error::Unavailable { .. } => Unavailable::new_err(text),
        Error::Config { .. } | Error::Malformed { .. } => PyValueError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// The error for what this machine or process does not have.
pub(crate) fn unavailable(what: &str, why: &str) -> PyErr {
    raised(&Error::Unavailable { what: what.to_string(), why: why.to_string() })
}

/// A result of the library's as one of Python's.
pub(crate) trait OrRaise<T> {
    /// The value, or the error raised.
    fn or_raise(self) -> Result<T, PyErr>;
}

impl<T> OrRaise<T> for plimsoll::Result<T> {
    fn or_raise(self) -> Result<T, PyErr> {
        self.map_err(|error| raised(&error))
    }
}
