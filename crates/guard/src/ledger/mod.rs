//! The shared counters: one file, mapped by every limited process and by `run`.
//!
//! A device has one number that decides, `used`. Whoever wants memory raises it by
//! compare-and-swap *before* the driver is asked, and lowers it *after* the driver has taken
//! the memory back, so that at no moment the sum of what the driver has handed out is larger.
//! Each process also keeps what it holds in a slot of its own, each thread its part, and that
//! share is given back when it is found dead: killed processes run no code, so the others do it
//! for them. Who is dead is known by a lock on the file that the kernel drops (the module `alive`).
//!
//! A process may be killed between the two additions. It raises `used` first and its own
//! share second, and lowers its own first, so what is left behind is always too much, never
//! too little. That an operation was cut short is seen by what its threads counted
//! (`threads`: it began and did not end), and `audit` then sets `used` to the sum of the
//! shares in a moment in which nobody is in the middle of anything.
//!
//! The layout is plain: fixed places, fixed sizes, numbers that can be read at any time.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::sync::{AtomicU32, AtomicU64};

mod account;
#[cfg(all(test, loom))]
mod model;
mod reclaim;
mod robust_lock;
mod thread_counters;

pub(crate) use reclaim::Liveness;
pub(crate) use robust_lock::RobustLock;

/// Devices that can be told apart in one run.
pub const DEVICES: usize = if cfg!(loom) { 1 } else { 16 };
/// Processes that can hold GPU memory at the same time; the dead make room. Slots take memory only
/// when they are used.
pub const PROCESSES: usize = if cfg!(loom) { 3 } else { 4096 };
/// The byte of the file that everybody who uses the ledger has locked, together with others. It
/// lies far behind the end: locks need no content.
pub const USERS_BYTE: u64 = 1 << 40;
/// Tags that a thread can give to what it allocates.
pub const TAGS: usize = 4;
/// The first bytes of a ledger: its name and the version of its layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"plimgrd5");

/// A budget that refuses nothing.
pub const NO_LIMIT: u64 = u64::MAX;

/// Settings and warnings, as bits of [`GuardLedger::flags`] and [`GuardLedger::warnings`].
pub mod flag {
    /// Managed memory is left alone.
    pub const MANAGED_IGNORED: u32 = 1;
    /// An unknown driver is refused.
    pub const STRICT: u32 = 2;
    /// Each allocation keeps where it was made.
    pub const STACKS: u32 = 4;

    /// NVML's memory queries show the device as it is: who asks is a program of our own that
    /// reports both.
    pub const NVML_AS_IT_IS: u32 = 8;
    /// Nobody will read lists of events: none are written.
    pub const NO_EVENT_LOG: u32 = 16;

    /// The driver is newer than what the guard knows.
    pub const NEW_DRIVER: u32 = 1;
    /// The driver lacks a call that the guard needs to tell devices apart.
    pub const MISSING_CALL: u32 = 2;
    /// The driver's own memory could not be measured.
    pub const UNMEASURED: u32 = 4;
    /// More blocks are live than can be listed; they are charged until their process ends.
    pub const TABLE_FULL: u32 = 8;
    /// The list of events is full or could not be written.
    pub const LOG_FULL: u32 = 16;
    /// No slot for another process: it was refused all memory.
    pub const NO_SLOT: u32 = 32;
    /// The driver was refused because of [`STRICT`].
    pub const REFUSED_DRIVER: u32 = 64;
    /// No room in a process to list its blocks: it was refused all memory.
    pub const NO_ROOM: u32 = 128;
    /// A program loaded libraries into a link namespace of their own (`dlmopen`), where the guard
    /// is not.
    pub const SEPARATE: u32 = 256;
}

/// The whole file.
#[repr(C)]
pub struct GuardLedger {
    /// [`MAGIC`], stored last by whoever makes the file.
    pub magic: AtomicU64,
    /// Settings; see [`flag`].
    pub flags: AtomicU32,
    /// What the user should be told; see [`flag`].
    pub warnings: AtomicU32,
    /// The line of every device that has none of its own.
    pub default_budget: AtomicU64,
    /// Held back for what the driver takes for itself.
    pub reserve: AtomicU64,
    /// What must stay available on unified memory.
    pub keep_free: AtomicU64,
    /// Lines by the program's own device numbers; 0 for the default.
    pub budgets: [AtomicU64; DEVICES],
    /// The driver's version, as it calls itself; 0 before it was asked.
    pub driver_version: AtomicU32,
    /// Whether an operation was cut short by a kill.
    pub(crate) needs_audit: AtomicU32,
    /// Whoever reclaims or audits.
    pub(crate) reclaim_lock: RobustLock,
    /// Whoever does what only one may do at a time.
    pub(crate) exclusive_lock: RobustLock,
    /// Programs that the guard was loaded into.
    pub loaded: AtomicU32,
    /// Slots that were ever taken. Those behind have no room in the file: to read them would take
    /// some.
    pub(crate) taken: AtomicU32,
    /// On unified memory: bytes that were ever admitted, and those whose request came to its
    /// end. The difference is under way, and not yet in what the system says.
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

