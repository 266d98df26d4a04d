//! The shared counters: one file, mapped by every guarded process and by `run`.
//!
//! The number that decides about a device is `used`. A process that wants memory raises it by
//! compare-and-swap *before* it calls the driver, and lowers it *after* the driver has freed the
//! memory. So the driver has never handed out more than `used` says. Each process also keeps what
//! it holds, its share, in a slot of its own, where each thread counts its part. When a process has
//! died, others give its share back: a killed process runs no code. The kernel tells which
//! processes have died by releasing a lock on the file (`liveness.rs`).
//!
//! A process may be killed between the two additions. It raises `used` first and its share second,
//! and lowers its share first, so `used` may stay too high, never too low. An operation that was
//! cut short is visible in what the threads counted (`thread_counters.rs`: it began and did not
//! end). An audit (`reclaim.rs`) then sets `used` to the sum of the shares, at a moment when no
//! operation is under way.
//!
//! The layout is simple: fixed offsets, fixed sizes, numbers that can be read at any time.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::sync::{AtomicU32, AtomicU64};

mod account;
#[cfg(all(test, loom))]
mod model;
mod reclaim;
mod robust_lock;
mod setup;
mod thread_counters;

pub(crate) use reclaim::Liveness;
pub(crate) use robust_lock::RobustLock;
pub(crate) use setup::LedgerSetup;

/// The most devices that one run can tell apart.
pub const DEVICES: usize = if cfg!(loom) { 1 } else { 16 };
/// The most processes that can hold GPU memory at the same time; slots of dead processes are
/// reused. A slot takes memory only when it is used.
pub const PROCESSES: usize = if cfg!(loom) { 3 } else { 4096 };
/// The byte of the file that every user of the ledger has locked, shared with the others. It lies
/// far beyond the end: locks need no content.
pub const USERS_BYTE: u64 = 1 << 40;
/// How many tags a thread can choose from for what it allocates.
pub const TAGS: usize = 4;
/// The first bytes of a ledger: its name and the version of its layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"plimgrd6");

/// A limit that refuses nothing.
pub const NO_LIMIT: u64 = u64::MAX;
/// What `plimsoll_guard_device` answers where the driver cannot be asked yet.
pub(crate) const UNKNOWN_PLACE: i32 = -1;
/// What it answers for a device that no process of the run has used.
pub(crate) const UNUSED_PLACE: i32 = -2;

/// Settings and warnings, as bits of [`GuardLedger::flags`] and [`GuardLedger::warnings`].
pub mod flag {
    /// Managed memory is not counted.
    pub const MANAGED_IGNORED: u32 = 1;
    /// An unknown driver is refused.
    pub const STRICT: u32 = 2;
    /// The call stack of each allocation is recorded.
    pub const STACKS: u32 = 4;

    /// NVML's memory queries show the device as it is: the program that asks is Plimsoll's own, and
    /// reports both.
    pub const NVML_AS_IT_IS: u32 = 8;
    /// Nobody will read event logs: none are written.
    pub const NO_EVENT_LOG: u32 = 16;

    /// The driver is newer than those that the guard knows.
    pub const NEW_DRIVER: u32 = 1;
    /// The driver lacks a call that the guard needs to tell devices apart.
    pub const MISSING_CALL: u32 = 2;
    /// The driver's own memory could not be measured.
    pub const UNMEASURED: u32 = 4;
    /// More blocks are live than the table can hold; they are charged until their process ends.
    pub const TABLE_FULL: u32 = 8;
    /// The event log is full or could not be written.
    pub const LOG_FULL: u32 = 16;
    /// There was no slot for another process: it was refused all GPU memory.
    pub const NO_SLOT: u32 = 32;
    /// The driver was refused because of [`STRICT`].
    pub const REFUSED_DRIVER: u32 = 64;
    /// A process had no memory for its table: it was refused all GPU memory.
    pub const NO_ROOM: u32 = 128;
    /// A program loaded libraries into a link namespace of their own (`dlmopen`), where the guard
    /// is not.
    pub const SEPARATE: u32 = 256;
    /// A program loaded a library that finds its own functions before the guard's
    /// (`RTLD_DEEPBIND`).
    pub const DEEP_BOUND: u32 = 512;
}

