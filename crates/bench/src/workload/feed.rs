//! The frames of a slot: sources that are opened and counted, for one slot or for two.
//!
//! Each opening of a source has its own count. Slots that take turns read the same frames twice,
//! and the record has the larger count.
//!
//! Two slots that run at once share one pair of sources, or one live source (a camera can be
//! opened only once). Whichever slot needs a frame reads, and the frame of the other slot waits
//! in a short queue. A slot that is far ahead waits for the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_infer::source::pair::Pairs;
use plimsoll_infer::source::{self, SourceOptions, Stopper, redact};
use plimsoll_infer::{Frame, InferError, InferResult, Source, SourceInfo, Stager};

use super::plan::BenchPlan;
use super::slots::{Input, ResolvedPlan};
use crate::record::InputStream;

/// A frame and how long it took to decode.
pub(super) type DecodedFrame = (Frame, Option<Duration>);

/// This many frames may wait for the slower of two slots.
const QUEUE: usize = 8;

/// Frames of one opening of a source.
#[derive(Debug, Default)]
struct FrameCounts {
    read: AtomicU64,
    corrupt: AtomicU64,
}

/// A source that counts its frames.
struct CountingSource {
    inner: Box<dyn Source>,
    counts: Arc<FrameCounts>,
}

impl Source for CountingSource {
    fn info(&self) -> &SourceInfo {
        self.inner.info()
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        let next = self.inner.next_frame();
        match &next {
            Some(Ok(_)) => self.counts.read.fetch_add(1, Ordering::Relaxed),
            Some(Err(InferError::Frame { .. })) => {
                self.counts.corrupt.fetch_add(1, Ordering::Relaxed)
            }
            _ => 0,
        };
        next
    }

    fn decode_time(&self) -> Option<Duration> {
        self.inner.decode_time()
    }
}

/// An input with all of its openings.
struct OpenedInput {
    input: Input,
    openings: Mutex<Vec<Arc<FrameCounts>>>,
    stoppers: Mutex<Vec<Stopper>>,
    info: Mutex<Option<SourceInfo>>,
}

impl OpenedInput {
    fn new(input: &Input) -> OpenedInput {
        OpenedInput {
            input: input.clone(),
            openings: Mutex::default(),
            stoppers: Mutex::default(),
            info: Mutex::default(),
        }
    }

    /// Opens the source. Its frames are brought to where `stager` wants them.
    fn open(&self, stager: Option<Stager>, start_over: bool) -> InferResult<Box<dyn Source>> {
        let began = Instant::now();
        let mut options = SourceOptions::default();
        options.scenes = self.input.scenes;
        options.clock = Some(Arc::new(move || began.elapsed()));
        (options.stager, options.start_over) = (stager, start_over);
        let inner = source::open_all(&self.input.specs, &options)?;
        self.keep_info(&*inner);
        let counts = Arc::new(FrameCounts::default());
        lock(&self.openings).push(Arc::clone(&counts));
        lock(&self.stoppers).extend(inner.stopper());
        Ok(Box::new(CountingSource { inner, counts }))
    }

    fn most(&self, of: fn(&FrameCounts) -> &AtomicU64) -> u64 {
        lock(&self.openings).iter().map(|t| of(t).load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Keeps what an open source reports about itself.
    fn keep_info(&self, source: &dyn Source) {
        *lock(&self.info) = Some(source.info().clone());
    }

    /// Ends openings that may wait for long.
    fn stop(&self) {
        lock(&self.stoppers).iter().for_each(|stop| stop());
    }

    /// What was read so far.
    fn stream(&self) -> InputStream {
        let info = lock(&self.info).clone();
        InputStream {
            name: self.input.name(),
            kind: info.as_ref().map_or_else(|| self.input.kind(), |info| info.kind).into(),
            slots: self.input.slots.clone(),
            frames: info.as_ref().and_then(|info| info.frames),
            rate_fps: info.and_then(|info| info.rate),
            read: self.most(|counts| &counts.read),
            corrupt: self.most(|counts| &counts.corrupt),
        }
    }
}

impl Input {
    /// As the user wrote it, without passwords and tokens.
    fn name(&self) -> String {
        let names: Vec<_> = self.specs.iter().map(|spec| redact(spec)).collect();
        names.join(", ")
    }

    /// The kind of a source that could not be opened.
    fn kind(&self) -> &'static str {
        let kinds = ["video", "camera", "rtsp", "gst", "synthetic"];
        let is = |kind: &&str| self.specs.iter().any(|spec| spec.starts_with(*kind));
        kinds.into_iter().find(is).unwrap_or("image_dir")
    }
}

/// All inputs of a run.
pub(super) struct InputStreams {
    inputs: Vec<Arc<OpenedInput>>,
    unpaired: Arc<AtomicU64>,
}

impl InputStreams {
    pub(super) fn new(layout: &ResolvedPlan) -> InputStreams {
        let inputs = layout.inputs.iter().map(|input| Arc::new(OpenedInput::new(input)));
        InputStreams { inputs: inputs.collect(), unpaired: Arc::default() }
    }

