//! Clouds from the bytes of a file, as arrays.

use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use plimsoll_points::read::clouds_from;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::OrRaise;

/// The clouds in the bytes of a file of this name: an array of [N, 3 + F] floats for each.
#[pyfunction]
#[pyo3(signature = (name, data, features = true))]
pub(crate) fn read_clouds(
    py: Python<'_>,
    name: PathBuf,
    data: PyBackedBytes,
    features: bool,
) -> PyResult<Vec<Bound<'_, PyArray2<f32>>>> {
    let (of_point, clouds) = py.detach(|| clouds_from(&name, &data, features)).or_raise()?;
    let columns = 3 + of_point;
    let array = |floats: Vec<f32>| {
        let rows = floats.len() / columns;
        PyArray1::from_vec(py, floats).reshape([rows, columns])
    };
    clouds.into_iter().map(array).collect()
}
