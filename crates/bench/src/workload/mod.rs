//! The main job: detectors on frames, measured: two in their slots, or a row for each.
//!
//! ```text
//! BenchPlan ──→ SlotJob per slot ──SlotEvent──→ Ingest ──→ Snapshot ──→ BenchRecord, files
//!               (measuring threads)             (the caller's thread)
//! ```
//!
//! A measuring thread does as little as possible. It takes a frame that was decoded ahead, steps
//! the pipeline with a stopwatch, reads the memory once, and sends what it saw. Everything that
//! takes time (statistics, JSON, reports, progress) happens on the thread that called [`run`],
//! which owns all figures, so nothing is locked between measuring and writing. Three values do
//! it: `limits` knows who enforces the memory limit and compares it with what is in use,
//! `ingest` takes events and samples and files them, `snapshot` builds the record.
//!
//! Slots take turns, with one model in memory at a time, or run at once on a thread each; rows
//! always take turns, and see the same frames. A failure in a slot is its status `failed` with a
//! reason, and the others go on. A failure before there is a run at all is a [`BenchError`].

mod accuracy;
mod estimate;
mod event;
mod feed;
mod guarded;
mod ingest;
mod job;
mod limits;
mod load;
mod log;
mod machine;
mod output;
mod pace;
mod picture;
mod plan;
mod progress;
mod slot_state;
mod slots;
mod snapshot;
mod trial;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, Scope};
use std::time::{Instant, SystemTime};

use plimsoll::Bytes;
use plimsoll_infer::engine::STACK;

use crate::record::BenchRecord;
use crate::report::files::FilesError;
use crate::report::sheet::Sheet;

use event::SlotEvent;
use feed::{FrameFeed, InputStreams};
pub use guarded::{BenchGuard, GuardTotals, Guarded};
use ingest::Ingest;
use job::SlotJob;
use limits::BenchLimits;
use load::{LoadGate, ProcessBases};
pub use log::{Level, LogLine, Logged, TARGET as LOG_TARGET};
use output::RunOutput;
pub use plan::{BenchPlan, RowPlan, SlotMode};
pub use progress::{BenchProgress, Silent, SlotProgress};
use slots::ResolvedPlan;
use snapshot::Snapshot;
pub use trial::Trial;

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option, or a combination of options.
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

/// A run that completed, or was stopped.
#[derive(Debug)]
pub struct Finished {
    /// Everything that it found out.
    pub record: BenchRecord,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether the last report was written completely. If not, the folder may have an older one.
    pub written: bool,
    /// Whether the detections and predictions that the plan asks for were written.
    pub complete: bool,
}

/// What a run is about; it does not change.
struct RunContext<'a> {
    plan: &'a BenchPlan,
    layout: &'a ResolvedPlan,
    inputs: &'a InputStreams,
    /// The start, by two clocks.
    origin: Instant,
    started: SystemTime,
}

/// Events that may wait to be taken. That is some tenths of a second at the highest rates, and
/// writing a report, the longest wait, takes milliseconds.
const WAITING_EVENTS: usize = 8192;

/// Does what the plan says. Setting `stop` ends it early; what was measured is kept.
///
/// # Errors
/// [`BenchError`] where the plan is invalid or the folder cannot be made. A slot that fails is
/// not an error: it is in the record.
pub fn run(
    plan: &BenchPlan,
    progress: &mut dyn BenchProgress,
    stop: &AtomicBool,
) -> Result<Finished, BenchError> {
    let layout = &slots::resolve(plan)?;
    let refused = trial::refusals(plan, layout, progress, stop);
    let inputs = &InputStreams::new(layout);
    let (origin, started) = (Instant::now(), SystemTime::now());
    let context = RunContext { plan, layout, inputs, origin, started };
    let limits = BenchLimits::start(plan)?;
    let limit = limits.effective();
    let output = RunOutput::create(plan, started, progress)?;
    let mut ingest = Ingest::new(&context, limits, output);
    ingest.announce();
    report_meanwhile(&mut ingest);
    std::thread::scope(|scope| -> Result<(), BenchError> {
        let events = start_measuring(scope, &context, limit, &refused, stop)?;
        take_all(&mut ingest, &events, stop);
        Ok(())
    })?;
    Ok(finish(ingest, stop))
}

/// Starts the measuring threads. The events end when the last slot has.
///
/// `refused` says why a slot's model must not be loaded.
fn start_measuring<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    run: &'env RunContext<'env>,
    limit: Bytes,
    refused: &'env [Option<String>],
    stop: &'env AtomicBool,
) -> Result<Receiver<SlotEvent>, BenchError> {
    let (send, events) = sync_channel(WAITING_EVENTS);
    Builder::new()
        .name("measure".into())
        .stack_size(STACK)
        .spawn_scoped(scope, move || measure_all(run, limit, refused, &send, stop))
        .map_err(BenchError::Thread)?;
    Ok(events)
}

