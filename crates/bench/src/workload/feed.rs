//! Where a slot's frames come from: a source of its own, or its side of a pair.
//!
//! Every opening of a source is counted by itself; slots that take turns read the same
//! frames twice, and the record tells of them once (the larger count).
//!
//! Two slots at once share one pair of sources, or one live source (a camera can be opened
//! once): it is read by whoever needs a frame, and the partner's waits in a short queue.
//! Whoever is far ahead waits for the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_infer::source::pair::Pairs;
use plimsoll_infer::source::{self, SourceOptions, Stopper, redact};
use plimsoll_infer::{Frame, InferError, InferResult, Source, SourceInfo, Stager};

use super::plan::Plan;
use super::slots::{Input, Layout};
use crate::record::Stream;

/// A frame and how long it took to decode.
pub(super) type Taken = (Frame, Option<Duration>);

/// So many frames may wait for the slower of two slots.
const QUEUE: usize = 8;

/// What one opening of a source gave.
#[derive(Debug, Default)]
struct Tally {
    read: AtomicU64,
    corrupt: AtomicU64,
}

/// A source that counts what it gives.
struct Counted {
    inner: Box<dyn Source>,
    tally: Arc<Tally>,
}

impl Source for Counted {
    fn info(&self) -> &SourceInfo {
        self.inner.info()
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        let next = self.inner.next_frame();
        match &next {
            Some(Ok(_)) => self.tally.read.fetch_add(1, Ordering::Relaxed),
            Some(Err(InferError::Frame { .. })) => {
                self.tally.corrupt.fetch_add(1, Ordering::Relaxed)
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
pub(super) struct Tap {
    input: Input,
    openings: Mutex<Vec<Arc<Tally>>>,
    stoppers: Mutex<Vec<Stopper>>,
    info: Mutex<Option<SourceInfo>>,
}

impl Tap {
    fn open(&self, stager: Option<Stager>) -> InferResult<Box<dyn Source>> {
        let began = Instant::now();
        let mut options = SourceOptions::default();
        options.scenes = self.input.scenes;
        options.clock = Some(Arc::new(move || began.elapsed()));
        options.stager = stager;
        let inner = source::open(&self.input.spec, &options)?;
        *lock(&self.info) = Some(inner.info().clone());
        let tally = Arc::new(Tally::default());
        lock(&self.openings).push(Arc::clone(&tally));
        lock(&self.stoppers).extend(inner.stopper());
        Ok(Box::new(Counted { inner, tally }))
    }

    fn most(&self, of: fn(&Tally) -> &AtomicU64) -> u64 {
        lock(&self.openings).iter().map(|t| of(t).load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    fn stream(&self) -> Stream {
        let info = lock(&self.info).clone();
        Stream {
            name: redact(&self.input.spec).into_owned(),
            kind: info.as_ref().map_or_else(|| kind(&self.input.spec), |info| info.kind).into(),
            slots: self.input.slots.clone(),
            frames: info.as_ref().and_then(|info| info.frames),
            rate_fps: info.and_then(|info| info.rate),
            read: self.most(|tally| &tally.read),
            corrupt: self.most(|tally| &tally.corrupt),
        }
    }
}

/// The kind of a source that could not be opened.
fn kind(spec: &str) -> &'static str {
    let kinds = ["video", "camera", "rtsp", "gst", "synthetic"];
    kinds.into_iter().find(|kind| spec.starts_with(kind)).unwrap_or("image_dir")
}

/// All inputs of a run.
pub(super) struct Streams {
    taps: Vec<Arc<Tap>>,
    unpaired: Arc<AtomicU64>,
}

impl Streams {
    pub(super) fn new(layout: &Layout) -> Streams {
        let tap = |input: &Input| {
            Arc::new(Tap {
                input: input.clone(),
                openings: Mutex::default(),
                stoppers: Mutex::default(),
                info: Mutex::default(),
            })
        };
        Streams { taps: layout.inputs.iter().map(tap).collect(), unpaired: Arc::default() }
    }

    /// Ends what may wait for long: a silent camera would hold up the end of a run.
    pub(super) fn stop(&self) {
        for tap in &self.taps {
            lock(&tap.stoppers).iter().for_each(|stop| stop());
        }
    }

    /// What was read so far.
    pub(super) fn records(&self) -> Vec<Stream> {
        self.taps.iter().map(|tap| tap.stream()).collect()
    }

    /// Frames without a partner; `None` where nothing is paired.
    pub(super) fn unpaired(&self) -> Option<u64> {
        (self.taps.len() == 2).then(|| self.unpaired.load(Ordering::Relaxed))
    }

    /// The frames of a slot that runs by itself.
    pub(super) fn alone(&self, plan: &Plan, slot: usize) -> Feed {
        let again = plan.duration.is_some();
        match &self.taps[..] {
            [tap] => Feed::single(tap, again),
            _ => self.split(plan, [slot == 0, slot == 1]).side(slot),
        }
    }

    /// The frames of two slots that run at once.
    pub(super) fn together(&self, plan: &Plan) -> [Feed; 2] {
        match &self.taps[..] {
            [tap] if !tap.input.live => {
                [(); 2].map(|()| Feed::single(tap, plan.duration.is_some()))
            }
            _ => {
                let split = self.split(plan, [true, true]);
                [split.side(0), split.side(1)]
            }
        }
    }

    fn split(&self, plan: &Plan, wanted: [bool; 2]) -> Split {
        Split {
            taps: self.taps.clone(),
            again: plan.duration.is_some(),
            tolerance: plan.sync_tolerance,
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    queues: Default::default(),
                    wanted,
                    reader: None,
                    stagers: Default::default(),
                    gone: None,
                }),
                changed: Condvar::new(),
                unpaired: Arc::clone(&self.unpaired),
            }),
        }
    }
}

/// Frames for a slot.
pub(super) enum Feed {
    Single { tap: Arc<Tap>, source: Option<Box<dyn Source>>, again: bool, stager: Option<Stager> },
    Side { split: Split, side: usize },
}

impl Feed {
    fn single(tap: &Arc<Tap>, again: bool) -> Feed {
        let again = again && !tap.input.live;
        Feed::Single { tap: Arc::clone(tap), source: None, again, stager: None }
    }

