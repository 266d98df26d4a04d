//! How a process finds the ledger that it belongs to, or makes one.
//!
//! | in the environment | then |
//! | --- | --- |
//! | `PLIMSOLL_GUARD`, a folder with a ledger | it joins that one |
//! | the folder is gone, and `PLIMSOLL_GUARD_FD` | it joins what `run` still holds open |
//! | a folder without a ledger, and `PLIMSOLL_GPU_MEM_LIMIT` | it makes one there, for all who name the folder |
//! | `PLIMSOLL_GPU_MEM_LIMIT` alone | it makes one for itself and its children, and names it to them |
//! | neither | nothing is counted |
//!
//! A process that names a ledger and reaches none is closed: what it would take, nobody would
//! count. So is one whose limit cannot be understood.

#![expect(unsafe_code, reason = "reads the environment, and maps the ledger")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::ledger::{self, DEVICES, GuardLedger, NO_LIMIT, flag};
use crate::process::PathBuffer;
use crate::sys::{self, FileError, SysFile};
use crate::{elf, liveness, process};

/// Names the folder of the ledger.
pub(crate) const FOLDER: &[u8] = b"PLIMSOLL_GUARD";
/// Names a way to the ledger that does not go by its folder.
pub(crate) const DESCRIPTOR: &[u8] = b"PLIMSOLL_GUARD_FD";
/// The limit of every device; with `_` and a number behind it, that of one.
pub(crate) const LIMIT: &[u8] = b"PLIMSOLL_GPU_MEM_LIMIT";
const RESERVE: &[u8] = b"PLIMSOLL_RESERVE";
const KEEP_FREE: &[u8] = b"PLIMSOLL_KEEP_FREE";

/// Held back below the limit for what the driver takes for itself, unless something else is said.
pub(crate) const DEFAULT_RESERVE: u64 = 128 << 20;
/// What must stay available on unified memory, unless something else is said.
pub(crate) const DEFAULT_KEEP_FREE: u64 = 512 << 20;

/// What a process belongs to.
pub(crate) enum JoinOutcome {
    /// No limit was asked for.
    Nothing,
    /// One was, and cannot be held: all memory is refused.
    Closed,
    /// This one.
    Ledger(&'static GuardLedger),
}

/// Texts that are written when the library is loaded, before any other thread runs.
struct LoadTimeText(core::cell::UnsafeCell<[u8; 512]>);

// SAFETY: see above.
unsafe impl Sync for LoadTimeText {}

impl LoadTimeText {
    const fn new() -> LoadTimeText {
        LoadTimeText(core::cell::UnsafeCell::new([0; 512]))
    }

    fn set(&self, text: &[u8]) {
        // SAFETY: only the thread that loads the library writes, before others read.
        let kept = unsafe { &mut *self.0.get() };
        kept.fill(0);
        let count = text.len().min(kept.len() - 1);
        kept[..count].copy_from_slice(&text[..count]);
    }

    fn get(&self) -> &'static [u8] {
        // SAFETY: as above; it is a static's.
        let kept: &'static [u8; 512] = unsafe { &*self.0.get() };
        kept.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

static OUR_FOLDER: LoadTimeText = LoadTimeText::new();
static OUR_DESCRIPTOR: LoadTimeText = LoadTimeText::new();
static WHY: LoadTimeText = LoadTimeText::new();
/// Which file the ledger is: a name may lead to another one later.
static IDENTITY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The ledger's folder, without an end.
pub(crate) fn folder() -> &'static [u8] {
    OUR_FOLDER.get()
}

/// Why this process is closed.
pub(crate) fn why_closed() -> &'static [u8] {
    WHY.get()
}

fn closed(why: &[u8]) -> JoinOutcome {
    WHY.set(why);
    JoinOutcome::Closed
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// A variable of the environment; empty where it is not set.
fn variable(name: &[u8]) -> &'static [u8] {
    // SAFETY: the C library's list of texts, which ends with a null; no other thread runs yet.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let value =
                sys::c_bytes(*at).strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
            if let Some(value) = value {
                return value;
            }
            at = at.add(1);
        }
    }
    b""
}

/// Finds the ledger, or makes it.
pub(crate) fn join() -> JoinOutcome {
    let (folder, descriptor) = (variable(FOLDER), variable(DESCRIPTOR));
    let settings = match EnvironmentLimits::read() {
        Ok(settings) => settings,
        // Who has joined a run has its limit from there.
        Err(_) if !folder.is_empty() && !descriptor.is_empty() => None,
        Err(why) => return closed(why),
    };
    if folder.len() > 400 {
        return closed(b"the folder that PLIMSOLL_GUARD names has too long a name");
    }
    OUR_FOLDER.set(folder);
    OUR_DESCRIPTOR.set(descriptor);
    match (folder.is_empty(), settings) {
        (true, None) => JoinOutcome::Nothing,
        (true, Some(settings)) => make_own(&settings),
        (false, settings) => reach(settings.as_ref()),
    }
}

