//! How many points a voxel has.

use std::ops::Range;

use plimsoll_memory::Result;
use rayon::prelude::*;

use super::room_for;
use super::visit::Finder;
use crate::backend::{VoxelPiece, VoxelTally};
use crate::cloud::Cloud;

/// Points that are shared at a time.
const ROUND: usize = 1 << 19;

/// What it takes where a cloud is shared: the voxel of every point of a round.
pub(super) fn bytes_between(points: u64) -> u64 {
    points.min(ROUND as u64) * size_of::<u64>() as u64
}

pub(super) fn make(
    piece: &VoxelPiece<'_>,
    cloud: &Cloud,
    out: &mut [u32],
    parts: usize,
    as_floats: bool,
) -> Result<VoxelTally> {
    let finder = Finder::new(piece.spec.grid(), piece.voxels.clone());
    out.fill(0);
    let mut tally = VoxelTally::default();
    for start in (0..cloud.len()).step_by(ROUND) {
        let points = start..(start + ROUND).min(cloud.len());
        // Who has no room to share counts alone.
        let together = (parts > 1).then(|| shared(&finder, cloud, points.clone(), out, parts).ok());
        tally += match together.flatten() {
            Some(tally) => tally,
            None => finder.visit(cloud, points, |_, voxel| {
                let count = &mut out[voxel as usize];
                *count = count.saturating_add(1);
            })?,
        };
    }
    let finished = out.par_iter_mut().map(|count| {
        let occupied = u64::from(*count > 0);
        if as_floats {
            *count = (*count as f32).to_bits();
        }
        occupied
    });
    tally.occupied = finished.sum();
    Ok(tally)
}

/// Voxels are found by everybody; then each counts those that are his own.
fn shared(
    finder: &Finder<'_>,
    cloud: &Cloud,
    points: Range<usize>,
    out: &mut [u32],
    parts: usize,
) -> Result<VoxelTally> {
    let share = points.len().div_ceil(parts).max(1);
    let found: Result<Vec<(Vec<u64>, VoxelTally)>> = (0..parts)
        .into_par_iter()
        .map(|part| {
            let start = (points.start + part * share).min(points.end);
            let points = start..(start + share).min(points.end);
            let mut voxels = room_for(points.len())?;
            let tally = finder.visit(cloud, points, |_, voxel| voxels.push(voxel))?;
            Ok((voxels, tally))
        })
        .collect();
    let found = found?;
    let own = out.len().div_ceil(parts).max(1);
    out.par_chunks_mut(own).enumerate().for_each(|(part, counts)| {
        let first = (part * own) as u64;
        for voxel in found.iter().flat_map(|(voxels, _)| voxels) {
            if let Some(count) = counts.get_mut(voxel.wrapping_sub(first) as usize) {
                *count = count.saturating_add(1);
            }
        }
    });
    Ok(found.into_iter().map(|(_, tally)| tally).sum())
}
