//! The extension module of the Python package `plimsoll`.

use pyo3::prelude::*;

#[pymodule]
mod _plimsoll {
    use super::*;

    /// The version of the package.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}