    /// Whether frames come when they like.
    pub(super) fn is_live(&self) -> bool {
        match self {
            Feed::Single { tap, .. } => tap.input.live,
            Feed::Side { split, side } => {
                split.taps.get(*side).or(split.taps.first()).is_some_and(|tap| tap.input.live)
            }
        }
    }

    /// Where frames of a source that is not open yet are to be brought as they are decoded. Not
    /// those of a pair for two at once: who comes first opens both sources.
    pub(super) fn stage_with(&mut self, with: Option<Stager>) {
        match self {
            Feed::Single { stager, .. } => *stager = with,
            Feed::Side { split, side } => {
                let mut state = lock(&split.shared.state);
                if !state.wanted[1 - *side] {
                    state.stagers[*side] = with;
                }
            }
        }
    }

    /// The next frame. A bad one is [`InferError::Frame`]: go on.
    pub(super) fn next(&mut self) -> Option<InferResult<Taken>> {
        match self {
            Feed::Single { tap, source, again, stager } => {
                next_single(tap, source, *again, stager.as_ref())
            }
            Feed::Side { split, side } => split.next(*side),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Feed::Side { split, side } = self {
            lock(&split.shared.state).wanted[*side] = false;
            split.shared.changed.notify_all();
        }
    }
}

fn next_single(
    tap: &Tap,
    source: &mut Option<Box<dyn Source>>,
    again: bool,
    stager: Option<&Stager>,
) -> Option<InferResult<Taken>> {
    let fresh = source.is_none();
    let open = match source {
        Some(open) => open,
        None => match tap.open(stager.cloned()) {
            Ok(open) => source.insert(open),
            Err(error) => return Some(Err(error)),
        },
    };
    match open.next_frame() {
        Some(Ok(frame)) => {
            let took = open.decode_time();
            *lock(&tap.info) = Some(open.info().clone());
            Some(Ok((frame, took)))
        }
        // A source that gives nothing at all would be opened forever.
        None if again && !fresh => {
            *source = None;
            next_single(tap, source, false, stager)
        }
        other => other.map(|result| result.map(|frame| (frame, None))),
    }
}

/// One pair of sources, or one source, for two takers.
#[derive(Clone)]
pub(super) struct Split {
    taps: Vec<Arc<Tap>>,
    again: bool,
    tolerance: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    unpaired: Arc<AtomicU64>,
}

struct State {
    queues: [VecDeque<Taken>; 2],
    /// Who still takes frames.
    wanted: [bool; 2],
    reader: Option<Reader>,
    /// Where the frames of each side are brought to.
    stagers: [Option<Stager>; 2],
    /// Why there will be no more, where one side was told already.
    gone: Option<Gone>,
}

/// Why there will be no more frames, for the side that is told second.
struct Gone {
    why: String,
    vanished: bool,
}

impl Gone {
    fn new(error: &InferError) -> Gone {
        match error {
            InferError::Vanished { why, .. } => Gone { why: why.clone(), vanished: true },
            InferError::Source { why, .. } => Gone { why: why.clone(), vanished: false },
            other => Gone { why: other.to_string(), vanished: false },
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

enum Reader {
    Pairs(Pairs),
    One(Box<dyn Source>),
}

impl Split {
    fn side(&self, side: usize) -> Feed {
        Feed::Side { split: self.clone(), side }
    }

    fn next(&self, side: usize) -> Option<InferResult<Taken>> {
        let other = 1 - side;
        let mut state = lock(&self.shared.state);
        let mut fresh = false;
        loop {
            if let Some(taken) = state.queues[side].pop_front() {
                self.shared.changed.notify_all();
                return Some(Ok(taken));
            }
            if state.wanted[other] && state.queues[other].len() >= QUEUE {
                let waited = self.shared.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(gone) = &state.gone {
                return Some(Err(gone.again(&self.taps[0].input.spec)));
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
                        state.gone = Some(Gone::new(&error));
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    fn open(&self, stagers: &[Option<Stager>; 2]) -> InferResult<Reader> {
        Ok(match &self.taps[..] {
            [first, second] => {
                let [one, two] = stagers.clone();
                Reader::Pairs(Pairs::new(first.open(one)?, second.open(two)?, self.tolerance))
            }
            // Its frames are copied for two.
            taps => Reader::One(taps[0].open(None)?),
        })
    }

    /// Reads a frame for each side into the queues of those who want one.
    fn read(&self, state: &mut State) -> Option<InferResult<()>> {
        let (frames, times) = match state.reader.as_mut()? {
            Reader::Pairs(pairs) => {
                let next = pairs.next_pair();
                let alone: u64 = pairs.unpaired().iter().sum();
                self.shared.unpaired.fetch_max(alone, Ordering::Relaxed);
                let times = pairs.sources().map(Source::decode_time);
                (next?.map(|pair| [pair.first, pair.second]), times)
            }
            Reader::One(source) => {
                let next = source.next_frame()?;
                (next.map(|frame| [frame.clone(), frame]), [source.decode_time(); 2])
            }
        };
        Some(frames.map(|frames| {
            for (side, frame) in frames.into_iter().enumerate() {
                if state.wanted[side] {
                    state.queues[side].push_back((frame, times[side]));
                }
            }
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
