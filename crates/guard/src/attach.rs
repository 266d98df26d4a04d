//! The guard's state in this process: the mapped ledger, this process's slot in it, its table and
//! its event log.
//!
//! The ledger is mapped when the library is loaded, while the environment is unchanged
//! ([`crate::join`] finds or makes it). A slot is taken at the first driver call, so that the
//! shells and tools of a long script take none. The state lies on a page that the kernel zeroes in
//! a child of `fork`: at its next call the child sees that it is new, and takes a slot, a table and
//! locks of its own. What its parent holds stays with the parent.
//!
//! A process that should be counted and cannot be is *closed*: it is refused all GPU memory.

#![expect(unsafe_code, reason = "keeps state that survives a fork rightly")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::join::{self, JoinOutcome};
use crate::ledger::{GuardLedger, LedgerProcess, Liveness, RobustLock, flag, state};
use crate::liveness::{self, LivenessCheck};
use crate::lock::ThreadLock;
use crate::log::{EventLogWriter, GuardMemoryKind, GuardOp, NewEvent};
use crate::process::PathBuffer;
use crate::system_memory::SystemMemoryReading;
use crate::table::{LockedTable, ResourceClass, ResourceTable};
use crate::{elf, process, sys};

/// Everything that the handler of a driver call needs. In this order: what every allocation reads
/// is in one cache line, together with the page's state.
#[repr(C)]
pub(crate) struct ProcessGuard {
    pub(crate) ledger: &'static GuardLedger,
    pub(crate) process: &'static LedgerProcess,
    pub(crate) table: &'static ResourceTable,
    /// The only context so far; see `hooks/devices.rs`.
    pub(crate) single_context: AtomicU64,
    log: Option<EventLogWriter>,
    slot: usize,
    /// On unified memory: what the system last reported to have available.
    pub(crate) system: SystemMemoryReading,
    /// Held while allocating from a pool, chosen by its handle, or launching a graph.
    pub(crate) pool_locks: [ThreadLock; POOL_LOCKS],
}
/// The first two words of the event log's writer are what every event needs.
const _: () =
    assert!(core::mem::offset_of!(ProcessGuard, log) + 16 <= 56, "a line has no more room");

/// At most this many pools are allocated from at once.
pub(crate) const POOL_LOCKS: usize = 16;

#[repr(C, align(4096))]
struct ForkPage {
    /// One of [`page_state`].
    state: AtomicU32,
    /// The PID of the owner, where the kernel does not zero the page; 0 where it does.
    owner: AtomicU32,
    guard: core::cell::UnsafeCell<Option<ProcessGuard>>,
}

/// States of a [`ForkPage`].
mod page_state {
    /// The driver was not called yet; what fresh memory, all zeros, reads as.
    pub(super) const NEW: u32 = 0;
    /// A thread is taking a slot.
    pub(super) const ATTACHING: u32 = 1;
    /// This process has a slot.
    pub(super) const ATTACHED: u32 = 2;
    /// This process is closed.
    pub(super) const CLOSED: u32 = 3;
}

static LEDGER: AtomicPtr<GuardLedger> = AtomicPtr::new(core::ptr::null_mut());
static PAGE: AtomicPtr<ForkPage> = AtomicPtr::new(core::ptr::null_mut());
/// Whether a child of `fork` must be recognised by its PID.
static BY_NUMBER: AtomicU32 = AtomicU32::new(0);
/// Whether this process should have a ledger and has none.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// The path of the event log, written before anybody reads it.
struct LogPathCell(core::cell::UnsafeCell<PathBuffer>);

// SAFETY: only the attaching thread writes it, before others read it.
unsafe impl Sync for LogPathCell {}

static LOG_PATH: LogPathCell = LogPathCell(core::cell::UnsafeCell::new(PathBuffer::new()));

