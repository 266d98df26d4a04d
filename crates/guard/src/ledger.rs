//! The shared counters: one file, mapped by every process of the tree and by `run`.
//!
//! A device has one number that decides, `used`. Whoever wants memory raises it by
//! compare-and-swap *before* the driver is asked, and lowers it *after* the driver has taken
//! the memory back, so that at no moment the sum of what the driver has handed out is larger.
//! Each process also keeps what it holds in a slot of its own, from which its share is given
//! back when it is found dead: killed processes run no code, so the others do it for them.
//!
//! A process may be killed between the two additions. It raises `used` first and its own
//! share second, and lowers its own first, so what is left behind is always too much, never
//! too little. That an operation was cut short is seen by its counters (`begun` operations
//! that are not `done`), and [`Ledger::audit`] then sets `used` to the sum of the shares in a
//! moment in which nobody is in the middle of anything.
//!
//! The layout is plain: fixed places, fixed sizes, numbers that can be read at any time.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Devices that can be told apart in one run.
pub const DEVICES: usize = 16;
/// Processes that can hold GPU memory in one run; the dead make room.
pub const PROCESSES: usize = 512;
/// Tags that a thread can give to what it allocates.
pub const TAGS: usize = 4;
/// The first bytes of a ledger: its name and the version of its layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"plimgrd1");

/// A budget that refuses nothing.
pub const NO_LIMIT: u64 = u64::MAX;

/// Settings and warnings, as bits of [`Ledger::flags`] and [`Ledger::warnings`].
pub mod flag {
    /// Managed memory is left alone.
    pub const MANAGED_IGNORED: u32 = 1;
    /// An unknown driver is refused.
    pub const STRICT: u32 = 2;
    /// Each allocation keeps where it was made.
    pub const STACKS: u32 = 4;

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
    /// No slot for another process: its memory passed uncounted.
    pub const NO_SLOT: u32 = 32;
    /// A stricter driver was refused because of [`STRICT`].
    pub const REFUSED_DRIVER: u32 = 64;
}

/// The whole file.
#[repr(C)]
pub struct Ledger {
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
    /// The process that reclaims or audits; 0 for none.
    pub(crate) janitor: AtomicU32,
    /// The process that does what only one may do at a time; 0 for none.
    pub(crate) one_at_a_time: AtomicU32,
    /// Whether an operation was cut short by a kill.
    pub(crate) suspicious: AtomicU32,
    /// Programs that the guard was loaded into.
    pub loaded: AtomicU32,
    spare: AtomicU32,
    /// What the system had available when it was last read, and when.
    pub(crate) available: AtomicU64,
    pub(crate) available_at: AtomicU64,
    /// What was granted since.
    pub(crate) granted_since: AtomicU64,
    /// How many ticks make ten milliseconds.
    pub(crate) ticks_10ms: AtomicU64,
    /// Where the system's memory is read, ended by a zero.
    pub meminfo: [u8; 256],
    /// The devices.
    pub devices: [Device; DEVICES],
    /// The processes.
    pub processes: [Process; PROCESSES],
}

/// A device's counters.
#[repr(C, align(128))]
pub struct Device {
    /// Charged now, requests that the driver is deciding included.
    pub used: AtomicU64,
    /// The line; [`NO_LIMIT`] refuses nothing.
    pub budget: AtomicU64,
    /// The most that was charged at once.
    pub peak: AtomicU64,
    /// When, in ticks.
    pub peak_at: AtomicU64,
    /// Requests that were refused, and their bytes.
    pub refused: AtomicU64,
    /// The bytes of those.
    pub refused_bytes: AtomicU64,
    /// Of `used`: what the driver took for itself.
    pub driver: AtomicU64,
    /// The most of that.
    pub driver_peak: AtomicU64,
    /// 0 free, 1 being filled in, 2 in use.
    pub state: AtomicU32,
    /// Its number in the process that used it first.
    pub ordinal: AtomicU32,
    /// Whether it shares the system's memory.
    pub integrated: AtomicU32,
    /// 0 not tried, 1 a request past the line was refused and counted, 2 it was not.
    pub verified: AtomicU32,
    /// All of its memory.
    pub total: AtomicU64,
    /// Held by others when the tree first used it.
    pub baseline: AtomicU64,
    /// The most that the driver reported beyond baseline and charge, and the least.
    pub residue_most: AtomicU64,
    /// What the driver last reported as used, by anyone.
    pub observed: AtomicU64,
    /// The most that a context was seen to take.
    pub context: AtomicU64,
    /// Who it is, whatever number a process gives it.
    pub uuid: [AtomicU64; 2],
}

