//! Modules, kernels and streams: calls that make the driver load code or grow, and take memory
//! for it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::{DriverCode, OpaqueHandle, SUCCESS, devices, measure};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{DriverResource, ResourceClass};

/// Loads a module or a library.
///
/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn load(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let target = devices::current(guard);
    let (code, charge) = measure::charge_growth(guard, GuardMemoryKind::Module, call);
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(target), Some(key)) = (code, target, unsafe { out.as_ref() }) {
        let (device, context) = (target.device as u8, target.context);
        let module = DriverResource::Module { device, context, charge };
        measure::record_cost(guard, *key as u64, module);
    }
    code
}

pub(super) unsafe fn unload(
    guard: &ProcessGuard,
    module: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if code == SUCCESS {
        measure::release_cost(guard, ResourceClass::Module, module as u64);
    }
    code
}

/// A call after which the driver may have taken more memory for itself.
pub(super) unsafe fn may_grow(
    guard: &ProcessGuard,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    measure::grow_context(guard, GuardMemoryKind::Launch, call)
}

const FUNCTIONS: usize = 1 << 15;
/// Set in the key of a function that was asked about, to tell it from one that was launched.
const ASKED: usize = 1 << 62;
static SEEN: [AtomicU64; FUNCTIONS] = [const { AtomicU64::new(0) }; FUNCTIONS];

/// Whether a function is seen for the first time: then its code may be loaded, and its local
/// memory made. False where the table has no room for it.
#[inline]
fn is_first(function: OpaqueHandle) -> bool {
    let key = function as u64;
    let home = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize;
    for step in 0..32 {
        let place = &SEEN[(home + step) % FUNCTIONS];
        match place.load(Acquire) {
            0 => match place.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(other) if other == key => return false,
                Err(_) => {}
            },
            other if other == key => return false,
            _ => {}
        }
    }
    false
}

/// Forgets which functions were seen: a new context loads their code again.
pub(super) fn forget_all() {
    SEEN.iter().for_each(|place| place.store(0, Release));
}

/// A call that looks a function up or asks about it, which loads its code if it is not loaded
/// yet. Launching takes more memory than asking, so the first of each is measured.
#[inline]
pub(super) unsafe fn query(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if function.is_null() || !is_first((function as usize ^ ASKED) as OpaqueHandle) {
        return call();
    }
    measure::grow_context(guard, GuardMemoryKind::Module, call)
}

/// Launches a function or a graph.
#[inline]
pub(super) unsafe fn launch(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if function.is_null() || !is_first(function) {
        return call();
    }
    measure::grow_context(guard, GuardMemoryKind::Launch, call)
}
