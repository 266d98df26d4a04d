//! Which stream has been ordered behind which: events, recorded as late as possible.
//!
//! A driver call for every free is too dear, so a free only notes the stream and its
//! *epoch*, a number that goes up whenever an event is recorded there. One event covers
//! every free of its epoch and before. Only when another stream wants such a piece, or
//! its page is to be unmapped, is an event recorded, and what has been learnt is kept:
//! per stream the epoch that the host knows to be over (`done`), and per pair of streams
//! the epoch that one has been made to wait for (`passed`). Most questions are answered
//! by comparing two numbers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::epoch::Epochs;
use super::tag::{Tag, Tags};
use crate::error::Result;
use crate::memory::{Device, Event, Stream};

/// What is known of a stream. On cache lines of its own: each has a thread that writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    epochs: Epochs,
    /// Epochs below this are over, as far as the host knows.
    done: AtomicU64,
    capturing: AtomicBool,
    /// Whether anything was ever freed on this stream.
    used: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Events of closed epochs that were not over when last asked.
    events: VecDeque<(u64, Event)>,
    /// By stream: epochs below this are ordered before this lane's next work.
    passed: Vec<u64>,
}

/// Lanes in a row, and rows: as many as there can be streams.
const ROW: usize = 64;
const ROWS: usize = 1024;

/// The order of all streams of a pool.
#[derive(Debug)]
pub(super) struct Order {
    rows: Box<[OnceLock<Box<[Lane]>>]>,
    captures: AtomicU64,
    waits: AtomicU64,
}

impl Order {
    pub(super) fn new() -> Order {
        Order {
            rows: std::iter::repeat_with(OnceLock::new).take(ROWS).collect(),
            captures: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    fn lane(&self, stream: Stream) -> &Lane {
        let index = usize::from(stream.0);
        let row = self.rows[index / ROW]
            .get_or_init(|| std::iter::repeat_with(Lane::default).take(ROW).collect());
        &row[index % ROW]
    }

    fn inner(lane: &Lane) -> MutexGuard<'_, Inner> {
        lane.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a stream or the host was made to wait.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// What a free on this stream notes.
    pub(super) fn tag(&self, stream: Stream) -> Tag {
        let lane = self.lane(stream);
        if !lane.used.load(Ordering::Relaxed) {
            lane.used.store(true, Ordering::Relaxed);
        }
        Tag::new(stream, lane.epochs.note())
    }

    /// A tag for every stream that the pool has seen.
    pub(super) fn every_tag(&self) -> Tags {
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
    pub(super) fn is_behind(&self, stream: Stream, tags: &Tags) -> bool {
        tags.only(stream)
            || tags.iter().all(|tag| tag.stream() == stream || self.knows(stream, tag))
    }

    fn knows(&self, stream: Stream, tag: Tag) -> bool {
        if tag.epoch() < self.lane(tag.stream()).done.load(Ordering::Acquire) {
            return true;
        }
        let inner = Order::inner(self.lane(stream));
        inner.passed.get(usize::from(tag.stream().0)).is_some_and(|passed| tag.epoch() < *passed)
    }

    /// Orders the stream behind all of these, by waiting on the device. `false` where
    /// that cannot be done now: one of them is being captured.
    pub(super) fn put_behind(
        &self,
        device: &dyn Device,
        stream: Stream,
        tags: &Tags,
    ) -> Result<bool> {
        for tag in tags.iter() {
            if tag.stream() == stream || self.knows(stream, tag) {
                continue;
            }
            let Some((epoch, event)) = self.event_for(device, tag)? else {
                if self.knows(stream, tag) {
                    continue;
                }
                return Ok(false);
            };
            device.wait(stream, event)?;
            self.waits.fetch_add(1, Ordering::Relaxed);
            let passed = &mut Order::inner(self.lane(stream)).passed;
            let index = usize::from(tag.stream().0);
            passed.resize(passed.len().max(index + 1), 0);
            passed[index] = passed[index].max(epoch + 1);
        }
        Ok(true)
    }

    /// Whether all of these are over, so that memory may be unmapped; with `patient`, waits
    /// on the host until they are.
    pub(super) fn is_over(&self, device: &dyn Device, tags: &Tags, patient: bool) -> Result<bool> {
        for tag in tags.iter() {
            let lane = self.lane(tag.stream());
            if tag.epoch() < lane.done.load(Ordering::Acquire) {
                continue;
            }
            match self.event_for(device, tag)? {
                None if tag.epoch() < lane.done.load(Ordering::Acquire) => {}
                None => return Ok(false),
                Some(_) if !patient => return Ok(false),
                Some((epoch, event)) => {
                    device.synchronize(event)?;
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    self.retire(device, &mut Order::inner(lane), lane, epoch)?;
                }
            }
        }
        Ok(true)
    }

    /// An event that covers the tag and is not over yet; `None` if it is over now, or
    /// if none can be recorded because the stream is being captured.
    fn event_for(&self, device: &dyn Device, tag: Tag) -> Result<Option<(u64, Event)>> {
        let lane = self.lane(tag.stream());
        if self.captures.load(Ordering::SeqCst) > 0 {
            return Ok(None);
        }
        let mut inner = Order::inner(lane);
        if tag.epoch() == lane.epochs.note() {
            let (epoch, event) = lane.epochs.close(|| device.record(tag.stream()));
            inner.events.push_back((epoch, event?));
        }
        let Some(&(epoch, event)) = inner.events.iter().find(|(epoch, _)| *epoch >= tag.epoch())
        else {
            // Closed, but the recording failed or it is over: over is what `done` says.
            return self.record_again(device, lane, &mut inner, tag);
        };
        if device.is_done(event)? {
            self.retire(device, &mut inner, lane, epoch)?;
            return Ok(None);
        }
        Ok(Some((epoch, event)))
    }

    /// For an epoch whose event could not be recorded when it was closed.
    fn record_again(
        &self,
        device: &dyn Device,
        lane: &Lane,
        inner: &mut Inner,
        tag: Tag,
    ) -> Result<Option<(u64, Event)>> {
        if tag.epoch() < lane.done.load(Ordering::Acquire) {
            return Ok(None);
        }
        let (epoch, event) = lane.epochs.close(|| device.record(tag.stream()));
        let event = event?;
        inner.events.push_back((epoch, event));
        Ok(Some((epoch, event)))
    }

    /// Notes that an epoch, and all before it, is over.
    fn retire(
        &self,
        device: &dyn Device,
        inner: &mut Inner,
        lane: &Lane,
        epoch: u64,
    ) -> Result<()> {
        lane.done.fetch_max(epoch + 1, Ordering::AcqRel);
        while let Some(&(first, event)) = inner.events.front() {
            if first > epoch {
                break;
            }
            inner.events.pop_front();
            device.forget(event)?;
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

    /// Begins or ends the capture of a stream; `false` if that is how it was already.
    pub(super) fn set_capturing(&self, stream: Stream, on: bool) -> bool {
        if self.lane(stream).capturing.swap(on, Ordering::SeqCst) == on {
            return false;
        }
        if on {
            self.captures.fetch_add(1, Ordering::SeqCst);
        } else {
            self.captures.fetch_sub(1, Ordering::SeqCst);
        }
        true
    }

    /// Gives all events back.
    pub(super) fn forget_all(&self, device: &dyn Device) {
        for lane in self.rows.iter().filter_map(OnceLock::get).flat_map(|row| row.iter()) {
            for (_, event) in Order::inner(lane).events.drain(..) {
                // A device that fails at the end has nothing left that could be saved.
                drop(device.forget(event));
            }
        }
    }
}
