//! The event log: one file for each process, mapped and appended to. `run` reads it when the
//! process is gone, however it ended.
//!
//! The holder of the table's lock takes the next record, fills it in, and marks it as complete
//! last; a process that is killed in between leaves an incomplete record. Space in the file system
//! is allocated before it is used, as writing to a mapped file that cannot grow would end the
//! program by a signal. Where there is no space, the log ends, and the counters go on.

#![expect(unsafe_code, reason = "its memory is a mapped file")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::sys;
use crate::table::LockedTable;

/// The first bytes of an event log.
pub const MAGIC: u64 = u64::from_le_bytes(*b"plimlog1");
/// The most events that a process can log.
pub const MOST: u64 = 1 << 21;
/// The most that the guard writes of call stacks for a process, beside its log.
pub(crate) const MOST_STACK_BYTES: u64 = 64 << 20;
/// What the file has from the start, populated while the process attaches: a fresh page costs one
/// to two microseconds, a quarter of what a pair of events may cost.
const FIRST: u64 = 64 << 10;
/// The file then doubles each time, by at most this much.
const MOST_AT_ONCE: u64 = 1 << 20;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GuardOp {
    /// Memory was allocated.
    Allocate = 1,
    /// Memory was freed.
    Free,
    /// The limit refused a request.
    Refuse,
    /// The driver took memory for itself, or a pool or the graphs reserved more: the charge rose.
    Charge,
    /// The opposite: the charge fell.
    Discharge,
}

impl GuardOp {
    /// The operation with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<GuardOp> {
        use GuardOp::{Allocate, Charge, Discharge, Free, Refuse};
        [Allocate, Free, Refuse, Charge, Discharge].into_iter().find(|op| *op as u8 == number)
    }
}

/// The kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GuardMemoryKind {
    /// cuMemAlloc.
    Linear = 1,
    /// cuMemAllocPitch.
    Pitch,
    /// cuMemAllocManaged.
    Managed,
    /// Arrays.
    Array,
    /// Mipmapped arrays.
    Mipmap,
    /// cuMemCreate.
    Physical,
    /// cuMemAllocAsync and similar: blocks inside a pool, of which the reservation is charged.
    Pooled,
    /// A pool's reservation.
    Pool,
    /// What the device has reserved for the allocation nodes of graphs.
    Graph,
    /// A context.
    Context,
    /// A module, or a library of kernels.
    Module,
    /// What a first launch made the driver take: lazily loaded code, local memory.
    Launch,
    /// cuMemHostAlloc and cuMemAllocHost, where the device shares the host's memory.
    Pinned,
    /// cuMemHostRegister, where the device shares the host's memory.
    Registered,
}

impl GuardMemoryKind {
    /// All of them.
    pub const ALL: [GuardMemoryKind; 14] = [
        GuardMemoryKind::Linear,
        GuardMemoryKind::Pitch,
        GuardMemoryKind::Managed,
        GuardMemoryKind::Array,
        GuardMemoryKind::Mipmap,
        GuardMemoryKind::Physical,
        GuardMemoryKind::Pooled,
        GuardMemoryKind::Pool,
        GuardMemoryKind::Graph,
        GuardMemoryKind::Context,
        GuardMemoryKind::Module,
        GuardMemoryKind::Launch,
        GuardMemoryKind::Pinned,
        GuardMemoryKind::Registered,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<GuardMemoryKind> {
        GuardMemoryKind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The name that people know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GuardMemoryKind::Linear => "cuMemAlloc",
            GuardMemoryKind::Pitch => "cuMemAllocPitch",
            GuardMemoryKind::Managed => "managed",
            GuardMemoryKind::Array => "array",
            GuardMemoryKind::Mipmap => "mipmapped array",
            GuardMemoryKind::Physical => "cuMemCreate",
            GuardMemoryKind::Pooled => "stream-ordered",
            GuardMemoryKind::Pool => "pool's reservation",
            GuardMemoryKind::Graph => "graph memory",
            GuardMemoryKind::Context => "context",
            GuardMemoryKind::Module => "module",
            GuardMemoryKind::Launch => "first launch",
            GuardMemoryKind::Pinned => "pinned host memory",
            GuardMemoryKind::Registered => "registered host memory",
        }
    }

    /// What is charged for a block of this size and kind: what drivers were seen to take. On a
    /// discrete device they allocate pages of 2 MiB, and pack blocks of at most half a page by 512
    /// bytes. Blocks inside a pool are part of the pool's charge.
    #[must_use]
    pub fn charge(self, bytes: u64, unified: bool) -> u64 {
        const PAGE: u64 = 2 << 20;
        let step = match self {
            GuardMemoryKind::Pooled => return 0,
            GuardMemoryKind::Pinned | GuardMemoryKind::Registered => 4096,
            GuardMemoryKind::Linear
            | GuardMemoryKind::Pitch
            | GuardMemoryKind::Managed
            | GuardMemoryKind::Array
            | GuardMemoryKind::Mipmap => match (unified, bytes > PAGE / 2) {
                (true, _) => 4096,
                (false, true) => PAGE,
                (false, false) => 512,
            },
            _ => return bytes,
        };
        bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
    }

    /// Whether the driver takes it for itself, without being asked.
    #[must_use]
    pub fn is_drivers(self) -> bool {
        matches!(self, GuardMemoryKind::Context | GuardMemoryKind::Module | GuardMemoryKind::Launch)
    }
}

