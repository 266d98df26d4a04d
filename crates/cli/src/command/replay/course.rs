//! The course of a trace: live and reserved memory over its events, and what was live at the peak.
//!
//! Live memory follows from the trace alone. What the pool reserves is seen in a pass of its own on
//! an empty pool, which is not timed.

use std::collections::BTreeMap;

use plimsoll::trace::replay::TraceReplay;
use plimsoll::trace::{Trace, TraceOp};
use plimsoll_bench::stats::TimePoint;

use super::stand::Setup;

/// More points cannot be told apart in a plot.
const POINTS: usize = 480;
const GIB: f64 = (1u64 << 30) as f64;

/// What a page draws of a trace.
#[derive(Debug)]
pub(super) struct TraceCourse {
    pub(super) live: Vec<TimePoint>,
    /// What the pool reserved in its first pass; shorter where the trace does not fit.
    pub(super) reserved: Vec<TimePoint>,
    /// Whether points lie in seconds, and not in thousands of events.
    pub(super) is_timed: bool,
    pub(super) peak: TracePeak,
}

/// What was live when most was.
#[derive(Debug, Default)]
pub(super) struct TracePeak {
    /// The number of the event, from 0.
    pub(super) event: usize,
    pub(super) bytes: u64,
    pub(super) blocks: usize,
    /// Those that take the most together first.
    pub(super) sizes: Vec<PeakSize>,
}

/// The blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeakSize {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
    /// What they take together.
    pub(super) together: u64,
}

impl TraceCourse {
    /// Follows the trace, and replays it once.
    pub(super) fn of(trace: &Trace, setup: &Setup) -> anyhow::Result<TraceCourse> {
        let reserved = reserved(trace, setup)?;
        let is_timed = trace.is_timed();
        let start = trace.events().first().map_or(0, |event| event.time_us);
        let at = |index: usize| match (is_timed, trace.events().get(index)) {
            (true, Some(event)) => event.time_us.saturating_sub(start) as f64 / 1e6,
            _ => index as f64 / 1e3,
        };
        let live = live(trace);
        Ok(TraceCourse {
            live: points(
                live.iter().copied().enumerate().map(|(n, bytes)| (at(n), bytes)),
                live.len(),
            ),
            reserved: points(reserved.iter().map(|(n, bytes)| (at(*n), *bytes)), reserved.len()),
            is_timed,
            peak: peak(trace, &live),
        })
    }
}

/// The live bytes after each event.
fn live(trace: &Trace) -> Vec<u64> {
    let mut now = 0u64;
    let step = |event: &plimsoll::trace::TraceEvent| {
        now = match event.op {
            TraceOp::Allocate => now.saturating_add(event.size),
            TraceOp::Free => now.saturating_sub(event.size),
        };
        now
    };
    trace.events().iter().map(step).collect()
}

/// What the pool has reserved after each allocation, with the number of its event.
fn reserved(trace: &Trace, setup: &Setup) -> anyhow::Result<Vec<(usize, u64)>> {
    let stand = setup.without_charges().open()?;
    let allocations = trace.events().iter().enumerate().filter(|(_, e)| e.op == TraceOp::Allocate);
    let mut events = allocations.map(|(index, _)| index);
    let mut seen = Vec::new();
    let replay = TraceReplay::new(&stand.pool, trace)?;
    let mut replay = replay.with_work(Box::new(|_, _| {
        let held = stand.pool.stats().total_allocated_bytes;
        seen.extend(events.next().map(|index| (index, held.get())));
        Ok(())
    }));
    match replay.pass() {
        // A trace that does not fit is drawn up to where it ends.
        Err(error) if error.is_out_of_memory() => {}
        done => drop(done?),
    }
    drop(replay);
    Ok(seen)
}

/// As many points as a plot can show: least, mean and most of each slice.
fn points(values: impl Iterator<Item = (f64, u64)>, count: usize) -> Vec<TimePoint> {
    let slice = count.div_ceil(POINTS).max(1);
    let values: Vec<(f64, f64)> = values.map(|(t, bytes)| (t, bytes as f64 / GIB)).collect();
    let point = |part: &[(f64, f64)]| TimePoint {
        t: part.last().map_or(0.0, |(t, _)| *t),
        min: part.iter().map(|(_, value)| *value).fold(f64::MAX, f64::min),
        mean: part.iter().map(|(_, value)| value).sum::<f64>() / part.len() as f64,
        max: part.iter().map(|(_, value)| *value).fold(0.0, f64::max),
    };
    values.chunks(slice).map(point).collect()
}

/// The blocks that are live at the first event with the most live bytes.
fn peak(trace: &Trace, live: &[u64]) -> TracePeak {
    let Some(bytes) = live.iter().copied().max() else { return TracePeak::default() };
    let event = live.iter().position(|now| *now == bytes).unwrap_or(0);
    let mut blocks: BTreeMap<u32, u64> = BTreeMap::new();
    for event in &trace.events()[..=event] {
        match event.op {
            TraceOp::Allocate => drop(blocks.insert(event.id, event.size)),
            TraceOp::Free => drop(blocks.remove(&event.id)),
        }
    }
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    blocks.values().for_each(|size| *sizes.entry(*size).or_default() += 1);
    let of_size = |(bytes, blocks): (u64, u64)| PeakSize {
        bytes,
        blocks,
        together: bytes.saturating_mul(blocks),
    };
    let mut sizes: Vec<PeakSize> = sizes.into_iter().map(of_size).collect();
    sizes.sort_by_key(|size| std::cmp::Reverse((size.together, size.bytes)));
    TracePeak { event, bytes, blocks: blocks.len(), sizes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_at_the_peak_is_grouped_by_size() {
        let csv = "op,id,size,stream,t_us\na,1,100,0,0\na,2,40,0,1\na,3,40,0,2\nf,1,100,0,3\n\
                   a,4,90,0,4\na,5,60,0,5\nf,5,60,0,6\n";
        let trace = Trace::parse(csv.as_bytes()).unwrap();
        let live = live(&trace);
        assert_eq!(live, [100, 140, 180, 80, 170, 230, 170]);
        let peak = peak(&trace, &live);
        assert_eq!((peak.event, peak.bytes, peak.blocks), (5, 230, 4));
        let sizes: Vec<_> = peak.sizes.iter().map(|s| (s.bytes, s.blocks, s.together)).collect();
        assert_eq!(sizes, [(90, 1, 90), (40, 2, 80), (60, 1, 60)]);
        let drawn = points(live.iter().map(|bytes| (0.0, *bytes)), live.len());
        assert_eq!(drawn.len(), 7);
        let many = points((0..1000).map(|n| (n as f64, n << 30)), 1000);
        assert_eq!((many.len(), many[0].max, many.last().map(|p| p.t)), (334, 2.0, Some(999.0)));
    }
}
