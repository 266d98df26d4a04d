//! GPU and host memory as one library.
pub mod error;
pub mod platform;
pub mod units;

pub use error::{Error, Result};
pub use units::{Bytes, format_bytes};

/// The Rust blocks of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
