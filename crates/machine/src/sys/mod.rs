//! Calls into the C library, NVML and HIP, one file for each.
//!
//! Unsafe code is allowed here. A file declares no more than what is called, turns codes into
//! values, and hands out types that cannot be misused.

pub mod hip;
pub mod malloc;
pub mod nvml;
pub mod process;
