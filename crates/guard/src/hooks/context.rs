//! Contexts: what they take, and what is gone with them.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{Code, Handle, NOT_SUPPORTED, SUCCESS, ask, devices, measure, track};
use crate::here::Here;
use crate::ledger::flag;
use crate::table::{Class, Entry, Thing};

/// The newest driver whose ways to allocate are known.
const KNOWN_DRIVER: c_int = 13_990;

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn init(here: &Here, _: u32, call: impl FnOnce() -> Code) -> Code {
    let mut version = 0;
    // SAFETY: a number is written.
    unsafe { ask::cuDriverGetVersion(&raw mut version) };
    here.ledger.driver_version.store(version.unsigned_abs(), Relaxed);
    if version > KNOWN_DRIVER {
        here.ledger.warn(flag::NEW_DRIVER);
        if here.ledger.is(flag::STRICT) {
            here.ledger.warn(flag::REFUSED_DRIVER);
            return NOT_SUPPORTED;
        }
    }
    call()
}

unsafe fn create(
    here: &Here,
    out: *mut Handle,
    device: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    let code = measure::context(here, device, call, || unsafe { *out });
    // SAFETY: as above, or a null that was refused.
    unsafe { met(here, code, out, device) };
    code
}

/// Notes which context a call has handed out.
unsafe fn met(here: &Here, code: Code, out: *mut Handle, device: c_int) {
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(context)) = (code, unsafe { out.as_ref() }) {
        devices::met(here, *context as u64, devices::of_number(here, device));
    }
}

pub(super) unsafe fn create_v2(
    here: &Here,
    out: *mut Handle,
    _: u32,
    device: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { create(here, out, device, call) }
}

pub(super) unsafe fn create_v3(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    _: c_int,
    _: u32,
    device: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { create(here, out, device, call) }
}

pub(super) unsafe fn create_v4(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    _: u32,
    device: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { create(here, out, device, call) }
}

fn is_active(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: two numbers are written.
    let code = unsafe { ask::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    code == SUCCESS && active != 0
}

pub(super) unsafe fn retain(
    here: &Here,
    out: *mut Handle,
    device: c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    let code = if is_active(device) {
        let code = call();
        // SAFETY: null is refused by the driver; otherwise it has written it.
        unsafe { met(here, code, out, device) };
        code
    } else {
        // SAFETY: handed on.
        unsafe { create(here, out, device, call) }
    };
    // SAFETY: as above.
    let context = unsafe { out.as_ref() };
    if let (SUCCESS, Some(context), Some(primary)) = (code, context, primary(device)) {
        primary.store(*context as u64, Relaxed);
    }
    code
}

/// The primary context of a device, by this process's number of it; 0 before it was retained.
fn primary(device: c_int) -> Option<&'static AtomicU64> {
    static PRIMARY: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    PRIMARY.get(usize::try_from(device).ok()?)
}

pub(super) unsafe fn destroy(here: &Here, context: Handle, call: impl FnOnce() -> Code) -> Code {
    let code = call();
    if code == SUCCESS && !context.is_null() {
        ended(here, context as u64);
    }
    code
}

/// A primary context was released or reset; if it is gone, so is what was in it. Other contexts
/// of its device live on.
pub(super) unsafe fn let_go(here: &Here, device: c_int, call: impl FnOnce() -> Code) -> Code {
    let was_active = is_active(device);
    let code = call();
    let gone = !is_active(device);
    if gone {
        devices::doubt(here);
    }
    if code == SUCCESS && was_active && gone {
        let context = primary(device).map_or(0, |primary| primary.swap(0, Relaxed));
        if context != 0 {
            ended(here, context);
        }
    }
    code
}

/// What lived in a context is gone with it.
fn ended(here: &Here, context: u64) {
    devices::forget(here, context);
    let lived_there = |entry: &Entry| match entry.thing {
        Thing::Block { context: of, .. } => of == context,
        _ => false,
    };
    here.table.drain(lived_there, |entry| track::give_back(here, &entry));
    measure::gone(here, Class::Context, context);
}