    /// Ends what may wait for long: a silent camera would delay the end of a run.
    pub(super) fn stop(&self) {
        self.inputs.iter().for_each(|input| input.stop());
    }

    /// What was read so far.
    pub(super) fn records(&self) -> Vec<InputStream> {
        self.inputs.iter().map(|input| input.stream()).collect()
    }

    /// Frames without a partner; `None` where nothing is paired.
    pub(super) fn unpaired(&self) -> Option<u64> {
        (self.inputs.len() == 2).then(|| self.unpaired.load(Ordering::Relaxed))
    }

    /// The frames of a slot that runs by itself.
    pub(super) fn alone(&self, plan: &BenchPlan, slot: usize) -> FrameFeed {
        // One live source that ends is not opened again.
        let ends = matches!(&self.inputs[..], [input] if input.input.live);
        let again = plan.starts_over() && !ends;
        // All rows read the one input, each by itself.
        let side = slot.min(1);
        FrameFeed { shared: self.feed(plan, [side == 0, side == 1], again), side }
    }

    /// The frames of two slots that run at once. A source that can be opened twice is.
    pub(super) fn together(&self, plan: &BenchPlan) -> [FrameFeed; 2] {
        if matches!(&self.inputs[..], [input] if !input.input.live) {
            return [0, 1].map(|slot| self.alone(plan, slot));
        }
        let shared = self.feed(plan, [true, true], plan.starts_over());
        [0, 1].map(|side| FrameFeed { shared: Arc::clone(&shared), side })
    }

    fn feed(&self, plan: &BenchPlan, wanted: [bool; 2], again: bool) -> Arc<SharedFeed> {
        Arc::new(SharedFeed {
            inputs: self.inputs.clone(),
            again,
            tolerance: plan.sync_tolerance,
            unpaired: Arc::clone(&self.unpaired),
            state: Mutex::new(FeedState {
                queues: Default::default(),
                wanted,
                reader: None,
                stagers: Default::default(),
                lost: None,
            }),
            changed: Condvar::new(),
        })
    }
}

/// The frames of a slot: its side of a feed.
pub(super) struct FrameFeed {
    shared: Arc<SharedFeed>,
    side: usize,
}

impl FrameFeed {
    /// Whether frames come at their own rate, from a live source.
    pub(super) fn is_live(&self) -> bool {
        let inputs = &self.shared.inputs;
        inputs.get(self.side).or(inputs.first()).is_some_and(|input| input.input.live)
    }

    /// Where frames are to be brought as they are decoded; for sources that are not open yet, and
    /// not for two slots at once, as the first of them opens both sources.
    pub(super) fn stage_with(&self, stager: Option<Stager>) {
        let mut state = lock(&self.shared.state);
        if !state.wanted[1 - self.side] {
            state.stagers[self.side] = stager;
        }
    }

