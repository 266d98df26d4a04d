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

use super::devices::{self, Target};
use super::physical::Properties;
use super::track::{Wish, keep};
use super::{Code, Handle, OUT_OF_MEMORY, Pointer, SUCCESS, ask};
use crate::here::{Here, TURNS};
use crate::ledger::flag;
use crate::lock::Lock;
use crate::log::{Event, Kind, Op};
use crate::table::{Class, Entry, Place, Thing};

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
    here: &Here,
    out: *mut Pointer,
    bytes: usize,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(place) = devices::current(here).filter(|_| !out.is_null()) else { return call() };
    let mut pool = core::ptr::null_mut();
    let number = devices::number_of(place.device);
    // SAFETY: a handle is written.
    let found = number.is_some_and(|n| unsafe { ask::cuDeviceGetMemPool(&raw mut pool, n) } == 0);
    if !found {
        here.ledger.warn(flag::MISSING_CALL);
        return call();
    }
    // SAFETY: handed on.
    unsafe { from(here, out, bytes as u64, pool, place, stream, call) }
}

pub(super) unsafe fn alloc_from(
    here: &Here,
    out: *mut Pointer,
    bytes: usize,
    pool: Handle,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let current = devices::current(here).filter(|_| !out.is_null() && !pool.is_null());
    let Some(place) = current else { return call() };
    // SAFETY: handed on.
    unsafe { from(here, out, bytes as u64, pool, place, stream, call) }
}

unsafe fn from(
    here: &Here,
    out: *mut Pointer,
    bytes: u64,
    pool: Handle,
    mut place: Target,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    // One at a time: what a pool grows by while a call is under way is that call's.
    let _turn = turn(here, pool).hold();
    let Some(device) = known(here, pool, place.device) else { return call() };
    place.device = device;
    // While a stream records, nothing is allocated: the graph does it when it is launched.
    // What could never fit is refused now, where the program expects it.
    if is_capturing(stream) {
        let line = here.ledger.devices[place.device].line(here.ledger.held_back());
        if bytes <= line {
            return call();
        }
        here.ledger.refuse_now(here.process, place.device, bytes);
        return refused(here, place.device, bytes);
    }
    super::track::try_limit(here, place.device);
    here.ledger.begin(here.process);
    let Some(ahead) = reserve(here, place.device, pool, bytes) else {
        here.ledger.refuse(here.process, place.device, bytes);
        return refused(here, place.device, bytes);
    };
    let code = call();
    let charged = refresh(here, pool, ahead);
    if code == SUCCESS {
        // SAFETY: the driver has written it.
        keep(here, place, &wish(bytes, stream), unsafe { *out }, 0, charged);
    } else {
        here.ledger.undo(here.process, place.device, 0);
    }
    code
}

fn wish(bytes: u64, stream: Handle) -> Wish {
    let (kind, place, stream) = (Kind::Pooled, Place::Pointer, stream as u64);
    Wish { kind, place, bytes, stream }
}

fn refused(here: &Here, device: usize, bytes: u64) -> Code {
    here.note(wish(bytes, core::ptr::null_mut()).event(Op::Refuse, device, 0));
    OUT_OF_MEMORY
}

fn is_capturing(stream: Handle) -> bool {
    let mut status = 0;
    // SAFETY: a number is written; a stream that is none is refused.
    unsafe { ask::cuStreamIsCapturing(stream, &raw mut status) == SUCCESS && status == 1 }
}

/// Charges the most that a pool may grow by for a request; how much that is.
fn reserve(here: &Here, device: usize, pool: Handle, bytes: u64) -> Option<u64> {
    let step = bytes.checked_next_multiple_of(STEP)?;
    let try_once = || {
        if here.ledger.hold(here.process, device, step) {
            return Some(step);
        }
        // The pool may serve it from what it has, or in pieces that do not fit together take
        // a step more: of what is held back for the driver, all but a quarter, as the driver
        // takes a little that it tells nobody of.
        let (reserved, used) = figure(pool, RESERVED).zip(figure(pool, USED))?;
        let room = reserved.saturating_sub(used) >= bytes;
        let left = here.ledger.held_back() / 4;
        (room && here.ledger.hold_below(here.process, device, step, left)).then_some(step)
    };
    try_once()
        .or_else(|| {
            refresh(here, pool, 0);
            refresh_others(here);
            here.reclaim();
            try_once()
        })
        .or_else(|| {
            // Unused room of the pool, in pieces too small for this request, goes back.
            // SAFETY: the pool is the program's; what is in use stays.
            unsafe { ask::cuMemPoolTrimTo(pool, 0) };
            refresh(here, pool, 0);
            try_once()
        })
}

/// A figure of a pool's.
fn figure(pool: Handle, which: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: a number is written.
    let code = ask::unseen(|| unsafe { ask::cuMemPoolGetAttribute(pool, which, &raw mut value) });
    (code == SUCCESS).then_some(value)
}

/// The device that a pool is charged to; nothing for one that is not ours to count. One that is
/// new is a device's own pool.
fn known(here: &Here, pool: Handle, device: usize) -> Option<usize> {
    ANY.store(1, Relaxed);
    match here.table.get(Class::Pool, pool as u64) {
        Some(Entry { thing: Thing::Pool { device, reserved }, .. }) => {
            reserved.map(|_| device.into())
        }
        _ => {
            put(here, pool, Some(device));
            Some(device)
        }
    }
}

