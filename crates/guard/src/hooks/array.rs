//! Arrays and mipmapped arrays. How a device lays them out is its own affair; they are
//! counted by their shape, rows rounded as the driver rounds them.

use super::track::{Wish, allocate, free};
use super::{Code, Handle};
use crate::here::Here;
use crate::log::Kind;
use crate::table::Class;

/// What cuArrayCreate is given.
#[repr(C)]
pub(crate) struct Shape {
    width: usize,
    height: usize,
    format: i32,
    channels: u32,
}

/// What cuArray3DCreate and cuMipmappedArrayCreate are given.
#[repr(C)]
pub(crate) struct Shape3 {
    width: usize,
    height: usize,
    depth: usize,
    format: i32,
    channels: u32,
    flags: u32,
}

/// The memory is another's, or comes later by mapping.
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

/// Bytes of one number in a format. Block-compressed and planar formats have sizes of their
/// own, at most so much for a point.
fn width_of(format: i32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0 | 0xc3 => 1,
        0x02 | 0x09 | 0x10 | 0xc6 | 0xc9 => 2,
        0x91..=0x9f => 1,
        _ => 4,
    }
}

fn bytes(sides: [usize; 3], format: i32, channels: u32) -> u64 {
    let [width, height, depth] = sides.map(|side| side.max(1) as u64);
    let row = width.saturating_mul(width_of(format)).saturating_mul(channels.max(1).into());
    let row = row.checked_next_multiple_of(64).unwrap_or(u64::MAX);
    row.saturating_mul(height).saturating_mul(depth)
}

fn wish(kind: Kind, bytes: u64) -> Wish {
    Wish { kind, class: Class::Array, bytes, stream: 0 }
}

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn create(
    here: &Here,
    out: *mut Handle,
    shape: *const Shape,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: it is null or what the driver takes.
    let (Some(shape), false) = (unsafe { shape.as_ref() }, out.is_null()) else { return call() };
    let bytes = bytes([shape.width, shape.height, 1], shape.format, shape.channels);
    // SAFETY: the driver has written it when it is read.
    allocate(here, &wish(Kind::Array, bytes), call, || unsafe { *out as u64 })
}

pub(super) unsafe fn create3(
    here: &Here,
    out: *mut Handle,
    shape: *const Shape3,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { create_levels(here, out, shape, 1, Kind::Array, call) }
}

pub(super) unsafe fn mipmap(
    here: &Here,
    out: *mut Handle,
    shape: *const Shape3,
    levels: u32,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { create_levels(here, out, shape, levels, Kind::Mipmap, call) }
}

unsafe fn create_levels(
    here: &Here,
    out: *mut Handle,
    shape: *const Shape3,
    levels: u32,
    kind: Kind,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: it is null or what the driver takes.
    let (Some(shape), false) = (unsafe { shape.as_ref() }, out.is_null()) else { return call() };
    if shape.flags & (SPARSE | DEFERRED) != 0 {
        return call();
    }
    let sides = [shape.width, shape.height, shape.depth];
    let level = |n: u32| bytes(sides.map(|side| side >> n), shape.format, shape.channels);
    let bytes = (0..levels.clamp(1, 32)).map(level).fold(0, u64::saturating_add);
    // SAFETY: the driver has written it when it is read.
    allocate(here, &wish(kind, bytes), call, || unsafe { *out as u64 })
}

pub(super) unsafe fn destroy(here: &Here, array: Handle, call: impl FnOnce() -> Code) -> Code {
    free(here, Class::Array, array as u64, 0, call)
}
