//! `trace.csv`, which `replay` reads: each allocation under its number, and its free; written
//! while the events are read.

use std::collections::HashMap;
use std::io::{self, Write};

use plimsoll_guard::watch::GuardEvent;

/// The trace as it is written.
pub(super) struct Trace<'a> {
    /// Nothing where nobody wants it.
    to: Option<&'a mut dyn Write>,
    streams: HashMap<u16, usize>,
    /// What processes held when they ended. It was never freed, and stays so where nobody
    /// allocates after them; where somebody does, it was there for them.
    left: Vec<Place>,
    failed: Option<io::Error>,
}

/// An allocation in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) stream: u16,
}

impl<'a> Trace<'a> {
    pub(super) fn new(to: Option<&'a mut dyn Write>) -> Trace<'a> {
        let mut trace = Trace { to, streams: HashMap::new(), left: Vec::new(), failed: None };
        trace.line(format_args!("op,id,size,stream,t_us\n"));
        trace
    }

    /// A process has ended and held these.
    pub(super) fn left(&mut self, places: impl Iterator<Item = Place>) {
        if self.to.is_some() {
            self.left.extend(places);
            self.left.sort_unstable();
        }
    }

    pub(super) fn allocate(&mut self, place: Place, micros: u128) {
        for left in std::mem::take(&mut self.left) {
            self.event('f', left, micros);
        }
        self.event('a', place, micros);
    }

    pub(super) fn free(&mut self, number: u64, event: &GuardEvent, micros: u128) {
        self.event('f', Place { number, bytes: event.bytes, stream: event.stream }, micros);
    }

    /// All was written, or why not.
    pub(super) fn finish(self) -> io::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn event(&mut self, op: char, place: Place, micros: u128) {
        if self.to.is_some() {
            let next = self.streams.len();
            let stream = *self.streams.entry(place.stream).or_insert(next);
            let (number, bytes) = (place.number + 1, place.bytes);
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
