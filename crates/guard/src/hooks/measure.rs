//! What the driver takes for itself: contexts, code, local memory. The guard cannot refuse it, so
//! it measures around the calls that cause it and charges the difference. (It can refuse a
//! context: once one was made, it is known what another takes.)
//!
//! The driver reports what is free on the device. The difference around a call, less what the
//! processes of the run were charged meanwhile, is what the call took. Before the first context
//! only NVML can answer, and on unified memory, where NVML does not, the system. None of this is
//! done for an allocation.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{DriverCode, OUT_OF_MEMORY, OpaqueHandle, SUCCESS, devices, nvml, own_calls};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::log::{GuardMemoryKind, GuardOp};
use crate::sys;
use crate::table::{DriverResource, ResourceClass, ResourceEntry};

/// What is used on the current device, by any process, as its driver reports.
fn used_now() -> Option<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: two numbers are written.
    let code = own_calls::outside_capture(|| unsafe {
        own_calls::cuMemGetInfo_v2(&raw mut free, &raw mut total)
    });
    (code == SUCCESS && total > 0).then(|| total.saturating_sub(free) as u64)
}

/// What the driver reports as used and what is charged, at the same moment.
struct UsedAndCharged {
    used: u64,
    charged: u64,
}

impl UsedAndCharged {
    /// What is used and not charged.
    fn beyond(&self) -> i64 {
        self.used as i64 - self.charged as i64
    }
}

/// Reads both while no operation is under way: a block that the driver has allocated and the
/// ledger has not counted yet, or the other way round, would be taken for the driver's own.
/// `None` if the processes of the run leave no such moment.
fn read(
    guard: &ProcessGuard,
    device: usize,
    used: impl Fn() -> Option<u64>,
) -> Option<UsedAndCharged> {
    const TRIES: usize = 8;
    (0..TRIES).find_map(|_| {
        let Some(before) = guard.ledger.operations_if_idle() else {
            sys::sched_yield();
            return None;
        };
        let charged = guard.ledger.devices[device].used.load(Acquire);
        let reading = UsedAndCharged { used: used()?, charged };
        (guard.ledger.operations_if_idle() == Some(before)).then_some(reading)
    })
}

/// Makes a call after which the driver may have taken memory for itself, and charges that.
/// Returns the charge.
pub(super) fn charge_growth(
    guard: &ProcessGuard,
    kind: GuardMemoryKind,
    call: impl FnOnce() -> DriverCode,
) -> (DriverCode, u64) {
    let Some(target) = devices::current(guard) else { return (call(), 0) };
    let before = read(guard, target.device, used_now);
    let code = call();
    let Some((before, after)) = before.zip(read(guard, target.device, used_now)) else {
        return (code, 0);
    };
    observe(guard, target.device, after.used, after.charged);
    // If the run was charged for something else meanwhile, the difference says nothing.
    let alone = before.charged == after.charged;
    let taken = if alone { after.beyond() - before.beyond() } else { 0 };
    (code, charge(guard, target.device, kind, 0, taken))
}

/// As [`charge_growth`], for what belongs to the current context and is given back with it.
pub(super) fn grow_context(
    guard: &ProcessGuard,
    kind: GuardMemoryKind,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let target = devices::current(guard);
    let (code, charge) = charge_growth(guard, kind, call);
    if let Some(target) = target {
        let device = target.device as u8;
        record_cost(guard, target.context, DriverResource::Context { device, charge });
    }
    code
}

/// Charges what the driver took. A driver that has less than before changes nothing here.
fn charge(guard: &ProcessGuard, device: usize, kind: GuardMemoryKind, key: u64, taken: i64) -> u64 {
    if taken <= 0 {
        return 0;
    }
    let at = guard.log_charge(GuardOp::Charge, kind, device, key, taken.unsigned_abs());
    guard.ledger.charge_driver(guard.process, device, taken, at);
    taken.unsigned_abs()
}

/// Records what the driver reports beside what is charged; what neither the charge nor the
/// baseline explains is the residue.
fn observe(guard: &ProcessGuard, device: usize, used: u64, charged: u64) {
    let device = &guard.ledger.devices[device];
    device.observed.store(used, Relaxed);
    // The first time, what the driver reports beyond the charge is held by other programs.
    let others = used.saturating_sub(charged);
    let _ = device.baseline.compare_exchange(u64::MAX, others, Relaxed, Relaxed);
    let residue = others.saturating_sub(device.baseline.load(Relaxed));
    device.residue_most.fetch_max(residue, Relaxed);
}

