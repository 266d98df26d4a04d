//! Memory mappings and prefetching.

use core::ffi::{c_int, c_void};

use super::call::{self, call};

pub(crate) const PROT_READ: c_int = 1;
pub(crate) const PROT_WRITE: c_int = 2;
pub(crate) const MAP_SHARED: c_int = 1;
pub(crate) const MAP_PRIVATE: c_int = 2;
pub(crate) const MAP_ANONYMOUS: c_int = 0x20;
pub(crate) const MAP_NORESERVE: c_int = 0x4000;
pub(crate) const MADV_DONTFORK: c_int = 10;
pub(crate) const MADV_WIPEONFORK: c_int = 18;
pub(crate) const MADV_POPULATE_WRITE: c_int = 23;

/// Maps memory; null where that is not possible.
///
/// # Safety
///
/// Only with flags that change nothing which is mapped already.
pub(crate) unsafe fn mmap(
    at: *mut c_void,
    size: usize,
    access: c_int,
    kind: c_int,
    fd: c_int,
    from: i64,
) -> *mut c_void {
    let arguments = [at as usize, size, access as usize, kind as usize, fd as usize, from as usize];
    // SAFETY: the caller's contract.
    let result = unsafe { call(call::MMAP, arguments) };
    if (-4095..0).contains(&result) { core::ptr::null_mut() } else { result as *mut c_void }
}

/// New memory, all zeros, for this process only; null where there is none.
pub(crate) fn map_anonymous(size: usize, more: c_int) -> *mut c_void {
    let kind = MAP_PRIVATE | MAP_ANONYMOUS | more;
    // SAFETY: a new mapping touches nothing that exists.
    unsafe { mmap(core::ptr::null_mut(), size, PROT_READ | PROT_WRITE, kind, -1, 0) }
}

/// Removes a mapping.
///
/// # Safety
///
/// The caller made it, and nobody uses it any more.
pub(crate) unsafe fn munmap(at: *mut c_void, size: usize) {
    // SAFETY: the caller's contract.
    unsafe { call(call::MUNMAP, [at as usize, size, 0, 0, 0, 0]) };
}

/// Gives the kernel advice about memory; returns whether it knows this advice.
///
/// # Safety
///
/// Only advice that changes no content which somebody relies on.
pub(crate) unsafe fn madvise(at: *mut c_void, size: usize, advice: c_int) -> bool {
    // SAFETY: the caller's contract.
    unsafe { call(call::MADVISE, [at as usize, size, advice as usize, 0, 0, 0]) == 0 }
}

/// Prefetches a cache line that will be written to soon: a locked instruction stops reads ahead,
/// and the driver has evicted what was in the cache before it.
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
