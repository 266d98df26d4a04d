//! The unsafe calls of what engines share on a GPU.

#![expect(unsafe_code, reason = "copies that are queued, pinned memory, kernel launches")]

pub(in crate::engine) mod buffer;
pub(in crate::engine) mod gpu;
pub(in crate::engine) mod kernels;
pub(in crate::engine) mod pinned;

use plimsoll::Error;

/// The error for two ranges of different sizes, which would be a mistake of ours.
fn wrong_size(why: &str) -> Error {
    Error::Device { call: "a copy on the device", why: why.to_string() }
}
