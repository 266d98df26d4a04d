//! Tensors, as PyTorch keeps them: a view (offset, sizes, strides) of a storage, which is
//! an entry of the zip file and may be shared.
//!
//! Everything is widened or narrowed to f32, as `model.float()` does. A view is held
//! against its storage before a number of it is made; and what is made from one file in
//! all is bounded, since many views of one storage, or one with strides of zero, can ask
//! for more than any file holds.

use std::borrow::Cow;
use std::cell::Cell;

use crate::pickle::{Ref, Value};
use half::{bf16, f16};

use super::archive::CheckpointArchive;
use super::{PtError, Result, known};

/// The most extents of a tensor.
const MOST_EXTENTS: usize = 8;

/// Numbers in a shape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// Which numbers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weights {
    All,
    /// Those of small tensors, which say how the network is built; others have a shape alone.
    Few,
}

/// What is few.
const FEW: usize = 64;

/// The storages of a checkpoint.
#[derive(Debug)]
pub(super) struct Storages<'a> {
    archive: &'a CheckpointArchive<'a>,
    /// The folder that everything in the zip file is in.
    folder: String,
    big_endian: bool,
    /// Bytes that may still be made.
    left: Cell<usize>,
    weights: Weights,
}

/// How a storage keeps a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dtype {
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
    fn named(name: &str) -> Option<Dtype> {
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

    fn name(self) -> &'static str {
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

    fn bytes(self) -> usize {
        match self {
            Dtype::E4m3 | Dtype::E4m3Uz | Dtype::E5m2 | Dtype::E5m2Uz | Dtype::E8m0 => 1,
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }

    /// Numbers from little-endian bytes.
    fn widen(self, raw: &[u8]) -> Vec<f32> {
        fn all<const N: usize>(raw: &[u8], one: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            raw.as_chunks::<N>().0.iter().map(|&bytes| one(bytes)).collect()
        }
        match self {
            Dtype::E4m3 => all(raw, |[b]| if b & 0x7f == 0x7f { f32::NAN } else { eight(b, 3, 7) }),
            Dtype::E4m3Uz => all(raw, |[b]| if b == 0x80 { f32::NAN } else { eight(b, 3, 8) }),
            // The upper half of a float of sixteen bits.
            Dtype::E5m2 => all(raw, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
            Dtype::E5m2Uz => all(raw, |[b]| if b == 0x80 { f32::NAN } else { eight(b, 2, 16) }),
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

/// A float of eight bits, of which so many are the fraction's: none of them is infinite.
fn eight(byte: u8, fraction: i32, bias: i32) -> f32 {
    let exponent = i32::from(byte & 0x7f) >> fraction;
    let hidden = i32::from(exponent > 0) << fraction;
    let digits = hidden | i32::from(byte) & ((1 << fraction) - 1);
    let value = digits as f32 * power(exponent.max(1) - bias - fraction);
    if byte & 0x80 == 0 { value } else { -value }
}

fn power(of_two: i32) -> f32 {
    f64::from(of_two).exp2() as f32
}

/// A tensor as the pickle describes it.
struct Described<'p> {
    key: &'p str,
    dtype: Dtype,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<'a> Storages<'a> {
    /// `file` is the size of the whole file, which bounds what is made from it.
    pub(super) fn new(
        archive: &'a CheckpointArchive<'a>,
        folder: &str,
        file: usize,
        weights: Weights,
    ) -> Result<Storages<'a>> {
        let order = archive.read(&format!("{folder}byteorder")).transpose();
        let order = order.map_err(|why| PtError::Damaged(why.into_owned()))?;
        // Files from before 2.1 do not say.
        let big_endian = match order.as_deref() {
            None | Some(b"little") => false,
            Some(b"big") => true,
            Some(other) => {
                let other = String::from_utf8_lossy(&other[..other.len().min(20)]);
                let why = format!("its byteorder is {other:?}; little and big are known");
                return Err(PtError::Damaged(why));
            }
        };
        // Of a byte at most four are made, or five where they do not lie side by side.
        let left = Cell::new((16 << 20) + file.saturating_mul(6));
        Ok(Storages { archive, folder: folder.to_string(), big_endian, left, weights })
    }

    /// The storage of a tensor: its key, type, bytes and elements.
    pub(super) fn stored<'p>(&self, value: Ref<'p>) -> Option<(&'p str, &'static str, u64, u64)> {
        let Described { key, dtype, .. } = describe(value, 0).ok()?;
        let bytes = self.archive.size(&format!("{}data/{key}", self.folder))?;
        Some((key, dtype.name(), bytes as u64, (bytes / dtype.bytes()) as u64))
    }

    /// A tensor's numbers. `place` is what messages call it.
    pub(super) fn array(&self, value: Ref<'_>, place: &str) -> Result<Array> {
        let odd = |why: String| PtError::Odd { place: place.to_string(), why };
        let described = describe(value, 0).map_err(odd)?;
        let Described { key, dtype, offset, shape, strides } = described;
        let elements = shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
        let elements = elements.ok_or_else(|| odd("a shape that is past everything".into()))?;
        if elements == 0 {
            return Ok(Array { shape, data: Vec::new() });
        }
        let copied = if is_contiguous(&shape, &strides) { 0 } else { dtype.bytes() };
        let made = elements.checked_mul(size_of::<f32>() + copied);
        let left = made.and_then(|made| self.left.get().checked_sub(made));
        self.left.set(left.ok_or(PtError::TooLarge)?);
        let name = format!("{}data/{key}", self.folder);
        let size = self.archive.size(&name);
        let size = size.ok_or_else(|| odd(format!("its storage {key:?} is not there")))?;
        let reach = shape.iter().zip(&strides).try_fold(offset, |sum, (&extent, &stride)| {
            sum.checked_add((extent - 1).checked_mul(stride)?)
        });
        if reach.is_none_or(|last| last >= size / dtype.bytes()) {
            return Err(odd(format!("it reaches past the end of its storage {key:?}")));
        }
        if self.weights == Weights::Few && elements.max(size / dtype.bytes()) > FEW {
            return Ok(Array { shape, data: Vec::new() });
        }
        let storage = self.archive.read(&name);
        let storage = storage.ok_or_else(|| odd(format!("its storage {key:?} is not there")))?;
        let storage = storage.map_err(|why| PtError::Damaged(why.into_owned()))?;
        let mut raw = gather(&storage, dtype.bytes(), offset, &shape, &strides);
        if self.big_endian {
            raw.to_mut().chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
        }
        let data = dtype.widen(&raw);
        Ok(Array { shape, data })
    }
}

/// The bytes of a view whose reach was checked, one number after the other.
fn gather<'s>(
    storage: &'s [u8],
    width: usize,
    offset: usize,
    shape: &[usize],
    strides: &[usize],
) -> Cow<'s, [u8]> {
    let elements: usize = shape.iter().product();
    if is_contiguous(shape, strides) {
        return Cow::Borrowed(&storage[offset * width..(offset + elements) * width]);
    }
    let mut index = vec![0; shape.len()];
    let mut at = offset;
    let mut raw = Vec::with_capacity(elements * width);
    loop {
        raw.extend_from_slice(&storage[at * width..(at + 1) * width]);
        // Like an odometer, the last axis fastest.
        let Some(axis) = (0..shape.len()).rev().find(|&axis| index[axis] + 1 < shape[axis]) else {
            return Cow::Owned(raw);
        };
        for later in axis + 1..shape.len() {
            at -= index[later] * strides[later];
            index[later] = 0;
        }
        index[axis] += 1;
        at += strides[axis];
    }
}

fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut wanted = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == wanted;
        wanted *= extent;
        fits
    })
}

