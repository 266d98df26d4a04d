//! The foreign calls of what engines share on a GPU.

#![expect(unsafe_code, reason = "foreign calls; every block says why it is sound")]

pub(in crate::engine) mod driver;
pub(in crate::engine) mod kernels;
pub(in crate::engine) mod pinned;

use std::fmt;

/// Why the device did not do what it was asked for.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Failure(String);

impl Failure {
    pub(in crate::engine) fn new(why: impl Into<String>) -> Failure {
        Failure(why.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.0
    }
}

pub(in crate::engine) type Result<T> = std::result::Result<T, Failure>;
