//! Processes: a child that cannot outlive us, and the size of a page.
//!
//! A program that is killed (`kill -9`) cleans nothing up. The kernel can: a child may ask
//! to be killed when the thread that made it ends, whatever ended it.

use std::process::Command;

/// Has the child killed when the thread that spawns it ends. Spawn it from a thread that
/// lives as long as the child is wanted.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the child asks for the signal between fork and exec")]
pub fn die_with_spawner(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    let ask = move || {
        // SAFETY: both calls take and give plain numbers, and may be made between fork and
        // exec: they allocate nothing and take no lock.
        let (set, now) = unsafe {
            (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong), libc::getppid())
        };
        // A parent that ended before the request was made will send no signal any more.
        if set == 0 && now == parent { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure does only what may be done between fork and exec, as said there.
    unsafe { command.pre_exec(ask) };
}

/// Elsewhere a child is ended by its owner alone.
#[cfg(not(target_os = "linux"))]
pub fn die_with_spawner(_: &mut Command) {}

/// The size of a page of memory.
#[cfg(unix)]
#[expect(unsafe_code, reason = "sysconf is a foreign call")]
pub fn page_size() -> u64 {
    // SAFETY: it reads a number that is fixed at boot.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// The size of a page of memory.
#[cfg(not(unix))]
pub fn page_size() -> u64 {
    4096
}
