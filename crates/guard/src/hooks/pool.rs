//! Stream-ordered memory: cuMemAllocAsync and pools.
//!
//! What counts is what a pool has *reserved*: it takes memory from the device in large steps and
//! keeps what is freed. So a pool is charged its reservation, which the driver reports, and the
//! blocks inside it are recorded without a charge. Before a request goes to the driver, the guard
//! charges the most that the pool may grow by; when the driver has answered, the charge becomes
//! the pool's reservation. If the largest step does not fit but the pool has room inside for the
//! request, the charge may use most of the reserve: the room may be in pieces, and then the pool
//! grows by a step all the same.
//!
//! Pools shrink when a program waits for streams, so their reservations are read again then, and
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
use crate::log::{GuardMemoryKind, GuardOp};
use crate::table::{BlockClass, DriverResource, ResourceClass, ResourceEntry};

/// The step by which pools take memory from a device.
const STEP: u64 = 32 << 20;
const RESERVED: i32 = 5;
const USED: i32 = 7;

/// Whether this process uses pools at all; read by every call that waits for streams.
static ANY: AtomicU32 = AtomicU32::new(0);

/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn alloc(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: usize,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let Some(target) = devices::current(guard).filter(|_| !out.is_null()) else { return call() };
    let mut pool = core::ptr::null_mut();
    let number = devices::number_of(target.device);
    // SAFETY: a handle is written.
    let found =
        number.is_some_and(|n| unsafe { own_calls::cuDeviceGetMemPool(&raw mut pool, n) } == 0);
    if !found {
        guard.ledger.warn(flag::MISSING_CALL);
        return call();
    }
    // SAFETY: the same contract.
    unsafe { alloc_from_pool(guard, out, bytes as u64, pool, target, stream, call) }
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
    let Some(target) = current else { return call() };
    // SAFETY: the same contract.
    unsafe { alloc_from_pool(guard, out, bytes as u64, pool, target, stream, call) }
}

unsafe fn alloc_from_pool(
    guard: &ProcessGuard,
    out: *mut Pointer,
    bytes: u64,
    pool: OpaqueHandle,
    mut target: DeviceTarget,
    stream: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // One at a time: what a pool grows by during a call is then due to that call.
    let _lock = pool_lock(guard, pool).lock();
    let Some(device) = known(guard, pool, target.device) else { return call() };
    target.device = device;
    // While a stream captures, nothing is allocated: the graph allocates when it is launched. A
    // request that could never fit is refused now, where the program expects it.
    if is_capturing(stream) {
        let limit =
            guard.ledger.devices[target.device].allocation_limit(guard.ledger.driver_reserve());
        if bytes <= limit {
            return call();
        }
        guard.ledger.refuse_uncharged(guard.process, target.device, bytes);
        return refused(guard, target.device, bytes);
    }
    super::track::verify_limit_once(guard, target.device);
    guard.ledger.begin_allocation(guard.process);
    let Some(ahead) = reserve(guard, target.device, pool, bytes) else {
        guard.ledger.refuse(guard.process, target.device, bytes);
        return refused(guard, target.device, bytes);
    };
    let code = call();
    let charged = refresh(guard, pool, ahead).unwrap_or_else(|| {
        guard.ledger.recharge(guard.process, target.device, ahead, 0, crate::sys::now());
        0
    });
    if code == SUCCESS {
        // SAFETY: the driver has written it.
        record_block(guard, target, &request(bytes, stream), unsafe { *out }, 0, charged);
    } else {
        guard.ledger.fail_allocation(guard.process, target.device, 0);
    }
    code
}

fn request(bytes: u64, stream: OpaqueHandle) -> AllocationRequest {
    let (kind, class, stream) = (GuardMemoryKind::Pooled, BlockClass::Pointer, stream as u64);
    AllocationRequest { kind, class, bytes, stream }
}

fn refused(guard: &ProcessGuard, device: usize, bytes: u64) -> DriverCode {
    guard.log_event(request(bytes, core::ptr::null_mut()).event(GuardOp::Refuse, device, 0));
    OUT_OF_MEMORY
}

fn is_capturing(stream: OpaqueHandle) -> bool {
    let mut status = 0;
    // SAFETY: a number is written; the driver refuses an invalid stream.
    unsafe { own_calls::cuStreamIsCapturing(stream, &raw mut status) == SUCCESS && status == 1 }
}

/// Charges the most that a pool may grow by for a request, and returns that.
fn reserve(guard: &ProcessGuard, device: usize, pool: OpaqueHandle, bytes: u64) -> Option<u64> {
    let step = bytes.checked_next_multiple_of(STEP)?;
    let try_once = || {
        if guard.ledger.reserve_ahead(guard.process, device, step) {
            return Some(step);
        }
        // The pool may serve the request from what it has, or, if its room is in pieces, grow by
        // a step. That step may use all but a quarter of the reserve; the quarter stays, as the
        // driver takes a little that it reports nowhere.
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
            // Returns the pool's unused room to the device, which is in pieces too small for this
            // request.
            // SAFETY: the pool is valid; memory in use stays.
            unsafe { own_calls::cuMemPoolTrimTo(pool, 0) };
            refresh(guard, pool, 0);
            try_once()
        })
}

