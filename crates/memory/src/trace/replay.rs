//! A trace through a memory: what it costs, what it holds.
//!
//! The first pass finds an empty memory (cold), the later ones a memory that has seen
//! the trace before (warm). Blocks that the trace never frees are returned between
//! passes, outside of the measured time. A pass is timed as a whole: reading the clock
//! at every event would cost as much as the event.

use std::time::{Duration, Instant};

use super::{Op, Trace};
use crate::error::{Error, Result};
use crate::memory::{Block, Memory, Request, Stream};
use crate::units::Bytes;

/// What one pass took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Time on the clock.
    pub wall: Duration,
    /// The most that was held at a time, since the memory was made.
    pub peak_reserved: Bytes,
}

/// Replays traces through one memory, with streams of its own.
#[derive(Debug)]
pub struct Replay<'a> {
    memory: &'a dyn Memory,
    trace: &'a Trace,
    streams: Vec<Stream>,
    blocks: Vec<Option<Block>>,
}

impl<'a> Replay<'a> {
    /// A replay of `trace` on `memory`. The trace's first stream is the default one,
    /// the others are made on the device.
    pub fn new(memory: &'a dyn Memory, trace: &'a Trace) -> Result<Replay<'a>> {
        let mut streams = vec![Stream::DEFAULT];
        while streams.len() < trace.streams().len() {
            streams.push(memory.device().new_stream()?);
        }
        Ok(Replay { memory, trace, streams, blocks: vec![None; trace.slots()] })
    }

    /// Puts every event on one stream, for one of many threads.
    pub fn on_stream(memory: &'a dyn Memory, trace: &'a Trace, stream: Stream) -> Replay<'a> {
        let streams = vec![stream; trace.streams().len().max(1)];
        Replay { memory, trace, streams, blocks: vec![None; trace.slots()] }
    }

    /// Runs through the trace once.
    pub fn pass(&mut self) -> Result<Pass> {
        let start = Instant::now();
        let ran = self.run();
        let wall = start.elapsed();
        let cleared = self.clear();
        ran?;
        cleared?;
        Ok(Pass { wall, peak_reserved: self.memory.stats().peak_bytes })
    }

    fn run(&mut self) -> Result<()> {
        for event in self.trace.events() {
            let stream = self.streams[usize::from(event.stream)];
            let slot = &mut self.blocks[event.id as usize];
            match event.op {
                Op::Allocate => {
                    *slot = Some(self.memory.allocate(Request::new(event.size).on(stream))?);
                }
                Op::Free => match slot.take() {
                    Some(block) => self.memory.release(block, stream)?,
                    None => {
                        return Err(Error::Malformed {
                            what: format!("slot {}", event.id),
                            why: "is freed while it is empty".to_string(),
                        });
                    }
                },
            }
        }
        Ok(())
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
