//! `plimsoll voxelize`: point clouds into voxel grids, whatever memory there is.
//!
//! The work is the library's ([`plimsoll_points::job`]); the verb turns flags into a job,
//! opens the backend, shows how far it is and times it. Ctrl-C ends it between two chunks and
//! leaves nothing behind.

mod answer;
mod flags;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use plimsoll::platform::system_memory;
use plimsoll::{Bytes, Error, MemoryConfig};
use plimsoll_points::backend::host::Host;
use plimsoll_points::backend::{Backend, Filled};
use plimsoll_points::job::{Job, Report};
use plimsoll_points::write::{GridFile, Sink, SparseFile};
use plimsoll_points::{BackendKind, Batch, Cells, Preview, Spec};

use answer::Made;
pub(crate) use flags::Args;

use crate::command::bench::{STOPPED, listen};
use crate::outcome::{OrBadInput, Outcome};
use crate::output::Output;

/// Makes the grids.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let batch = Batch::open(&args.input).or_bad_input(|| "the clouds cannot be read")?;
    let spec = args.spec(batch.features())?;
    let opened = open(args)?;
    let job = Job {
        batch: &batch,
        spec,
        backend: &*opened.backend,
        chunk: args.chunk.0,
        available: opened.available,
    };
    let preview = args.preview.as_ref().map(|_| Preview::new(spec.grid())).transpose()?;
    let file = File::create(args, &spec, &batch)?;
    let mut sink = Looking { file, preview, spec };
    let stop = Arc::new(AtomicBool::new(false));
    listen(&stop)?;
    let start = Instant::now();
    let report = work(&job, &mut sink, out, &stop);
    if stop.load(Ordering::Relaxed) && report.is_err() {
        crate::output::note("stopped; nothing was written");
        return Ok(Outcome::Code(STOPPED));
    }
    let report = report?;
    sink.file.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    if let (Some(preview), Some(path)) = (&sink.preview, &args.preview) {
        preview.write(path)?;
    }
    out.answer(&Made::new(args, &batch, &spec, &opened, &report, seconds))?;
    Ok(Outcome::Yes)
}

fn work(
    job: &Job<'_>,
    sink: &mut Looking,
    out: &Output,
    stop: &AtomicBool,
) -> plimsoll::Result<Report> {
    let mut line = out.progress();
    job.run(sink, &mut |done, total| {
        line.show(&format!("voxelize: {done} of {total} pieces"));
        !stop.load(Ordering::Relaxed)
    })
}

/// A backend, and what it may use.
struct Opened {
    backend: Box<dyn Backend>,
    available: Bytes,
    /// How that is known.
    source: String,
    /// Why it is not the one that was asked for first.
    doubt: Option<String>,
}

fn open(args: &Args) -> anyhow::Result<Opened> {
    let limit = args.limit.limit();
    match args.backend.0 {
        None | Some(BackendKind::Host) => host(limit),
        Some(other) => {
            Err(Error::Unavailable { what: format!("{other:?}"), why: "not built yet".to_string() }
                .into())
        }
    }
}

fn host(limit: Option<Bytes>) -> anyhow::Result<Opened> {
    let memory = system_memory(Path::new("/")).ok().and_then(|memory| memory.available);
    let keep = MemoryConfig::default().min_free_bytes;
    let (available, source) = match (limit, memory) {
        (Some(limit), Some(free)) if free.saturating_sub(keep) < limit => {
            (free.saturating_sub(keep), "sampled: MemAvailable, less than the limit")
        }
        (Some(limit), _) => (limit, "given"),
        (None, Some(free)) => (free.saturating_sub(keep), "sampled: MemAvailable less 512 MiB"),
        (None, None) => (Bytes::gib(1), "assumed: what is available cannot be read here"),
    };
    let backend = Box::new(Host::default());
    Ok(Opened { backend, available, source: source.to_string(), doubt: None })
}

/// The file of a result, dense or sparse.
enum File {
    Dense(GridFile),
    Sparse(SparseFile),
}

impl File {
    fn create(args: &Args, spec: &Spec, batch: &Batch) -> anyhow::Result<File> {
        let stacked = batch.is_stacked();
        if spec.cells() == Cells::Sparse {
            return Ok(File::Sparse(SparseFile::create(&args.out, spec, stacked)?));
        }
        if args.out.extension().is_none_or(|ending| ending != "npy") {
            return Err(Error::Config {
                field: "out",
                value: args.out.display().to_string(),
                range: "a name that ends in .npy",
            }
            .into());
        }
        let clouds = stacked.then(|| batch.clouds());
        Ok(File::Dense(GridFile::create(&args.out, spec, clouds)?))
    }

    fn sink(&mut self) -> &mut dyn Sink {
        match self {
            File::Dense(file) => file,
            File::Sparse(file) => file,
        }
    }

    fn finish(self) -> plimsoll::Result<()> {
        match self {
            File::Dense(file) => file.finish(),
            File::Sparse(file) => file.finish(),
        }
    }
}

/// Passes everything on to the file, and looks at the first cloud on the way.
struct Looking {
    file: File,
    preview: Option<Preview>,
    spec: Spec,
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
