//! Stream-ordered memory: cuMemAllocAsync and pools.
//!
//! What counts is what a pool has *reserved*: it takes memory from the device in large steps
//! and keeps what is freed. So a pool is charged its reservation, which the driver tells, and
//! the blocks inside are listed without a charge. A request first reserves the most that the
//! pool may grow by; when the driver has answered, the charge becomes what the pool says. If
//! the largest step does not fit, but the pool has room inside for the request, most of the
//! reserve may be used: the room may be in pieces, and then the pool grows by a step all the
//! same.
//!
//! Pools shrink when streams are waited for, so their figures are read again then, and
//! before anything is refused.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use super::devices::{self, DeviceTarget};
use super::physical::AllocationProperties;
use super::track::{AllocationRequest, record_block};
use super::{DriverCode, OUT_OF_MEMORY, OpaqueHandle, Pointer, SUCCESS, own_calls};
use crate::attach::{POOL_LOCKS, ProcessGuard};
use crate::ledger::flag;
use crate::lock::ThreadLock;
use crate::log::{GuardMemoryKind, GuardOp, NewEvent};
use crate::table::{BlockClass, DriverResource, ResourceClass, ResourceEntry};

/// The step by which pools take memory from a device.
const STEP: u64 = 32 << 20;
const RESERVED: i32 = 5;
const USED: i32 = 7;

/// Whether this process uses pools at all: what waits for streams looks here first.
static ANY: AtomicU32 = AtomicU32::new(0);

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn alloc(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let Some(place) = devices::current(guard).filter(|_| !out.is_null()) else { return call() };
    let mut pool = core::ptr::null_mut();
    let number = devices::number_of(place.device);
    // SAFETY: a handle is written.
    let found =
        number.is_some_and(|n| unsafe { own_calls::cuDeviceGetMemPool(&raw mut pool, n) } == 0);
    if !found {
        guard.ledger.warn(flag::MISSING_CALL);
        return call();
    }
    // SAFETY: handed on.
    unsafe { alloc_from_pool(guard, out, bytes as u64, pool, place, stream, call) }
}

pub(super) unsafe fn alloc_from(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    pool: OpaqueHandle,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let current = devices::current(guard).filter(|_| !out.is_null() && !pool.is_null());
    let Some(place) = current else { return call() };
    // SAFETY: handed on.
    unsafe { alloc_from_pool(guard, out, bytes as u64, pool, place, stream, call) }
}

unsafe fn alloc_from_pool(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: u64,
    pool: OpaqueHandle,
    mut place: DeviceTarget,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // One at a time: what a pool grows by while a call is under way is that call's.
    let _turn = pool_lock(guard, pool).lock();
    let Some(device) = known(guard, pool, place.device) else { return call() };
    place.device = device;
    // While a stream records, nothing is allocated: the graph does it when it is launched.
    // What could never fit is refused now, where the program expects it.
    if is_capturing(stream) {
        let line =
            guard.ledger.devices[place.device].allocation_limit(guard.ledger.driver_reserve());
        if bytes <= line {
            return call();
        }
        guard.ledger.refuse_uncharged(guard.process, place.device, bytes);
        return refused(guard, place.device, bytes);
    }
    super::track::verify_limit_once(guard, place.device);
    guard.ledger.begin_allocation(guard.process);
    let Some(ahead) = reserve(guard, place.device, pool, bytes) else {
        guard.ledger.refuse(guard.process, place.device, bytes);
        return refused(guard, place.device, bytes);
    };
    let code = call();
    let charged = refresh(guard, pool, ahead);
    if code == SUCCESS {
        // SAFETY: the driver has written it.
        record_block(guard, place, &request(bytes, stream), unsafe { *out }, 0, charged);
    } else {
        guard.ledger.fail_allocation(guard.process, place.device, 0);
    }
    code
}

fn request(bytes: u64, stream: OpaqueHandle) -> AllocationRequest {
    let (kind, place, stream) = (GuardMemoryKind::Pooled, BlockClass::Pointer, stream as u64);
    AllocationRequest { kind, place, bytes, stream }
}

