//! Many threads on one pool, each with the whole trace on a stream of its own.
//!
//! Throughput is by the clock alone: what a simulated device charges did not pass, and
//! a sum does not say whether it would have delayed the other threads.

use std::sync::{Barrier, OnceLock};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use plimsoll::trace::Trace;
use plimsoll::trace::replay::TraceReplay;
use plimsoll::{Bytes, Error, Memory, Result, Stream};
use serde::Serialize;

use super::stand::{MOST_TOTAL, Setup};

/// Each thread gets a device of this many times the peak of one, by default.
const ROOM: u64 = 4;

/// What this many threads did.
#[derive(Debug, Serialize)]
pub(super) struct Scaling {
    pub(super) threads: u16,
    /// Over all threads, in the fastest of the warm passes; null where they did not fit.
    pub(super) events_per_s: Option<f64>,
    /// To one thread.
    pub(super) ratio: Option<f64>,
    /// Why there is no figure.
    pub(super) why: Option<String>,
}

/// Runs 1 to `most` threads.
pub(super) fn run(
    setup: &Setup,
    trace: &Trace,
    most: u16,
    passes: u32,
    peak: Bytes,
) -> anyhow::Result<Vec<Scaling>> {
    let mut rows: Vec<Scaling> = Vec::new();
    for threads in 1..=most {
        let each = setup.cap.unwrap_or(peak.saturating_mul(ROOM).round_up(1 << 30));
        let total = each.saturating_mul(u64::from(threads)).min(MOST_TOTAL);
        let (fastest, why) = match fastest(&setup.with_cap(total), trace, threads, passes) {
            Ok(fastest) => (Some(fastest), None),
            Err(error) if error.is_out_of_memory() => (None, Some(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let events = trace.events().len() as f64 * f64::from(threads);
        let rate = fastest.map(|time| events / time.as_secs_f64()).filter(|rate| rate.is_finite());
        let one = rows.first().map_or(rate, |first| first.events_per_s);
        let ratio = rate.zip(one).map(|(rate, one)| rate / one);
        rows.push(Scaling { threads, events_per_s: rate, ratio, why });
    }
    Ok(rows)
}

/// The time of the fastest of the warm passes, from the first start to the last end.
fn fastest(setup: &Setup, trace: &Trace, threads: u16, passes: u32) -> Result<Duration> {
    let stand = setup.open()?;
    let mut streams = vec![Stream::DEFAULT];
    while streams.len() < usize::from(threads) {
        streams.push(stand.pool.device().new_stream()?);
    }
    let mut replays: Vec<TraceReplay<'_>> = streams
        .into_iter()
        .map(|stream| TraceReplay::on_stream(&stand.pool, trace, stream))
        .collect();
    one_pass(&mut replays)?;
    let mut fastest = Duration::MAX;
    for _ in 0..passes {
        fastest = fastest.min(one_pass(&mut replays)?);
    }
    Ok(fastest)
}

/// Starts a thread; an error where the system has no more.
pub(super) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, work).map_err(|error| Error::Unavailable {
        what: "one more thread".to_string(),
        why: format!("{error}; take fewer by --threads, or allow more processes (ulimit -u)"),
    })
}

/// One pass on every thread at once; none where not all of them can be started.
fn one_pass(replays: &mut [TraceReplay<'_>]) -> Result<Duration> {
    let all = replays.len();
    let ready = &OnceLock::<Option<Barrier>>::new();
    let spans = std::thread::scope(|scope| {
        let pass = |replay| {
            start(scope, move || {
                if let Some(barrier) = ready.wait() {
                    barrier.wait();
                } else {
                    return Ok((Instant::now(), Instant::now()));
                }
                let start = Instant::now();
                TraceReplay::pass(replay).map(|pass| (start, start + pass.wall))
            })
        };
        let threads = replays.iter_mut().map(pass).collect::<Result<Vec<_>>>();
        let _ = ready.set(threads.is_ok().then(|| Barrier::new(all)));
        threads?
            .into_iter()
            // A panic has ended the program before this: see output.rs.
            .filter_map(|thread| thread.join().ok())
            .collect::<Result<Vec<(Instant, Instant)>>>()
    })?;
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    Ok(start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start))
}
