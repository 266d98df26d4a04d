//! Tensors, as PyTorch keeps them: a view (offset, sizes, strides) of a storage, which is
//! an entry of the zip file and may be shared.
//!
//! Everything is widened or narrowed to f32, as `model.float()` does. A view is held
//! against its storage before a number of it is made; and what is made from one file in
//! all is bounded, since many views of one storage, or one with strides of zero, can ask
//! for more than any file holds.

use std::borrow::Cow;
use std::cell::Cell;

use crate::pickle::{PickleRef, PickleValue};

use super::archive::CheckpointArchive;
use super::dtype::Dtype;
use super::{PtError, PtResult, allowed_names};

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
pub(super) enum WeightData {
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
    weights: WeightData,
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
        weights: WeightData,
    ) -> PtResult<Storages<'a>> {
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
    pub(super) fn stored<'p>(
        &self,
        value: PickleRef<'p>,
    ) -> Option<(&'p str, &'static str, u64, u64)> {
        let Described { key, dtype, .. } = describe(value, 0).ok()?;
        let bytes = self.archive.size(&format!("{}data/{key}", self.folder))?;
        Some((key, dtype.name(), bytes as u64, (bytes / dtype.bytes()) as u64))
    }

    /// A tensor's numbers. `place` is what messages call it.
    pub(super) fn array(&self, value: PickleRef<'_>, place: &str) -> PtResult<Array> {
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
        if self.weights == WeightData::Few && elements.max(size / dtype.bytes()) > FEW {
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
fn describe(value: PickleRef<'_>, depth: u32) -> Result<Described<'_>, String> {
    let call = match value.value() {
        PickleValue::Call(call) if depth < 4 => call,
        _ => return Err(format!("{} where a tensor should be", value.kind())),
    };
    let PickleValue::Global { module, name } = call.callable().value() else {
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
        _ => Err(format!("{} where a tensor should be", allowed_names::full(module, name))),
    }
}

/// `('storage', torch.HalfStorage, '17', 'cpu', 864)`, and the dtype where it is given separately.
fn stored<'p>(
    storage: PickleRef<'p>,
    dtype: Option<PickleRef<'p>>,
) -> Result<(&'p str, Dtype), String> {
    let PickleValue::Persistent(id) = storage.value() else {
        return Err(format!("{} where a storage should be", storage.kind()));
    };
    let mut parts = id.items().ok_or("a storage that is not described")?;
    let (class, key) = (parts.nth(1), parts.next());
    let key = key.and_then(PickleRef::as_str).ok_or("a storage without a key")?;
    let named = match dtype.or(class).map(PickleRef::value) {
        Some(PickleValue::Global { name, .. }) => name,
        _ => return Err("a storage without a type".into()),
    };
    let dtype = Dtype::named(named);
    let dtype = dtype.ok_or_else(|| format!("numbers of type {named:?} are not read"))?;
    Ok((key, dtype))
}

/// A tuple of sizes, or a `torch.Size` of one.
fn extents(value: PickleRef<'_>) -> Result<Vec<usize>, String> {
    let inner = match value.value() {
        PickleValue::Call(call) => call.args().items().and_then(|mut args| args.next()),
        _ => Some(value),
    };
    let items = inner.and_then(PickleRef::items).ok_or("a shape that is none")?;
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