fn refused(guard: &ProcessGuard, device: usize, bytes: u64) -> DriverCode {
    guard.log_event(request(bytes, core::ptr::null_mut()).event(GuardOp::Refuse, device, 0));
    OUT_OF_MEMORY
}

fn is_capturing(stream: OpaqueHandle) -> bool {
    let mut status = 0;
    // SAFETY: a number is written; a stream that is none is refused.
    unsafe { own_calls::cuStreamIsCapturing(stream, &raw mut status) == SUCCESS && status == 1 }
}

/// Charges the most that a pool may grow by for a request; how much that is.
fn reserve(guard: &ProcessGuard, device: usize, pool: OpaqueHandle, bytes: u64) -> Option<u64> {
    let step = bytes.checked_next_multiple_of(STEP)?;
    let try_once = || {
        if guard.ledger.reserve_ahead(guard.process, device, step) {
            return Some(step);
        }
        // The pool may serve it from what it has, or in pieces that do not fit together take
        // a step more: of what is held back for the driver, all but a quarter, as the driver
        // takes a little that it tells nobody of.
        let (reserved, used) = figure(pool, RESERVED).zip(figure(pool, USED))?;
        let room = reserved.saturating_sub(used) >= bytes;
        let left = guard.ledger.driver_reserve() / 4;
        (room && guard.ledger.reserve_ahead_within(guard.process, device, step, left))
            .then_some(step)
    };
    try_once()
        .or_else(|| {
            refresh(guard, pool, 0);
            refresh_others(guard);
            guard.reclaim();
            try_once()
        })
        .or_else(|| {
            // Unused room of the pool, in pieces too small for this request, goes back.
            // SAFETY: the pool is the program's; what is in use stays.
            unsafe { own_calls::cuMemPoolTrimTo(pool, 0) };
            refresh(guard, pool, 0);
            try_once()
        })
}

/// A figure of a pool's.
fn figure(pool: OpaqueHandle, which: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: a number is written.
    let code = own_calls::outside_capture(|| unsafe {
        own_calls::cuMemPoolGetAttribute(pool, which, &raw mut value)
    });
    (code == SUCCESS).then_some(value)
}

/// The device that a pool is charged to; nothing for one that is not ours to count. One that is
/// new is a device's own pool.
fn known(guard: &ProcessGuard, pool: OpaqueHandle, device: usize) -> Option<usize> {
    ANY.store(1, Relaxed);
    match guard.table.get(ResourceClass::Pool, pool as u64) {
        Some(ResourceEntry { thing: DriverResource::Pool { device, reserved }, .. }) => {
            reserved.map(|_| device.into())
        }
        _ => {
            put(guard, pool, Some(device));
            Some(device)
        }
    }
}

/// Keeps a pool; without a device it is not ours to count.
fn put(guard: &ProcessGuard, pool: OpaqueHandle, device: Option<usize>) {
    let reserved = device.map(|_| 0);
    let thing = DriverResource::Pool { device: device.unwrap_or(0) as u8, reserved };
    if guard.table.put(ResourceEntry { key: pool as u64, thing }).is_err() {
        guard.ledger.warn(flag::TABLE_FULL);
    }
}

/// Sets a pool's charge to what it has reserved, and lets go of what was charged `ahead`;
/// what the device is charged then.
fn refresh(guard: &ProcessGuard, pool: OpaqueHandle, ahead: u64) -> u64 {
    let reserved = figure(pool, RESERVED);
    let key = pool as u64;
    let before = guard.table.change(ResourceClass::Pool, key, |thing| {
        if let DriverResource::Pool { reserved: Some(charge), .. } = thing {
            *charge = reserved.unwrap_or(*charge);
        }
    });
    let Some(DriverResource::Pool { device, reserved: Some(before) }) = before else { return 0 };
    let device = usize::from(device);
    let now = reserved.unwrap_or(before);
    let at = match now.cmp(&before) {
        Greater => {
            log_change(guard, GuardOp::Charge, GuardMemoryKind::Pool, device, key, now - before)
        }
        Less => {
            log_change(guard, GuardOp::Discharge, GuardMemoryKind::Pool, device, key, before - now)
        }
        Equal => crate::sys::now(),
    };
    guard.ledger.recharge(guard.process, device, before + ahead, now, at);
    guard.ledger.devices[device].used.load(Relaxed)
}

