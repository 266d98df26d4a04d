//! One slot, from loading its model to its last frame: the measured thread.
//!
//! The loop's own cost is what lies between the end of one step and the start of the next:
//! one look at the memory and one message. Between the start and the end of a step nothing
//! is done but the step; the stopwatch reads the clock once a stage.
//!
//! Warm-up repeats the first frame: a folder of four pictures would otherwise be used up
//! by warming up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Barrier, Mutex, OnceLock};
use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll::platform::give_back_heap;
use plimsoll_infer::{
    Detection, EngineOptions, Frame, InferError, InferenceEngine, ModelSource, Pipeline, Stage,
    Stopwatch, Tensor, engine,
};

use super::end::{End, Ended};
use super::event::{Event, Opened, Seen};
use super::feed::{Feed, Taken};
use super::guarded::{Guard, asked_for};
use super::pace::Pace;
use super::plan::Plan;
use super::probe::{Probe, Resident, Start};
use crate::measure::{FrameSample, Phase};
use crate::record::{ModelDescription, Status};

/// So many of the first frames are shown in the report.
const SHOWN: u64 = 2;

/// So often the first engine runs for nothing: each of its threads must have had its turn.
const SETTLING: u32 = 3;

/// What a slot is to do.
pub(super) struct Job<'a> {
    pub(super) slot: usize,
    pub(super) repeat: u32,
    pub(super) plan: &'a Plan,
    pub(super) weights: ModelSource,
    /// Why they must not be loaded.
    pub(super) refused: Option<&'a str>,
    pub(super) events: SyncSender<Event>,
    pub(super) stop: &'a AtomicBool,
    pub(super) origin: Instant,
    /// What an engine may hold on a GPU.
    pub(super) limit: Bytes,
    /// What the process held without a model, once an engine had run in it; for all jobs.
    pub(super) settled: &'a OnceLock<Option<Bytes>>,
    /// Where two slots run at once.
    pub(super) gate: Option<&'a Gate>,
}

/// Two slots at once are loaded one after the other, so that what the process gains
/// meanwhile is known to be the one's, and begin together.
pub(super) struct Gate {
    loading: Mutex<()>,
    loaded: Barrier,
}

impl Gate {
    pub(super) fn new(slots: usize) -> Gate {
        Gate { loading: Mutex::new(()), loaded: Barrier::new(slots) }
    }
}

/// Takes the times of the stages.
struct Laps {
    last: Instant,
    times: [Duration; 3],
}

impl Stopwatch for Laps {
    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times[stage as usize] = now - self.last;
        self.last = now;
    }
}

/// What the loop keeps.
struct Bench<'a> {
    pipeline: Pipeline,
    probe: Probe<'a>,
    /// What the process held before there was a model.
    before: Option<Bytes>,
    /// When frames of a live source were taken, by our clock: the least delay that was seen.
    capture: Option<Instant>,
    live: bool,
    measured: u64,
    /// The frames that the report will show.
    shown: Vec<(Frame, Vec<Detection>)>,
}

impl<'a> Job<'a> {
    /// Runs the slot to its end and says what became of it.
    pub(super) fn run(self, feed: Feed) {
        // What this thread allocates is the slot's.
        let guard = self.plan.guard.get();
        let _slot = guard.map(|guard| guard.enter(self.slot));
        let before = guard.and_then(Guard::whole).unwrap_or_default();
        let mut ended = self.load_and_measure(feed);
        // Now, as the next slot's refusals are none of this one's.
        ended.asked_for = guard.and_then(|guard| asked_for(guard, self.slot, before));
        self.send(Event::Ended { slot: self.slot, ended: Box::new(ended) });
    }

    fn load_and_measure(&self, feed: Feed) -> Ended {
        let mut bench = match self.load(feed.is_live()) {
            None => return End::Stopped.into(),
            Some(Ok(bench)) => bench,
            Some(Err(end)) => return end.into(),
        };
        let described = self.describe(&bench);
        let opened = Opened {
            names: bench.pipeline.decoder().names().to_vec(),
            memory: bench.probe.teller,
            description: described,
            before: bench.before,
            said: bench.pipeline.engine().info().messages.clone(),
        };
        let (slot, repeat) = (self.slot, self.repeat);
        self.send(Event::Opened { slot, repeat, opened: Box::new(opened) });
        let end = self.measure(&mut bench, feed);
        self.close(&mut bench, end)
    }

