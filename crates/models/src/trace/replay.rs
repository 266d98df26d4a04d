//! A trace through a memory: what it costs, what it holds.
//!
//! The first pass finds an empty memory (cold), the later ones a memory that has seen
//! the trace before (warm). Blocks that the trace never frees are returned between
//! passes, outside of the measured time. A pass is timed as a whole: reading the clock
//! at every event would cost as much as the event.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Trace, TraceOp};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;
use plimsoll_memory::memory::{Block, Memory, Request, Stream};

/// ReplayWork to be queued on a block that was handed out for a stream.
pub type ReplayWork<'a> = Box<dyn FnMut(&Block, Stream) -> Result<()> + Send + 'a>;

/// What one pass took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Time on the clock; with work on the blocks, that of the memory's own calls, each
    /// timed by itself.
    pub wall: Duration,
    /// The most that was held at a time, since the memory was made.
    pub peak_reserved: Bytes,
}

/// The event at which a pass ended before its time, and how things stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Its index in [`Trace::events`].
    pub event: usize,
    /// What it asked for, or would have returned.
    pub size: Bytes,
    /// What was live then.
    pub live: Bytes,
    /// What was held then.
    pub reserved: Bytes,
}

/// Replays traces through one memory, with streams of its own.
pub struct TraceReplay<'a> {
    memory: &'a dyn Memory,
    trace: &'a Trace,
    streams: Vec<Stream>,
    blocks: Vec<Option<Block>>,
    stopped: Option<Stopped>,
    work: Option<ReplayWork<'a>>,
}