    /// What the file takes before any slot is used.
    pub(crate) const fn room() -> u64 {
        core::mem::offset_of!(GuardLedger, processes) as u64
    }

    /// Where a slot lies in the file, and its size.
    pub(crate) const fn room_of(slot: usize) -> (u64, u64) {
        let size = size_of::<LedgerProcess>() as u64;
        (GuardLedger::room() + slot as u64 * size, size)
    }
}

/// A device's counters; what every allocation looks at comes first, in one line of the
/// processor's cache.
#[repr(C, align(128))]
pub struct LedgerDevice {
    /// Charged now, requests that the driver is deciding included.
    pub used: AtomicU64,
    /// The line; [`NO_LIMIT`] refuses nothing.
    pub budget: AtomicU64,
    /// The most that was charged at once.
    pub peak: AtomicU64,
    /// When, in nanoseconds of the kernel's clock, as it was at its last tick.
    pub peak_at: AtomicU64,
    /// 0 free, 1 being filled in, 2 in use.
    pub state: AtomicU32,
    /// Its number in the process that used it first.
    pub ordinal: AtomicU32,
    /// Whether it shares the system's memory.
    pub integrated: AtomicU32,
    /// 0 not tried, 1 a request past the line was refused and counted, 2 it was not.
    pub verified: AtomicU32,
    /// Requests that were refused, and their bytes.
    pub refused: AtomicU64,
    /// The bytes of those.
    pub refused_bytes: AtomicU64,
    /// Of `used`: what the driver took for itself.
    pub driver: AtomicU64,
    /// The most of that.
    pub driver_peak: AtomicU64,
    /// All of its memory.
    pub total: AtomicU64,
    /// Held by others when the tree first used it.
    pub baseline: AtomicU64,
    /// The most that the driver reported beyond baseline and charge, and the least.
    pub residue_most: AtomicU64,
    /// What the driver last reported as used, by anyone.
    pub observed: AtomicU64,
    /// The least that a context was seen to take; [`u64::MAX`] before one was.
    pub context: AtomicU64,
    /// Who it is, whatever number a process gives it.
    pub uuid: [AtomicU64; 2],
}

/// A process's share.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct LedgerProcess {
    /// See [`state`].
    pub state: AtomicU32,
    /// Its number, in its own space of process numbers.
    pub pid: AtomicU32,
    /// When it started, in the kernel's clock ticks: numbers of processes are used again.
    pub start: AtomicU64,
    /// That space, by the kernel's number; 0 where it is not known.
    pub space: AtomicU64,
    /// Whether it has the driver's device files open. A child of fork has them too, and as long as
    /// anybody does, the driver keeps the memory, also when the process itself is dead.
    pub files: AtomicU64,
    /// Of what it holds: what the driver took for itself, by device.
    pub driver: [AtomicU64; DEVICES],
    /// Of [`LedgerProcess::allocs`]: refused by the line.
    pub refused: AtomicU64,
    /// Of [`LedgerProcess::allocs`]: failed by the driver.
    pub failed: AtomicU64,
    /// Of all operations: the guard's own, not the program's.
    pub own: AtomicU64,
    /// Frees of what the guard did not hand out, which were passed on.
    pub foreign_frees: AtomicU64,
    /// When it attached, in nanoseconds of the kernel's clock: exactly, as a program that becomes
    /// another may do so within a tick.
    pub since: AtomicU64,
    /// When it was found dead, by the last tick; 0 before.
    pub until: AtomicU64,
    /// Held now, by the tag of the thread that asked; with 0, what the driver took for itself
    /// and, once a thread of the process has a tag, what those without one hold.
    pub tagged: [AtomicU64; TAGS],
    /// The most of it.
    pub tagged_peak: [AtomicU64; TAGS],
    /// What it is called, ended by a zero.
    pub name: [AtomicU64; 8],
    /// What its threads hold, and the operations that they began and ended.
    pub(crate) threads: thread_counters::ThreadCounterSet,
}

/// What a process's slot is.
pub mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// A process that holds memory, or could.
    pub const LIVE: u32 = 2;
    /// A process that is gone; its figures stay for the report.
    pub const DEAD: u32 = 3;
}

impl LedgerProcess {
    /// Its name, as far as it was kept.
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
