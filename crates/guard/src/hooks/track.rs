//! The one way in which memory is counted. An allocation is charged to the ledger, then made by
//! the driver, then recorded in the table. A free is removed from the table, then made by the
//! driver, then given back to the ledger.
//!
//! What every allocation and free runs through is compiled into one function (`inline(always)`,
//! here and in what it calls): entries and events that are passed in memory, written in parts and
//! read whole, stall the processor, which is a quarter of what the guard costs.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::devices::{self, DeviceTarget};
use super::{DriverCode, OUT_OF_MEMORY, SUCCESS, tags};
use crate::attach::ProcessGuard;
use crate::ledger::{NO_LIMIT, flag};
use crate::log::{GuardMemoryKind, GuardOp, NewEvent};
use crate::system_memory;
use crate::table::{
    BlockClass, BlockTag, CountedMemory, DriverResource, LinkPosition, LockedTable, ResourceClass,
    ResourceEntry,
};

/// What a program asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllocationRequest {
    pub(super) kind: GuardMemoryKind,
    pub(super) class: BlockClass,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

impl AllocationRequest {
    /// Plain memory.
    pub(super) fn linear(kind: GuardMemoryKind, bytes: usize) -> AllocationRequest {
        AllocationRequest { kind, class: BlockClass::Pointer, bytes: bytes as u64, stream: 0 }
    }

    /// What the driver will take for it on a device.
    #[inline(always)]
    fn charge(&self, guard: &ProcessGuard, device: usize) -> u64 {
        self.kind.charge(self.bytes, is_unified(guard, device))
    }

    #[inline(always)]
    pub(super) fn event(&self, op: GuardOp, device: usize, key: u64) -> NewEvent {
        NewEvent {
            op,
            kind: self.kind,
            device: device as u8,
            tag: tags::current(),
            key,
            bytes: self.bytes,
            stream: self.stream,
            stack: 0,
        }
    }
}

/// Whether a device shares the system's memory.
#[inline(always)]
pub(super) fn is_unified(guard: &ProcessGuard, device: usize) -> bool {
    guard.ledger.devices[device].integrated.load(Relaxed) != 0
}

/// Charges the ledger. Returns what the device is charged then, or `None` if the request is refused.
/// Where the device shares the system's memory, [`settle`] must follow.
#[inline(always)]
fn charge_ledger(
    guard: &ProcessGuard,
    device: usize,
    request: &AllocationRequest,
    charge: u64,
) -> Option<u64> {
    let granted = guard.ledger.grant(guard.process, device, charge, || guard.reclaim());
    let unified = is_unified(guard, device);
    if granted.is_some() && (!unified || guard.system.allows(guard.ledger, charge)) {
        return granted;
    }
    if granted.is_some() {
        guard.ledger.refuse_charged(guard.process, device, charge);
    }
    log_refusal(guard, device, request);
    None
}

/// The driver has answered: what it took is in the system's own figure from now on.
#[inline(always)]
fn settle(guard: &ProcessGuard, device: usize, charge: u64) {
    if is_unified(guard, device) {
        system_memory::ended(guard.ledger, charge);
    }
}

#[cold]
fn log_refusal(guard: &ProcessGuard, device: usize, request: &AllocationRequest) {
    guard.log_event(request.event(GuardOp::Refuse, device, 0));
}

/// Allocates on the current device. `key` reads the address or handle that the driver has
/// written.
#[inline(always)]
pub(super) fn allocate(
    guard: &ProcessGuard,
    request: &AllocationRequest,
    call: impl FnOnce() -> DriverCode,
    key: impl FnOnce() -> u64,
) -> DriverCode {
    match devices::current(guard) {
        Some(target) => allocate_on(guard, target, request, call, key),
        // Without a context the driver refuses, and says why.
        None => call(),
    }
}

