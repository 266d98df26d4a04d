//! Who makes the voxels: one file each, all of the same plan.
//!
//! A backend makes one [`VoxelPiece`]: some clouds, some of the voxels of each. What is cut how, and
//! what happens when memory is refused, is decided once, in [`job`](crate::job).

mod cache;
pub mod cuda;
pub mod device;
pub mod host;
pub mod opencl;

use std::ops::{AddAssign, Range};

use plimsoll_memory::{Error, Result};

use crate::cloud::Cloud;
use crate::network::{self, HardSpec, HardVoxels, PointBatch, ScatterRule};
use crate::room;
use crate::spec::{Cells, VoxelSpec};

/// Some clouds, and some of the voxels of each in the order of the output.
#[derive(Debug, Clone)]
pub struct VoxelPiece<'a> {
    /// The clouds.
    pub clouds: &'a [Cloud],
    /// What is made.
    pub spec: &'a VoxelSpec,
    /// The voxels; a multiple of 64 begins them, so that bits begin with a byte.
    pub voxels: Range<u64>,
}

impl VoxelPiece<'_> {
    /// Voxels of each cloud in this piece.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.voxels.end.saturating_sub(self.voxels.start)
    }

    /// Bytes of the dense result: clouds, planes, voxels.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.spec.cloud_bytes(self.span()).saturating_mul(self.clouds.len() as u64)
    }

    /// All points.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.clouds.iter().map(|cloud| cloud.len() as u64).sum()
    }
}

/// What was seen while a piece was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VoxelTally {
    /// Points that came in.
    pub points: u64,
    /// Points dropped because a coordinate is NaN or infinite.
    pub not_finite: u64,
    /// Points dropped because they lie outside the grid.
    pub outside: u64,
    /// Voxels with at least one point.
    pub occupied: u64,
}

impl AddAssign for VoxelTally {
    fn add_assign(&mut self, other: VoxelTally) {
        self.points += other.points;
        self.not_finite += other.not_finite;
        self.outside += other.outside;
        self.occupied += other.occupied;
    }
}

impl std::iter::Sum for VoxelTally {
    fn sum<I: Iterator<Item = VoxelTally>>(tallies: I) -> VoxelTally {
        let mut all = VoxelTally::default();
        tallies.for_each(|tally| all += tally);
        all
    }
}

/// The voxels with points of one cloud, in the order of the output.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filled {
    /// Their places among all voxels of the grid.
    pub voxels: Vec<u64>,
    /// Points of each.
    pub counts: Vec<u32>,
    /// The mean or maximum of every feature, voxel by voxel; empty in other modes.
    pub values: Vec<f32>,
}

impl Filled {
    /// Bytes of `voxels` voxels with `features` features.
    pub(crate) fn bytes_of(voxels: u64, features: u64) -> u64 {
        let each = (size_of::<u64>() + size_of::<u32>()) as u64;
        let values = features.saturating_mul(size_of::<f32>() as u64);
        voxels.saturating_mul(values.saturating_add(each))
    }
}

/// Makes voxels of clouds, on one kind of device.
pub trait VoxelBackend: Send + Sync {
    /// What it is called in reports: `host`, `cuda:0`.
    fn name(&self) -> String;

