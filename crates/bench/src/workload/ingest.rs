//! Takes the events of the measuring threads and the samples of the machine, and files them.
//!
//! It owns every figure of the run and runs on a thread that measures nothing, so nothing is
//! locked between measuring and writing. [`super::snapshot`] builds the record from it at any
//! time.

use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll::probe::ResidentReader;
use plimsoll_infer::{Detection, Keypoint};
use serde_json::{Value, json};

use super::RunContext;
use super::accuracy::{SlotJudged, fuse};
use super::estimate;
use super::event::{MemoryReporter, SeenFrame, SlotEvent, SlotOpened, SlotOutcome};
use super::limits::BenchLimits;
use super::log::Level;
use super::machine::MachineSampler;
use super::output::RunOutput;
use super::picture::picture;
use super::slot_state::SlotState;
use super::slots::Assignment;
use crate::doubt::Doubt;
use crate::measure::{FrameLine, FrameSample, Phase, SystemMeter};
use crate::record::{
    BenchConfig, DoubtRecord, Fusion, MemoryArchitecture, ModelDescription, Status,
};
use crate::report::html::Picture;

/// How often the user sees progress.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Everything that a run has found out so far.
pub(super) struct Ingest<'a> {
    pub(super) run: &'a RunContext<'a>,
    pub(super) limits: BenchLimits<'a>,
    pub(super) output: RunOutput<'a>,
    pub(super) slots: Vec<SlotState>,
    pub(super) memory: RunMemory,
    pub(super) machine: MachineSampler,
    pub(super) system: SystemMeter,
    pub(super) doubts: Vec<DoubtRecord>,
    pub(super) pictures: Vec<Picture>,
    pub(super) fusion: Option<Fusion>,
    next_shown: Instant,
}

