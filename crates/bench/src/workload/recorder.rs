//! Takes in what the measured threads tell, and writes it down.
//!
//! It owns every figure of the run and runs on a thread that measures nothing. Metrics are
//! appended as they come; the reports are rewritten whole every few seconds, so that a kill
//! leaves valid ones. A disk that is full is told once and is a doubt; the run goes on, for
//! what is measured can still be shown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use plimsoll::Bytes;
use plimsoll_infer::source::redact;
use serde_json::json;

use super::end::SlotOutcome;
use super::estimate;
use super::event::{MemoryReporter, SeenFrame, SlotEvent, SlotOpened};
use super::feed::InputStreams;
use super::limits::BenchLimits;
use super::log::Level;
use super::picture::picture;
use super::plan::BenchPlan;
use super::probe::Resident;
use super::proc::MachineSampler;
use super::progress::BenchProgress;
use super::slots::{Assignment, ResolvedPlan};
use super::snapshot::SlotState;
use super::{BenchError, Finished};
use crate::doubt::Doubt;
use crate::measure::{FrameLine, FrameSample, Phase, SystemMeter};
use crate::record::time::rfc3339;
use crate::record::{DoubtRecord, MemoryArchitecture, MemorySafety, ModelDescription, Status};
use crate::report::Rendered;
use crate::report::files::{FilesError, Journal, ReportWritten, RunFolder};
use crate::report::html::Picture;

/// How often it looks up from the events, at the least.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Recorder<'a> {
    pub(super) plan: &'a BenchPlan,
    pub(super) layout: &'a ResolvedPlan,
    pub(super) streams: &'a InputStreams,
    pub(super) origin: Instant,
    pub(super) started: SystemTime,
    pub(super) safety: MemorySafety,
    pub(super) limit: Bytes,
    pub(super) limits: BenchLimits,
    pub(super) architecture: MemoryArchitecture,
    pub(super) pages: [SlotState; 2],
    pub(super) system: SystemMeter,
    pub(super) machine: MachineSampler,
    /// What the process held before the first model was loaded.
    pub(super) shared: Option<Bytes>,
    /// The whole process, where slots at once have each a part of it.
    pub(super) process: Option<Resident>,
    pub(super) process_peak: Option<Bytes>,
    pub(super) process_over: bool,
    pub(super) device_over: bool,
    pub(super) doubts: Vec<DoubtRecord>,
    /// Warnings that are in the log already.
    pub(super) warned: Vec<String>,
    pub(super) folder: RunFolder,
    pictures: Vec<Picture>,
    metrics: Journal,
    log: Journal,
    detections: Option<Journal>,
    next_sample: Instant,
    next_report: Instant,
    next_shown: Instant,
}

