//! `.npy`: one array of numpy.

use std::ops::Range;
use std::path::Path;

use plimsoll_memory::Result;

use super::columns::{CloudColumn, ColumnType, gather};
use super::flaw::{Flaw, Read};
use super::{FileShape, MOST_CLOUDS};

/// What the header of an array says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    kind: ColumnType,
    big: bool,
    fortran: bool,
    clouds: usize,
    points: usize,
    columns: usize,
    /// Whether there is an axis for clouds.
    stacked: bool,
    /// The byte where numbers begin.
    pub(crate) data: usize,
}

/// Points that are read at a time, and stay in the cache.
const AT_ONCE: usize = 1 << 13;
const MAGIC: &[u8] = b"\x93NUMPY";
/// numpy itself refuses more than 10,000 unless told otherwise.
const MOST_HEADER: usize = 1 << 20;

impl NpyHeader {
    /// Reads it; the numbers may be missing.
    pub(crate) fn parse(bytes: &[u8]) -> Read<NpyHeader> {
        if !bytes.starts_with(MAGIC) {
            return Err(Flaw::at(0, "no array of numpy begins like this"));
        }
        let short = || Flaw::at(bytes.len(), "it ends inside its header");
        let version = *bytes.get(6).ok_or_else(short)?;
        let (start, length) = match version {
            1 => {
                let field = bytes.get(8..10).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
                (10, usize::from(u16::from_le_bytes(field)))
            }
            2 | 3 => {
                let field = bytes.get(8..12).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
                (12, u32::from_le_bytes(field) as usize)
            }
            other => return Err(Flaw::at(6, format!("version {other}; 1, 2 and 3 are known"))),
        };
        if length > MOST_HEADER {
            return Err(Flaw::at(8, format!("a header of {length} bytes")));
        }
        let header = bytes.get(start..start + length).ok_or_else(short)?;
        let text = std::str::from_utf8(header)
            .map_err(|e| Flaw::at(start + e.valid_up_to(), "the header is not text"))?;
        NpyHeader::from_text(text, start)
    }

    fn from_text(text: &str, start: usize) -> Read<NpyHeader> {
        let value =
            |key: &str| field(text, key).ok_or_else(|| Flaw::at(start, format!("no {key}")));
        let (at, kind) = value("descr")?;
        let (kind, big) = number_type(kind.trim_matches(['\'', '"'])).ok_or_else(|| {
            let why = format!("type {kind}; floats of 4 or 8 bytes are read: astype('float32')");
            Flaw::at(start + at, why)
        })?;
        let (at, order) = value("fortran_order")?;
        let fortran = match order {
            "True" => true,
            "False" => false,
            _ => return Err(Flaw::at(start + at, "fortran_order is neither True nor False")),
        };
        let (at, shape) = value("shape")?;
        let wrong = || {
            let why = format!("shape {shape}; [N, 3], [B, N, 3] or more columns are read");
            Flaw::at(start + at, why)
        };
        let extents = extents(shape).ok_or_else(wrong)?;
        let (stacked, clouds, points, columns) = match extents[..] {
            [points, columns] => (false, 1, points, columns),
            [clouds, points, columns] => (true, clouds, points, columns),
            _ => return Err(wrong()),
        };
        if !(3..=4096).contains(&columns) {
            return Err(wrong());
        }
        let numbers = clouds.checked_mul(points).and_then(|n| n.checked_mul(columns));
        numbers.and_then(|n| n.checked_mul(kind.size())).ok_or_else(wrong)?;
        if clouds > MOST_CLOUDS {
            let why = format!("{clouds} clouds; one file has at most {MOST_CLOUDS}");
            return Err(Flaw::at(start + at, why));
        }
        let data = start + text.len();
        Ok(NpyHeader { kind, big, fortran, clouds, points, columns, stacked, data })
    }

    /// Clouds, points and features.
    pub(crate) fn shape(&self) -> FileShape {
        FileShape {
            counts: vec![self.points as u64; self.clouds],
            features: self.columns - 3,
            stacked: self.stacked,
        }
    }

