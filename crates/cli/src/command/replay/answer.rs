//! What a replay found, as programs read it: one flat object, whose parts are structs
//! of their own here.

use std::time::Duration;

use plimsoll::trace::Trace;
use plimsoll::{Bytes, Packing};
use serde::Serialize;

use super::clocked::CallCost;
use super::measure::{ReplayFailure, ReplayMeasured, ReplayPass};
use super::stand::{Setup, Stand};
use super::threads::Scaling;

/// Of what was never freed, this many of the largest are listed.
const LISTED: usize = 5;

const TIMING: &str = "cold: the first pass; warm, unmapped and malloc: the fastest of the passes \
                      after it, taken turn by turn; cold and warm include what the simulated \
                      device charged";

#[derive(Debug, Serialize)]
pub(super) struct ReplayReport {
    pub(super) trace: String,
    pub(super) events: u64,
    pub(super) streams: usize,
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) passes: u32,
    pub(super) threads: u16,
    pub(super) completed: bool,
    /// The number of the event at which it ended, from 1; null where it did not.
    pub(super) failed_event: Option<u64>,
    pub(super) failure: Option<FailureFields>,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) peak_live_bytes: u64,
    /// Null where the trace did not complete, as is the ratio.
    pub(super) peak_reserved_bytes: Option<u64>,
    pub(super) ratio: Option<f64>,
    #[serde(flatten)]
    pub(super) warm: WarmCounts,
    #[serde(flatten)]
    pub(super) cold: ColdCounts,
    /// What the device was called for in the first pass; empty where the trace did not get through it.
    pub(super) cold_device_calls: Vec<CallCost>,
    #[serde(flatten)]
    pub(super) leaks: Leaks,
    pub(super) thread_scaling: Option<Vec<Scaling>>,
    /// Whether the smallest device was looked for.
    #[serde(skip)]
    pub(super) cap_sought: bool,
    pub(super) smallest_cap_bytes: Option<u64>,
    pub(super) smallest_cap_ratio: Option<f64>,
    /// The first pass there, and the fastest of those after it.
    pub(super) smallest_cap_cold_ns_per_event: Option<f64>,
    pub(super) smallest_cap_warm_ns_per_event: Option<f64>,
}

/// What it was replayed on.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    pub(super) backend: String,
    pub(super) packing: &'static str,
    pub(super) can_map: bool,
    /// `measured` or `off`; null on a real device, whose calls take real time.
    pub(super) latencies: Option<&'static str>,
    /// Whether kernels touched the blocks.
    pub(super) kernels: bool,
    pub(super) device_bytes: u64,
}

/// Nanoseconds an event.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    /// How they were obtained.
    timing: &'static str,
    pub(super) cold_ns_per_event: Option<f64>,
    pub(super) cold_charged_ns_per_event: Option<f64>,
    pub(super) warm_ns_per_event: Option<f64>,
    pub(super) warm_charged_ns_per_event: Option<f64>,
    pub(super) warm_unmapped_ns_per_event: Option<f64>,
    pub(super) malloc_ns_per_event: Option<f64>,
    /// Why malloc has no figure.
    pub(super) malloc_note: Option<String>,
    /// Unmapped events to malloc: neither asks anybody for memory.
    pub(super) malloc_ratio: Option<f64>,
    /// All warm events, with what the device charged, to malloc.
    pub(super) warm_malloc_ratio: Option<f64>,
}

/// What the pool did in the fastest warm pass; null where there was none.
#[derive(Debug, Default, Serialize)]
pub(super) struct WarmCounts {
    pub(super) remapped_handles: Option<u64>,
    pub(super) taken_from_device: Option<u64>,
    pub(super) returned_to_device: Option<u64>,
    pub(super) sync_waits: Option<u64>,
    pub(super) pool_hits: Option<u64>,
    pub(super) pool_misses: Option<u64>,
}

/// The same of the first pass.
#[derive(Debug, Default, Serialize)]
pub(super) struct ColdCounts {
    pub(super) cold_remapped_handles: Option<u64>,
    pub(super) cold_taken_from_device: Option<u64>,
    pub(super) cold_returned_to_device: Option<u64>,
    pub(super) cold_sync_waits: Option<u64>,
    pub(super) cold_pool_hits: Option<u64>,
    pub(super) cold_pool_misses: Option<u64>,
}

/// What the recording never freed.
#[derive(Debug, Serialize)]
pub(super) struct Leaks {
    pub(super) never_freed_count: usize,
    pub(super) never_freed_bytes: u64,
    pub(super) never_freed_largest: Vec<ReplayBlock>,
    /// Frees of blocks older than the recording, which were left out.
    skipped_frees: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ReplayBlock {
    pub(super) id: u64,
    pub(super) size_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FailureFields {
    /// 0 is the cold pass.
    pub(super) pass: u32,
    pub(super) event: u64,
    pub(super) requested_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) why: String,
}

impl ReplayReport {
    pub(super) fn new(
        name: String,
        trace: &Trace,
        setup: &Setup,
        stand: &Stand,
        measured: &ReplayMeasured,
    ) -> ReplayReport {
        let failure = measured.failure.as_ref().map(FailureFields::from);
        let peak = Some(measured.peak.get()).filter(|_| failure.is_none());
        let live = trace.peak_live().get();
        ReplayReport {
            trace: name,
            events: trace.events().len() as u64,
            streams: trace.streams().len(),
            setting: Setting::new(setup, stand),
            passes: measured.passes,
            threads: 1,
            completed: failure.is_none(),
            failed_event: failure.as_ref().map(|failure| failure.event),
            failure,
            times: Times::new(measured, trace.events().len() as f64),
            peak_live_bytes: live,
            peak_reserved_bytes: peak,
            ratio: quotient(peak.map(|peak| peak as f64), Some(live as f64)),
            warm: measured.warm.map_or_else(WarmCounts::default, WarmCounts::from),
            cold: measured.cold.map_or_else(ColdCounts::default, ColdCounts::from),
            cold_device_calls: measured.cold_calls.clone(),
            leaks: Leaks::of(trace),
            thread_scaling: None,
            cap_sought: false,
            smallest_cap_bytes: None,
            smallest_cap_ratio: None,
            smallest_cap_cold_ns_per_event: None,
            smallest_cap_warm_ns_per_event: None,
        }
    }

