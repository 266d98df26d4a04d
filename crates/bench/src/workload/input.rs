//! The inputs of a run: sources that are opened and counted, and one reader for two slots.
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
use plimsoll_infer::{Error, Frame, Result, Source, SourceInfo, Stager};

use super::plan::BenchPlan;
use super::slots::Input;
use crate::record::InputStream;

/// A frame and how long it took to decode.
pub(super) type DecodedFrame = (Frame, Option<Duration>);

/// So many frames may wait for the slower of two slots.
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

    fn next_frame(&mut self) -> Option<Result<Frame>> {
        let next = self.inner.next_frame();
        match &next {
            Some(Ok(_)) => self.counts.read.fetch_add(1, Ordering::Relaxed),
            Some(Err(Error::Frame { .. })) => self.counts.corrupt.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        next
    }

    fn decode_time(&self) -> Option<Duration> {
        self.inner.decode_time()
    }
}

/// An input with all of its openings.
pub(super) struct OpenedInput {
    pub(super) input: Input,
    openings: Mutex<Vec<Arc<FrameCounts>>>,
    stoppers: Mutex<Vec<Stopper>>,
    info: Mutex<Option<SourceInfo>>,
}

impl OpenedInput {
    pub(super) fn new(input: &Input) -> OpenedInput {
        OpenedInput {
            input: input.clone(),
            openings: Mutex::default(),
            stoppers: Mutex::default(),
            info: Mutex::default(),
        }
    }

    /// Opens the source. Its frames are brought to where `stager` wants them.
    pub(super) fn open(&self, stager: Option<Stager>) -> Result<Box<dyn Source>> {
        let began = Instant::now();
        let mut options = SourceOptions::default();
        options.scenes = self.input.scenes;
        options.clock = Some(Arc::new(move || began.elapsed()));
        options.stager = stager;
        let inner = source::open(&self.input.spec, &options)?;
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
    pub(super) fn keep_info(&self, source: &dyn Source) {
        *lock(&self.info) = Some(source.info().clone());
    }

    /// Ends openings that may wait for long.
    pub(super) fn stop(&self) {
        lock(&self.stoppers).iter().for_each(|stop| stop());
    }

    /// What was read so far.
    pub(super) fn stream(&self) -> InputStream {
        let info = lock(&self.info).clone();
        InputStream {
            name: redact(&self.input.spec).into_owned(),
            kind: info.as_ref().map_or_else(|| kind(&self.input.spec), |info| info.kind).into(),
            slots: self.input.slots.clone(),
            frames: info.as_ref().and_then(|info| info.frames),
            rate_fps: info.and_then(|info| info.rate),
            read: self.most(|counts| &counts.read),
            corrupt: self.most(|counts| &counts.corrupt),
        }
    }
}

/// The kind of a source that could not be opened.
fn kind(spec: &str) -> &'static str {
    let kinds = ["video", "camera", "rtsp", "gst", "synthetic"];
    kinds.into_iter().find(|kind| spec.starts_with(kind)).unwrap_or("image_dir")
}

/// One pair of sources, or one source, for two slots.
#[derive(Clone)]
pub(super) struct SharedFeed {
    inputs: Vec<Arc<OpenedInput>>,
    again: bool,
    tolerance: Duration,
    lock: Arc<SharedFeedLock>,
}

struct SharedFeedLock {
    state: Mutex<SharedFeedState>,
    changed: Condvar,
    unpaired: Arc<AtomicU64>,
}

struct SharedFeedState {
    queues: [VecDeque<DecodedFrame>; 2],
    /// Which sides still take frames.
    wanted: [bool; 2],
    reader: Option<SharedFeedReader>,
    /// Where the frames of each side are to be brought.
    stagers: [Option<Stager>; 2],
    /// Why there are no more frames, where one side knows already.
    lost: Option<LostSource>,
}

/// Why there are no more frames, for the side that asks second.
struct LostSource {
    why: String,
    vanished: bool,
}

