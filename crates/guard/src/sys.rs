//! The system calls that the guard makes, straight to the kernel.
//!
//! Not through the C library: a sanitizer puts its own functions in place of `open`, `mmap` and
//! the like, and they end the program when they are called before the sanitizer has started,
//! which the guard may be. It is also why the guard needs no version of any C library. Results
//! are the kernel's own: below zero an error's number with its sign changed; `errno` is never
//! touched.

#![expect(unsafe_code, reason = "system calls and processor registers")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

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
pub(crate) const PROT_READ: c_int = 1;
pub(crate) const PROT_WRITE: c_int = 2;
pub(crate) const MAP_SHARED: c_int = 1;
pub(crate) const MAP_PRIVATE: c_int = 2;
pub(crate) const MAP_ANONYMOUS: c_int = 0x20;
pub(crate) const MAP_NORESERVE: c_int = 0x4000;
pub(crate) const MADV_DONTFORK: c_int = 10;
pub(crate) const MADV_WIPEONFORK: c_int = 18;
pub(crate) const MADV_POPULATE_WRITE: c_int = 23;
pub(crate) const RTLD_LAZY: c_int = 1;
pub(crate) const RTLD_NOLOAD: c_int = 4;

const ENOENT: isize = -2;
const EAGAIN: isize = -11;
const EACCES: isize = -13;
const EEXIST: isize = -17;

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const FSTAT: usize = 5;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const SCHED_YIELD: usize = 24;
    pub(super) const MADVISE: usize = 28;
    pub(super) const GETPID: usize = 39;
    pub(super) const FCNTL: usize = 72;
    pub(super) const FTRUNCATE: usize = 77;
    pub(super) const GETEUID: usize = 107;
    pub(super) const FUTEX: usize = 202;
    pub(super) const GETDENTS: usize = 217;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const OPENAT: usize = 257;
    pub(super) const MKDIRAT: usize = 258;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const LINKAT: usize = 265;
    pub(super) const READLINKAT: usize = 267;
    pub(super) const FALLOCATE: usize = 285;
    pub(super) const PRLIMIT: usize = 302;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const CLOSE: usize = 57;
    pub(super) const FSTAT: usize = 80;
    pub(super) const MMAP: usize = 222;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const SCHED_YIELD: usize = 124;
    pub(super) const MADVISE: usize = 233;
    pub(super) const GETPID: usize = 172;
    pub(super) const FCNTL: usize = 25;
    pub(super) const FTRUNCATE: usize = 46;
    pub(super) const GETEUID: usize = 175;
    pub(super) const FUTEX: usize = 98;
    pub(super) const GETDENTS: usize = 61;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const OPENAT: usize = 56;
    pub(super) const MKDIRAT: usize = 34;
    pub(super) const UNLINKAT: usize = 35;
    pub(super) const LINKAT: usize = 37;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const FALLOCATE: usize = 47;
    pub(super) const PRLIMIT: usize = 261;
}

/// Makes a system call.
///
/// # Safety
///
/// What the kernel does with these arguments must be sound.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention; it changes rcx, r11 and the result alone.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}
/// Makes a system call.
///
/// # Safety
///
/// What the kernel does with these arguments must be sound.
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention; it changes the result alone.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the guard knows the system calls of x86-64 and aarch64 alone");

/// Paths are taken from the working folder where they do not begin with a slash.
const AT_FDCWD: usize = -100isize as usize;

/// An open file, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct SysFile(c_int);

