//! Reads the event logs that the guarded processes have written.

use std::io::{self, Read};
use std::path::PathBuf;

use crate::log::{self, EventRecord, GuardMemoryKind, GuardOp, MappedLogHeader};

/// What a program did, in the order in which it logged it.
#[derive(Debug, Clone, Default)]
pub struct ProcessLog {
    /// Its PID.
    pub pid: u32,
    /// When it attached: [`crate::ledger::LedgerProcess::since`] of its slot.
    pub since: u64,
    /// The events.
    pub events: Vec<GuardEvent>,
    /// How many events are missing: there was no room, or the process was killed while it wrote.
    pub lost: u64,
}

/// An event as it was logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardEvent {
    /// When, in nanoseconds of the kernel's clock, as of its last tick.
    pub at: u64,
    /// What happened.
    pub op: GuardOp,
    /// The kind of memory.
    pub kind: GuardMemoryKind,
    /// The device's index in the ledger.
    pub device: u8,
    /// The tag of the thread that asked.
    pub tag: u8,
    /// An address or a handle.
    pub key: u64,
    /// The size that the program asked for.
    pub bytes: u64,
    /// What was charged for it.
    pub charge: u64,
    /// A number for the stream; 0 for none.
    pub stream: u16,
    /// The number of the call stack; 0 for none.
    pub stack: u16,
}

/// An event log in the folder.
#[derive(Debug, Clone)]
pub struct EventLogFile {
    /// The PID of its process.
    pub pid: u32,
    /// Its header.
    pub head: EventLogHeader,
    /// Its path.
    pub path: PathBuf,
}

/// The header of an event log.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventLogHeader {
    /// When its process attached: [`crate::ledger::LedgerProcess::since`] of its slot.
    pub since: u64,
    /// How many events the process tried to log.
    pub taken: u64,
    /// How many records the log has.
    pub records: u64,
}

impl EventLogHeader {
    /// The size of the header in bytes.
    pub const SIZE: u64 = size_of::<MappedLogHeader>() as u64;
    /// The size of a record in bytes.
    pub const RECORD: u64 = size_of::<EventRecord>() as u64;

    /// Reads the header; the records follow it. `None` where this is no event log: a process may be
    /// killed while it creates one.
    ///
    /// # Errors
    ///
    /// The source cannot be read.
    pub fn read(mut from: impl Read) -> io::Result<Option<EventLogHeader>> {
        let mut head = [0; size_of::<MappedLogHeader>()];
        const _: () =
            assert!(size_of::<MappedLogHeader>() == 4 * 8, "the words below are all that it has");
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [magic, taken, room, since] = std::array::from_fn(|at| word(&head, at).unwrap_or(0));
        let records = taken.min(room).min(log::MOST);
        Ok((magic == log::MAGIC).then_some(EventLogHeader { since, taken, records }))
    }
}

/// Reads events from their records, one after the other. They were written by somebody else's
/// process, which may have written anything: records that make no sense are left out.
#[derive(Debug)]
pub struct GuardEventReader<'a, R> {
    from: R,
    left: u64,
    whole: u64,
    unified: &'a [bool],
}

impl<'a, R: Read> GuardEventReader<'a, R> {
    /// Reads `records` records from a reader, which should be buffered. `unified` says which
    /// devices share the system's memory.
    pub fn new(from: R, records: u64, unified: &'a [bool]) -> GuardEventReader<'a, R> {
        GuardEventReader { from, left: records, whole: 0, unified }
    }

    /// How many valid events were read.
    pub fn whole(&self) -> u64 {
        self.whole
    }
}

impl<R: Read> Iterator for GuardEventReader<'_, R> {
    type Item = GuardEvent;

    fn next(&mut self) -> Option<GuardEvent> {
        let mut record = [0; size_of::<EventRecord>()];
        while self.left > 0 {
            self.left -= 1;
            // Records that cannot be read are as lost as those that were never written.
            if self.from.read_exact(&mut record).is_err() {
                self.left = 0;
            } else if let Some(event) = event(&record, self.unified) {
                self.whole += 1;
                return Some(event);
            }
        }
        None
    }
}

/// Reads a whole event log; records that make no sense are counted as lost.
///
/// # Errors
///
/// The source cannot be read.
pub fn parse_log(mut from: impl Read, pid: u32, unified: &[bool]) -> io::Result<ProcessLog> {
    let head = EventLogHeader::read(&mut from)?.unwrap_or_default();
    let events: Vec<GuardEvent> = GuardEventReader::new(from, head.records, unified).collect();
    let lost = head.taken - events.len() as u64;
    Ok(ProcessLog { pid, since: head.since, events, lost })
}

/// The number of eight bytes at this index.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at * 8..at * 8 + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// An event from its bytes; `None` from a record that is incomplete.
fn event(bytes: &[u8], unified: &[bool]) -> Option<GuardEvent> {
    let word = |at: usize| word(bytes, at);
    let [op, kind, device, tag, s0, s1, t0, t1] = word(3)?.to_le_bytes();
    let (op, kind, bytes) =
        (GuardOp::of(op.checked_sub(0x80)?)?, GuardMemoryKind::of(kind)?, word(2)?);
    Some(GuardEvent {
        at: word(0)?,
        op,
        kind,
        device,
        tag,
        key: word(1)?,
        bytes,
        charge: kind.charge(bytes, unified.get(usize::from(device)).is_some_and(|u| *u)),
        stream: u16::from_le_bytes([t0, t1]),
        stack: u16::from_le_bytes([s0, s1]),
    })
}