impl LostSource {
    fn new(error: &Error) -> LostSource {
        match error {
            Error::Vanished { why, .. } => LostSource { why: why.clone(), vanished: true },
            Error::Source { why, .. } => LostSource { why: why.clone(), vanished: false },
            other => LostSource { why: other.to_string(), vanished: false },
        }
    }

    fn again(&self, spec: &str) -> Error {
        let (source_name, why) = (redact(spec).into_owned(), self.why.clone());
        match self.vanished {
            true => Error::Vanished { source_name, why },
            false => Error::Source { source_name, why },
        }
    }
}

enum SharedFeedReader {
    Pairs(Pairs),
    One(Box<dyn Source>),
}

impl SharedFeed {
    /// `wanted` says which slots take frames; frames without a partner are added to `unpaired`.
    pub(super) fn new(
        inputs: Vec<Arc<OpenedInput>>,
        plan: &BenchPlan,
        wanted: [bool; 2],
        unpaired: Arc<AtomicU64>,
    ) -> SharedFeed {
        let state = SharedFeedState {
            queues: Default::default(),
            wanted,
            reader: None,
            stagers: Default::default(),
            lost: None,
        };
        SharedFeed {
            inputs,
            again: plan.duration.is_some(),
            tolerance: plan.sync_tolerance,
            lock: Arc::new(SharedFeedLock {
                state: Mutex::new(state),
                changed: Condvar::new(),
                unpaired,
            }),
        }
    }

    /// Whether the frames of a side come from a live source.
    pub(super) fn is_live(&self, side: usize) -> bool {
        self.inputs.get(side).or(self.inputs.first()).is_some_and(|input| input.input.live)
    }

    /// Where the frames of a side are to be brought. Not for two slots at once: the first of
    /// them opens both sources.
    pub(super) fn stage_with(&self, side: usize, stager: Option<Stager>) {
        let mut state = lock(&self.lock.state);
        if !state.wanted[1 - side] {
            state.stagers[side] = stager;
        }
    }

    /// A side takes no more frames.
    pub(super) fn leave(&self, side: usize) {
        lock(&self.lock.state).wanted[side] = false;
        self.lock.changed.notify_all();
    }

    /// The next frame of a side.
    pub(super) fn next(&self, side: usize) -> Option<Result<DecodedFrame>> {
        let other = 1 - side;
        let mut state = lock(&self.lock.state);
        let mut fresh = false;
        loop {
            if let Some(taken) = state.queues[side].pop_front() {
                self.lock.changed.notify_all();
                return Some(Ok(taken));
            }
            if state.wanted[other] && state.queues[other].len() >= QUEUE {
                let waited = self.lock.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(lost) = &state.lost {
                return Some(Err(lost.again(&self.inputs[0].input.spec)));
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
                    if !matches!(error, Error::Frame { .. }) {
                        state.lost = Some(LostSource::new(&error));
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    fn open(&self, stagers: &[Option<Stager>; 2]) -> Result<SharedFeedReader> {
        Ok(match &self.inputs[..] {
            [first, second] => {
                let [one, two] = stagers.clone();
                SharedFeedReader::Pairs(Pairs::new(
                    first.open(one)?,
                    second.open(two)?,
                    self.tolerance,
                ))
            }
            // Its frames are copied for two slots.
            inputs => SharedFeedReader::One(inputs[0].open(None)?),
        })
    }

    /// Reads a frame for each side, into the queues of the sides that want one.
    fn read(&self, state: &mut SharedFeedState) -> Option<Result<()>> {
        let (frames, times) = match state.reader.as_mut()? {
            SharedFeedReader::Pairs(pairs) => {
                let next = pairs.next_pair();
                let alone: u64 = pairs.unpaired().iter().sum();
                self.lock.unpaired.fetch_max(alone, Ordering::Relaxed);
                let times = pairs.sources().map(Source::decode_time);
                (next?.map(|pair| [pair.first, pair.second]), times)
            }
            SharedFeedReader::One(source) => {
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