impl<'a> Ingest<'a> {
    pub(super) fn new(
        run: &'a RunContext<'a>,
        limits: BenchLimits<'a>,
        output: RunOutput<'a>,
    ) -> Ingest<'a> {
        Ingest {
            run,
            limits,
            output,
            slots: (run.layout.slots.iter().enumerate())
                .map(|(number, slot)| SlotState::new(number, run.plan, slot))
                .collect(),
            memory: RunMemory::new(),
            machine: MachineSampler::new(run.plan.metrics_interval),
            system: SystemMeter::default(),
            doubts: Vec::new(),
            pictures: Vec::new(),
            fusion: None,
            next_shown: run.origin,
        }
    }

    /// How the run was asked for.
    pub(super) fn config(&self) -> BenchConfig {
        let layout = self.run.layout;
        self.run.plan.config(layout.mode_name(), layout.paired(), self.limits.requested())
    }

    /// Tells the user and the log what is about to run.
    pub(super) fn announce(&mut self) {
        let device = self.run.plan.device;
        let backends: Vec<(String, String)> = (self.run.layout.slots.iter().zip(&self.slots))
            .map(|(slot, state)| {
                let text = match &slot.assignment {
                    Assignment::Run(weights) => {
                        format!("{} on {device}, {}", slot.engine, weights.name())
                    }
                    Assignment::Skip(why) => format!("skipped: {why}"),
                };
                (state.place(), text)
            })
            .collect();
        let safety = self.limits.safety(&self.slots);
        self.output.progress.started(self.output.folder.path(), &safety, &backends);
        self.output.info("run started");
        self.log_config();
        for (state, (_, text)) in self.slots.iter().zip(&backends) {
            self.output.info(&format!("{}: {text}", state.title()));
        }
        self.estimate();
    }

    fn log_config(&mut self) {
        self.output.info(&format!("command: {}", self.run.plan.command_line.join(" ")));
        let config = serde_json::to_string(&self.config()).unwrap_or_default();
        self.output.info(&format!("config: {config}"));
        for stream in self.run.inputs.records() {
            // Rows are counted from one, as in the report.
            let (what, first) =
                if self.run.layout.mode.is_some() { ("slot", 0) } else { ("row", 1) };
            let slots: Vec<String> =
                stream.slots.iter().map(|at| (at + first).to_string()).collect();
            let text = format!("source: {} for {what} {}", stream.name, slots.join(" and "));
            self.output.info(&text);
        }
        let safety = self.limits.safety(&self.slots);
        self.output.info(&format!(
            "limit: {:.3} GiB, effective {:.3} GiB, profile {}, type {}, verified {}, by {:?}",
            safety.limit_gb,
            safety.effective_limit_gb,
            safety.profile.as_deref().unwrap_or("none"),
            safety.limit_type,
            safety.verified,
            safety.methods_applied
        ));
        self.output.warn_once(safety.warnings);
    }

    /// Says what each model is expected to take, from its file alone. An estimate refuses
    /// nothing: the measurement decides.
    fn estimate(&mut self) {
        for (slot, resolved) in self.slots.iter_mut().zip(&self.run.layout.slots) {
            let Assignment::Run(weights) = &resolved.assignment else { continue };
            let estimate = estimate::of(weights, resolved.engine, self.run.plan);
            let text = match &estimate {
                Ok(estimate) => {
                    estimate::words(&estimate.memory, estimate.high, self.limits.effective())
                }
                Err(why) => format!("no estimate: {why}"),
            };
            slot.weights_type = estimate.as_ref().ok().and_then(|file| file.weights_type.clone());
            slot.estimate = Some(estimate.map(|file| file.memory));
            let name = slot.title();
            self.output.info(&format!("{name}: {text}"));
            self.output.progress.estimated(&name, &text);
        }
    }

    /// Takes an event. Returns the slot that it ended, if it did.
    pub(super) fn take(&mut self, event: SlotEvent) -> Option<usize> {
        match event {
            SlotEvent::Opened { slot, repeat, opened } => self.opened(slot, repeat, *opened),
            SlotEvent::Frame { mut sample, seen } => {
                // Whether the machine throttles is known only on this thread.
                if sample.phase == Phase::Steady && self.machine.is_throttled() {
                    sample.phase = Phase::Throttled;
                }
                self.frame(&sample, seen);
            }
            SlotEvent::Picture { slot, frame, detections } => {
                let state = &self.slots[slot];
                let name = format!("{}: {}", state.title(), frame.name);
                self.pictures.extend(picture(name, &frame, &detections, &state.names));
            }
            SlotEvent::Dropped { slot, frames } => self.slots[slot].meter.dropped(frames),
            SlotEvent::Corrupt { slot, why, unfit } => {
                self.slots[slot].unfit += u64::from(unfit);
                self.output.skipped(&format!("{}: skipped {why}", self.slots[slot].title()));
            }
            SlotEvent::Judging { slot, images, of } => {
                // Power and memory are those of the frames that were measured.
                self.slots[slot].running = false;
                let now = Instant::now();
                if now >= self.next_shown {
                    self.next_shown = now + TICK;
                    let title = self.slots[slot].title();
                    self.output.progress.judging(&title, images, of);
                }
            }
            SlotEvent::Judged { slot, judged } => self.judged(slot, judged),
            SlotEvent::Ended { slot, outcome } => {
                self.ended(slot, *outcome);
                return Some(slot);
            }
        }
        None
    }

    fn judged(&mut self, slot: usize, judged: Result<Box<SlotJudged>, String>) {
        if let Err(why) = &judged {
            let text = format!("{}: accuracy is not known: {why}", self.slots[slot].title());
            self.output.warn_once(vec![text]);
        }
        if let Some(why) = judged.as_ref().ok().and_then(|judged| judged.unwritten.clone()) {
            self.output.asked_lost(why);
        }
        self.slots[slot].judged = Some(judged);
        let known: Vec<&SlotJudged> = self.slots.iter().filter_map(SlotState::judged).collect();
        if let ([first, second], true) = (known.as_slice(), self.run.layout.paired()) {
            match fuse(first, second) {
                Ok(fusion) => self.fusion = Some(fusion),
                Err(why) => {
                    self.output.warn_once(vec![format!("the cameras are not fused: {why}")])
                }
            }
        }
    }

    fn opened(&mut self, slot: usize, repeat: u32, mut opened: SlotOpened) {
        self.memory.opened(&opened.description, opened.before, &mut self.system);
        let ModelDescription { engine, device, chosen, input_size, .. } = &opened.description;
        let backend = format!("{engine} on {device} ({chosen})");
        let nodes = &opened.description.nodes_by_provider;
        let details = format!("input {input_size:?}, {nodes:?}");
        let fallbacks = opened.description.fallbacks.clone();
        let said = std::mem::take(&mut opened.said);
        self.slots[slot].opened(self.run.plan, repeat, opened);
        let title = self.slots[slot].title();
        self.output.info(&format!("{title}: {backend}"));
        self.output.log(Level::Debug, &format!("{title}: {details}"));
        for fallback in fallbacks {
            self.output.log(Level::Warn, &format!("{title}: not as asked: {fallback}"));
        }
        self.output.full_messages(&title, &said);
        self.output.progress.opened(&title, &backend);
    }

    fn frame(&mut self, sample: &FrameSample, seen: Option<SeenFrame>) {
        let slot = sample.slot;
        self.check_limits(sample);
        self.slots[slot].measured(sample);
        if let Some(used) = self.memory.used_together(&self.slots, slot) {
            self.system.push_memory(sample.at.as_secs_f64(), used);
        }
        self.output.metric(&FrameLine::from(sample));
        if let Some(seen) = seen {
            self.slots[slot].saw(&seen);
            if self.output.wants_detections() && self.slots[slot].in_first_repeat() {
                let several = self.run.layout.running() > 1;
                self.output.detections(&detections(&seen, several.then_some(slot)));
            }
        }
        let now = Instant::now();
        if now >= self.next_shown {
            self.next_shown = now + TICK;
            self.show(slot);
        }
    }

    /// Compares what is in use at a frame with the limit.
    fn check_limits(&mut self, sample: &FrameSample) {
        let slot = &mut self.slots[sample.slot];
        let reporter = slot.reporter;
        let of_slot = sample.memory.and_then(|used| self.limits.check_slot(slot, used));
        of_slot.iter().for_each(|text| self.output.violation(text));
        let of_rest = match reporter {
            MemoryReporter::Growth => {
                self.memory.read_process().and_then(|used| self.limits.check_process(used))
            }
            MemoryReporter::Guard => self.limits.check_device(&self.slots),
            _ => None,
        };
        of_rest.iter().for_each(|text| self.output.violation(text));
    }

    fn show(&mut self, slot: usize) {
        let state = &self.slots[slot];
        let limit_gb = self.limits.of_slot(state).map(Bytes::as_gib);
        let title = state.title();
        let slots = self.slots.len();
        self.output.progress.frames(&state.progress(self.run.plan, slots, &title, limit_gb));
    }

    fn ended(&mut self, slot: usize, mut outcome: SlotOutcome) {
        outcome.reason = self.limits.why_failed(&self.slots[slot], &outcome);
        let reason = outcome.reason.as_deref().map_or(String::new(), |why| format!(": {why}"));
        let level = if outcome.status == Status::Failed { Level::Error } else { Level::Info };
        let title = self.slots[slot].title();
        self.output.log(level, &format!("{title}: {}{reason}", outcome.status));
        self.output.full_messages(&title, &outcome.said);
        if let Some((frames, why)) = outcome.vanished.clone() {
            let doubt = Doubt::SourceVanished { frames, why };
            self.doubts.push(DoubtRecord::new(Some(slot), doubt));
        }
        let wanted = self.run.plan.frames().filter(|_| outcome.early.is_some());
        if let Some((frames, wanted)) = outcome.early.zip(wanted) {
            let doubt = Doubt::SourceEndedEarly { frames, wanted };
            self.doubts.push(DoubtRecord::new(Some(slot), doubt));
        }
        self.slots[slot].ended(outcome);
        if self.slots[slot].meter.performance().is_some() {
            self.show(slot);
        }
    }

    /// Takes a sample of the machine, and what libraries have logged.
    pub(super) fn sample(&mut self) {
        let sample = self.machine.sample(self.run.origin.elapsed().as_secs_f64());
        self.system.push(&sample);
        let watts = self.machine.watts(&sample);
        self.slots.iter_mut().for_each(|slot| slot.sampled(sample.ram_used_gb, watts));
        self.output.metric(&sample);
        let violation = self.limits.check_system();
        violation.iter().for_each(|text| self.output.violation(text));
        self.output.library_messages();
    }
}

