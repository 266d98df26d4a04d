//! Hard voxels in one pass by one thread: of small clouds, and of all where threads are few.
//!
//! Each point is written where it belongs as soon as its cell is known, and a voxel is cleared when
//! its first point comes. Voxels are so written in order, and later points find theirs in a cache.

use plimsoll_memory::Result;

use super::group;
use super::places::{CellPlaces, HashedPlaces, VoxelPlaces};
use super::{HardSlices, HardSpec};
use crate::grid::VoxelGrid;
use crate::simd;
use crate::simd::place::{BLOCK, SimdPlaces};

/// Cells up to which a grid has a place for each: a megabyte of them.
const DENSE: u64 = 1 << 18;
/// What these places take.
pub(super) const DENSE_BYTES: u64 = DENSE * size_of::<u32>() as u64;

/// Processors up to which one of them makes a large cloud in one pass sooner than all of them do
/// together in several.
const FEW_THREADS: usize = 2;

/// What is known of the cells, kept from one cloud to the next.
#[derive(Debug, Default)]
pub(super) struct DirectVoxels {
    dense: CellPlaces,
    hashed: HashedPlaces,
}

/// Whether one pass is the way for a cloud of so many points.
pub(super) fn is_quickest(points: usize) -> bool {
    let few = || points <= HashedPlaces::VOXELS && rayon::current_num_threads() <= FEW_THREADS;
    group::is_small(points) || few()
}

/// One cloud: what is to be made of it, as many floats of each point, and its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectCloud<'c> {
    pub(super) rule: &'c SimdPlaces,
    pub(super) spec: &'c HardSpec,
    pub(super) floats: &'c [f32],
    pub(super) columns: usize,
    pub(super) number: usize,
}

impl DirectVoxels {
    /// Makes the voxels of a cloud; gives how many there are, or nothing where there is no room.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](plimsoll_memory::Error::OutOfMemory) where there is none to work in.
    pub(super) fn run(
        &mut self,
        cloud: DirectCloud<'_>,
        to: HardSlices<'_>,
    ) -> Result<Option<usize>> {
        let spec = cloud.spec;
        let points = cloud.floats.len() / cloud.columns;
        let (cells, voxels) = (spec.grid().voxels(), spec.most_voxels(points as u64) as usize);
        if cells <= DENSE && voxels <= CellPlaces::VOXELS {
            self.dense.clear(cells as usize)?;
            Ok(run_in(&mut self.dense, cloud, to))
        } else {
            self.hashed.clear(voxels)?;
            Ok(run_in(&mut self.hashed, cloud, to))
        }
    }
}

/// The same with places where nothing is known yet.
fn run_in(
    places: &mut impl VoxelPlaces,
    cloud: DirectCloud<'_>,
    to: HardSlices<'_>,
) -> Option<usize> {
    // Copies of a known length are a few instructions, others are calls.
    match cloud.columns {
        3 => run_sized::<3>(places, cloud, to),
        4 => run_sized::<4>(places, cloud, to),
        5 => run_sized::<5>(places, cloud, to),
        _ => run_sized::<0>(places, cloud, to),
    }
}

/// The same for points of `C` columns, or of any number of them where `C` is 0.
fn run_sized<const C: usize>(
    places: &mut impl VoxelPlaces,
    cloud: DirectCloud<'_>,
    to: HardSlices<'_>,
) -> Option<usize> {
    let columns = if C == 0 { cloud.columns } else { C };
    let spec = cloud.spec;
    let each = spec.max_points() as usize * columns;
    let (grid, most) = (spec.grid(), spec.max_voxels() as usize);
    let rooms = to.capacity(spec, columns);
    let HardSlices { voxels, coordinates, num_points } = to;
    let cells_of = CellsOf::new(grid);
    let (mut made, mut cells) = (0, [0; BLOCK]);
    for block in cloud.floats.chunks(BLOCK * columns) {
        let cells = &mut cells[..block.len() / columns];
        simd::places(cloud.rule, block, columns, cells);
        cells.iter().for_each(|cell| places.fetch(*cell));
        for (cell, point) in cells.iter().zip(block.chunks_exact(columns)) {
            let voxel = match places.get(*cell) {
                Some(voxel) => voxel,
                None if u64::from(*cell) >= grid.voxels() || made == most => continue,
                None if made == rooms => return None,
                None => {
                    places.set(*cell, made);
                    voxels[made * each..][..each].fill(0.0);
                    num_points[made] = 0;
                    let width = spec.form().columns();
                    let to = &mut coordinates[made * width..][..width];
                    spec.form().write(cloud.number, Some(cells_of.place(*cell)), to);
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

/// From the number of a cell back to z, y and x, by multiplications: divisions take longer.
#[derive(Debug, Clone, Copy)]
struct CellsOf {
    width: (u64, u64),
    height: (u64, u64),
}

/// With this many bits, quotients are exact where number and divisor together have no more: the
/// factor is too large by less than the divisor, so the product by less than both multiplied.
const QUOTIENT_BITS: u32 = 60;

impl CellsOf {
    /// For a grid of at most 2³⁰ cells.
    fn new(grid: &VoxelGrid) -> CellsOf {
        let [_, height, width] = grid.dims().map(u64::from);
        let factor = |by: u64| (by, (1 << QUOTIENT_BITS) / by + 1);
        CellsOf { width: factor(width), height: factor(height) }
    }

    fn place(&self, cell: u32) -> [u32; 3] {
        let split = |number: u64, (by, factor): (u64, u64)| {
            let quotient = ((u128::from(number) * u128::from(factor)) >> QUOTIENT_BITS) as u64;
            (quotient, number - quotient * by)
        };
        let (row, x) = split(cell.into(), self.width);
        let (z, y) = split(row, self.height);
        [z as u32, y as u32, x as u32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_split_as_divisions_would() {
        for dims in [
            [1, 496, 432],
            [1, 1, 1 << 18],
            [1 << 18, 1, 1],
            [1, 1 << 18, 1],
            [7, 61, 613],
            [40, 1600, 1408],
            [1, 1, 1 << 23],
            [1 << 10, 1 << 10, 1 << 10],
            [128, 1, 1 << 23],
            [3, 32_767, 10_921],
        ] {
            let grid = VoxelGrid::new(dims, [1.0; 3], [0.0; 3]).unwrap();
            let (cells_of, [_, height, width]) = (CellsOf::new(&grid), dims);
            let cells = grid.voxels() as u32;
            // All of a small grid; and the first and last of a large one's, with some between.
            let step = (cells / (1 << 18)).max(1);
            for cell in (0..cells).step_by(step as usize).chain(cells.saturating_sub(5000)..cells) {
                let want = [cell / width / height, cell / width % height, cell % width];
                assert_eq!(cells_of.place(cell), want);
            }
        }
    }
}