impl Drop for SysFile {
    fn drop(&mut self) {
        // SAFETY: the number is ours, and this is its end.
        unsafe { call(number::CLOSE, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Why something could not be opened or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileError {
    /// There is none of that name.
    Missing,
    /// There is one already.
    Exists,
    /// This user may not.
    Denied,
    /// Something else.
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

/// What is known of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStatus {
    /// Which file it is: its device and its number there.
    pub(crate) identity: (u64, u64),
    pub(crate) owner: u32,
    pub(crate) size: u64,
    pub(crate) is_regular: bool,
}

/// A lock on one byte of a file, as the kernel is asked for it.
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
    /// With others who do so too.
    Shared = 0,
    /// By one alone.
    Exclusive = 1,
}

impl SysFile {
    /// Opens a file. A name that leads to a pipe does not wait for its other end.
    pub(crate) fn open(path: &CStr, flags: c_int, mode: u32) -> Result<SysFile, FileError> {
        let flags = flags | O_CLOEXEC | O_NONBLOCK;
        let arguments = [AT_FDCWD, path.as_ptr() as usize, flags as usize, mode as usize, 0, 0];
        // SAFETY: the path ends with a zero.
        let result = unsafe { call(number::OPENAT, arguments) };
        c_int::try_from(result).ok().filter(|fd| *fd >= 0).map(SysFile).ok_or(file_error(result))
    }

    fn file_call(&self, which: usize, a: usize, b: usize, c: usize) -> isize {
        // SAFETY: callers pass pointers to what is read or written there, or numbers.
        unsafe { call(which, [self.0 as usize, a, b, c, 0, 0]) }
    }

    pub(crate) fn status(&self) -> Option<FileStatus> {
        // Larger than the kernel's structure on either processor.
        let mut raw = [0u64; 24];
        if self.file_call(number::FSTAT, raw.as_mut_ptr() as usize, 0, 0) != 0 {
            return None;
        }
        let (mode, owner) = match cfg!(target_arch = "aarch64") {
            true => (raw[2] as u32, raw[3] as u32),
            false => (raw[3] as u32, (raw[3] >> 32) as u32),
        };
        let is_regular = mode & 0o170_000 == 0o100_000;
        Some(FileStatus { identity: (raw[0], raw[1]), owner, size: raw[6], is_regular })
    }

    /// Reads up to as much as there is room for; how much came.
    pub(crate) fn read(&self, to: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let count = self.file_call(number::READ, rest.as_mut_ptr() as usize, rest.len(), 0);
            let Ok(count @ 1..) = usize::try_from(count) else { break };
            filled += count;
        }
        filled
    }

    /// Writes all of it, or as much as is possible.
    pub(crate) fn write(&self, text: &[u8]) {
        write(self.0, text);
    }

    /// The number, for calls of the C library.
    pub(crate) fn number(&self) -> c_int {
        self.0
    }

    pub(crate) fn set_size(&self, size: u64) -> bool {
        self.file_call(number::FTRUNCATE, size as usize, 0, 0) == 0
    }

    /// Takes room in the file system.
    pub(crate) fn allocate_space(&self, from: u64, size: u64) -> bool {
        self.file_call(number::FALLOCATE, 0, from as usize, size as usize) == 0
    }

    /// Names in a folder, as the kernel lists them; how many bytes of `to` were filled.
    pub(crate) fn list(&self, to: &mut [u64]) -> usize {
        let count = self.file_call(number::GETDENTS, to.as_mut_ptr() as usize, size_of_val(to), 0);
        usize::try_from(count).unwrap_or(0)
    }

    /// Locks a byte for the open file that this is, without waiting. `None` where locks of this
    /// kind cannot be had; otherwise whether it is locked.
    pub(crate) fn lock(&self, byte: u64, share: LockMode) -> Option<bool> {
        const SET: usize = 37;
        let lock =
            ByteLock { kind: share as i16, whence: 0, start: byte as i64, length: 1, pid: 0 };
        match self.file_call(number::FCNTL, SET, (&raw const lock) as usize, 0) {
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
        self.file_call(number::FCNTL, SET, (&raw const lock) as usize, 0);
    }

    /// Whether somebody else has locked a byte, so that it cannot be had alone. `None` where that
    /// cannot be told.
    pub(crate) fn is_locked(&self, byte: u64) -> Option<bool> {
        const GET: usize = 36;
        const UNLOCKED: i16 = 2;
        let alone = LockMode::Exclusive as i16;
        let mut lock = ByteLock { kind: alone, whence: 0, start: byte as i64, length: 1, pid: 0 };
        let result = self.file_call(number::FCNTL, GET, (&raw mut lock) as usize, 0);
        (result == 0).then_some(lock.kind != UNLOCKED)
    }

    /// Maps the file, shared; null where that is not possible. The mapping is never undone.
    pub(crate) fn map(&self, size: usize, access: c_int) -> *mut c_void {
        // SAFETY: a new mapping touches nothing that exists.
        unsafe { mmap(core::ptr::null_mut(), size, access, MAP_SHARED, self.0, 0) }
    }
}

/// Maps memory; null where that is not possible.
///
/// # Safety
///
/// Only with flags by which nothing that is mapped already changes.
pub(crate) unsafe fn mmap(
    at: *mut c_void,
    size: usize,
    access: c_int,
    kind: c_int,
    fd: c_int,
    from: i64,
) -> *mut c_void {
    let arguments = [at as usize, size, access as usize, kind as usize, fd as usize, from as usize];
    // SAFETY: the caller's.
    let result = unsafe { call(number::MMAP, arguments) };
    if (-4095..0).contains(&result) { core::ptr::null_mut() } else { result as *mut c_void }
}

/// New memory, all zeros, of this process alone; null where there is none.
pub(crate) fn map_anonymous(size: usize, more: c_int) -> *mut c_void {
    let kind = MAP_PRIVATE | MAP_ANONYMOUS | more;
    // SAFETY: a new mapping touches nothing that exists.
    unsafe { mmap(core::ptr::null_mut(), size, PROT_READ | PROT_WRITE, kind, -1, 0) }
}

/// Undoes a mapping.
///
/// # Safety
///
/// It is the caller's, and nobody uses it any more.
pub(crate) unsafe fn munmap(at: *mut c_void, size: usize) {
    // SAFETY: the caller's.
    unsafe { call(number::MUNMAP, [at as usize, size, 0, 0, 0, 0]) };
}

/// Tells the kernel something about memory; whether it knows what is meant.
///
/// # Safety
///
/// Only advice that changes no content which somebody relies on.
pub(crate) unsafe fn madvise(at: *mut c_void, size: usize, advice: c_int) -> bool {
    // SAFETY: the caller's.
    unsafe { call(number::MADVISE, [at as usize, size, advice as usize, 0, 0, 0]) == 0 }
}

fn write(fd: c_int, text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: the text is as long as is said.
        let count = unsafe {
            call(number::WRITE, [fd as usize, rest.as_ptr() as usize, rest.len(), 0, 0, 0])
        };
        let Ok(count @ 1..) = usize::try_from(count) else { return };
        rest = rest.get(count..).unwrap_or_default();
    }
}

/// Says something on stderr, in one piece if it is short.
pub(crate) fn print_error(pieces: &[&[u8]]) {
    let mut line = [0; 512];
    let mut end = 0;
    for byte in pieces.iter().copied().flatten().copied() {
        if let Some(place) = line.get_mut(end) {
            *place = byte;
            end += 1;
        }
    }
    write(2, &line[..end]);
}

/// This process, by its own number.
pub(crate) fn getpid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(number::GETPID, [0; 6]) as u32 }
}