/// The guard's state in this process; `None` outside of a run, and where the process is closed.
#[inline]
pub(crate) fn attached() -> Option<&'static ProcessGuard> {
    let page = PAGE.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: once there is a page, it stays mapped.
    let page = unsafe { &*page };
    if page.state.load(Acquire) == page_state::ATTACHED
        && (page.owner.load(Relaxed) == 0 || page.owner.load(Relaxed) == process::own_pid())
    {
        // SAFETY: in this state it was written, and nobody writes it again.
        return unsafe { (*page.guard.get()).as_ref() };
    }
    attach(page)
}

/// Whether this process is refused all GPU memory. Prints the reason once.
#[cold]
pub(crate) fn is_closed() -> bool {
    static SAID: AtomicU32 = AtomicU32::new(0);
    // SAFETY: once there is a page, it stays mapped.
    let page = unsafe { PAGE.load(Acquire).as_ref() };
    let closed = CLOSED.load(Relaxed) != 0
        || page.is_some_and(|page| page.state.load(Acquire) == page_state::CLOSED);
    if closed && SAID.swap(1, Relaxed) == 0 {
        let why: &[u8] = match WHY.load(Relaxed) {
            why::UNREACHABLE => {
                b"the counters of its run cannot be opened: they were removed, or it became another \
                  user or has no free file descriptor"
            }
            why::NO_SLOT => b"too many processes use the GPU, or /dev/shm is full",
            why::NO_ROOM => b"it has no memory to count its blocks (see `ulimit -v`)",
            _ => join::why_closed(),
        };
        sys::print_error(&[b"plimsoll: GPU memory is refused to this process: ", why, b"\n"]);
    }
    closed
}

