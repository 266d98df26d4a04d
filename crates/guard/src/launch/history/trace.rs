//! The allocation trace that `plimsoll replay` reads (`trace.csv`): each allocation with its
//! number, and its free. It is written while the events are read.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::watch::GuardEvent;

/// A trace that is being written.
pub(super) struct AllocationTrace<'a> {
    /// `None` where nobody wants a trace.
    to: Option<&'a mut dyn Write>,
    streams: HashMap<u16, usize>,
    /// Blocks of processes that have ended. They were never freed, and stay so in the trace where
    /// nobody allocates later. Where somebody does, their memory was available, so the trace frees
    /// them before the next allocation.
    left: Vec<TracedBlock>,
    failed: Option<io::Error>,
}

/// An allocation in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TracedBlock {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) stream: u16,
}

impl<'a> AllocationTrace<'a> {
    pub(super) fn new(to: Option<&'a mut dyn Write>) -> AllocationTrace<'a> {
        let mut trace =
            AllocationTrace { to, streams: HashMap::new(), left: Vec::new(), failed: None };
        trace.line(format_args!("op,id,size,stream,t_us\n"));
        trace
    }

    /// Says which blocks a process still had when it ended.
    pub(super) fn left(&mut self, blocks: impl Iterator<Item = TracedBlock>) {
        if self.to.is_some() {
            self.left.extend(blocks);
            self.left.sort_unstable();
        }
    }

    pub(super) fn allocate(&mut self, block: TracedBlock, micros: u128) {
        for left in std::mem::take(&mut self.left) {
            self.event('f', left, micros);
        }
        self.event('a', block, micros);
    }

    pub(super) fn free(&mut self, number: u64, event: &GuardEvent, micros: u128) {
        self.event('f', TracedBlock { number, bytes: event.bytes, stream: event.stream }, micros);
    }

    /// Whether all of it was written.
    pub(super) fn finish(self) -> io::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn event(&mut self, op: char, block: TracedBlock, micros: u128) {
        if self.to.is_some() {
            let next = self.streams.len();
            let stream = *self.streams.entry(block.stream).or_insert(next);
            let (number, bytes) = (block.number + 1, block.bytes);
            self.line(format_args!("{op},{number},{bytes},{stream},{micros}\n"));
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if let Some(Err(error)) = self.to.as_mut().map(|to| to.write_fmt(text)) {
            self.failed = Some(error);
            self.to = None;
        }
    }
}
