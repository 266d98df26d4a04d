//! Runs the passes: the pool's, with malloc passes in between for comparison.
//!
//! The pool's tables live in the heap that malloc is measured on. What they leave behind would
//! make malloc several times slower. So the pool's passes run on a thread of their own, to which
//! glibc gives a heap of its own, and the main heap is used by the malloc passes only.

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use plimsoll::trace::Trace;
use plimsoll::trace::replay::{Stopped, TraceReplay};
use plimsoll::trace::yardstick::Malloc;
use plimsoll::{Bytes, Error};

use super::clocked::CallCost;
use super::stand::Stand;
use super::threads::start;

/// What one pass took and made the pool do.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplayPass {
    /// Time that passed.
    pub(super) wall: Duration,
    /// Time that the simulated device charged.
    pub(super) charged: Duration,
    pub(super) slow_time: Duration,
    pub(super) slow_requests: u64,
    pub(super) remapped: u64,
    pub(super) taken: u64,
    pub(super) returned: u64,
    pub(super) waits: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl ReplayPass {
    /// All that counts: what passed, and what was charged.
    pub(super) fn total(&self) -> Duration {
        self.wall + self.charged
    }

    /// The time of the events that needed nothing from the device, and how many they
    /// were.
    fn unmapped(&self, events: u64) -> (Duration, u64) {
        (self.wall.saturating_sub(self.slow_time), events.saturating_sub(self.slow_requests))
    }
}

/// A pass that ended early.
#[derive(Debug, Clone)]
pub(super) struct ReplayFailure {
    /// 0 is the cold one.
    pub(super) pass: u32,
    pub(super) at: Stopped,
    pub(super) why: String,
}

/// What all passes together showed.
#[derive(Debug)]
pub(super) struct ReplayMeasured {
    pub(super) passes: u32,
    pub(super) cold: Option<ReplayPass>,
    /// The calls for memory that the device had in the first pass.
    pub(super) cold_calls: Vec<CallCost>,
    /// The fastest of the warm passes.
    pub(super) warm: Option<ReplayPass>,
    /// Nanoseconds an event of those that needed nothing from the device.
    pub(super) unmapped_ns: Option<f64>,
    /// Malloc's fastest pass, or why there is none.
    pub(super) malloc: Result<Duration, String>,
    pub(super) peak: Bytes,
    pub(super) failure: Option<ReplayFailure>,
}

/// Runs the trace through the pool once, and then `passes` times more. `told` hears before each
/// pass how many are done of how many.
pub(super) fn run(
    stand: &Stand,
    trace: &Trace,
    passes: u32,
    told: &mut dyn FnMut(u32, u32),
) -> anyhow::Result<ReplayMeasured> {
    let events = trace.events().len() as u64;
    let mut replay = stand.replay(trace)?;
    let mut yardstick = Yardstick::new(trace);
    let mut runs: Vec<ReplayPass> = Vec::new();
    let (mut failure, mut cold_calls) = (None, Vec::new());
    for pass in 0..=passes {
        told(pass, passes + 1);
        match on_a_thread(|| taken(stand, &mut replay)) {
            Ok(taken) => runs.push(taken),
            Err(error) if error.is_out_of_memory() => {
                let why = error.to_string();
                failure = replay.stopped().map(|at| ReplayFailure { pass, at, why });
                break;
            }
            Err(error) => return Err(error.into()),
        }
        if pass == 0 {
            cold_calls = stand.calls();
        }
        // Twice, so that it is not charged for caches that the pool has just filled.
        yardstick.pass(pass > 0);
        yardstick.pass(pass > 0);
    }
    let warm = runs.get(1..).unwrap_or_default();
    let unmapped = warm.iter().filter_map(|taken| {
        let (time, events) = taken.unmapped(events);
        (events > 0).then(|| time.as_nanos() as f64 / events as f64)
    });
    Ok(ReplayMeasured {
        passes,
        cold: runs.first().copied(),
        cold_calls,
        warm: warm.iter().min_by_key(|taken| taken.total()).copied(),
        unmapped_ns: unmapped.min_by(f64::total_cmp),
        malloc: yardstick.fastest(),
        peak: stand.pool.stats().peak_bytes,
        failure,
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> plimsoll::Result<T> + Send) -> plimsoll::Result<T> {
    let joined = std::thread::scope(|scope| start(scope, work).map(ScopedJoinHandle::join))?;
    joined.unwrap_or_else(|_| {
        // The hook of output.rs has ended the program before this.
        Err(Error::Device { call: "replay", why: "its thread panicked".to_string() })
    })
}

fn taken(stand: &Stand, replay: &mut TraceReplay<'_>) -> plimsoll::Result<ReplayPass> {
    let pool = &stand.pool;
    let (before, stats, charged) = (pool.activity(), pool.stats(), stand.charged());
    let wall = replay.pass()?.wall;
    let (after, now) = (pool.activity(), pool.stats());
    Ok(ReplayPass {
        wall,
        charged: stand.charged() - charged,
        slow_time: after.slow_time - before.slow_time,
        slow_requests: after.slow_requests - before.slow_requests,
        remapped: after.remapped_handles - before.remapped_handles,
        taken: after.taken_from_device - before.taken_from_device,
        returned: after.returned_to_device - before.returned_to_device,
        waits: after.sync_waits - before.sync_waits,
        hits: now.pool_hits - stats.pool_hits,
        misses: now.pool_misses - stats.pool_misses,
    })
}

/// Malloc on the same events; once it cannot go on it stays out.
struct Yardstick<'a> {
    malloc: Result<Malloc<'a>, String>,
    fastest: Option<Duration>,
}

impl<'a> Yardstick<'a> {
    fn new(trace: &'a Trace) -> Yardstick<'a> {
        Yardstick { malloc: Malloc::open(trace).map_err(|e| e.to_string()), fastest: None }
    }

    fn pass(&mut self, counts: bool) {
        let Ok(malloc) = &mut self.malloc else { return };
        match malloc.pass() {
            Ok(wall) if counts => {
                self.fastest = Some(self.fastest.map_or(wall, |fastest| fastest.min(wall)));
            }
            Ok(_) => {}
            Err(error) => self.malloc = Err(error.to_string()),
        }
    }

    fn fastest(self) -> Result<Duration, String> {
        self.malloc?;
        self.fastest.ok_or_else(|| "no warm pass was made".to_string())
    }
}