fn path_of(name: &[u8]) -> PathBuffer {
    let mut path = PathBuffer::new();
    path.add(folder()).add(name);
    path
}

/// Joins the ledger in the folder, or makes it there.
fn reach(settings: Option<&EnvironmentLimits>) -> JoinOutcome {
    /// Somebody may make or remove it in the same moment.
    const TRIES: usize = 50;
    // In use from its first moment on, so that nobody takes it for left behind.
    let mut made = None;
    for _ in 0..TRIES {
        let path = path_of(b"/ledger");
        let Some(path) = path.get() else { break };
        match SysFile::open(path, sys::O_RDWR, 0) {
            Ok(file) => {
                // Nobody uses what an earlier start has left: a new one has the limit of now.
                if settings.is_some() && made.is_none() && liveness::lock_if_unused(&file) {
                    sys::unlink(path, false);
                } else if let Some(joined) = enter(&file, path) {
                    return joined;
                } else {
                    sys::sleep_millisecond();
                }
            }
            // Another user's: reported by `run`, and not counted.
            Err(FileError::Denied) => return JoinOutcome::Nothing,
            Err(FileError::Missing) => match (by_descriptor(), settings) {
                (Some(joined), _) => return joined,
                (None, Some(settings)) => made = make(settings),
                (None, None) => break,
            },
            Err(_) => break,
        }
    }
    closed(b"the counters in the folder that PLIMSOLL_GUARD names cannot be reached")
}

/// What `run` still holds open, where its folder was removed.
fn by_descriptor() -> Option<JoinOutcome> {
    let mut path = PathBuffer::new();
    path.add(OUR_DESCRIPTOR.get());
    let path = path.get().filter(|path| !path.is_empty())?;
    map(&SysFile::open(path, sys::O_RDWR, 0).ok()?)
}

/// Joins an open ledger; nothing if its name has come to mean another one meanwhile.
fn enter(file: &SysFile, path: &CStr) -> Option<JoinOutcome> {
    if !liveness::join_users(file) {
        return None;
    }
    let now = SysFile::open(path, sys::O_RDWR, 0).ok()?.status()?;
    (file.status()?.identity == now.identity).then(|| map(file))?
}

fn map(file: &SysFile) -> Option<JoinOutcome> {
    liveness::join_users(file);
    let facts = file.status()?;
    if !facts.is_regular || facts.size < size_of::<GuardLedger>() as u64 {
        return None;
    }
    let at =
        file.map(size_of::<GuardLedger>(), sys::PROT_READ | sys::PROT_WRITE).cast::<GuardLedger>();
    // SAFETY: a mapping that is large enough, aligned to a page and never undone; what changes
    // in it is atomic.
    let found = unsafe { at.as_ref() }?;
    if found.magic.load(Acquire) != ledger::MAGIC {
        return Some(closed(b"the counters are those of another version of plimsoll"));
    }
    IDENTITY[0].store(facts.identity.0, Relaxed);
    IDENTITY[1].store(facts.identity.1, Relaxed);
    Some(JoinOutcome::Ledger(found))
}

/// The ledger's file once more, by whichever way leads there.
pub(crate) fn open_again() -> Option<SysFile> {
    let identity = (IDENTITY[0].load(Relaxed), IDENTITY[1].load(Relaxed));
    let by_name = path_of(b"/ledger");
    let mut by_descriptor = PathBuffer::new();
    by_descriptor.add(OUR_DESCRIPTOR.get());
    [by_name, by_descriptor].iter().find_map(|path| {
        let file = SysFile::open(path.get()?, sys::O_RDWR, 0).ok()?;
        (file.status()?.identity == identity).then_some(file)
    })
}

/// Makes a ledger of this process's own, in memory, and names it to its children.
fn make_own(settings: &EnvironmentLimits) -> JoinOutcome {
    const PARENT: &[u8] = b"/dev/shm/plimsoll-run-";
    sweep();
    let mut path = PathBuffer::new();
    path.add(PARENT).number(process::own_pid().into()).add(b"-").number(sys::now_exactly());
    let Some(text) = path.get() else { return closed(b"its counters have no name") };
    OUR_FOLDER.set(text.to_bytes());
    // In use until it is joined.
    let made = if sys::mkdir(text) { make(settings) } else { None };
    if made.is_none() {
        return closed(b"its counters cannot be made in /dev/shm; name a folder by PLIMSOLL_GUARD");
    }
    tell_children(text);
    reach(None)
}

