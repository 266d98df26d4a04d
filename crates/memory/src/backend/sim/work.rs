//! Streams, events and work on a clock that only moves when it is told to.
//!
//! Order is kept twice. *When* work ends is arithmetic on the clock, and decides whether
//! an event has been passed. *What orders it* is a vector clock per stream: work is
//! ordered behind other work if the stream, a wait or the host saw to it, not because it
//! happened to end earlier. Two pieces of work on the same bytes without such an order
//! are a race even if this run got away with it.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::{Event, Handle, Stream};
use plimsoll_machine::error::{Error, Result};

/// For each stream, the number of its last piece of work that is ordered before.
type SimOrder = Vec<u64>;

#[derive(Debug, Default)]
struct SimLane {
    ends: u64,
    count: u64,
    order: SimOrder,
}

/// Bytes that work uses: their addresses, and the physical memory behind those.
#[derive(Debug, Clone)]
pub(super) struct SimUse {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) handle: Handle,
    /// Where in the handle.
    pub(super) inside: Range<u64>,
}

impl SimUse {
    /// Whether both use the same bytes, at whatever addresses.
    fn meets(&self, other: &SimUse) -> bool {
        self.handle == other.handle
            && self.inside.start < other.inside.end
            && other.inside.start < self.inside.end
    }
}

#[derive(Debug)]
struct SimJob {
    stream: Stream,
    number: u64,
    ends: u64,
    uses: Vec<SimUse>,
}

#[derive(Debug, Clone)]
struct SimMark {
    ends: u64,
    order: SimOrder,
}

#[derive(Debug)]
pub(super) struct SimTimeline {
    now: u64,
    lanes: Vec<SimLane>,
    jobs: Vec<SimJob>,
    /// Events in the order of recording; the first has the number `first_mark`.
    marks: VecDeque<Option<SimMark>>,
    first_mark: u64,
    /// What the host knows to be finished, by asking or by waiting.
    host: SimOrder,
}

impl Default for SimTimeline {
    fn default() -> Self {
        SimTimeline {
            now: 0,
            lanes: vec![SimLane::default()],
            jobs: Vec::new(),
            marks: VecDeque::new(),
            first_mark: 1,
            host: SimOrder::new(),
        }
    }
}

fn merge(into: &mut SimOrder, from: &SimOrder) {
    into.resize(into.len().max(from.len()), 0);
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

fn seen(order: &SimOrder, job: &SimJob) -> bool {
    order.get(job.stream.0 as usize).is_some_and(|number| *number >= job.number)
}

impl SimTimeline {
    pub(super) fn new_stream(&mut self) -> Result<Stream> {
        let stream = Stream::numbered(self.lanes.len() as u64)?;
        self.lanes.push(SimLane::default());
        Ok(stream)
    }

    fn lane(&mut self, stream: Stream) -> &mut SimLane {
        let index = stream.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, SimLane::default);
        }
        &mut self.lanes[index]
    }

    pub(super) fn launch(&mut self, stream: Stream, length: u64, uses: Vec<SimUse>) -> Vec<String> {
        let (now, host) = (self.now, self.host.clone());
        self.lane(stream);
        self.forget_finished();
        let lane = &mut self.lanes[stream.0 as usize];
        // What the host knows to be finished is before whatever it launches next.
        merge(&mut lane.order, &host);
        lane.count += 1;
        lane.ends = lane.ends.max(now) + length;
        let (number, ends, order) = (lane.count, lane.ends, lane.order.clone());
        let overlaps =
            |job: &SimJob| job.uses.iter().any(|one| uses.iter().any(|other| one.meets(other)));
        let races = self
            .jobs
            .iter()
            .filter(|job| job.stream != stream && !seen(&order, job) && overlaps(job))
            .map(|job| format!("work on {stream:?} races with work on {:?}", job.stream))
            .collect();
        let index = stream.0 as usize;
        let order = &mut self.lanes[index].order;
        order.resize(order.len().max(index + 1), 0);
        order[index] = number;
        self.jobs.push(SimJob { stream, number, ends, uses });
        races
    }

    /// Drops work that is over and that every stream and the host know to be over.
    fn forget_finished(&mut self) {
        let (now, host) = (self.now, &self.host);
        self.jobs.retain(|job| job.ends > now || !seen(host, job));
    }

    pub(super) fn advance(&mut self, time: u64) {
        self.now = self.now.saturating_add(time);
    }

    pub(super) fn record(&mut self, stream: Stream, lag: u64) -> Event {
        let now = self.now;
        let lane = self.lane(stream);
        let ends = if lag > 0 { lane.ends.max(now) + lag } else { lane.ends };
        let mark = SimMark { ends, order: lane.order.clone() };
        let event = self.first_mark + self.marks.len() as u64;
        self.marks.push_back(Some(mark));
        Event(event)
    }

    fn mark(&self, event: Event) -> Result<SimMark> {
        let index = event.0.checked_sub(self.first_mark).map(|index| index as usize);
        let mark = index.and_then(|index| self.marks.get(index)).and_then(Clone::clone);
        mark.ok_or_else(|| Error::Device {
            call: "event",
            why: format!("{event:?} was never recorded, or has been given back"),
        })
    }

    pub(super) fn is_done(&mut self, event: Event) -> Result<bool> {
        let mark = self.mark(event)?;
        let done = mark.ends <= self.now;
        if done {
            merge(&mut self.host, &mark.order);
        }
        Ok(done)
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) -> Result<()> {
        let mark = self.mark(event)?;
        let lane = self.lane(stream);
        lane.ends = lane.ends.max(mark.ends);
        merge(&mut lane.order, &mark.order);
        Ok(())
    }

    pub(super) fn synchronize(&mut self, event: Event) -> Result<()> {
        let mark = self.mark(event)?;
        self.now = self.now.max(mark.ends);
        merge(&mut self.host, &mark.order);
        Ok(())
    }

    pub(super) fn forget(&mut self, event: Event) {
        if let Some(index) = event.0.checked_sub(self.first_mark)
            && let Some(mark) = self.marks.get_mut(index as usize)
        {
            *mark = None;
        }
        while let Some(None) = self.marks.front() {
            self.marks.pop_front();
            self.first_mark += 1;
        }
    }

    /// Lets the clock run until a stream has nothing left to do.
    pub(super) fn drain(&mut self, stream: Stream) {
        let lane = self.lane(stream);
        let (ends, order) = (lane.ends, lane.order.clone());
        self.now = self.now.max(ends);
        merge(&mut self.host, &order);
    }

    /// A stream whose work uses part of this range and that nobody has found to have
    /// finished: having ended by luck does not count.
    pub(super) fn user_of(&self, from: u64, to: u64) -> Option<Stream> {
        self.jobs
            .iter()
            .find(|job| {
                !seen(&self.host, job) && job.uses.iter().any(|one| one.from < to && from < one.to)
            })
            .map(|job| job.stream)
    }
}
