//! Plain memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree.

use super::track::{AllocationRequest, allocate, free as give};
use super::{DriverCode, Pointer};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::log::GuardMemoryKind;
use crate::table::ResourceClass;

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn alloc(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &AllocationRequest::linear(GuardMemoryKind::Linear, bytes), call, || unsafe {
        *out
    })
}

pub(super) unsafe fn pitch(
    guard: &ProcessGuard,
    out: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() || pitch.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &rows(width as u64, height as u64), call, || unsafe { *out })
}

/// Rows of the same length.
fn rows(width: u64, height: u64) -> AllocationRequest {
    /// They begin at multiples of this on every device that there is.
    const ROW: u64 = 512;
    let row = width.checked_next_multiple_of(ROW).unwrap_or(u64::MAX);
    let bytes = row.saturating_mul(height);
    AllocationRequest::linear(GuardMemoryKind::Pitch, usize::try_from(bytes).unwrap_or(usize::MAX))
}

pub(super) unsafe fn managed(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() || guard.ledger.has_setting(flag::MANAGED_IGNORED) {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &AllocationRequest::linear(GuardMemoryKind::Managed, bytes), call, || unsafe {
        *out
    })
}

pub(super) unsafe fn free(
    guard: &ProcessGuard,
    pointer: Pointer,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    give(guard, ResourceClass::Pointer, pointer, 0, call)
}

/// The functions of the first version have addresses and sizes of 32 bits. Drivers still have
/// them.
pub(super) unsafe fn alloc_small(
    guard: &ProcessGuard,
    out: *mut u32,
    bytes: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() {
        return call();
    }
    let request = AllocationRequest::linear(GuardMemoryKind::Linear, bytes as usize);
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &request, call, || u64::from(unsafe { *out }))
}

pub(super) unsafe fn pitch_small(
    guard: &ProcessGuard,
    out: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() || pitch.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &rows(width.into(), height.into()), call, || u64::from(unsafe { *out }))
}

pub(super) unsafe fn free_small(
    guard: &ProcessGuard,
    pointer: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    give(guard, ResourceClass::Pointer, pointer.into(), 0, call)
}
