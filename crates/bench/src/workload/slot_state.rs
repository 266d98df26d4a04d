//! One slot, as far as it is known while the run goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll::Bytes;

use super::accuracy::SlotJudged;
use super::event::{MemoryReporter, SeenFrame, SlotOpened, SlotOutcome};
use super::plan::BenchPlan;
use super::progress::SlotProgress;
use super::slots::ResolvedSlot;
use crate::measure::{FrameSample, Phase, SlotMeter};
use crate::record::{
    DetectionSummary, EnergyOf, MeasuredWhat, MemoryEstimate, ModelDescription, SLOTS, Status,
    model,
};

/// The mean of samples of a power.
#[derive(Debug, Default)]
pub(super) struct PowerMean {
    samples: u32,
    watts: f64,
    of: Option<EnergyOf>,
}

impl PowerMean {
    fn push(&mut self, watts: f64, of: EnergyOf) {
        self.samples += 1;
        self.watts += watts;
        self.of = Some(of);
    }

    /// In watts, and whose; `None` without a sample.
    pub(super) fn mean(&self) -> Option<(f64, EnergyOf)> {
        self.of.map(|of| (self.watts / f64::from(self.samples), of))
    }
}

/// One slot, as far as it is known.
#[derive(Debug)]
pub(super) struct SlotState {
    pub(super) slot: usize,
    /// The name of a row; `None` for a slot.
    row: Option<String>,
    /// The power of the machine while it ran.
    pub(super) power: PowerMean,
    pub(super) meter: SlotMeter,
    pub(super) description: Option<ModelDescription>,
    /// What the model was expected to take, or why there is no estimate.
    pub(super) estimate: Option<Result<MemoryEstimate, String>>,
    /// The type of most of its weights in the file.
    pub(super) weights_type: Option<String>,
    /// The names of the classes.
    pub(super) names: Vec<String>,
    pub(super) reporter: MemoryReporter,
    /// The slot's memory at its last frame.
    pub(super) memory: Option<Bytes>,
    /// Whether that is above the limit.
    pub(super) above_limit: bool,
    pub(super) running: bool,
    /// Frames that were read and could not be prepared.
    pub(super) unfit: u64,
    /// The most of the system's memory in use while the slot ran, in GiB.
    pub(super) system_peak: Option<f64>,
    /// Frames in which the model's output was not a number.
    pub(super) no_number: u64,
    pub(super) peak: Option<Bytes>,
    pub(super) frames: u64,
    /// The status, and the reason, once the slot has ended.
    pub(super) status: Option<(Status, Option<String>)>,
    /// The median latency of each repeat.
    pub(super) medians: Vec<f64>,
    /// The weights that the plan has for the slot.
    weights: Option<String>,
    found: u64,
    per_class: BTreeMap<u32, u64>,
    /// How accurate it is, or why that is not known, once it was judged.
    pub(super) judged: Option<Result<Box<SlotJudged>, String>>,
    began: Option<Duration>,
    until: Duration,
}

impl SlotState {
    pub(super) fn new(slot: usize, plan: &BenchPlan, resolved: &ResolvedSlot) -> SlotState {
        let given = || plan.models.get(slot)?.as_ref().map(|path| path.display().to_string());
        let weights = resolved.weights().map(plimsoll_infer::ModelSource::name);
        let row = resolved.row.clone();
        SlotState { row, ..SlotState::empty(slot, plan, weights.or_else(given)) }
    }

    fn empty(slot: usize, plan: &BenchPlan, weights: Option<String>) -> SlotState {
        SlotState {
            slot,
            row: None,
            power: PowerMean::default(),
            meter: SlotMeter::new(plan.rate),
            description: None,
            estimate: None,
            weights_type: None,
            names: Vec::new(),
            reporter: MemoryReporter::Nobody,
            memory: None,
            above_limit: false,
            running: false,
            unfit: 0,
            system_peak: None,
            no_number: 0,
            peak: None,
            frames: 0,
            status: None,
            medians: Vec::new(),
            weights,
            found: 0,
            per_class: BTreeMap::new(),
            judged: None,
            began: None,
            until: Duration::ZERO,
        }
    }

    /// Begins a repeat: figures are those of the last repeat, peaks those of all. The estimate is
    /// made once, before the first.
    fn begin_repeat(&mut self, plan: &BenchPlan) {
        let empty = SlotState::empty(self.slot, plan, self.weights.take());
        let old = std::mem::replace(self, empty);
        self.row = old.row;
        (self.estimate, self.weights_type) = (old.estimate, old.weights_type);
        self.peak = old.peak;
        self.system_peak = old.system_peak;
        self.status = old.status;
        self.medians = old.medians;
        self.judged = old.judged;
    }

    /// The model is loaded.
    pub(super) fn opened(&mut self, plan: &BenchPlan, repeat: u32, opened: SlotOpened) {
        if repeat > 0 {
            self.begin_repeat(plan);
        }
        (self.names, self.reporter, self.running) = (opened.names, opened.memory, true);
        self.description = Some(opened.description);
    }

    /// Whether no repeat has ended yet.
    pub(super) fn in_first_repeat(&self) -> bool {
        self.medians.is_empty()
    }

