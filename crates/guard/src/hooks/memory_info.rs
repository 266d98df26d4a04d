//! What a program is told of the device: the line is its size.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use super::{DriverCode, SUCCESS, devices};
use crate::attach::ProcessGuard;
use crate::ledger::NO_LIMIT;
use crate::system_memory;

/// # Safety
///
/// As the driver's, for this and the next.
pub(super) unsafe fn memory(
    guard: &ProcessGuard,
    free: *mut usize,
    total: *mut usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    let Some(place) = devices::current(guard).filter(|_| code == SUCCESS) else { return code };
    let device = &guard.ledger.devices[place.device];
    let budget = device.budget.load(Relaxed);
    if budget == NO_LIMIT {
        return code;
    }
    // The dead hold nothing: a program decides by this what it asks for.
    guard.reclaim();
    let mut left = device.free(guard.ledger.driver_reserve());
    if device.integrated.load(Relaxed) != 0 {
        left = left.min(system_memory::left(guard.ledger));
    }
    // SAFETY: each is null or what the driver has written.
    unsafe {
        if let Some(free) = free.as_mut() {
            *free = (*free).min(left as usize);
        }
        if let Some(total) = total.as_mut() {
            *total = (*total).min(budget as usize);
        }
    }
    code
}

pub(super) unsafe fn total(
    guard: &ProcessGuard,
    out: *mut usize,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(out)) = (code, unsafe { out.as_mut() })
        && let Some(place) = devices::of_number(guard, device)
    {
        let budget = guard.ledger.devices[place].budget.load(Relaxed);
        *out = (*out).min(usize::try_from(budget).unwrap_or(usize::MAX));
    }
    code
}

/// The first version has sizes of 32 bits.
pub(super) unsafe fn total_small(
    guard: &ProcessGuard,
    out: *mut u32,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(out)) = (code, unsafe { out.as_mut() })
        && let Some(place) = devices::of_number(guard, device)
    {
        let budget = guard.ledger.devices[place].budget.load(Relaxed);
        *out = (*out).min(u32::try_from(budget).unwrap_or(u32::MAX));
    }
    code
}
