//! How a process finds the ledger that it belongs to, or makes one.
//!
//! | in the environment | then |
//! | --- | --- |
//! | `PLIMSOLL_GUARD`, a folder with a ledger | it joins that one |
//! | the folder is gone, and `PLIMSOLL_GUARD_FD` | it joins the file that `run` still has open |
//! | a folder without a ledger, and `PLIMSOLL_GPU_MEM_LIMIT` | it makes one there, for all processes that name the folder |
//! | a ledger that was made so by another user, and `PLIMSOLL_GPU_MEM_LIMIT` | it makes one for itself and its children |
//! | `PLIMSOLL_GPU_MEM_LIMIT` alone | it makes one for itself and its children, which find it by the environment |
//! | neither | nothing is counted |
//!
//! A process that names a ledger and cannot reach it is *closed*, which means that it is refused
//! all GPU memory: what it takes would not be counted. So is a process whose limit cannot be parsed.

#![expect(unsafe_code, reason = "reads the environment, and maps the ledger")]

mod create;
mod settings;

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use create::{make, make_own};
pub(crate) use settings::LIMIT;
use settings::variable;

use crate::ledger::{self, GuardLedger, LedgerSetup};
use crate::liveness;
use crate::process::PathBuffer;
use crate::sys::{self, FileError, SysFile};

/// Names the folder of the ledger.
pub(crate) const FOLDER: &str = "PLIMSOLL_GUARD";
/// Names the ledger's file itself, for the case that its folder is gone.
pub(crate) const DESCRIPTOR: &str = "PLIMSOLL_GUARD_FD";
/// What a process belongs to.
pub(crate) enum JoinOutcome {
    /// No limit was asked for.
    Nothing,
    /// A limit was asked for and cannot be enforced: all GPU memory is refused.
    Closed,
    /// This ledger.
    Ledger(&'static GuardLedger),
}

/// A text that is written when the library is loaded, before any other thread runs.
struct LoadTimeText(core::cell::UnsafeCell<[u8; 512]>);

// SAFETY: only the thread that loads the library writes, before other threads exist.
unsafe impl Sync for LoadTimeText {}

impl LoadTimeText {
    const fn new() -> LoadTimeText {
        LoadTimeText(core::cell::UnsafeCell::new([0; 512]))
    }

    fn set(&self, text: &[u8]) {
        // SAFETY: as above.
        let kept = unsafe { &mut *self.0.get() };
        kept.fill(0);
        let count = text.len().min(kept.len() - 1);
        kept[..count].copy_from_slice(&text[..count]);
    }

    fn get(&self) -> &'static [u8] {
        // SAFETY: as above; the text is part of a static.
        let kept: &'static [u8; 512] = unsafe { &*self.0.get() };
        kept.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

static OUR_FOLDER: LoadTimeText = LoadTimeText::new();
static OUR_DESCRIPTOR: LoadTimeText = LoadTimeText::new();
static WHY: LoadTimeText = LoadTimeText::new();
/// Which file the ledger is: its path may lead to another file later.
static IDENTITY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The ledger's folder, without a final zero.
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

/// Finds the ledger, or makes it.
pub(crate) fn join() -> JoinOutcome {
    let (folder, descriptor) = (variable(FOLDER.as_bytes()), variable(DESCRIPTOR.as_bytes()));
    let settings = match settings::read() {
        Ok(settings) => settings,
        // A process that joins a run gets its limit from there.
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
fn reach(settings: Option<&LedgerSetup<'_>>) -> JoinOutcome {
    /// Another process may make or remove the ledger at the same moment.
    const TRIES: usize = 50;
    // The new ledger counts as used from its first moment on, so that nobody removes it as left
    // over.
    let mut made = None;
    for _ in 0..TRIES {
        let path = path_of(b"/ledger");
        let Some(path) = path.get() else { break };
        match SysFile::open(path, sys::O_RDWR, 0) {
            Ok(file) => {
                // A ledger that nobody uses is left over from an earlier start. A new one gets the
                // limit of this start.
                if settings.is_some() && made.is_none() && liveness::lock_if_unused(&file) {
                    sys::unlink(path, false);
                } else if let Some(joined) = enter(&file, path) {
                    return joined;
                } else {
                    sys::sleep_millisecond();
                }
            }
            Err(FileError::Denied) => return denied(settings),
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

/// What a process does that may not open the ledger because it became another user. `run` reports
/// such a process, and nothing is counted. A limit from the environment has nobody to report it:
/// this user's processes get counters of their own where the others were made by a process for
/// itself (an entry point as root, the program as another user).
fn denied(settings: Option<&LedgerSetup<'_>>) -> JoinOutcome {
    match settings {
        None => JoinOutcome::Nothing,
        Some(settings) if folder().starts_with(create::OWN_FOLDERS) => make_own(settings),
        Some(_) => closed(
            b"the counters in the folder that PLIMSOLL_GUARD names belong to another user; name \
              another folder for each user",
        ),
    }
}

/// Joins the file that `run` still has open, where its folder was removed.
fn by_descriptor() -> Option<JoinOutcome> {
    let mut path = PathBuffer::new();
    path.add(OUR_DESCRIPTOR.get());
    let path = path.get().filter(|path| !path.is_empty())?;
    map(&SysFile::open(path, sys::O_RDWR, 0).ok()?)
}

/// Joins an open ledger; `None` if its path leads to another file meanwhile.
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
    // SAFETY: the mapping is large enough, aligned to a page and never removed; what changes in it
    // is atomic.
    let found = unsafe { at.as_ref() }?;
    if found.magic.load(Acquire) != ledger::MAGIC {
        return Some(closed(b"the counters are those of another version of plimsoll"));
    }
    IDENTITY[0].store(facts.identity.0, Relaxed);
    IDENTITY[1].store(facts.identity.1, Relaxed);
    Some(JoinOutcome::Ledger(found))
}

/// Opens the ledger's file once more, by its path or by the descriptor of `run`.
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