/// Reads every pool of this process again, but those that are allocated from just now: they
/// are read when that is done.
fn refresh_others(guard: &ProcessGuard) {
    let mut pools = [0u64; 64];
    let mut count = 0;
    guard.table.search(|entry| {
        if let (DriverResource::Pool { reserved: Some(_), .. }, Some(place)) =
            (entry.thing, pools.get_mut(count))
        {
            *place = entry.key;
            count += 1;
        }
        None::<()>
    });
    for pool in &pools[..count] {
        let pool = *pool as OpaqueHandle;
        if let Some(_turn) = pool_lock(guard, pool).try_lock() {
            refresh(guard, pool, 0);
        }
    }
}

/// The right to allocate from a pool, or to read its figures: between the two there must be
/// nobody else. The driver serves one at a time anyway.
fn pool_lock(guard: &ProcessGuard, pool: OpaqueHandle) -> &ThreadLock {
    &guard.pool_locks[(pool as usize >> 4 ^ pool as usize >> 12) % POOL_LOCKS]
}

/// Notes a change of what the driver holds by itself.
pub(super) fn log_change(
    guard: &ProcessGuard,
    op: GuardOp,
    kind: GuardMemoryKind,
    device: usize,
    key: u64,
    bytes: u64,
) -> u64 {
    let device = device as u8;
    guard.log_event(NewEvent { op, kind, device, tag: 0, key, bytes, stream: 0, stack: 0 })
}

pub(super) unsafe fn free(
    guard: &ProcessGuard,
    pointer: Pointer,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    super::track::free(guard, ResourceClass::Pointer, pointer, stream as u64, call)
}

pub(super) unsafe fn create(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    how: *const AllocationProperties,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has read and written.
    if let (SUCCESS, Some(how), Some(pool)) = unsafe { (code, how.as_ref(), out.as_ref()) } {
        put(guard, *pool, how.device(guard));
    }
    code
}

pub(super) unsafe fn import(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    _: OpaqueHandle,
    _: i32,
    _: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(pool)) = (code, unsafe { out.as_ref() }) {
        // It is counted where it was made.
        put(guard, *pool, None);
    }
    code
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    pool: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let _turn = pool_lock(guard, pool).lock();
    refresh(guard, pool, 0);
    let taken = guard.table.take(ResourceClass::Pool, pool as u64);
    let code = call();
    let Some(entry) = taken else { return code };
    match (entry.thing, code) {
        (DriverResource::Pool { device, reserved: Some(reserved @ 1..) }, SUCCESS) => {
            let device = device.into();
            let at = log_change(
                guard,
                GuardOp::Discharge,
                GuardMemoryKind::Pool,
                device,
                entry.key,
                reserved,
            );
            guard.ledger.recharge(guard.process, device, reserved, 0, at);
        }
        (_, SUCCESS) => {}
        _ => _ = guard.table.put(entry),
    }
    code
}

pub(super) unsafe fn trim(
    guard: &ProcessGuard,
    pool: OpaqueHandle,
    _: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let _turn = pool_lock(guard, pool).lock();
    let code = call();
    refresh(guard, pool, 0);
    code
}

pub(super) unsafe fn synchronize(
    guard: &ProcessGuard,
    _: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: takes no pointer.
    unsafe { synchronize_all(guard, call) }
}

pub(super) unsafe fn synchronize_all(
    guard: &ProcessGuard,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if ANY.load(Relaxed) != 0 {
        refresh_others(guard);
    }
    code
}
