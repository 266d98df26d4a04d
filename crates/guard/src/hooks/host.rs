//! The host's memory, pinned for the device: cuMemHostAlloc, cuMemAllocHost, cuMemHostRegister.
//!
//! On a device that shares the system's memory it is the same memory as the device's, and counts
//! as such. On one with memory of its own it does not, and passes. (Grace has memory of its own
//! beside the system's, and its driver does not call it integrated.)

use core::ffi::c_int;

use super::devices::{self, Target};
use super::track::{Wish, allocate_on, free as give, is_unified};
use super::{Code, Handle, ask};
use crate::here::Here;
use crate::log::Kind;
use crate::table::{Class, Place};

/// The device that shares the host's memory: the current one, or the only one that there is.
fn target(here: &Here) -> Option<Target> {
    let only = || {
        let mut count: c_int = 0;
        // SAFETY: a number is written.
        let one = unsafe { ask::cuDeviceGetCount(&raw mut count) } == 0 && count == 1;
        let device = one.then(|| devices::of_number(here, 0)).flatten()?;
        Some(Target { context: 0, device })
    };
    devices::current(here).or_else(only).filter(|target| is_unified(here, target.device))
}

/// Its place in the ledger.
pub(super) fn device(here: &Here) -> Option<usize> {
    target(here).map(|target| target.device)
}

fn wish(kind: Kind, bytes: usize) -> Wish {
    Wish { kind, place: Place::Host, bytes: bytes as u64, stream: 0 }
}

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn alloc(
    here: &Here,
    out: *mut Handle,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(target) = target(here).filter(|_| !out.is_null()) else { return call() };
    // SAFETY: the driver has written it when it is read.
    allocate_on(here, target, &wish(Kind::Pinned, bytes), call, || unsafe { *out as u64 })
}

pub(super) unsafe fn alloc_plain(
    here: &Here,
    out: *mut Handle,
    bytes: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { alloc(here, out, bytes, 0, call) }
}

pub(super) unsafe fn alloc_small(
    here: &Here,
    out: *mut Handle,
    bytes: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { alloc(here, out, bytes as usize, 0, call) }
}

pub(super) unsafe fn register(
    here: &Here,
    at: Handle,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(target) = target(here).filter(|_| !at.is_null()) else { return call() };
    allocate_on(here, target, &wish(Kind::Registered, bytes), call, || at as u64)
}

pub(super) unsafe fn free(here: &Here, at: Handle, call: impl FnOnce() -> Code) -> Code {
    give(here, Class::Host, at as u64, 0, call)
}