/// The whole file.
#[repr(C)]
pub struct GuardLedger {
    /// [`MAGIC`], stored last by the process that makes the file.
    pub magic: AtomicU64,
    /// Settings; see [`flag`].
    pub flags: AtomicU32,
    /// What to warn the user of; see [`flag`].
    pub warnings: AtomicU32,
    /// The limit of every device that has none of its own.
    pub default_budget: AtomicU64,
    /// Reserved below the limit for what the driver takes for itself.
    pub reserve: AtomicU64,
    /// What must stay available on unified memory.
    pub keep_free: AtomicU64,
    /// Limits by the program's own device numbers; 0 for the default.
    pub budgets: [AtomicU64; DEVICES],
    /// The driver's version, as it reports it; 0 before it was asked.
    pub driver_version: AtomicU32,
    /// Whether an operation was cut short by a kill, so that an audit is due.
    pub(crate) needs_audit: AtomicU32,
    /// Held while reclaiming or auditing.
    pub(crate) reclaim_lock: RobustLock,
    /// Held while a context is made, which may take many seconds.
    pub(crate) contexts_lock: RobustLock,
    /// Held while a device gets its place.
    pub(crate) devices_lock: RobustLock,
    /// How many programs the guard was loaded into.
    pub loaded: AtomicU32,
    /// How many slots were ever taken. Those after them have no space in the file: reading them
    /// would allocate some.
    pub(crate) taken: AtomicU32,
    /// On unified memory: the bytes that were ever admitted, and the bytes whose request has ended.
    /// The difference is under way, and not yet in the system's figure.
    pub(crate) system_admitted: AtomicU64,
    pub(crate) system_ended: AtomicU64,
    /// Where the system's memory is read, ended by a zero.
    pub meminfo: [u8; 256],
    /// The devices.
    pub devices: [LedgerDevice; DEVICES],
    /// The processes, as far as their slots were ever taken.
    pub(crate) processes: [LedgerProcess; PROCESSES],
}

impl GuardLedger {
    /// The processes that hold memory, or did.
    #[must_use]
    pub fn processes(&self) -> &[LedgerProcess] {
        let taken = self.taken.load(Acquire) as usize;
        self.processes.get(..taken).unwrap_or(&self.processes)
    }

    /// The limit of the device of this number, as a program counts them; [`NO_LIMIT`] for none.
    pub(crate) fn limit_of_number(&self, number: usize) -> u64 {
        match self.budgets.get(number).map_or(0, |own| own.load(Relaxed)) {
            0 => self.default_budget.load(Relaxed),
            own => own,
        }
    }

    /// The space that the file takes before any slot is used.
    pub(crate) const fn room() -> u64 {
        core::mem::offset_of!(GuardLedger, processes) as u64
    }

    /// The offset of a slot in the file, and its size.
    pub(crate) const fn room_of(slot: usize) -> (u64, u64) {
        let size = size_of::<LedgerProcess>() as u64;
        (GuardLedger::room() + slot as u64 * size, size)
    }
}

