//! Zeroed memory straight from the kernel.
//!
//! For an unusual alignment, the system allocator zeroes a block by writing all of it, so every
//! page becomes resident. Pages that come from the kernel are zero without being touched:
//! gigabytes of them cost nothing until they are used.

/// Zeroed memory of `size` bytes, aligned to a page; `None` if there is no more.
#[cfg(unix)]
#[expect(unsafe_code, reason = "mmap is a foreign call")]
pub(crate) fn map(size: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing
    // that exists; a size of 0 is refused by the kernel.
    let pointer = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
    (pointer != libc::MAP_FAILED).then_some(pointer.cast())
}

/// Gives back what [`map`] handed out.
///
/// # Safety
///
/// `pointer` and `size` are those of one call of [`map`], whose memory is no longer used.
#[cfg(unix)]
#[expect(unsafe_code, reason = "munmap is a foreign call")]
pub(crate) unsafe fn unmap(pointer: *mut u8, size: usize) {
    // SAFETY: the caller gives exactly a mapping of ours. It can fail only for want of
    // kernel memory when a mapping is split, and this one goes whole.
    unsafe { libc::munmap(pointer.cast(), size) };
}
