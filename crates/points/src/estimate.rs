//! What voxelization takes, before anything is allocated.
//!
//! Everything is counted: the points with their features, the grids of every feature, and what
//! is needed between. Sizes are 64-bit and stop at the largest number instead of wrapping, so
//! a batch past 2³¹ elements is estimated and not wished away. The share of memory that may
//! be used is the library's one margin, in the check and in the plan alike.

use plimsoll_memory::{Bytes, ChunkPlan, ChunkingConfig, Result, will_oom};

use crate::spec::{Cells, VoxelMode, VoxelSpec};

/// A batch: this many clouds of this many points into a grid.
///
/// ```
/// use plimsoll_memory::Bytes;
/// use plimsoll_points::{VoxelizationShape, estimate_voxelization_memory};
///
/// let shape = VoxelizationShape::new(64, 100_000, [128, 128, 128]);
/// let estimate = estimate_voxelization_memory(&shape);
/// assert_eq!(estimate.points, Bytes(64 * 100_000 * 3 * 4));
/// assert_eq!(estimate.output, Bytes(64 * 128 * 128 * 128 * 4));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoxelizationShape {
    /// Clouds.
    pub batch: u64,
    /// Points of a cloud: of the largest, where they differ.
    pub points: u64,
    /// Depth, height, width.
    pub grid: [u64; 3],
    /// Numbers of a point beside its coordinates.
    pub features: u64,
    /// What is told of a voxel.
    pub mode: VoxelMode,
    /// How it is written down.
    pub cells: Cells,
}

impl VoxelizationShape {
    /// Occupancy as floats of points without features.
    #[must_use]
    pub fn new(batch: u64, points: u64, grid: [u64; 3]) -> VoxelizationShape {
        VoxelizationShape {
            batch,
            points,
            grid,
            features: 0,
            mode: VoxelMode::Occupancy,
            cells: Cells::F32,
        }
    }

    /// The same with features of every point, whose mean is made.
    #[must_use]
    pub fn with_features(self, features: u64) -> VoxelizationShape {
        let mode = if features > 0 { VoxelMode::Mean } else { self.mode };
        VoxelizationShape { features, mode, ..self }
    }

    /// The same in another mode and type.
    #[must_use]
    pub fn with_mode(self, mode: VoxelMode, cells: Cells) -> VoxelizationShape {
        VoxelizationShape { mode, cells, ..self }
    }

    /// The shape of what a [`VoxelSpec`] makes.
    #[must_use]
    pub fn of(spec: &VoxelSpec, batch: u64, points: u64, features: u64) -> VoxelizationShape {
        let grid = spec.grid().dims().map(u64::from);
        VoxelizationShape { batch, points, grid, features, mode: spec.mode(), cells: spec.cells() }
    }

    fn voxels(&self) -> u64 {
        self.grid.iter().fold(1, |voxels, extent| voxels.saturating_mul(*extent))
    }

    fn of_one_cloud(&self) -> VoxelizationEstimate {
        let bytes = |count: u64, each: u64| Bytes(count.saturating_mul(each));
        let voxels = self.voxels();
        let planes = if self.mode.of_features() { self.features.max(1) } else { 1 };
        let values = if self.mode == VoxelMode::Occupancy { 0 } else { planes };
        let output = match self.cells {
            Cells::F32 | Cells::U32 => bytes(voxels, 4).saturating_mul(planes),
            Cells::U8 => Bytes(voxels),
            Cells::Bits => Bytes(voxels.div_ceil(8)),
            // Coordinates and values of as many voxels as there are points, at most.
            Cells::Sparse => {
                bytes(self.points.min(voxels), values.saturating_mul(4).saturating_add(16))
            }
        };
        let workspace = match (self.mode, self.cells) {
            // Points sorted by voxel: a key and a number, twice.
            (_, Cells::Sparse) | (VoxelMode::Mean, _) => bytes(self.points, 32),
            (VoxelMode::Occupancy, _) => Bytes(voxels.div_ceil(8)),
            (VoxelMode::Count | VoxelMode::Max, _) => Bytes::ZERO,
        };
        VoxelizationEstimate {
            points: bytes(self.points, self.features.saturating_add(3).saturating_mul(4)),
            output,
            workspace,
        }
    }
}

/// What a batch takes, term by term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VoxelizationEstimate {
    /// Coordinates and features.
    pub points: Bytes,
    /// The grids.
    pub output: Bytes,
    /// What is needed between the two.
    pub workspace: Bytes,
}

