//! The system calls that the guard makes, directly to the kernel.
//!
//! They do not go through the C library: a sanitizer replaces `open`, `mmap` and others by its
//! own functions, which end the program when they are called before the sanitizer has started,
//! and the guard may run before that. For the same reason the guard depends on no version of any
//! C library. Results are the kernel's own: a negative one is an error number with its sign
//! changed. `errno` is never touched.

#![expect(unsafe_code, reason = "system calls and processor registers")]

mod call;
mod file;
mod memory;
mod time;

use core::ffi::{CStr, c_char, c_int};

use call::call;
pub(crate) use file::*;
pub(crate) use memory::*;
pub(crate) use time::*;

/// Flags of `dlopen`.
pub(crate) const RTLD_LAZY: c_int = 1;
pub(crate) const RTLD_NOLOAD: c_int = 4;

/// Prints an error to stderr, in one write if it is short.
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

/// The PID of this process, in its own namespace.
pub(crate) fn getpid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(call::GETPID, [0; 6]) as u32 }
}

/// The user with whose rights this process acts.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(call::GETEUID, [0; 6]) as u32 }
}

/// Lets other threads run.
pub(crate) fn sched_yield() {
    // SAFETY: takes and changes nothing.
    unsafe { call(call::SCHED_YIELD, [0; 6]) };
}

/// Ends the process by a signal, as `abort` does.
#[cfg(preload)]
pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: an undefined instruction; the kernel ends the process by a signal.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("ud2", options(nostack));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("udf #0", options(nostack));
        }
    }
}

/// The text at a C pointer, without its final zero; empty for null.
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

/// A number that no other living thread of this process has: the address of its thread control
/// block.
pub(crate) fn thread_id() -> usize {
    let at: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: on Linux, fs:0 holds the address of the thread control block.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread pointer register, which every program may.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    at
}
