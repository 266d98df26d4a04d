//! Plain memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree.

use super::track::{Wish, allocate, free as give};
use super::{Code, Pointer};
use crate::here::Here;
use crate::ledger::flag;
use crate::log::Kind;
use crate::table::Class;

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn alloc(
    here: &Here,
    out: *mut Pointer,
    bytes: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(here, &Wish::linear(Kind::Linear, bytes), call, || unsafe { *out })
}

pub(super) unsafe fn pitch(
    here: &Here,
    out: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() || pitch.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(here, &rows(width as u64, height as u64), call, || unsafe { *out })
}

/// Rows of the same length.
fn rows(width: u64, height: u64) -> Wish {
    /// They begin at multiples of this on every device that there is.
    const ROW: u64 = 512;
    let row = width.checked_next_multiple_of(ROW).unwrap_or(u64::MAX);
    let bytes = row.saturating_mul(height);
    Wish::linear(Kind::Pitch, usize::try_from(bytes).unwrap_or(usize::MAX))
}

pub(super) unsafe fn managed(
    here: &Here,
    out: *mut Pointer,
    bytes: usize,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() || here.ledger.is(flag::MANAGED_IGNORED) {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(here, &Wish::linear(Kind::Managed, bytes), call, || unsafe { *out })
}

pub(super) unsafe fn free(here: &Here, pointer: Pointer, call: impl FnOnce() -> Code) -> Code {
    give(here, Class::Pointer, pointer, 0, call)
}

/// The functions of the first version have addresses and sizes of 32 bits. Drivers still have
/// them.
pub(super) unsafe fn alloc_small(
    here: &Here,
    out: *mut u32,
    bytes: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() {
        return call();
    }
    let wish = Wish::linear(Kind::Linear, bytes as usize);
    // SAFETY: the driver has written it when it is read.
    allocate(here, &wish, call, || u64::from(unsafe { *out }))
}

pub(super) unsafe fn pitch_small(
    here: &Here,
    out: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    _: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    if out.is_null() || pitch.is_null() {
        return call();
    }
    // SAFETY: the driver has written it when it is read.
    allocate(here, &rows(width.into(), height.into()), call, || u64::from(unsafe { *out }))
}

pub(super) unsafe fn free_small(here: &Here, pointer: u32, call: impl FnOnce() -> Code) -> Code {
    give(here, Class::Pointer, pointer.into(), 0, call)
}
