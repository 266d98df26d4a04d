//! Arguments that have several spellings: amounts of memory, and devices.

use plimsoll::backend::DeviceId;
use plimsoll::{Bytes, current};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

use crate::errors::OrRaise;

/// An amount of memory: a number of bytes, or text with a unit (`8GiB`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount(pub(crate) Bytes);

impl FromPyObject<'_, '_> for Amount {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Amount> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_cow()?;
            // A lone "8" is most often 8 GiB without its unit; a number of bytes is an int.
            if text.trim_end().ends_with(|last: char| last.is_ascii_digit()) {
                let why = "an amount of memory as text needs a unit ('8GiB'); bytes are an int";
                return Err(PyValueError::new_err(format!("{text:?}: {why}")));
            }
            return Ok(Amount(text.parse::<Bytes>().or_raise()?));
        }
        if let Ok(bytes) = object.extract::<u64>() {
            return Ok(Amount(Bytes(bytes)));
        }
        let negative = object.extract::<f64>().is_ok_and(|number| number < 0.0);
        Err(if negative {
            PyValueError::new_err("an amount of memory must not be negative")
        } else if object.is_instance_of::<PyInt>() {
            PyValueError::new_err("an amount of memory must be less than 2^64 bytes")
        } else {
            PyTypeError::new_err(
                "an amount of memory must be a number of bytes (int) or text with a unit ('8GiB')",
            )
        })
    }
}

/// How many of something there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl FromPyObject<'_, '_> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Count> {
        object.extract().map(Count).map_err(|error: PyErr| {
            match error.is_instance_of::<PyOverflowError>(object.py()) {
                true => PyValueError::new_err(format!(
                    "{} cannot be a number of items; it must be from 0 to 2^64 - 1",
                    object.to_owned()
                )),
                false => error,
            }
        })
    }
}

/// A device by its name, or by whatever prints as one (`torch.device("cuda:0")`).
pub(crate) fn device(named: Option<&Bound<'_, PyAny>>) -> PyResult<DeviceId> {
    match named {
        None => Ok(current::device()),
        Some(named) => named.str()?.to_cow()?.parse::<DeviceId>().or_raise(),
    }
}
