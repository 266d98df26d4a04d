//! Pinned host memory: cuMemHostAlloc, cuMemAllocHost, cuMemHostRegister.
//!
//! On a device that shares the system's memory, pinned memory is the device's memory too and
//! counts against its limit. On a device with memory of its own it does not, and passes. (Grace
//! has device memory beside the system's, and its driver does not report it as integrated.)

use super::devices::{self, DeviceTarget};
use super::track::{self, AllocationRequest, allocate_on, is_unified};
use super::{DriverCode, OpaqueHandle};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, ResourceClass};

/// The device that shares the host's memory: the current one, or the only one there is.
fn target(guard: &ProcessGuard) -> Option<DeviceTarget> {
    let only = || {
        let device =
            devices::has_single_device().then(|| devices::of_number(guard, 0)).flatten()?;
        Some(DeviceTarget { context: 0, device })
    };
    devices::current(guard).or_else(only).filter(|target| is_unified(guard, target.device))
}

/// The index of that device in the ledger.
pub(super) fn device(guard: &ProcessGuard) -> Option<usize> {
    target(guard).map(|target| target.device)
}

/// Counts host memory whose address is known once the driver has answered.
fn allocate(
    guard: &ProcessGuard,
    kind: GuardMemoryKind,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
    address: impl FnOnce() -> OpaqueHandle,
) -> DriverCode {
    let Some(target) = target(guard) else { return call() };
    let request =
        AllocationRequest { kind, class: BlockClass::Host, bytes: bytes as u64, stream: 0 };
    allocate_on(guard, target, &request, call, || address() as u64)
}

/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn alloc(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() {
        return call();
    }
    // SAFETY: read only after the driver has written it.
    allocate(guard, GuardMemoryKind::Pinned, bytes, call, || unsafe { *out })
}

pub(super) unsafe fn register(
    guard: &ProcessGuard,
    at: OpaqueHandle,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if at.is_null() {
        return call();
    }
    allocate(guard, GuardMemoryKind::Registered, bytes, call, || at)
}

pub(super) unsafe fn free(
    guard: &ProcessGuard,
    at: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    track::free(guard, ResourceClass::Host, at as u64, 0, call)
}
