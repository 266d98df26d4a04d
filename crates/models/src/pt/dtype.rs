//! The types of numbers in a storage, and how each becomes an f32.

use half::{bf16, f16};

/// The type of a number in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    E4m3,
    E4m3Uz,
    E5m2,
    E5m2Uz,
    E8m0,
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

impl Dtype {
    /// By the name of a storage class or of a dtype.
    pub(super) fn named(name: &str) -> Option<Dtype> {
        Some(match name {
            "float8_e4m3fn" => Dtype::E4m3,
            "float8_e4m3fnuz" => Dtype::E4m3Uz,
            "float8_e5m2" => Dtype::E5m2,
            "float8_e5m2fnuz" => Dtype::E5m2Uz,
            "float8_e8m0fnu" => Dtype::E8m0,
            "HalfStorage" | "float16" | "half" => Dtype::F16,
            "BFloat16Storage" | "bfloat16" => Dtype::Bf16,
            "FloatStorage" | "float32" | "float" => Dtype::F32,
            "DoubleStorage" | "float64" | "double" => Dtype::F64,
            "CharStorage" | "int8" => Dtype::I8,
            "ShortStorage" | "int16" | "short" => Dtype::I16,
            "IntStorage" | "int32" | "int" => Dtype::I32,
            "LongStorage" | "int64" | "long" => Dtype::I64,
            "ByteStorage" | "uint8" => Dtype::U8,
            "uint16" => Dtype::U16,
            "uint32" => Dtype::U32,
            "uint64" => Dtype::U64,
            "BoolStorage" | "bool" => Dtype::Bool,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::I8 => "i8",
            Dtype::I16 => "i16",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::U8 => "u8",
            Dtype::U16 => "u16",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::Bool => "bool",
            Dtype::E4m3 => "f8_e4m3",
            Dtype::E4m3Uz => "f8_e4m3uz",
            Dtype::E5m2 => "f8_e5m2",
            Dtype::E5m2Uz => "f8_e5m2uz",
            Dtype::E8m0 => "f8_e8m0",
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Dtype::E4m3 | Dtype::E4m3Uz | Dtype::E5m2 | Dtype::E5m2Uz | Dtype::E8m0 => 1,
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }

    /// Numbers from little-endian bytes.
    pub(super) fn widen(self, raw: &[u8]) -> Vec<f32> {
        fn all<const N: usize>(raw: &[u8], one: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            raw.as_chunks::<N>().0.iter().map(|&bytes| one(bytes)).collect()
        }
        match self {
            Dtype::E4m3 => {
                all(raw, |[b]| if b & 0x7f == 0x7f { f32::NAN } else { float8(b, 3, 7) })
            }
            Dtype::E4m3Uz => all(raw, |[b]| if b == 0x80 { f32::NAN } else { float8(b, 3, 8) }),
            // The upper half of a float of sixteen bits.
            Dtype::E5m2 => all(raw, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
            Dtype::E5m2Uz => all(raw, |[b]| if b == 0x80 { f32::NAN } else { float8(b, 2, 16) }),
            Dtype::E8m0 => {
                all(raw, |[b]| if b == 0xff { f32::NAN } else { power(i32::from(b) - 127) })
            }
            Dtype::F16 => all(raw, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => all(raw, |b| bf16::from_le_bytes(b).to_f32()),
            Dtype::F32 => all(raw, f32::from_le_bytes),
            Dtype::F64 => all(raw, |b| f64::from_le_bytes(b) as f32),
            Dtype::I8 => all(raw, |[b]| f32::from(b.cast_signed())),
            Dtype::I16 => all(raw, |b| f32::from(i16::from_le_bytes(b))),
            Dtype::I32 => all(raw, |b| i32::from_le_bytes(b) as f32),
            Dtype::I64 => all(raw, |b| i64::from_le_bytes(b) as f32),
            Dtype::U8 => all(raw, |[b]| f32::from(b)),
            Dtype::U16 => all(raw, |b| f32::from(u16::from_le_bytes(b))),
            Dtype::U32 => all(raw, |b| u32::from_le_bytes(b) as f32),
            Dtype::U64 => all(raw, |b| u64::from_le_bytes(b) as f32),
            Dtype::Bool => all(raw, |[b]| f32::from(u8::from(b != 0))),
        }
    }
}

/// A float of eight bits, of which this many are the fraction's: none of them is infinite.
fn float8(byte: u8, fraction: i32, bias: i32) -> f32 {
    let exponent = i32::from(byte & 0x7f) >> fraction;
    let hidden = i32::from(exponent > 0) << fraction;
    let digits = hidden | i32::from(byte) & ((1 << fraction) - 1);
    let value = digits as f32 * power(exponent.max(1) - bias - fraction);
    if byte & 0x80 == 0 { value } else { -value }
}

fn power(of_two: i32) -> f32 {
    f64::from(of_two).exp2() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stored_type_is_widened() {
        let all: [(&str, &[u8], f32); 24] = [
            ("float8_e4m3fn", &[0xc2], -2.5),
            ("float8_e4m3fn", &[0x7e], 448.0),
            ("float8_e4m3fn", &[0x01], 0.001_953_125),
            ("float8_e4m3fnuz", &[0xca], -2.5),
            ("float8_e4m3fnuz", &[0x7f], 240.0),
            ("float8_e5m2", &[0xc1], -2.5),
            ("float8_e5m2", &[0x7b], 57344.0),
            ("float8_e5m2", &[0x7c], f32::INFINITY),
            ("float8_e5m2fnuz", &[0xc5], -2.5),
            ("float8_e5m2fnuz", &[0x01], 7.629_394_5e-6),
            ("float8_e8m0fnu", &[0x80], 2.0),
            ("HalfStorage", &[0x00, 0xc1], -2.5),
            ("BFloat16Storage", &[0x20, 0xc0], -2.5),
            ("FloatStorage", &[0, 0, 0x20, 0xc0], -2.5),
            ("DoubleStorage", &[0, 0, 0, 0, 0, 0, 0x04, 0xc0], -2.5),
            ("CharStorage", &[0xfe], -2.0),
            ("ShortStorage", &[0xfe, 0xff], -2.0),
            ("IntStorage", &[0xfe, 0xff, 0xff, 0xff], -2.0),
            ("LongStorage", &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], -2.0),
            ("ByteStorage", &[0xfe], 254.0),
            ("uint16", &[0xfe, 0xff], 65534.0),
            ("uint32", &[2, 0, 1, 0], 65538.0),
            ("uint64", &[2, 0, 1, 0, 0, 0, 0, 0], 65538.0),
            ("BoolStorage", &[2], 1.0),
        ];
        for (name, raw, wanted) in all {
            let dtype = Dtype::named(name).unwrap();
            assert_eq!(dtype.bytes(), raw.len(), "{name}");
            assert_eq!(dtype.widen(raw), [wanted], "{name}");
        }
        for (name, raw) in
            [("e4m3fn", 0xff), ("e4m3fnuz", 0x80), ("e5m2fnuz", 0x80), ("e8m0fnu", 255)]
        {
            assert!(Dtype::named(&format!("float8_{name}")).unwrap().widen(&[raw])[0].is_nan());
        }
        assert_eq!(Dtype::E8m0.widen(&[0]), [5.877_472e-39], "a subnormal of f32");
        assert_eq!(Dtype::named("ComplexFloatStorage"), None);
    }
}