/// Allocates on a device.
#[inline(always)]
pub(super) fn allocate_on(
    guard: &ProcessGuard,
    target: DeviceTarget,
    request: &AllocationRequest,
    call: impl FnOnce() -> DriverCode,
    key: impl FnOnce() -> u64,
) -> DriverCode {
    let device = target.device;
    let granted = charge_and_call(guard, device, request, call);
    let (charge, charged) = match granted {
        Ok(granted) => granted,
        Err(code) => return code,
    };
    record_block(guard, target, request, key(), charge, charged);
    SUCCESS
}

/// Charges the ledger and then calls the driver. If both agree, returns the charge of this request
/// and what the device is charged with it; [`record_block`] or [`record_resource`] must follow.
#[inline(always)]
pub(super) fn charge_and_call(
    guard: &ProcessGuard,
    device: usize,
    request: &AllocationRequest,
    call: impl FnOnce() -> DriverCode,
) -> Result<(u64, u64), DriverCode> {
    verify_limit_once(guard, device);
    let charge = request.charge(guard, device);
    let charged = charge_ledger(guard, device, request, charge).ok_or(OUT_OF_MEMORY)?;
    let code = call();
    settle(guard, device, charge);
    if code != SUCCESS {
        guard.ledger.fail_allocation(guard.process, device, charge);
        return Err(code);
    }
    Ok((charge, charged))
}

/// Checks once per device, on the path of every allocation, that the limit works: a request of one
/// byte too many must be refused and counted, without a call of the driver. The check is then
/// removed from the counts.
#[inline]
pub(super) fn verify_limit_once(guard: &ProcessGuard, device: usize) {
    if guard.ledger.devices[device].verified.load(Relaxed) == 0 {
        verify(guard, device);
    }
}

#[cold]
fn verify(guard: &ProcessGuard, index: usize) {
    const TRIED: u32 = 1;
    const FAILED: u32 = 2;
    let device = &guard.ledger.devices[index];
    let limit = device.allocation_limit(guard.ledger.driver_reserve());
    if limit == NO_LIMIT || device.verified.compare_exchange(0, FAILED, AcqRel, Relaxed).is_err() {
        return;
    }
    let bytes = limit.saturating_add(1);
    let before = guard.process.refused.load(Relaxed);
    if guard.ledger.grant(guard.process, index, bytes, || {}).is_some() {
        guard.ledger.fail_allocation(guard.process, index, bytes);
        return;
    }
    // The ledger refused, and nothing after that could call the driver.
    let counted = guard.process.refused.load(Relaxed) > before;
    guard.ledger.forget_refusal(guard.process, index, bytes);
    if counted {
        device.verified.store(TRIED, Relaxed);
    }
}

/// Records a block that the driver has allocated: `charge` is the block's own, `charged` is what
/// the device is charged with it.
#[inline(always)]
pub(super) fn record_block(
    guard: &ProcessGuard,
    target: DeviceTarget,
    request: &AllocationRequest,
    key: u64,
    charge: u64,
    charged: u64,
) {
    let &AllocationRequest { kind, class, bytes, .. } = request;
    let (context, device) = (target.context, target.device as u8);
    record_resource(guard, request, key, charged, |tag| DriverResource::Block {
        class,
        kind,
        device,
        tag,
        bytes,
        charge,
        context,
    });
}

/// As [`record_block`], for what is recorded as another resource than a block.
#[inline(always)]
pub(super) fn record_resource(
    guard: &ProcessGuard,
    request: &AllocationRequest,
    key: u64,
    charged: u64,
    resource: impl FnOnce(BlockTag) -> DriverResource,
) {
    let number = tags::current();
    let resource =
        resource(if tags::are_used() { BlockTag::counted(number) } else { BlockTag::NONE });
    let Some(memory) = resource.memory() else { return };
    let device = usize::from(memory.device);
    let class = resource.class();
    let (at, stack) = guard.prepare_event(GuardOp::Allocate, class, key);
    let event = NewEvent { stack, ..request.event(GuardOp::Allocate, device, key) };
    let held = guard.table.lock();
    if let Some(old) = held.find(class, key) {
        drop_stale_entry(guard, &held, old, at);
    }
    let kept = held.add(ResourceEntry { key, resource });
    guard.log_event_locked(&held, &event, at);
    drop(held);
    if !kept {
        guard.ledger.warn(flag::TABLE_FULL);
    }
    if let Some(number) = memory.tag.number() {
        guard.ledger.tag(guard.process, number.into(), memory.share());
    }
    guard.ledger.finish_allocation(guard.process, device, charged, at);
}

