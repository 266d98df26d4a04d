//! The whole work: a batch, cut so that each piece fits, until every voxel is written.
//!
//! The plan is made from what one cloud takes and what is free now. Where not even one cloud
//! fits, its grid is cut into slabs. Where memory is refused all the same, the chunk is halved
//! and nothing is done twice; an item that does not fit even alone is made on the host, and in
//! smaller slabs where the host refuses it too. A device without kernels for the work, where
//! any will do, leaves all of it to the host. None of this can be seen in the result.

mod hard;
mod plan;

use std::ops::Range;

use plimsoll_memory::{AdaptiveRunner, Bytes, Error, Result};

use crate::backend::host::{VoxelHost, bytes_between};
use crate::backend::{Filled, VoxelBackend, VoxelPiece, VoxelTally, zeroed_words};
use crate::cloud::interrupted;
use crate::read::Batch;
use crate::spec::{Cells, VoxelSpec};
use crate::write::Sink;

pub use hard::{HardJob, HardReport, HardSink};
pub use plan::Cut;

/// What to make, and within what: grids, or what another `spec` says.
pub struct VoxelJob<'a, S = VoxelSpec> {
    /// The clouds.
    pub batch: &'a Batch,
    /// What is made of each.
    pub spec: S,
    /// Who makes it.
    pub backend: &'a dyn VoxelBackend,
    /// Whether the host does the work where the backend has no kernels for it: nobody asked
    /// for this one.
    pub or_host: bool,
    /// Clouds of a chunk at most; by the plan where none is given.
    pub chunk: Option<u64>,
    /// What the backend may use of the memory that it works in.
    pub available: Bytes,
    /// What may be used of the host's, where results wait to be written.
    pub room: Bytes,
}

/// What the work came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VoxelReport {
    /// What was seen.
    pub tally: VoxelTally,
    /// Who made it: the backend of the job, or the host where that made all in its stead.
    pub backend: String,
    /// How the work was cut, in the end.
    pub cut: Cut,
    /// Chunks that were made.
    pub chunks: u64,
    /// Times that memory was refused and a chunk was halved.
    pub retries: u64,
    /// Why some of it was made on the host after all.
    pub fallback: Option<String>,
    /// The most that was held at once for points, results and, at most, what lies between.
    pub peak_bytes: u64,
}

/// Told after each chunk: items done, items in all. `false` ends the work.
pub type VoxelProgress<'p> = &'p mut dyn FnMut(u64, u64) -> bool;

impl VoxelJob<'_> {
    /// Does all of it.
    ///
    /// # Errors
    ///
    /// What reading, making or writing ended with; [`Error::Device`] where `progress` ended it.
    pub fn run(&self, sink: &mut dyn Sink, progress: VoxelProgress<'_>) -> Result<VoxelReport> {
        let mut work = VoxelWork::new(self, sink, progress)?;
        let (mut done, mut chunks, mut retries, mut on_host) = (0, 0, 0, 0);
        let (host, mut backend) = (VoxelHost::default(), self.backend);
        let mut fallback = self.backend.left_to_host(&self.spec, self.spec.grid().voxels());
        while done < work.total() {
            let (total, size) = (work.total(), work.cut.at_once());
            let chunk =
                |items: Range<u64>| work.chunk(backend, done + items.start..done + items.end);
            let run =
                AdaptiveRunner::new(size).run_by(total - done, chunk, Error::is_out_of_memory);
            let failure = match run {
                Ok(report) => {
                    chunks += report.chunks;
                    retries += report.halvings;
                    break;
                }
                Err(failure) => failure,
            };
            chunks += failure.report.chunks;
            retries += failure.report.halvings;
            done += failure.report.items;
            let mut error = failure.error;
            let on_device = backend.name() != "host";
            if on_device && self.or_host && matches!(error, Error::Unavailable { .. }) {
                fallback = Some(format!("the host took over from {}: {error}", backend.name()));
                backend = &host;
                continue;
            }
            if on_device && failure.full_now {
                let refused = format!("{} refused item {done}: {error}", backend.name());
                match work.chunk(&host, done..done + 1) {
                    Ok(()) => {
                        fallback = Some(refused);
                        (done, chunks, on_host) = (done + 1, chunks + 1, on_host + 1);
                        continue;
                    }
                    Err(other) => error = other,
                }
            }
            match work.cut.halved(&self.spec, done) {
                Some((cut, at)) if error.is_out_of_memory() => {
                    tracing::info!(%error, slabs = cut.slabs, "the work is cut into smaller slabs");
                    (work.cut, done, retries) = (cut, at, retries + 1);
                }
                _ => return Err(error),
            }
        }
        let all_on_host = on_host > 0 && on_host == work.total();
        let VoxelWork { cut, tally, peak, .. } = work;
        Ok(VoxelReport {
            tally,
            backend: if all_on_host { host.name() } else { backend.name() },
            cut,
            chunks,
            retries,
            fallback,
            peak_bytes: peak,
        })
    }
}

