//! The types of elements, which ONNX numbers.

/// The number that ONNX gives to 32-bit floats.
pub const F32: u64 = 1;

/// Bits of an element of ONNX's type; `None` for texts and unknown types.
#[must_use]
pub fn element_bits(element: u64) -> Option<u64> {
    match element {
        1 | 6 | 12 => Some(32),
        2 | 3 | 9 | 17..=20 | 24 => Some(8),
        4 | 5 | 10 | 16 => Some(16),
        7 | 11 | 13 | 14 => Some(64),
        15 => Some(128),
        21..=23 => Some(4),
        25 | 26 => Some(2),
        _ => None,
    }
}

/// The name of ONNX's type.
#[must_use]
pub fn element_name(element: u64) -> &'static str {
    const NAMES: [&str; 27] = [
        "unknown",
        "f32",
        "u8",
        "i8",
        "u16",
        "i16",
        "i32",
        "i64",
        "text",
        "bool",
        "f16",
        "f64",
        "u32",
        "u64",
        "c64",
        "c128",
        "bf16",
        "f8e4m3fn",
        "f8e4m3fnuz",
        "f8e5m2",
        "f8e5m2fnuz",
        "u4",
        "i4",
        "f4e2m1",
        "f8e8m0",
        "u2",
        "i2",
    ];
    usize::try_from(element).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or("unknown")
}

/// Bytes of this many elements, packed where they are smaller than a byte.
#[must_use]
pub fn bytes_of(element: u64, elements: u64) -> u64 {
    elements.saturating_mul(element_bits(element).unwrap_or(0)).div_ceil(8)
}
