//! The host: all processors, and no more memory than the result and a bit a voxel.
//!
//! Occupancy marks a bit for every voxel first. The bits of a 128³ grid are 256 KiB and stay in
//! a core's own cache, where a mark costs a few cycles; each processor that shares a cloud has
//! bits of its own, so none waits for another. Then the bits are spread into the output, which
//! is written once, from first to last. Places in larger grids are sorted into buckets first,
//! whose bits do stay there.
//!
//! Counts go straight into the output, each processor for its own voxels. Features are
//! sorted by voxel and point, so that every sum runs in the order of points.

mod counts;
mod features;
pub(in crate::backend) mod occupancy;
mod visit;

use plimsoll_memory::{Error, Result};
use rayon::prelude::*;

use super::{Filled, VoxelBackend, VoxelPiece, VoxelTally, check_features};
use crate::cloud::Cloud;
use crate::network::{HardHost, HardSpec, HardVoxels, PointBatch};
use crate::room::refused;
use crate::spec::{Cells, VoxelMode, VoxelSpec};

/// This machine's processors.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct VoxelHost {}

impl VoxelBackend for VoxelHost {
    fn name(&self) -> String {
        "host".to_string()
    }

    fn dense(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally> {
        check_features(piece)?;
        let each = usize::try_from(piece.spec.cloud_bytes(piece.span())).unwrap_or(usize::MAX);
        if out.len() as u64 != piece.bytes() || each == 0 {
            return Err(Error::Config {
                field: "out",
                value: format!("{} bytes", out.len()),
                range: "as many bytes as the dense piece has",
            });
        }
        let parts = parts(piece.clouds.len());
        let made = piece.clouds.par_iter().zip(out.par_chunks_mut(each)).map(|(cloud, out)| {
            let mut tally = one(piece, cloud, out, parts)?;
            tally.points = cloud.len() as u64;
            Ok(tally)
        });
        let made: Result<Vec<VoxelTally>> = made.collect();
        Ok(made?.into_iter().sum())
    }

    fn sparse(&self, piece: &VoxelPiece<'_>) -> Result<(Vec<Filled>, VoxelTally)> {
        check_features(piece)?;
        let made: Result<Vec<(Filled, VoxelTally)>> = piece
            .clouds
            .par_iter()
            .map(|cloud| {
                let (filled, mut tally) = features::filled(piece, cloud)?;
                tally.points = cloud.len() as u64;
                Ok((filled, tally))
            })
            .collect();
        let made = made?;
        let tally = made.iter().map(|(_, tally)| *tally).sum();
        Ok((made.into_iter().map(|(filled, _)| filled).collect(), tally))
    }

    fn hard(&self, batch: &PointBatch<'_>, spec: &HardSpec, made: &mut HardVoxels) -> Result<()> {
        HardHost::new(*spec).run(batch, made)
    }

    fn hard_bytes(&self, _: &HardSpec, _: usize, points: u64) -> u64 {
        HardHost::working_bytes(points)
    }

    fn working_bytes(&self, spec: &VoxelSpec, points: u64, span: u64) -> u64 {
        let sorted = |points: u64| {
            let filled = Filled::bytes_of(points.min(span), spec.features() as u64);
            features::sorting_bytes(points, span).saturating_add(filled)
        };
        let between = match (spec.cells(), spec.mode()) {
            // A part of a grid has its share of the points, as far as anybody can know.
            (Cells::Sparse, _) => {
                let share = span as f64 / spec.grid().voxels() as f64;
                sorted((points as f64 * share).ceil() as u64)
            }
            (_, VoxelMode::Occupancy) => occupancy::working_bytes(points, span),
            (_, VoxelMode::Count) => counts::bytes_between(points),
            (_, VoxelMode::Mean | VoxelMode::Max) => sorted(points),
        };
        between.saturating_add(spec.cloud_bytes(span))
    }
}

/// What lies between the points and the voxels of a piece while it is made: at most, as if all
/// clouds that are made at once were as long as the longest.
pub(crate) fn bytes_between(piece: &VoxelPiece<'_>) -> u64 {
    let (spec, span, parts) = (piece.spec, piece.span(), parts(piece.clouds.len()));
    let points = piece.clouds.iter().map(|cloud| cloud.len() as u64).max().unwrap_or(0);
    let one = match (spec.mode(), spec.cells()) {
        (_, Cells::Sparse) => features::sorting_bytes(points, span),
        (VoxelMode::Occupancy, _) => occupancy::bytes_between(points, span, parts),
        (VoxelMode::Count, _) if parts == 1 => 0,
        (VoxelMode::Count, _) => counts::bytes_between(points),
        (VoxelMode::Mean | VoxelMode::Max, _) => {
            let filled = Filled::bytes_of(points.min(span), spec.features() as u64);
            features::sorting_bytes(points, span).saturating_add(filled)
        }
    };
    one.saturating_mul(piece.clouds.len().min(rayon::current_num_threads()) as u64)
}

/// Into how many parts a cloud is cut: one where there are clouds enough for everybody.
fn parts(clouds: usize) -> usize {
    let workers = rayon::current_num_threads();
    if clouds >= workers { 1 } else { workers }
}

/// An empty list with room for this many, or the refusal that a smaller piece may not meet.
fn room_for<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
    list.try_reserve_exact(count).map_err(|_| refused(bytes))?;
    Ok(list)
}

fn one(piece: &VoxelPiece<'_>, cloud: &Cloud, out: &mut [u8], parts: usize) -> Result<VoxelTally> {
    match (piece.spec.mode(), piece.spec.cells()) {
        (VoxelMode::Occupancy, _) => occupancy::make(piece, cloud, out, parts),
        (VoxelMode::Count, cells) => {
            counts::make(piece, cloud, numbers(out)?, parts, cells == Cells::F32)
        }
        (VoxelMode::Mean | VoxelMode::Max, _) => features::make(piece, cloud, numbers(out)?),
    }
}

/// The output as numbers of four bytes.
fn numbers(out: &mut [u8]) -> Result<&mut [u32]> {
    bytemuck::try_cast_slice_mut(out).map_err(|_| Error::Config {
        field: "out",
        value: "bytes that do not lie as numbers do".to_string(),
        range: "aligned to four bytes",
    })
}
