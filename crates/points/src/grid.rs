//! Where voxels lie, and which one a point belongs to.

use plimsoll_memory::{Error, Result};

/// The most cells along one axis: up to here a single-precision number counts them exactly.
const MOST_CELLS: u32 = 1 << 23;
/// The most voxels: their numbers, and the sizes that are made of these, have 64 bits.
const MOST_VOXELS: u128 = 1 << 62;

/// A box of voxels: x runs along the width, y along the height, z along the depth.
///
/// A point belongs to the voxel floor((p − origin) / size), each operation in IEEE single
/// precision, rounded to nearest, with subnormals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VoxelGrid {
    /// Depth, height, width: the order of the output.
    dims: [u32; 3],
    /// Along x, y, z.
    size: [f32; 3],
    origin: [f32; 3],
}

impl VoxelGrid {
    /// A grid of depth, height and width, with voxels of these sizes along x, y and z, whose
    /// first voxel begins at the origin.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an extent of 0 or past 2²³, more than 2⁶² voxels, a size that is not above 0, an origin
    /// that is not finite.
    pub fn new(dims: [u32; 3], size: [f32; 3], origin: [f32; 3]) -> Result<VoxelGrid> {
        let config = |field, value: String, range| Error::Config { field, value, range };
        let voxels: u128 = dims.iter().map(|cells| u128::from(*cells)).product();
        if dims.iter().any(|cells| !(1..=MOST_CELLS).contains(cells)) || voxels > MOST_VOXELS {
            let [depth, height, width] = dims;
            let value = format!("{depth},{height},{width}");
            let range = "three extents from 1 to 8388608, of at most 2^62 voxels: D,H,W";
            return Err(config("grid", value, range));
        }
        if let Some(size) = size.iter().find(|size| !(size.is_normal() && **size > 0.0)) {
            return Err(config(
                "voxel_size",
                size.to_string(),
                "a number above 0, in metres or so",
            ));
        }
        if let Some(origin) = origin.iter().find(|origin| !origin.is_finite()) {
            return Err(config("origin", origin.to_string(), "three finite numbers: X,Y,Z"));
        }
        Ok(VoxelGrid { dims, size, origin })
    }

    /// The grid of voxels of this size in a range: x, y and z of its first corner, then of its
    /// last. There are as many along an axis as the length over the size, rounded.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a range without room for a voxel, and as [`VoxelGrid::new`].
    pub fn of_range(size: [f32; 3], range: [f32; 6]) -> Result<VoxelGrid> {
        let [x0, y0, z0, x1, y1, z1] = range;
        let (origin, last) = ([x0, y0, z0], [x1, y1, z1]);
        // Sizes that no grid has are named before what follows from them.
        VoxelGrid::new([1; 3], size, [0.0; 3])?;
        let mut cells = [0; 3];
        for axis in 0..3 {
            let count = ((last[axis] - origin[axis]) / size[axis]).round();
            if range.iter().any(|end| !end.is_finite()) || count < 1.0 {
                return Err(Error::Config {
                    field: "range",
                    value: format!("{x0},{y0},{z0},{x1},{y1},{z1}"),
                    range: "x0,y0,z0,x1,y1,z1: finite, and at least half a voxel along each axis",
                });
            }
            if count > MOST_CELLS as f32 {
                return Err(Error::Config {
                    field: "range",
                    value: format!("{x0},{y0},{z0},{x1},{y1},{z1}, voxels of {}", size[axis]),
                    range: "at most 8388608 voxels along each axis: a smaller range or larger voxels",
                });
            }
            cells[axis] = count as u32;
        }
        let [width, height, depth] = cells;
        VoxelGrid::new([depth, height, width], size, origin)
    }

    /// Depth, height, width.
    #[must_use]
    pub fn dims(&self) -> [u32; 3] {
        self.dims
    }

    /// The size of a voxel along x, y and z.
    #[must_use]
    pub fn size(&self) -> [f32; 3] {
        self.size
    }

    /// Where the first voxel begins.
    #[must_use]
    pub fn origin(&self) -> [f32; 3] {
        self.origin
    }

    /// All voxels.
    #[must_use]
    pub fn voxels(&self) -> u64 {
        self.dims.iter().map(|extent| u64::from(*extent)).product()
    }

    /// Cells along x, y and z: width, height, depth.
    #[must_use]
    pub fn cells(&self) -> [u32; 3] {
        let [depth, height, width] = self.dims;
        [width, height, depth]
    }

