//! `cuGetProcAddress`: the driver answers, and the guard replaces the answer by its own function.
//! The CUDA runtime gets all of the driver's functions this way.

use core::ffi::{c_char, c_int, c_void};

use super::{DriverCode, INTERCEPTED_CALLS, OpaqueHandle, SUCCESS};
use crate::attach::ProcessGuard;
use crate::intercept::HookEntry;
use crate::sys;

/// # Safety
///
/// See [`super`].
pub(super) unsafe fn proc_address(
    _: &ProcessGuard,
    symbol: *const c_char,
    found: *mut OpaqueHandle,
    version: c_int,
    flags: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if code == SUCCESS {
        // SAFETY: the program's own arguments, of a call that succeeded.
        unsafe { replace(symbol, found, version, flags) };
    }
    code
}

/// Puts the guard's function in place of what `cuGetProcAddress` found.
///
/// # Safety
///
/// `name` and `found` are what the program passed to a call that succeeded.
unsafe fn replace(name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) {
    const PER_THREAD: u64 = 2;
    // SAFETY: the driver has read the name and written the address; null is handled by both.
    let (text, place) = unsafe { (sys::c_bytes(name), found.as_mut()) };
    let Some(place) = place.filter(|place| !place.is_null()) else { return };
    let fits = |entry: &&HookEntry| entry.base == text && entry.since <= version;
    let newest = |per_thread: bool| {
        let all = INTERCEPTED_CALLS.iter().filter(fits);
        all.filter(|entry| entry.per_thread == per_thread).max_by_key(|entry| entry.since)
    };
    let entry = match flags & PER_THREAD != 0 {
        true => newest(true).or_else(|| newest(false)),
        false => newest(false),
    };
    if let Some(entry) = entry.filter(|entry| !core::ptr::eq(entry.hook, (*place).cast())) {
        // The address of the exported name where the driver exports it, else the one that the
        // driver has just answered with.
        entry.real.set_if_missing(*place as usize);
        *place = entry.hook as *mut c_void;
    }
}