/// The user with whose rights this process acts.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(number::GETEUID, [0; 6]) as u32 }
}

/// Lets others run.
pub(crate) fn sched_yield() {
    // SAFETY: takes and changes nothing.
    unsafe { call(number::SCHED_YIELD, [0; 6]) };
}

/// Ends the process, as `abort` does.
#[cfg(preload)]
pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: an instruction that no processor knows; the kernel ends the process by a signal.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("ud2", options(nostack));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("udf #0", options(nostack));
        }
    }
}

/// Waits until somebody wakes who waits at this word, if it still is `value`; for so many
/// milliseconds at most. `shared` where other processes wait there, too.
pub(crate) fn futex_wait(word: *const u32, value: u32, shared: bool, most: i64) {
    const WAIT: usize = 0;
    let time = KernelTime { seconds: 0, nanos: most * 1_000_000 };
    let how = if shared { WAIT } else { WAIT | FUTEX_PRIVATE };
    // SAFETY: the word is readable, as it is a reference's; the time is read.
    unsafe {
        call(number::FUTEX, [word as usize, how, value as usize, (&raw const time) as usize, 0, 0])
    };
}

/// Waits for a millisecond.
pub(crate) fn sleep_millisecond() {
    let word = 0;
    futex_wait(&raw const word, 0, false, 1);
}

/// Wakes one who waits at a word.
pub(crate) fn futex_wake(word: *const u32, shared: bool) {
    const WAKE: usize = 1;
    let how = if shared { WAKE } else { WAKE | FUTEX_PRIVATE };
    // SAFETY: only the word's address counts.
    unsafe { call(number::FUTEX, [word as usize, how, 1, 0, 0, 0]) };
}
const FUTEX_PRIVATE: usize = 128;

/// Makes a folder; whether it is there now.
pub(crate) fn mkdir(path: &CStr) -> bool {
    // SAFETY: the path ends with a zero.
    let result =
        unsafe { call(number::MKDIRAT, [AT_FDCWD, path.as_ptr() as usize, 0o755, 0, 0, 0]) };
    result == 0 || result == EEXIST
}

