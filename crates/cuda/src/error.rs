//! The errors of a driver: it is missing, or it refuses a call.

use std::ffi::c_int;

/// A call that the driver refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {why}")]
pub struct CudaRefusal {
    /// The function of the driver.
    pub call: &'static str,
    /// The code that it returned.
    pub code: c_int,
    /// The driver's name and description of that code.
    pub why: String,
}

/// The result of one call to the driver.
pub type CallResult<T = ()> = Result<T, CudaRefusal>;

/// Why CUDA could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// This machine does not have a library, a function or a device.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// Why it is missing, with the remedy.
        why: String,
    },
    /// The driver refused a call.
    #[error(transparent)]
    Refused(#[from] CudaRefusal),
    /// The run-time compiler refused a call.
    #[error("{call} failed: {why}")]
    Compiler {
        /// The function of the compiler.
        call: &'static str,
        /// What it said, with its log.
        why: String,
    },
}

/// The result of loading a library and calling it.
pub type CudaResult<T> = Result<T, CudaError>;