impl VoxelizationEstimate {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.points.saturating_add(self.output).saturating_add(self.workspace)
    }
}

/// What a batch takes on the device that makes it.
#[must_use]
pub fn estimate_voxelization_memory(shape: &VoxelizationShape) -> VoxelizationEstimate {
    let one = shape.of_one_cloud();
    VoxelizationEstimate {
        points: one.points.saturating_mul(shape.batch),
        output: one.output.saturating_mul(shape.batch),
        workspace: one.workspace.saturating_mul(shape.batch),
    }
}

/// Whether a batch is more than the safety margin leaves of what is available.
///
/// ```
/// use plimsoll_memory::Bytes;
/// use plimsoll_points::{VoxelizationShape, voxelization_will_oom};
/// let shape = VoxelizationShape::new(64, 100_000, [128, 128, 128]);
/// assert!(voxelization_will_oom(&shape, Bytes::mib(512)));
/// assert!(!voxelization_will_oom(&shape, Bytes::gib(1)));
/// ```
#[must_use]
pub fn voxelization_will_oom(shape: &VoxelizationShape, available: Bytes) -> bool {
    will_oom(estimate_voxelization_memory(shape).total(), available)
}

/// How many clouds at a time fit into what is available.
///
/// # Errors
///
/// [`plimsoll_memory::Error::NeverFits`] where one cloud is too large for it.
///
/// ```
/// use plimsoll_memory::Bytes;
/// use plimsoll_points::{VoxelizationShape, suggest_voxelization_chunking};
/// let shape = VoxelizationShape::new(64, 100_000, [128, 128, 128]);
/// let plan = suggest_voxelization_chunking(&shape, Bytes::mib(220))?;
/// assert!(plan.to_string().starts_with("4 chunks of 16 items"), "{plan}");
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub fn suggest_voxelization_chunking(
    shape: &VoxelizationShape,
    available: Bytes,
) -> Result<ChunkingConfig> {
    ChunkPlan::new(shape.batch, shape.of_one_cloud().total(), available).config()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_count_in_points_and_in_grids() {
        let shape = VoxelizationShape::new(2, 1000, [8, 8, 8]).with_features(5);
        let estimate = estimate_voxelization_memory(&shape);
        assert_eq!(estimate.points, Bytes(2 * 1000 * 8 * 4));
        assert_eq!(estimate.output, Bytes(2 * 512 * 4 * 5));
        assert_eq!(estimate.workspace, Bytes(2 * 1000 * 32));
    }

    #[test]
    fn a_sparse_result_has_coordinates_once_and_a_value_of_each_feature() {
        let output = |side, mode, features| {
            let shape = VoxelizationShape::new(2, 1000, [side; 3]).with_features(features);
            estimate_voxelization_memory(&shape.with_mode(mode, Cells::Sparse)).output
        };
        assert_eq!(output(64, VoxelMode::Occupancy, 0), Bytes(2 * 1000 * 16));
        assert_eq!(output(64, VoxelMode::Count, 0), Bytes(2 * 1000 * 20));
        assert_eq!(output(64, VoxelMode::Mean, 5), Bytes(2 * 1000 * 36));
        assert_eq!(output(4, VoxelMode::Count, 0), Bytes(2 * 64 * 20), "no more than there are");
    }

    #[test]
    fn nothing_wraps() {
        let shape = VoxelizationShape::new(64, 1000, [2048, 2048, 2048]);
        assert_eq!(estimate_voxelization_memory(&shape).output, Bytes(64 << 35));
        let most =
            VoxelizationShape::new(u64::MAX, u64::MAX, [u64::MAX; 3]).with_features(u64::MAX);
        assert_eq!(estimate_voxelization_memory(&most).total(), Bytes::MAX);
        assert!(voxelization_will_oom(&most, Bytes::gib(1)));
        assert!(suggest_voxelization_chunking(&most, Bytes::gib(1)).is_err());
    }

    #[test]
    fn the_check_and_the_plan_agree() {
        let shape = VoxelizationShape::new(100, 50_000, [64, 64, 64]);
        let plan = suggest_voxelization_chunking(&shape, Bytes::mib(64)).unwrap();
        let of = |batch| VoxelizationShape { batch, ..shape };
        assert!(!voxelization_will_oom(&of(plan.chunk_size), Bytes::mib(64)));
        assert!(voxelization_will_oom(&of(plan.chunk_size + 1), Bytes::mib(64)));
    }
}
