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
    /// Rows begin at multiples of this on every device that there is.
    const ROW: u64 = 512;
    if out.is_null() || pitch.is_null() {
        return call();
    }
    let row = (width as u64).checked_next_multiple_of(ROW).unwrap_or(u64::MAX);
    let bytes = row.saturating_mul(height as u64);
    let wish = Wish::linear(Kind::Pitch, usize::try_from(bytes).unwrap_or(usize::MAX));
    // SAFETY: the driver has written it when it is read.
    allocate(here, &wish, call, || unsafe { *out })
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
