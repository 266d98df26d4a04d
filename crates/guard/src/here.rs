//! This process's part: the mapped ledger, its slot in it, its table and its list of events.
//!
//! The ledger is mapped when the library is loaded, while the environment is still as `run`
//! left it. A slot is taken at the first call of the driver, so that the shells and tools of
//! a long script take none. What is found here lies on a page that the kernel empties in a
//! child of `fork`: the child sees at its next call that it is new, and takes a slot and a
//! table of its own. What its parent holds stays its parent's.

#![expect(unsafe_code, reason = "maps the ledger, and keeps state that survives a fork rightly")]

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::ledger::{self, Ledger, Process, flag, state};
use crate::log::{Event, Log, Op};
use crate::table::{Class, Held, Table};
use crate::{process, sys};

/// Names the folder of the run.
pub(crate) const VARIABLE: &CStr = c"PLIMSOLL_GUARD";

/// Everything that a hook needs.
pub(crate) struct Here {
    pub(crate) ledger: &'static Ledger,
    pub(crate) process: &'static Process,
    pub(crate) table: &'static Table,
    /// The only context so far; see [`crate::hooks`]'s devices.
    pub(crate) sole: AtomicU64,
    log: Option<Log>,
}

#[repr(C, align(4096))]
struct Page {
    /// 0 not attached, 1 attaching, 2 attached, 3 cannot be.
    state: AtomicU32,
    /// Whose page it is, where the kernel does not empty it; 0 where it does.
    owner: AtomicU32,
    here: core::cell::UnsafeCell<Option<Here>>,
}

static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
/// Whether a forked child must be told by its number.
static BY_NUMBER: AtomicU32 = AtomicU32::new(0);

const PATHS: usize = 512;

/// A path that is written before anybody reads it.
struct Kept(core::cell::UnsafeCell<[u8; PATHS]>);

// SAFETY: both are written by one thread alone, before others read them; who and when is said
// where it is done.
unsafe impl Sync for Kept {}

static FOLDER: Kept = Kept(core::cell::UnsafeCell::new([0; PATHS]));
static LOG_PATH: Kept = Kept(core::cell::UnsafeCell::new([0; PATHS]));

/// This process's part; nothing outside of a run, or where there is no room for it.
#[inline]
pub(crate) fn here() -> Option<&'static Here> {
    let page = PAGE.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: the page is mapped for ever once it is there.
    let page = unsafe { &*page };
    if page.state.load(Acquire) == 2
        && (page.owner.load(Relaxed) == 0 || page.owner.load(Relaxed) == process::own_pid())
    {
        // SAFETY: state 2 says that it was written, and nobody writes it again.
        return unsafe { (*page.here.get()).as_ref() };
    }
    attach(page)
}