/// Removes a name; with `folder` that of an empty folder.
pub(crate) fn unlink(path: &CStr, folder: bool) -> bool {
    const REMOVE_FOLDER: usize = 0x200;
    let flags = if folder { REMOVE_FOLDER } else { 0 };
    // SAFETY: the path ends with a zero.
    unsafe { call(number::UNLINKAT, [AT_FDCWD, path.as_ptr() as usize, flags, 0, 0, 0]) == 0 }
}

/// Gives a file a second name.
pub(crate) fn link(from: &CStr, to: &CStr) -> Result<(), FileError> {
    let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
    // SAFETY: both paths end with a zero.
    match unsafe { call(number::LINKAT, [AT_FDCWD, from, AT_FDCWD, to, 0, 0]) } {
        0 => Ok(()),
        result => Err(file_error(result)),
    }
}

/// Where a link leads; how many bytes of `to` were filled.
pub(crate) fn read_link(path: &CStr, to: &mut [u8]) -> usize {
    let arguments = [AT_FDCWD, path.as_ptr() as usize, to.as_mut_ptr() as usize, to.len(), 0, 0];
    // SAFETY: the path ends with a zero, and the buffer is as long as is said.
    usize::try_from(unsafe { call(number::READLINKAT, arguments) }).unwrap_or(0)
}

/// Reads a small file from its beginning; how many bytes came, or nothing.
pub(crate) fn read_file(path: &CStr, to: &mut [u8]) -> Option<usize> {
    SysFile::open(path, O_RDONLY, 0).ok().map(|file| file.read(to))
}

/// Whether a file may be as large as that. To try it with one that may not (`ulimit -f`) would
/// end the program by a signal.
pub(crate) fn file_size_allowed(size: u64) -> bool {
    const FILE_SIZE: usize = 1;
    let mut limits = [u64::MAX; 2];
    // SAFETY: two numbers are written, or none.
    unsafe {
        call(number::PRLIMIT, [0, FILE_SIZE, 0, limits.as_mut_ptr() as usize, 0, 0]);
    }
    size <= limits[0]
}

/// The text at a C pointer, without its end; empty for null.
///
/// # Safety
///
/// `text` is null or points to bytes that end with a zero and live as long as they are used.
pub(crate) unsafe fn c_bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller says that it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// A number that no other living thread of this process has: where its own data lies.
pub(crate) fn thread_id() -> usize {
    let at: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: on Linux fs:0 holds the address of the thread's own block, which it also is.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread's base register, which every program may.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    at
}

/// Asks the processor to have a line ready that will be written to soon: after a lock's
/// instruction nothing is read ahead, and the driver has pushed out what was near before it.
#[inline(always)]
pub(crate) fn prefetch_for_write<T>(at: *const T) {
    // SAFETY: a hint: it reads nothing, changes nothing, and any address will do.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
}

/// A time, as the kernel gives it on 64-bit systems.
#[repr(C)]
struct KernelTime {
    seconds: i64,
    nanos: i64,
}

/// The kernel's clock since the system started, in nanoseconds, as it was at its last tick: a
/// tick is 1 to 10 ms, by how the kernel was built. No call of the kernel, and no register that
/// a virtual machine is slow to read: events are noted by this one. What must be known more
/// exactly is asked of [`now_exactly`].
#[inline]
pub(crate) fn now() -> u64 {
    const COARSE: c_int = 6;
    clock(COARSE)
}

/// The same clock between its ticks, for four times the price: never before [`now`].
pub(crate) fn now_exactly() -> u64 {
    const MONOTONIC: c_int = 1;
    clock(MONOTONIC)
}

type ClockGettime = unsafe extern "C" fn(c_int, *mut KernelTime) -> c_int;

/// The C library's `clock_gettime`, which reads the clock without a call of the kernel; 0 before
/// it was found, and then the kernel is called.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// Names the C library's own `clock_gettime`.
pub(crate) fn set_clock(function: usize) {
    CLOCK.store(function, Relaxed);
}

fn clock(which: c_int) -> u64 {
    let mut at = KernelTime { seconds: 0, nanos: 0 };
    // SAFETY: two numbers are written; a clock that is not there leaves them as they are. The
    // function is the C library's of that name.
    unsafe {
        match CLOCK.load(Relaxed) {
            0 => {
                call(number::CLOCK_GETTIME, [which as usize, (&raw mut at) as usize, 0, 0, 0, 0]);
            }
            function => {
                core::mem::transmute::<usize, ClockGettime>(function)(which, &raw mut at);
            }
        }
    }
    at.seconds.unsigned_abs() * 1_000_000_000 + at.nanos.unsigned_abs()
}
