//! Physical memory that is mapped by the page: cuMemCreate and what goes with it.
//!
//! Such memory lives while a handle to it or a mapping of it does: a program may map it and
//! release the handle at once, and still hold every byte. So both are counted, and the memory
//! is given back when the last of them is gone. A handle that was imported from another
//! process is not known here: it is counted where it was made.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::track::{AllocationRequest, charge_and_call, record_resource, release_entry};
use super::{DriverCode, Pointer, SUCCESS, devices, host};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, DriverResource, ResourceClass, ResourceEntry};

/// The beginning of what cuMemCreate and cuMemPoolCreate are given.
#[repr(C)]
pub(crate) struct AllocationProperties {
    /// 2 for managed memory.
    kind: c_int,
    handles: c_int,
    /// 1 for a device; others are the host's.
    location: c_int,
    device: c_int,
}

impl AllocationProperties {
    /// The device whose memory it is: its own, the host's where a device shares that, or managed
    /// memory, which is the current device's. Nothing for what no device is charged with.
    pub(super) fn device(&self, guard: &ProcessGuard) -> Option<usize> {
        const ON_DEVICE: c_int = 1;
        const MANAGED: c_int = 2;
        match (self.kind, self.location) {
            (_, ON_DEVICE) => devices::of_number(guard, self.device),
            (MANAGED, _) if guard.ledger.has_setting(flag::MANAGED_IGNORED) => None,
            (MANAGED, _) => devices::current(guard).map(|target| target.device),
            _ => host::device(guard),
        }
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn create(
    guard: &ProcessGuard,
    out: *mut u64,
    bytes: usize,
    how: *const AllocationProperties,
    _: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let how = unsafe { how.as_ref() }.filter(|_| !out.is_null());
    let Some(device) = how.and_then(|how| how.device(guard)) else { return call() };
    let bytes = bytes as u64;
    let request = AllocationRequest {
        kind: GuardMemoryKind::Physical,
        place: BlockClass::Pointer,
        bytes,
        stream: 0,
    };
    let charged = match charge_and_call(guard, device, &request, call) {
        Ok((_, charged)) => charged,
        Err(code) => return code,
    };
    let number = NEXT.fetch_add(1, Relaxed);
    let device = device as u8;
    // One handle holds it, for a start.
    record_resource(guard, &request, number, charged, |tag| DriverResource::Physical {
        device,
        tag,
        bytes,
        holders: 1,
    });
    // SAFETY: the driver has written it.
    hold(guard, unsafe { *out }, DriverResource::Handle { memory: number, releases: 1 });
    SUCCESS
}

/// Keeps a handle or a mapping.
fn hold(guard: &ProcessGuard, key: u64, thing: DriverResource) {
    match guard.table.put(ResourceEntry { key, thing }) {
        Ok(None) => {}
        Ok(Some(old)) => drop_one(guard, &old.thing),
        Err(_) => guard.ledger.warn(flag::TABLE_FULL),
    }
}

fn add_one(guard: &ProcessGuard, memory: u64) {
    guard.table.change(ResourceClass::Physical, memory, |thing| {
        if let DriverResource::Physical { holders, .. } = thing {
            *holders += 1;
        }
    });
}

/// A handle or a mapping is gone; the last gives the memory back.
fn drop_one(guard: &ProcessGuard, thing: &DriverResource) {
    let (DriverResource::Handle { memory, .. } | DriverResource::Mapping { memory, .. }) = *thing
    else {
        return;
    };
    let before = guard.table.change(ResourceClass::Physical, memory, |thing| {
        if let DriverResource::Physical { holders, .. } = thing {
            *holders = holders.saturating_sub(1);
        }
    });
    if matches!(before, Some(DriverResource::Physical { holders: ..=1, .. }))
        && let Some(entry) = guard.table.take(ResourceClass::Physical, memory)
    {
        release_entry(guard, &entry);
    }
}

/// Changes how often a handle must be released; what it was.
fn count(
    guard: &ProcessGuard,
    handle: u64,
    change: impl FnOnce(&mut u64),
) -> Option<DriverResource> {
    guard.table.change(ResourceClass::Handle, handle, |thing| {
        if let DriverResource::Handle { releases, .. } = thing {
            change(releases);
        }
    })
}

pub(super) unsafe fn release(
    guard: &ProcessGuard,
    handle: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // Retained handles are released more than once; the last time it is taken out before
    // the driver can hand out its number again.
    let Some(entry) = guard.table.take(ResourceClass::Handle, handle) else { return call() };
    let DriverResource::Handle { memory, releases } = entry.thing else { return call() };
    let again = releases > 1;
    if again {
        hold(guard, handle, DriverResource::Handle { memory, releases: releases - 1 });
    }
    let code = call();
    match (code == SUCCESS, again) {
        (true, false) => drop_one(guard, &entry.thing),
        (true, true) => {}
        (false, false) => hold(guard, handle, entry.thing),
        (false, true) => _ = count(guard, handle, |releases| *releases += 1),
    }
    code
}

pub(super) unsafe fn retain(
    guard: &ProcessGuard,
    out: *mut u64,
    address: Pointer,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if code != SUCCESS || out.is_null() {
        return code;
    }
    // SAFETY: the driver has written it.
    let handle = unsafe { *out };
    // Otherwise the handle was released before, and the mapping has kept the memory.
    if count(guard, handle, |releases| *releases += 1).is_none()
        && let Some(memory) = mapped_at(guard, address)
    {
        add_one(guard, memory);
        hold(guard, handle, DriverResource::Handle { memory, releases: 1 });
    }
    code
}

/// The physical memory that is mapped at an address, anywhere in a mapping.
fn mapped_at(guard: &ProcessGuard, address: Pointer) -> Option<u64> {
    guard.table.search(|entry| match entry.thing {
        DriverResource::Mapping { memory, bytes }
            if entry.key <= address && address - entry.key < bytes =>
        {
            Some(memory)
        }
        _ => None,
    })
}

pub(super) unsafe fn map(
    guard: &ProcessGuard,
    at: Pointer,
    bytes: usize,
    _: usize,
    handle: u64,
    _: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let known = guard.table.get(ResourceClass::Handle, handle);
    let Some(ResourceEntry { thing: DriverResource::Handle { memory, .. }, .. }) = known else {
        return call();
    };
    // Counted first: the handle may be released by another thread meanwhile.
    add_one(guard, memory);
    let mapping = DriverResource::Mapping { memory, bytes: bytes as u64 };
    let code = call();
    match code {
        SUCCESS => hold(guard, at, mapping),
        _ => drop_one(guard, &mapping),
    }
    code
}

pub(super) unsafe fn unmap(
    guard: &ProcessGuard,
    at: Pointer,
    bytes: usize,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let list = guard.table.unmapping(at, bytes as u64);
    let code = call();
    match code {
        SUCCESS => guard.table.unmapped(list, |mapping| drop_one(guard, &mapping)),
        _ => guard.table.still_mapped(list),
    }
    code
}
