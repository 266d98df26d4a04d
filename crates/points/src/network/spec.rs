//! What is wanted of hard voxelization.

use std::fmt;
use std::str::FromStr;

use plimsoll_memory::{Error, Result};

use crate::grid::VoxelGrid;

/// In which order a voxel's coordinates are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CoordinateOrder {
    /// z, y, x: that of mmcv, OpenPCDet and spconv.
    #[default]
    Zyx,
    /// x, y, z.
    Xyz,
}

impl fmt::Display for CoordinateOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CoordinateOrder::Zyx => "zyx",
            CoordinateOrder::Xyz => "xyz",
        })
    }
}

impl FromStr for CoordinateOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<CoordinateOrder> {
        match text {
            "zyx" => Ok(CoordinateOrder::Zyx),
            "xyz" => Ok(CoordinateOrder::Xyz),
            _ => Err(Error::Config {
                field: "order",
                value: format!("{text:?}"),
                range: "zyx (mmcv, OpenPCDet, spconv) or xyz",
            }),
        }
    }
}

/// How the coordinates of voxels are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CoordinateForm {
    /// In which order.
    pub order: CoordinateOrder,
    /// Whether the number of the cloud stands in front, as OpenPCDet and spconv want it of
    /// batches.
    pub batch_index: bool,
}

impl CoordinateForm {
    /// Numbers of a voxel: three or four.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.batch_index { 4 } else { 3 }
    }

    /// Writes the coordinates of a voxel, or −1 where there is none, into as many numbers as
    /// there are columns. The number of the cloud is written in either case.
    pub(crate) fn write(&self, cloud: usize, voxel: Option<[u32; 3]>, to: &mut [i32]) {
        let [z, y, x] = voxel.map_or([-1; 3], |place| place.map(u32::cast_signed));
        let place = match self.order {
            CoordinateOrder::Zyx => [z, y, x],
            CoordinateOrder::Xyz => [x, y, z],
        };
        let to = match to.split_first_mut().filter(|_| self.batch_index) {
            Some((first, _)) => {
                *first = i32::try_from(cloud).unwrap_or(i32::MAX);
                &mut to[1..]
            }
            None => to,
        };
        if let Some(to) = to.first_chunk_mut() {
            *to = place;
        }
    }
}

/// Hard voxelization: at most `max_points` points of each of at most `max_voxels` voxels.
///
/// ```
/// use plimsoll_points::network::{HardSpec, PointBatch, hard_voxelize};
///
/// let spec = HardSpec::new([0.5; 3], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 2, 10)?;
/// let points = [0.1, 0.1, 0.9, 7.0, /* */ 0.6, 0.1, 0.1, 8.0, /* */ 0.2, 0.2, 0.8, 9.0];
/// let made = hard_voxelize(&PointBatch::one(&points, 4)?, &spec)?;
/// assert_eq!(made.coordinates, [1, 0, 0, /* */ 0, 0, 1]); // z, y, x
/// assert_eq!(made.num_points, [2, 1]);
/// assert_eq!(made.voxels[..8], [0.1, 0.1, 0.9, 7.0, 0.2, 0.2, 0.8, 9.0]);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HardSpec {
    grid: VoxelGrid,
    max_points: u32,
    max_voxels: u32,
    form: CoordinateForm,
}

/// So many that numbers of voxels and of their points stay below 2³¹.
const MOST: u32 = i32::MAX.cast_unsigned();

impl HardSpec {
    /// Voxels of this size in a range (x, y and z of its first corner, then of its last).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a maximum of 0, and what [`VoxelGrid::of_range`] refuses.
    pub fn new(
        voxel_size: [f32; 3],
        range: [f32; 6],
        max_points: u32,
        max_voxels: u32,
    ) -> Result<HardSpec> {
        for (field, value) in [("max_points", max_points), ("max_voxels", max_voxels)] {
            if !(1..=MOST).contains(&value) {
                let range = "a number from 1 below 2^31";
                return Err(Error::Config { field, value: value.to_string(), range });
            }
        }
        let grid = VoxelGrid::of_range(voxel_size, range)?;
        Ok(HardSpec { grid, max_points, max_voxels, form: CoordinateForm::default() })
    }

    /// The same with coordinates in another form.
    #[must_use]
    pub fn with_form(self, form: CoordinateForm) -> HardSpec {
        HardSpec { form, ..self }
    }

    /// Where voxels lie.
    #[must_use]
    pub fn grid(&self) -> &VoxelGrid {
        &self.grid
    }

    /// Points of a voxel at most.
    #[must_use]
    pub fn max_points(&self) -> u32 {
        self.max_points
    }

    /// Voxels of a cloud at most.
    #[must_use]
    pub fn max_voxels(&self) -> u32 {
        self.max_voxels
    }

    /// How coordinates are written.
    #[must_use]
    pub fn form(&self) -> CoordinateForm {
        self.form
    }

    /// Voxels of a cloud of this many points at most.
    #[must_use]
    pub fn most_voxels(&self, points: u64) -> u64 {
        points.min(u64::from(self.max_voxels)).min(self.grid.voxels())
    }

    /// Bytes of one voxel in the result: its points, its coordinates and their number.
    #[must_use]
    pub fn voxel_bytes(&self, columns: usize) -> u64 {
        let floats = u64::from(self.max_points).saturating_mul(columns as u64);
        floats.saturating_add(self.form.columns() as u64 + 1).saturating_mul(4)
    }
}
