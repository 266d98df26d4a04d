//! Which stream has been ordered behind which: events, recorded as late as possible.
//!
//! A driver call for every free is too expensive, so a free only notes the stream and its
//! *epoch*, a number that goes up whenever an event is recorded there. One event covers
//! every free of its epoch and before. Only when another stream wants such a piece, or
//! its page is to be unmapped, is an event recorded, and what has been learnt is kept:
//! per stream the epoch that the host knows to be over (`done`), and per pair of streams
//! the epoch that one has been made to wait for (`passed`). Most questions are answered
//! by comparing two numbers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use super::tag::{Epochs, UseTag, UseTags};
use crate::memory::{Device, Event, Stream};
use plimsoll_machine::error::Result;

/// What is known of a stream. On cache lines of its own: each has a thread that writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct StreamLane {
    epochs: Epochs,
    /// Epochs below this are over, as far as the host knows.
    done: AtomicU64,
    capturing: AtomicBool,
    /// Whether anything was ever freed on this stream.
    used: AtomicBool,
    /// Events of closed epochs that were not over when last asked.
    events: Mutex<LaneEvents>,
    /// By stream: epochs below this are ordered before this lane's next work.
    passed: Mutex<Vec<u64>>,
}

/// Events of a stream, by epoch. They are used under the lock alone, but for those that the host waits for: whoever
/// lets that work go on may need a lock of the pool, whose holder may want the lock of these events. While anyone
/// waits, no event goes back to the device.
#[derive(Debug, Default)]
struct LaneEvents {
    known: VecDeque<(u64, Event)>,
    /// How many threads wait for one of them, and what goes back when none does.
    awaited: u32,
    late: Vec<Event>,
}

impl LaneEvents {
    /// Gives an event back, now or later.
    fn forget(&mut self, device: &dyn Device, event: Event) -> Result<()> {
        if self.awaited == 0 {
            return device.forget(event);
        }
        self.late.push(event);
        Ok(())
    }

    /// Somebody waits no more; goes on past failures.
    fn was_awaited(&mut self, device: &dyn Device) -> Result<()> {
        self.awaited -= 1;
        let late = if self.awaited == 0 { std::mem::take(&mut self.late) } else { Vec::new() };
        late.into_iter().map(|event| device.forget(event)).fold(Ok(()), Result::and)
    }
}

impl StreamLane {
    /// The event that covers a tag of this stream, recorded now if there is none, with the lock of
    /// its events; nothing where the work is known to be over.
    fn covering(
        &self,
        device: &dyn Device,
        tag: UseTag,
    ) -> Result<Option<(MutexGuard<'_, LaneEvents>, u64, Event)>> {
        let is_over = || tag.epoch() < self.done.load(Ordering::Acquire);
        if is_over() {
            return Ok(None);
        }
        let mut events = lock(&self.events);
        if is_over() {
            return Ok(None);
        }
        let known = events.known.iter().find(|(epoch, _)| *epoch >= tag.epoch()).copied();
        if let Some((epoch, event)) = known {
            return Ok(Some((events, epoch, event)));
        }
        let (epoch, event) = self.epochs.close(|| device.record(tag.stream()));
        let event = event?;
        events.known.push_back((epoch, event));
        if events.known.len() > MOST_EVENTS
            && let Some((_, oldest)) = events.known.pop_front()
        {
            events.forget(device, oldest)?;
        }
        Ok(Some((events, epoch, event)))
    }
}

/// What is to be said of the work that a tag stands for.
enum WorkAnswer {
    /// It is over.
    Over,
    /// It is not; the event of this epoch covers it.
    Pending(u64),
    /// A capture is under way, so the device may not be asked.
    Capturing,
}

/// Lanes in a row, and rows: as many as there can be streams.
const ROW: usize = 64;
const ROWS: usize = 1024;

/// Events kept of a stream. The oldest goes when there are more: what it covers, the next does.
const MOST_EVENTS: usize = 64;

