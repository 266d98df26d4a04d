//! Code and launches: calls that make the driver load, and take memory for it.

use core::ffi::{c_char, c_int};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use super::{DriverCode, OpaqueHandle, SUCCESS, measure};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{DriverResource, ResourceClass};

/// # Safety
///
/// As the driver's, for this and those below.
unsafe fn load(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let place = measure::place(guard);
    let (code, charge) = measure::charge_growth(guard, GuardMemoryKind::Module, call);
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(place), Some(module)) = (code, place, unsafe { out.as_ref() }) {
        let device = place.device as u8;
        measure::record_cost(guard, *module as u64, DriverResource::Module { device, charge });
    }
    code
}

pub(super) unsafe fn load_file(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    _: *const c_char,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { load(guard, out, call) }
}

pub(super) unsafe fn load_data(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { load(guard, out, call) }
}

pub(super) unsafe fn load_data_ex(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    _: OpaqueHandle,
    _: u32,
    _: OpaqueHandle,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { load(guard, out, call) }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn load_library(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    _: OpaqueHandle,
    _: OpaqueHandle,
    _: OpaqueHandle,
    _: u32,
    _: OpaqueHandle,
    _: OpaqueHandle,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { load(guard, out, call) }
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

/// Heaps and stacks of kernels are sized by limits.
pub(super) unsafe fn set_limit(
    guard: &ProcessGuard,
    _: c_int,
    _: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    measure::charge_growth(guard, GuardMemoryKind::Launch, call).0
}

const FUNCTIONS: usize = 1 << 15;
/// Tells what was asked about from what was launched.
const ASKED: usize = 1 << 62;
static LAUNCHED: [AtomicU64; FUNCTIONS] = [const { AtomicU64::new(0) }; FUNCTIONS];

/// Whether a function is launched for the first time: then its code may be loaded, and its
/// local memory made.
#[inline]
fn is_first(function: OpaqueHandle) -> bool {
    let key = function as u64;
    let home = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize;
    for step in 0..32 {
        let place = &LAUNCHED[(home + step) % FUNCTIONS];
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

/// Something that loads a function where it was not loaded yet. Asking about it may, and
/// launching it takes more, so each is a first of its own.
#[inline]
fn touched(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if function.is_null() || !is_first((function as usize ^ ASKED) as OpaqueHandle) {
        return call();
    }
    measure::charge_growth(guard, GuardMemoryKind::Module, call).0
}

/// Launches a function or a graph.
#[inline]
pub(super) fn launched(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    if function.is_null() || !is_first(function) {
        return call();
    }
    measure::charge_growth(guard, GuardMemoryKind::Launch, call).0
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn launch(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: OpaqueHandle,
    _: OpaqueHandle,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    launched(guard, function, call)
}

pub(super) unsafe fn launch_ex(
    guard: &ProcessGuard,
    _: OpaqueHandle,
    function: OpaqueHandle,
    _: OpaqueHandle,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    launched(guard, function, call)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn launch_together(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: OpaqueHandle,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    launched(guard, function, call)
}

/// Looking a function up may load its module.
pub(super) unsafe fn find(
    guard: &ProcessGuard,
    _: *mut OpaqueHandle,
    module: OpaqueHandle,
    _: *const c_char,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, module, call)
}

pub(super) unsafe fn pick(
    guard: &ProcessGuard,
    _: *mut OpaqueHandle,
    from: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, from, call)
}

pub(super) unsafe fn load_now(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, function, call)
}

pub(super) unsafe fn attribute(
    guard: &ProcessGuard,
    _: *mut c_int,
    _: c_int,
    function: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, function, call)
}

pub(super) unsafe fn set_attribute(
    guard: &ProcessGuard,
    function: OpaqueHandle,
    _: c_int,
    _: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, function, call)
}

pub(super) unsafe fn kernel_attribute(
    guard: &ProcessGuard,
    _: *mut c_int,
    _: c_int,
    kernel: OpaqueHandle,
    _: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, kernel, call)
}

pub(super) unsafe fn set_kernel_attribute(
    guard: &ProcessGuard,
    _: c_int,
    _: c_int,
    kernel: OpaqueHandle,
    _: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, kernel, call)
}

pub(super) unsafe fn occupancy(
    guard: &ProcessGuard,
    _: *mut c_int,
    function: OpaqueHandle,
    _: c_int,
    _: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, function, call)
}

pub(super) unsafe fn occupancy_with(
    guard: &ProcessGuard,
    _: *mut c_int,
    function: OpaqueHandle,
    _: c_int,
    _: usize,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    touched(guard, function, call)
}

/// A stream has queues of its own on the device.
pub(super) unsafe fn stream(
    guard: &ProcessGuard,
    _: *mut OpaqueHandle,
    _: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    measure::charge_growth(guard, GuardMemoryKind::Launch, call).0
}

pub(super) unsafe fn stream_with(
    guard: &ProcessGuard,
    _: *mut OpaqueHandle,
    _: u32,
    _: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    measure::charge_growth(guard, GuardMemoryKind::Launch, call).0
}
