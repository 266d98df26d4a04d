//! Voxels for detection networks, for programs in C and C++.
//!
//! `include/plimsoll.h` is made of this crate by cbindgen, and a test keeps it so. A call returns
//! a status; `plimsoll_last_error` says in words what was wrong in the last call of the thread.

#![expect(unsafe_code, reason = "pointers of the caller's")]

mod cuda;
mod error;
mod host;
mod spec;

pub use cuda::{
    PlimsollCudaBuffers, PlimsollCudaHard, plimsoll_cuda_hard_create, plimsoll_cuda_hard_destroy,
    plimsoll_cuda_hard_launch, plimsoll_cuda_hard_launch_ragged,
};
pub use error::{PlimsollStatus, plimsoll_last_error};
pub use host::{
    plimsoll_birds_eye, plimsoll_dynamic_coordinates, plimsoll_hard_voxelize,
    plimsoll_pillar_features,
};
pub use spec::{PlimsollHardSpec, PlimsollOrder};