/// The order of all streams of a pool.
#[derive(Debug)]
pub(super) struct StreamOrder {
    rows: Box<[OnceLock<Box<[StreamLane]>>]>,
    /// Held for reading while the device is asked, and for writing to begin a capture: no
    /// call is on its way when a capture begins.
    gate: RwLock<()>,
    captures: AtomicU64,
    waits: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamOrder {
    pub(super) fn new() -> StreamOrder {
        StreamOrder {
            rows: std::iter::repeat_with(OnceLock::new).take(ROWS).collect(),
            gate: RwLock::new(()),
            captures: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    fn lane(&self, stream: Stream) -> &StreamLane {
        let index = usize::from(stream.0);
        let row = self.rows[index / ROW]
            .get_or_init(|| std::iter::repeat_with(StreamLane::default).take(ROW).collect());
        &row[index % ROW]
    }

    /// How often a stream or the host was made to wait.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// What a free on this stream notes.
    pub(super) fn tag(&self, stream: Stream) -> UseTag {
        let lane = self.lane(stream);
        if !lane.used.load(Ordering::Relaxed) {
            lane.used.store(true, Ordering::Relaxed);
        }
        UseTag::new(stream, lane.epochs.note())
    }

    /// Who may still use a block that `stream` returns: `taker`, who got it first, may still be at it.
    pub(super) fn users_of(&self, taker: Stream, stream: Stream) -> UseTags {
        let mut users = UseTags::of(self.tag(stream));
        if taker != stream {
            users.add(self.tag(taker));
        }
        users
    }

    /// A tag for every stream that the pool has seen.
    pub(super) fn every_tag(&self) -> UseTags {
        let lanes =
            self.rows.iter().enumerate().filter_map(|(row, lanes)| Some((row, lanes.get()?)));
        lanes
            .flat_map(|(row, lanes)| (0..lanes.len()).map(move |i| Stream((row * ROW + i) as u16)))
            .filter(|stream| self.lane(*stream).used.load(Ordering::Relaxed))
            .map(|stream| self.tag(stream))
            .collect()
    }

    /// Whether work on the stream is behind all of these already; asks no device.
    #[inline]
    pub(super) fn is_behind(&self, stream: Stream, tags: &UseTags) -> bool {
        tags.only(stream)
            || tags.iter().all(|tag| tag.stream() == stream || self.knows(stream, tag))
    }

    fn knows(&self, stream: Stream, tag: UseTag) -> bool {
        if tag.epoch() < self.lane(tag.stream()).done.load(Ordering::Acquire) {
            return true;
        }
        let passed = lock(&self.lane(stream).passed);
        passed.get(usize::from(tag.stream().0)).is_some_and(|passed| tag.epoch() < *passed)
    }

    /// Orders the stream behind all of these, by waiting on the device. `false` where
    /// that cannot be done now: one of them is being captured.
    pub(super) fn put_behind(
        &self,
        device: &dyn Device,
        stream: Stream,
        tags: &UseTags,
    ) -> Result<bool> {
        for tag in tags.iter() {
            if tag.stream() == stream || self.knows(stream, tag) {
                continue;
            }
            // Whether it is over is not asked: the wait costs less than the question, and what
            // is handed out later must not depend on how fast the device is.
            let wait = |event| device.wait(stream, event).map(|()| false);
            match self.ask(device, tag, wait)? {
                WorkAnswer::Over => {}
                WorkAnswer::Capturing => return Ok(false),
                WorkAnswer::Pending(epoch) => {
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    let mut passed = lock(&self.lane(stream).passed);
                    let index = usize::from(tag.stream().0);
                    let length = passed.len().max(index + 1);
                    passed.resize(length, 0);
                    passed[index] = passed[index].max(epoch + 1);
                }
            }
        }
        Ok(true)
    }

    /// Whether all of these are over, so that memory may be unmapped.
    pub(super) fn is_over(&self, device: &dyn Device, tags: &UseTags) -> Result<bool> {
        for tag in tags.iter() {
            if !matches!(self.ask(device, tag, |event| device.is_done(event))?, WorkAnswer::Over) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits, on the host, until all of these are over. To be called without a lock that
    /// the awaited work could need to go on.
    pub(super) fn await_all(&self, device: &dyn Device, tags: &UseTags) -> Result<()> {
        for tag in tags.iter() {
            let lane = self.lane(tag.stream());
            let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            if self.any_capture() {
                continue;
            }
            let Some((mut events, epoch, event)) = lane.covering(device, tag)? else { continue };
            events.awaited += 1;
            drop(events);
            let over = self.await_event(device, event);
            let mut events = lock(&lane.events);
            let retired = match over {
                Ok(()) => StreamOrder::retire(device, lane, &mut events, epoch),
                failed => failed,
            };
            retired.and(events.was_awaited(device))?;
        }
        Ok(())
    }

    fn await_event(&self, device: &dyn Device, event: Event) -> Result<()> {
        if !device.is_done(event)? {
            device.synchronize(event)?;
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Finds out about the work that a tag stands for. Where it is not known to be over,
    /// `pending` may use the event, and says whether it is over now.
    fn ask(
        &self,
        device: &dyn Device,
        tag: UseTag,
        pending: impl FnOnce(Event) -> Result<bool>,
    ) -> Result<WorkAnswer> {
        let lane = self.lane(tag.stream());
        if tag.epoch() < lane.done.load(Ordering::Acquire) {
            return Ok(WorkAnswer::Over);
        }
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if self.any_capture() {
            return Ok(WorkAnswer::Capturing);
        }
        let Some((mut events, epoch, event)) = lane.covering(device, tag)? else {
            return Ok(WorkAnswer::Over);
        };
        if pending(event)? {
            StreamOrder::retire(device, lane, &mut events, epoch)?;
            return Ok(WorkAnswer::Over);
        }
        Ok(WorkAnswer::Pending(epoch))
    }

    /// Notes that an epoch, and all before it, is over.
    fn retire(
        device: &dyn Device,
        lane: &StreamLane,
        events: &mut LaneEvents,
        epoch: u64,
    ) -> Result<()> {
        lane.done.fetch_max(epoch + 1, Ordering::AcqRel);
        while let Some(&(first, event)) = events.known.front() {
            if first > epoch {
                break;
            }
            events.known.pop_front();
            events.forget(device, event)?;
        }
        Ok(())
    }

    /// Whether this stream is being captured.
    pub(super) fn is_capturing(&self, stream: Stream) -> bool {
        self.any_capture() && self.lane(stream).capturing.load(Ordering::Acquire)
    }

    /// Whether any stream is being captured: then the device is not asked anything.
    pub(super) fn any_capture(&self) -> bool {
        self.captures.load(Ordering::SeqCst) > 0
    }

    /// Begins the capture of a stream, once no call to the device is on its way. `false`
    /// if one is under way already, on any stream.
    pub(super) fn begin_capture(&self, stream: Stream) -> bool {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if self.any_capture() {
            return false;
        }
        self.lane(stream).capturing.store(true, Ordering::SeqCst);
        self.captures.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Ends the capture of a stream.
    pub(super) fn end_capture(&self, stream: Stream) {
        if self.lane(stream).capturing.swap(false, Ordering::SeqCst) {
            self.captures.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Gives all events back.
    pub(super) fn forget_all(&self, device: &dyn Device) {
        for lane in self.rows.iter().filter_map(OnceLock::get).flat_map(|row| row.iter()) {
            let mut events = lock(&lane.events);
            let late = std::mem::take(&mut events.late);
            for event in events.known.drain(..).map(|(_, event)| event).chain(late) {
                // A device that fails at the end has nothing left that could be saved.
                drop(device.forget(event));
            }
        }
    }
}
