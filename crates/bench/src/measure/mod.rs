//! Takes samples of frames and of the machine, and gives the figures of the record.
//!
//! The measuring loop owns the clock. For every frame it makes a [`FrameSample`], which goes to
//! the slot's [`SlotMeter`] and, as a line, to `metrics.jsonl`. Beside it the machine is sampled:
//! a [`SystemSample`] goes to the [`SystemMeter`]. Both meters take constant time and bounded
//! memory per sample and give their part of the record at any time, so that a report can be
//! written while the run goes on.
//!
//! # How to add a metric of the benchmark
//!
//! A metric of the machine (say, the fan's speed):
//!
//! 1. a field in [`SystemSample`]; every line of `metrics.jsonl` then has it;
//! 2. its value in `MachineSampler::sample` (`workload/machine.rs`), `None` where the machine
//!    does not report it, and the reason for that in `REASONS` there;
//! 3. one line each in [`SystemMeter::push`], [`SystemMeter::metrics`] and the list of reasons
//!    below it (`measure/system.rs`);
//! 4. the field of the report: see [`crate::record`].
//!
//! A metric of a frame (say, the time of a new stage):
//!
//! 1. a field in [`FrameSample`], and in [`FrameLine`] if `metrics.jsonl` should have it;
//! 2. its value in `SlotJob::sample` (`workload/job.rs`), the only place that reads the clock;
//! 3. a collector in [`SlotMeter`]: filled in [`SlotMeter::push`], read in
//!    [`SlotMeter::performance`];
//! 4. the field of the report: see [`crate::record`].

use std::time::Duration;

use plimsoll::Bytes;
use serde::{Deserialize, Serialize};

use crate::doubt::{Doubt, of_tenths};
use crate::record::{
    Bin, GpuMemory, HowObtained, MeasuredWhat, PhasePart, PhaseParts, ReportLimitType,
};
use crate::record::{Performance, SlotTimeline};
use crate::stats::{Samples, TimeSeries, fps};

pub use system::{SystemFacts, SystemMeter, SystemSample};

mod system;

/// The state of the machine while a frame was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Before measuring began: counted, but in no figure.
    Warmup,
    /// Before the machine was warm.
    Cold,
    /// The normal state.
    #[default]
    Steady,
    /// While the machine throttled.
    Throttled,
}

/// One frame, measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FrameSample {
    /// 0 or 1.
    pub slot: usize,
    /// Its number in the slot, from 0.
    pub frame: u64,
    /// Since the start of the run, when it began.
    pub at: Duration,
    /// From a frame to a tensor.
    pub prepare: Duration,
    /// The engine.
    pub inference: Duration,
    /// From the engine's output to boxes.
    pub decode: Duration,
    /// From its start, or from its scheduled time, to its end.
    pub whole: Duration,
    /// The time to read it on the source's own thread, where the source reports that.
    pub decode_ahead: Option<Duration>,
    /// The slot's memory; `None` where nobody reports it.
    pub memory: Option<Bytes>,
    /// The state of the machine.
    pub phase: Phase,
    /// Whether it began after its scheduled time; `None` without an offered load.
    pub late: Option<bool>,
}

/// A line of `metrics.jsonl` about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FrameLine {
    /// Seconds since the start of the run.
    pub t: f64,
    /// 0 or 1.
    pub slot: usize,
    /// Its number in the slot.
    pub frame: u64,
    /// Milliseconds.
    pub prepare_ms: f64,
    /// Milliseconds.
    pub inference_ms: f64,
    /// Milliseconds.
    pub decode_ms: f64,
    /// Milliseconds.
    pub whole_ms: f64,
    /// The slot's memory; null where nobody reports it.
    pub memory_bytes: Option<u64>,
    /// Present on warm-up frames, which are in no figure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warmup: bool,
}

impl From<&FrameSample> for FrameLine {
    fn from(sample: &FrameSample) -> FrameLine {
        let ms = |time: Duration| time.as_nanos() as f64 / 1e6;
        FrameLine {
            t: sample.at.as_micros() as f64 / 1e6,
            slot: sample.slot,
            frame: sample.frame,
            prepare_ms: ms(sample.prepare),
            inference_ms: ms(sample.inference),
            decode_ms: ms(sample.decode),
            whole_ms: ms(sample.whole),
            memory_bytes: sample.memory.map(Bytes::get),
            warmup: sample.phase == Phase::Warmup,
        }
    }
}

/// Takes the samples of one slot.
#[derive(Debug, Clone, Default)]
pub struct SlotMeter {
    prepare: Samples,
    inference: Samples,
    decode: Samples,
    whole: Samples,
    ahead: Samples,
    parts: [Samples; 3],
    warmup: u64,
    late: Option<u64>,
    began: Option<Duration>,
    ended: Duration,
    latency: TimeSeries,
    memory: MemoryMeter,
    offered_fps: Option<f64>,
    dropped: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct MemoryMeter {
    samples: u64,
    sum: f64,
    min: u64,
    max: u64,
    trace: TimeSeries,
}

impl MemoryMeter {
    fn push(&mut self, t: f64, bytes: Bytes) {
        let n = bytes.get();
        self.min = if self.samples == 0 { n } else { self.min.min(n) };
        self.max = self.max.max(n);
        self.samples += 1;
        self.sum += n as f64;
        self.trace.push(t, bytes.as_gib());
    }
}

/// Who reported a slot's memory, and what it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySource {
    /// What the figures are of.
    pub what: MeasuredWhat,
    /// Who reported them: `rten allocator`, `/proc/self/status`.
    pub name: String,
    /// How they were obtained.
    pub obtained: HowObtained,
    /// The effective limit; `None` where the figures are not compared with it.
    pub limit: Option<Bytes>,
    /// How strictly it is enforced.
    pub limit_type: ReportLimitType,
    /// A peak that the source counted itself; it may be above every sample.
    pub counted_peak: Option<Bytes>,
    /// The most of the system's memory in use while the slot ran.
    pub system_peak: Option<Bytes>,
}