/// What the call that rebuilds a tensor says.
fn describe(value: Ref<'_>, depth: u32) -> Result<Described<'_>, String> {
    let call = match value.value() {
        Value::Call(call) if depth < 4 => call,
        _ => return Err(format!("{} where a tensor should be", value.kind())),
    };
    let Value::Global { module, name } = call.callable().value() else {
        return Err("something where a tensor should be".into());
    };
    let mut args = call.args().items().ok_or("a tensor without arguments")?;
    match name {
        "_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter" => {
            describe(args.next().ok_or("a parameter without a tensor")?, depth + 1)
        }
        "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" => {
            let mut next = || args.next().ok_or_else(|| format!("{name} with too few arguments"));
            let (storage, offset, shape, strides) = (next()?, next()?, next()?, next()?);
            let dtype = if name == "_rebuild_tensor_v3" { args.nth(2) } else { None };
            let (key, dtype) = stored(storage, dtype)?;
            let (shape, strides) = (extents(shape)?, extents(strides)?);
            if shape.len() != strides.len() {
                return Err("as many strides as extents are needed".into());
            }
            let offset = offset.as_u64().and_then(|offset| usize::try_from(offset).ok());
            let offset = offset.ok_or("an offset that is none")?;
            Ok(Described { key, dtype, offset, shape, strides })
        }
        _ => Err(format!("{} where a tensor should be", known::full(module, name))),
    }
}

/// `('storage', torch.HalfStorage, '17', 'cpu', 864)`, and the dtype where it is told apart.
fn stored<'p>(storage: Ref<'p>, dtype: Option<Ref<'p>>) -> Result<(&'p str, Dtype), String> {
    let Value::Persistent(id) = storage.value() else {
        return Err(format!("{} where a storage should be", storage.kind()));
    };
    let mut parts = id.items().ok_or("a storage that is not described")?;
    let (class, key) = (parts.nth(1), parts.next());
    let key = key.and_then(Ref::as_str).ok_or("a storage without a key")?;
    let named = match dtype.or(class).map(Ref::value) {
        Some(Value::Global { name, .. }) => name,
        _ => return Err("a storage without a type".into()),
    };
    let dtype = Dtype::named(named);
    let dtype = dtype.ok_or_else(|| format!("numbers of type {named:?} are not read"))?;
    Ok((key, dtype))
}

