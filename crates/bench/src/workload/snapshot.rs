//! The record of a run so far.
//!
//! A slot that has not ended yet is `interrupted` in a report that is written meanwhile: if
//! nobody comes to write a later one, that is what became of it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use plimsoll::Bytes;
use plimsoll_infer::source::redact;

use super::accuracy::AccuracyCount;
use super::end::SlotOutcome;
use super::event::{MemoryReporter, SeenFrame};
use super::plan::BenchPlan;
use super::proc;
use super::progress::SlotProgress;
use super::recorder::Recorder;
use super::slots::Assignment;
use crate::doubt::Doubt;
use crate::measure::{FrameSample, MemorySource, Phase, SlotMeter};
use crate::record::time::rfc3339;
use crate::record::{
    BenchRecord, DetectionSummary, DoubtRecord, GpuMemory, HowObtained, InputSource, InputStream,
    MeasuredWhat, MemoryEstimate, Metadata, ModelDescription, ModelRecord, RecordSummary,
    SCHEMA_VERSION, SharedMemory, Status, Unknown,
};
use crate::stats::interval::over_repeats;

/// Others may use so much of the processors before it is a doubt, in percent.
const OTHERS: f64 = 10.0;

/// One slot, as far as it is known.
#[derive(Debug)]
pub(super) struct SlotState {
    slot: usize,
    pub(super) meter: SlotMeter,
    pub(super) description: Option<ModelDescription>,
    /// What it was expected to take, or why that could not be told.
    pub(super) estimate: Option<Result<MemoryEstimate, String>>,
    pub(super) names: Vec<String>,
    pub(super) teller: MemoryReporter,
    /// The slot's memory at its last frame.
    pub(super) memory: Option<Bytes>,
    /// Whether that is past the limit.
    pub(super) over: bool,
    pub(super) running: bool,
    /// Frames that were read and could not be prepared.
    pub(super) unfit: u64,
    pub(super) system_peak: Option<f64>,
    /// Frames in which the model's answer held no number.
    pub(super) no_number: u64,
    pub(super) peak: Option<Bytes>,
    frames: u64,
    found: u64,
    per_class: BTreeMap<u32, u64>,
    judge: AccuracyCount,
    status: Option<(Status, Option<String>)>,
    medians: Vec<f64>,
    began: Option<Duration>,
    until: Duration,
}

impl SlotState {
    pub(super) fn new(slot: usize, plan: &BenchPlan) -> SlotState {
        SlotState {
            slot,
            meter: SlotMeter::new(plan.rate),
            description: None,
            estimate: None,
            names: Vec::new(),
            teller: MemoryReporter::Nobody,
            memory: None,
            over: false,
            running: false,
            unfit: 0,
            system_peak: None,
            no_number: 0,
            peak: None,
            frames: 0,
            found: 0,
            per_class: BTreeMap::new(),
            judge: AccuracyCount::default(),
            status: None,
            medians: Vec::new(),
            began: None,
            until: Duration::ZERO,
        }
    }

    /// Begins a repeat: figures are those of the last one, peaks those of all.
    pub(super) fn again(&mut self, plan: &BenchPlan) {
        let old = std::mem::replace(self, SlotState::new(self.slot, plan));
        self.peak = old.peak;
        self.system_peak = old.system_peak;
        self.status = old.status;
        self.medians = old.medians;
    }

    /// Whether no repeat is over yet.
    pub(super) fn first_repeat(&self) -> bool {
        self.medians.is_empty()
    }

    pub(super) fn frame_ended(&mut self, sample: &FrameSample) {
        self.peak = self.peak.max(sample.memory);
        if sample.phase != Phase::Warmup {
            self.frames += 1;
            self.began.get_or_insert(sample.at);
            self.until = self.until.max(sample.at + sample.whole);
        }
    }

    pub(super) fn saw(&mut self, seen: &SeenFrame) {
        self.no_number += u64::from(seen.no_number);
        self.found += seen.detections.len() as u64;
        for detection in &seen.detections {
            *self.per_class.entry(detection.class).or_default() += 1;
        }
        if let Some(truth) = &seen.truth {
            self.judge.push(&seen.detections, truth);
        }
    }

    pub(super) fn ended(&mut self, ended: SlotOutcome) {
        self.running = false;
        self.peak = self.peak.max(ended.peak);
        self.description = ended.description.or(self.description.take());
        self.medians.extend(self.meter.performance().map(|p| p.whole.p50_ms));
        // What went wrong in one repeat is not mended by the next.
        match &self.status {
            Some((Status::Failed | Status::Interrupted, _)) => {}
            _ => self.status = Some((ended.status, ended.reason)),
        }
    }

    /// Whether it runs on a GPU.
    pub(super) fn on_gpu(&self) -> bool {
        self.description.as_ref().is_some_and(|info| !info.device.starts_with("cpu"))
    }

