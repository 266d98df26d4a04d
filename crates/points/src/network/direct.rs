//! Hard voxels of a small cloud in a small grid, in one pass.
//!
//! Each point is written where it belongs as soon as its cell is known, and a voxel is cleared when
//! its first point comes. Voxels are so written in order, and later points find theirs in a cache.

use super::places::CellPlaces;
use super::{HardSlices, HardSpec};
use crate::grid::VoxelGrid;
use crate::simd;
use crate::simd::place::{BLOCK, SimdPlaces};

/// What is known of the cells, kept from one cloud to the next.
#[derive(Debug, Default)]
pub(super) struct DirectVoxels {
    places: CellPlaces,
}

/// One cloud, as many floats of each point, and its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectCloud<'c> {
    pub(super) floats: &'c [f32],
    pub(super) columns: usize,
    pub(super) number: usize,
}

impl DirectVoxels {
    /// Makes the voxels of a cloud; gives how many there are, or nothing where there is no room.
    pub(super) fn run(
        &mut self,
        rule: &SimdPlaces,
        spec: &HardSpec,
        cloud: DirectCloud<'_>,
        to: HardSlices<'_>,
    ) -> Option<usize> {
        // Copies of a known length are a few instructions, others are calls.
        match cloud.columns {
            3 => self.run_sized::<3>(rule, spec, cloud, to),
            4 => self.run_sized::<4>(rule, spec, cloud, to),
            5 => self.run_sized::<5>(rule, spec, cloud, to),
            _ => self.run_sized::<0>(rule, spec, cloud, to),
        }
    }

    /// The same for points of `C` columns, or of any number of them where `C` is 0.
    fn run_sized<const C: usize>(
        &mut self,
        rule: &SimdPlaces,
        spec: &HardSpec,
        cloud: DirectCloud<'_>,
        to: HardSlices<'_>,
    ) -> Option<usize> {
        let columns = if C == 0 { cloud.columns } else { C };
        let each = spec.max_points() as usize * columns;
        let (grid, most) = (spec.grid(), spec.max_voxels() as usize);
        let rooms = to.capacity(spec, columns);
        let HardSlices { voxels, coordinates, num_points } = to;
        let mut places = self.places.cleared(grid.voxels() as usize);
        let cells_of = CellsOf::new(grid);
        let (mut made, mut cells) = (0, [0; BLOCK]);
        for block in cloud.floats.chunks(BLOCK * columns) {
            let cells = &mut cells[..block.len() / columns];
            simd::places(rule, block, columns, cells);
            cells.iter().for_each(|cell| places.fetch(*cell as usize));
            for (cell, point) in cells.iter().zip(block.chunks_exact(columns)) {
                let cell = *cell as usize;
                let voxel = match places.get(cell) {
                    Some(voxel) => voxel,
                    None if cell as u64 >= grid.voxels() || made == most => continue,
                    None if made == rooms => return None,
                    None => {
                        places.set(cell, made);
                        voxels[made * each..][..each].fill(0.0);
                        num_points[made] = 0;
                        let width = spec.form().columns();
                        let to = &mut coordinates[made * width..][..width];
                        spec.form().write(cloud.number, Some(cells_of.place(cell as u64)), to);
                        made += 1;
                        made - 1
                    }
                };
                let seen = &mut num_points[voxel];
                if seen.cast_unsigned() < spec.max_points() {
                    let at = voxel * each + *seen as usize * columns;
                    voxels[at..at + columns].copy_from_slice(point);
                    *seen += 1;
                }
            }
        }
        Some(made)
    }
}

/// From the number of a cell of a small grid back to z, y and x, by multiplications: divisions take
/// longer.
#[derive(Debug, Clone, Copy)]
struct CellsOf {
    width: (u64, u64),
    height: (u64, u64),
}

/// With this many bits, quotients are exact where number and divisor together have no more: the
/// factor is too large by less than the divisor, so the product by less than both multiplied.
const QUOTIENT_BITS: u32 = 36;

impl CellsOf {
    fn new(grid: &VoxelGrid) -> CellsOf {
        let [_, height, width] = grid.dims().map(u64::from);
        let factor = |by: u64| (by, (1 << QUOTIENT_BITS) / by + 1);
        CellsOf { width: factor(width), height: factor(height) }
    }

    fn place(&self, cell: u64) -> [u32; 3] {
        let split = |number: u64, (by, factor): (u64, u64)| {
            let quotient = (number * factor) >> QUOTIENT_BITS;
            (quotient, number - quotient * by)
        };
        let (row, x) = split(cell, self.width);
        let (z, y) = split(row, self.height);
        [z as u32, y as u32, x as u32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_split_as_divisions_would() {
        for dims in [[1, 496, 432], [1, 1, 1 << 18], [1 << 18, 1, 1], [1, 1 << 18, 1], [7, 61, 613]]
        {
            let grid = VoxelGrid::new(dims, [1.0; 3], [0.0; 3]).unwrap();
            let (cells_of, [_, height, width]) = (CellsOf::new(&grid), dims);
            for cell in 0..grid.voxels() as u32 {
                let want = [cell / width / height, cell / width % height, cell % width];
                assert_eq!(cells_of.place(cell.into()), want);
            }
        }
    }
}