impl fmt::Debug for TraceReplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReplay").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl<'a> TraceReplay<'a> {
    /// A replay of `trace` on `memory`. The trace's first stream is the default one,
    /// the others are made on the device.
    pub fn new(memory: &'a dyn Memory, trace: &'a Trace) -> Result<TraceReplay<'a>> {
        let mut streams = vec![Stream::DEFAULT];
        while streams.len() < trace.streams().len() {
            streams.push(memory.device().new_stream()?);
        }
        Ok(TraceReplay::with(memory, trace, streams))
    }

    /// Puts every event on one stream, for one of many threads.
    pub fn on_stream(memory: &'a dyn Memory, trace: &'a Trace, stream: Stream) -> TraceReplay<'a> {
        let streams = vec![stream; trace.streams().len().max(1)];
        TraceReplay::with(memory, trace, streams)
    }

    fn with(memory: &'a dyn Memory, trace: &'a Trace, streams: Vec<Stream>) -> TraceReplay<'a> {
        let blocks = vec![None; trace.slots()];
        TraceReplay { memory, trace, streams, blocks, stopped: None, work: None }
    }

    /// Queues work on every block that is handed out, so that blocks are returned and used
    /// again while it is in flight.
    #[must_use]
    pub fn with_work(mut self, work: ReplayWork<'a>) -> TraceReplay<'a> {
        self.work = Some(work);
        self
    }

    /// Runs through the trace once.
    pub fn pass(&mut self) -> Result<Pass> {
        let (ran, wall) = match self.work.take() {
            None => {
                let start = Instant::now();
                let ran = self.run();
                (ran, start.elapsed())
            }
            Some(mut work) => {
                let mut inside = Duration::ZERO;
                let ran = self.run_with(&mut work, &mut inside);
                self.work = Some(work);
                (ran, inside)
            }
        };
        self.stopped = ran.as_ref().err().map(|(event, _)| self.stopped_at(*event));
        let cleared = self.clear();
        ran.map_err(|(_, error)| error)?;
        cleared?;
        Ok(Pass { wall, peak_reserved: self.memory.stats().peak_bytes })
    }

    /// Where the last pass ended, if not at the end of the trace.
    #[must_use]
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    fn run(&mut self) -> Result<(), (usize, Error)> {
        for index in 0..self.trace.events().len() {
            self.step(index).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// The same with work on every block; `inside` is the time of the memory's own calls.
    fn run_with(
        &mut self,
        work: &mut ReplayWork<'a>,
        inside: &mut Duration,
    ) -> Result<(), (usize, Error)> {
        for index in 0..self.trace.events().len() {
            let start = Instant::now();
            let handed_out = self.step(index);
            *inside += start.elapsed();
            let queued = handed_out.and_then(|handed_out| match handed_out {
                Some((block, stream)) => work(&block, stream),
                None => Ok(()),
            });
            queued.map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// One event; what was handed out, if it was a request.
    #[inline]
    fn step(&mut self, index: usize) -> Result<Option<(Block, Stream)>> {
        let event = &self.trace.events()[index];
        let stream = self.streams[usize::from(event.stream)];
        let slot = &mut self.blocks[event.id as usize];
        match event.op {
            TraceOp::Allocate => {
                let block = self.memory.allocate(Request::new(event.size).on(stream))?;
                *slot = Some(block);
                Ok(Some((block, stream)))
            }
            TraceOp::Free => match slot.take() {
                Some(block) => self.memory.release(block, stream).map(|()| None),
                None => Err(Error::Malformed {
                    what: format!("slot {}", event.id),
                    why: "is freed while it is empty".to_string(),
                }),
            },
        }
    }

    fn stopped_at(&self, event: usize) -> Stopped {
        let stats = self.memory.stats();
        Stopped {
            event,
            size: Bytes(self.trace.events().get(event).map_or(0, |event| event.size)),
            live: stats.in_use_bytes,
            reserved: stats.total_allocated_bytes,
        }
    }

    /// Returns what the trace left live, or what was live when it failed.
    fn clear(&mut self) -> Result<()> {
        let mut result = Ok(());
        for block in self.blocks.iter_mut().filter_map(Option::take) {
            result = result.and(self.memory.release(block, self.streams[0]));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use plimsoll_memory::backend::sim::{Sim, SimConfig};
    use plimsoll_memory::{MemoryConfig, Pool};

    fn trace() -> Trace {
        let mut builder = Trace::builder();
        for (id, mib) in [(1, 4), (2, 6), (3, 8)] {
            builder.allocate(id, Bytes::mib(mib), 0, id).unwrap();
        }
        builder.free(2, 0, 4).unwrap();
        builder.finish()
    }

    fn pool(total: Bytes) -> Pool {
        let sim = Arc::new(Sim::new(SimConfig::default().with_total(total)));
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        Pool::new(sim, config).unwrap()
    }

    #[test]
    fn a_pass_that_ends_early_says_where() {
        let (trace, pool) = (trace(), pool(Bytes::mib(12)));
        let mut replay = TraceReplay::new(&pool, &trace).unwrap();
        assert!(replay.pass().unwrap_err().is_full_now());
        let stopped = replay.stopped().unwrap();
        assert_eq!((stopped.event, stopped.size), (2, Bytes::mib(8)));
        assert_eq!(stopped.live, Bytes::mib(10));
        assert!(stopped.reserved >= stopped.live);
        assert_eq!(pool.stats().in_use_bytes, Bytes::ZERO, "what was live is returned");
    }

    #[test]
    fn work_is_queued_on_every_block_that_is_handed_out() {
        let (trace, pool) = (trace(), pool(Bytes::gib(1)));
        let mut sizes = Vec::new();
        let mut replay =
            TraceReplay::new(&pool, &trace).unwrap().with_work(Box::new(|block, stream| {
                assert_eq!(stream, Stream::DEFAULT);
                sizes.push(block.size());
                if sizes.len() < 5 {
                    return Ok(());
                }
                Err(Error::Device { call: "launch", why: "told to".to_string() })
            }));
        assert!(replay.pass().unwrap().wall > Duration::ZERO);
        assert!(replay.pass().unwrap_err().to_string().contains("told to"));
        assert_eq!(replay.stopped().unwrap().event, 1);
        drop(replay);
        assert_eq!(sizes, [4, 6, 8, 4, 6].map(Bytes::mib));
        assert_eq!(pool.stats().in_use_bytes, Bytes::ZERO);
    }

    #[test]
    fn a_whole_pass_leaves_nothing_live_and_counts_its_slow_requests() {
        let (trace, pool) = (trace(), pool(Bytes::gib(1)));
        let mut replay = TraceReplay::new(&pool, &trace).unwrap();
        assert!(replay.pass().unwrap().peak_reserved >= trace.peak_live());
        let cold = pool.activity();
        assert!(cold.slow_requests > 0 && cold.slow_time > Duration::ZERO);
        replay.pass().unwrap();
        assert_eq!(replay.stopped(), None);
        assert_eq!(pool.activity().slow_time, cold.slow_time, "warm, nothing is slow");
        assert_eq!(pool.stats().in_use_bytes, Bytes::ZERO);
    }
}
