//! Foreign calls, one file for each thing that is called.
//!
//! Here, and in `backend/`, unsafe code is allowed. A file declares no more than what
//! is called, turns codes into values, and hands out types that cannot be misused.

pub(crate) mod opencl;
pub(crate) mod pages;
