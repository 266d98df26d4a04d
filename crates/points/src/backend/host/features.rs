//! What the points of a voxel say together: means and maxima, and sparse results of any mode.
//!
//! Points are sorted by voxel and number. Each voxel is then a run of points in their own
//! order, so every thread gets the same result from it.

use plimsoll_memory::Result;
use rayon::prelude::*;

use super::room_for;
use super::visit::Finder;
use crate::backend::{Filled, VoxelPiece, VoxelTally};
use crate::cloud::Cloud;
use crate::reduce::{largest, mean};
use crate::spec::VoxelMode;

/// Whether a voxel and a point fit into one word.
fn is_small(points: u64, span: u64) -> bool {
    span <= 1 << 32 && points <= 1 << 32
}

/// What sorting takes: a key for each point, and a run for each voxel that has any.
pub(super) fn sorting_bytes(points: u64, span: u64) -> u64 {
    let key = if is_small(points, span) { size_of::<u64>() } else { size_of::<u128>() };
    let runs = points.min(span).saturating_mul(size_of::<&[u64]>() as u64);
    points.saturating_mul(key as u64).saturating_add(runs)
}

/// The voxels with points, and their values.
pub(super) fn filled(piece: &VoxelPiece<'_>, cloud: &Cloud) -> Result<(Filled, VoxelTally)> {
    if is_small(cloud.len() as u64, piece.span()) {
        gather(
            piece,
            cloud,
            |voxel, point| voxel << 32 | point as u64,
            |key: u64| (key >> 32, (key & 0xFFFF_FFFF) as usize),
        )
    } else {
        gather(
            piece,
            cloud,
            |voxel, point| u128::from(voxel) << 64 | point as u128,
            |key: u128| ((key >> 64) as u64, key as u64 as usize),
        )
    }
}

/// The dense form: features one after the other, each a grid.
pub(super) fn make(piece: &VoxelPiece<'_>, cloud: &Cloud, out: &mut [u32]) -> Result<VoxelTally> {
    let (filled, tally) = filled(piece, cloud)?;
    let features = piece.spec.planes() as usize;
    let span = usize::try_from(piece.span()).unwrap_or(usize::MAX).max(1);
    out.par_chunks_mut(span).enumerate().for_each(|(feature, plane)| {
        plane.fill(0);
        for (voxel, values) in filled.voxels.iter().zip(filled.values.chunks_exact(features)) {
            let place = voxel - piece.voxels.start;
            if let Some(cell) = plane.get_mut(place as usize) {
                *cell = values[feature].to_bits();
            }
        }
    });
    Ok(tally)
}

fn gather<K: Ord + Copy + Send + Sync>(
    piece: &VoxelPiece<'_>,
    cloud: &Cloud,
    pack: impl Fn(u64, usize) -> K,
    unpack: impl Fn(K) -> (u64, usize) + Sync,
) -> Result<(Filled, VoxelTally)> {
    let finder = Finder::new(piece.spec.grid(), piece.voxels.clone());
    // Of a slab most are elsewhere: they are counted first.
    let mut most = cloud.len();
    if piece.span() < piece.spec.grid().voxels() {
        most = 0;
        finder.visit(cloud, 0..cloud.len(), |_, _| most += 1)?;
    }
    let mut keys = room_for(most)?;
    let mut tally =
        finder.visit(cloud, 0..cloud.len(), |point, voxel| keys.push(pack(voxel, point)))?;
    // No two keys are equal, so there is one order and any sort finds it.
    keys.par_sort_unstable();
    let voxel = |key: K| unpack(key).0;
    let ends = keys.windows(2).filter(|two| voxel(two[0]) != voxel(two[1])).count();
    let occupied = ends + usize::from(!keys.is_empty());
    let mut runs: Vec<&[K]> = room_for(occupied)?;
    runs.extend(keys.chunk_by(|a, b| voxel(*a) == voxel(*b)));
    tally.occupied = occupied as u64;
    let values = match piece.spec.mode() {
        VoxelMode::Mean => per_feature(&runs, cloud, &unpack, mean)?,
        VoxelMode::Max => per_feature(&runs, cloud, &unpack, largest)?,
        VoxelMode::Occupancy | VoxelMode::Count => Vec::new(),
    };
    let (mut voxels, mut counts) = (room_for(occupied)?, room_for(occupied)?);
    let place = |run: &&[K]| run.first().map_or(0, |key| voxel(*key)) + piece.voxels.start;
    voxels.extend(runs.iter().map(place));
    counts.extend(runs.iter().map(|run| u32::try_from(run.len()).unwrap_or(u32::MAX)));
    Ok((Filled { voxels, counts, values }, tally))
}

fn per_feature<K: Copy + Sync>(
    runs: &[&[K]],
    cloud: &Cloud,
    unpack: &(impl Fn(K) -> (u64, usize) + Sync),
    of: impl Fn(&mut dyn Iterator<Item = f32>) -> f32 + Sync,
) -> Result<Vec<f32>> {
    let (floats, stride) = (cloud.floats()?, cloud.stride());
    let features = stride - 3;
    let mut values = room_for(runs.len() * features)?;
    values.resize(runs.len() * features, 0.0);
    values.par_chunks_mut(features).zip(runs).for_each(|(values, run)| {
        for (feature, value) in values.iter_mut().enumerate() {
            let mut all = run.iter().map(|key| floats[unpack(*key).1 * stride + 3 + feature]);
            *value = of(&mut all);
        }
    });
    Ok(values)
}