/// A device's counters; those that every allocation reads come first, in one cache line.
#[repr(C, align(128))]
pub struct LedgerDevice {
    /// What is charged now, including requests that the driver is deciding on.
    pub used: AtomicU64,
    /// The limit; [`NO_LIMIT`] refuses nothing.
    pub budget: AtomicU64,
    /// The most that was charged at once.
    pub peak: AtomicU64,
    /// When that was, in nanoseconds of the kernel's clock, as of its last tick.
    pub peak_at: AtomicU64,
    /// 0 free, 1 being filled in, 2 in use.
    pub state: AtomicU32,
    /// Its number in the process that used it first.
    pub ordinal: AtomicU32,
    /// Whether it shares the system's memory.
    pub integrated: AtomicU32,
    /// 0 not checked yet, 1 a request above the limit was refused and counted, 2 it was not.
    pub verified: AtomicU32,
    /// How many requests were refused.
    pub refused: AtomicU64,
    /// The bytes of those.
    pub refused_bytes: AtomicU64,
    /// Of `used`: what the driver took for itself.
    pub driver: AtomicU64,
    /// The most of that at once.
    pub driver_peak: AtomicU64,
    /// The size of its memory.
    pub total: AtomicU64,
    /// What other programs held when the run first used it.
    pub baseline: AtomicU64,
    /// The most that the driver reported beyond baseline and charge.
    pub residue_most: AtomicU64,
    /// What the driver last reported as used, by any process.
    pub observed: AtomicU64,
    /// The least that a context was seen to take; [`u64::MAX`] before one was.
    pub context: AtomicU64,
    /// Its UUID: each process may give it another number.
    pub uuid: [AtomicU64; 2],
}

/// A process's share.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct LedgerProcess {
    /// See [`state`].
    pub state: AtomicU32,
    /// Its PID, in its own namespace.
    pub pid: AtomicU32,
    /// When it started, in the kernel's clock ticks: PIDs are reused.
    pub start: AtomicU64,
    /// Its PID namespace, by the kernel's number; 0 where it is unknown.
    pub space: AtomicU64,
    /// Whether it has the driver's device files open. A child of `fork` has them too, and as long
    /// as any process does, the driver keeps the memory, even after the process itself has died.
    pub files: AtomicU64,
    /// Of what it holds: what the driver took for itself, by device.
    pub driver: [AtomicU64; DEVICES],
    /// Of [`LedgerProcess::allocs`]: refused by the limit.
    pub refused: AtomicU64,
    /// Of [`LedgerProcess::allocs`]: failed by the driver.
    pub failed: AtomicU64,
    /// Of all operations: those of the guard itself, not of the program.
    pub own: AtomicU64,
    /// Frees of what the guard has not counted, which it passed to the driver.
    pub foreign_frees: AtomicU64,
    /// When it attached, in nanoseconds of the kernel's clock; exact, as a program may become
    /// another one by exec within a tick.
    pub since: AtomicU64,
    /// When it was found dead, as of the last tick; 0 before.
    pub until: AtomicU64,
    /// What is held now, by the tag of the thread that asked. Tag 0 has what the driver took for
    /// itself and, once a thread of the process has a tag, what threads without one hold.
    pub tagged: [AtomicU64; TAGS],
    /// The most of that at once.
    pub tagged_peak: [AtomicU64; TAGS],
    /// Its command line, as far as it fits, ended by a zero.
    pub name: [AtomicU64; 8],
    /// What its threads hold, and the operations that they began and ended.
    pub(crate) threads: thread_counters::ThreadCounterSet,
}

/// States of a process's slot.
pub mod state {
    /// It is free.
    pub const FREE: u32 = 0;
    /// Its process holds memory, or could.
    pub const LIVE: u32 = 2;
    /// Its process has died; the figures stay for the report.
    pub const DEAD: u32 = 3;
}

impl LedgerProcess {
    /// Its command line, as far as it was kept.
    #[must_use]
    pub fn name_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (to, from) in bytes.chunks_exact_mut(8).zip(&self.name) {
            to.copy_from_slice(&from.load(Relaxed).to_le_bytes());
        }
        bytes
    }

    pub(crate) fn set_name(&self, name: &[u8]) {
        for (index, word) in self.name.iter().enumerate() {
            let mut bytes = [0; 8];
            let from = name.get(index * 8..).unwrap_or_default();
            let count = from.len().min(8);
            bytes[..count].copy_from_slice(&from[..count]);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }
}
