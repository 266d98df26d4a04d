//! One slot, from loading its model to its last frame, on a measuring thread.
//!
//! Between the end of one step and the start of the next the loop reads the memory once and
//! sends one event; that is its own cost. Between the start and the end of a step it does
//! nothing but the step, and the stopwatch reads the clock once a stage.
//!
//! Warm-up repeats the first frame, because warming up on new ones would use up a folder of
//! four pictures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll_infer::{EngineChoice, InferError, ModelSource, Stage, Stopwatch};

use super::accuracy::SlotTruth;
use super::event::{LoopEnd, SeenFrame, SlotEvent, SlotOpened, SlotOutcome};
use super::feed::{DecodedFrame, FrameFeed};
use super::guarded::{BenchGuard, asked_for};
use super::load::{LoadGate, LoadedSlot, ProcessBases};
use super::pace::{FramePace, FrameTurn};
use super::plan::BenchPlan;
use crate::measure::{FrameSample, Phase};
use crate::record::Status;

/// The report shows this many of the first frames.
const SHOWN: u64 = 2;

/// One repeat of one slot.
pub(super) struct SlotJob<'a> {
    pub(super) slot: usize,
    pub(super) repeat: u32,
    pub(super) plan: &'a BenchPlan,
    pub(super) weights: ModelSource,
    pub(super) engine: EngineChoice,
    /// Why the model must not be loaded.
    pub(super) refused: Option<&'a str>,
    pub(super) events: SyncSender<SlotEvent>,
    pub(super) stop: &'a AtomicBool,
    pub(super) origin: Instant,
    /// The most that an engine may allocate on a GPU.
    pub(super) limit: Bytes,
    /// Memory of the process without a model, once an engine had run in it; for all jobs.
    pub(super) bases: &'a ProcessBases,
    /// What is known about the frames, and how they are read again; `None` where nothing is.
    pub(super) truth: Option<&'a SlotTruth>,
    /// Where two slots run at once.
    pub(super) gate: Option<&'a LoadGate>,
}

/// The times of the stages of one step.
struct StageTimes {
    last: Instant,
    times: [Duration; 3],
}

impl StageTimes {
    fn new(begun: Instant) -> StageTimes {
        StageTimes { last: begun, times: [Duration::ZERO; 3] }
    }

    fn of(&self, stage: Stage) -> Duration {
        self.times[stage as usize]
    }
}

impl Stopwatch for StageTimes {
    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times[stage as usize] = now - self.last;
        self.last = now;
    }
}

