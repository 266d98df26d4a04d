//! The main job: up to two detectors on frames, measured.
//!
//! ```text
//! BenchPlan ──→ SlotJob per slot ──→ measured loop ──events──→ Recorder ──→ BenchRecord, files
//!                             (its own thread)          (the caller's thread)
//! ```
//!
//! The measured thread does as little as can be done: it takes a frame that was decoded
//! ahead, steps the pipeline with a stopwatch, looks at the memory once, and sends what it
//! saw. Everything that takes time (statistics, JSON, reports, progress) is done by the
//! recorder, which runs on the thread that called [`run`] and owns all figures, so that
//! there is no lock between measuring and writing.
//!
//! Slots take turns, with one model in memory at a time, or run at once on a thread each.
//! What goes wrong in a slot is its `failed` and its reason; the other goes on. What goes
//! wrong before there is a run at all is an [`BenchError`].

mod accuracy;
mod end;
mod estimate;
mod event;
mod feed;
mod guarded;
mod job;
mod limits;
mod log;
mod overall;
mod pace;
mod picture;
mod plan;
mod probe;
mod proc;
mod progress;
mod recorder;
mod slots;
mod snapshot;
mod trial;
mod watch;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use plimsoll::Bytes;
use plimsoll_infer::engine::STACK;

use crate::record::BenchRecord;
use crate::report::files::FilesError;

use event::SlotEvent;
use feed::{FrameFeed, InputStreams};
pub use guarded::{BenchGuard, GuardTotals, Guarded};
use job::{LoadGate, SlotJob};
pub use log::{Level, LogLine, Logged, TARGET as LOG_TARGET};
pub use plan::{BenchPlan, SlotMode};
pub use progress::{BenchProgress, Silent, SlotProgress};
use recorder::Recorder;
use slots::Assignment;
pub use trial::Trial;

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option, or how several stand together.
    #[error("{0}")]
    Plan(String),
    /// The run's folder.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The limit.
    #[error(transparent)]
    Memory(#[from] plimsoll::Error),
    /// A thread could not be started.
    #[error("cannot start a thread to measure on: {0}")]
    Thread(std::io::Error),
}

/// A run that came to its end, or was stopped.
#[derive(Debug)]
pub struct Finished {
    /// All that it found out.
    pub record: BenchRecord,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether the last report was written whole; if not, an older one may stand there.
    pub written: bool,
}

/// Events that may wait for the recorder. It is never behind for long: a report takes
/// milliseconds, and this is some tenths of a second at the highest rates.
const WAITING: usize = 8192;

/// Does what the plan says. Setting `stop` ends it early; what was measured is kept.
///
/// # Errors
/// [`BenchError`] where the plan cannot be or the folder cannot be made. A slot that fails is no
/// error: it is in the record.
pub fn run(
    plan: &BenchPlan,
    progress: &mut dyn BenchProgress,
    stop: &AtomicBool,
) -> Result<Finished, BenchError> {
    let layout = slots::resolve(plan)?;
    let refused = trial::refusals(plan, &layout, progress, stop);
    let streams = InputStreams::new(&layout);
    let origin = Instant::now();
    let mut recorder = Recorder::start(plan, &layout, &streams, origin)?;
    recorder.announce(progress);
    let (send, events) = sync_channel(WAITING);
    std::thread::scope(|scope| -> Result<(), BenchError> {
        let limit = recorder.limit;
        let common = Common { plan, events: send, stop, origin, limit, refused: &refused };
        let (slots, streams) = (&layout.slots, &streams);
        let work = move || work(common, slots, streams);
        std::thread::Builder::new()
            .name("measure".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(BenchError::Thread)?;
        recorder.record(&events, progress, stop);
        Ok(())
    })?;
    Ok(recorder.finish(progress, stop))
}

/// What all jobs have in common.
struct Common<'a> {
    plan: &'a BenchPlan,
    events: SyncSender<SlotEvent>,
    stop: &'a AtomicBool,
    origin: Instant,
    limit: Bytes,
    /// Why a slot's model must not be loaded.
    refused: &'a [Option<String>; 2],
}

/// All repeats of all slots; ends when the last one has.
fn work(common: Common<'_>, slots: &[Assignment; 2], streams: &InputStreams) {
    let Common { plan, stop, origin, limit, refused, .. } = common;
    let settled = OnceLock::new();
    let together = plan.parallel && slots.iter().all(|slot| slot.weights().is_some());
    let gate = together.then(|| LoadGate::new(slots.len()));
    let gate = gate.as_ref();
    let job = |repeat, slot: usize| {
        let weights = slots[slot].weights()?.clone();
        Some(SlotJob {
            slot,
            repeat,
            plan,
            weights,
            refused: refused[slot].as_deref(),
            events: common.events.clone(),
            stop,
            origin,
            limit,
            settled: &settled,
            gate,
        })
    };
    for repeat in 0..plan.repeat {
        let jobs: Vec<SlotJob<'_>> = (0..2).filter_map(|slot| job(repeat, slot)).collect();
        if together {
            at_once(jobs, streams.together(plan));
        } else {
            for job in jobs {
                let slot = job.slot;
                job.run(streams.alone(plan, slot));
            }
        }
    }
}

/// Each slot on a thread of its own, the last one on this.
fn at_once(jobs: Vec<SlotJob<'_>>, feeds: [FrameFeed; 2]) {
    std::thread::scope(|scope| {
        let mut pairs = jobs.into_iter().zip(feeds);
        let here = pairs.next_back();
        for (job, feed) in pairs {
            let thread = std::thread::Builder::new().stack_size(STACK);
            if let Err(error) = thread.spawn_scoped(scope, move || job.run(feed)) {
                // The other would wait for it.
                tracing::error!(%error, "cannot start a thread to measure on");
                return;
            }
        }
        if let Some((job, feed)) = here {
            job.run(feed);
        }
    });
}