/// Makes a call that creates a context on a device, and charges the context.
pub(super) fn create_context(
    guard: &ProcessGuard,
    number: i32,
    call: impl FnOnce() -> DriverCode,
    made: impl FnOnce() -> OpaqueHandle,
) -> DriverCode {
    let Some(device) = devices::of_number(guard, number) else { return call() };
    guard.exclusively(&guard.ledger.contexts_lock, || {
        let counters = &guard.ledger.devices[device];
        // Once a context was made, it is known what another takes, and one that cannot fit is
        // refused.
        let known = Some(counters.context.load(Relaxed)).filter(|&known| known < u64::MAX);
        let least = known.unwrap_or(0);
        if !fits(guard, device, least) {
            guard.ledger.refuse_uncharged(guard.process, device, least);
            guard.log_charge(GuardOp::Refuse, GuardMemoryKind::Context, device, 0, least);
            return OUT_OF_MEMORY;
        }
        let outside = || used_without_context(guard, device);
        // NVML's list is trusted only where it listed nothing for this process before: in
        // another PID namespace a stranger may be listed under our number.
        let is_new = used_by_this_process(guard, device) == Some(0);
        let before = read(guard, device, outside);
        let code = call();
        if code != SUCCESS {
            return code;
        }
        let taken = before.zip(read(guard, device, outside));
        let taken = taken.map(|(before, after)| after.beyond() - before.beyond());
        let own =
            if is_new { used_by_this_process(guard, device).filter(|&own| own > 0) } else { None };
        let taken = context_cost(taken, own).map(|taken| taken.max(0));
        match taken {
            Some(taken) => _ = counters.context.fetch_min(taken.unsigned_abs(), Relaxed),
            None if known.is_none() => guard.ledger.warn(flag::UNMEASURED),
            None => {}
        }
        guard.note_device_files();
        let key = made() as u64;
        // Where it could not be measured, a context counts as much as the one before.
        let taken = taken.unwrap_or(least as i64);
        let charge = charge(guard, device, GuardMemoryKind::Context, key, taken);
        record_cost(guard, key, DriverResource::Context { device: device as u8, charge });
        code
    })
}

/// Whether `bytes` more stay below the limit. They may use the reserve.
fn fits(guard: &ProcessGuard, device: usize, bytes: u64) -> bool {
    let fits = || guard.ledger.devices[device].free(0) >= bytes;
    fits() || {
        guard.reclaim();
        fits()
    }
}

/// What is used on a device, asked without a context: of NVML, or of the system on unified
/// memory.
fn used_without_context(guard: &ProcessGuard, device: usize) -> Option<u64> {
    let counters = &guard.ledger.devices[device];
    if counters.integrated.load(Relaxed) != 0 {
        return crate::system_memory::read(guard.ledger).map(|available| u64::MAX / 4 - available);
    }
    nvml::used(counters.uuid.each_ref().map(|word| word.load(Relaxed)))
}

/// What this process uses on a device, as NVML lists it.
fn used_by_this_process(guard: &ProcessGuard, device: usize) -> Option<u64> {
    let counters = &guard.ledger.devices[device];
    if counters.integrated.load(Relaxed) != 0 {
        return None;
    }
    nvml::used_by_this_process(counters.uuid.each_ref().map(|word| word.load(Relaxed)))
}

/// What a context took: by the device's figure, unless that disagrees with the process's, as it
/// does when a program outside the run allocates or frees meanwhile.
fn context_cost(by_device: Option<i64>, own: Option<u64>) -> Option<i64> {
    /// Drivers count a little for the device that they count for no process.
    const AGREE: u64 = 32 << 20;
    match (by_device, own) {
        (Some(device), Some(own)) if device.abs_diff(own as i64) <= AGREE => Some(device),
        (_, Some(own)) => Some(own as i64),
        (device, None) => device,
    }
}

/// Records what a context or module cost, to give it back when it is destroyed.
pub(super) fn record_cost(guard: &ProcessGuard, key: u64, resource: DriverResource) {
    if key == 0 || matches!(cost(&resource), None | Some((_, 0))) {
        return;
    }
    // The same context or module again, or more for it: both costs are given back with it.
    if let Ok(Some(old)) = guard.table.put(ResourceEntry { key, resource })
        && let Some((_, before)) = cost(&old.resource)
    {
        guard.table.change(resource.class(), key, |resource| match resource {
            DriverResource::Context { charge, .. } | DriverResource::Module { charge, .. } => {
                *charge += before
            }
            _ => {}
        });
    }
}

/// The device of a context or module, and what the driver took for it.
fn cost(resource: &DriverResource) -> Option<(usize, u64)> {
    match *resource {
        DriverResource::Context { device, charge }
        | DriverResource::Module { device, charge, .. } => Some((device.into(), charge)),
        _ => None,
    }
}

/// Gives back what a context or module cost that was destroyed.
pub(super) fn release_cost(guard: &ProcessGuard, class: ResourceClass, key: u64) {
    if let Some(entry) = guard.table.take(class, key) {
        give_cost_back(guard, &entry);
    }
}

/// The same, for an entry that is not in the table any more.
pub(super) fn give_cost_back(guard: &ProcessGuard, entry: &ResourceEntry) {
    let Some((device, charge)) = cost(&entry.resource) else { return };
    let kind = match entry.resource {
        DriverResource::Context { .. } => GuardMemoryKind::Context,
        _ => GuardMemoryKind::Module,
    };
    let at = guard.log_charge(GuardOp::Discharge, kind, device, entry.key, charge);
    guard.ledger.charge_driver(guard.process, device, -(charge as i64), at);
}