/// An attribute of a pool.
fn figure(pool: OpaqueHandle, which: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: a number is written.
    let code = own_calls::outside_capture(|| unsafe {
        own_calls::cuMemPoolGetAttribute(pool, which, &raw mut value)
    });
    (code == SUCCESS).then_some(value)
}

/// The device that a pool is charged to; `None` for a pool that is not counted here. A pool that
/// is not in the table yet is a device's default pool.
fn known(guard: &ProcessGuard, pool: OpaqueHandle, device: usize) -> Option<usize> {
    ANY.store(1, Relaxed);
    match guard.table.get(ResourceClass::Pool, pool as u64) {
        Some(ResourceEntry { resource: DriverResource::Pool { device, reserved }, .. }) => {
            reserved.map(|_| device.into())
        }
        _ => {
            put(guard, pool, Some(device));
            Some(device)
        }
    }
}

/// Records a pool; without a device it is not counted here.
fn put(guard: &ProcessGuard, pool: OpaqueHandle, device: Option<usize>) {
    let reserved = device.map(|_| 0);
    let resource = DriverResource::Pool { device: device.unwrap_or(0) as u8, reserved };
    if guard.table.put(ResourceEntry { key: pool as u64, resource }).is_err() {
        guard.ledger.warn(flag::TABLE_FULL);
    }
}

/// Sets a pool's charge to what it has reserved, and takes back what was charged `ahead`. Returns
/// what the device is charged then; nothing where the table had no room for the pool.
fn refresh(guard: &ProcessGuard, pool: OpaqueHandle, ahead: u64) -> Option<u64> {
    let reserved = figure(pool, RESERVED);
    let key = pool as u64;
    let before = guard.table.change(ResourceClass::Pool, key, |resource| {
        if let DriverResource::Pool { reserved: Some(charge), .. } = resource {
            *charge = reserved.unwrap_or(*charge);
        }
    });
    let Some(DriverResource::Pool { device, reserved: Some(before) }) = before else { return None };
    let device = usize::from(device);
    let now = reserved.unwrap_or(before);
    let at = match now.cmp(&before) {
        Greater => {
            guard.log_charge(GuardOp::Charge, GuardMemoryKind::Pool, device, key, now - before)
        }
        Less => {
            guard.log_charge(GuardOp::Discharge, GuardMemoryKind::Pool, device, key, before - now)
        }
        Equal => crate::sys::now(),
    };
    guard.ledger.recharge(guard.process, device, before + ahead, now, at);
    Some(guard.ledger.devices[device].used.load(Relaxed))
}

/// Reads the reservations of this process's pools again, except of those that another thread
/// allocates from right now: that thread reads them when it is done.
fn refresh_others(guard: &ProcessGuard) {
    let mut pools = [0u64; 64];
    let mut count = 0;
    guard.table.search(|entry| {
        if let (DriverResource::Pool { reserved: Some(_), .. }, Some(slot)) =
            (entry.resource, pools.get_mut(count))
        {
            *slot = entry.key;
            count += 1;
        }
        None::<()>
    });
    for pool in &pools[..count] {
        let pool = *pool as OpaqueHandle;
        if let Some(_lock) = pool_lock(guard, pool).try_lock() {
            refresh(guard, pool, 0);
        }
    }
}

/// The lock of a pool: between reading its attributes and allocating from it, no other thread may
/// do either. The driver serves one thread at a time anyway.
fn pool_lock(guard: &ProcessGuard, pool: OpaqueHandle) -> &ThreadLock {
    &guard.pool_locks[(pool as usize >> 4 ^ pool as usize >> 12) % POOL_LOCKS]
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
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(pool)) = (code, unsafe { out.as_ref() }) {
        // The process that made the pool counts it.
        put(guard, *pool, None);
    }
    code
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    pool: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let _lock = pool_lock(guard, pool).lock();
    refresh(guard, pool, 0);
    let taken = guard.table.take(ResourceClass::Pool, pool as u64);
    let code = call();
    let Some(entry) = taken else { return code };
    match (entry.resource, code) {
        (DriverResource::Pool { device, reserved: Some(reserved @ 1..) }, SUCCESS) => {
            let device = device.into();
            let at = guard.log_charge(
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
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let _lock = pool_lock(guard, pool).lock();
    let code = call();
    refresh(guard, pool, 0);
    code
}

/// Waits for a stream or for all of them.
pub(super) unsafe fn synchronize(
    guard: &ProcessGuard,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if ANY.load(Relaxed) != 0 {
        refresh_others(guard);
    }
    code
}
