//! Physical memory that programs map themselves: cuMemCreate, cuMemMap and their counterparts.
//!
//! Such memory exists while a handle to it or a mapping of it exists: a program may map it and
//! release the handle at once, and still hold every byte. So the guard counts both, and gives the
//! memory back when the last of them is gone. A handle that was imported from another process is
//! unknown here: it is counted in the process that made it.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::track::{AllocationRequest, charge_and_call, record_resource, release_entry};
use super::{DriverCode, Pointer, SUCCESS, devices, host};
use crate::attach::ProcessGuard;
use crate::ledger::flag;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, DriverResource, ResourceClass, ResourceEntry};

/// The first fields of what cuMemCreate and cuMemPoolCreate are given.
#[repr(C)]
pub(crate) struct AllocationProperties {
    /// 2 for managed memory.
    kind: c_int,
    handles: c_int,
    /// 1 for a device; the other values are places in the host's memory.
    location: c_int,
    device: c_int,
}

impl AllocationProperties {
    /// The device that is charged: the named one; the one that shares the host's memory, for host
    /// memory; the current one, for managed memory. `None` where no device is charged.
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

/// The number of the next physical allocation.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn create(
    guard: &ProcessGuard,
    out: *mut u64,
    bytes: usize,
    how: *const AllocationProperties,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let how = unsafe { how.as_ref() }.filter(|_| !out.is_null());
    let Some(device) = how.and_then(|how| how.device(guard)) else { return call() };
    let bytes = bytes as u64;
    let request = AllocationRequest {
        kind: GuardMemoryKind::Physical,
        class: BlockClass::Pointer,
        bytes,
        stream: 0,
    };
    let charged = match charge_and_call(guard, device, &request, call) {
        Ok((_, charged)) => charged,
        Err(code) => return code,
    };
    let number = NEXT.fetch_add(1, Relaxed);
    let device = device as u8;
    // The handle that the driver returns is the first holder.
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

/// Records a handle or a mapping.
fn hold(guard: &ProcessGuard, key: u64, resource: DriverResource) {
    match guard.table.put(ResourceEntry { key, resource }) {
        Ok(None) => {}
        Ok(Some(old)) => drop_one(guard, &old.resource),
        Err(_) => guard.ledger.warn(flag::TABLE_FULL),
    }
}

fn add_one(guard: &ProcessGuard, memory: u64) {
    guard.table.change(ResourceClass::Physical, memory, |resource| {
        if let DriverResource::Physical { holders, .. } = resource {
            *holders += 1;
        }
    });
}

/// Removes one holder, a handle or a mapping. The memory is given back with the last one.
fn drop_one(guard: &ProcessGuard, resource: &DriverResource) {
    let (DriverResource::Handle { memory, .. } | DriverResource::Mapping { memory, .. }) =
        *resource
    else {
        return;
    };
    let before = guard.table.change(ResourceClass::Physical, memory, |resource| {
        if let DriverResource::Physical { holders, .. } = resource {
            *holders = holders.saturating_sub(1);
        }
    });
    if matches!(before, Some(DriverResource::Physical { holders: ..=1, .. }))
        && let Some(entry) = guard.table.take(ResourceClass::Physical, memory)
    {
        release_entry(guard, &entry);
    }
}

/// Changes how often a handle must be released; returns the handle as it was.
fn count(
    guard: &ProcessGuard,
    handle: u64,
    change: impl FnOnce(&mut u64),
) -> Option<DriverResource> {
    guard.table.change(ResourceClass::Handle, handle, |resource| {
        if let DriverResource::Handle { releases, .. } = resource {
            change(releases);
        }
    })
}

pub(super) unsafe fn release(
    guard: &ProcessGuard,
    handle: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // A retained handle is released more than once. It is taken out of the table before the last
    // release, as the driver may return the same number to another thread right after it.
    let Some(entry) = guard.table.take(ResourceClass::Handle, handle) else { return call() };
    let DriverResource::Handle { memory, releases } = entry.resource else { return call() };
    let again = releases > 1;
    if again {
        hold(guard, handle, DriverResource::Handle { memory, releases: releases - 1 });
    }
    let code = call();
    match (code == SUCCESS, again) {
        (true, false) => drop_one(guard, &entry.resource),
        (true, true) => {}
        (false, false) => hold(guard, handle, entry.resource),
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
    // A handle that is unknown here was released before, and its mapping kept the memory.
    if count(guard, handle, |releases| *releases += 1).is_none()
        && let Some(memory) = mapped_at(guard, address)
    {
        add_one(guard, memory);
        hold(guard, handle, DriverResource::Handle { memory, releases: 1 });
    }
    code
}

/// The physical memory whose mapping contains an address.
fn mapped_at(guard: &ProcessGuard, address: Pointer) -> Option<u64> {
    guard.table.search(|entry| match entry.resource {
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
    handle: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let known = guard.table.get(ResourceClass::Handle, handle);
    let Some(ResourceEntry { resource: DriverResource::Handle { memory, .. }, .. }) = known else {
        return call();
    };
    // Counted first, as another thread may release the handle meanwhile.
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
    let list = guard.table.begin_unmap(at, bytes as u64);
    let code = call();
    match code {
        SUCCESS => guard.table.finish_unmap(list, |mapping| drop_one(guard, &mapping)),
        _ => guard.table.cancel_unmap(list),
    }
    code
}