/// Children find the ledger by the environment.
fn tell_children(folder: &CStr) {
    type Setenv = unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int;
    let setenv = elf::next_function(b"setenv") as usize;
    if setenv != 0 {
        // SAFETY: it is the C library's; both texts end with a zero, and are copied. No other
        // thread runs yet.
        unsafe {
            let setenv = core::mem::transmute::<usize, Setenv>(setenv);
            setenv(c"PLIMSOLL_GUARD".as_ptr(), folder.as_ptr(), 1);
        }
    }
}

/// Removes ledgers of this user's that nobody uses any more.
fn sweep() {
    let Ok(memory) = SysFile::open(c"/dev/shm", sys::O_RDONLY | sys::O_DIRECTORY, 0) else {
        return;
    };
    let mut names = [0u64; 1024];
    loop {
        let count = memory.list(&mut names);
        if count == 0 {
            return;
        }
        process::each_name(&names, count, |name| {
            if name.starts_with(b"plimsoll-run-") {
                remove_unused(name);
            }
        });
    }
}

fn remove_unused(name: &[u8]) {
    let (mut folder, mut ledger) = (PathBuffer::new(), PathBuffer::new());
    folder.add(b"/dev/shm/").add(name);
    ledger.add(b"/dev/shm/").add(name).add(b"/ledger");
    let (Some(folder), Some(ledger)) = (folder.get(), ledger.get()) else { return };
    let Ok(file) = SysFile::open(ledger, sys::O_RDWR, 0) else { return };
    let own = file.status().is_some_and(|facts| facts.owner == sys::effective_user());
    // A folder with lists in it is a run's, which removes them itself, or the next run does.
    if own && is_bare(folder) && liveness::lock_if_unused(&file) {
        sys::unlink(ledger, false);
        sys::unlink(folder, true);
    }
}

/// Whether a folder has nothing but a ledger.
fn is_bare(folder: &CStr) -> bool {
    let Ok(folder) = SysFile::open(folder, sys::O_RDONLY | sys::O_DIRECTORY, 0) else {
        return false;
    };
    let mut names = [0u64; 128];
    let count = folder.list(&mut names);
    let mut others = 0;
    process::each_name(&names, count, |name| {
        others += u32::from(!matches!(name, b"." | b".." | b"ledger"));
    });
    others == 0
}

/// Makes a ledger in the folder, which is in use for as long as what is returned lives; nothing if
/// there is none now. Somebody else may have made it in the same moment. It has its name only when
/// it is whole.
fn make(settings: &EnvironmentLimits) -> Option<SysFile> {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let folder = path_of(b"");
    let mut draft = path_of(b"/ledger.");
    draft.number(process::own_pid().into()).add(b".").number(sys::now_exactly());
    draft.add(b".").number(TURN.fetch_add(1, Relaxed).into());
    let named = path_of(b"/ledger");
    let (folder, draft, named) = (folder.get()?, draft.get()?, named.get()?);
    sys::mkdir(folder);
    let size = size_of::<GuardLedger>();
    let flags = sys::O_RDWR | sys::O_CREAT | sys::O_EXCL;
    if !sys::file_size_allowed(size as u64) {
        return None;
    }
    let file = SysFile::open(draft, flags, 0o600).ok()?;
    // With all its room: a mapped file that cannot grow would end a program.
    let sized = file.set_size(size as u64) && file.allocate_space(0, GuardLedger::room());
    let at = file.map(size, sys::PROT_READ | sys::PROT_WRITE).cast::<GuardLedger>();
    // SAFETY: zeroed, large enough, aligned to a page, and nobody else has it yet.
    let made = sized && unsafe { at.as_mut() }.is_some_and(|ledger| settings.fill(ledger));
    liveness::join_users(&file);
    let there = made && matches!(sys::link(draft, named), Ok(()) | Err(FileError::Exists));
    sys::unlink(draft, false);
    if !at.is_null() {
        // SAFETY: it is ours, and mapped again by its name.
        unsafe { sys::munmap(at.cast(), size) };
    }
    there.then_some(file)
}

/// What the environment asks for.
struct EnvironmentLimits {
    limit: u64,
    limits: [u64; DEVICES],
    reserve: u64,
    keep_free: u64,
}