    /// Whether it runs on the host. Before it is loaded neither is known.
    pub(super) fn on_host(&self) -> bool {
        self.description.is_some() && !self.on_gpu()
    }

    /// What its memory is a figure of.
    pub(super) fn what(&self) -> MeasuredWhat {
        match (self.on_gpu(), self.teller) {
            (true, _) => MeasuredWhat::GpuAllocations,
            (false, MemoryReporter::Growth) => MeasuredWhat::SlotMemory,
            (false, _) => MeasuredWhat::ProcessMemory,
        }
    }

    pub(super) fn view<'n>(
        &self,
        plan: &BenchPlan,
        name: &'n str,
        limit_gb: Option<f64>,
    ) -> SlotProgress<'n> {
        let seconds = self.until.saturating_sub(self.began.unwrap_or_default()).as_secs_f64();
        SlotProgress {
            slot: self.slot,
            name,
            frames: self.frames,
            of: plan.frames(),
            fps: (seconds > 0.0).then(|| self.frames as f64 / seconds),
            what: self.what(),
            memory: self.memory,
            limit_gb,
        }
    }

    fn detections(&self) -> DetectionSummary {
        let name = |class: u32| {
            let known = self.names.get(class as usize).cloned();
            known.unwrap_or_else(|| format!("class {class}"))
        };
        DetectionSummary {
            total: self.found,
            per_class: self.per_class.iter().map(|(&class, &n)| (name(class), n)).collect(),
            per_frame_mean: (self.frames > 0).then(|| self.found as f64 / self.frames as f64),
        }
    }
}

