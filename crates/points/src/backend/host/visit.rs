//! Going through points: which voxel each is in, or why it is in none.

use std::ops::Range;

use plimsoll_memory::Result;

use crate::backend::VoxelTally;
use crate::cloud::Cloud;
use crate::grid::VoxelGrid;
use crate::simd;
use crate::simd::place::{BLOCK, NOWHERE, SimdPlaces};

/// Floats that are read from a file at a time, where a point has no more: a call of the system for
/// each, and they stay in the second-level cache.
const READ: usize = 64 * BLOCK;

/// Points of so many floats that are read at a time.
fn at_once(stride: usize) -> usize {
    let points = (READ / stride.max(1)).max(1);
    if points < BLOCK { points } else { points / BLOCK * BLOCK }
}

/// What those are read to, where all who go through points have one: of so many points in all.
pub(super) fn buffer_bytes(points: u64, stride: usize, readers: usize) -> u64 {
    let most = (at_once(stride) as u64).saturating_mul(readers as u64);
    points.min(most).saturating_mul(4 * stride as u64)
}

/// Finds voxels of a grid, counted from the first of a piece.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    grid: &'a VoxelGrid,
    /// None for grids past 2³⁰ voxels, which are gone through one by one.
    places: Option<SimdPlaces>,
    voxels: Range<u64>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(grid: &'a VoxelGrid, voxels: Range<u64>) -> Finder<'a> {
        Finder { grid, places: SimdPlaces::new(grid), voxels }
    }

    /// Calls `hit(point, voxel)` for each of these points that is in the piece, in order, and
    /// counts those that are in no voxel of the grid.
    ///
    /// # Errors
    /// Those of [`Cloud::read`].
    pub(super) fn visit(
        &self,
        cloud: &Cloud,
        points: Range<usize>,
        mut hit: impl FnMut(usize, u64),
    ) -> Result<VoxelTally> {
        let mut tally = VoxelTally::default();
        let mut buffer = Vec::new();
        let at_once = at_once(cloud.stride());
        for start in points.clone().step_by(at_once) {
            let some = start..(start + at_once).min(points.end);
            let floats = cloud.read(some, &mut buffer)?;
            self.visit_some(floats, cloud.stride(), start, &mut hit, &mut tally);
        }
        Ok(tally)
    }

    /// The same for points that are in memory, of which the first has this number.
    fn visit_some(
        &self,
        floats: &[f32],
        stride: usize,
        first: usize,
        hit: &mut impl FnMut(usize, u64),
        tally: &mut VoxelTally,
    ) {
        let span = self.voxels.end - self.voxels.start;
        let mut seen = |point: usize, place: Option<u64>, point_floats: &[f32]| match place {
            Some(voxel) => {
                let voxel = voxel.wrapping_sub(self.voxels.start);
                if voxel < span {
                    hit(point, voxel);
                }
            }
            None if point_floats.iter().take(3).all(|value| value.is_finite()) => {
                tally.outside += 1
            }
            None => tally.not_finite += 1,
        };
        let Some(rule) = &self.places else {
            for (index, point) in floats.chunks_exact(stride).enumerate() {
                if let Some(&[x, y, z]) = point.get(..3) {
                    seen(first + index, self.grid.voxel([x, y, z]), &[x, y, z]);
                }
            }
            return;
        };
        let mut found = [0; BLOCK];
        for (number, block) in floats.chunks(BLOCK * stride).enumerate() {
            let found = &mut found[..block.len() / stride];
            simd::places(rule, block, stride, found);
            for (index, (place, point)) in found.iter().zip(block.chunks_exact(stride)).enumerate()
            {
                let place = (*place < NOWHERE).then_some(u64::from(*place));
                seen(first + number * BLOCK + index, place, point);
            }
        }
    }
}
