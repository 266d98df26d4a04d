//! What is made of a cloud: which grid, what of a voxel, in which type.

use std::fmt;
use std::str::FromStr;

use plimsoll_memory::{Error, Result};

use crate::grid::VoxelGrid;

/// What is told of a voxel. One without points is 0 in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VoxelMode {
    /// Whether it has a point: 1.
    Occupancy,
    /// How many points it has.
    Count,
    /// The mean of each feature: summed in the order of points in double precision, divided,
    /// and rounded to single once.
    Mean,
    /// The largest of each feature; a NaN among them makes it NaN, and +0 is above −0.
    Max,
}

impl VoxelMode {
    /// Whether it tells of features and not of points alone.
    #[must_use]
    pub fn of_features(self) -> bool {
        matches!(self, VoxelMode::Mean | VoxelMode::Max)
    }
}

impl fmt::Display for VoxelMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            VoxelMode::Occupancy => "occupancy",
            VoxelMode::Count => "count",
            VoxelMode::Mean => "mean",
            VoxelMode::Max => "max",
        })
    }
}

impl FromStr for VoxelMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<VoxelMode> {
        match text {
            "occupancy" => Ok(VoxelMode::Occupancy),
            "count" => Ok(VoxelMode::Count),
            "mean" => Ok(VoxelMode::Mean),
            "max" => Ok(VoxelMode::Max),
            _ => Err(Error::Config {
                field: "mode",
                value: format!("{text:?}"),
                range: "occupancy, count, mean or max",
            }),
        }
    }
}

/// How a voxel is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cells {
    /// A float of single precision each.
    F32,
    /// A byte each: occupancy alone.
    U8,
    /// Four bytes each: counts alone.
    U32,
    /// A bit each, the first voxel in the lowest bit of the first byte: occupancy alone.
    Bits,
    /// Only the voxels with points: their coordinates, in order, and their values.
    Sparse,
}

impl Cells {
    /// What a mode is written in unless one asks for something else.
    #[must_use]
    pub fn of(mode: VoxelMode) -> Cells {
        if mode == VoxelMode::Count { Cells::U32 } else { Cells::F32 }
    }
}

impl fmt::Display for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cells::F32 => "f32",
            Cells::U8 => "u8",
            Cells::U32 => "u32",
            Cells::Bits => "bits",
            Cells::Sparse => "sparse",
        })
    }
}

impl FromStr for Cells {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cells> {
        match text {
            "f32" | "float32" => Ok(Cells::F32),
            "u8" | "uint8" => Ok(Cells::U8),
            "u32" | "uint32" => Ok(Cells::U32),
            "bits" => Ok(Cells::Bits),
            "sparse" => Ok(Cells::Sparse),
            _ => Err(Error::Config {
                field: "dtype",
                value: format!("{text:?}"),
                range: "f32, u8, u32, bits or sparse",
            }),
        }
    }
}

/// What is made of every cloud.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VoxelSpec {
    grid: VoxelGrid,
    mode: VoxelMode,
    cells: Cells,
    features: usize,
}

impl VoxelSpec {
    /// A grid, what to tell of a voxel and how; `features` of the points count for the mean
    /// and the maximum alone.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the type cannot hold what the mode tells, or points without
    /// features are asked for a mean or a maximum of them.
    pub fn new(
        grid: VoxelGrid,
        mode: VoxelMode,
        cells: Cells,
        features: usize,
    ) -> Result<VoxelSpec> {
        let fits = match cells {
            Cells::F32 | Cells::Sparse => true,
            Cells::U8 | Cells::Bits => mode == VoxelMode::Occupancy,
            Cells::U32 => mode == VoxelMode::Count,
        };
        if !fits {
            return Err(Error::Config {
                field: "dtype",
                value: format!("{cells} with mode {mode}"),
                range: "f32 or sparse with any mode, u8 or bits with occupancy, u32 with count",
            });
        }
        if mode.of_features() && features == 0 {
            return Err(Error::Config {
                field: "mode",
                value: format!("{mode} of points without features"),
                range: "occupancy or count, or points with more than x, y and z",
            });
        }
        Ok(VoxelSpec { grid, mode, cells, features: if mode.of_features() { features } else { 0 } })
    }

    /// The grid.
    #[must_use]
    pub fn grid(&self) -> &VoxelGrid {
        &self.grid
    }

    /// What is told of a voxel.
    #[must_use]
    pub fn mode(&self) -> VoxelMode {
        self.mode
    }

    /// How it is written down.
    #[must_use]
    pub fn cells(&self) -> Cells {
        self.cells
    }

    /// Features of a point that count: none where the mode does not tell of them.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Grids of a cloud: one for each feature, or one.
    #[must_use]
    pub fn planes(&self) -> u64 {
        self.features.max(1) as u64
    }

    /// Bytes of this many voxels in one plane; voxels of a sparse result have none here.
    #[must_use]
    pub fn plane_bytes(&self, voxels: u64) -> u64 {
        match self.cells {
            Cells::F32 | Cells::U32 => voxels.saturating_mul(4),
            Cells::U8 => voxels,
            Cells::Bits => voxels.div_ceil(8),
            Cells::Sparse => 0,
        }
    }

    /// Bytes of this many voxels of one cloud, all planes.
    #[must_use]
    pub fn cloud_bytes(&self, voxels: u64) -> u64 {
        self.plane_bytes(voxels).saturating_mul(self.planes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_hold_what_modes_tell() {
        let grid = VoxelGrid::new([2, 2, 9], [1.0; 3], [0.0; 3]).unwrap();
        let spec = |mode, cells, features| VoxelSpec::new(grid, mode, cells, features);
        assert_eq!(spec(VoxelMode::Occupancy, Cells::Bits, 0).unwrap().cloud_bytes(36), 5);
        assert_eq!(spec(VoxelMode::Mean, Cells::F32, 3).unwrap().cloud_bytes(36), 36 * 4 * 3);
        assert_eq!(spec(VoxelMode::Count, Cells::U32, 3).unwrap().planes(), 1);
        assert!(spec(VoxelMode::Count, Cells::U8, 0).is_err());
        assert!(spec(VoxelMode::Mean, Cells::U8, 1).is_err());
        assert!(spec(VoxelMode::Max, Cells::F32, 0).is_err());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in [VoxelMode::Occupancy, VoxelMode::Count, VoxelMode::Mean, VoxelMode::Max] {
            assert_eq!(mode.to_string().parse::<VoxelMode>().unwrap(), mode);
        }
        for cells in [Cells::F32, Cells::U8, Cells::U32, Cells::Bits, Cells::Sparse] {
            assert_eq!(cells.to_string().parse::<Cells>().unwrap(), cells);
        }
    }
}
