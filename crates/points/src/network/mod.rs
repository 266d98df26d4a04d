//! Voxels as networks that detect objects in point clouds take them.
//!
//! - [`HardHost`] makes the first points of the first voxels ([`HardSpec`]): `voxels`,
//!   `coordinates` and `num_points`, in the order that mmcv's deterministic operator has.
//! - [`dynamic_coordinates`] gives the voxel of every point, [`UniqueVoxels`] the voxels that have
//!   any; [`scatter_points`] sums, averages or takes the largest of their points, in the order of
//!   points, and [`voxels_to_points`] goes back.
//! - [`pillar_features`] adds offsets from a pillar's mean and centre to its points;
//!   [`birds_eye`] puts what a network made of each pillar into an image from above.
//!
//! This is the rule and the host's form of it. What devices make is the same to the bit
//! ([`backend`](crate::backend)); all of it but [`UniqueVoxels`] is there too.

mod direct;
mod dynamic;
mod group;
mod hard;
mod links;
mod passes;
mod pillars;
mod places;
mod points;
mod shares;
mod spec;

pub(crate) use dynamic::check_scatter;
pub use dynamic::{
    ScatterRule, UniqueVoxels, dynamic_coordinates, dynamic_coordinates_into, scatter_points,
    scatter_points_into, voxels_to_points, voxels_to_points_into,
};
pub use hard::{HardHost, HardSlices, HardVoxels, hard_voxelize};
pub(crate) use passes::{HardPasses, PassRoom};
pub use pillars::{
    PillarSlices, birds_eye, birds_eye_into, image_length, pillar_features, pillar_features_into,
};
pub(crate) use pillars::{check_image, check_pillars, no_image};
pub(crate) use points::MOST_POINTS;
pub use points::PointBatch;
pub use spec::{CoordinateForm, CoordinateOrder, HardSpec};