impl SlotMeter {
    /// A meter for frames that are offered at a rate, or as fast as they are taken.
    #[must_use]
    pub fn new(offered_fps: Option<f64>) -> SlotMeter {
        let offered = offered_fps.map(|_| 0);
        SlotMeter { offered_fps, late: offered, dropped: offered, ..SlotMeter::default() }
    }

    /// Takes the sample of a frame.
    pub fn push(&mut self, sample: &FrameSample) {
        let t = sample.at.as_secs_f64();
        // Memory counts from the first frame on: a peak in warm-up is a peak.
        if let Some(bytes) = sample.memory {
            self.memory.push(t, bytes);
        }
        let part = match sample.phase {
            Phase::Warmup => {
                self.warmup += 1;
                return;
            }
            Phase::Cold => 0,
            Phase::Steady => 1,
            Phase::Throttled => 2,
        };
        self.prepare.push(sample.prepare);
        self.inference.push(sample.inference);
        self.decode.push(sample.decode);
        self.whole.push(sample.whole);
        self.parts[part].push(sample.whole);
        if let Some(time) = sample.decode_ahead {
            self.ahead.push(time);
        }
        if sample.late == Some(true) {
            *self.late.get_or_insert(0) += 1;
        }
        self.latency.push(t, sample.whole.as_secs_f64() * 1e3);
        self.began.get_or_insert(sample.at);
        self.ended = self.ended.max(sample.at + sample.whole);
    }

    /// Counts frames that were offered and that nobody took.
    pub fn dropped(&mut self, frames: u64) {
        *self.dropped.get_or_insert(0) += frames;
    }

    /// How fast it was so far; `None` before the first measured frame.
    #[must_use]
    pub fn performance(&self) -> Option<Performance> {
        let wall = self.ended.saturating_sub(self.began?);
        let part =
            |samples: &Samples| samples.summary().map(|whole| PhasePart { frames: whole.n, whole });
        Some(Performance {
            frames: self.whole.len(),
            warmup_frames: self.warmup,
            wall_s: wall.as_secs_f64(),
            fps: fps(self.whole.len(), wall),
            prepare: self.prepare.summary()?,
            inference: self.inference.summary()?,
            decode: self.decode.summary()?,
            whole: self.whole.summary()?,
            decode_ahead: self.ahead.summary(),
            offered_fps: self.offered_fps,
            late: self.late,
            dropped: self.dropped,
            parts: PhaseParts {
                cold: part(&self.parts[0]),
                steady: part(&self.parts[1]),
                throttled: part(&self.parts[2]),
            },
            repeats_p50_ms: Vec::new(),
            repeats_interval_ms: None,
        })
    }

    /// The slot's memory so far. Without a sample it is unknown, whatever the source.
    #[must_use]
    pub fn memory(&self, source: &MemorySource) -> GpuMemory {
        let MemorySource { what, limit, limit_type, .. } = *source;
        let mut memory = GpuMemory::unmeasured(what, limit, limit_type, "no sample was taken");
        let meter = &self.memory;
        memory.system_peak_gb = source.system_peak.map(Bytes::as_gib);
        if memory.system_peak_gb.is_some() {
            memory.unknown.remove("system_peak_gb");
        }
        let counted = source.counted_peak.map(Bytes::get);
        let sampled = (meter.samples > 0).then_some(meter.max);
        let Some(peak) = counted.max(sampled) else { return memory };
        memory.peak_gb = Some(Bytes(peak).as_gib());
        memory.within_limit =
            memory.peak_gb.zip(memory.limit_gb).map(|(peak, limit)| peak <= limit);
        if meter.samples > 0 {
            memory.mean_gb = Some(meter.sum / meter.samples as f64 / Bytes::gib(1).get() as f64);
            memory.min_gb = Some(Bytes(meter.min).as_gib());
        }
        memory.source = Some(source.name.clone());
        memory.obtained = Some(source.obtained);
        memory.samples = meter.samples;
        let unsampled = meter.samples == 0;
        memory.unknown.retain(|field, _| match field.as_str() {
            "system_peak_gb" => source.system_peak.is_none(),
            "mean_gb" | "min_gb" => unsampled,
            "limit_gb" | "within_limit" => limit.is_none(),
            _ => false,
        });
        memory
    }

    /// The run over time, so far.
    #[must_use]
    pub fn timeline(&self) -> SlotTimeline {
        let bin = |(from_ms, to_ms, frames)| Bin { from_ms, to_ms, frames };
        SlotTimeline {
            whole_ms: self.latency.points(),
            memory_gb: self.memory.trace.points(),
            distribution: self.whole.distribution(48).into_iter().map(bin).collect(),
        }
    }

    /// A doubt where the first and the last tenth differ; `None` for fewer than 50 frames.
    #[must_use]
    pub fn drift(&self) -> Option<Doubt> {
        let points = self.latency.points();
        let tenth = points.len() / 10;
        if self.whole.len() < 50 || tenth == 0 {
            return None;
        }
        let middle = |part: &[crate::stats::TimePoint]| {
            crate::stats::median(&part.iter().map(|point| point.mean).collect::<Vec<_>>())
        };
        of_tenths(middle(&points[..tenth])?, middle(&points[points.len() - tenth..])?)
    }
}