    /// Makes a dense piece. `out` has [`VoxelPiece::bytes`] bytes and is aligned to four.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] where a smaller piece may do; every other error is final.
    fn dense(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally>;

    /// Makes a sparse piece: the voxels with points, for each cloud.
    ///
    /// # Errors
    ///
    /// As [`VoxelBackend::dense`].
    fn sparse(&self, piece: &VoxelPiece<'_>) -> Result<(Vec<Filled>, VoxelTally)>;

    /// Why a result of `span` voxels a cloud is made on the host all the same; none where it
    /// is not.
    fn left_to_host(&self, _spec: &VoxelSpec, _span: u64) -> Option<String> {
        None
    }

    /// What it takes to make this many voxels of a cloud of this many points, in the memory that
    /// it works in; the host's does not count the points, which lie where they were read.
    fn working_bytes(&self, spec: &VoxelSpec, points: u64, span: u64) -> u64;

    /// Makes hard voxels of a batch, in the place of what `made` holds.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] where a cloud does not fit; [`Error::Unavailable`] where the grid has
    /// more cells than a device's table can tell apart, which the host's can.
    fn hard(&self, batch: &PointBatch<'_>, spec: &HardSpec, made: &mut HardVoxels) -> Result<()>;

    /// What hard voxelization of a cloud takes, in the memory that it works in: on a device its
    /// points, the result and what lies between; on the host what lies between.
    fn hard_bytes(&self, spec: &HardSpec, columns: usize, points: u64) -> u64;

    /// The voxel of every point: see [`dynamic_coordinates`](crate::network::dynamic_coordinates).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] where a cloud does not fit, as in all calls below, which the host does
    /// for backends that have no kernels for them.
    fn dynamic(&self, batch: &PointBatch<'_>, spec: &HardSpec) -> Result<Vec<i32>> {
        network::dynamic_coordinates(batch, spec.grid(), spec.form())
    }

    /// Features of pillars: see [`pillar_features`](crate::network::pillar_features).
    ///
    /// # Errors
    ///
    /// As there; [`Error::Unavailable`] on a device without double precision.
    fn pillars(&self, made: &HardVoxels, spec: &HardSpec, columns: usize) -> Result<Vec<f32>> {
        network::pillar_features(made, spec, columns)
    }

    /// The image from above: see [`birds_eye`](crate::network::birds_eye).
    ///
    /// # Errors
    ///
    /// As there.
    fn birds_eye(
        &self,
        values: &[f32],
        features: usize,
        coordinates: &[i32],
        spec: &HardSpec,
        clouds: usize,
    ) -> Result<Vec<f32>> {
        network::birds_eye(values, features, coordinates, spec, clouds)
    }

    /// What the points of each voxel come to: see
    /// [`scatter_points`](crate::network::scatter_points).
    ///
    /// # Errors
    ///
    /// As there; [`Error::Unavailable`] for sums and means on a device without double precision.
    fn scatter(
        &self,
        features: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
        voxels: usize,
        rule: ScatterRule,
    ) -> Result<Vec<f32>> {
        network::scatter_points(features, columns, point_to_voxel, voxels, rule)
    }

    /// Back from voxels to points: see [`voxels_to_points`](crate::network::voxels_to_points).
    ///
    /// # Errors
    ///
    /// As there.
    fn to_points(
        &self,
        values: &[f32],
        columns: usize,
        point_to_voxel: &[i32],
    ) -> Result<Vec<f32>> {
        network::voxels_to_points(values, columns, point_to_voxel)
    }

    /// The most memory that it held so far, where it counts.
    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Pieces that it cut its pieces into, where it does.
    fn turns(&self) -> Option<u64> {
        None
    }
}

/// What [`voxelize`] made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Voxelized {
    /// Clouds, planes, depth, height, width; little-endian numbers.
    pub bytes: Vec<u8>,
    /// What was seen.
    pub tally: VoxelTally,
}

/// Dense voxels of clouds in memory, on the host: the plain call for library users.
///
/// # Errors
///
/// [`Error::Config`] for a sparse [`VoxelSpec`], or clouds whose features are not those of it;
/// [`Error::NeverFits`] where the result is larger than an address can be.
pub fn voxelize(clouds: &[Cloud], spec: &VoxelSpec) -> Result<Voxelized> {
    let piece = VoxelPiece { clouds, spec, voxels: 0..spec.grid().voxels() };
    if spec.cells() == Cells::Sparse {
        return Err(Error::Config {
            field: "dtype",
            value: "sparse".to_string(),
            range: "f32, u8, u32 or bits here; backend::host::Host has a call for sparse results",
        });
    }
    let mut words = zeroed_words(piece.bytes())?;
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let bytes = bytes.get_mut(..piece.bytes() as usize).unwrap_or_default();
    let tally = host::VoxelHost::default().dense(&piece, bytes)?;
    Ok(Voxelized { bytes: bytes.to_vec(), tally })
}

/// Room for this many bytes, aligned for every number, without taking the process down where
/// there is none.
pub(crate) fn zeroed_words(bytes: u64) -> Result<Vec<u64>> {
    room::zeroed(usize::try_from(bytes.div_ceil(8)).map_err(|_| room::refused(bytes))?)
}

/// Room in plain memory.
struct PlainStaging(Vec<u64>);

impl device::Staging for PlainStaging {
    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// The clouds of a piece must have the features that are wanted of them.
pub(crate) fn check_features(piece: &VoxelPiece<'_>) -> Result<()> {
    let wanted = piece.spec.planes() as usize;
    if piece.spec.mode().of_features()
        && let Some(other) = piece.clouds.iter().find(|cloud| cloud.features() != wanted)
    {
        return Err(Error::Config {
            field: "features",
            value: format!("{} of a point", other.features()),
            range: "as many in every cloud as the result has planes",
        });
    }
    Ok(())
}