/// A tuple of sizes, or a `torch.Size` of one.
fn extents(value: Ref<'_>) -> Result<Vec<usize>, String> {
    let inner = match value.value() {
        Value::Call(call) => call.args().items().and_then(|mut args| args.next()),
        _ => Some(value),
    };
    let items = inner.and_then(Ref::items).ok_or("a shape that is none")?;
    let mut extents = Vec::new();
    for item in items {
        let extent = item.as_u64().and_then(|extent| usize::try_from(extent).ok());
        extents.push(extent.ok_or("an extent that is none")?);
        if extents.len() > MOST_EXTENTS {
            return Err(format!("more than {MOST_EXTENTS} extents"));
        }
    }
    Ok(extents)
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

    #[test]
    fn views_are_followed() {
        let storage: Vec<u8> = (0..24).collect();
        let view = |offset, shape: &[usize], strides: &[usize]| {
            gather(&storage, 1, offset, shape, strides).into_owned()
        };
        assert_eq!(view(2, &[2, 3], &[3, 1]), [2, 3, 4, 5, 6, 7]);
        assert_eq!(view(0, &[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5], "transposed");
        assert_eq!(view(5, &[2, 2], &[0, 0]), [5, 5, 5, 5], "expanded");
        assert_eq!(view(1, &[2, 1, 2], &[10, 99, 4]), [1, 5, 11, 15]);
        assert_eq!(view(7, &[], &[]), [7]);
        assert_eq!(
            gather(&storage, 2, 1, &[2, 2], &[1, 4]).into_owned(),
            [2, 3, 10, 11, 4, 5, 12, 13]
        );
    }
}
