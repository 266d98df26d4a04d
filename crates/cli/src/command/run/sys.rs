//! The few calls of the system that `run` makes besides [signals](super::signals).

#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use plimsoll_guard::ledger::GuardLedger;

/// A file that would be larger than files may be is an error from now on, and not our end. By a
/// handler, which a program that is started does not inherit.
pub(super) fn outlive_large_files() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe {
        let before = libc::signal(libc::SIGXFSZ, nothing as *const () as usize);
        if before == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, before);
        }
    }
}

/// Where the ledger is mapped; 0 before.
static LEDGER: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
static CUT: AtomicBool = AtomicBool::new(false);

/// Any program may cut the ledger's file short: what is missing of it is empty from then on, and
/// not our end.
pub(super) fn outlive_a_cut_ledger(ledger: &GuardLedger) {
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

/// What a place allows.
pub(super) struct Mount {
    /// Whether programs may not be loaded from there.
    pub(super) noexec: bool,
    /// The bytes that this user may still write.
    pub(super) free: u64,
}

/// Looks at where a folder is mounted.
pub(super) fn mount(folder: &Path) -> io::Result<Mount> {
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
    Ok(Mount { noexec: mount.f_flag & libc::ST_NOEXEC != 0, free })
}

/// Whether the system's loader finds a library.
pub(in crate::command) fn can_load(library: &str) -> bool {
    let Ok(name) = CString::new(library) else { return false };
    // SAFETY: the name ends with a zero; the driver's library starts nothing by being loaded,
    // and is closed again.
    unsafe {
        let found = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !found.is_null() && libc::dlclose(found) == 0
    }
}

/// The user with whose rights this process acts.
pub(super) fn user() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { libc::geteuid() }
}

/// Whether people read stderr.
pub(super) fn stderr_is_terminal() -> bool {
    io::IsTerminal::is_terminal(&io::stderr())
}
