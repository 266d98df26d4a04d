//! What can go wrong with a driver: it is not there, or it refuses a call.

use std::ffi::c_int;

/// What the driver refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {why}")]
pub struct Refused {
    /// The function of the driver.
    pub call: &'static str,
    /// The code that it returned.
    pub code: c_int,
    /// The driver's name and description of that code.
    pub why: String,
}

/// What a call to the driver gives.
pub type Done<T = ()> = std::result::Result<T, Refused>;

/// Why something of CUDA could not be had or done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library, a function or a device that this machine does not have.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// Why it cannot be had, with the remedy.
        why: String,
    },
    /// A call that the driver refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A call that the run-time compiler refused.
    #[error("{call} failed: {why}")]
    Compiler {
        /// The function of the compiler.
        call: &'static str,
        /// What it said, with its log.
        why: String,
    },
}

/// The result of what loads a library and calls it.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;