/// The memory of the whole run: what all slots use together, once a frame.
///
/// On a GPU that is what the slots on it use; without one it is the memory of the process. The
/// two are never added: they are different memories, and the limit is about one of them.
pub(super) struct RunMemory {
    pub(super) architecture: MemoryArchitecture,
    /// Memory of the process before the first model was loaded.
    pub(super) before: Option<Bytes>,
    process: Option<ResidentReader>,
    /// The peak of the process, where each of two slots at once has a part of it.
    pub(super) process_peak: Option<Bytes>,
}

impl RunMemory {
    fn new() -> RunMemory {
        RunMemory {
            architecture: MemoryArchitecture::NoGpu,
            before: None,
            process: ResidentReader::open(),
            process_peak: None,
        }
    }

    pub(super) fn with_gpu(&self) -> bool {
        self.architecture != MemoryArchitecture::NoGpu
    }

    /// A model was loaded; `before` is the memory of the process before that.
    fn opened(
        &mut self,
        description: &ModelDescription,
        before: Option<Bytes>,
        system: &mut SystemMeter,
    ) {
        self.before = self.before.or(before);
        if !description.on_gpu() {
            return;
        }
        if !self.with_gpu() {
            // What was summed up until now was the memory of the process.
            system.forget_memory();
        }
        self.architecture = match plimsoll::is_unified() {
            Some(true) => MemoryArchitecture::Unified,
            Some(false) | None => MemoryArchitecture::Discrete,
        };
    }

