//! GPU and host memory as one library.
pub mod error;
pub mod pickle;
pub mod trace;
pub mod units;

pub use error::{Error, Result};
pub use units::{Bytes, format_bytes};