#[cold]
fn attach(page: &'static ForkPage) -> Option<&'static ProcessGuard> {
    let me = process::own_pid();
    loop {
        match page.state.compare_exchange(page_state::NEW, page_state::ATTACHING, AcqRel, Acquire) {
            Ok(_) => {
                let made = make(me);
                let there = made.is_some();
                // SAFETY: only this thread brought the page into this state, and nobody reads it
                // before the state changes.
                unsafe { *page.guard.get() = made };
                page.owner.store(if BY_NUMBER.load(Relaxed) != 0 { me } else { 0 }, Relaxed);
                let now = if there { page_state::ATTACHED } else { page_state::CLOSED };
                page.state.store(now, Release);
            }
            Err(page_state::ATTACHING) => sys::sleep_millisecond(),
            Err(page_state::ATTACHED)
                if BY_NUMBER.load(Relaxed) != 0 && page.owner.load(Relaxed) != me =>
            {
                // A child of `fork` with its parent's page: it starts anew, once.
                let _ = page.state.compare_exchange(
                    page_state::ATTACHED,
                    page_state::NEW,
                    AcqRel,
                    Relaxed,
                );
            }
            // SAFETY: as in [`attached`].
            Err(page_state::ATTACHED) => return unsafe { (*page.guard.get()).as_ref() },
            Err(_) => return None,
        }
    }
}

fn make(pid: u32) -> Option<ProcessGuard> {
    let ledger = ledger()?;
    let Some((own, files)) = join::open_again().zip(join::open_again()) else {
        ledger.warn(flag::NO_SLOT);
        return close(why::UNREACHABLE);
    };
    let Some(slot) = liveness::take_slot(own, files, ledger) else {
        ledger.warn(flag::NO_SLOT);
        return close(why::NO_SLOT);
    };
    let process = &ledger.processes[slot];
    let Some(table) = ResourceTable::new() else {
        ledger.warn(flag::NO_ROOM);
        return close(why::NO_ROOM);
    };
    fill(process, pid);
    let log = if ledger.has_setting(flag::NO_EVENT_LOG) { None } else { list(process) };
    if log.is_none() && !ledger.has_setting(flag::NO_EVENT_LOG) {
        ledger.warn(flag::LOG_FULL);
    }
    let guard = ProcessGuard {
        ledger,
        process,
        slot,
        table,
        single_context: AtomicU64::new(0),
        pool_locks: [const { ThreadLock::new() }; POOL_LOCKS],
        system: SystemMemoryReading::new(),
        log,
    };
    // What processes held that have died before this one started must not count beside it.
    guard.reclaim();
    Some(guard)
}

/// Why a process that has a ledger is closed.
mod why {
    pub(super) const UNREACHABLE: u32 = 1;
    pub(super) const NO_SLOT: u32 = 2;
    pub(super) const NO_ROOM: u32 = 3;
}
static WHY: AtomicU32 = AtomicU32::new(0);

fn close(why: u32) -> Option<ProcessGuard> {
    WHY.store(why, Relaxed);
    None
}

fn fill(process: &LedgerProcess, pid: u32) {
    process.pid.store(pid, Relaxed);
    process.start.store(process::start_time(pid), Relaxed);
    process.space.store(process::own_pid_namespace(), Relaxed);
    process.since.store(sys::now_exactly(), Relaxed);
    process.threads.clear();
    let counters = [&process.refused, &process.failed, &process.own, &process.foreign_frees];
    let counters = counters.into_iter().chain([&process.files]);
    let tags = process.tagged.iter().chain(&process.tagged_peak).chain(&process.driver);
    for counter in counters.chain([&process.until]).chain(tags) {
        counter.store(0, Relaxed);
    }
    let mut name = [0; 256];
    let count = sys::read_file(c"/proc/self/cmdline", &mut name).unwrap_or(0);
    let name = &mut name[..count];
    let end = name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    name[..end].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    let end = end.min(63);
    process.set_name(&name[..end]);
    process.state.store(state::LIVE, Release);
}

/// Creates the event log in the folder of the run.
fn list(process: &LedgerProcess) -> Option<EventLogWriter> {
    // SAFETY: only the attaching thread runs this, one at a time. A child of `fork` has its own
    // copy; its parent's log is mapped and does not need its path in the child.
    let path = unsafe { &mut *LOG_PATH.0.get() };
    *path = file_of(b"/log.", process);
    EventLogWriter::create(path.get()?, process.since.load(Relaxed))
}

/// The path of a file of this process in the folder of the run. It contains the time of attaching,
/// as a program may replace itself by exec.
pub(crate) fn file_of(kind: &[u8], process: &LedgerProcess) -> PathBuffer {
    let (pid, since) = (process.pid.load(Relaxed), process.since.load(Relaxed));
    let mut path = PathBuffer::new();
    path.add(join::folder()).add(kind).number(pid.into()).add(b".").number(since);
    path
}

impl ProcessGuard {
    /// Gives back what processes held that have died.
    #[cold]
    pub(crate) fn reclaim(&self) {
        // Where the file cannot be opened, liveness is unknown, and nothing is given back.
        if let Some(file) = join::open_again() {
            self.ledger.reclaim(self.slot, &LivenessCheck::new(&file, self.ledger));
        }
    }

    /// Notes, once there is a context, whether this process has device files of the driver open.
    pub(crate) fn note_device_files(&self) {
        if process::has_device_files().unwrap_or(true) {
            self.process.files.store(1, Relaxed);
        }
    }

    /// Runs what only one process may do at a time, by one of the ledger's locks. Waits for at most
    /// ten seconds: a process that is stopped must not stop the others forever.
    pub(crate) fn exclusively<T>(&self, lock: &RobustLock, work: impl FnOnce() -> T) -> T {
        const WAIT: u64 = 10_000_000_000;
        let until = sys::now() + WAIT;
        let lives = |slot| {
            let file = join::open_again();
            file.is_none_or(|file| LivenessCheck::new(&file, self.ledger).is_running(slot))
        };
        let mut taken = lock.try_acquire(self.slot, lives);
        while taken.is_none() && sys::now() < until {
            lock.wait();
            taken = lock.try_acquire(self.slot, lives);
        }
        let result = work();
        if taken.is_some() {
            lock.release(self.slot);
        }
        result
    }

    /// Logs an event that is not about an entry of the table; returns its time.
    pub(crate) fn log_event(&self, event: NewEvent) -> u64 {
        let (at, stack) = self.time_and_stack(event.op);
        self.log_event_locked(&self.table.lock(), &NewEvent { stack, ..event }, at);
        at
    }

    /// Logs a change of what the driver holds for itself; returns its time.
    pub(crate) fn log_charge(
        &self,
        op: GuardOp,
        kind: GuardMemoryKind,
        device: usize,
        key: u64,
        bytes: u64,
    ) -> u64 {
        let device = device as u8;
        self.log_event(NewEvent { op, kind, device, tag: 0, key, bytes, stream: 0, stack: 0 })
    }

    /// Prepares the event of an entry before the lock is taken: prefetches what will be needed, and
    /// returns the event's time and call stack.
    #[inline(always)]
    pub(crate) fn prepare_event(&self, op: GuardOp, class: ResourceClass, key: u64) -> (u64, u16) {
        self.table.prefetch(class, key);
        if let Some(log) = &self.log {
            log.prefetch();
        }
        self.time_and_stack(op)
    }

    /// The time of an event and, if call stacks are wanted, the number of its stack.
    #[inline(always)]
    fn time_and_stack(&self, op: GuardOp) -> (u64, u16) {
        let wanted = self.ledger.has_setting(flag::STACKS) && op as u8 <= GuardOp::Refuse as u8;
        let stack = if wanted { crate::stacks::capture(self) } else { 0 };
        (sys::now(), stack)
    }

    /// Logs an event while the table is locked.
    #[inline(always)]
    pub(crate) fn log_event_locked(&self, held: &LockedTable<'_>, event: &NewEvent, at: u64) {
        if let Some(log) = &self.log
            && !log.note(held, event, at)
        {
            self.ledger.warn(flag::LOG_FULL);
        }
    }
}

/// The ledger that this process has joined.
pub(crate) fn ledger() -> Option<&'static GuardLedger> {
    // SAFETY: set once, before any driver call is intercepted, to a mapping that is never removed.
    unsafe { LEDGER.load(Acquire).as_ref() }
}