    /// Loads the model, alone, and waits until the other slot has done so as well; `None` where
    /// it was stopped.
    fn load(&self, live: bool) -> Option<Result<Bench<'a>, End>> {
        let alone = self.gate.map(|gate| gate.loading.lock());
        let opened = (!self.stopped()).then(|| self.open(live));
        drop(alone);
        if let Some(gate) = self.gate {
            gate.loaded.wait();
        }
        opened
    }

    fn open(&self, live: bool) -> Result<Bench<'a>, End> {
        if let Some(why) = self.refused {
            return Err(End::Refused(format!("model {}: {why}", self.weights.name())));
        }
        let options = self.plan.engine_options(self.limit);
        let (mut engine, before) = self.open_engine(&options)?;
        if self.gate.is_some() {
            // What it takes to run is the slot's, and some engines take it at the first run.
            try_once(&mut *engine, &options)?;
        }
        let base = self.settled.get().copied().flatten().or(before);
        let start = before.zip(base).map(|(before, base)| Start { before, base });
        let probe =
            Probe::new(&*engine, start, self.gate.is_some(), self.slot, self.plan.guard.get());
        let pipeline = Pipeline::new(engine, options.open_size(), self.plan.thresholds())?;
        Ok(Bench {
            pipeline,
            probe,
            before: base,
            capture: None,
            live,
            measured: 0,
            shown: Vec::new(),
        })
    }

    /// Opens the engine, and says what the process held before.
    ///
    /// The first engine on the host brings along what stays in the process when it is gone:
    /// threads, code, the heap's ways. None of that is its model's, so it is opened and tried
    /// once for nothing; equal models then show equal figures, whichever of them is first.
    fn open_engine(
        &self,
        options: &EngineOptions,
    ) -> Result<(Box<dyn InferenceEngine>, Option<Bytes>), InferError> {
        let held = || Resident::open().and_then(|resident| resident.read());
        let open = || engine::open(self.plan.engine, &self.weights, options);
        // What others have freed must not be seen in this one's memory, nor hide it.
        give_back_heap();
        let before = held();
        let mut first = open()?;
        let on_host = first.info().device.starts_with("cpu");
        if self.settled.get().is_some() || !on_host {
            return Ok((first, before));
        }
        for _ in 0..SETTLING {
            try_once(&mut *first, options)?;
        }
        drop(first);
        give_back_heap();
        let before = held();
        self.settled.get_or_init(|| before);
        Ok((open()?, before))
    }

    fn describe(&self, bench: &Bench<'_>) -> ModelDescription {
        let engine = bench.pipeline.engine();
        let mut description = ModelDescription::new(engine.model(), engine.info());
        let (rows, columns) = bench.pipeline.size();
        description.input_size = Some([rows, columns]);
        let classes = bench.pipeline.decoder().names().len();
        description.classes = (classes > 0).then_some(classes);
        description
    }

    fn close(&self, bench: &mut Bench<'_>, end: End) -> Ended {
        let wanted = self.plan.max_frames.is_some() || self.plan.duration.is_some();
        let early = match end {
            End::Dry if wanted => Some(bench.measured),
            _ => None,
        };
        let mut ended = match end {
            End::Dry if bench.measured > 0 => Ended::new(Status::Completed, None),
            End::Vanished(why) => {
                let fatal = bench.measured == 0 || self.plan.strict;
                let status = if fatal { Status::Failed } else { Status::Completed };
                let vanished = Some((bench.measured, why.clone()));
                Ended { vanished, ..Ended::new(status, fatal.then_some(why)) }
            }
            end => Ended::from(end),
        };
        if ended.status == Status::Interrupted {
            ended.reason = Some("stopped while it ran".to_string());
        }
        // Drawn when nothing is measured any more: that takes memory and time of its own.
        for (frame, detections) in bench.shown.drain(..) {
            let (slot, frame) = (self.slot, Box::new(frame));
            self.send(Event::Picture { slot, frame, detections });
        }
        ended.description = Some(self.describe(bench));
        ended.peak = bench.probe.peak(bench.pipeline.engine());
        ended.early = early;
        ended
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn send(&self, event: Event) {
        // The recorder outlives every job; without one there is nobody to tell.
        drop(self.events.send(event));
    }

    fn corrupt(&self, error: &InferError, unfit: bool) {
        self.send(Event::Corrupt { slot: self.slot, why: error.to_string(), unfit });
    }

    fn measure(&self, bench: &mut Bench<'_>, mut feed: Feed) -> End {
        feed.stage_with(bench.pipeline.engine().stager());
        let mut next = match self.first(bench, &mut feed) {
            Ok(frame) => Some(frame),
            Err(end) => return end,
        };
        let mut pace = Pace::new(self.plan, Instant::now());
        loop {
            if self.stopped() {
                return End::Stopped;
            }
            if pace.over(Instant::now()) {
                return End::Done;
            }
            let taken = match next.take() {
                Some(taken) => taken,
                None => match self.fetch(&mut feed) {
                    Ok(taken) => taken,
                    Err(end) => return end,
                },
            };
            let turn = pace.turn(Instant::now());
            if turn.dropped > 0 {
                self.send(Event::Dropped { slot: self.slot, frames: turn.dropped });
            }
            if let Some(due) = turn.due {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let phase = pace.phase(Instant::now());
            if let Err(end) = self.frame(bench, taken, phase, turn.due, turn.late) {
                return end;
            }
        }
    }

    /// The first good frame, after warming up on it.
    fn first(&self, bench: &mut Bench<'_>, feed: &mut Feed) -> Result<Taken, End> {
        let (frame, took) = self.fetch(feed)?;
        for number in 0..self.plan.warmup {
            if self.stopped() {
                return Err(End::Stopped);
            }
            let begun = Instant::now();
            let mut laps = Laps { last: begun, times: [Duration::ZERO; 3] };
            match bench.pipeline.step(&frame, &mut laps) {
                Ok(_) => {}
                // It will be met again, and counted, where it is measured.
                Err(InferError::Frame { .. }) => break,
                Err(error) => return Err(End::Failed(error)),
            }
            let mut sample = self.sample(bench, &laps, begun, begun);
            (sample.frame, sample.phase) = (number, Phase::Warmup);
            self.send(Event::Frame { sample, seen: None });
        }
        Ok((frame, took))
    }

    /// The next good frame.
    fn fetch(&self, feed: &mut Feed) -> Result<Taken, End> {
        loop {
            match feed.next() {
                Some(Ok(taken)) => return Ok(taken),
                Some(Err(error @ InferError::Frame { .. })) => {
                    self.corrupt(&error, false);
                }
                // A source that was ended because of the stop did not fail.
                _ if self.stopped() => return Err(End::Stopped),
                Some(Err(error @ InferError::Vanished { .. })) => {
                    return Err(End::Vanished(error.to_string()));
                }
                Some(Err(error)) => return Err(End::Failed(error)),
                None => return Err(End::Dry),
            }
            if self.stopped() {
                return Err(End::Stopped);
            }
        }
    }

    fn frame(
        &self,
        bench: &mut Bench<'_>,
        (mut frame, decode_ahead): Taken,
        phase: Phase,
        due: Option<Instant>,
        late: Option<bool>,
    ) -> Result<(), End> {
        let begun = Instant::now();
        let from = due.unwrap_or_else(|| bench.captured(frame.timestamp, begun));
        let mut laps = Laps { last: begun, times: [Duration::ZERO; 3] };
        let detections = match bench.pipeline.step(&frame, &mut laps) {
            Ok(detections) => detections.to_vec(),
            Err(error @ InferError::Frame { .. }) => {
                self.corrupt(&error, true);
                return Ok(());
            }
            Err(error) => return Err(End::Failed(error)),
        };
        let mut sample = self.sample(bench, &laps, begun, from);
        let no_number = bench.pipeline.decoder().gave_no_number();
        if no_number && self.plan.strict {
            let why = format!("strict: the model gave no number (NaN) for frame {}", frame.name);
            return Err(End::Refused(why));
        }
        sample.frame = bench.measured;
        (sample.phase, sample.late, sample.decode_ahead) = (phase, late, decode_ahead);
        bench.measured += 1;
        let show = self.repeat == 0 && sample.frame < SHOWN;
        let picture = show.then(|| detections.clone());
        let seen = Seen {
            name: frame.name.clone(),
            width: frame.width,
            height: frame.height,
            detections,
            no_number,
            truth: frame.truth.take(),
        };
        self.send(Event::Frame { sample, seen: Some(seen) });
        bench.shown.extend(picture.map(|detections| (frame, detections)));
        Ok(())
    }

    /// A step that began at `begun` and whose latency counts from `from`.
    fn sample(&self, bench: &Bench<'_>, laps: &Laps, begun: Instant, from: Instant) -> FrameSample {
        // The end of the last stage is the end of the step, give or take a return.
        let end = Instant::now();
        let from = from.min(begun);
        FrameSample {
            slot: self.slot,
            at: from.saturating_duration_since(self.origin),
            prepare: laps.times[Stage::Prepare as usize],
            inference: laps.times[Stage::Inference as usize],
            decode: laps.times[Stage::Decode as usize],
            whole: end - from,
            memory: bench.probe.read(bench.pipeline.engine()),
            ..FrameSample::default()
        }
    }
}

/// Runs a model on nothing.
fn try_once(engine: &mut dyn InferenceEngine, options: &EngineOptions) -> Result<(), InferError> {
    let (rows, columns) = engine.model().input_size.unwrap_or(options.open_size());
    engine.run(&Tensor::zeros(&[1, 3, rows, columns])).map(drop)
}

impl Bench<'_> {
    /// When a frame was captured, where it comes from a live source; else now. A source's
    /// clock has another beginning: the frame that came with the least delay sets it.
    fn captured(&mut self, timestamp: Duration, now: Instant) -> Instant {
        if !self.live {
            return now;
        }
        let Some(origin) = now.checked_sub(timestamp) else { return now };
        let origin = self.capture.map_or(origin, |before| before.min(origin));
        self.capture = Some(origin);
        origin + timestamp
    }
}