    pub(super) fn with_threads(self, threads: u16, scaling: Vec<Scaling>) -> ReplayReport {
        ReplayReport { threads, thread_scaling: Some(scaling), ..self }
    }

    pub(super) fn with_smallest_cap(
        self,
        cap: Option<Bytes>,
        there: Option<&ReplayMeasured>,
        trace: &Trace,
    ) -> ReplayReport {
        let live = Some(self.peak_live_bytes as f64);
        let times = there.map(|there| Times::new(there, trace.events().len() as f64));
        ReplayReport {
            smallest_cap_cold_ns_per_event: times.as_ref().and_then(|t| t.cold_ns_per_event),
            smallest_cap_warm_ns_per_event: times.as_ref().and_then(|t| t.warm_ns_per_event),
            cap_sought: true,
            smallest_cap_bytes: cap.map(Bytes::get),
            smallest_cap_ratio: quotient(cap.map(|cap| cap.get() as f64), live),
            ..self
        }
    }

    /// Whether everything that was asked for went through.
    pub(super) fn is_yes(&self) -> bool {
        self.completed
            && self.thread_scaling.iter().flatten().all(|row| row.why.is_none())
            && (!self.cap_sought || self.smallest_cap_bytes.is_some())
    }
}

impl Setting {
    fn new(setup: &Setup, stand: &Stand) -> Setting {
        let costs = if setup.charges { "measured" } else { "off" };
        Setting {
            backend: setup.backend.to_string(),
            packing: match setup.packing() {
                Packing::Tight => "tight",
                Packing::Quick => "quick",
            },
            can_map: stand.can_map(),
            latencies: stand.is_simulated().then_some(costs),
            kernels: setup.kernels,
            device_bytes: stand.total().get(),
        }
    }
}

impl Times {
    fn new(measured: &ReplayMeasured, events: f64) -> Times {
        let each = |time: Duration| quotient(Some(time.as_nanos() as f64), Some(events));
        let (cold, warm) = (measured.cold.as_ref(), measured.warm.as_ref());
        let warm_ns = warm.and_then(|taken| each(taken.total()));
        let malloc_ns = measured.malloc.as_ref().ok().and_then(|time| each(*time));
        Times {
            timing: TIMING,
            cold_ns_per_event: cold.and_then(|taken| each(taken.total())),
            cold_charged_ns_per_event: cold.and_then(|taken| each(taken.charged)),
            warm_ns_per_event: warm_ns,
            warm_charged_ns_per_event: warm.and_then(|taken| each(taken.charged)),
            warm_unmapped_ns_per_event: measured.unmapped_ns,
            malloc_ns_per_event: malloc_ns,
            malloc_note: measured.malloc.as_ref().err().cloned(),
            malloc_ratio: quotient(measured.unmapped_ns, malloc_ns),
            warm_malloc_ratio: quotient(warm_ns, malloc_ns),
        }
    }
}

/// Nothing where there is nothing to divide, or nothing to divide by.
fn quotient(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    over.zip(under).map(|(over, under)| over / under).filter(|ratio| ratio.is_finite())
}

impl From<ReplayPass> for WarmCounts {
    fn from(taken: ReplayPass) -> WarmCounts {
        WarmCounts {
            remapped_handles: Some(taken.remapped),
            taken_from_device: Some(taken.taken),
            returned_to_device: Some(taken.returned),
            sync_waits: Some(taken.waits),
            pool_hits: Some(taken.hits),
            pool_misses: Some(taken.misses),
        }
    }
}

impl From<ReplayPass> for ColdCounts {
    fn from(taken: ReplayPass) -> ColdCounts {
        ColdCounts {
            cold_remapped_handles: Some(taken.remapped),
            cold_taken_from_device: Some(taken.taken),
            cold_returned_to_device: Some(taken.returned),
            cold_sync_waits: Some(taken.waits),
            cold_pool_hits: Some(taken.hits),
            cold_pool_misses: Some(taken.misses),
        }
    }
}

impl Leaks {
    fn of(trace: &Trace) -> Leaks {
        let mut blocks: Vec<ReplayBlock> = trace
            .never_freed()
            .iter()
            .map(|block| ReplayBlock { id: block.id, size_bytes: block.size.get() })
            .collect();
        blocks.sort_by_key(|block| std::cmp::Reverse(block.size_bytes));
        let never_freed_count = blocks.len();
        let never_freed_bytes = blocks.iter().map(|block| block.size_bytes).sum();
        blocks.truncate(LISTED);
        Leaks {
            never_freed_count,
            never_freed_bytes,
            never_freed_largest: blocks,
            skipped_frees: trace.skipped_frees(),
        }
    }
}

impl From<&ReplayFailure> for FailureFields {
    fn from(failure: &ReplayFailure) -> FailureFields {
        FailureFields {
            pass: failure.pass,
            event: failure.at.event as u64 + 1,
            requested_bytes: failure.at.size.get(),
            live_bytes: failure.at.live.get(),
            reserved_bytes: failure.at.reserved.get(),
            why: failure.why.clone(),
        }
    }
}
