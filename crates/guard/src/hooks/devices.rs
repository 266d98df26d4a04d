//! Which device a call concerns, and its place in the ledger.
//!
//! Numbers of devices are a process's own affair (`CUDA_VISIBLE_DEVICES`), so a device is
//! known in the ledger by its UUID. The way from a context to its device is remembered:
//! asking the driver each time would cost more than the counting.
//!
//! Even which context is current need not be asked in the common case: a process that sees one
//! device and has only ever had one context, as far as anybody saw, can mean no other. (A
//! thread without a context is refused by the driver, and what was granted is taken back.) A
//! second context, a second device, or the end of the one, and it is asked from then on.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::{OpaqueHandle, SUCCESS, own_calls};
use crate::attach::ProcessGuard;
use crate::ledger::{DEVICES, LedgerDevice, NO_LIMIT, flag};
use crate::system_memory;

/// Where an allocation goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceTarget {
    pub(super) context: u64,
    pub(super) device: usize,
}

const CONTEXTS: usize = 32;
/// Contexts and, one more than it is, the place of their device.
static KNOWN: [(AtomicU64, AtomicU32); CONTEXTS] =
    [const { (AtomicU64::new(0), AtomicU32::new(0)) }; CONTEXTS];
/// Places by this process's numbers, one more than they are.
static BY_NUMBER: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// In [`ProcessGuard::sole`]: no context yet, and that the driver must be asked. Between them an
/// address, with the place of its device in the highest four bits.
const NO_CONTEXT: u64 = 0;
const ASK: u64 = u64::MAX;
const PLACE: u32 = 60;
const _: () = assert!(DEVICES <= 1 << (u64::BITS - PLACE), "a place must fit");

/// Notes a context that was made, retained or found current, before anybody can use it.
pub(super) fn note_context(guard: &ProcessGuard, context: u64, device: Option<usize>) {
    let sole = match device {
        Some(device) if context >> PLACE == 0 && has_single_device() => {
            (device as u64) << PLACE | context
        }
        _ => ASK,
    };
    if guard
        .single_context
        .compare_exchange(NO_CONTEXT, sole, AcqRel, Acquire)
        .is_err_and(|it| it != sole)
    {
        guard.single_context.store(ASK, Release);
    }
}

fn has_single_device() -> bool {
    let mut count = 0;
    // SAFETY: a number is written.
    unsafe { own_calls::cuDeviceGetCount(&raw mut count) == SUCCESS && count == 1 }
}

/// The current context and its device. Nothing without a context, where that is known.
#[inline]
pub(super) fn current(guard: &ProcessGuard) -> Option<DeviceTarget> {
    match guard.single_context.load(Acquire) {
        NO_CONTEXT | ASK => ask_driver(guard),
        sole => {
            let context = sole & ((1 << PLACE) - 1);
            Some(DeviceTarget { context, device: (sole >> PLACE) as usize })
        }
    }
}

fn ask_driver(guard: &ProcessGuard) -> Option<DeviceTarget> {
    let mut context: OpaqueHandle = core::ptr::null_mut();
    // A driver that fails once is asked again: what is not known to be somewhere is not counted.
    // SAFETY: a handle is written.
    let mut ask = || unsafe { own_calls::cuCtxGetCurrent(&raw mut context) } == SUCCESS;
    if !(ask() || ask()) || context.is_null() {
        return None;
    }
    let context = context as u64;
    for (known, device) in &KNOWN {
        match known.load(Relaxed) {
            0 => break,
            other if other == context => {
                let device = device.load(Acquire);
                if device > 0 {
                    return Some(DeviceTarget { context, device: device as usize - 1 });
                }
            }
            _ => {}
        }
    }
    look_up(guard, context)
}

#[cold]
fn look_up(guard: &ProcessGuard, context: u64) -> Option<DeviceTarget> {
    let mut number: c_int = 0;
    // SAFETY: a number is written.
    if unsafe { own_calls::cuCtxGetDevice(&raw mut number) } != SUCCESS {
        guard.ledger.warn(flag::MISSING_CALL);
        return None;
    }
    let device = of_number(guard, number);
    note_context(guard, context, device);
    let device = device?;
    for (known, place) in &KNOWN {
        match known.compare_exchange(0, context, AcqRel, Acquire) {
            Ok(_) => {
                place.store(device as u32 + 1, Release);
                break;
            }
            Err(other) if other == context => {
                place.store(device as u32 + 1, Release);
                break;
            }
            Err(_) => {}
        }
    }
    Some(DeviceTarget { context, device })
}

