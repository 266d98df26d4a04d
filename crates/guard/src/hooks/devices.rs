//! Which device a call concerns, and its index in the ledger.
//!
//! Each process numbers devices in its own way (`CUDA_VISIBLE_DEVICES`), so the ledger identifies
//! a device by its UUID. The guard remembers the device of each context: asking the driver every
//! time would cost more than the counting.
//!
//! In the common case it does not even ask which context is current: in a process that sees one
//! device and has only ever had one known context, it can be no other. (The driver refuses a
//! thread without a context, and the charge is taken back.) After a second context, a second
//! device or the end of the only context, the guard asks every time.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::{OpaqueHandle, SUCCESS, own_calls};
use crate::attach::ProcessGuard;
use crate::ledger::{DEVICES, LedgerDevice, NO_LIMIT, UNKNOWN_PLACE, UNUSED_PLACE, flag};
use crate::system_memory;

/// The device that an allocation is made on, and its context.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceTarget {
    pub(super) context: u64,
    pub(super) device: usize,
}

const CONTEXTS: usize = 32;
/// Contexts, and the index of their device plus one.
static KNOWN: [(AtomicU64, AtomicU32); CONTEXTS] =
    [const { (AtomicU64::new(0), AtomicU32::new(0)) }; CONTEXTS];
/// Indices by this process's numbers, plus one.
static BY_NUMBER: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// In [`ProcessGuard::single_context`]: no context yet, and that the driver must be asked. Between them an
/// address, with the index of its device in the highest four bits.
const NO_CONTEXT: u64 = 0;
const ASK: u64 = u64::MAX;
const INDEX_SHIFT: u32 = 60;
const _: () = assert!(DEVICES <= 1 << (u64::BITS - INDEX_SHIFT), "an index must fit");

/// Notes a context that was made, retained or found current, before any call can use it.
pub(super) fn note_context(guard: &ProcessGuard, context: u64, device: Option<usize>) {
    let sole = match device {
        Some(device) if context >> INDEX_SHIFT == 0 && has_single_device() => {
            (device as u64) << INDEX_SHIFT | context
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

/// Whether this process sees exactly one device.
pub(super) fn has_single_device() -> bool {
    let mut count = 0;
    // SAFETY: a number is written.
    unsafe { own_calls::cuDeviceGetCount(&raw mut count) == SUCCESS && count == 1 }
}

/// The current context and its device; `None` where the driver says that there is no context.
#[inline]
pub(super) fn current(guard: &ProcessGuard) -> Option<DeviceTarget> {
    match guard.single_context.load(Acquire) {
        NO_CONTEXT | ASK => ask_driver(guard),
        sole => {
            let context = sole & ((1 << INDEX_SHIFT) - 1);
            Some(DeviceTarget { context, device: (sole >> INDEX_SHIFT) as usize })
        }
    }
}

fn ask_driver(guard: &ProcessGuard) -> Option<DeviceTarget> {
    let mut context: OpaqueHandle = core::ptr::null_mut();
    // A driver that fails once is asked again: without an answer the call would not be counted.
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
    for (known, index) in &KNOWN {
        let taken = known.compare_exchange(0, context, AcqRel, Acquire);
        if taken.is_ok() || taken == Err(context) {
            index.store(device as u32 + 1, Release);
            break;
        }
    }
    Some(DeviceTarget { context, device })
}

/// Makes the guard ask the driver, from now on, which context is current.
pub(super) fn ask_from_now_on(guard: &ProcessGuard) {
    guard.single_context.store(ASK, Release);
}

/// Forgets a context that was destroyed: another may get its address.
pub(super) fn forget(guard: &ProcessGuard, context: u64) {
    ask_from_now_on(guard);
    for (known, index) in &KNOWN {
        if known.load(Acquire) == context {
            // The address stays, so that a search goes on behind it.
            index.store(0, Release);
        }
    }
}

/// The index in the ledger of the device that this process knows by this number.
pub(super) fn of_number(guard: &ProcessGuard, number: c_int) -> Option<usize> {
    let known = BY_NUMBER.get(usize::try_from(number).ok()?)?;
    match known.load(Acquire) {
        0 => {
            let index = claim(guard, number)?;
            known.store(index as u32 + 1, Release);
            Some(index)
        }
        index => Some(index as usize - 1),
    }
}

/// This process's number of a device, by its index.
pub(super) fn number_of(index: usize) -> Option<c_int> {
    let found = BY_NUMBER.iter().position(|known| known.load(Acquire) as usize == index + 1)?;
    c_int::try_from(found).ok()
}

/// The index of the device with this UUID, if a process of the run has used it.
pub(super) fn of_uuid(guard: &ProcessGuard, uuid: [u64; 2]) -> Option<usize> {
    guard.ledger.devices.iter().position(|device| {
        device.state.load(Acquire) == 2
            && device.uuid.iter().zip(uuid).all(|(a, b)| a.load(Relaxed) == b)
    })
}

/// A UUID as the ledger keeps it.
pub(super) fn uuid_words(bytes: [u8; 16]) -> [u64; 2] {
    let whole = u128::from_le_bytes(bytes);
    [whole as u64, (whole >> 64) as u64]
}

/// The UUID of the device that this process knows by this number.
pub(super) fn uuid_of(number: c_int) -> Option<[u64; 2]> {
    let mut bytes = [0u8; 16];
    // SAFETY: sixteen bytes are written.
    let code = unsafe { own_calls::cuDeviceGetUuid(&raw mut bytes, number) };
    (code == SUCCESS).then(|| uuid_words(bytes))
}

/// Finds the device with this number in the ledger, or adds it.
fn claim(guard: &ProcessGuard, number: c_int) -> Option<usize> {
    // A driver too old to have UUIDs: the number takes its place.
    let uuid = uuid_of(number).unwrap_or([number.unsigned_abs().into(), 0]);
    guard.exclusively(&guard.ledger.devices_lock, || {
        of_uuid(guard, uuid).or_else(|| {
            // Not two for one place, even if the wait for the lock was given up.
            let claimed = |device: &LedgerDevice| {
                device.state.compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
            };
            let index = guard.ledger.devices.iter().position(claimed)?;
            fill(guard, &guard.ledger.devices[index], number, uuid);
            Some(index)
        })
    })
}

/// The place in the ledger of the device that this process knows by this number, for `client`;
/// or one of the ledger's two answers below zero.
#[cfg_attr(preload, unsafe(no_mangle))]
pub(crate) extern "C" fn plimsoll_guard_device(number: u32) -> i32 {
    let known = BY_NUMBER.get(number as usize).map_or(0, |known| known.load(Acquire));
    if known > 0 {
        return known as i32 - 1;
    }
    let uuid = c_int::try_from(number).ok().and_then(uuid_of);
    let Some((guard, uuid)) = crate::attach::attached().zip(uuid) else { return UNKNOWN_PLACE };
    of_uuid(guard, uuid).map_or(UNUSED_PLACE, |place| place as i32)
}

fn fill(guard: &ProcessGuard, device: &LedgerDevice, number: c_int, uuid: [u64; 2]) {
    const INTEGRATED: c_int = 18;
    let (mut integrated, mut total) = (0, 0);
    // SAFETY: numbers are written.
    unsafe {
        own_calls::cuDeviceGetAttribute(&raw mut integrated, INTEGRATED, number);
        own_calls::cuDeviceTotalMem_v2(&raw mut total, number);
    }
    let budget = guard.ledger.limit_of_number(number.unsigned_abs() as usize);
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