/// Whether this process belongs to a run.
pub(crate) fn in_run() -> bool {
    !PAGE.load(Acquire).is_null() || CLOSED.load(Relaxed) != 0
}

/// Joins a ledger. The loader calls it before the program's own code.
pub(crate) extern "C" fn load() {
    sys::set_clock(elf::next_function(b"clock_gettime") as usize);
    match join::join() {
        JoinOutcome::Nothing => {}
        JoinOutcome::Closed => CLOSED.store(1, Relaxed),
        JoinOutcome::Ledger(ledger) => {
            let page = sys::map_anonymous(size_of::<ForkPage>(), 0);
            if page.is_null() {
                CLOSED.store(1, Relaxed);
                return;
            }
            ledger.loaded.fetch_add(1, Relaxed);
            // SAFETY: the page is new, and a child of `fork` is meant to lose its content.
            if !unsafe { sys::madvise(page, size_of::<ForkPage>(), sys::MADV_WIPEONFORK) } {
                BY_NUMBER.store(1, Relaxed);
            }
            LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Release);
            PAGE.store(page.cast(), Release);
        }
    }
}

/// The ledger that this process has joined, for `client`; null for none.
#[cfg_attr(preload, unsafe(no_mangle))]
pub(crate) extern "C" fn plimsoll_guard_ledger() -> *const GuardLedger {
    LEDGER.load(Acquire)
}

/// This process's slot, for `client`; null before it has called the driver.
#[cfg_attr(preload, unsafe(no_mangle))]
pub(crate) extern "C" fn plimsoll_guard_process() -> *const LedgerProcess {
    // SAFETY: once there is a page, it stays mapped.
    let page = unsafe { PAGE.load(Acquire).as_ref() };
    let is_attached = page.is_some_and(|page| page.state.load(Acquire) == page_state::ATTACHED);
    match attached() {
        Some(guard) if is_attached => guard.process,
        _ => core::ptr::null(),
    }
}

/// Makes the loader call [`load`].
#[cfg(preload)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