    /// A frame was measured.
    pub(super) fn measured(&mut self, sample: &FrameSample) {
        self.meter.push(sample);
        self.memory = sample.memory;
        self.peak = self.peak.max(sample.memory);
        if sample.phase != Phase::Warmup {
            self.frames += 1;
            self.began.get_or_insert(sample.at);
            self.until = self.until.max(sample.at + sample.whole);
        }
    }

    /// What was found in that frame.
    pub(super) fn saw(&mut self, seen: &SeenFrame) {
        self.no_number += u64::from(seen.no_number);
        self.found += seen.detections.len() as u64;
        for detection in &seen.detections {
            *self.per_class.entry(detection.class).or_default() += 1;
        }
    }

    /// The slot, or a repeat of it, is over.
    pub(super) fn ended(&mut self, outcome: SlotOutcome) {
        self.running = false;
        self.peak = self.peak.max(outcome.peak);
        self.description = outcome.description.or(self.description.take());
        self.medians.extend(self.meter.performance().map(|p| p.whole.p50_ms));
        // A later repeat does not undo a failure of an earlier one.
        match &self.status {
            Some((Status::Failed | Status::Interrupted, _)) => {}
            _ => self.status = Some((outcome.status, outcome.reason)),
        }
    }

    /// The system's memory in use and the power of the machine were sampled.
    pub(super) fn sampled(&mut self, ram_used_gb: Option<f64>, power: Option<(f64, EnergyOf)>) {
        if self.running {
            // Loading and warm-up draw another power than the frames that are measured, and the
            // power of a GPU says nothing about a slot on the host.
            let counts = |of| self.frames > 0 && (of == EnergyOf::Machine || self.on_gpu());
            if let Some((watts, of)) = power.filter(|(_, of)| counts(*of)) {
                self.power.push(watts, of);
            }
            self.system_peak =
                [self.system_peak, ram_used_gb].into_iter().flatten().reduce(f64::max);
        }
    }

    /// Whether it runs on a GPU.
    pub(super) fn on_gpu(&self) -> bool {
        self.description.as_ref().is_some_and(ModelDescription::on_gpu)
    }

    /// Whether it runs on the host. Before it is loaded neither is known.
    pub(super) fn on_host(&self) -> bool {
        self.description.is_some() && !self.on_gpu()
    }

    /// What its memory is a figure of.
    pub(super) fn what(&self) -> MeasuredWhat {
        match (self.on_gpu(), self.reporter) {
            (true, _) => MeasuredWhat::GpuAllocations,
            (false, MemoryReporter::Growth) => MeasuredWhat::SlotMemory,
            (false, _) => MeasuredWhat::ProcessMemory,
        }
    }

    /// The model of the slot, named after its file.
    pub(super) fn name(&self) -> Option<String> {
        let ran = self.description.as_ref().map(|info| info.weights.as_str());
        let path = ran.or(self.weights.as_deref())?;
        Some(path.rsplit(['/', '\\']).next().unwrap_or(path).to_string())
    }

    /// The row, or the slot and its model, in words.
    pub(super) fn title(&self) -> String {
        self.row.clone().unwrap_or_else(|| model::label(self.slot, self.name().as_deref()))
    }

    /// The slot or row itself, whatever runs in it.
    pub(super) fn place(&self) -> String {
        match (&self.row, SLOTS.get(self.slot)) {
            (None, Some(name)) => format!("Slot {} ({name})", self.slot),
            _ => format!("Row {}", self.slot + 1),
        }
    }

    /// How far the slot is.
    pub(super) fn progress<'n>(
        &self,
        plan: &BenchPlan,
        slots: usize,
        name: &'n str,
        limit_gb: Option<f64>,
    ) -> SlotProgress<'n> {
        let ran = self.until.saturating_sub(self.began.unwrap_or_default());
        let seconds = ran.as_secs_f64();
        let fps = (seconds > 0.0).then(|| self.frames as f64 / seconds);
        SlotProgress {
            slot: self.slot,
            slots,
            name,
            frames: self.frames,
            of: plan.frames(),
            fps,
            left: self.time_left(plan, ran, fps),
            what: self.what(),
            memory: self.memory,
            limit_gb,
        }
    }

    /// How long this repeat of the slot still takes at its speed so far: until it has all frames,
    /// or its duration is over.
    fn time_left(&self, plan: &BenchPlan, ran: Duration, fps: Option<f64>) -> Option<Duration> {
        let times = [plan.duration, plan.most_time].into_iter().flatten();
        let by_time = times.min().map(|time| time.saturating_sub(ran));
        let frames = plan.frames().map(|all| all.saturating_sub(self.frames) as f64);
        let by_frames = frames.zip(fps).map(|(frames, fps)| frames / fps);
        let by_frames = by_frames.and_then(|left| Duration::try_from_secs_f64(left).ok());
        [by_time, by_frames].into_iter().flatten().min()
    }

    /// How accurate it is, where that is known.
    pub(super) fn judged(&self) -> Option<&SlotJudged> {
        self.judged.as_ref()?.as_deref().ok()
    }

    /// What was found so far.
    pub(super) fn detections(&self) -> DetectionSummary {
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
