//! Recorded allocations: who asked for how much, in which order, and what came back.
//!
//! A trace is the only honest load for a pool: what real programs ask for is neither
//! uniform nor random. Two forms are read: the csv of one event a line
//! (`op,id,size,stream,t_us`), and the memory snapshot that PyTorch dumps.
//!
//! A replay takes tens of nanoseconds an event, so the trace must not be what it
//! measures. Everything that can be decided once is decided when the trace is built:
//! ids of any size become *slots*, small numbers that index an array and are used again
//! once freed; streams become small numbers too; a free of what is not live, or an id
//! that is given out twice, is an error with its line. A replay needs no map and no
//! check, and walks one array of 24 bytes an event.
//!
//! ```
//! use plimsoll_models::trace::{Trace, TraceOp};
//!
//! let trace = Trace::parse(b"op,id,size,stream,t_us\na,901,512,7,0\na,902,64,7,3\nf,901,512,7,9\n")?;
//! assert_eq!(trace.peak_live().get(), 576);
//! assert_eq!((trace.slots(), trace.streams()), (2, &[7][..]));
//! let last = trace.events()[2];
//! assert_eq!((last.op, last.id, last.size), (TraceOp::Free, 0, 512));
//! assert_eq!(trace.never_freed()[0].id, 902);
//! # Ok::<(), plimsoll_models::Error>(())
//! ```

mod build;
pub mod corpus;
mod csv;
pub mod peers;
pub mod replay;
mod snapshot;
#[cfg(test)]
mod tests;
pub mod yardstick;

pub use build::TraceBuilder;

use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceOp {
    /// Hands out a block.
    Allocate,
    /// Returns it; whatever used it has finished.
    Free,
}

/// One event, in 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// How large the block is; also given on a free, for pools that want it.
    pub size: u64,
    /// When, in microseconds since the recording began; see [`Trace::is_timed`].
    pub time_us: u64,
    /// The block's slot: below [`Trace::slots`], and no two live blocks share one.
    pub id: u32,
    /// The stream, as an index into [`Trace::streams`].
    pub stream: u16,
    /// Allocate or free.
    pub op: TraceOp,
}

/// A block that was still live when the recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfreedBlock {
    /// What the recording calls it: the csv's id, or the snapshot's address.
    pub id: u64,
    /// How large it is.
    pub size: Bytes,
}

/// The forms that a trace is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// One event a line.
    Csv,
    /// PyTorch's memory snapshot, a pickle.
    Snapshot,
}

impl TraceFormat {
    /// Tells the forms apart by their first bytes.
    pub fn of(bytes: &[u8]) -> Result<TraceFormat> {
        let why = match bytes {
            [0x80, ..] => return Ok(TraceFormat::Snapshot),
            [0x1f, 0x8b, ..] => "gzip; decompress it first",
            [b'P', b'K', ..] => "a zip archive; a snapshot is a bare pickle",
            [] => "empty; a csv begins with op,id,size,stream,t_us, a snapshot with byte 0x80",
            [b'{' | b'[', ..] => "json; dump the snapshot with torch.cuda.memory._dump_snapshot",
            _ => return Ok(TraceFormat::Csv),
        };
        Err(Error::Malformed { what: "trace, byte 0".into(), why: why.into() })
    }
}

/// A recording, checked and ready to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    events: Vec<TraceEvent>,
    slots: u32,
    streams: Vec<u64>,
    peak_live: u64,
    never_freed: Vec<UnfreedBlock>,
    skipped_frees: u64,
    timed: bool,
}

impl Trace {
    /// Reads a trace in whichever form it is. A snapshot of several devices needs
    /// [`Trace::from_snapshot`], which takes the choice.
    pub fn parse(bytes: &[u8]) -> Result<Trace> {
        match TraceFormat::of(bytes)? {
            TraceFormat::Csv => Trace::from_csv(bytes),
            TraceFormat::Snapshot => Trace::from_snapshot(bytes, None),
        }
    }

    /// Reads csv: a header with the columns `op`, `id`, `size`, `stream` and `t_us` in
    /// any order (others are ignored), then an event a line. `op` is `a` or `f`. The
    /// size of an `f` may be empty; where it is given it must be that of its `a`.
    /// Sizes of 0 are events like any other.
    pub fn from_csv(bytes: &[u8]) -> Result<Trace> {
        csv::read(bytes)
    }

    /// Reads the memory snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`), in
    /// whatever pickle protocol it was written, without running anything in it.
    ///
    /// `alloc` events allocate and `free_completed` events free; the others say how
    /// PyTorch's own pool went about it, which is what a replay replaces. A recording
    /// begins in the middle of a program's life: frees of older blocks are counted in
    /// [`Trace::skipped_frees`] and left out, and older blocks that the snapshot lists
    /// under `segments` are ignored, so peaks are those of what was recorded.
    ///
    /// Without a `device` the only one with events is taken; if several have some, the
    /// error lists them.
    pub fn from_snapshot(bytes: &[u8], device: Option<usize>) -> Result<Trace> {
        snapshot::read(bytes, device)
    }

    /// An empty trace to add events to.
    #[must_use]
    pub fn builder() -> TraceBuilder {
        TraceBuilder::default()
    }

    /// The events, in the order in which they happened.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// How many slots a replay needs: the most blocks that were live at once.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// What the recording calls its streams, by [`TraceEvent::stream`].
    #[must_use]
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// The most bytes that were live at once, as they were asked for.
    #[must_use]
    pub fn peak_live(&self) -> Bytes {
        Bytes(self.peak_live)
    }

    /// What was still live at the end, in the order in which it was allocated.
    #[must_use]
    pub fn never_freed(&self) -> &[UnfreedBlock] {
        &self.never_freed
    }

    /// Frees that were left out, for their blocks are older than the recording.
    #[must_use]
    pub fn skipped_frees(&self) -> u64 {
        self.skipped_frees
    }

    /// Whether the recording has times. Where it has none, [`TraceEvent::time_us`] is 0
    /// throughout and means nothing.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// The trace as csv. Blocks are numbered from 1 in the order of their allocation.
    #[must_use]
    pub fn to_csv(&self) -> String {
        csv::write(self)
    }
}