/// Keeps a pool; without a device it is not ours to count.
fn put(here: &Here, pool: Handle, device: Option<usize>) {
    let reserved = device.map(|_| 0);
    let thing = Thing::Pool { device: device.unwrap_or(0) as u8, reserved };
    if here.table.put(Entry { key: pool as u64, thing }).is_err() {
        here.ledger.warn(flag::TABLE_FULL);
    }
}

/// Sets a pool's charge to what it has reserved, and lets go of what was charged `ahead`;
/// what the device is charged then.
fn refresh(here: &Here, pool: Handle, ahead: u64) -> u64 {
    let reserved = figure(pool, RESERVED);
    let key = pool as u64;
    let before = here.table.change(Class::Pool, key, |thing| {
        if let Thing::Pool { reserved: Some(charge), .. } = thing {
            *charge = reserved.unwrap_or(*charge);
        }
    });
    let Some(Thing::Pool { device, reserved: Some(before) }) = before else { return 0 };
    let device = usize::from(device);
    let now = reserved.unwrap_or(before);
    let at = match now.cmp(&before) {
        Greater => note(here, Op::Charge, Kind::Pool, device, key, now - before),
        Less => note(here, Op::Discharge, Kind::Pool, device, key, before - now),
        Equal => crate::sys::now(),
    };
    here.ledger.recharge(here.process, device, before + ahead, now, at);
    here.ledger.devices[device].used.load(Relaxed)
}

/// Reads every pool of this process again, but those that are allocated from just now: they
/// are read when that is done.
fn refresh_others(here: &Here) {
    let mut pools = [0u64; 64];
    let mut count = 0;
    here.table.search(|entry| {
        if let (Thing::Pool { reserved: Some(_), .. }, Some(place)) =
            (entry.thing, pools.get_mut(count))
        {
            *place = entry.key;
            count += 1;
        }
        None::<()>
    });
    for pool in &pools[..count] {
        let pool = *pool as Handle;
        if let Some(_turn) = turn(here, pool).try_hold() {
            refresh(here, pool, 0);
        }
    }
}

/// The right to allocate from a pool, or to read its figures: between the two there must be
/// nobody else. The driver serves one at a time anyway.
fn turn(here: &Here, pool: Handle) -> &Lock {
    &here.turns[(pool as usize >> 4 ^ pool as usize >> 12) % TURNS]
}

/// Notes a change of what the driver holds by itself.
pub(super) fn note(here: &Here, op: Op, kind: Kind, device: usize, key: u64, bytes: u64) -> u64 {
    let device = device as u8;
    here.note(Event { op, kind, device, tag: 0, key, bytes, stream: 0, stack: 0 })
}

pub(super) unsafe fn free(
    here: &Here,
    pointer: Pointer,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    super::track::free(here, Class::Pointer, pointer, stream as u64, call)
}

pub(super) unsafe fn create(
    here: &Here,
    out: *mut Handle,
    how: *const Properties,
    call: impl FnOnce() -> Code,
) -> Code {
    let code = call();
    // SAFETY: null, or what the driver has read and written.
    if let (SUCCESS, Some(how), Some(pool)) = unsafe { (code, how.as_ref(), out.as_ref()) } {
        put(here, *pool, how.device(here));
    }
    code
}

pub(super) unsafe fn import(
    here: &Here,
    out: *mut Handle,
    _: Handle,
    _: i32,
    _: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    let code = call();
    // SAFETY: null, or what the driver has written.
    if let (SUCCESS, Some(pool)) = (code, unsafe { out.as_ref() }) {
        // It is counted where it was made.
        put(here, *pool, None);
    }
    code
}

pub(super) unsafe fn destroy(here: &Here, pool: Handle, call: impl FnOnce() -> Code) -> Code {
    let _turn = turn(here, pool).hold();
    refresh(here, pool, 0);
    let taken = here.table.take(Class::Pool, pool as u64);
    let code = call();
    let Some(entry) = taken else { return code };
    match (entry.thing, code) {
        (Thing::Pool { device, reserved: Some(reserved @ 1..) }, SUCCESS) => {
            let device = device.into();
            let at = note(here, Op::Discharge, Kind::Pool, device, entry.key, reserved);
            here.ledger.recharge(here.process, device, reserved, 0, at);
        }
        (_, SUCCESS) => {}
        _ => _ = here.table.put(entry),
    }
    code
}

pub(super) unsafe fn trim(
    here: &Here,
    pool: Handle,
    _: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    let _turn = turn(here, pool).hold();
    let code = call();
    refresh(here, pool, 0);
    code
}

pub(super) unsafe fn synchronize(here: &Here, _: Handle, call: impl FnOnce() -> Code) -> Code {
    // SAFETY: takes no pointer.
    unsafe { synchronize_all(here, call) }
}

pub(super) unsafe fn synchronize_all(here: &Here, call: impl FnOnce() -> Code) -> Code {
    let code = call();
    if ANY.load(Relaxed) != 0 {
        refresh_others(here);
    }
    code
}
