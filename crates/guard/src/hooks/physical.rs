//! Physical memory that is mapped by the page: cuMemCreate and what goes with it.
//!
//! Such memory lives while a handle to it or a mapping of it does: a program may map it and
//! release the handle at once, and still hold every byte. So both are counted, and the memory
//! is given back when the last of them is gone. A handle that was imported from another
//! process is not known here: it is counted where it was made.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::devices::{self, Place};
use super::track::{Wish, allocate_on, give_back};
use super::{Code, Pointer, SUCCESS};
use crate::here::Here;
use crate::ledger::flag;
use crate::log::Kind;
use crate::table::{Class, Entry};

/// The beginning of what cuMemCreate and cuMemPoolCreate are given.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handles: c_int,
    /// 1 for a device; others are the host's.
    pub(super) location: c_int,
    pub(super) device: c_int,
}

/// Where memory is on a device.
pub(super) const ON_DEVICE: c_int = 1;

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
    let how = unsafe { how.as_ref() };
    let (Some(how), false) = (how, out.is_null()) else { return call() };
    let device = (how.location == ON_DEVICE).then(|| devices::of_number(here, how.device));
    let Some(device) = device.flatten() else { return call() };
    let number = NEXT.fetch_add(1, Relaxed);
    let wish =
        Wish { kind: Kind::Physical, class: Class::Physical, bytes: bytes as u64, stream: 0 };
    // One handle holds it, for a start.
    let place = Place { context: 1, device };
    let code = allocate_on(here, place, &wish, call, || number);
    if code == SUCCESS {
        // SAFETY: the driver has written it.
        hold(here, Class::Handle, unsafe { *out }, number, 1);
    }
    code
}

/// Keeps a handle or a mapping. `count` is how often a handle must be released, or how large
/// a mapping is.
fn hold(here: &Here, class: Class, key: u64, number: u64, count: u64) {
    let entry =
        Entry { key, class, kind: 0, device: 0, tag: 0, bytes: count, charge: 0, extra: number };
    match here.table.put(entry) {
        Ok(None) => {}
        Ok(Some(old)) => drop_one(here, old.extra),
        Err(_) => here.ledger.warn(flag::TABLE_FULL),
    }
}

fn add_one(here: &Here, number: u64) {
    here.table.change(Class::Physical, number, |memory| memory.extra += 1);
}

/// One holder less; the last gives the memory back.
fn drop_one(here: &Here, number: u64) {
    let before = here
        .table
        .change(Class::Physical, number, |memory| memory.extra = memory.extra.saturating_sub(1));
    if before.is_some_and(|memory| memory.extra <= 1)
        && let Some(memory) = here.table.take(Class::Physical, number)
    {
        give_back(here, &memory, 0);
    }
}

pub(super) unsafe fn release(here: &Here, handle: u64, call: impl FnOnce() -> Code) -> Code {
    // Retained handles are released more than once; the last time it is taken out before
    // the driver can hand out its number again.
    let Some(entry) = here.table.take(Class::Handle, handle) else { return call() };
    let again = entry.bytes > 1;
    if again {
        hold(here, Class::Handle, handle, entry.extra, entry.bytes - 1);
    }
    let code = call();
    match (code == SUCCESS, again) {
        (true, false) => drop_one(here, entry.extra),
        (true, true) => {}
        (false, false) => hold(here, Class::Handle, handle, entry.extra, 1),
        (false, true) => {
            here.table.change(Class::Handle, handle, |entry| entry.bytes += 1);
        }
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
    let known = here.table.change(Class::Handle, handle, |entry| entry.bytes += 1);
    // The handle was released before, and the mapping has kept the memory.
    if known.is_none()
        && let Some(mapping) = here.table.get(Class::Mapping, address)
    {
        add_one(here, mapping.extra);
        hold(here, Class::Handle, handle, mapping.extra, 1);
    }
    code
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
    let memory = here.table.get(Class::Handle, handle);
    // Counted first: the handle may be released by another thread meanwhile.
    if let Some(memory) = &memory {
        add_one(here, memory.extra);
    }
    let code = call();
    if let Some(memory) = memory {
        match code {
            SUCCESS => hold(here, Class::Mapping, at, memory.extra, bytes as u64),
            _ => drop_one(here, memory.extra),
        }
    }
    code
}

pub(super) unsafe fn unmap(
    here: &Here,
    at: Pointer,
    bytes: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    // A range may hold several mappings, one after the other; foreign ones among them are
    // stepped over by the smallest page that there is. They are taken out before the call,
    // as another thread may map there as soon as the driver is done.
    const PAGE: u64 = 1 << 16;
    /// So many steps cost more than to look at all that is mapped.
    const STEPS: u32 = 1 << 14;
    let end = at.saturating_add(bytes as u64);
    let mut taken: [Option<Entry>; 32] = [None; 32];
    let mut count = 0;
    let mut take = |mapping: Entry| {
        match taken.get_mut(count) {
            Some(place) => *place = Some(mapping),
            // More than are kept for the case that the driver fails: given up at once.
            None => drop_one(here, mapping.extra),
        }
        count += 1;
    };
    let (mut step, mut foreign) = (at, 0);
    while step < end && foreign < STEPS {
        if let Some(mapping) = here.table.take(Class::Mapping, step) {
            step = step.saturating_add(mapping.bytes.max(1));
            take(mapping);
        } else {
            step = step.saturating_add(PAGE);
            foreign += 1;
        }
    }
    if step < end {
        let rest = step..end;
        here.table.drain(|entry| entry.class == Class::Mapping && rest.contains(&entry.key), take);
    }
    let code = call();
    for mapping in taken.into_iter().flatten() {
        match code {
            SUCCESS => drop_one(here, mapping.extra),
            _ => hold(here, Class::Mapping, mapping.key, mapping.extra, mapping.bytes),
        }
    }
    code
}
