//! The extension module of the Python package `plimsoll`.

mod batch;

use pyo3::prelude::*;

#[pymodule]
mod _plimsoll {
    use super::*;

    #[pymodule_export]
    use crate::batch::BatchSize;

    /// The version of the package.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}
