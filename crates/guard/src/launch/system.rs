//! The calls of the C library that the launcher makes besides [signals](super::signals).

#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::ledger::GuardLedger;

/// From now on, writing past the limit of a file's size (`ulimit -f`) is an error and does not
/// end this process. By a handler, because the program that is started would inherit a signal
/// that is ignored.
pub(super) fn survive_large_files() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe {
        let before = libc::signal(libc::SIGXFSZ, nothing as *const () as usize);
        if before == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, before);
        }
    }
}

/// Whether a program's file gives capabilities to whoever starts it (`setcap`).
pub(super) fn has_capabilities(path: &Path) -> bool {
    let name = c"security.capability".as_ptr();
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both texts end with a zero, and nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name, null_mut(), 0) > 0 }
}

/// Where the ledger is mapped; 0 before.
static LEDGER: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
static CUT: AtomicBool = AtomicBool::new(false);

/// From now on, a ledger's file that any program truncates does not end this process: the missing
/// part reads as zeros.
pub(super) fn survive_a_cut_ledger(ledger: &GuardLedger) {
    // SAFETY: asks for a number; the structure is zeroed, which is valid, and the handler only
    // does what a handler may.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE);
        PAGE.store(usize::try_from(page).unwrap_or(4096), Relaxed);
        LEDGER.store(from_ref(ledger) as usize, Relaxed);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, null_mut());
    }
}

/// Whether a part of the ledger was found missing.
pub(super) fn ledger_was_cut() -> bool {
    CUT.load(Relaxed)
}

extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let page = PAGE.load(Relaxed);
    // SAFETY: the kernel passes a valid description of the signal.
    let at = unsafe { (*info).si_addr() } as usize;
    if at.wrapping_sub(LEDGER.load(Relaxed)) < size_of::<GuardLedger>() {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page belongs to the ledger's mapping, which stays in one piece; what was
        // there cannot be read any more. Everything in it is atomic, and may be 0.
        let new = unsafe { libc::mmap((at & !(page - 1)) as *mut _, page, access, kind, -1, 0) };
        if new != libc::MAP_FAILED {
            return CUT.store(true, Relaxed);
        }
    }
    // SAFETY: it comes again when the handler returns, and ends this process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// What the file system of a folder allows.
pub(super) struct MountFacts {
    /// Whether libraries may not be loaded from it.
    pub(super) noexec: bool,
    /// How many bytes this user may still write.
    pub(super) free: u64,
}

/// Reads the facts of the file system that a folder is on.
pub(super) fn mount_facts(folder: &Path) -> io::Result<MountFacts> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero, and the structure is written to.
    let (code, mount) = unsafe {
        let mut mount: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut mount), mount)
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let free = mount.f_bavail.saturating_mul(mount.f_frsize);
    Ok(MountFacts { noexec: mount.f_flag & libc::ST_NOEXEC != 0, free })
}

/// Whether the system's loader finds a library.
#[must_use]
pub fn can_load(library: &str) -> bool {
    let Ok(name) = CString::new(library) else { return false };
    // SAFETY: the name ends with a zero; the driver's library starts nothing by being loaded,
    // and is closed again.
    unsafe {
        let found = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !found.is_null() && libc::dlclose(found) == 0
    }
}