/// A process's share.
#[repr(C, align(128))]
pub struct Process {
    /// See [`state`].
    pub state: AtomicU32,
    /// Its number.
    pub pid: AtomicU32,
    /// When it started, in the kernel's clock ticks: numbers of processes are used again.
    pub start: AtomicU64,
    /// Operations that began and were to add memory.
    pub allocs: AtomicU64,
    /// Operations that began and were to take it away.
    pub frees: AtomicU64,
    /// Operations that came to their end.
    pub done: AtomicU64,
    /// Of `allocs`: refused by the line.
    pub refused: AtomicU64,
    /// Of `allocs`: failed by the driver.
    pub failed: AtomicU64,
    /// Of `allocs` and `frees`: the guard's own, not the program's.
    pub own: AtomicU64,
    /// Frees of what the guard did not hand out, which were passed on.
    pub foreign_frees: AtomicU64,
    /// Held now, by device.
    pub used: [AtomicU64; DEVICES],
    /// The most that was held at once, by device.
    pub peak: [AtomicU64; DEVICES],
    /// When it attached, in ticks.
    pub since: AtomicU64,
    /// When it was found dead; 0 before.
    pub until: AtomicU64,
    /// Held now, by the tag of the thread that asked.
    pub tagged: [AtomicU64; TAGS],
    /// The most of it.
    pub tagged_peak: [AtomicU64; TAGS],
    /// What it is called, ended by a zero.
    pub name: [AtomicU64; 8],
}

/// What a process's slot is.
pub mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const TAKING: u32 = 1;
    /// A process that holds memory, or could.
    pub const LIVE: u32 = 2;
    /// A process that is gone; its figures stay for the report.
    pub const DEAD: u32 = 3;
}

/// Why memory was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The line.
    Line,
    /// The system would have less available than must be kept.
    System,
}

fn take(counter: &AtomicU64, bytes: u64) {
    // Saturating: a figure that is too low would let memory past the line, one that wraps
    // round would close it for ever.
    let _ = counter.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(bytes)));
}

impl Device {
    /// What allocation calls may take together with what is charged.
    #[must_use]
    pub fn line(&self, reserve: u64) -> u64 {
        match self.budget.load(Relaxed) {
            NO_LIMIT => NO_LIMIT,
            budget => budget.saturating_sub(reserve),
        }
    }

    /// Raises `used` if it stays at or below the line; the new value.
    fn raise(&self, bytes: u64, line: u64) -> Option<u64> {
        let mut now = self.used.load(Relaxed);
        loop {
            let after = now.checked_add(bytes).filter(|&after| after <= line)?;
            match self.used.compare_exchange_weak(now, after, AcqRel, Relaxed) {
                Ok(_) => return Some(after),
                Err(other) => now = other,
            }
        }
    }

    /// Notes that so much was charged at once.
    pub fn reached(&self, charged: u64, at: u64) {
        if charged > self.peak.load(Relaxed) && self.peak.fetch_max(charged, Relaxed) < charged {
            self.peak_at.store(at, Relaxed);
        }
    }

    /// What may still be allocated.
    #[must_use]
    pub fn free(&self, reserve: u64) -> u64 {
        self.line(reserve).saturating_sub(self.used.load(Relaxed))
    }
}

impl Process {
    /// Whether no operation of this process is under way, or was when it died.
    fn is_quiet(&self) -> bool {
        let done = self.done.load(Acquire);
        self.allocs.load(Acquire) + self.frees.load(Acquire) == done
    }

    /// The bytes held on all devices.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.used.iter().map(|used| used.load(Relaxed)).sum()
    }

    fn add(&self, device: usize, bytes: u64) {
        let now = self.used[device].fetch_add(bytes, AcqRel) + bytes;
        if now > self.peak[device].load(Relaxed) {
            self.peak[device].fetch_max(now, Relaxed);
        }
    }
}

impl Ledger {
    /// What is held back for the driver.
    #[must_use]
    pub fn held_back(&self) -> u64 {
        self.reserve.load(Relaxed)
    }

