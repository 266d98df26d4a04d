//! Arrays and mipmapped arrays. How a device lays them out is its own affair; they are
//! counted by their shape, rows rounded as the driver rounds them.

use super::track::{AllocationRequest, allocate, free};
use super::{DriverCode, OpaqueHandle};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, ResourceClass};

/// What cuArrayCreate is given.
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    width: usize,
    height: usize,
    format: i32,
    channels: u32,
}

/// What cuArray3DCreate and cuMipmappedArrayCreate are given.
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: i32,
    channels: u32,
    flags: u32,
}

/// As [`ArrayDescriptor`], in the first version.
#[repr(C)]
pub(crate) struct ArrayDescriptorV1 {
    width: u32,
    height: u32,
    format: i32,
    channels: u32,
}

/// As [`Array3dDescriptor`], in the first version.
#[repr(C)]
pub(crate) struct Array3dDescriptorV1 {
    width: u32,
    height: u32,
    depth: u32,
    format: i32,
    channels: u32,
    flags: u32,
}

/// The memory is another's, or comes later by mapping.
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

/// What a format takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Texel {
    /// So many bytes for each channel of a point.
    Channel(u64),
    /// So many for a point, whatever its channels.
    Point(u64),
    /// So many for two points: planes of different sizes.
    TwoPoints(u64),
    /// So many for a block of four by four points.
    Block(u64),
}

/// CUDA's formats. One that is not known is taken for four bytes a channel, the most that a
/// channel has.
fn texel(format: i32) -> Texel {
    match format {
        // Whole numbers and floats.
        0x01 | 0x08 => Texel::Channel(1),
        0x02 | 0x09 | 0x10 => Texel::Channel(2),
        // Normalized numbers of 8 and 16 bits with one, two and four channels.
        0xc0..=0xc2 | 0xc6..=0xc8 => Texel::Channel(1),
        0xc3..=0xc5 | 0xc9..=0xcb => Texel::Channel(2),
        // Three of ten bits, and two.
        0x50 => Texel::Point(4),
        // Compressed: BC1 and BC4; BC2, BC3, BC5, BC6H and BC7.
        0x91 | 0x92 | 0x97 | 0x98 => Texel::Block(8),
        0x93..=0x96 | 0x99..=0x9e => Texel::Block(16),
        // Video: NV12; P010 and P016; NV16 and YUY2; P210 and P216; Y210 and Y216; AYUV and Y410;
        // Y416; three full planes of 8 and of 16 bits.
        0xb0 => Texel::TwoPoints(3),
        0x9f | 0xa1 => Texel::Point(3),
        0xa2 | 0xa5 => Texel::Point(2),
        0xa3 | 0xa4 | 0xa6..=0xa9 => Texel::Point(4),
        0xb1 => Texel::Point(8),
        0xb2 | 0xb4 => Texel::Point(3),
        0xb3 | 0xb5 => Texel::Point(6),
        _ => Texel::Channel(4),
    }
}

fn bytes(sides: [usize; 3], format: i32, channels: u32) -> u64 {
    let [width, height, depth] = sides.map(|side| side.max(1) as u64);
    let (row, rows) = match texel(format) {
        Texel::Channel(size) => {
            (width.saturating_mul(size).saturating_mul(channels.max(1).into()), height)
        }
        Texel::Point(size) => (width.saturating_mul(size), height),
        Texel::TwoPoints(size) => (width.saturating_mul(size).div_ceil(2), height),
        Texel::Block(size) => (width.div_ceil(4).saturating_mul(size), height.div_ceil(4)),
    };
    let row = row.checked_next_multiple_of(64).unwrap_or(u64::MAX);
    row.saturating_mul(rows).saturating_mul(depth)
}

fn request(kind: GuardMemoryKind, bytes: u64) -> AllocationRequest {
    AllocationRequest { kind, place: BlockClass::Array, bytes, stream: 0 }
}

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn create(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const ArrayDescriptor,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let (Some(shape), false) = (unsafe { shape.as_ref() }, out.is_null()) else { return call() };
    let bytes = bytes([shape.width, shape.height, 1], shape.format, shape.channels);
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &request(GuardMemoryKind::Array, bytes), call, || unsafe { *out as u64 })
}

pub(super) unsafe fn create_small(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const ArrayDescriptorV1,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let shape =
        unsafe { shape.as_ref() }.map(|&ArrayDescriptorV1 { width, height, format, channels }| {
            ArrayDescriptor { width: width as usize, height: height as usize, format, channels }
        });
    let shape = shape.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: handed on.
    unsafe { create(guard, out, shape, call) }
}

pub(super) unsafe fn create3_small(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const Array3dDescriptorV1,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let shape = unsafe { shape.as_ref() }.map(|shape| {
        let &Array3dDescriptorV1 { width, height, depth, format, channels, flags } = shape;
        let [width, height, depth] = [width, height, depth].map(|side| side as usize);
        Array3dDescriptor { width, height, depth, format, channels, flags }
    });
    let shape = shape.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: handed on.
    unsafe { create3(guard, out, shape, call) }
}

pub(super) unsafe fn create3(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const Array3dDescriptor,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { create_levels(guard, out, shape, 1, GuardMemoryKind::Array, call) }
}

pub(super) unsafe fn mipmap(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const Array3dDescriptor,
    levels: u32,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { create_levels(guard, out, shape, levels, GuardMemoryKind::Mipmap, call) }
}

unsafe fn create_levels(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    shape: *const Array3dDescriptor,
    levels: u32,
    kind: GuardMemoryKind,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: it is null or what the driver takes.
    let (Some(shape), false) = (unsafe { shape.as_ref() }, out.is_null()) else { return call() };
    if shape.flags & (SPARSE | DEFERRED) != 0 {
        return call();
    }
    let sides = [shape.width, shape.height, shape.depth];
    let level = |n: u32| bytes(sides.map(|side| side >> n), shape.format, shape.channels);
    let bytes = (0..levels.clamp(1, 32)).map(level).fold(0, u64::saturating_add);
    // SAFETY: the driver has written it when it is read.
    allocate(guard, &request(kind, bytes), call, || unsafe { *out as u64 })
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    array: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    free(guard, ResourceClass::Array, array as u64, 0, call)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn formats_take_what_cuda_documents() {
        let of = |format, channels| bytes([4096, 16, 1], format, channels) / (4096 * 16);
        for (format, channels, size) in [
            (0x01, 1, 1),
            (0x02, 2, 4),
            (0x03, 4, 16),
            (0x10, 4, 8),
            (0x20, 4, 16),
            (0xc0, 1, 1),
            (0xc1, 2, 2),
            (0xc2, 4, 4),
            (0xc3, 1, 2),
            (0xc4, 2, 4),
            (0xc5, 4, 8),
            (0xc6, 1, 1),
            (0xc8, 4, 4),
            (0xc9, 1, 2),
            (0xcb, 4, 8),
            (0x50, 4, 4),
            (0x9d, 4, 1),
            (0xb1, 4, 8),
        ] {
            assert_eq!(of(format, channels), size, "{format:#x} with {channels} channels");
        }
        assert_eq!(bytes([4096, 16, 1], 0x91, 4), 4096 * 16 / 2);
        assert_eq!(bytes([4096, 16, 1], 0xb0, 3), 4096 * 16 * 3 / 2);
        assert_eq!(bytes([1, 1, 1], 0x9d, 4), 64, "a block, and a row");
    }
}