/// One event, in half a cache line.
#[repr(C)]
#[derive(Debug)]
pub struct EventRecord {
    /// When, in nanoseconds of the kernel's clock, as of its last tick. The order of events is the
    /// order of records.
    pub at: AtomicU64,
    /// The address or handle that it is about.
    pub key: AtomicU64,
    /// The size.
    pub bytes: AtomicU64,
    /// From the lowest byte: the operation with its highest bit set, kind, device, tag, two bytes
    /// of the stack's number and two of the stream's. Stored last.
    pub what: AtomicU64,
}

/// The first bytes of the file, mapped.
#[repr(C)]
pub struct MappedLogHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// How many records were taken, some of them perhaps past the end.
    pub taken: AtomicU64,
    /// How many records have space in the file.
    pub room: AtomicU64,
    /// When the process attached; its slot in the ledger has the same value.
    pub since: AtomicU64,
}

/// An event before it has a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEvent {
    pub(crate) op: GuardOp,
    pub(crate) kind: GuardMemoryKind,
    pub(crate) device: u8,
    pub(crate) tag: u8,
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) stack: u16,
}

/// The event log of this process, mapped. What every event needs comes first.
#[repr(C)]
pub(crate) struct EventLogWriter {
    head: &'static MappedLogHeader,
    records: *const EventRecord,
    /// The file is kept by its path: the program might close a descriptor, whose number may then
    /// mean another file.
    path: &'static core::ffi::CStr,
}

// SAFETY: everything behind the pointer is atomic, and stays mapped.
unsafe impl Sync for EventLogWriter {}
// SAFETY: as above.
unsafe impl Send for EventLogWriter {}

impl EventLogWriter {
    /// Creates a log at this path, for a process that attached at `since`.
    pub(crate) fn create(path: &'static core::ffi::CStr, since: u64) -> Option<EventLogWriter> {
        let size = size_of::<MappedLogHeader>() as u64 + MOST * size_of::<EventRecord>() as u64;
        if !sys::file_size_allowed(size) {
            return None;
        }
        let flags = sys::O_RDWR | sys::O_CREAT;
        let file = sys::SysFile::open(path, flags, 0o600).ok()?;
        if !file.set_size(size) || !file.allocate_space(0, FIRST) {
            return None;
        }
        let at = file.map(size as usize, sys::PROT_READ | sys::PROT_WRITE);
        if at.is_null() {
            return None;
        }
        // SAFETY: the mapping is zeroed, aligned to a page, large enough for both, and never
        // unmapped; all fields are atomic.
        let (head, records) = unsafe {
            (
                &*at.cast::<MappedLogHeader>(),
                at.cast::<u8>().add(size_of::<MappedLogHeader>()).cast(),
            )
        };
        let log = EventLogWriter { head, records, path };
        log.head.room.store((FIRST - size_of::<MappedLogHeader>() as u64) / RECORD, Relaxed);
        log.populate_pages(0, FIRST);
        log.head.since.store(since, Relaxed);
        log.head.magic.store(MAGIC, Release);
        Some(log)
    }

    /// Prefetches what the next event needs.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        sys::prefetch_for_write(self.head);
    }

    /// Appends an event; the locked table admits one thread at a time. Returns whether there was
    /// room.
    #[inline(always)]
    pub(crate) fn note(&self, _: &LockedTable<'_>, event: &NewEvent, at: u64) -> bool {
        let place = self.head.taken.load(Relaxed);
        self.head.taken.store(place + 1, Relaxed);
        if place >= self.head.room.load(Relaxed) && !self.grow(place) {
            return false;
        }
        // SAFETY: the index is below `room`, so the record is inside the mapping and has space in
        // the file.
        let record = unsafe { &*self.records.add(place as usize) };
        record.at.store(at, Relaxed);
        record.key.store(event.key, Relaxed);
        record.bytes.store(event.bytes, Relaxed);
        let [s0, s1] = event.stack.to_le_bytes();
        // Streams are addresses: their middle bits tell them apart.
        let [t0, t1] = ((event.stream >> 4 ^ event.stream >> 20) as u16).to_le_bytes();
        let what =
            [event.op as u8 | 0x80, event.kind as u8, event.device, event.tag, s0, s1, t0, t1];
        record.what.store(u64::from_le_bytes(what), Release);
        // The next record but one is in the next cache line, which nobody has written to yet.
        sys::prefetch_for_write(self.records.wrapping_add(place as usize + 2));
        true
    }

    /// Makes room for a record after the last one; returns whether that worked.
    #[cold]
    fn grow(&self, place: u64) -> bool {
        let room = self.head.room.load(Relaxed);
        let from = size_of::<MappedLogHeader>() as u64 + room * RECORD;
        let more = from.next_multiple_of(4096).min(MOST_AT_ONCE);
        // After one failure nobody tries again: otherwise every event would.
        let enough =
            place == room && room + more / RECORD <= MOST && self.allocate_room(from, more);
        if enough {
            self.head.room.store(room + more / RECORD, Relaxed);
        }
        enough
    }

    fn allocate_room(&self, from: u64, more: u64) -> bool {
        let file = sys::SysFile::open(self.path, sys::O_RDWR, 0);
        let done = file.is_ok_and(|file| file.allocate_space(from, more));
        if done {
            self.populate_pages(from, more);
        }
        done
    }

    /// Populates pages that have space in the file: all at once is five times cheaper than one by
    /// one. Older kernels cannot, and then each page is populated when it is written to.
    fn populate_pages(&self, from: u64, size: u64) {
        let at = core::ptr::from_ref(self.head).cast::<u8>().wrapping_add(from as usize & !4095);
        // SAFETY: the range lies in the mapping; no content changes.
        unsafe { sys::madvise(at.cast_mut().cast(), size as usize, sys::MADV_POPULATE_WRITE) };
    }
}

const RECORD: u64 = size_of::<EventRecord>() as u64;
