//! Files, folders and locks on bytes of files.

use core::ffi::{CStr, c_int, c_void};

use super::call::{self, call};
use super::memory::{MAP_SHARED, mmap};

pub(crate) const O_RDONLY: c_int = 0;
pub(crate) const O_RDWR: c_int = 2;
pub(crate) const O_CREAT: c_int = 0o100;
pub(crate) const O_EXCL: c_int = 0o200;
pub(crate) const O_APPEND: c_int = 0o2000;
pub(crate) const O_NONBLOCK: c_int = 0o4000;
pub(crate) const O_CLOEXEC: c_int = 0o2_000_000;
#[cfg(target_arch = "aarch64")]
pub(crate) const O_DIRECTORY: c_int = 0o40_000;
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const O_DIRECTORY: c_int = 0o200_000;

const ENOENT: isize = -2;
const EAGAIN: isize = -11;
const EACCES: isize = -13;
const EEXIST: isize = -17;

/// Relative paths start at the working folder.
const AT_FDCWD: usize = -100isize as usize;

/// An open file, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct SysFile(c_int);

impl Drop for SysFile {
    fn drop(&mut self) {
        // SAFETY: nobody else closes this descriptor, and this is its last use.
        unsafe { call(call::CLOSE, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Why a file could not be opened or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileError {
    /// There is no file of that name.
    Missing,
    /// There is already one.
    Exists,
    /// This user has no permission.
    Denied,
    /// Another error.
    Other,
}

fn file_error(result: isize) -> FileError {
    match result {
        ENOENT => FileError::Missing,
        EEXIST => FileError::Exists,
        EACCES | -1 => FileError::Denied,
        _ => FileError::Other,
    }
}

/// What `fstat` says about an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStatus {
    /// Which file it is: its device and its inode.
    pub(crate) identity: (u64, u64),
    pub(crate) owner: u32,
    pub(crate) size: u64,
    pub(crate) is_regular: bool,
}

/// A lock on one byte of a file, as `fcntl` takes it.
#[repr(C)]
struct ByteLock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

/// How a byte of a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Together with others who lock it so.
    Shared = 0,
    /// By one holder only.
    Exclusive = 1,
}

impl SysFile {
    /// Opens a file. Opening a pipe does not wait for its other end.
    pub(crate) fn open(path: &CStr, flags: c_int, mode: u32) -> Result<SysFile, FileError> {
        let flags = flags | O_CLOEXEC | O_NONBLOCK;
        let arguments = [AT_FDCWD, path.as_ptr() as usize, flags as usize, mode as usize, 0, 0];
        // SAFETY: the path ends with a zero.
        let result = unsafe { call(call::OPENAT, arguments) };
        c_int::try_from(result).ok().filter(|fd| *fd >= 0).map(SysFile).ok_or(file_error(result))
    }

    fn file_call(&self, which: usize, a: usize, b: usize, c: usize) -> isize {
        // SAFETY: callers pass numbers, or pointers to what the kernel reads or writes.
        unsafe { call(which, [self.0 as usize, a, b, c, 0, 0]) }
    }

    pub(crate) fn status(&self) -> Option<FileStatus> {
        // Larger than the kernel's structure on both processors.
        let mut raw = [0u64; 24];
        if self.file_call(call::FSTAT, raw.as_mut_ptr() as usize, 0, 0) != 0 {
            return None;
        }
        let (mode, owner) = match cfg!(target_arch = "aarch64") {
            true => (raw[2] as u32, raw[3] as u32),
            false => (raw[3] as u32, (raw[3] >> 32) as u32),
        };
        let is_regular = mode & 0o170_000 == 0o100_000;
        Some(FileStatus { identity: (raw[0], raw[1]), owner, size: raw[6], is_regular })
    }

    /// Reads until the buffer is full or the file ends; returns how many bytes it read.
    pub(crate) fn read(&self, to: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let count = self.file_call(call::READ, rest.as_mut_ptr() as usize, rest.len(), 0);
            let Ok(count @ 1..) = usize::try_from(count) else { break };
            filled += count;
        }
        filled
    }

    /// Writes all of it, or as much as is possible.
    pub(crate) fn write(&self, text: &[u8]) {
        write(self.0, text);
    }

    /// The descriptor, for calls of the C library.
    pub(crate) fn number(&self) -> c_int {
        self.0
    }

    pub(crate) fn set_size(&self, size: u64) -> bool {
        self.file_call(call::FTRUNCATE, size as usize, 0, 0) == 0
    }

    /// Allocates space for a part of the file in the file system.
    pub(crate) fn allocate_space(&self, from: u64, size: u64) -> bool {
        self.file_call(call::FALLOCATE, 0, from as usize, size as usize) == 0
    }

    /// Lists names in a folder, in the kernel's format; returns how many bytes of `to` it filled.
    pub(crate) fn list(&self, to: &mut [u64]) -> usize {
        let count = self.file_call(call::GETDENTS, to.as_mut_ptr() as usize, size_of_val(to), 0);
        usize::try_from(count).unwrap_or(0)
    }

    /// Locks a byte for this open file, without waiting. Returns whether it is locked, and `None`
    /// where the file system has no such locks.
    pub(crate) fn lock(&self, byte: u64, share: LockMode) -> Option<bool> {
        const SET: usize = 37;
        let lock =
            ByteLock { kind: share as i16, whence: 0, start: byte as i64, length: 1, pid: 0 };
        match self.file_call(call::FCNTL, SET, (&raw const lock) as usize, 0) {
            0 => Some(true),
            EAGAIN | EACCES => Some(false),
            _ => None,
        }
    }

    /// The opposite of [`SysFile::lock`].
    pub(crate) fn unlock(&self, byte: u64) {
        const SET: usize = 37;
        const UNLOCKED: i16 = 2;
        let lock = ByteLock { kind: UNLOCKED, whence: 0, start: byte as i64, length: 1, pid: 0 };
        self.file_call(call::FCNTL, SET, (&raw const lock) as usize, 0);
    }

    /// Whether somebody else has locked a byte, so that it cannot be locked exclusively. `None`
    /// where that is unknown.
    pub(crate) fn is_locked(&self, byte: u64) -> Option<bool> {
        const GET: usize = 36;
        const UNLOCKED: i16 = 2;
        let alone = LockMode::Exclusive as i16;
        let mut lock = ByteLock { kind: alone, whence: 0, start: byte as i64, length: 1, pid: 0 };
        let result = self.file_call(call::FCNTL, GET, (&raw mut lock) as usize, 0);
        (result == 0).then_some(lock.kind != UNLOCKED)
    }

    /// Maps the file, shared; null where that is not possible. The mapping is never removed.
    pub(crate) fn map(&self, size: usize, access: c_int) -> *mut c_void {
        // SAFETY: a new mapping touches nothing that exists.
        unsafe { mmap(core::ptr::null_mut(), size, access, MAP_SHARED, self.0, 0) }
    }
}

pub(super) fn write(fd: c_int, text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: pointer and length are those of a slice.
        let count = unsafe {
            call(call::WRITE, [fd as usize, rest.as_ptr() as usize, rest.len(), 0, 0, 0])
        };
        let Ok(count @ 1..) = usize::try_from(count) else { return };
        rest = rest.get(count..).unwrap_or_default();
    }
}

