//! Arrays and mipmapped arrays. A device may lay them out as it likes; they are counted by their
//! shape, with rows rounded as the driver rounds them.

use super::track::{self, AllocationRequest, allocate};
use super::{DriverCode, OpaqueHandle};
use crate::attach::ProcessGuard;
use crate::log::GuardMemoryKind;
use crate::table::{BlockClass, ResourceClass};

/// The argument of cuArrayCreate. `S` is the type of sizes: 32 bits in the first version.
#[repr(C)]
pub(crate) struct ArrayDescriptor<S> {
    width: S,
    height: S,
    format: i32,
    channels: u32,
}

/// The argument of cuArray3DCreate and cuMipmappedArrayCreate.
#[repr(C)]
pub(crate) struct Array3dDescriptor<S> {
    width: S,
    height: S,
    depth: S,
    format: i32,
    channels: u32,
    flags: u32,
}

/// An array as any of the descriptors describes it.
pub(super) struct ArrayShape {
    sides: [usize; 3],
    format: i32,
    channels: u32,
    flags: u32,
}

fn side(size: impl TryInto<usize>) -> usize {
    size.try_into().unwrap_or(usize::MAX)
}

impl<S: Copy + TryInto<usize>> From<&ArrayDescriptor<S>> for ArrayShape {
    fn from(from: &ArrayDescriptor<S>) -> ArrayShape {
        let &ArrayDescriptor { width, height, format, channels } = from;
        ArrayShape { sides: [side(width), side(height), 1], format, channels, flags: 0 }
    }
}

impl<S: Copy + TryInto<usize>> From<&Array3dDescriptor<S>> for ArrayShape {
    fn from(from: &Array3dDescriptor<S>) -> ArrayShape {
        let &Array3dDescriptor { width, height, depth, format, channels, flags } = from;
        ArrayShape { sides: [width, height, depth].map(side), format, channels, flags }
    }
}

/// Flags of arrays without memory of their own: it is mapped into them later.
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

/// What a format takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Texel {
    /// Bytes for each channel of a point.
    Channel(u64),
    /// Bytes for a point, whatever its channels.
    Point(u64),
    /// Bytes for two points: its planes have different sizes.
    TwoPoints(u64),
    /// Bytes for a block of four by four points.
    Block(u64),
}

/// What CUDA's formats take. An unknown format is counted as four bytes a channel, the most that
/// any channel has.
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

/// Creates an array of `levels` levels, each with half the sides of the one before.
///
/// # Safety
///
/// See [`super`], for this and the next.
pub(super) unsafe fn create<'a, D: 'a>(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    descriptor: *const D,
    levels: u32,
    kind: GuardMemoryKind,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode
where
    ArrayShape: From<&'a D>,
{
    // SAFETY: it is null or what the driver takes.
    let shape = unsafe { descriptor.as_ref() }.map(ArrayShape::from);
    let (Some(shape), false) = (shape, out.is_null()) else { return call() };
    if shape.flags & (SPARSE | DEFERRED) != 0 {
        return call();
    }
    let level = |n: u32| bytes(shape.sides.map(|side| side >> n), shape.format, shape.channels);
    let bytes = (0..levels.clamp(1, 32)).map(level).fold(0, u64::saturating_add);
    let request = AllocationRequest { kind, class: BlockClass::Array, bytes, stream: 0 };
    // SAFETY: read only after the driver has written it.
    allocate(guard, &request, call, || unsafe { *out as u64 })
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    array: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    track::free(guard, ResourceClass::Array, array as u64, 0, call)
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