/// An error where the work is to end.
fn go_on(go_on: bool) -> Result<()> {
    if go_on { Ok(()) } else { Err(interrupted()) }
}

/// The work as far as it is done.
struct VoxelWork<'w> {
    job: &'w VoxelJob<'w>,
    cut: Cut,
    sink: &'w mut dyn Sink,
    progress: VoxelProgress<'w>,
    tally: VoxelTally,
    peak: u64,
    /// What the points of the chunk take.
    points: u64,
    /// Where results wait to be written, from one chunk to the next: fresh memory costs more
    /// than writing it.
    room: Vec<u64>,
}

impl<'w> VoxelWork<'w> {
    fn new(
        job: &'w VoxelJob<'w>,
        sink: &'w mut dyn Sink,
        progress: VoxelProgress<'w>,
    ) -> Result<VoxelWork<'w>> {
        let (cut, tally, room) = (job.cut()?, VoxelTally::default(), Vec::new());
        Ok(VoxelWork { job, cut, sink, progress, tally, peak: 0, points: 0, room })
    }

    fn total(&self) -> u64 {
        self.job.batch.clouds() * self.cut.slabs
    }

    fn chunk(&mut self, backend: &dyn VoxelBackend, items: Range<u64>) -> Result<()> {
        let slabs = self.cut.slabs;
        let clouds = items.start / slabs..(items.end - 1) / slabs + 1;
        let slab = items.start % slabs;
        let all = self.job.spec.grid().voxels();
        let start = slab * self.cut.slab_voxels;
        let voxels = start..if slabs == 1 { all } else { all.min(start + self.cut.slab_voxels) };
        let of_features = self.job.spec.mode().of_features();
        let loaded = self.job.batch.load(clouds.clone(), of_features)?;
        let held = self.job.batch.loaded(of_features);
        self.points = held.held_by(&loaded);
        self.peak = self.peak.max(self.points.saturating_add(held.beside));
        let piece = VoxelPiece { clouds: &loaded, spec: &self.job.spec, voxels };
        let mut tally = match self.job.spec.cells() {
            Cells::Sparse => self.sparse(backend, &piece, clouds.start)?,
            _ => self.dense(backend, &piece, clouds.start)?,
        };
        if slab > 0 {
            // The points were counted with the first slab.
            tally = VoxelTally { points: 0, not_finite: 0, outside: 0, ..tally };
        }
        self.tally += tally;
        let total = self.total();
        go_on((self.progress)(items.end, total))
    }

    fn dense(
        &mut self,
        backend: &dyn VoxelBackend,
        piece: &VoxelPiece<'_>,
        first: u64,
    ) -> Result<VoxelTally> {
        let spec = &self.job.spec;
        let whole = spec.plane_bytes(spec.grid().voxels());
        let is_whole = piece.voxels == (0..spec.grid().voxels());
        let start = first.saturating_mul(whole).saturating_mul(spec.planes());
        self.hold(piece, piece.bytes(), &[]);
        if is_whole && let Some(out) = self.sink.in_place(start, piece.bytes()) {
            return backend.dense(piece, out);
        }
        if (self.room.len() as u64) < piece.bytes().div_ceil(8) {
            self.room = Vec::new();
            self.room = zeroed_words(piece.bytes())?;
        }
        let out: &mut [u8] = bytemuck::cast_slice_mut(&mut self.room);
        let out = out.get_mut(..piece.bytes() as usize).unwrap_or_default();
        let tally = backend.dense(piece, out)?;
        if is_whole {
            self.sink.dense(start, out)?;
            return Ok(tally);
        }
        let own = spec.plane_bytes(piece.span()) as usize;
        for (plane, bytes) in out.chunks_exact(own.max(1)).enumerate() {
            let plane = first * spec.planes() + plane as u64;
            let at =
                plane.saturating_mul(whole).saturating_add(spec.plane_bytes(piece.voxels.start));
            self.sink.dense(at, bytes)?;
        }
        Ok(tally)
    }

    fn sparse(
        &mut self,
        backend: &dyn VoxelBackend,
        piece: &VoxelPiece<'_>,
        first: u64,
    ) -> Result<VoxelTally> {
        let (filled, tally) = backend.sparse(piece)?;
        let rows = filled.iter().map(|filled| filled.voxels.len() as u64).sum();
        self.hold(piece, Filled::bytes_of(rows, self.job.spec.features() as u64), &filled);
        for (index, filled) in filled.iter().enumerate() {
            self.sink.sparse(first + index as u64, filled)?;
        }
        Ok(tally)
    }

    /// Counts what a piece took: its points, the result, and what lies between.
    fn hold(&mut self, piece: &VoxelPiece<'_>, result: u64, filled: &[Filled]) {
        let made = result.saturating_add(bytes_between(piece, filled));
        self.peak = self.peak.max(self.points.saturating_add(made));
    }
}

#[cfg(test)]
mod tests;
