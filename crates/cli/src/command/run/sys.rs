//! The few calls of the system that `run` makes: signals passed on, and what a mount allows.

#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64};

/// Those that are for the program and not for us, besides the real-time ones. What the kernel
/// raises for our own mistakes is not among them, nor what only a shell may use.
const NAMED: [i32; 17] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGURG,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGXCPU,
    libc::SIGSTKFLT,
];

/// Every signal that is passed on.
fn passed_on() -> impl Iterator<Item = i32> {
    NAMED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// The place of a signal among 64.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

const NOT_YET: i32 = -1;
static CHILD: AtomicI32 = AtomicI32::new(NOT_YET);
/// The signals, a bit each, that came before there was a program to pass them to.
static EARLY: AtomicU64 = AtomicU64::new(0);

extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid description of the signal.
    let code = unsafe { (*info).si_code };
    let child = CHILD.load(Relaxed);
    // What the terminal sends goes to the program too, by itself; what a process sent to us
    // alone (codes of at most 0) is passed on, to a program that is only being started later.
    if child == NOT_YET {
        EARLY.fetch_or(bit(signal), Relaxed);
    } else if child > 0 && code <= 0 {
        // SAFETY: kill may be called in a handler; the child is ours and not waited for yet.
        unsafe { libc::kill(child, signal) };
    }
}

/// From now on signals are the program's. Those that whoever started us wants ignored, as
/// `nohup` and a script's background do, stay so, for the program too; only SIGPIPE is ignored
/// by every program in Rust, and is not by those that one starts. And who ignores SIGCHLD is not
/// told how its child ended.
pub(super) fn catch_signals() -> io::Result<()> {
    // SAFETY: what a signal does by default is done without code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    for signal in passed_on() {
        // SAFETY: the structures are zeroed, which is valid, and the handler only does what a
        // handler may.
        let code = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            if action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = pass_on as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The program has ended: a file that would be larger than files may be is an error from now
/// on, and not our end.
pub(super) fn outlive_large_files() {
    // SAFETY: to ignore a signal changes nothing else, and nothing is started any more.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Names the program that signals go to; 0 for none.
pub(super) fn pass_to(child: u32) {
    let child = i32::try_from(child).unwrap_or(0);
    CHILD.store(child, Relaxed);
    let early = EARLY.swap(0, Relaxed);
    for signal in passed_on().filter(|signal| child > 0 && early & bit(*signal) != 0) {
        // SAFETY: the child is ours and not waited for yet.
        unsafe { libc::kill(child, signal) };
    }
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

/// Whether people read stderr.
pub(super) fn stderr_is_terminal() -> bool {
    io::IsTerminal::is_terminal(&io::stderr())
}
