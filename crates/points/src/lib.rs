//! Point clouds into voxel grids, at the speed of memory and never out of it.
//!
//! ```text
//! read ──→ job ──→ backend ──→ write
//!   Cloud    Piece     bytes      file
//! ```
//!
//! - [`read`] knows the files that clouds come in; a folder of them is a [`Batch`].
//! - [`VoxelSpec`] says what is made: which grid, what of a voxel, in which type. Its rules are
//!   exact, so that the host, CUDA and OpenCL give the same bits.
//! - [`backend`] makes one piece of the result; [`job`] cuts the work so that each piece fits,
//!   halves where it does not after all, and ends on the host.
//! - [`network`] makes what detectors take of points: hard and dynamic voxels, and pillars.
//! - [`mod@write`] streams what was made into a file that is whole or not there.
//!
//! ```
//! use plimsoll_points::{Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec, voxelize};
//!
//! let cloud = Cloud::from_points(vec![0.1, 0.2, 0.3, 0.9, 0.2, 0.3, f32::NAN, 0.0, 0.0], 0)?;
//! let grid = VoxelGrid::new([2, 2, 2], [0.5; 3], [0.0; 3])?; // depth, height, width
//! let made = voxelize(&[cloud], &VoxelSpec::new(grid, VoxelMode::Occupancy, Cells::U8, 0)?)?;
//! assert_eq!(made.bytes, [1, 1, 0, 0, 0, 0, 0, 0]);
//! assert_eq!(made.tally.not_finite, 1);
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```

pub mod backend;
mod cloud;
mod estimate;
mod grid;
pub mod job;
pub mod network;
pub mod open;
mod preview;
pub mod read;
mod reduce;
mod room;
mod simd;
mod spec;
pub mod write;

pub use backend::{VoxelTally, Voxelized, voxelize};
pub use cloud::{Cloud, SharedFloats};
pub use estimate::{
    VoxelizationEstimate, VoxelizationShape, estimate_voxelization_memory,
    suggest_voxelization_chunking, voxelization_will_oom,
};
pub use grid::VoxelGrid;
pub use preview::Preview;
pub use read::Batch;
pub use spec::{Cells, VoxelMode, VoxelSpec};

/// The guide's Rust blocks, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/points.md")]
struct Guide;