/// Removes an entry whose address or handle the driver has returned again: it was freed in a way
/// that the guard does not see.
#[cold]
fn drop_stale_entry(guard: &ProcessGuard, held: &LockedTable<'_>, old: LinkPosition, at: u64) {
    let old = held.remove(old);
    if let Some(memory) = old.resource.memory() {
        guard.log_event_locked(held, &free_event(old.key, &memory, 0), at);
        guard.ledger.begin_free(guard.process);
        finish_free(guard, &memory);
    }
}

/// Frees a block. It is removed from the table and logged first, as the driver may return its
/// address to another thread before it returns to this one. It is given back to the ledger only
/// when the driver has freed it. A free that the driver refuses is logged as allocated again. What
/// was never counted is not given back.
#[inline(always)]
pub(super) fn free(
    guard: &ProcessGuard,
    class: ResourceClass,
    key: u64,
    stream: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let (at, stack) = guard.prepare_event(GuardOp::Free, class, key);
    let held = guard.table.lock();
    let found = held.find(class, key);
    let removed = found.map(|found| held.remove(found));
    let Some((entry, memory)) = removed.and_then(|entry| Some((entry, entry.resource.memory()?)))
    else {
        drop(held);
        if key != 0 && class != ResourceClass::Host {
            guard.process.foreign_frees.fetch_add(1, Relaxed);
        }
        return call();
    };
    guard.log_event_locked(&held, &NewEvent { stack, ..free_event(key, &memory, stream) }, at);
    drop(held);
    guard.ledger.begin_free(guard.process);
    let code = call();
    if code == SUCCESS {
        finish_free(guard, &memory);
    } else {
        restore_entry(guard, entry, &memory);
    }
    code
}

/// Puts a block back whose free the driver has refused.
#[cold]
fn restore_entry(guard: &ProcessGuard, entry: ResourceEntry, memory: &CountedMemory) {
    guard.ledger.free_refused(guard.process);
    let class = entry.resource.class();
    let (at, stack) = guard.prepare_event(GuardOp::Allocate, class, entry.key);
    let event = NewEvent { op: GuardOp::Allocate, stack, ..free_event(entry.key, memory, 0) };
    let held = guard.table.lock();
    let kept = held.find(class, entry.key).is_some() || held.add(entry);
    guard.log_event_locked(&held, &event, at);
    drop(held);
    if !kept {
        guard.ledger.warn(flag::TABLE_FULL);
    }
}

/// Gives back what no longer exists, without a call of the driver.
#[cold]
pub(super) fn release_entry(guard: &ProcessGuard, entry: &ResourceEntry) {
    if let Some(memory) = entry.resource.memory() {
        guard.ledger.begin_free(guard.process);
        guard.log_event(free_event(entry.key, &memory, 0));
        finish_free(guard, &memory);
    }
}

/// The event of a free.
#[inline(always)]
fn free_event(key: u64, memory: &CountedMemory, stream: u64) -> NewEvent {
    NewEvent {
        op: GuardOp::Free,
        kind: memory.kind,
        device: memory.device,
        tag: memory.tag.number().unwrap_or(0),
        key,
        bytes: memory.bytes,
        stream,
        stack: 0,
    }
}

#[inline(always)]
fn finish_free(guard: &ProcessGuard, memory: &CountedMemory) {
    if let Some(number) = memory.tag.number() {
        guard.ledger.untag(guard.process, number.into(), memory.share());
    }
    guard.ledger.finish_free(guard.process, memory.device.into(), memory.charge);
}
