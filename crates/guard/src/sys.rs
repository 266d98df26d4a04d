//! The few calls of the C library that the guard makes.
//!
//! Declared here, and not taken from the `libc` crate, so that one call of rustc builds the
//! library. Each of them is in the C library itself since long before glibc 2.31, so that no
//! newer version is asked of it. `dlsym` and its like are not among them: they moved between
//! libraries with glibc 2.34, and are found in memory instead ([`crate::find`]).

#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::{c_char, c_int, c_void};

pub(crate) const O_RDWR: c_int = 2;
pub(crate) const O_RDONLY: c_int = 0;
pub(crate) const O_CREAT: c_int = 0o100;
pub(crate) const O_APPEND: c_int = 0o2000;
pub(crate) const O_CLOEXEC: c_int = 0o2_000_000;
pub(crate) const PROT_READ: c_int = 1;
pub(crate) const PROT_WRITE: c_int = 2;
pub(crate) const MAP_SHARED: c_int = 1;
pub(crate) const MAP_PRIVATE: c_int = 2;
pub(crate) const MAP_ANONYMOUS: c_int = 0x20;
pub(crate) const MAP_NORESERVE: c_int = 0x4000;
pub(crate) const MADV_WIPEONFORK: c_int = 18;
pub(crate) const MADV_POPULATE_WRITE: c_int = 23;
pub(crate) const ESRCH: c_int = 3;
pub(crate) const RTLD_LAZY: c_int = 1;
pub(crate) const RTLD_NOLOAD: c_int = 4;

/// What `dl_iterate_phdr` tells of a loaded object.
#[repr(C)]
pub(crate) struct ObjectInfo {
    pub(crate) base: usize,
    pub(crate) name: *const c_char,
    pub(crate) headers: *const ProgramHeader,
    pub(crate) count: u16,
}

/// A program header of 64-bit ELF.
#[repr(C)]
pub(crate) struct ProgramHeader {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) physical: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
    pub(crate) align: u64,
}

/// A time, as the kernel tells it on 64-bit systems.
#[repr(C)]
struct Time {
    seconds: i64,
    nanos: i64,
}

pub(crate) type Visitor = unsafe extern "C" fn(*mut ObjectInfo, usize, *mut c_void) -> c_int;

unsafe extern "C" {
    pub(crate) fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub(crate) fn close(fd: c_int) -> c_int;
    pub(crate) fn read(fd: c_int, to: *mut c_void, size: usize) -> isize;
    pub(crate) fn ftruncate(fd: c_int, size: i64) -> c_int;
    pub(crate) fn fallocate(fd: c_int, mode: c_int, from: i64, size: i64) -> c_int;
    pub(crate) fn mmap(
        at: *mut c_void,
        size: usize,
        access: c_int,
        kind: c_int,
        fd: c_int,
        from: i64,
    ) -> *mut c_void;
    pub(crate) fn munmap(at: *mut c_void, size: usize) -> c_int;
    pub(crate) fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int;
    fn getrlimit(which: c_int, to: *mut [u64; 2]) -> c_int;
    pub(crate) fn getpid() -> c_int;
    pub(crate) fn kill(pid: c_int, signal: c_int) -> c_int;
    pub(crate) fn getenv(name: *const c_char) -> *const c_char;
    pub(crate) fn sched_yield() -> c_int;
    pub(crate) fn dl_iterate_phdr(visit: Visitor, data: *mut c_void) -> c_int;
    pub(crate) fn backtrace(frames: *mut *mut c_void, most: c_int) -> c_int;
    pub(crate) fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int);
    pub(crate) fn write(fd: c_int, from: *const c_void, size: usize) -> isize;
    fn clock_gettime(which: c_int, to: *mut Time) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// What the last call that failed in this thread failed with.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library hands out a valid pointer to this thread's own number.
    unsafe { *__errno_location() }
}

/// Puts back what a program may still want to read.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = value }
}

/// The text at a C pointer, without its end; empty for null.
///
/// # Safety
///
/// `text` is null or points to bytes that end with a zero and live as long as they are used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller says that it ends with a zero.
    unsafe { core::ffi::CStr::from_ptr(text) }.to_bytes()
}

/// Reads a small file from its beginning; how many bytes came, or nothing.
pub(crate) fn read_file(path: &core::ffi::CStr, to: &mut [u8]) -> Option<usize> {
    // SAFETY: the path ends with a zero, and the buffer is as long as is said.
    unsafe {
        let fd = open(path.as_ptr(), O_RDONLY | O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let mut filled = 0;
        while filled < to.len() {
            let count = read(fd, to.as_mut_ptr().add(filled).cast(), to.len() - filled);
            let Ok(count @ 1..) = usize::try_from(count) else { break };
            filled += count;
        }
        close(fd);
        Some(filled)
    }
}

/// Whether a file may be as large as that. To try it with one that may not (`ulimit -f`) would
/// end the program by a signal.
pub(crate) fn may_write(size: u64) -> bool {
    const FILE_SIZE: c_int = 1;
    let mut limits = [u64::MAX; 2];
    // SAFETY: two numbers are written, or none.
    unsafe { getrlimit(FILE_SIZE, &raw mut limits) };
    size <= limits[0]
}

/// A number that no other living thread of this process has: where its own data lies.
pub(crate) fn thread() -> usize {
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
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        at = 0;
    }
    at
}

/// Asks the processor to have a line ready that will be written to soon: after a lock's
/// instruction nothing is read ahead, and the driver has pushed out what was near before it.
#[inline(always)]
pub(crate) fn near<T>(at: *const T) {
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
    let _ = at;
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

fn clock(which: c_int) -> u64 {
    let mut at = Time { seconds: 0, nanos: 0 };
    // SAFETY: two numbers are written; a clock that is not there leaves them as they are.
    unsafe { clock_gettime(which, &raw mut at) };
    at.seconds.unsigned_abs() * 1_000_000_000 + at.nanos.unsigned_abs()
}