/// From now on the driver is asked which context is current.
pub(super) fn ask_from_now_on(guard: &ProcessGuard) {
    guard.single_context.store(ASK, Release);
}

/// Forgets a context: another may get its address.
pub(super) fn forget(guard: &ProcessGuard, context: u64) {
    ask_from_now_on(guard);
    for (known, place) in &KNOWN {
        if known.load(Acquire) == context {
            // The address stays as a mark that the search goes on behind it.
            place.store(0, Release);
        }
    }
}

/// The place of the device that this process knows by this number.
pub(super) fn of_number(guard: &ProcessGuard, number: c_int) -> Option<usize> {
    let known = BY_NUMBER.get(usize::try_from(number).ok()?)?;
    match known.load(Acquire) {
        0 => {
            let place = claim(guard, number)?;
            known.store(place as u32 + 1, Release);
            Some(place)
        }
        place => Some(place as usize - 1),
    }
}

/// This process's number of a device.
pub(super) fn number_of(place: usize) -> Option<c_int> {
    let found = BY_NUMBER.iter().position(|known| known.load(Acquire) as usize == place + 1)?;
    c_int::try_from(found).ok()
}

/// The place of the device with this UUID, if the tree has used it.
pub(super) fn of_uuid(guard: &ProcessGuard, uuid: [u64; 2]) -> Option<usize> {
    guard.ledger.devices.iter().position(|device| {
        device.state.load(Acquire) == 2
            && device.uuid.iter().zip(uuid).all(|(a, b)| a.load(Relaxed) == b)
    })
}

fn claim(guard: &ProcessGuard, number: c_int) -> Option<usize> {
    let mut bytes = [0u8; 16];
    // SAFETY: sixteen bytes are written.
    if unsafe { own_calls::cuDeviceGetUuid(&raw mut bytes, number) } != SUCCESS {
        // Too old to have one: its number has to do.
        bytes[..4].copy_from_slice(&number.to_le_bytes());
    }
    let (head, tail) = bytes.split_at(8);
    let word = |part: &[u8]| part.iter().rev().fold(0u64, |sum, &b| sum << 8 | u64::from(b));
    let uuid = [word(head), word(tail)];
    guard.exclusively(|| {
        of_uuid(guard, uuid).or_else(|| {
            let free = |device: &LedgerDevice| device.state.load(Acquire) == 0;
            let place = guard.ledger.devices.iter().position(free)?;
            fill(guard, &guard.ledger.devices[place], number, uuid);
            Some(place)
        })
    })
}

fn fill(guard: &ProcessGuard, device: &LedgerDevice, number: c_int, uuid: [u64; 2]) {
    const INTEGRATED: c_int = 18;
    let (mut integrated, mut total) = (0, 0);
    // SAFETY: numbers are written.
    unsafe {
        own_calls::cuDeviceGetAttribute(&raw mut integrated, INTEGRATED, number);
        own_calls::cuDeviceTotalMem_v2(&raw mut total, number);
    }
    let own = guard.ledger.budgets.get(number.unsigned_abs() as usize);
    let budget = match own.map_or(0, |budget| budget.load(Relaxed)) {
        0 => guard.ledger.default_budget.load(Relaxed),
        own => own,
    };
    let most = (integrated == 1 && budget != NO_LIMIT).then(|| system_memory::most(guard.ledger));
    let budget = most.flatten().map_or(budget, |most| budget.min(most));
    device.uuid.iter().zip(uuid).for_each(|(to, from)| to.store(from, Relaxed));
    device.ordinal.store(number.unsigned_abs(), Relaxed);
    device.integrated.store(u32::from(integrated == 1), Relaxed);
    device.total.store(total as u64, Relaxed);
    device.budget.store(budget, Relaxed);
    device.baseline.store(u64::MAX, Relaxed);
    device.context.store(u64::MAX, Relaxed);
    device.state.store(2, Release);
}
