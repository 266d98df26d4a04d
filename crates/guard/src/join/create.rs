//! Creates ledgers from the environment's limits, and removes unused ones.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use super::{JoinOutcome, OUR_FOLDER, closed, path_of, reach};
use crate::ledger::{GuardLedger, LedgerSetup};
use crate::process::PathBuffer;
use crate::sys::{self, FileError, SysFile};
use crate::{elf, liveness, process};

/// How the folders begin that processes make for themselves and their children.
pub(super) const OWN_FOLDERS: &[u8] = b"/dev/shm/plimsoll-run-";

/// Makes a ledger for this process in `/dev/shm`, and names it to its child processes.
pub(super) fn make_own(settings: &LedgerSetup<'_>) -> JoinOutcome {
    sweep();
    let mut path = PathBuffer::new();
    path.add(OWN_FOLDERS).number(process::own_pid().into()).add(b"-").number(sys::now_exactly());
    let Some(text) = path.get() else { return closed(b"its counters have no name") };
    OUR_FOLDER.set(text.to_bytes());
    // Counts as used until it is joined.
    let made = if sys::mkdir(text) { make(settings) } else { None };
    if made.is_none() {
        return closed(b"its counters cannot be made in /dev/shm; name a folder by PLIMSOLL_GUARD");
    }
    tell_children(text);
    reach(None)
}

/// Child processes find the ledger by the environment.
fn tell_children(folder: &CStr) {
    type Setenv = unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int;
    let setenv = elf::next_function(b"setenv") as usize;
    if setenv != 0 {
        // SAFETY: it is the C library's function, which copies both texts; they end with a zero. No
        // other thread runs yet.
        unsafe {
            let setenv = core::mem::transmute::<usize, Setenv>(setenv);
            setenv(c"PLIMSOLL_GUARD".as_ptr(), folder.as_ptr(), 1);
        }
    }
}

/// Removes ledgers of this user that nobody uses any more.
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
    // A folder with event logs is that of a run, which removes it itself, or the next run does.
    if own && is_bare(folder) && liveness::lock_if_unused(&file) {
        sys::unlink(ledger, false);
        sys::unlink(folder, true);
    }
}

/// Whether a folder contains nothing but a ledger.
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

/// Makes a ledger in the folder. It counts as used for as long as the returned file is open. `None`
/// if there is no ledger afterwards; another process may have made it at the same moment. The file
/// gets its name only when it is complete.
pub(super) fn make(settings: &LedgerSetup<'_>) -> Option<SysFile> {
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
    // All of its space is allocated: writing to a mapped file that cannot grow would end a program
    // by a signal.
    let sized = file.set_size(size as u64) && file.allocate_space(0, GuardLedger::room());
    let at = file.map(size, sys::PROT_READ | sys::PROT_WRITE).cast::<GuardLedger>();
    // SAFETY: zeroed, large enough, aligned to a page, and nobody else has it yet.
    let made = sized && unsafe { at.as_mut() }.map(|ledger| settings.fill(ledger)).is_some();
    liveness::join_users(&file);
    let there = made && matches!(sys::link(draft, named), Ok(()) | Err(FileError::Exists));
    sys::unlink(draft, false);
    if !at.is_null() {
        // SAFETY: nobody else has this mapping; the ledger is mapped again by its name.
        unsafe { sys::munmap(at.cast(), size) };
    }
    there.then_some(file)
}