    /// The next frame. After [`InferError::Frame`], a bad frame, there may be more.
    pub(super) fn next(&self) -> Option<InferResult<DecodedFrame>> {
        self.shared.next(self.side)
    }
}

impl Drop for FrameFeed {
    fn drop(&mut self) {
        lock(&self.shared.state).wanted[self.side] = false;
        self.shared.changed.notify_all();
    }
}

/// One source, or a pair of sources, for one slot or for two.
struct SharedFeed {
    inputs: Vec<Arc<OpenedInput>>,
    /// Whether sources that end start over.
    again: bool,
    /// How far apart in time frames of a pair may be.
    tolerance: Duration,
    unpaired: Arc<AtomicU64>,
    state: Mutex<FeedState>,
    /// A queue got shorter, or a side left.
    changed: Condvar,
}

struct FeedState {
    queues: [VecDeque<DecodedFrame>; 2],
    /// Which sides still take frames.
    wanted: [bool; 2],
    reader: Option<FeedReader>,
    /// Where the frames of each side are to be brought.
    stagers: [Option<Stager>; 2],
    /// Why there are no more frames, where one side knows already.
    lost: Option<LostSource>,
}

enum FeedReader {
    Pairs(Pairs),
    One(Box<dyn Source>),
}

/// Why there are no more frames, for the side that asks second.
struct LostSource {
    why: String,
    vanished: bool,
}

impl LostSource {
    fn new(error: &InferError) -> LostSource {
        match error {
            InferError::Vanished { why, .. } => LostSource { why: why.clone(), vanished: true },
            InferError::Source { why, .. } => LostSource { why: why.clone(), vanished: false },
            other => LostSource { why: other.to_string(), vanished: false },
        }
    }

    fn again(&self, spec: &str) -> InferError {
        let (source_name, why) = (redact(spec).into_owned(), self.why.clone());
        match self.vanished {
            true => InferError::Vanished { source_name, why },
            false => InferError::Source { source_name, why },
        }
    }
}

impl SharedFeed {
    /// The next frame of a side.
    fn next(&self, side: usize) -> Option<InferResult<DecodedFrame>> {
        let other = 1 - side;
        let mut state = lock(&self.state);
        let mut fresh = false;
        loop {
            if let Some(taken) = state.queues[side].pop_front() {
                self.changed.notify_all();
                return Some(Ok(taken));
            }
            if state.wanted[other] && state.queues[other].len() >= QUEUE {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(lost) = &state.lost {
                return Some(Err(lost.again(&self.inputs[0].input.name())));
            }
            if state.reader.is_none() {
                fresh = true;
                match self.open(&state.stagers) {
                    Ok(reader) => state.reader = Some(reader),
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.read(&mut state) {
                None if self.again && !fresh => state.reader = None,
                Some(Ok(())) => {}
                None => return None,
                Some(Err(error)) => {
                    if !matches!(error, InferError::Frame { .. }) {
                        state.lost = Some(LostSource::new(&error));
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    fn open(&self, stagers: &[Option<Stager>; 2]) -> InferResult<FeedReader> {
        Ok(match &self.inputs[..] {
            [first, second] => {
                let [one, two] = stagers.clone();
                // Pairs start over together, as their times do.
                let (first, second) = (first.open(one, false)?, second.open(two, false)?);
                FeedReader::Pairs(Pairs::new(first, second, self.tolerance))
            }
            inputs => {
                let stager = stagers.iter().flatten().next().cloned();
                FeedReader::One(inputs[0].open(stager, self.again)?)
            }
        })
    }

    /// Reads a frame for each side that wants one, into its queue.
    fn read(&self, state: &mut FeedState) -> Option<InferResult<()>> {
        let wanted = state.wanted;
        let (frames, times) = match state.reader.as_mut()? {
            FeedReader::Pairs(pairs) => {
                let next = pairs.next_pair();
                let alone: u64 = pairs.unpaired().iter().sum();
                self.unpaired.fetch_max(alone, Ordering::Relaxed);
                let times = pairs.sources().map(Source::decode_time);
                (next?.map(|pair| [Some(pair.first), Some(pair.second)]), times)
            }
            FeedReader::One(source) => {
                let next = source.next_frame()?;
                if next.is_ok() {
                    self.inputs[0].keep_info(&**source);
                }
                let frames = next.map(|frame| match wanted {
                    [true, true] => [Some(frame.clone()), Some(frame)],
                    [first, _] if first => [Some(frame), None],
                    _ => [None, Some(frame)],
                });
                (frames, [source.decode_time(); 2])
            }
        };
        Some(frames.map(|frames| {
            for (side, frame) in frames.into_iter().enumerate() {
                let frame = frame.filter(|_| wanted[side]);
                state.queues[side].extend(frame.map(|frame| (frame, times[side])));
            }
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
