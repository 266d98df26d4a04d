//! What a program is told about a device's memory: the limit in place of its size.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use super::track::is_unified;
use super::{DriverCode, SUCCESS, devices};
use crate::attach::ProcessGuard;
use crate::ledger::NO_LIMIT;
use crate::system_memory;

/// # Safety
///
/// See [`super`], for this and the next.
pub(super) unsafe fn free_and_total(
    guard: &ProcessGuard,
    free: *mut usize,
    total: *mut usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    let Some(target) = devices::current(guard).filter(|_| code == SUCCESS) else { return code };
    let device = &guard.ledger.devices[target.device];
    let budget = device.budget.load(Relaxed);
    if budget == NO_LIMIT {
        return code;
    }
    // Programs decide by this figure how much to ask for, so what processes held that have died
    // must be in it.
    guard.reclaim();
    let mut left = device.free(guard.ledger.driver_reserve());
    if is_unified(guard, target.device) {
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

/// `S` is the type of sizes: 32 bits in the first version.
pub(super) unsafe fn total<S: Copy + Ord + TryFrom<u64>>(
    guard: &ProcessGuard,
    out: *mut S,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(out)) = (code, unsafe { out.as_mut() })
        && let Some(device) = devices::of_number(guard, device)
        // A limit that does not fit into the type is above every size that does.
        && let Ok(budget) = S::try_from(guard.ledger.devices[device].budget.load(Relaxed))
    {
        *out = (*out).min(budget);
    }
    code
}
