//! Physical memory that is mapped by the page: cuMemCreate and what goes with it.
//!
//! Such memory lives while a handle to it or a mapping of it does: a program may map it and
//! release the handle at once, and still hold every byte. So both are counted, and the memory
//! is given back when the last of them is gone. A handle that was imported from another
//! process is not known here: it is counted where it was made.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::track::{Wish, ask_first, give_back, keep_as};
use super::{Code, Pointer, SUCCESS, devices, host};
use crate::here::Here;
use crate::ledger::flag;
use crate::log::Kind;
use crate::table::{Class, Entry, Place, Thing};

/// The beginning of what cuMemCreate and cuMemPoolCreate are given.
#[repr(C)]
pub(crate) struct Properties {
    /// 2 for managed memory.
    kind: c_int,
    handles: c_int,
    /// 1 for a device; others are the host's.
    location: c_int,
    device: c_int,
}

impl Properties {
    /// The device whose memory it is: its own, the host's where a device shares that, or managed
    /// memory, which is the current device's. Nothing for what no device is charged with.
    pub(super) fn device(&self, here: &Here) -> Option<usize> {
        const ON_DEVICE: c_int = 1;
        const MANAGED: c_int = 2;
        match (self.kind, self.location) {
            (_, ON_DEVICE) => devices::of_number(here, self.device),
            (MANAGED, _) if here.ledger.is(flag::MANAGED_IGNORED) => None,
            (MANAGED, _) => devices::current(here).map(|target| target.device),
            _ => host::device(here),
        }
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn create(
    here: &Here,
    out: *mut u64,
    bytes: usize,
    how: *const Properties,
    _: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: it is null or what the driver takes.
    let how = unsafe { how.as_ref() }.filter(|_| !out.is_null());
    let Some(device) = how.and_then(|how| how.device(here)) else { return call() };
    let bytes = bytes as u64;
    let wish = Wish { kind: Kind::Physical, place: Place::Pointer, bytes, stream: 0 };
    let charged = match ask_first(here, device, &wish, call) {
        Ok((_, charged)) => charged,
        Err(code) => return code,
    };
    let number = NEXT.fetch_add(1, Relaxed);
    let device = device as u8;
    // One handle holds it, for a start.
    keep_as(here, &wish, number, charged, |tag| Thing::Physical { device, tag, bytes, holders: 1 });
    // SAFETY: the driver has written it.
    hold(here, unsafe { *out }, Thing::Handle { memory: number, releases: 1 });
    SUCCESS
}

/// Keeps a handle or a mapping.
fn hold(here: &Here, key: u64, thing: Thing) {
    match here.table.put(Entry { key, thing }) {
        Ok(None) => {}
        Ok(Some(old)) => drop_one(here, &old.thing),
        Err(_) => here.ledger.warn(flag::TABLE_FULL),
    }
}

fn add_one(here: &Here, memory: u64) {
    here.table.change(Class::Physical, memory, |thing| {
        if let Thing::Physical { holders, .. } = thing {
            *holders += 1;
        }
    });
}

/// A handle or a mapping is gone; the last gives the memory back.
fn drop_one(here: &Here, thing: &Thing) {
    let (Thing::Handle { memory, .. } | Thing::Mapping { memory, .. }) = *thing else { return };
    let before = here.table.change(Class::Physical, memory, |thing| {
        if let Thing::Physical { holders, .. } = thing {
            *holders = holders.saturating_sub(1);
        }
    });
    if matches!(before, Some(Thing::Physical { holders: ..=1, .. }))
        && let Some(entry) = here.table.take(Class::Physical, memory)
    {
        give_back(here, &entry);
    }
}

/// Changes how often a handle must be released; what it was.
fn count(here: &Here, handle: u64, change: impl FnOnce(&mut u64)) -> Option<Thing> {
    here.table.change(Class::Handle, handle, |thing| {
        if let Thing::Handle { releases, .. } = thing {
            change(releases);
        }
    })
}

pub(super) unsafe fn release(here: &Here, handle: u64, call: impl FnOnce() -> Code) -> Code {
    // Retained handles are released more than once; the last time it is taken out before
    // the driver can hand out its number again.
    let Some(entry) = here.table.take(Class::Handle, handle) else { return call() };
    let Thing::Handle { memory, releases } = entry.thing else { return call() };
    let again = releases > 1;
    if again {
        hold(here, handle, Thing::Handle { memory, releases: releases - 1 });
    }
    let code = call();
    match (code == SUCCESS, again) {
        (true, false) => drop_one(here, &entry.thing),
        (true, true) => {}
        (false, false) => hold(here, handle, entry.thing),
        (false, true) => _ = count(here, handle, |releases| *releases += 1),
    }
    code
}

pub(super) unsafe fn retain(
    here: &Here,
    out: *mut u64,
    address: Pointer,
    call: impl FnOnce() -> Code,
) -> Code {
    let code = call();
    if code != SUCCESS || out.is_null() {
        return code;
    }
    // SAFETY: the driver has written it.
    let handle = unsafe { *out };
    // Otherwise the handle was released before, and the mapping has kept the memory.
    if count(here, handle, |releases| *releases += 1).is_none()
        && let Some(memory) = mapped_at(here, address)
    {
        add_one(here, memory);
        hold(here, handle, Thing::Handle { memory, releases: 1 });
    }
    code
}

/// The physical memory that is mapped at an address, anywhere in a mapping.
fn mapped_at(here: &Here, address: Pointer) -> Option<u64> {
    here.table.search(|entry| match entry.thing {
        Thing::Mapping { memory, bytes } if entry.key <= address && address - entry.key < bytes => {
            Some(memory)
        }
        _ => None,
    })
}

pub(super) unsafe fn map(
    here: &Here,
    at: Pointer,
    bytes: usize,
    _: usize,
    handle: u64,
    _: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    let known = here.table.get(Class::Handle, handle);
    let Some(Entry { thing: Thing::Handle { memory, .. }, .. }) = known else { return call() };
    // Counted first: the handle may be released by another thread meanwhile.
    add_one(here, memory);
    let mapping = Thing::Mapping { memory, bytes: bytes as u64 };
    let code = call();
    match code {
        SUCCESS => hold(here, at, mapping),
        _ => drop_one(here, &mapping),
    }
    code
}

pub(super) unsafe fn unmap(
    here: &Here,
    at: Pointer,
    bytes: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    let list = here.table.unmapping(at, bytes as u64);
    let code = call();
    match code {
        SUCCESS => here.table.unmapped(list, |mapping| drop_one(here, &mapping)),
        _ => here.table.still_mapped(list),
    }
    code
}