#[cold]
fn attach(page: &'static Page) -> Option<&'static Here> {
    let me = process::own_pid();
    loop {
        match page.state.compare_exchange(0, 1, AcqRel, Acquire) {
            Ok(_) => {
                let made = make(me);
                let there = made.is_some();
                // SAFETY: state 1 is ours alone, and nobody reads before it is 2.
                unsafe { *page.here.get() = made };
                page.owner.store(if BY_NUMBER.load(Relaxed) != 0 { me } else { 0 }, Relaxed);
                page.state.store(if there { 2 } else { 3 }, Release);
            }
            Err(1) => {
                // SAFETY: takes and changes nothing.
                unsafe { sys::sched_yield() };
            }
            Err(2) if BY_NUMBER.load(Relaxed) != 0 && page.owner.load(Relaxed) != me => {
                // A forked child, with its parent's page: it begins anew, once.
                let _ = page.state.compare_exchange(2, 0, AcqRel, Relaxed);
            }
            // SAFETY: as in `here`.
            Err(2) => return unsafe { (*page.here.get()).as_ref() },
            Err(_) => return None,
        }
    }
}

fn make(pid: u32) -> Option<Here> {
    let errno = sys::errno();
    // SAFETY: set once, before any hook could run, to a mapping that is never undone.
    let ledger = unsafe { LEDGER.load(Acquire).as_ref() }?;
    let Some(process) = take_slot(ledger, pid) else {
        ledger.warn(flag::NO_SLOT);
        return None;
    };
    let Some(table) = Table::new() else {
        ledger.warn(flag::NO_ROOM);
        return None;
    };
    let since = process.since.load(Relaxed);
    let path = log_path(pid, process.start.load(Relaxed), since);
    let log = path.and_then(|path| Log::create(path, since));
    if log.is_none() {
        ledger.warn(flag::LOG_FULL);
    }
    sys::set_errno(errno);
    Some(Here { ledger, process, table, sole: AtomicU64::new(0), log })
}

fn take_slot(ledger: &'static Ledger, pid: u32) -> Option<&'static Process> {
    let start = process::start_time(pid);
    // After exec the process is the same and its memory gone.
    let same = |p: &&Process| {
        p.state.load(Acquire) == state::LIVE
            && p.pid.load(Relaxed) == pid
            && p.start.load(Relaxed) == start
    };
    if let Some(before) = ledger.processes.iter().find(same) {
        before.replace();
    }
    // Nor does it do any more what a thread of the program before was doing.
    ledger.abandon(pid);
    ledger.reclaim();
    let take = |from: u32| {
        ledger.processes.iter().find(|process| {
            process.state.compare_exchange(from, state::TAKING, AcqRel, Relaxed).is_ok()
        })
    };
    let process = take(state::FREE).or_else(|| take(state::DEAD))?;
    fill(process, pid, start);
    Some(process)
}

fn fill(process: &Process, pid: u32, start: u64) {
    process.pid.store(pid, Relaxed);
    process.start.store(start, Relaxed);
    process.since.store(sys::now_exactly(), Relaxed);
    process.threads.clear();
    let counters = [&process.refused, &process.failed, &process.own, &process.foreign_frees];
    let tags = process.tagged.iter().chain(&process.tagged_peak);
    for counter in counters.into_iter().chain([&process.until]).chain(tags) {
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

impl Here {
    /// Notes an event by itself; when it was.
    pub(crate) fn note(&self, event: Event) -> u64 {
        let (at, stack) = self.moment(event.op);
        self.note_held(&self.table.hold(), &Event { stack, ..event }, at);
        at
    }

    /// What an event of a block needs before the lock is held: what is read then, brought near
    /// while the clock is asked; and when and where it happens.
    #[inline(always)]
    pub(crate) fn moment_of(&self, op: Op, class: Class, key: u64) -> (u64, u16) {
        self.table.near(class, key);
        if let Some(log) = &self.log {
            log.near();
        }
        self.moment(op)
    }

    /// When an event happens and, if that is wanted, where.
    #[inline(always)]
    fn moment(&self, op: Op) -> (u64, u16) {
        let wanted = self.ledger.is(flag::STACKS) && op as u8 <= Op::Refuse as u8;
        let stack = if wanted { crate::stacks::capture(self) } else { 0 };
        (sys::now(), stack)
    }

    /// Notes an event.
    #[inline(always)]
    pub(crate) fn note_held(&self, held: &Held<'_>, event: &Event, at: u64) {
        if let Some(log) = &self.log
            && !log.note(held, event, at)
        {
            self.ledger.warn(flag::LOG_FULL);
        }
    }
}

/// Joins pieces into a path that ends with a zero; nothing where they do not fit.
pub(crate) fn join<'a>(to: &'a mut [u8], pieces: &[&[u8]]) -> Option<&'a CStr> {
    for (at, byte) in pieces.iter().copied().flatten().chain(&[0]).enumerate() {
        *to.get_mut(at)? = *byte;
    }
    CStr::from_bytes_until_nul(to).ok()
}

/// Whether this process belongs to a run.
pub(crate) fn in_run() -> bool {
    !PAGE.load(Acquire).is_null()
}

/// The folder of the run, without its zero.
pub(crate) fn folder() -> &'static [u8] {
    // SAFETY: written once, when the library is loaded, before any other thread runs.
    let folder = unsafe { &*FOLDER.0.get() };
    folder.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn log_path(pid: u32, start: u64, since: u64) -> Option<&'static CStr> {
    let (mut one, mut two, mut three) = ([0; 10], [0; 10], [0; 10]);
    // A program may replace itself by exec; when is part of the name.
    let since = process::decimal((since >> 10) as u32, &mut three);
    let pid = process::decimal(pid, &mut one);
    let start = process::decimal(start as u32, &mut two);
    // SAFETY: only the attaching thread comes here, one at a time; a forked child has its own
    // copy, and its parent's list is mapped and no longer needs its name in the child.
    let path = unsafe { &mut *LOG_PATH.0.get() };
    join(path, &[folder(), b"/log.", pid, b".", start, b".", since])
}

/// Maps the ledger. Called by the loader, before the program's own code.
pub(crate) extern "C" fn load() {
    let errno = sys::errno();
    // SAFETY: the loader calls this once, in the only thread that there is.
    unsafe {
        let folder = sys::text(sys::getenv(VARIABLE.as_ptr()));
        if folder.is_empty() || folder.len() + 64 > PATHS {
            return;
        }
        let kept = &mut *FOLDER.0.get();
        kept[..folder.len()].copy_from_slice(folder);
        let mut path = [0; PATHS];
        if let Some(path) = join(&mut path, &[folder, b"/ledger"]) {
            map(path);
        }
    }
    sys::set_errno(errno);
}

/// # Safety
///
/// Called once, before any hook runs.
unsafe fn map(path: &CStr) {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: the path ends with a zero; both mappings are new and never undone. The ledger
    // was made as large as it is by `run`, with all its room, and lies in a folder that only
    // this user can write to.
    unsafe {
        let fd = sys::open(path.as_ptr(), sys::O_RDWR | sys::O_CLOEXEC);
        if fd < 0 {
            return;
        }
        let size = size_of::<Ledger>();
        let at = sys::mmap(core::ptr::null_mut(), size, access, sys::MAP_SHARED, fd, 0);
        sys::close(fd);
        let kind = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let page = sys::mmap(core::ptr::null_mut(), size_of::<Page>(), access, kind, -1, 0);
        if at as isize == -1 || page as isize == -1 {
            return;
        }
        let found = &*at.cast::<Ledger>();
        if found.magic.load(Acquire) != ledger::MAGIC {
            return;
        }
        found.loaded.fetch_add(1, Relaxed);
        if sys::madvise(page, size_of::<Page>(), sys::MADV_WIPEONFORK) != 0 {
            BY_NUMBER.store(1, Relaxed);
        }
        LEDGER.store(at.cast(), Release);
        PAGE.store(page.cast(), Release);
    }
}

/// Run by the loader.
#[cfg(preload)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