/// All repeats of all slots; returns when the last one has ended.
fn measure_all(
    run: &RunContext<'_>,
    limit: Bytes,
    refused: &[Option<String>],
    events: &SyncSender<SlotEvent>,
    stop: &AtomicBool,
) {
    let (plan, slots) = (run.plan, &run.layout.slots);
    let bases = ProcessBases::default();
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
            engine: slots[slot].engine,
            refused: refused[slot].as_deref(),
            events: events.clone(),
            stop,
            origin: run.origin,
            limit,
            bases: &bases,
            truth: run.layout.truth(slot),
            gate,
        })
    };
    for repeat in 0..plan.repeat {
        let jobs: Vec<SlotJob<'_>> =
            (0..slots.len()).filter_map(|slot| job(repeat, slot)).collect();
        if together {
            at_once(jobs, run.inputs.together(plan));
        } else {
            for job in jobs {
                let slot = job.slot;
                job.run(run.inputs.alone(plan, slot));
            }
        }
    }
}

/// Each slot on a thread of its own, the last one on this thread.
fn at_once(jobs: Vec<SlotJob<'_>>, feeds: [FrameFeed; 2]) {
    std::thread::scope(|scope| {
        let mut pairs = jobs.into_iter().zip(feeds);
        let here = pairs.next_back();
        for (job, feed) in pairs {
            let thread = Builder::new().stack_size(STACK);
            if let Err(error) = thread.spawn_scoped(scope, move || job.run(feed)) {
                // The other slot would wait for it forever.
                tracing::error!(%error, "cannot start a thread to measure on");
                return;
            }
        }
        if let Some((job, feed)) = here {
            job.run(feed);
        }
    });
}

/// Takes events until the last measuring thread has ended; samples the machine and writes
/// reports meanwhile.
fn take_all(ingest: &mut Ingest<'_>, events: &Receiver<SlotEvent>, stop: &AtomicBool) {
    let RunContext { plan, inputs, origin, .. } = *ingest.run;
    let tick = ingest::TICK.min(plan.metrics_interval);
    let (mut next_sample, mut next_report) = (origin, origin + plan.report_interval);
    loop {
        match events.recv_timeout(tick) {
            Ok(event) => {
                if let Some(slot) = ingest.take(event) {
                    let model = Snapshot::new(ingest).model(slot);
                    ingest.output.progress.ended(&model);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if stop.load(Ordering::Relaxed) {
            inputs.stop();
        }
        let now = Instant::now();
        if now >= next_sample {
            next_sample = now + plan.metrics_interval;
            ingest.sample();
        }
        if now >= next_report {
            report_meanwhile(ingest);
            next_report = Instant::now() + plan.report_interval;
        }
    }
}

/// Writes the reports of a run that goes on, so that a kill leaves valid ones.
fn report_meanwhile(ingest: &mut Ingest<'_>) {
    let why = "the run had not ended when this was written".to_string();
    let record = Snapshot::new(ingest).record(Some(why), false);
    let written = ingest.output.reports(&record, &ingest.pictures);
    let frames = record.summary.frames;
    let text = format!("report after {frames} frames, written: {written}");
    ingest.output.log(Level::Debug, &text);
    ingest.output.flush();
}

/// Writes the last report.
fn finish(mut ingest: Ingest<'_>, stop: &AtomicBool) -> Finished {
    ingest.sample();
    let warnings = ingest.limits.safety(&ingest.slots).warnings;
    ingest.output.warn_once(warnings);
    let interruption = stop.load(Ordering::Relaxed).then(|| "stopped by the user".to_string());
    ingest.output.info(interruption.as_deref().unwrap_or("run finished"));
    ingest.output.close_detections();
    let mut record = Snapshot::new(&ingest).record(interruption.clone(), true);
    for doubt in Sheet::new(&record).doubts {
        ingest.output.log(Level::Warn, &format!("doubt: {doubt}"));
    }
    let mut written = ingest.output.reports(&record, &ingest.pictures);
    if ingest.output.flush() {
        // A failure to write the lines is itself a doubt of the record.
        record = Snapshot::new(&ingest).record(interruption, true);
        written = ingest.output.reports(&record, &ingest.pictures);
    }
    let complete = ingest.output.is_complete();
    Finished { record, folder: ingest.output.folder.path().to_path_buf(), written, complete }
}
