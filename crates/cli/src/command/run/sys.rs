//! The few calls of the system that `run` makes besides [signals](super::signals).

#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The program has ended: a file that would be larger than files may be is an error from now
/// on, and not our end.
pub(super) fn outlive_large_files() {
    // SAFETY: to ignore a signal changes nothing else, and nothing is started any more.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
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