impl<'a> Recorder<'a> {
    /// Draws the line, makes the folder and opens the files.
    pub(super) fn start(
        plan: &'a BenchPlan,
        layout: &'a ResolvedPlan,
        streams: &'a InputStreams,
        origin: Instant,
    ) -> Result<Recorder<'a>, BenchError> {
        let (limits, report) = BenchLimits::start(plan)?;
        let mut limit = report.effective_limit;
        let mut safety = MemorySafety::from(&report);
        if let Some(guard) = plan.guard.get() {
            limit = guard.hold(limit, plan.keep_free);
            safety.effective_limit_gb = limit.as_gib();
        }
        let started = SystemTime::now();
        let folder = RunFolder::create(&plan.output_dir, plan.run_name.as_deref(), started)?;
        let detections = plan.detections.as_deref().map(fresh).transpose().inspect_err(|_| {
            // There is no run: leave no folder of one.
            drop(std::fs::remove_dir(folder.path()));
        })?;
        Ok(Recorder {
            plan,
            layout,
            streams,
            origin,
            started,
            safety,
            limit,
            limits,
            architecture: MemoryArchitecture::NoGpu,
            pages: [0, 1].map(|slot| SlotState::new(slot, plan)),
            system: SystemMeter::default(),
            machine: MachineSampler::new(plan.metrics_interval),
            shared: None,
            process: Resident::open(),
            process_peak: None,
            process_over: false,
            device_over: false,
            doubts: Vec::new(),
            warned: Vec::new(),
            metrics: folder.metrics()?,
            log: folder.log()?,
            folder,
            pictures: Vec::new(),
            detections,
            next_sample: origin,
            next_report: origin + plan.report_interval,
            next_shown: origin,
        })
    }

    /// Says what is about to run, and writes the first report.
    pub(super) fn announce(&mut self, progress: &mut dyn BenchProgress) {
        let [first, second] = [0, 1].map(|slot| match &self.layout.slots[slot] {
            Assignment::Run(weights) => {
                format!("{} on {}, {}", self.plan.engine, self.plan.device, weights.name())
            }
            Assignment::Skip(why) => format!("skipped: {why}"),
        });
        progress.started(self.folder.path(), &self.safety(), [&first, &second]);
        self.say(progress, "run started");
        self.log_config(progress);
        for (slot, text) in [first, second].into_iter().enumerate() {
            self.say(progress, &format!("{}: {text}", self.title(slot)));
        }
        self.estimate(progress);
        self.report(progress, false);
    }

    /// Says what each model is expected to take, from its file alone. It refuses nothing: the
    /// measurement will tell.
    fn estimate(&mut self, progress: &mut dyn BenchProgress) {
        for slot in 0..self.pages.len() {
            let name = self.title(slot);
            let Assignment::Run(weights) = &self.layout.slots[slot] else { continue };
            let estimate = estimate::of(weights, self.plan);
            let text = match &estimate {
                Ok(estimate) => estimate::words(estimate, self.limit),
                Err(why) => format!("no estimate: {why}"),
            };
            self.pages[slot].estimate = Some(estimate);
            self.say(progress, &format!("{name}: {text}"));
            progress.estimated(&name, &text);
        }
    }

    /// Takes events in until the last sender is gone.
    pub(super) fn record(
        &mut self,
        events: &Receiver<SlotEvent>,
        progress: &mut dyn BenchProgress,
        stop: &AtomicBool,
    ) {
        let tick = TICK.min(self.plan.metrics_interval);
        loop {
            match events.recv_timeout(tick) {
                Ok(event) => self.take(event, progress),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if stop.load(Ordering::Relaxed) {
                self.streams.stop();
            }
            let now = Instant::now();
            if now >= self.next_sample {
                self.next_sample = now + self.plan.metrics_interval;
                self.sample(progress);
                self.log_libraries(progress);
            }
            if now >= self.next_report {
                self.report(progress, false);
                self.next_report = Instant::now() + self.plan.report_interval;
            }
        }
    }

    /// The last report.
    pub(super) fn finish(
        mut self,
        progress: &mut dyn BenchProgress,
        stop: &AtomicBool,
    ) -> Finished {
        self.sample(progress);
        self.log_libraries(progress);
        self.log_warnings(progress);
        let interruption = stop.load(Ordering::Relaxed).then(|| "stopped by the user".to_string());
        self.say(progress, interruption.as_deref().unwrap_or("run finished"));
        let done = self.detections.as_mut().map_or(Ok(()), Journal::flush);
        self.tried(done, progress);
        let mut record = self.snapshot(interruption.clone(), true);
        for doubt in crate::report::sheet::Sheet::new(&record).doubts {
            self.log(progress, Level::Warn, &format!("doubt: {doubt}"));
        }
        let mut written = self.write(&record, progress);
        if self.flush(progress) {
            record = self.snapshot(interruption, true);
            written = self.write(&record, progress);
        }
        Finished { record, folder: self.folder.path().to_path_buf(), written }
    }

    fn take(&mut self, event: SlotEvent, progress: &mut dyn BenchProgress) {
        match event {
            SlotEvent::Opened { slot, repeat, opened } => {
                self.opened(slot, repeat, *opened, progress)
            }
            SlotEvent::Frame { mut sample, seen } => {
                // What holds clocks down is known here alone.
                if sample.phase == Phase::Steady && self.machine.is_throttled() {
                    sample.phase = Phase::Throttled;
                }
                self.frame(&sample, seen, progress);
            }
            SlotEvent::Picture { slot, frame, detections } => {
                let name = format!("{}: {}", self.title(slot), frame.name);
                let names = &self.pages[slot].names;
                self.pictures.extend(picture(name, &frame, &detections, names));
            }
            SlotEvent::Dropped { slot, frames } => self.pages[slot].meter.dropped(frames),
            SlotEvent::Corrupt { slot, why, unfit } => {
                self.pages[slot].unfit += u64::from(unfit);
                self.skipped(progress, slot, &why);
            }
            SlotEvent::Ended { slot, ended } => self.ended(slot, *ended, progress),
        }
    }

    fn opened(
        &mut self,
        slot: usize,
        repeat: u32,
        opened: SlotOpened,
        progress: &mut dyn BenchProgress,
    ) {
        let SlotOpened { description, names, memory, before, said } = opened;
        self.shared = self.shared.or(before);
        if !description.device.starts_with("cpu") {
            if self.architecture == MemoryArchitecture::NoGpu {
                // What was summed up until now was the process's memory.
                self.system.forget_memory();
            }
            self.architecture = match plimsoll::is_unified() {
                Some(true) => MemoryArchitecture::Unified,
                Some(false) | None => MemoryArchitecture::Discrete,
            };
        }
        let ModelDescription { engine, device, chosen, input_size, .. } = &description;
        let backend = format!("{engine} on {device} ({chosen})");
        let details = format!("input {input_size:?}, {:?}", description.nodes_by_provider);
        let fallbacks = description.fallbacks.clone();
        let plan = self.plan;
        let page = &mut self.pages[slot];
        if repeat > 0 {
            page.again(plan);
        }
        (page.names, page.teller, page.running) = (names, memory, true);
        page.description = Some(description);
        let title = self.title(slot);
        self.say(progress, &format!("{title}: {backend}"));
        self.log(progress, Level::Debug, &format!("{title}: {details}"));
        for fallback in fallbacks {
            self.log(progress, Level::Warn, &format!("{title}: not as asked: {fallback}"));
        }
        self.say_whole(progress, slot, &said);
        progress.opened(&title, &backend);
    }

    fn frame(
        &mut self,
        sample: &FrameSample,
        seen: Option<SeenFrame>,
        progress: &mut dyn BenchProgress,
    ) {
        let slot = sample.slot;
        self.watch_line(sample, progress);
        match self.pages[slot].teller {
            MemoryReporter::Growth => self.watch_process(progress),
            MemoryReporter::Guard => self.watch_device(progress),
            _ => {}
        }
        let page = &mut self.pages[slot];
        page.meter.push(sample);
        page.memory = sample.memory;
        page.frame_ended(sample);
        if let Some(held) = self.held_together(slot) {
            self.system.push_memory(sample.at.as_secs_f64(), held);
        }
        let line = self.metrics.json(&FrameLine::from(sample));
        self.tried(line, progress);
        if let Some(seen) = seen {
            self.pages[slot].saw(&seen);
            self.write_detections(slot, &seen, progress);
        }
        let now = Instant::now();
        if now >= self.next_shown {
            self.next_shown = now + TICK;
            self.show(slot, progress);
        }
    }

    fn show(&self, slot: usize, progress: &mut dyn BenchProgress) {
        let limit_gb = self.limit_of(&self.pages[slot]).map(Bytes::as_gib);
        progress.frames(&self.pages[slot].view(self.plan, &self.title(slot), limit_gb));
    }

    fn write_detections(
        &mut self,
        slot: usize,
        seen: &SeenFrame,
        progress: &mut dyn BenchProgress,
    ) {
        let Some(journal) = &mut self.detections else { return };
        if !self.pages[slot].first_repeat() {
            return;
        }
        let round = |value: f32, digits: i32| {
            let scale = 10f64.powi(digits);
            (f64::from(value) * scale).round() / scale
        };
        let found: Vec<_> = seen
            .detections
            .iter()
            .map(|d| {
                let [left, top, right, bottom] = d.bounds.map(|value| round(value, 3));
                json!([left, top, right, bottom, round(d.confidence, 5), d.class])
            })
            .collect();
        let mut line = json!({
            "frame": seen.name, "width": seen.width, "height": seen.height, "detections": found,
        });
        let both = self.layout.slots.iter().all(|slot| slot.weights().is_some());
        if let Some(fields) = line.as_object_mut().filter(|_| both) {
            fields.insert("slot".to_string(), json!(slot));
        }
        let done = journal.json(&line);
        self.tried(done, progress);
    }

    fn ended(&mut self, slot: usize, mut ended: SlotOutcome, progress: &mut dyn BenchProgress) {
        ended.reason = self.why_failed(slot, &ended);
        let reason = ended.reason.as_deref().map_or(String::new(), |why| format!(": {why}"));
        let level = if ended.status == Status::Failed { Level::Error } else { Level::Info };
        let text = format!("{}: {}{reason}", self.title(slot), ended.status);
        self.log(progress, level, &text);
        self.say_whole(progress, slot, &ended.said);
        if let Some((frames, why)) = ended.vanished.clone() {
            let doubt = Doubt::SourceVanished { frames, why };
            self.doubts.push(DoubtRecord::new(Some(slot), doubt));
        }
        let wanted = self.plan.frames().filter(|_| ended.early.is_some());
        if let Some((frames, wanted)) = ended.early.zip(wanted) {
            let doubt = Doubt::SourceEndedEarly { frames, wanted };
            self.doubts.push(DoubtRecord::new(Some(slot), doubt));
        }
        self.pages[slot].ended(ended);
        if self.pages[slot].meter.performance().is_some() {
            self.show(slot, progress);
        }
        let model = self.model(slot);
        progress.ended(&model);
    }

    fn sample(&mut self, progress: &mut dyn BenchProgress) {
        let sample = self.machine.sample(self.origin.elapsed().as_secs_f64());
        self.system.push(&sample);
        for page in self.pages.iter_mut().filter(|page| page.running) {
            page.system_peak =
                [page.system_peak, sample.ram_used_gb].into_iter().flatten().reduce(f64::max);
        }
        let line = self.metrics.json(&sample);
        self.tried(line, progress);
        self.watch_system(progress);
    }

    fn report(&mut self, progress: &mut dyn BenchProgress, last: bool) {
        let why = "the run had not ended when this was written".to_string();
        let record = self.snapshot(Some(why), last);
        let written = self.write(&record, progress);
        let frames = record.summary.frames;
        let text = format!("report after {frames} frames, written: {written}");
        self.log(progress, Level::Debug, &text);
        self.flush(progress);
    }

    /// Whether the reports are whole.
    fn write(
        &mut self,
        record: &crate::record::BenchRecord,
        progress: &mut dyn BenchProgress,
    ) -> bool {
        let written = match Rendered::new(record, &self.pictures) {
            Ok(rendered) => self.folder.write(&rendered),
            Err(error) => {
                let text = format!("the report cannot be rendered: {error}");
                progress.warning(&text);
                self.log(progress, Level::Error, &text);
                Ok(ReportWritten::Not)
            }
        };
        match written {
            Ok(written) => written == ReportWritten::Whole,
            Err(error) => {
                self.tried(Err(error), progress);
                false
            }
        }
    }

    /// Writes out what was gathered; whether something went wrong now.
    fn flush(&mut self, progress: &mut dyn BenchProgress) -> bool {
        let doubts = self.doubts.len();
        let done = self.metrics.flush();
        self.tried(done, progress);
        let done = self.log.flush();
        self.tried(done, progress);
        self.doubts.len() > doubts
    }

    /// Appends a line to `run.log`.
    pub(super) fn write_log(
        &mut self,
        progress: &mut dyn BenchProgress,
        time: SystemTime,
        level: Level,
        text: &str,
    ) {
        let done = self.log.line(&format!("{} {level:<5} {}", rfc3339(time), redact(text)));
        self.tried(done, progress);
    }

    /// What an engine said, whole: a line of its own for each of its lines.
    fn say_whole(&mut self, progress: &mut dyn BenchProgress, slot: usize, said: &[String]) {
        let title = self.title(slot);
        for line in said.iter().flat_map(|said| said.lines()) {
            self.say(progress, &format!("{title}: in full: {line}"));
        }
    }

    /// What could not be written is a doubt, and told at once.
    fn tried(&mut self, done: Result<(), FilesError>, progress: &mut dyn BenchProgress) {
        if let Err(error) = done {
            let why = error.to_string();
            progress.warning(&why);
            self.log(progress, Level::Error, &why);
            self.doubts.push(DoubtRecord::new(None, Doubt::OutputIncomplete { why }));
        }
    }
}

/// A file of detections, emptied if it was there.
fn fresh(path: &std::path::Path) -> Result<Journal, BenchError> {
    std::fs::File::create(path).map_err(|e| {
        BenchError::Plan(format!("cannot write --detections {}: {e}", path.display()))
    })?;
    Ok(Journal::open(path)?)
}
