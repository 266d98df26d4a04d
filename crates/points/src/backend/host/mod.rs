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
        one_cloud_bytes(spec, points, span, 1)
    }
}

/// What it takes to make so many voxels of a cloud, its points not counted: alone, where all
/// processors share it, or among so many.
pub(crate) fn one_cloud_bytes(spec: &VoxelSpec, points: u64, span: u64, clouds: u64) -> u64 {
    let parts = parts(usize::try_from(clouds).unwrap_or(usize::MAX));
    // A part of a grid has its share of the points, as far as anybody can know.
    let share = span as f64 / spec.grid().voxels() as f64;
    let sorted = match spec.cells() {
        Cells::Sparse => (points as f64 * share).ceil() as u64,
        _ => points,
    };
    let mut bytes = between(spec, points, sorted, span, parts);
    if spec.cells() == Cells::Sparse {
        let filled = Filled::bytes_of(sorted.min(span), spec.features() as u64);
        bytes = bytes.saturating_add(filled);
    }
    bytes.saturating_add(spec.cloud_bytes(span))
}

/// What lies between the points of a cloud and so many voxels; `sorted` points are of these.
fn between(spec: &VoxelSpec, points: u64, sorted: u64, span: u64, parts: usize) -> u64 {
    match (spec.mode(), spec.cells()) {
        (_, Cells::Sparse) => features::sorting_bytes(sorted, span),
        (VoxelMode::Occupancy, _) => occupancy::bytes_between(points, span, parts),
        (VoxelMode::Count, _) if parts == 1 => 0,
        (VoxelMode::Count, _) => counts::bytes_between(points),
        (VoxelMode::Mean | VoxelMode::Max, _) => {
            let filled = Filled::bytes_of(sorted.min(span), spec.features() as u64);
            features::sorting_bytes(sorted, span).saturating_add(filled)
        }
    }
}

/// What lies between the points and the voxels of a piece while it is made: at most, as if all
/// clouds that are made at once were as long as the longest. Of a sparse result it is known how many
/// points were sorted.
pub(crate) fn bytes_between(piece: &VoxelPiece<'_>, filled: &[Filled]) -> u64 {
    let (spec, span, parts) = (piece.spec, piece.span(), parts(piece.clouds.len()));
    let points = piece.clouds.iter().map(|cloud| cloud.len() as u64).max().unwrap_or(0);
    let inside = |filled: &Filled| filled.counts.iter().map(|count| u64::from(*count)).sum();
    let sorted = match spec.cells() {
        Cells::Sparse => filled.iter().map(inside).max().unwrap_or(0),
        _ => points,
    };
    let at_once = piece.clouds.len().min(rayon::current_num_threads()) as u64;
    let between = between(spec, points, sorted, span, parts).saturating_mul(at_once);
    between.saturating_add(read_bytes(piece))
}

/// What is read of clouds that stay in their files: all of those whose features are gone through by
/// voxel, and of others what each processor goes through.
fn read_bytes(piece: &VoxelPiece<'_>) -> u64 {
    let in_file = piece.clouds.iter().filter(|cloud| cloud.bytes_in_memory() == 0);
    let (mut points, mut stride, mut whole) = (0u64, 0, 0u64);
    for cloud in in_file {
        points = points.saturating_add(cloud.len() as u64);
        stride = stride.max(cloud.stride());
        whole = whole.saturating_add(cloud.len() as u64 * cloud.stride() as u64 * 4);
    }
    let passing = passing_bytes(points, stride);
    if piece.spec.mode().of_features() { passing.saturating_add(whole) } else { passing }
}

/// What so many points of so many floats are read to in passing.
pub(crate) fn passing_bytes(points: u64, stride: usize) -> u64 {
    visit::buffer_bytes(points, stride, rayon::current_num_threads())
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