    /// Bytes of all numbers.
    pub(crate) fn data_bytes(&self) -> usize {
        // Checked when the header was read.
        self.clouds * self.points * self.columns * self.kind.size()
    }

    /// Whether all numbers are there, in a file of this many bytes.
    pub(crate) fn whole(&self, length: usize) -> Read<()> {
        match self.data.saturating_add(self.data_bytes()) {
            needed if length < needed => {
                let why = format!("it ends here, and its numbers end at byte {needed}");
                Err(Flaw::at(length, why))
            }
            _ => Ok(()),
        }
    }

    /// Whether the numbers are floats in the order of points, as they are used.
    pub(crate) fn is_plain(&self) -> bool {
        self.kind == ColumnType::F32
            && !self.big
            && (!self.fortran || self.points <= 1 && self.clouds <= 1)
    }

    /// Clouds, points of each, numbers of a point.
    pub(crate) fn extents(&self) -> [usize; 3] {
        [self.clouds, self.points, self.columns]
    }

    /// The floats of some clouds of the file of this name, of which `fetch` gives the bytes from
    /// place to place: some thousand points at a time, where the numbers of a cloud stand
    /// together.
    pub(crate) fn read_by_parts(
        &self,
        path: &Path,
        range: Range<usize>,
        fetch: impl Fn(Range<usize>) -> Result<Vec<u8>>,
    ) -> Result<Vec<Vec<f32>>> {
        let flaw = |flaw: Flaw| flaw.of(path);
        if !self.is_together() {
            let bytes = fetch(self.data..self.data + self.data_bytes())?;
            return NpyHeader { data: 0, ..self.clone() }.read(&bytes, range).map_err(flaw);
        }
        let point = self.columns * self.kind.size();
        let one = |cloud: usize| {
            let mut floats = Vec::with_capacity(self.points * self.columns);
            for start in (0..self.points).step_by(AT_ONCE) {
                let points = AT_ONCE.min(self.points - start);
                let from = self.data + (cloud * self.points + start) * point;
                let part = NpyHeader { data: 0, clouds: 1, points, ..self.clone() };
                let bytes = fetch(from..from + points * point)?;
                let read = part.read(&bytes, 0..1).map_err(flaw)?;
                floats.extend(read.into_iter().flatten());
            }
            Ok(floats)
        };
        range.filter(|cloud| *cloud < self.clouds).map(one).collect()
    }

    /// Whether the numbers of a cloud stand together, so that it can be read by itself.
    pub(crate) fn is_together(&self) -> bool {
        !self.fortran
    }

    /// The floats of some clouds; `bytes` are those of the whole file.
    pub(crate) fn read(&self, bytes: &[u8], range: Range<usize>) -> Read<Vec<Vec<f32>>> {
        let NpyHeader { clouds, points, columns, kind, big, .. } = *self;
        self.whole(bytes.len())?;
        let place = |cloud: usize, column: usize| {
            let (start, step) = if self.fortran {
                (cloud + clouds * points * column, clouds)
            } else {
                (cloud * points * columns + column, columns)
            };
            let size = kind.size();
            CloudColumn { start: self.data + start * size, step: step * size, kind, big }
        };
        let one = |cloud| {
            let columns: Vec<CloudColumn> =
                (0..columns).map(|column| place(cloud, column)).collect();
            gather(bytes, &columns, points)
        };
        range.filter(|cloud| *cloud < clouds).map(one).collect()
    }
}

/// The value of a key in the header's dictionary, and where it stands.
fn field<'a>(text: &'a str, key: &str) -> Option<(usize, &'a str)> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let at = quoted.iter().find_map(|quoted| Some(text.find(quoted)? + quoted.len()))?;
    let rest = text.get(at..)?;
    let colon = rest.find(':')? + 1;
    let value = rest.get(colon..)?;
    let start = at + colon + (value.len() - value.trim_start().len());
    let value = value.trim_start();
    let end = match value.chars().next()? {
        '(' => value.find(')')? + 1,
        quote @ ('\'' | '"') => value.get(1..)?.find(quote)? + 2,
        _ => value.find([',', '}'])?,
    };
    Some((start, value.get(..end)?.trim_end()))
}

