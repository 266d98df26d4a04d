//! What `dlsym`, `dlvsym`, `dlopen` and `dlmopen` do under the guard.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::Release;

use super::real::{
    REAL_DLMOPEN, REAL_DLOPEN, REAL_DLSYM, REAL_DLVSYM, RTLD_DEFAULT, RTLD_NEXT, forget_error,
    in_driver, loader_function, symbol,
};
use crate::hooks::INTERCEPTED_CALLS;
use crate::ledger::flag;
use crate::{attach, sys};

/// What the exported `dlsym` shall do.
#[repr(C)]
pub(super) struct DlsymDecision {
    /// The address to return, if it is not 0.
    result: usize,
    /// Otherwise the name to pass to the real function.
    name: *const c_char,
}

/// Whether the guard may intercept a function of this name: `cu` and a capital, or NVML's.
/// `cudaMalloc`, `cublasCreate` and `curl_easy_init` are not of this form.
fn concerns(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', b'A'..=b'Z', ..]) || name.starts_with(b"nvml")
}

/// Decides by what the real function would find, which `look` asks it for.
fn decide(handle: usize, name: *const c_char, look: impl FnOnce(&CStr) -> usize) -> DlsymDecision {
    let pass = DlsymDecision { result: 0, name };
    // SAFETY: callers of `dlsym` pass a text that ends with a zero; null reads as empty.
    let text = unsafe { sys::c_bytes(name) };
    if handle == RTLD_NEXT || !attach::in_run() {
        return pass;
    }
    if let Some((name, real, ours)) = of_loader(text).filter(|_| handle != RTLD_DEFAULT) {
        // Who asks the C library itself for `dlsym` would get past the guard with it.
        let found = look(name);
        let ours = DlsymDecision { result: ours, name: name.as_ptr() };
        return if found != 0 && found == real { ours } else { pass };
    }
    if !concerns(text) {
        return pass;
    }
    let Some(entry) = INTERCEPTED_CALLS.iter().find(|entry| entry.name.to_bytes() == text) else {
        return pass;
    };
    let hook = entry.hook as usize;
    let hooked = DlsymDecision { result: hook, name };
    let found = if handle == RTLD_DEFAULT { hook } else { look(entry.name) };
    if found == hook {
        // Found by the order of libraries, in which the guard comes first, whether or not a
        // driver is loaded.
        let absent = c"a function of the CUDA driver, which is not loaded";
        return if entry.real.get() != 0 {
            hooked
        } else {
            DlsymDecision { result: 0, name: absent.as_ptr() }
        };
    }
    let known = found != 0 && (found == entry.real.get() || found == in_driver(entry.name));
    // A library that is no driver may have a function of this name, which is then meant.
    if known { hooked } else { pass }
}

pub(super) extern "C" fn decide_dlsym(handle: usize, name: *const c_char) -> DlsymDecision {
    if loader_function(&REAL_DLSYM, b"dlsym") == 0 {
        REAL_DLSYM.store(nothing as *const () as usize, Release);
    }
    decide(handle, name, |name| symbol(handle, name))
}

pub(super) extern "C" fn decide_dlvsym(
    handle: usize,
    name: *const c_char,
    version: *const c_char,
) -> DlsymDecision {
    type Dlvsym = unsafe extern "C" fn(usize, *const c_char, *const c_char) -> *mut c_void;
    let dlvsym = match loader_function(&REAL_DLVSYM, b"dlvsym") {
        0 => {
            REAL_DLVSYM.store(nothing as *const () as usize, Release);
            return DlsymDecision { result: 0, name };
        }
        found => found,
    };
    decide(handle, name, |name| {
        // SAFETY: it is the dynamic loader's `dlvsym`; the program has passed the handle and the
        // version.
        let found = unsafe {
            core::mem::transmute::<usize, Dlvsym>(dlvsym)(handle, name.as_ptr(), version)
        };
        if found.is_null() {
            forget_error();
        }
        found as usize
    })
}

/// Notes that a program loads a library into a link namespace where the guard is not.
pub(super) extern "C" fn note_dlmopen(namespace: isize) {
    const PROGRAMS_OWN: isize = 0;
    if loader_function(&REAL_DLMOPEN, b"dlmopen") == 0 {
        REAL_DLMOPEN.store(nothing as *const () as usize, Release);
    }
    if let (true, Some(ledger)) = (namespace != PROGRAMS_OWN, attach::ledger()) {
        ledger.warn(flag::SEPARATE);
    }
}

/// Notes that a program loads a library that finds functions in its own dependencies first, and so
/// the driver's before the guard's.
pub(super) extern "C" fn note_dlopen(_name: *const c_char, flags: c_int) {
    const DEEPBIND: c_int = 8;
    if loader_function(&REAL_DLOPEN, b"dlopen") == 0 {
        REAL_DLOPEN.store(nothing as *const () as usize, Release);
    }
    if let (true, Some(ledger)) = (flags & DEEPBIND != 0, attach::ledger()) {
        ledger.warn(flag::DEEP_BOUND);
    }
}

/// A function of the loader that the guard exports, and the loader's own.
#[cfg(preload)]
fn of_loader(name: &[u8]) -> Option<(&'static CStr, usize, usize)> {
    use core::sync::atomic::AtomicUsize;

    use super::jump;
    let (name, real, ours): (&CStr, &AtomicUsize, usize) = match name {
        b"dlsym" => (c"dlsym", &REAL_DLSYM, jump::dlsym as *const () as usize),
        b"dlvsym" => (c"dlvsym", &REAL_DLVSYM, jump::dlvsym as *const () as usize),
        b"dlopen" => (c"dlopen", &REAL_DLOPEN, jump::dlopen as *const () as usize),
        b"dlmopen" => (c"dlmopen", &REAL_DLMOPEN, jump::dlmopen as *const () as usize),
        _ => return None,
    };
    Some((name, loader_function(real, name.to_bytes()), ours))
}

#[cfg(not(preload))]
fn of_loader(_: &[u8]) -> Option<(&'static CStr, usize, usize)> {
    None
}

/// Stands in for a function of the loader that no library has.
extern "C" fn nothing() -> usize {
    0
}
