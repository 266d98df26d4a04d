//! Code and launches: calls that make the driver load, and take memory for it.

use core::ffi::{c_char, c_int};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use super::{Code, Handle, SUCCESS, measure};
use crate::here::Here;
use crate::log::Kind;
use crate::table::{Class, Thing};

/// # Safety
///
/// As the driver's, for this and those below.
unsafe fn load(here: &Here, out: *mut Handle, call: impl FnOnce() -> Code) -> Code {
    let place = measure::place(here);
    let (code, charge) = measure::around(here, Kind::Module, call);
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(place), Some(module)) = (code, place, unsafe { out.as_ref() }) {
        let device = place.device as u8;
        measure::keep(here, *module as u64, Thing::Module { device, charge });
    }
    code
}

pub(super) unsafe fn load_file(
    here: &Here,
    out: *mut Handle,
    _: *const c_char,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { load(here, out, call) }
}

pub(super) unsafe fn load_data(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { load(here, out, call) }
}

pub(super) unsafe fn load_data_ex(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    _: u32,
    _: Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { load(here, out, call) }
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn load_library(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    _: Handle,
    _: Handle,
    _: u32,
    _: Handle,
    _: Handle,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { load(here, out, call) }
}

pub(super) unsafe fn unload(here: &Here, module: Handle, call: impl FnOnce() -> Code) -> Code {
    let code = call();
    if code == SUCCESS {
        measure::gone(here, Class::Module, module as u64);
    }
    code
}

/// Heaps and stacks of kernels are sized by limits.
pub(super) unsafe fn set_limit(
    here: &Here,
    _: c_int,
    _: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    measure::around(here, Kind::Launch, call).0
}

const FUNCTIONS: usize = 1 << 15;
/// Tells what was asked about from what was launched.
const ASKED: usize = 1 << 62;
static LAUNCHED: [AtomicU64; FUNCTIONS] = [const { AtomicU64::new(0) }; FUNCTIONS];

/// Whether a function is launched for the first time: then its code may be loaded, and its
/// local memory made.
#[inline]
fn is_first(function: Handle) -> bool {
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
fn touched(here: &Here, function: Handle, call: impl FnOnce() -> Code) -> Code {
    if function.is_null() || !is_first((function as usize ^ ASKED) as Handle) {
        return call();
    }
    measure::around(here, Kind::Module, call).0
}

/// Launches a function or a graph.
#[inline]
pub(super) fn launched(here: &Here, function: Handle, call: impl FnOnce() -> Code) -> Code {
    if function.is_null() || !is_first(function) {
        return call();
    }
    measure::around(here, Kind::Launch, call).0
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn launch(
    here: &Here,
    function: Handle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Handle,
    _: Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    launched(here, function, call)
}

pub(super) unsafe fn launch_ex(
    here: &Here,
    _: Handle,
    function: Handle,
    _: Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    launched(here, function, call)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(super) unsafe fn launch_together(
    here: &Here,
    function: Handle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    launched(here, function, call)
}

/// Looking a function up may load its module.
pub(super) unsafe fn find(
    here: &Here,
    _: *mut Handle,
    module: Handle,
    _: *const c_char,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, module, call)
}

pub(super) unsafe fn pick(
    here: &Here,
    _: *mut Handle,
    from: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, from, call)
}

pub(super) unsafe fn load_now(here: &Here, function: Handle, call: impl FnOnce() -> Code) -> Code {
    touched(here, function, call)
}

pub(super) unsafe fn attribute(
    here: &Here,
    _: *mut c_int,
    _: c_int,
    function: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, function, call)
}

pub(super) unsafe fn set_attribute(
    here: &Here,
    function: Handle,
    _: c_int,
    _: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, function, call)
}

pub(super) unsafe fn kernel_attribute(
    here: &Here,
    _: *mut c_int,
    _: c_int,
    kernel: Handle,
    _: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, kernel, call)
}

pub(super) unsafe fn set_kernel_attribute(
    here: &Here,
    _: c_int,
    _: c_int,
    kernel: Handle,
    _: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, kernel, call)
}

pub(super) unsafe fn occupancy(
    here: &Here,
    _: *mut c_int,
    function: Handle,
    _: c_int,
    _: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, function, call)
}

pub(super) unsafe fn occupancy_with(
    here: &Here,
    _: *mut c_int,
    function: Handle,
    _: c_int,
    _: usize,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    touched(here, function, call)
}

/// A stream has queues of its own on the device.
pub(super) unsafe fn stream(
    here: &Here,
    _: *mut Handle,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    measure::around(here, Kind::Launch, call).0
}

pub(super) unsafe fn stream_with(
    here: &Here,
    _: *mut Handle,
    _: u32,
    _: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    measure::around(here, Kind::Launch, call).0
}