    /// The memory of the whole process now, which counts for its peak.
    fn read_process(&mut self) -> Option<Bytes> {
        let used = self.process.as_ref().and_then(ResidentReader::read)?;
        self.process_peak = self.process_peak.max(Some(used));
        Some(used)
    }

    /// What all slots use after a frame of this slot; `None` where the slot is not in the memory
    /// that is summed up, or nobody reports it.
    fn used_together(&self, slots: &[SlotState], slot: usize) -> Option<Bytes> {
        let with_gpu = self.with_gpu();
        let current = &slots[slot];
        if current.on_gpu() != with_gpu {
            return None;
        }
        if current.reporter == MemoryReporter::Growth {
            return self.process.as_ref().and_then(ResidentReader::read);
        }
        current.memory?;
        let running = slots.iter().filter(|slot| slot.running && slot.on_gpu() == with_gpu);
        running.filter_map(|slot| slot.memory).reduce(Bytes::saturating_add)
    }
}

/// What a model's task adds to a box, as the last element of a detection; masks as COCO has them.
fn beside_the_box(detection: &Detection) -> Option<Value> {
    if let Some(mask) = detection.mask() {
        let [width, height] = mask.frame_size();
        return Some(
            json!({ "segmentation": { "size": [height, width], "counts": mask.run_lengths() } }),
        );
    }
    if let Some(turned) = detection.oriented() {
        let ([x, y], [width, height]) = (turned.centre, turned.size);
        return Some(json!({ "oriented": [x, y, width, height, turned.angle] }));
    }
    let points = detection.keypoints();
    let point = |point: &Keypoint| json!([point.x, point.y, point.confidence]);
    (!points.is_empty())
        .then(|| json!({ "keypoints": points.iter().map(point).collect::<Vec<Value>>() }))
}

/// The detections of a frame as JSON, with the slot or row where several run.
fn detections(seen: &SeenFrame, slot: Option<usize>) -> Value {
    let round = |value: f32, digits: i32| {
        let scale = 10f64.powi(digits);
        (f64::from(value) * scale).round() / scale
    };
    let found: Vec<Value> = seen
        .detections
        .iter()
        .map(|d| {
            let [left, top, right, bottom] = d.bounds.map(|value| round(value, 3));
            let found = [json!(left), json!(top), json!(right), json!(bottom)];
            let sure = [json!(round(d.confidence, 5)), json!(d.class)];
            found.into_iter().chain(sure).chain(beside_the_box(d)).collect()
        })
        .collect();
    let mut line = json!({
        "frame": seen.name, "width": seen.width, "height": seen.height, "detections": found,
    });
    if let Some((fields, slot)) = line.as_object_mut().zip(slot) {
        fields.insert("slot".to_string(), json!(slot));
    }
    line
}

#[cfg(test)]
mod tests {
    use plimsoll_infer::{Detail, OrientedBox};

    use super::*;

    #[test]
    fn what_a_task_adds_to_a_box_is_written_behind_it() {
        let beside =
            |detail| beside_the_box(&Detection { detail, ..Detection::boxed([0.0; 4], 0.5, 1) });
        assert_eq!(beside(Detail::Box), None);
        let turned = OrientedBox { centre: [4.0, 5.0], size: [2.0, 1.0], angle: 0.5 };
        let expected = json!({ "oriented": [4.0, 5.0, 2.0, 1.0, 0.5] });
        assert_eq!(beside(Detail::Oriented(turned)), Some(expected));
        let points = vec![
            Keypoint { x: 1.0, y: 2.0, confidence: Some(0.25) },
            Keypoint { x: 3.0, y: 4.0, confidence: None },
        ];
        let expected = json!({ "keypoints": [[1.0, 2.0, 0.25], [3.0, 4.0, null]] });
        assert_eq!(beside(Detail::Keypoints(points)), Some(expected));
    }
}
