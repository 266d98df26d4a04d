//! `plimsoll voxelize`: point clouds into voxel grids, whatever memory there is.
//!
//! The work is the library's ([`plimsoll_points::job`]); the verb turns flags into a job,
//! opens the backend, shows how far it is and times it. Ctrl-C ends it while it reads, or between
//! two pieces, and leaves nothing behind.

mod answer;
mod extent;
mod flags;
mod hard;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use plimsoll::Error;
use plimsoll_points::backend::{Filled, cuda};
use plimsoll_points::job::{VoxelJob, VoxelReport};
use plimsoll_points::open::{self, VoxelizeBackend};
use plimsoll_points::write::{GridFile, Sink, SparseFile};
use plimsoll_points::{Batch, Cells, Preview, VoxelGrid, VoxelSpec};

use answer::{CompiledKernels, VoxelizeAnswer};
use extent::CloudExtent;
pub(crate) use flags::Args;

use crate::outcome::{OrBadInput, Outcome};
use crate::output::{Output, ProgressLine};
use crate::output_conflicts;
use crate::stop::{STOPPED, listen};

/// Makes the grids.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    if let Some(folder) = &args.compile_kernels {
        let mut files = cuda::compile_kernels(folder, &args.target, &args.features)?;
        if let Some(spec) = args.hard(false)? {
            let features = if args.features.is_empty() { &[0][..] } else { &args.features };
            for features in features {
                let hard = cuda::compile_hard_kernels(folder, &args.target, &spec, *features)?;
                files.extend(hard);
            }
        }
        let folder = folder.display().to_string();
        out.answer(&CompiledKernels { folder, target: args.target.clone(), files })?;
        return Ok(Outcome::Yes);
    }
    if let Some(outcome) = hard::run(args, out)? {
        return Ok(outcome);
    }
    // Clap has seen to it that something is wanted.
    let Some(wanted) = args.wanted()? else { return Ok(Outcome::Code(2)) };
    let stop = Arc::new(AtomicBool::new(false));
    let batch = Batch::open_all(wanted.input).or_bad_input(|| "the clouds cannot be read")?;
    let batch = batch.stopped_by(&stop);
    let spec = args.spec(&wanted, &batch)?;
    check_apart(args, wanted.out, &batch)?;
    let opened = open::open(args.backend.0, args.limit.limit())?;
    let job = job(args, &batch, spec, &opened);
    let preview =
        args.preview.as_ref().map(|path| Preview::create(path, spec.grid())).transpose()?;
    let file = VoxelizeFile::create(wanted.out, &spec, &batch)?;
    let mut sink = Looking { file, preview, spec };
    listen(&stop)?;
    let start = Instant::now();
    let line = out.progress();
    let report = open::with_threads(|| work(&job, &mut sink, line, &stop));
    if stop.load(Ordering::Relaxed) && report.is_err() {
        crate::output::note("stopped; nothing was written");
        return Ok(Outcome::Code(STOPPED));
    }
    let report = report?;
    sink.file.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(preview) = sink.preview {
        preview.finish()?;
    }
    let mut answer = VoxelizeAnswer::new(args, &job, &opened, &report, seconds);
    if answer.lost().are_most() {
        answer.extent = extent_of(&batch, spec.grid(), &stop)?;
    }
    out.answer(&answer)?;
    Ok(Outcome::Yes)
}

/// What the flags say of the work, whatever is made.
fn job<'a, S>(
    args: &Args,
    batch: &'a Batch,
    spec: S,
    opened: &'a VoxelizeBackend,
) -> VoxelJob<'a, S> {
    VoxelJob {
        batch,
        spec,
        backend: &*opened.backend,
        or_host: args.backend.0.is_none(),
        chunk: args.chunk.0,
        available: opened.available,
        room: opened.room,
    }
}

/// Where the points lie, now that the result is there; nothing where nobody waits for it any more.
fn extent_of(
    batch: &Batch,
    grid: &VoxelGrid,
    stop: &AtomicBool,
) -> plimsoll::Result<Option<CloudExtent>> {
    let [depth, height, width] = grid.dims();
    match CloudExtent::of(batch, [width, height, depth]) {
        Err(_) if stop.load(Ordering::Relaxed) => Ok(None),
        found => found,
    }
}

fn check_apart(args: &Args, out: &Path, batch: &Batch) -> anyhow::Result<()> {
    let preview = args.preview.iter().map(|path| ("--preview", path.clone()));
    let outputs: Vec<_> = [("--out", out.to_path_buf())].into_iter().chain(preview).collect();
    output_conflicts::check(&outputs, || {
        batch.paths().map(|path| ("one of the clouds", path.to_path_buf()))
    })
}

fn work(
    job: &VoxelJob<'_>,
    sink: &mut Looking,
    mut line: ProgressLine,
    stop: &AtomicBool,
) -> plimsoll::Result<VoxelReport> {
    job.run(sink, &mut |done, total| {
        line.show_part(&format!("voxelize: {done} of {total} pieces"), done, total);
        !stop.load(Ordering::Relaxed)
    })
}

/// The file of a result, dense or sparse.
enum VoxelizeFile {
    Dense(GridFile),
    Sparse(SparseFile),
}

impl VoxelizeFile {
    fn create(out: &Path, spec: &VoxelSpec, batch: &Batch) -> anyhow::Result<VoxelizeFile> {
        let stacked = batch.is_stacked();
        if spec.cells() == Cells::Sparse {
            return Ok(VoxelizeFile::Sparse(SparseFile::create(out, spec, stacked)?));
        }
        if out.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("npy")) {
            return Err(Error::Config {
                field: "out",
                value: out.display().to_string(),
                range: "a name that ends in .npy",
            }
            .into());
        }
        let clouds = stacked.then(|| batch.clouds());
        Ok(VoxelizeFile::Dense(GridFile::create(out, spec, clouds)?))
    }

    fn sink(&mut self) -> &mut dyn Sink {
        match self {
            VoxelizeFile::Dense(file) => file,
            VoxelizeFile::Sparse(file) => file,
        }
    }

    fn finish(self) -> plimsoll::Result<()> {
        match self {
            VoxelizeFile::Dense(file) => file.finish(),
            VoxelizeFile::Sparse(file) => file.finish(),
        }
    }
}

/// Passes everything on to the file, and looks at the first cloud on the way.
struct Looking {
    file: VoxelizeFile,
    preview: Option<Preview>,
    spec: VoxelSpec,
}

impl Sink for Looking {
    fn dense(&mut self, at: u64, bytes: &[u8]) -> plimsoll::Result<()> {
        if let Some(preview) = &mut self.preview {
            let plane = self.spec.plane_bytes(self.spec.grid().voxels());
            if at < plane {
                let own = bytes.len().min(usize::try_from(plane - at).unwrap_or(usize::MAX));
                // Slabs begin with a whole byte, and numbers have whole ones.
                let first = match self.spec.cells() {
                    Cells::Bits => at * 8,
                    Cells::U8 => at,
                    _ => at / 4,
                };
                preview.see_dense(&self.spec, first, &bytes[..own]);
            }
        }
        self.file.sink().dense(at, bytes)
    }

    fn sparse(&mut self, cloud: u64, filled: &Filled) -> plimsoll::Result<()> {
        if cloud == 0
            && let Some(preview) = &mut self.preview
        {
            preview.see_filled(filled);
        }
        self.file.sink().sparse(cloud, filled)
    }
}