fn number_type(text: &str) -> Option<(ColumnType, bool)> {
    let (order, kind) = text.split_at_checked(1)?;
    let big = match order {
        "<" => false,
        ">" => true,
        "=" => cfg!(target_endian = "big"),
        _ => return None,
    };
    match kind {
        "f4" => Some((ColumnType::F32, big)),
        "f8" => Some((ColumnType::F64, big)),
        _ => None,
    }
}

fn extents(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    // Python 2 wrote 3L.
    inner.split(',').map(|n| n.trim().trim_end_matches('L').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, numbers: &[u8]) -> Vec<u8> {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(numbers);
        file
    }

    fn clouds(header: &str, numbers: &[u8]) -> Read<Vec<Vec<f32>>> {
        let file = file(header, numbers);
        let header = NpyHeader::parse(&file)?;
        header.read(&file, 0..header.clouds)
    }

    #[test]
    fn orders_and_types_give_the_same_points() {
        let values = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0f64]];
        let c: Vec<f64> = values.concat();
        let f = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let want: Vec<f32> = c.iter().map(|v| *v as f32).collect();
        for (descr, numbers) in [
            ("<f4", c.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect::<Vec<u8>>()),
            (">f4", c.iter().flat_map(|v| (*v as f32).to_be_bytes()).collect()),
            ("<f8", c.iter().flat_map(|v| v.to_le_bytes()).collect()),
            (">f8", c.iter().flat_map(|v| v.to_be_bytes()).collect()),
        ] {
            let header =
                format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}\n");
            assert_eq!(clouds(&header, &numbers).unwrap()[0], want, "{descr}");
        }
        let numbers: Vec<u8> = f.iter().flat_map(|v: &f64| v.to_be_bytes()).collect();
        let header = "{'descr': '>f8', 'fortran_order': True, 'shape': (2, 3), }";
        assert_eq!(clouds(header, &numbers).unwrap(), [want]);
    }

    #[test]
    fn a_stack_in_fortran_order_is_taken_apart() {
        // Two clouds of one point: b0 = (0, 2, 4), b1 = (1, 3, 5).
        let numbers: Vec<u8> = (0..6).flat_map(|v| (v as f32).to_le_bytes()).collect();
        let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1, 3)}";
        assert_eq!(clouds(header, &numbers).unwrap(), [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]);
        let file = file(header, &numbers);
        let second = NpyHeader::parse(&file).unwrap().read(&file, 1..2).unwrap();
        assert_eq!(second, [[1.0, 3.0, 5.0]], "and one of them alone");
    }

    #[test]
    fn flaws_name_the_byte() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}";
        let flaw = clouds(good, &[0; 23]).unwrap_err();
        assert_eq!(flaw, Flaw::at(10 + good.len() + 23, flaw.why.clone()));
        for (header, at, word) in [
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)}", 20, "type '<i4'"),
            ("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3)}", 44, "fortran_order"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", 60, "(2, 2)"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 60, "(6,)"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}", 60, "(-1, 3)"),
            ("{'descr': '<f4', 'fortran_order': False}", 10, "no shape"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9, 3)}",
                60,
                "shape",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9000000000000000, 0, 3)}",
                60,
                "9000000000000000 clouds",
            ),
        ] {
            let flaw = clouds(header, &[]).unwrap_err();
            assert_eq!(flaw.place, super::super::flaw::FlawPlace::Byte(at), "{header}: {flaw}");
            assert!(flaw.why.contains(word), "{flaw}");
        }
        assert!(NpyHeader::parse(b"PK").is_err());
        assert!(NpyHeader::parse(b"\x93NUMPY\x09\x00").unwrap_err().why.contains("version 9"));
    }

    #[test]
    fn nothing_is_a_cloud_of_no_points() {
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 3)}";
        assert_eq!(clouds(header, &[]).unwrap(), [Vec::<f32>::new()]);
    }
}
