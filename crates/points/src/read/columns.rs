//! Numbers of many types at regular places, gathered into floats.
//!
//! Every binary format here is the same thing seen from afar: the values of a column lie a
//! fixed step apart. An array in C or Fortran order, records of a .ply, the columns of a
//! compressed .pcd differ only in where a column starts and how far it steps.

use super::flaw::{Flaw, Read};

/// The type of a number in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl ColumnType {
    /// Bytes of one.
    pub(crate) fn size(self) -> usize {
        match self {
            ColumnType::I8 | ColumnType::U8 => 1,
            ColumnType::I16 | ColumnType::U16 => 2,
            ColumnType::I32 | ColumnType::U32 | ColumnType::F32 => 4,
            ColumnType::I64 | ColumnType::U64 | ColumnType::F64 => 8,
        }
    }

    /// The number in these bytes, which are as many as it has.
    pub(crate) fn value(self, bytes: &[u8], big: bool) -> Option<f64> {
        macro_rules! number {
            ($kind:ty) => {{
                let bytes = bytes.try_into().ok()?;
                if big { <$kind>::from_be_bytes(bytes) } else { <$kind>::from_le_bytes(bytes) }
            }};
        }
        Some(match self {
            ColumnType::I8 => number!(i8).into(),
            ColumnType::U8 => number!(u8).into(),
            ColumnType::I16 => number!(i16).into(),
            ColumnType::U16 => number!(u16).into(),
            ColumnType::I32 => number!(i32).into(),
            ColumnType::U32 => number!(u32).into(),
            ColumnType::I64 => number!(i64) as f64,
            ColumnType::U64 => number!(u64) as f64,
            ColumnType::F32 => number!(f32).into(),
            ColumnType::F64 => number!(f64),
        })
    }
}

/// Where the values of one column lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CloudColumn {
    /// The byte of the first.
    pub(crate) start: usize,
    /// Bytes from one to the next, never fewer than one has.
    pub(crate) step: usize,
    pub(crate) kind: ColumnType,
    /// Whether the highest byte comes first.
    pub(crate) big: bool,
}

/// Whether `count` records of `row` bytes from `start` on are all there, whichever of their
/// columns are read.
pub(crate) fn whole(bytes: &[u8], start: usize, row: usize, count: usize) -> Read<()> {
    let end = row.checked_mul(count).and_then(|size| size.checked_add(start));
    match end.filter(|end| *end <= bytes.len()) {
        Some(_) => Ok(()),
        None => Err(short(bytes, count)),
    }
}

fn short(bytes: &[u8], count: usize) -> Flaw {
    Flaw::at(bytes.len(), format!("it ends here, and {count} points need more bytes"))
}

/// The floats of `count` points, one after the other. A number of another type is rounded to
/// single precision.
pub(crate) fn gather(bytes: &[u8], columns: &[CloudColumn], count: usize) -> Read<Vec<f32>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    for column in columns {
        let end = (count - 1)
            .checked_mul(column.step)
            .and_then(|last| last.checked_add(column.start)?.checked_add(column.kind.size()));
        if end.is_none_or(|end| end > bytes.len()) {
            return Err(short(bytes, count));
        }
    }
    let stride = columns.len();
    let mut floats = Vec::new();
    let room = count.checked_mul(stride).map(|numbers| floats.try_reserve_exact(numbers));
    if !matches!(room, Some(Ok(()))) {
        return Err(Flaw::at(
            0,
            format!("there is no memory for {count} points of {stride} floats"),
        ));
    }
    floats.resize(count * stride, 0.0);
    for (index, column) in columns.iter().enumerate() {
        fill(bytes, column, floats.iter_mut().skip(index).step_by(stride));
    }
    Ok(floats)
}

fn fill<'a>(bytes: &[u8], column: &CloudColumn, out: impl Iterator<Item = &'a mut f32>) {
    let values = bytes.get(column.start..).unwrap_or_default().chunks(column.step);
    let size = column.kind.size();
    // The two that clouds are mostly made of have loops of their own.
    match (column.kind, column.big) {
        (ColumnType::F32, false) => {
            for (to, from) in out.zip(values) {
                *to = from.first_chunk().map_or(0.0, |four| f32::from_le_bytes(*four));
            }
        }
        (ColumnType::F64, false) => {
            for (to, from) in out.zip(values) {
                *to = from.first_chunk().map_or(0.0, |eight| f64::from_le_bytes(*eight) as f32);
            }
        }
        (kind, big) => {
            for (to, from) in out.zip(values) {
                let value = from.get(..size).and_then(|bytes| kind.value(bytes, big));
                *to = value.unwrap_or(0.0) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_lie_anywhere_and_end_at_the_end() {
        let bytes: Vec<u8> =
            [1.5f32, 2.5].iter().flat_map(|v| v.to_be_bytes()).chain([7, 9]).collect();
        let x = CloudColumn { start: 0, step: 4, kind: ColumnType::F32, big: true };
        let tag = CloudColumn { start: 8, step: 1, kind: ColumnType::U8, big: false };
        assert_eq!(gather(&bytes, &[x, tag], 2).unwrap(), [1.5, 7.0, 2.5, 9.0]);
        let flaw = gather(&bytes, &[x, tag], 3).unwrap_err();
        assert_eq!(flaw.place, super::super::flaw::FlawPlace::Byte(10));
        assert!(gather(&bytes, &[CloudColumn { step: usize::MAX, ..x }], 3).is_err());
    }
}