    /// Whether a setting is on.
    #[must_use]
    pub fn is(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Notes something that the user should be told.
    pub fn warn(&self, flag: u32) {
        if self.warnings.load(Relaxed) & flag == 0 {
            self.warnings.fetch_or(flag, Relaxed);
        }
    }

    /// Begins an allocation: charges `bytes` if they fit. The value is what is charged with
    /// them; [`Ledger::granted`] or [`Ledger::undo`] must follow.
    ///
    /// # Errors
    ///
    /// The line is reached, also after the shares of dead processes were given back.
    #[inline]
    pub fn grant(&self, process: &Process, device: usize, bytes: u64) -> Result<u64, Refused> {
        process.allocs.fetch_add(1, AcqRel);
        let line = self.devices[device].line(self.held_back());
        let granted = match self.devices[device].raise(bytes, line) {
            Some(now) => Some(now),
            None => self.grant_again(device, bytes, line),
        };
        match granted {
            Some(now) => {
                process.add(device, bytes);
                Ok(now)
            }
            None => {
                self.refuse(process, device, bytes);
                Err(Refused::Line)
            }
        }
    }

    #[cold]
    fn grant_again(&self, device: usize, bytes: u64, line: u64) -> Option<u64> {
        self.reclaim();
        self.devices[device].raise(bytes, line)
    }

    /// Counts a refusal that ends the operation.
    #[cold]
    fn refuse(&self, process: &Process, device: usize, bytes: u64) {
        self.devices[device].refused.fetch_add(1, Relaxed);
        self.devices[device].refused_bytes.fetch_add(bytes, Relaxed);
        process.refused.fetch_add(1, Relaxed);
        process.done.fetch_add(1, AcqRel);
    }

    /// Counts a request that is refused before anything was charged.
    #[cold]
    pub fn refuse_now(&self, process: &Process, device: usize, bytes: u64) {
        process.allocs.fetch_add(1, AcqRel);
        self.refuse(process, device, bytes);
    }

    /// Takes a refusal out of the count that was only a trial.
    pub fn forget_refusal(&self, process: &Process, device: usize, bytes: u64) {
        take(&self.devices[device].refused, 1);
        take(&self.devices[device].refused_bytes, bytes);
        take(&process.refused, 1);
        process.own.fetch_add(1, Relaxed);
    }

    /// Charges bytes ahead of what the driver will take, if they fit. Nothing is counted as
    /// asked for or refused; [`Ledger::recharge`] settles it.
    pub fn hold(&self, process: &Process, device: usize, bytes: u64) -> bool {
        self.hold_below(process, device, bytes, self.held_back())
    }

    /// As [`Ledger::hold`], with another reserve: what the driver takes may use it up.
    pub fn hold_below(&self, process: &Process, device: usize, bytes: u64, reserve: u64) -> bool {
        process.own.fetch_add(1, Relaxed);
        process.allocs.fetch_add(1, AcqRel);
        let line = self.devices[device].line(reserve);
        let held = self.devices[device].raise(bytes, line).is_some();
        if held {
            process.used[device].fetch_add(bytes, AcqRel);
        }
        process.done.fetch_add(1, AcqRel);
        held
    }

    /// Takes back what [`Ledger::grant`] charged, for a reason of our own.
    #[cold]
    pub fn withdraw(&self, process: &Process, device: usize, bytes: u64) {
        take(&process.used[device], bytes);
        take(&self.devices[device].used, bytes);
        self.refuse(process, device, bytes);
    }

    /// Ends an allocation that the driver has made.
    #[inline]
    pub fn granted(&self, process: &Process, device: usize, charged: u64, at: u64) {
        self.devices[device].reached(charged, at);
        process.done.fetch_add(1, AcqRel);
    }

    /// Ends an allocation that the driver has not made.
    pub fn undo(&self, process: &Process, device: usize, bytes: u64) {
        take(&process.used[device], bytes);
        take(&self.devices[device].used, bytes);
        process.failed.fetch_add(1, Relaxed);
        process.done.fetch_add(1, AcqRel);
    }

    /// Gives back what the driver has taken back.
    #[inline]
    pub fn release(&self, process: &Process, device: usize, bytes: u64) {
        process.frees.fetch_add(1, AcqRel);
        take(&process.used[device], bytes);
        take(&self.devices[device].used, bytes);
        process.done.fetch_add(1, AcqRel);
    }

    /// Moves a charge that cannot be refused from `before` to `after`: what the driver takes
    /// by itself. The line may be passed by it; the reserve is there so that it is not.
    pub fn recharge(&self, process: &Process, device: usize, before: u64, after: u64, at: u64) {
        if before == after {
            return;
        }
        process.own.fetch_add(1, Relaxed);
        process.allocs.fetch_add(1, AcqRel);
        if after > before {
            self.devices[device].used.fetch_add(after - before, AcqRel);
            process.add(device, after - before);
        } else {
            take(&process.used[device], before - after);
            take(&self.devices[device].used, before - after);
        }
        // Lowered or raised, it may be the most so far: what is held ahead is no peak.
        let held = process.used[device].load(Relaxed);
        process.peak[device].fetch_max(held, Relaxed);
        self.devices[device].reached(self.devices[device].used.load(Relaxed), at);
        process.done.fetch_add(1, AcqRel);
    }

    /// As [`Ledger::recharge`], for what the driver took for itself.
    pub fn charge_driver(&self, process: &Process, device: usize, change: i64, at: u64) {
        let driver = &self.devices[device].driver;
        let bytes = change.unsigned_abs();
        if change > 0 {
            let now = driver.fetch_add(bytes, AcqRel) + bytes;
            self.devices[device].driver_peak.fetch_max(now, Relaxed);
            self.recharge(process, device, 0, bytes, at);
        } else {
            take(driver, bytes);
            self.recharge(process, device, bytes, 0, at);
        }
    }

    /// Counts a block for the tag of the thread that asked for it.
    pub fn tag(&self, process: &Process, tag: usize, bytes: u64) {
        if let (Some(held), Some(peak)) = (process.tagged.get(tag), process.tagged_peak.get(tag)) {
            peak.fetch_max(held.fetch_add(bytes, AcqRel) + bytes, Relaxed);
        }
    }

    /// The opposite of [`Ledger::tag`].
    pub fn untag(&self, process: &Process, tag: usize, bytes: u64) {
        if let Some(held) = process.tagged.get(tag) {
            take(held, bytes);
        }
    }

    /// Gives back what dead processes hold. Nobody waits for another who is at it already.
    pub fn reclaim(&self) {
        let me = crate::process::own_pid();
        let holder = self.janitor.load(Acquire);
        // One that was killed at this work has left shares half given back.
        if holder != 0 && !crate::process::is_alive(holder, 0) {
            self.suspicious.store(1, Release);
        } else if holder != 0 {
            return;
        }
        if self.janitor.compare_exchange(holder, me, AcqRel, Relaxed).is_err() {
            return;
        }
        for process in &self.processes {
            if process.state.load(Acquire) == state::LIVE && !process.lives() {
                self.bury(process);
            }
        }
        if self.suspicious.load(Acquire) != 0 {
            self.audit();
        }
        self.janitor.store(0, Release);
    }

    /// Gives back what a process holds that is gone, or has become another program.
    pub(crate) fn bury(&self, process: &Process) {
        if !process.is_quiet() {
            self.suspicious.store(1, Release);
        }
        process.until.store(crate::sys::ticks(), Relaxed);
        process.state.store(state::DEAD, Release);
        for (device, used) in self.devices.iter().zip(&process.used) {
            take(&device.used, used.swap(0, AcqRel));
        }
    }

    /// Sets every device's `used` to the sum of the shares, if nobody is in the middle of an
    /// operation; otherwise it is left for the next time.
    fn audit(&self) {
        let mut settled = true;
        for (index, device) in self.devices.iter().enumerate() {
            let charged = device.used.load(Acquire);
            let quiet = || {
                let live = |p: &&Process| p.state.load(Acquire) == state::LIVE;
                self.processes.iter().filter(live).all(Process::is_quiet)
            };
            let before = quiet();
            let sum = self.processes.iter().map(|p| p.used[index].load(Acquire)).sum();
            let swap = || device.used.compare_exchange(charged, sum, AcqRel, Relaxed).is_ok();
            settled &= before && quiet() && swap();
        }
        if settled {
            self.suspicious.store(0, Release);
        }
    }
}

impl Process {
    /// Whether the process that took this slot still runs.
    #[must_use]
    pub fn lives(&self) -> bool {
        crate::process::is_alive(self.pid.load(Acquire), self.start.load(Acquire))
    }

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
