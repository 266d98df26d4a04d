//! Voxels for detection networks, for programs in C and C++.
//!
//! `include/plimsoll.h` is made of this crate by cbindgen, and a test keeps it so. A call returns
//! a status; `plimsoll_last_error` says in words what was wrong in the last call of the thread.

#![expect(unsafe_code, reason = "pointers of the caller's")]

mod cuda;
mod cuda_network;
mod error;
mod host;
mod spec;

pub use cuda::{
    PlimsollCudaBuffers, PlimsollCudaHard, plimsoll_cuda_hard_create, plimsoll_cuda_hard_destroy,
    plimsoll_cuda_hard_launch, plimsoll_cuda_hard_launch_ragged,
};
pub use cuda_network::{
    PlimsollCudaPillars, PlimsollCudaScatter, plimsoll_cuda_birds_eye,
    plimsoll_cuda_dynamic_coordinates, plimsoll_cuda_pillar_features, plimsoll_cuda_pillars_create,
    plimsoll_cuda_pillars_destroy, plimsoll_cuda_scatter_create, plimsoll_cuda_scatter_destroy,
    plimsoll_cuda_scatter_points, plimsoll_cuda_voxels_to_points,
};
pub use error::{PlimsollStatus, plimsoll_last_error};
pub use host::{
    plimsoll_birds_eye, plimsoll_dynamic_coordinates, plimsoll_hard_voxelize,
    plimsoll_pillar_features, plimsoll_scatter_points, plimsoll_voxels_to_points,
};
pub use spec::{PlimsollHardSpec, PlimsollOrder};
