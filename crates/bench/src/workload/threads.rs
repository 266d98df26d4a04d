//! Starts the measuring threads: every repeat of every slot, in turn or both slots at once.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use plimsoll::Bytes;
use plimsoll_infer::engine::STACK;

use super::event::SlotEvent;
use super::feed::FrameFeed;
use super::job::SlotJob;
use super::load::LoadGate;
use super::{BenchError, RunContext};

/// Events that may wait to be taken. That is some tenths of a second at the highest rates, and
/// writing a report, the longest wait, takes milliseconds.
const WAITING_EVENTS: usize = 8192;

/// Starts measuring. The events end when the last slot has.
///
/// `refused` says why a slot's model must not be loaded.
pub(super) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    run: &'env RunContext<'env>,
    limit: Bytes,
    refused: &'env [Option<String>; 2],
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
    refused: &[Option<String>; 2],
    events: &SyncSender<SlotEvent>,
    stop: &AtomicBool,
) {
    let (plan, slots) = (run.plan, &run.layout.slots);
    let process_before = OnceLock::new();
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
            events: events.clone(),
            stop,
            origin: run.origin,
            limit,
            process_before: &process_before,
            gate,
        })
    };
    for repeat in 0..plan.repeat {
        let jobs: Vec<SlotJob<'_>> = (0..2).filter_map(|slot| job(repeat, slot)).collect();
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