impl EnvironmentLimits {
    /// Reads them; nothing where no limit is named.
    fn read() -> Result<Option<EnvironmentLimits>, &'static [u8]> {
        let of = |text: &[u8], otherwise: u64, why: &'static [u8]| match text {
            b"" => Ok(otherwise),
            text => size(text).ok_or(why),
        };
        let bad = b"PLIMSOLL_GPU_MEM_LIMIT must be a size with its unit, such as 8GiB or 512MiB";
        let limit = of(variable(LIMIT), NO_LIMIT, bad)?;
        let mut limits = [0; DEVICES];
        for (number, place) in limits.iter_mut().enumerate() {
            let mut name = [0; 40];
            let mut digits = [0; 20];
            let pieces = [LIMIT, b"_", process::decimal(number as u64, &mut digits)];
            let mut end = 0;
            for byte in pieces.iter().copied().flatten() {
                name[end] = *byte;
                end += 1;
            }
            *place = of(variable(&name[..end]), 0, bad)?;
        }
        if limit == NO_LIMIT && limits.iter().all(|limit| *limit == 0) {
            return Ok(None);
        }
        let bad = b"PLIMSOLL_RESERVE must be a size with its unit, such as 128MiB";
        let or_none = |text: &'static [u8], otherwise, why| match text {
            b"0" => Ok(0),
            text => of(text, otherwise, why),
        };
        let reserve = or_none(variable(RESERVE), DEFAULT_RESERVE, bad)?;
        let bad = b"PLIMSOLL_KEEP_FREE must be a size with its unit, such as 512MiB";
        let keep_free = or_none(variable(KEEP_FREE), DEFAULT_KEEP_FREE, bad)?;
        let least = limits.iter().copied().filter(|limit| *limit > 0).chain([limit]).min();
        if least.is_some_and(|least| least <= reserve) {
            return Err(b"its limit leaves nothing above PLIMSOLL_RESERVE (128MiB unless set)");
        }
        Ok(Some(EnvironmentLimits { limit, limits, reserve, keep_free }))
    }

    fn fill(&self, ledger: &mut GuardLedger) -> bool {
        let path = b"/proc/meminfo";
        ledger.default_budget.store(self.limit, Relaxed);
        for (budget, limit) in ledger.budgets.iter().zip(self.limits) {
            budget.store(limit, Relaxed);
        }
        ledger.reserve.store(self.reserve, Relaxed);
        ledger.keep_free.store(self.keep_free, Relaxed);
        ledger.flags.store(flag::NO_EVENT_LOG, Relaxed);
        ledger.meminfo[..path.len()].copy_from_slice(path);
        ledger.magic.store(ledger::MAGIC, Release);
        true
    }
}

/// A size with its unit: `8GiB` is binary, `8GB` decimal. Without a unit it is none: a limit of
/// eight bytes is not what somebody meant.
fn size(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let (number, unit) = text.split_at(end);
    let scale = [
        (b"b".as_slice(), 1u64),
        (b"kib", 1 << 10),
        (b"mib", 1 << 20),
        (b"gib", 1 << 30),
        (b"tib", 1 << 40),
        (b"ki", 1 << 10),
        (b"mi", 1 << 20),
        (b"gi", 1 << 30),
        (b"ti", 1 << 40),
        (b"kb", 1_000),
        (b"mb", 1_000_000),
        (b"gb", 1_000_000_000),
        (b"tb", 1_000_000_000_000),
    ];
    let unit = unit.trim_ascii();
    let (_, scale) = scale.into_iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    let mut parts = number.split(|&byte| byte == b'.');
    let whole = parts.next().filter(|whole| !whole.is_empty())?;
    let part = parts.next().unwrap_or_default();
    if parts.next().is_some() || part.len() > 9 {
        return None;
    }
    let digits = |text: &[u8]| {
        text.iter()
            .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
    };
    let tenths = 10u64.pow(part.len() as u32);
    let part = u128::from(digits(part)?) * u128::from(scale) / u128::from(tenths);
    let bytes = digits(whole)?.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_name_their_unit() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            (" 512 MiB ", 512 << 20),
            ("1.5gib", 3 << 29),
            ("8GB", 8_000_000_000),
            ("0.5kb", 500),
            ("8Gi", 8 << 30),
            ("1073741824B", 1 << 30),
        ] {
            assert_eq!(size(text.as_bytes()), Some(bytes), "{text}");
        }
        for text in ["", "8", "GiB", ".5GiB", "8G", "-1GiB", "1.2.3GiB", "99999999999TiB", "0GiB"] {
            assert_eq!(size(text.as_bytes()), None, "{text}");
        }
    }
}
