//! The system's `malloc`, set up as a yardstick for pools.
//!
//! As it comes, glibc asks the kernel for every large block and gives memory back as
//! soon as much of it is free. A pool does neither, so a fair yardstick must not: with
//! [`keep_everything`] all blocks come from the one heap, and the heap never shrinks.
//! What is left is what an allocator costs that only manages memory it has.

use crate::error::{Error, Result};

/// A block of the system's allocator. Nothing but the allocator ever touches it.
#[derive(Debug)]
pub struct HeapBlock(std::ptr::NonNull<libc::c_void>);

impl HeapBlock {
    /// This many bytes, or nothing where the system has no more.
    #[inline]
    #[expect(unsafe_code, reason = "malloc is a foreign call")]
    pub fn new(size: u64) -> Option<HeapBlock> {
        let size = usize::try_from(size).ok()?.max(1);
        // SAFETY: malloc may be called with any size; null is checked for.
        std::ptr::NonNull::new(unsafe { libc::malloc(size) }).map(HeapBlock)
    }
}

impl Drop for HeapBlock {
    #[inline]
    #[expect(unsafe_code, reason = "free is a foreign call")]
    fn drop(&mut self) {
        // SAFETY: the pointer came from malloc, and a block is dropped once.
        unsafe { libc::free(self.0.as_ptr()) }
    }
}

/// Gives free memory of the heap back to the kernel, where the system's `malloc` can.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "malloc_trim is a foreign call")]
pub fn give_back() {
    // SAFETY: it takes a number, locks what it changes, and moves no block in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have other ways, or none.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}

/// How many bytes of addresses this process may have (`ulimit -v`); `None` where that is not bounded.
#[cfg(unix)]
#[expect(unsafe_code, reason = "getrlimit is a foreign call")]
#[must_use]
pub fn most_addresses() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is written to.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Elsewhere nothing bounds them.
#[cfg(not(unix))]
#[must_use]
pub fn most_addresses() -> Option<u64> {
    None
}

/// From here on all threads of the process share one heap, where the system's `malloc` can.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "mallopt is a foreign call")]
pub fn one_heap() {
    // SAFETY: mallopt takes two numbers and locks what it changes. An allocator that does not
    // know the pair goes on as before.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Other allocators have other ways, or none.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn one_heap() {}

/// From here on, for the whole process, `malloc` takes no block from the kernel by
/// itself and gives nothing back. There is no way to ask what was set before, so it
/// cannot be undone.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "mallopt is a foreign call")]
pub fn keep_everything() -> Result<()> {
    // A trim threshold of -1 is none: it becomes the largest size there is.
    for (what, value) in [(libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: mallopt takes two numbers, locks what it changes, and says 0 for a
        // pair that it does not know.
        if unsafe { libc::mallopt(what, value) } == 0 {
            return Err(Error::Unavailable {
                what: "the malloc yardstick".to_string(),
                why: "another allocator stands in for glibc's and takes no orders".to_string(),
            });
        }
    }
    Ok(())
}

/// Other allocators have other switches, or none.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_everything() -> Result<()> {
    Err(Error::Unavailable {
        what: "the malloc yardstick".to_string(),
        why: "it needs glibc, whose malloc can be told to keep what it has".to_string(),
    })
}
