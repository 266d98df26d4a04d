//! Clocks and waiting.

use core::ffi::c_int;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use super::call::{self, call};

/// Sleeps until another thread wakes this word, if it still is `value`; at most `most`
/// milliseconds. `shared` where threads of other processes wait there too.
pub(crate) fn futex_wait(word: *const u32, value: u32, shared: bool, most: i64) {
    const WAIT: usize = 0;
    let time = KernelTime { seconds: 0, nanos: most * 1_000_000 };
    let how = if shared { WAIT } else { WAIT | FUTEX_PRIVATE };
    // SAFETY: the word is readable, as callers have a reference to it; the kernel reads the time.
    unsafe {
        call(call::FUTEX, [word as usize, how, value as usize, (&raw const time) as usize, 0, 0])
    };
}

/// Sleeps for a millisecond.
pub(crate) fn sleep_millisecond() {
    let word = 0;
    futex_wait(&raw const word, 0, false, 1);
}

/// Wakes one thread that waits at a word.
pub(crate) fn futex_wake(word: *const u32, shared: bool) {
    const WAKE: usize = 1;
    let how = if shared { WAKE } else { WAKE | FUTEX_PRIVATE };
    // SAFETY: the kernel uses the word's address only.
    unsafe { call(call::FUTEX, [word as usize, how, 1, 0, 0, 0]) };
}
const FUTEX_PRIVATE: usize = 128;

/// A time, as the kernel gives it on 64-bit systems.
#[repr(C)]
struct KernelTime {
    seconds: i64,
    nanos: i64,
}

/// The time since the system started, in nanoseconds, as of the kernel's last clock tick: a tick is
/// 1 to 10 ms, depending on how the kernel was built. It takes no system call and reads no register
/// that is slow in a virtual machine, so events are logged by it. [`now_exactly`] is more exact.
#[inline]
pub(crate) fn now() -> u64 {
    const COARSE: c_int = 6;
    clock(COARSE)
}

/// The same clock between its ticks, for four times the cost; never before [`now`].
pub(crate) fn now_exactly() -> u64 {
    const MONOTONIC: c_int = 1;
    clock(MONOTONIC)
}

type ClockGettime = unsafe extern "C" fn(c_int, *mut KernelTime) -> c_int;

/// The address of the C library's `clock_gettime`, which reads the clock without a system call.
/// While it is 0, the kernel is called.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// Sets the address of the C library's own `clock_gettime`.
pub(crate) fn set_clock(function: usize) {
    CLOCK.store(function, Relaxed);
}

fn clock(which: c_int) -> u64 {
    let mut at = KernelTime { seconds: 0, nanos: 0 };
    // SAFETY: two numbers are written; an unknown clock leaves them unchanged. The function is the
    // C library's of that name.
    unsafe {
        match CLOCK.load(Relaxed) {
            0 => {
                call(call::CLOCK_GETTIME, [which as usize, (&raw mut at) as usize, 0, 0, 0, 0]);
            }
            function => {
                core::mem::transmute::<usize, ClockGettime>(function)(which, &raw mut at);
            }
        }
    }
    at.seconds.unsigned_abs() * 1_000_000_000 + at.nanos.unsigned_abs()
}