/// Makes a folder; returns whether it exists now.
pub(crate) fn mkdir(path: &CStr) -> bool {
    // SAFETY: the path ends with a zero.
    let result = unsafe { call(call::MKDIRAT, [AT_FDCWD, path.as_ptr() as usize, 0o755, 0, 0, 0]) };
    result == 0 || result == EEXIST
}

/// Removes a file, or with `folder` an empty folder.
pub(crate) fn unlink(path: &CStr, folder: bool) -> bool {
    const REMOVE_FOLDER: usize = 0x200;
    let flags = if folder { REMOVE_FOLDER } else { 0 };
    // SAFETY: the path ends with a zero.
    unsafe { call(call::UNLINKAT, [AT_FDCWD, path.as_ptr() as usize, flags, 0, 0, 0]) == 0 }
}

/// Gives a file a second name.
pub(crate) fn link(from: &CStr, to: &CStr) -> Result<(), FileError> {
    let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
    // SAFETY: both paths end with a zero.
    match unsafe { call(call::LINKAT, [AT_FDCWD, from, AT_FDCWD, to, 0, 0]) } {
        0 => Ok(()),
        result => Err(file_error(result)),
    }
}

/// Reads a symbolic link; returns how many bytes of `to` it filled.
pub(crate) fn read_link(path: &CStr, to: &mut [u8]) -> usize {
    let arguments = [AT_FDCWD, path.as_ptr() as usize, to.as_mut_ptr() as usize, to.len(), 0, 0];
    // SAFETY: the path ends with a zero, and the buffer's length is passed.
    usize::try_from(unsafe { call(call::READLINKAT, arguments) }).unwrap_or(0)
}

/// Reads a small file from its beginning; returns how many bytes it read.
pub(crate) fn read_file(path: &CStr, to: &mut [u8]) -> Option<usize> {
    SysFile::open(path, O_RDONLY, 0).ok().map(|file| file.read(to))
}

/// Whether a file may be as large as that. Writing past the limit (`ulimit -f`) would end the
/// program by a signal.
pub(crate) fn file_size_allowed(size: u64) -> bool {
    const FILE_SIZE: usize = 1;
    let mut limits = [u64::MAX; 2];
    // SAFETY: the kernel writes two numbers, or none.
    unsafe {
        call(call::PRLIMIT, [0, FILE_SIZE, 0, limits.as_mut_ptr() as usize, 0, 0]);
    }
    size <= limits[0]
}
