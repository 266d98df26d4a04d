//! The host's memory, pinned for the device: cuMemHostAlloc, cuMemAllocHost, cuMemHostRegister.
//!
//! On a device that shares the system's memory it is the same memory as the device's, and counts
//! as such. On one with memory of its own it does not, and passes. (Grace has memory of its own
//! beside the system's, and its driver does not call it integrated.)

use core::ffi::c_int;

use super::devices::{self, DeviceTarget};
use super::track::{AllocationRequest, allocate_on, free as give, is_unified};
use super::{DriverCode, OpaqueHandle, own_calls};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, ResourceClass};

/// The device that shares the host's memory: the current one, or the only one that there is.
fn target(guard: &ProcessGuard) -> Option<DeviceTarget> {
    let only = || {
        let mut count: c_int = 0;
        // SAFETY: a number is written.
        let one = unsafe { own_calls::cuDeviceGetCount(&raw mut count) } == 0 && count == 1;
        let device = one.then(|| devices::of_number(guard, 0)).flatten()?;
        Some(DeviceTarget { context: 0, device })
    };
    devices::current(guard).or_else(only).filter(|target| is_unified(guard, target.device))
}

/// Its place in the ledger.
pub(super) fn device(guard: &ProcessGuard) -> Option<usize> {
    target(guard).map(|target| target.device)
}

fn request(kind: GuardMemoryKind, bytes: usize) -> AllocationRequest {
    AllocationRequest { kind, place: BlockClass::Host, bytes: bytes as u64, stream: 0 }
}

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn alloc(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let Some(target) = target(guard).filter(|_| !out.is_null()) else { return call() };
    // SAFETY: the driver has written it when it is read.
    allocate_on(guard, target, &request(GuardMemoryKind::Pinned, bytes), call, || unsafe {
        *out as u64
    })
}

pub(super) unsafe fn alloc_plain(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { alloc(guard, out, bytes, 0, call) }
}

pub(super) unsafe fn alloc_small(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    bytes: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { alloc(guard, out, bytes as usize, 0, call) }
}

pub(super) unsafe fn register(
    guard: &ProcessGuard,
    at: OpaqueHandle,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let Some(target) = target(guard).filter(|_| !at.is_null()) else { return call() };
    allocate_on(guard, target, &request(GuardMemoryKind::Registered, bytes), call, || at as u64)
}

pub(super) unsafe fn free(
    guard: &ProcessGuard,
    at: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    give(guard, ResourceClass::Host, at as u64, 0, call)
}