    /// What one step along x, y and z is in the order of the output.
    #[must_use]
    pub fn steps(&self) -> [u64; 3] {
        let [_, height, width] = self.dims.map(u64::from);
        [1, width, height * width]
    }

    /// Depth, height and width of a voxel, from its place in the order of the output.
    #[must_use]
    pub fn place(&self, voxel: u64) -> [u32; 3] {
        let [_, height, width] = self.dims.map(u64::from);
        let (rest, x) = (voxel / width, voxel % width);
        // Each is below an extent, so nothing is cut off.
        [(rest / height) as u32, (rest % height) as u32, x as u32]
    }

    /// The voxel of a point, one coordinate after the other: the rule as it is written, which
    /// the fast forms are held against.
    #[must_use]
    pub fn voxel(&self, point: [f32; 3]) -> Option<u64> {
        let mut voxel = 0;
        for (axis, coordinate) in point.into_iter().enumerate() {
            let cell = ((coordinate - self.origin[axis]) / self.size[axis]).floor();
            let extent = self.cells()[axis];
            if !(cell >= 0.0 && cell < extent as f32) {
                return None;
            }
            voxel += cell as u64 * self.steps()[axis];
        }
        Some(voxel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_is_the_width_and_z_the_depth() {
        let grid = VoxelGrid::new([2, 3, 4], [1.0; 3], [10.0, 20.0, 30.0]).unwrap();
        assert_eq!(grid.voxel([10.5, 20.5, 30.5]), Some(0));
        assert_eq!(grid.voxel([13.9, 20.5, 30.5]), Some(3));
        assert_eq!(grid.voxel([10.5, 22.5, 30.5]), Some(8));
        assert_eq!(grid.voxel([10.5, 20.5, 31.5]), Some(12));
        assert_eq!(grid.place(23), [1, 2, 3]);
        assert_eq!(grid.voxel([14.0, 20.5, 30.5]), None);
        assert_eq!(grid.voxel([9.999, 20.5, 30.5]), None);
        assert_eq!(grid.voxel([f32::NAN, 20.5, 30.5]), None);
    }

    #[test]
    fn the_last_voxel_of_the_largest_grid_has_its_place() {
        let grid = VoxelGrid::new([1 << 20, 1 << 21, 1 << 21], [1.0; 3], [0.0; 3]).unwrap();
        let last = [grid.dims()[2], grid.dims()[1], grid.dims()[0]].map(|extent| extent - 1);
        let voxel = grid.voxel(last.map(|cell| cell as f32 + 0.5)).unwrap();
        assert_eq!(voxel, grid.voxels() - 1);
        assert_eq!(grid.place(voxel), [(1 << 20) - 1, (1 << 21) - 1, (1 << 21) - 1]);
    }

    #[test]
    fn a_range_is_cut_into_whole_voxels() {
        let grid = VoxelGrid::of_range([0.16, 0.16, 4.0], [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]);
        assert_eq!(grid.unwrap().dims(), [1, 496, 432]);
        let range = |range| VoxelGrid::of_range([1.0; 3], range).unwrap_err().to_string();
        for ends in [[0.0; 6], [0.0, 0.0, 0.0, -1.0, 1.0, 1.0], [f32::NAN; 6]] {
            assert!(range(ends).starts_with("range"), "{}", range(ends));
        }
        assert!(range([0.0, 0.0, 0.0, 1e30, 1.0, 1.0]).contains("at most 8388608 voxels along"));
        assert!(VoxelGrid::of_range([0.0; 3], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).is_err());
    }

    #[test]
    fn what_is_no_grid_is_named() {
        for (dims, size, origin, field) in [
            ([0, 1, 1], 1.0, 0.0, "grid"),
            ([1, MOST_CELLS + 1, 1], 1.0, 0.0, "grid"),
            ([1 << 21; 3], 1.0, 0.0, "grid"),
            ([1, 1, 1], 0.0, 0.0, "voxel_size"),
            ([1, 1, 1], -1.0, 0.0, "voxel_size"),
            ([1, 1, 1], f32::NAN, 0.0, "voxel_size"),
            ([1, 1, 1], 1e-45, 0.0, "voxel_size"),
            ([1, 1, 1], 1.0, f32::INFINITY, "origin"),
        ] {
            let error = VoxelGrid::new(dims, [size; 3], [origin; 3]).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
