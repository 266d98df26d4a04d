//! Contexts: what they take, and what is released with them.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{
    DriverCode, NOT_SUPPORTED, OpaqueHandle, SUCCESS, devices, kernels, measure, own_calls, track,
};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::table::{DriverResource, ResourceClass, ResourceEntry};

/// The newest driver whose allocation calls are all known to the guard.
const KNOWN_DRIVER: c_int = 13_990;

/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn init(guard: &ProcessGuard, call: impl FnOnce() -> DriverCode) -> DriverCode {
    let mut version = 0;
    // SAFETY: a number is written.
    unsafe { own_calls::cuDriverGetVersion(&raw mut version) };
    guard.ledger.driver_version.store(version.unsigned_abs(), Relaxed);
    if version > KNOWN_DRIVER {
        guard.ledger.warn(flag::NEW_DRIVER);
        if guard.ledger.has_setting(flag::STRICT) {
            guard.ledger.warn(flag::REFUSED_DRIVER);
            return NOT_SUPPORTED;
        }
    }
    call()
}

pub(super) unsafe fn create(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if out.is_null() {
        return call();
    }
    // SAFETY: read only after the driver has written it.
    let code = measure::create_context(guard, device, call, || unsafe { *out });
    // SAFETY: not null, and written where the call succeeded.
    unsafe { note_created(guard, code, out, device) };
    code
}

/// Notes which context a call has returned, if it succeeded.
unsafe fn note_created(
    guard: &ProcessGuard,
    code: DriverCode,
    out: *mut OpaqueHandle,
    device: c_int,
) {
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(context)) = (code, unsafe { out.as_ref() }) {
        devices::note_context(guard, *context as u64, devices::of_number(guard, device));
    }
}

fn is_active(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: two numbers are written.
    let code =
        unsafe { own_calls::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    code == SUCCESS && active != 0
}

pub(super) unsafe fn retain(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = if is_active(device) {
        let code = call();
        // SAFETY: the driver refuses null; otherwise it has written the handle.
        unsafe { note_created(guard, code, out, device) };
        code
    } else {
        // SAFETY: the same contract.
        unsafe { create(guard, out, device, call) }
    };
    // SAFETY: as above.
    let context = unsafe { out.as_ref() };
    if let (SUCCESS, Some(context), Some(primary)) = (code, context, primary(device)) {
        primary.store(*context as u64, Relaxed);
    }
    code
}

/// The primary context of a device, by this process's number for the device; 0 before it was
/// retained.
fn primary(device: c_int) -> Option<&'static AtomicU64> {
    static PRIMARY: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    PRIMARY.get(usize::try_from(device).ok()?)
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    context: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if code == SUCCESS && !context.is_null() {
        release_contents(guard, context as u64);
    }
    code
}

/// Releases or resets a primary context. If it is destroyed by that, so is everything in it; other
/// contexts of its device stay.
pub(super) unsafe fn release_primary(
    guard: &ProcessGuard,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let was_active = is_active(device);
    let code = call();
    let gone = !is_active(device);
    if gone {
        devices::ask_from_now_on(guard);
    }
    if code == SUCCESS && was_active && gone {
        let context = primary(device).map_or(0, |primary| primary.swap(0, Relaxed));
        if context != 0 {
            release_contents(guard, context);
        }
    }
    code
}

/// Gives back everything that was allocated in a context that was destroyed.
fn release_contents(guard: &ProcessGuard, context: u64) {
    devices::forget(guard, context);
    let lived_there = |entry: &ResourceEntry| match entry.resource {
        DriverResource::Block { context: of, .. } | DriverResource::Module { context: of, .. } => {
            of == context
        }
        _ => false,
    };
    guard.table.drain(lived_there, |entry| match entry.resource {
        DriverResource::Module { .. } => measure::give_cost_back(guard, &entry),
        _ => track::release_entry(guard, &entry),
    });
    measure::release_cost(guard, ResourceClass::Context, context);
    kernels::forget_all();
}