impl SlotJob<'_> {
    /// Runs the slot to its end, and sends its outcome.
    pub(super) fn run(self, feed: FrameFeed) {
        // What this thread allocates is the slot's.
        let guard = self.plan.guard.get();
        let _slot = guard.map(|guard| guard.enter(self.slot));
        let before = guard.and_then(BenchGuard::whole).unwrap_or_default();
        let mut outcome = self.load_and_measure(feed);
        // Read before the next slot starts, whose refusals do not count for this one.
        outcome.asked_for = guard.and_then(|guard| asked_for(guard, self.slot, before));
        self.send(SlotEvent::Ended { slot: self.slot, outcome: Box::new(outcome) });
    }

    fn load_and_measure(&self, feed: FrameFeed) -> SlotOutcome {
        let mut loaded = match self.load(feed.is_live()) {
            Some(Ok(loaded)) => loaded,
            ended => {
                self.others_measured();
                return ended.and_then(Result::err).unwrap_or(LoopEnd::Stopped).into();
            }
        };
        let opened = SlotOpened {
            names: loaded.pipeline.decoder().names().to_vec(),
            memory: loaded.probe.reporter,
            description: loaded.describe(),
            before: loaded.before,
            said: loaded.pipeline.engine().info().messages.clone(),
        };
        let (slot, repeat) = (self.slot, self.repeat);
        self.send(SlotEvent::Opened { slot, repeat, opened: Box::new(opened) });
        let end = self.measure(&mut loaded, feed);
        let outcome = self.close(&mut loaded, end);
        self.others_measured();
        if outcome.status == Status::Completed && self.repeat == 0 {
            self.judge(&mut loaded);
        }
        outcome
    }

    /// Where two slots run at once, waits until nothing is measured any more.
    fn others_measured(&self) {
        self.gate.iter().for_each(|gate| gate.wait());
    }

    fn close(&self, loaded: &mut LoadedSlot<'_>, end: LoopEnd) -> SlotOutcome {
        let early = match end {
            LoopEnd::SourceEnded => Some(loaded.measured),
            _ => None,
        };
        let mut outcome = match end {
            LoopEnd::SourceEnded if loaded.measured > 0 => {
                SlotOutcome::new(Status::Completed, None)
            }
            LoopEnd::Vanished(why) => {
                let fatal = loaded.measured == 0 || self.plan.strict;
                let status = if fatal { Status::Failed } else { Status::Completed };
                let vanished = Some((loaded.measured, why.clone()));
                SlotOutcome { vanished, ..SlotOutcome::new(status, fatal.then_some(why)) }
            }
            end => SlotOutcome::from(end),
        };
        if outcome.status == Status::Interrupted {
            outcome.reason = Some("stopped while it ran".to_string());
        }
        // Sent when nothing is measured any more: drawing takes memory and time of its own.
        for (frame, detections) in loaded.shown.drain(..) {
            let (slot, frame) = (self.slot, Box::new(frame));
            self.send(SlotEvent::Picture { slot, frame, detections });
        }
        outcome.description = Some(loaded.describe());
        outcome.peak = loaded.probe.peak(loaded.pipeline.engine());
        outcome.early = early;
        outcome
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, event: SlotEvent) {
        // The receiver outlives every job, so sending does not fail.
        drop(self.events.send(event));
    }

    pub(super) fn corrupt(&self, error: &InferError, unfit: bool) {
        self.send(SlotEvent::Corrupt { slot: self.slot, why: error.to_string(), unfit });
    }

    fn measure(&self, loaded: &mut LoadedSlot<'_>, feed: FrameFeed) -> LoopEnd {
        feed.stage_with(loaded.pipeline.engine().stager());
        let mut next = match self.warm_up(loaded, &feed) {
            Ok(frame) => Some(frame),
            Err(end) => return end,
        };
        let mut pace = FramePace::new(self.plan, Instant::now());
        loop {
            if self.stopped() {
                return LoopEnd::Stopped;
            }
            if pace.over(Instant::now()) {
                return LoopEnd::Done;
            }
            let taken = match next.take() {
                Some(taken) => taken,
                None => match self.fetch(&feed) {
                    Ok(taken) => taken,
                    Err(end) => return end,
                },
            };
            let turn = pace.turn(Instant::now());
            if turn.dropped > 0 {
                self.send(SlotEvent::Dropped { slot: self.slot, frames: turn.dropped });
            }
            if let Some(due) = turn.due {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let phase = pace.phase(Instant::now());
            if let Err(end) = self.frame(loaded, taken, phase, turn) {
                return end;
            }
        }
    }

    /// Warms up on the first good frame, and returns it.
    fn warm_up(
        &self,
        loaded: &mut LoadedSlot<'_>,
        feed: &FrameFeed,
    ) -> Result<DecodedFrame, LoopEnd> {
        let (frame, took) = self.fetch(feed)?;
        for number in 0..self.plan.warmup {
            if self.stopped() {
                return Err(LoopEnd::Stopped);
            }
            let begun = Instant::now();
            let mut times = StageTimes::new(begun);
            match loaded.pipeline.step(&frame, &mut times) {
                Ok(_) => {}
                // The frame comes again, and is counted, where it is measured.
                Err(InferError::Frame { .. }) => break,
                Err(error) => return Err(LoopEnd::Failed(error)),
            }
            let mut sample = self.sample(loaded, &times, begun, begun);
            (sample.frame, sample.phase) = (number, Phase::Warmup);
            self.send(SlotEvent::Frame { sample, seen: None });
        }
        Ok((frame, took))
    }

    /// The next good frame.
    fn fetch(&self, feed: &FrameFeed) -> Result<DecodedFrame, LoopEnd> {
        loop {
            match feed.next() {
                Some(Ok(taken)) => return Ok(taken),
                Some(Err(error @ InferError::Frame { .. })) => {
                    self.corrupt(&error, false);
                }
                // A source that was ended because of the stop did not fail.
                _ if self.stopped() => return Err(LoopEnd::Stopped),
                Some(Err(error @ InferError::Vanished { .. })) => {
                    return Err(LoopEnd::Vanished(error.to_string()));
                }
                Some(Err(error)) => return Err(LoopEnd::Failed(error)),
                None => return Err(LoopEnd::SourceEnded),
            }
            if self.stopped() {
                return Err(LoopEnd::Stopped);
            }
        }
    }

    fn frame(
        &self,
        loaded: &mut LoadedSlot<'_>,
        (frame, decode_ahead): DecodedFrame,
        phase: Phase,
        turn: FrameTurn,
    ) -> Result<(), LoopEnd> {
        let begun = Instant::now();
        let from = turn.due.unwrap_or_else(|| loaded.captured(frame.timestamp, begun));
        let mut times = StageTimes::new(begun);
        let detections = match loaded.pipeline.step(&frame, &mut times) {
            Ok(detections) => detections.to_vec(),
            Err(error @ InferError::Frame { .. }) => {
                self.corrupt(&error, true);
                return Ok(());
            }
            Err(error) => return Err(LoopEnd::Failed(error)),
        };
        let mut sample = self.sample(loaded, &times, begun, from);
        let no_number = loaded.pipeline.decoder().gave_no_number();
        if no_number && self.plan.strict {
            let why = format!("strict: the model gave no number (NaN) for frame {}", frame.name);
            return Err(LoopEnd::Refused(why));
        }
        sample.frame = loaded.measured;
        (sample.phase, sample.late, sample.decode_ahead) = (phase, turn.late, decode_ahead);
        loaded.measured += 1;
        // Many rows show the same frames.
        let shown = if self.plan.rows.len() > 2 { 1 } else { SHOWN };
        let show = self.repeat == 0 && sample.frame < shown;
        let picture = show.then(|| detections.clone());
        let seen = SeenFrame {
            name: frame.name.clone(),
            width: frame.width,
            height: frame.height,
            detections,
            no_number,
        };
        self.send(SlotEvent::Frame { sample, seen: Some(seen) });
        loaded.shown.extend(picture.map(|detections| (frame, detections)));
        Ok(())
    }

    /// A step that began at `begun` and whose latency counts from `from`.
    fn sample(
        &self,
        loaded: &LoadedSlot<'_>,
        times: &StageTimes,
        begun: Instant,
        from: Instant,
    ) -> FrameSample {
        // The step ends with its last stage, except for the return from a function.
        let end = Instant::now();
        let from = from.min(begun);
        FrameSample {
            slot: self.slot,
            at: from.saturating_duration_since(self.origin),
            prepare: times.of(Stage::Prepare),
            inference: times.of(Stage::Inference),
            decode: times.of(Stage::Decode),
            whole: end - from,
            memory: loaded.probe.read(loaded.pipeline.engine()),
            ..FrameSample::default()
        }
    }
}
