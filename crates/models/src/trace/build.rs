//! Turns a recording's own names into slots, and checks it while doing so.
//!
//! The map from id to slot is the standard one, with its keyed hash: a faster hash
//! would let a made-up file put every id into one bucket.

use std::collections::HashMap;

use super::{Trace, TraceEvent, TraceOp, UnfreedBlock};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// Builds a [`Trace`] from events under any ids.
///
/// ```
/// use plimsoll_models::{Bytes, trace::Trace};
///
/// let mut builder = Trace::builder();
/// builder.allocate(7, Bytes::mib(2), 0, 10)?;
/// builder.free(7, 0, 25)?;
/// assert!(builder.free(7, 0, 30).is_err());
/// assert_eq!(builder.finish().peak_live(), Bytes::mib(2));
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TraceBuilder {
    events: Vec<TraceEvent>,
    live: HashMap<u64, Live>,
    free_slots: Vec<u32>,
    slots: u32,
    streams: Vec<u64>,
    stream_index: HashMap<u64, u16>,
    last_stream: Option<(u64, u16)>,
    /// Every id that was allocated, in order: it tells a second free from a stray one.
    allocated: Vec<u64>,
    live_bytes: u64,
    peak_live: u64,
    skipped_frees: u64,
    untimed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    slot: u32,
    size: u64,
    order: usize,
}

/// An event under the recording's own names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    pub(super) op: TraceOp,
    pub(super) id: u64,
    /// May be left out of a free.
    pub(super) size: Option<u64>,
    pub(super) stream: u64,
    pub(super) time_us: Option<u64>,
}

impl TraceBuilder {
    /// Adds an allocation. The id may be any that is not live now.
    pub fn allocate(&mut self, id: u64, size: Bytes, stream: u64, time_us: u64) -> Result<()> {
        let (size, time_us) = (Some(size.get()), Some(time_us));
        self.numbered(Raw { op: TraceOp::Allocate, id, size, stream, time_us })
    }

    /// Adds the free of a live block.
    pub fn free(&mut self, id: u64, stream: u64, time_us: u64) -> Result<()> {
        let time_us = Some(time_us);
        self.numbered(Raw { op: TraceOp::Free, id, size: None, stream, time_us })
    }

    fn numbered(&mut self, raw: Raw) -> Result<()> {
        let number = self.events.len() + 1;
        self.add(raw).map_err(|why| Error::Malformed { what: format!("event {number}"), why })
    }

    /// The trace.
    #[must_use]
    pub fn finish(self) -> Trace {
        let mut left: Vec<_> = self.live.into_iter().collect();
        left.sort_unstable_by_key(|(_, live)| live.order);
        let never_freed = left
            .into_iter()
            .map(|(id, live)| UnfreedBlock { id, size: Bytes(live.size) })
            .collect();
        let mut events = self.events;
        if self.untimed {
            events.iter_mut().for_each(|event| event.time_us = 0);
        }
        Trace {
            events,
            slots: self.slots,
            streams: self.streams,
            peak_live: self.peak_live,
            never_freed,
            skipped_frees: self.skipped_frees,
            timed: !self.untimed,
        }
    }

    /// Makes room for about this many events.
    pub(super) fn reserve(&mut self, events: usize) {
        self.events.reserve(events);
    }

    pub(super) fn is_live(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    pub(super) fn skip_free(&mut self) {
        self.skipped_frees += 1;
    }

    /// The time of the last event.
    pub(super) fn last_time(&self) -> Option<u64> {
        self.events.last().map(|event| event.time_us)
    }

    /// Adds an event, or says why it cannot be; the caller knows where it stood.
    pub(super) fn add(&mut self, raw: Raw) -> Result<(), String> {
        let stream = self.stream(raw.stream)?;
        let (id, size) = match raw.op {
            TraceOp::Allocate => self.hand_out(raw)?,
            TraceOp::Free => self.take_back(raw)?,
        };
        self.untimed |= raw.time_us.is_none();
        let time_us = raw.time_us.unwrap_or_default();
        self.events.push(TraceEvent { size, time_us, id, stream, op: raw.op });
        Ok(())
    }

    fn hand_out(&mut self, raw: Raw) -> Result<(u32, u64), String> {
        let id = raw.id;
        let size = raw.size.ok_or("an allocation without a size")?;
        let live_bytes = self.live_bytes.checked_add(size).ok_or_else(|| {
            format!("with these {size} bytes more than 2^64 are live; the size must be wrong")
        })?;
        let slot = self.free_slots.last().copied().unwrap_or(self.slots);
        let live = Live { slot, size, order: self.allocated.len() };
        match self.live.entry(id) {
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(live),
            std::collections::hash_map::Entry::Occupied(_) => {
                return Err(format!(
                    "id {id} is allocated while it is live; free it first, or give each \
                     allocation its own id"
                ));
            }
        };
        if self.free_slots.pop().is_none() {
            self.slots = self.slots.checked_add(1).ok_or("more than 2^32 blocks are live")?;
        }
        self.allocated.push(id);
        self.live_bytes = live_bytes;
        self.peak_live = self.peak_live.max(live_bytes);
        Ok((slot, size))
    }

    fn take_back(&mut self, raw: Raw) -> Result<(u32, u64), String> {
        let id = raw.id;
        let Some(live) = self.live.get(&id).copied() else {
            return Err(if self.allocated.contains(&id) {
                format!("id {id} is freed, and it was freed before; each block is freed once")
            } else {
                format!("id {id} is freed, and no line before allocates it; is the start missing?")
            });
        };
        if let Some(size) = raw.size.filter(|&size| size != live.size) {
            return Err(format!(
                "id {id} is freed with {size} bytes and was allocated with {}; the two must \
                 be the same, or the free's size empty",
                live.size
            ));
        }
        self.live.remove(&id);
        self.free_slots.push(live.slot);
        self.live_bytes -= live.size;
        Ok((live.slot, live.size))
    }

    fn stream(&mut self, name: u64) -> Result<u16, String> {
        if let Some((_, index)) = self.last_stream.filter(|(last, _)| *last == name) {
            return Ok(index);
        }
        let index = match self.stream_index.get(&name) {
            Some(index) => *index,
            None => {
                let index = u16::try_from(self.streams.len())
                    .map_err(|_| "more than 65,536 streams; is the column right?")?;
                self.streams.push(name);
                self.stream_index.insert(name, index);
                index
            }
        };
        self.last_stream = Some((name, index));
        Ok(index)
    }
}
