//! How calls of the driver reach the guard: every way in which a program finds a driver function.
//!
//! | a program | and the guard |
//! | --- | --- |
//! | links to libcuda | exports the same names, and is found first |
//! | asks `dlsym` or `dlvsym` with a library's handle | looks there itself; if it finds the driver's function, returns its own |
//! | asks them with `RTLD_DEFAULT` | returns its own if a driver is loaded, and nothing otherwise |
//! | asks them with `RTLD_NEXT` | does not interfere: the caller wants the function that comes after its own |
//! | asks `cuGetProcAddress` (the CUDA runtime, always) | asks the driver, and replaces the answer by its own (`hooks/lookup.rs`) |
//! | asks a handle of the C library for `dlsym` | returns its own |
//!
//! A program may also load a driver of its own into a link namespace where the guard is not
//! (`dlmopen`), or a library that finds the driver before the guard (`RTLD_DEEPBIND`). These are not
//! limited; the ledger notes it and `run` warns.
//!
//! `dlsym.rs` decides, `jump.rs` exports the functions of the loader, and `real.rs` finds the
//! functions that the guard replaces.

#![expect(unsafe_code, reason = "stands in for the dynamic loader's own functions")]

mod dlsym;
#[cfg(preload)]
mod jump;
mod real;

use core::ffi::CStr;

pub(crate) use real::{RealFunction, library, symbol};

/// A function that the guard intercepts.
pub(crate) struct HookEntry {
    /// The name that libraries export.
    pub(crate) name: &'static CStr,
    /// The name that `cuGetProcAddress` is asked for.
    pub(crate) base: &'static [u8],
    /// The first version for which that name means this function.
    pub(crate) since: i32,
    /// Whether it uses the calling thread's own stream by default.
    pub(crate) per_thread: bool,
    /// The guard's function.
    pub(crate) hook: *const (),
    /// The driver's function.
    pub(crate) real: &'static RealFunction,
}

// SAFETY: the only field that is not `Sync` by itself is the address of a function.
unsafe impl Sync for HookEntry {}
