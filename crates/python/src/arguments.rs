//! Arguments that have several spellings: amounts of memory, and devices.

use plimsoll::backend::DeviceId;
use plimsoll::{Bytes, current};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::OrRaise;

/// An amount of memory: a number of bytes, or text with a unit (`8GiB`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount(pub(crate) Bytes);

impl FromPyObject<'_, '_> for Amount {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Amount> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Amount(text.to_cow()?.parse::<Bytes>().or_raise()?));
        }
        if let Ok(bytes) = object.extract::<u64>() {
            return Ok(Amount(Bytes(bytes)));
        }
        let negative = object.extract::<f64>().is_ok_and(|number| number < 0.0);
        Err(match negative {
            true => PyValueError::new_err("an amount of memory must not be negative"),
            false => PyTypeError::new_err(
                "an amount of memory must be a number of bytes (int) or text with a unit ('8GiB')",
            ),
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
