//! The tensors of a file: how large they are, and what is in the small ones.

use std::io::{Read, Seek};

use super::super::wire::{LONGEST_TEXT, WireField};
use super::super::{DeclaredExtent, OnnxError, OnnxValue, OnnxWeight, bytes_of};
use super::{MOST_EXTENTS, OnnxParser, SMALL, limit};

impl<F: Read + Seek> OnnxParser<'_, F> {
    /// The name of a tensor alone; a sparse one has the name of its elements.
    pub(super) fn tensor_name(&mut self, end: u64, sparse: bool) -> Result<String, OnnxError> {
        let mut name = String::new();
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 if sparse => name = self.tensor_name(stop, false)?,
                8 if !sparse => name = self.wire.text(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(name)
    }

    pub(super) fn tensor(&mut self, end: u64) -> Result<OnnxValue, OnnxError> {
        let mut value = OnnxValue::default();
        let mut dims = Vec::new();
        let mut data = Data::default();
        let mut external = Vec::new();
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, WireField::Number(n)) => dims.push(n.cast_signed()),
                (1, WireField::Bytes(stop)) => self.packed(stop, &mut dims)?,
                (2, WireField::Number(n)) => value.element = n,
                (8, WireField::Bytes(stop)) => value.name = self.wire.text(stop)?,
                (9, WireField::Bytes(stop)) => {
                    data.raw_length = stop - self.wire.at;
                    if data.raw_length <= SMALL * 8 {
                        data.raw = Some(self.wire.bytes(stop, SMALL as usize * 8)?);
                    }
                    self.wire.go(stop)?;
                }
                (4, WireField::Fixed(bits)) => data.push(f64::from(f32::from_bits(bits))),
                (4, WireField::Bytes(stop)) => self.floats(stop, &mut data)?,
                (5 | 7 | 11, WireField::Number(n)) => data.push(n.cast_signed() as f64),
                (5 | 7 | 11, WireField::Bytes(stop)) => self.whole(stop, &mut data)?,
                (13, WireField::Bytes(stop)) => {
                    limit(external.len(), MOST_EXTENTS, "entries of external data")?;
                    external.push(self.entry(stop, LONGEST_TEXT)?);
                }
                (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
            limit(dims.len(), MOST_EXTENTS, "extents in a shape")?;
        }
        let at = self.wire.at;
        let wrong = |what| OnnxError::Damaged { what, at };
        let mut elements = 1u64;
        for &extent in &dims {
            let extent = u64::try_from(extent).map_err(|_| wrong("a negative extent"))?;
            elements =
                elements.checked_mul(extent).ok_or_else(|| wrong("extents beyond counting"))?;
        }
        if elements > 1 << 56 {
            return Err(wrong("extents beyond counting"));
        }
        let bytes = bytes_of(value.element, elements);
        if data.raw_length > 0 && data.raw_length < bytes {
            return Err(wrong("a tensor with less data than its extents say"));
        }
        self.note_external(&external, bytes)?;
        value.declared =
            Some(dims.iter().map(|&n| DeclaredExtent::Fixed(n.cast_unsigned())).collect());
        value.elements = data.elements(value.element, elements);
        value.weight = Some(OnnxWeight { bytes, elements });
        Ok(value)
    }

    /// A tensor of which only what is not zero is stored, under the name of its elements.
    pub(super) fn sparse(&mut self, end: u64) -> Result<OnnxValue, OnnxError> {
        let (mut value, mut indices, mut dims) = (OnnxValue::default(), 0, Vec::new());
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, WireField::Bytes(stop)) => value = self.tensor(stop)?,
                (2, WireField::Bytes(stop)) => {
                    indices = self.tensor(stop)?.weight.map_or(0, |weight| weight.bytes);
                }
                (3, WireField::Number(n)) => dims.push(n.cast_signed()),
                (3, WireField::Bytes(stop)) => self.packed(stop, &mut dims)?,
                (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
            limit(dims.len(), MOST_EXTENTS, "extents in a shape")?;
        }
        let fixed = |&n: &i64| u64::try_from(n).map(DeclaredExtent::Fixed);
        let dims: Result<_, _> = dims.iter().map(fixed).collect();
        value.declared = Some(dims.map_err(|_| self.wire.damaged("a negative extent"))?);
        value.elements = None;
        if let Some(weight) = &mut value.weight {
            weight.bytes = weight.bytes.saturating_add(indices);
        }
        Ok(value)
    }

    fn floats(&mut self, end: u64, data: &mut Data) -> Result<(), OnnxError> {
        if end - self.wire.at > SMALL * 4 {
            return self.wire.go(end);
        }
        while self.wire.at < end {
            data.push(f64::from(f32::from_le_bytes(self.wire.array()?)));
        }
        Ok(())
    }

    fn whole(&mut self, end: u64, data: &mut Data) -> Result<(), OnnxError> {
        if end - self.wire.at > SMALL * 10 {
            return self.wire.go(end);
        }
        while self.wire.at < end {
            data.push(self.wire.varint()?.cast_signed() as f64);
        }
        Ok(())
    }
}

/// The elements of a tensor, in whichever field they come.
#[derive(Default)]
struct Data {
    raw: Option<Vec<u8>>,
    raw_length: u64,
    list: Vec<f64>,
}

impl Data {
    fn push(&mut self, element: f64) {
        if (self.list.len() as u64) < SMALL {
            self.list.push(element);
        }
    }

    /// The elements where there are few and their type is plain.
    fn elements(self, element: u64, count: u64) -> Option<Vec<f64>> {
        if count > SMALL {
            return None;
        }
        let list = match self.raw {
            Some(raw) => decode(element, &raw)?,
            None => self.list,
        };
        (list.len() as u64 >= count).then(|| list.into_iter().take(count as usize).collect())
    }
}

fn decode(element: u64, raw: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(raw: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        raw.as_chunks::<N>().0.iter().map(|&bytes| read(bytes)).collect()
    }
    Some(match element {
        1 => each(raw, |bytes| f64::from(f32::from_le_bytes(bytes))),
        2 | 9 => each(raw, |[byte]| f64::from(byte)),
        3 => each(raw, |bytes| f64::from(i8::from_le_bytes(bytes))),
        6 => each(raw, |bytes| f64::from(i32::from_le_bytes(bytes))),
        7 => each(raw, |bytes| i64::from_le_bytes(bytes) as f64),
        11 => each(raw, f64::from_le_bytes),
        _ => return None,
    })
}