impl Recorder<'_> {
    /// A slot so far.
    pub(super) fn model(&self, slot: usize) -> ModelRecord {
        let page = &self.pages[slot];
        let (status, reason) = match (&self.layout.slots[slot], &page.status) {
            (Assignment::Skip(why), _) => (Status::Skipped, Some(why.clone())),
            (_, Some((status, reason))) => (*status, reason.clone()),
            (_, None) => {
                let did = if page.running { "was still running" } else { "had not begun" };
                (Status::Interrupted, Some(format!("it {did} when this was written")))
            }
        };
        let why = reason.clone().unwrap_or_else(|| "nothing was measured".to_string());
        let mut model = ModelRecord::idle(slot, status, &why, self.memory(page, &why));
        model.reason = reason;
        model.name = self.name(slot);
        model.model_info.clone_from(&page.description);
        match &page.estimate {
            Some(Ok(estimate)) => model.estimate = Some(*estimate),
            Some(Err(why)) => {
                model.unknown.insert("estimate".to_string(), why.clone());
            }
            None => {}
        }
        model.performance = page.meter.performance();
        if let Some(performance) = model.performance.as_mut().filter(|_| self.plan.repeat > 1) {
            performance.repeats_p50_ms.clone_from(&page.medians);
            performance.repeats_interval_ms = over_repeats(&page.medians);
        }
        if model.performance.is_some() {
            model.detection_summary = Some(page.detections());
            model.accuracy = page.judge.accuracy();
            let unknown = "the truth about these frames is not known";
            model.unknown.insert("accuracy".to_string(), unknown.to_string());
        }
        let known = [
            ("model_info", model.model_info.is_some()),
            ("performance", model.performance.is_some()),
            ("estimate", model.estimate.is_some()),
            ("detection_summary", model.detection_summary.is_some()),
            ("accuracy", model.accuracy.is_some()),
        ];
        for (field, _) in known.into_iter().filter(|(_, known)| *known) {
            model.unknown.remove(field);
        }
        model.timeline = page.meter.timeline();
        model
    }

    fn memory(&self, page: &SlotState, why: &str) -> GpuMemory {
        let what = page.what();
        let (limit, limit_type) = (self.limit_of(page), self.holder(page).limit_type);
        let engine = page.description.as_ref().map_or("", |info| info.engine.as_str());
        let (name, obtained, counted_peak) = match page.teller {
            MemoryReporter::Nobody => {
                let why = match page.description {
                    Some(_) => "the engine does not tell what it holds on the device",
                    None => why,
                };
                return GpuMemory::unmeasured(what, limit, limit_type, why);
            }
            MemoryReporter::Process => {
                let name = "/proc/self/statm, less what slots before it left";
                (name.to_string(), HowObtained::Sampled, None)
            }
            MemoryReporter::Growth => {
                let name = "/proc/self/statm, growth while it alone was loaded and tried";
                (name.to_string(), HowObtained::Sampled, None)
            }
            MemoryReporter::Guard => {
                ("guard, by the slot's tag".to_string(), HowObtained::Counted, page.peak)
            }
            MemoryReporter::EngineOnGpu | MemoryReporter::EngineOnHost => {
                (format!("{engine} allocator"), HowObtained::Counted, page.peak)
            }
        };
        let peak = if self.plan.repeat > 1 { page.peak } else { counted_peak };
        page.meter.memory(&MemorySource {
            what,
            name,
            obtained,
            limit,
            limit_type,
            counted_peak: peak,
            system_peak: page.system_peak.map(|gib| Bytes((gib * (1u64 << 30) as f64) as u64)),
        })
    }

    /// All that is known so far. `last` is the record of a run that is over.
    pub(super) fn snapshot(&self, interruption: Option<String>, last: bool) -> BenchRecord {
        let now = SystemTime::now();
        let (host, device_name) = proc::names();
        let models = [self.model(0), self.model(1)];
        let performances = || models.iter().filter_map(|model| model.performance.as_ref());
        let frames = performances().map(|p| p.frames).sum();
        let wall = performances().map(|p| p.wall_s).sum();
        let facts = self.machine.facts();
        let mut record = BenchRecord {
            schema_version: SCHEMA_VERSION.to_string(),
            metadata: Metadata {
                tool: "plimsoll".to_string(),
                tool_version: env!("CARGO_PKG_VERSION").to_string(),
                run_name: self.folder.name().to_string(),
                started: rfc3339(self.started),
                finished: last.then(|| rfc3339(now)),
                host,
                os: std::env::consts::OS.to_string(),
                arch: std::env::consts::ARCH.to_string(),
                device_name,
                command_line: self.command_line(),
            },
            config: self.config(),
            input_source: InputSource {
                streams: self.stream_records(),
                unpaired: self.streams.unpaired(),
            },
            system_metrics: self.system.metrics(
                self.architecture,
                &facts,
                self.usage(&models),
                frames,
                wall,
            ),
            memory_safety: self.safety(),
            shared: self.shared_memory(),
            doubts: self.doubts(),
            summary: RecordSummary::default(),
            interrupted: interruption.is_some(),
            interruption,
            models,
        };
        record.settle();
        record
    }

    /// How the run was asked for.
    pub(super) fn config(&self) -> crate::record::BenchConfig {
        let limit = Bytes((self.safety.limit_gb * (1u64 << 30) as f64) as u64);
        self.plan.config(self.layout.mode, self.layout.paired(), limit)
    }

    /// The command, without passwords and tokens.
    fn command_line(&self) -> Vec<String> {
        self.plan.command_line.iter().map(|word| redact(word).into_owned()).collect()
    }

    /// What was read; a frame that no slot can use is as bad as one that cannot be read.
    fn stream_records(&self) -> Vec<InputStream> {
        let mut streams = self.streams.records();
        for stream in &mut streams {
            let unfit = stream.slots.iter().map(|&slot| self.pages[slot].unfit).max();
            stream.corrupt += unfit.unwrap_or(0);
        }
        streams
    }

    fn shared_memory(&self) -> SharedMemory {
        if let Some(shared) = self.shared_on_device() {
            return shared;
        }
        let Some(before) = self.shared else {
            return SharedMemory::unmeasured("no model was loaded, or the system does not tell");
        };
        if let Some(whole) = self.process_peak {
            let slots = self.pages.iter().filter(|page| page.teller == MemoryReporter::Growth);
            let own: u64 = slots.filter_map(|page| page.memory).map(Bytes::get).sum();
            return SharedMemory {
                what: "the process beside its two models".to_string(),
                peak_gb: Some(Bytes(whole.get().saturating_sub(own)).as_gib()),
                source: Some("/proc/self/statm".to_string()),
                obtained: Some(HowObtained::Sampled),
                unknown: Unknown::new(),
            };
        }
        SharedMemory {
            what: "the process before a model was loaded".to_string(),
            peak_gb: Some(before.as_gib()),
            source: Some("/proc/self/statm".to_string()),
            obtained: Some(HowObtained::Sampled),
            unknown: Unknown::new(),
        }
    }

    fn doubts(&self) -> Vec<DoubtRecord> {
        let mut doubts = self.doubts.clone();
        let others = self.machine.others().filter(|percent| *percent > OTHERS);
        if let Some(percent) = others {
            doubts.push(DoubtRecord::new(None, Doubt::OtherLoad { percent }));
        }
        if let Some(why) = self.machine.throttled_by() {
            doubts.push(DoubtRecord::new(None, Doubt::Throttled { why }));
        }
        for page in &self.pages {
            let drift = page.meter.drift().map(|doubt| DoubtRecord::new(Some(page.slot), doubt));
            doubts.extend(drift);
            if page.no_number > 0 {
                let doubt = Doubt::NoNumbers { n: page.no_number, frames: page.frames };
                doubts.push(DoubtRecord::new(Some(page.slot), doubt));
            }
        }
        doubts
    }
}
