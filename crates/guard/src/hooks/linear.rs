//! Plain memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree.
//!
//! The first versions of these functions have addresses and sizes of 32 bits, and drivers still
//! export them. So `P` is an address of either size.

use super::track::{self, AllocationRequest, allocate};
use super::{DriverCode, Pointer};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::log::GuardMemoryKind;
use crate::table::ResourceClass;

/// Allocates `bytes` of plain memory; the driver writes the address to `out`.
///
/// # Safety
///
/// See [`super`], for this and the functions below.
#[inline(always)]
unsafe fn alloc_at<P: Copy + Into<Pointer>>(
    guard: &ProcessGuard,
    out: *mut P,
    kind: GuardMemoryKind,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() {
        return call();
    }
    // SAFETY: read only after the driver has written it.
    allocate(guard, &AllocationRequest::linear(kind, bytes), call, || unsafe { *out }.into())
}

pub(super) unsafe fn alloc<P: Copy + Into<Pointer>>(
    guard: &ProcessGuard,
    out: *mut P,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: the same contract.
    unsafe { alloc_at(guard, out, GuardMemoryKind::Linear, bytes, call) }
}

/// Rows of the same length, each beginning at a multiple of the pitch.
pub(super) unsafe fn pitch<P: Copy + Into<Pointer>, S>(
    guard: &ProcessGuard,
    out: *mut P,
    pitch: *const S,
    width: u64,
    height: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    /// Rows begin at multiples of this on every known device.
    const ROW: u64 = 512;
    if pitch.is_null() {
        return call();
    }
    let row = width.checked_next_multiple_of(ROW).unwrap_or(u64::MAX);
    let bytes = usize::try_from(row.saturating_mul(height)).unwrap_or(usize::MAX);
    // SAFETY: the same contract.
    unsafe { alloc_at(guard, out, GuardMemoryKind::Pitch, bytes, call) }
}

pub(super) unsafe fn managed(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if guard.ledger.has_setting(flag::MANAGED_IGNORED) {
        return call();
    }
    // SAFETY: the same contract.
    unsafe { alloc_at(guard, out, GuardMemoryKind::Managed, bytes, call) }
}

pub(super) unsafe fn free(
    guard: &ProcessGuard,
    pointer: Pointer,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    track::free(guard, ResourceClass::Pointer, pointer, 0, call)
}
