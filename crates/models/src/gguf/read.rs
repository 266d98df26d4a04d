//! The header's bytes, with a bound on everything.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::estimate::ElementType;

use super::GgufError;
use super::tensors::GgufTensors;

const MOST_KEYS: u64 = 65_536;
const MOST_TENSORS: u64 = 131_072;
/// Longer texts are skipped: chat templates, merges.
const LONGEST_TEXT: u64 = 1 << 12;
const LONGEST_NAME: u64 = 1 << 10;
/// Longer lists are skipped: no list with a number for each layer is so long.
const LONGEST_LIST: u64 = 4096;
/// All keys and values that are kept, in bytes.
const MOST_KEPT: u64 = 4 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A value of the header; what is long and not needed is skipped.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// A whole number, or a truth.
    Number(i64),
    /// A fraction.
    Float(f64),
    /// A short text.
    Text(String),
    /// Whole numbers or truths, such as one for each layer.
    Numbers(Vec<i64>),
    /// A value that was skipped, with the number of its elements.
    Skipped(u64),
}

/// What is before the data of the tensors.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GgufHeader {
    /// The keys and values that are short enough to keep.
    pub values: BTreeMap<String, GgufValue>,
    /// The tensors.
    pub tensors: GgufTensors,
    /// The length of the file.
    pub file_bytes: u64,
}

impl GgufHeader {
    /// Reads a header and checks that the data behind it is all there.
    ///
    /// # Errors
    /// When the bytes are no GGUF file, are damaged or truncated, or hold more than is sensible.
    pub fn read(file: impl Read + Seek) -> Result<GgufHeader, GgufError> {
        let mut bytes = GgufReader::new(file)?;
        let (keys, tensors) = bytes.opening()?;
        let mut values = BTreeMap::new();
        let mut room = MOST_KEPT;
        for _ in 0..keys {
            let (at, key) = (bytes.at, bytes.name("key")?);
            let value = bytes.value()?;
            let size = key.len() as u64 + value.size();
            room = room
                .checked_sub(size)
                .ok_or(GgufError::TooMuch { what: "bytes in keys and values", limit: MOST_KEPT })?;
            if values.insert(key, value).is_some() {
                return Err(GgufError::Damaged { what: "a key that was there before".into(), at });
            }
        }
        let alignment = match values.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(GgufValue::Number(n)) if *n > 0 && n.count_ones() == 1 && *n <= 1 << 20 => {
                n.cast_unsigned()
            }
            Some(_) => return Err(bytes.damaged("an alignment that is no power of two")),
        };
        let tensors = bytes.tensors(tensors, alignment)?;
        Ok(GgufHeader { values, tensors, file_bytes: bytes.length })
    }

    /// A whole number that is not negative.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            GgufValue::Number(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            GgufValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl GgufValue {
    fn size(&self) -> u64 {
        match self {
            GgufValue::Text(text) => text.len() as u64,
            GgufValue::Numbers(list) => list.len() as u64 * 8,
            _ => 8,
        }
    }
}

/// A place in a file whose length is known.
struct GgufReader<F> {
    file: BufReader<F>,
    at: u64,
    length: u64,
}

impl<F: Read + Seek> GgufReader<F> {
    fn new(mut file: F) -> Result<GgufReader<F>, GgufError> {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(GgufReader { file: BufReader::with_capacity(1 << 16, file), at: 0, length })
    }

    fn damaged(&self, what: impl Into<String>) -> GgufError {
        GgufError::Damaged { what: what.into(), at: self.at }
    }

    /// The magic word, the version, and how many tensors and keys there are.
    fn opening(&mut self) -> Result<(u64, u64), GgufError> {
        if &self.array::<4>()? != b"GGUF" {
            return Err(GgufError::Damaged { what: "another magic word".into(), at: 0 });
        }
        let version = self.u32()?;
        if !matches!(version, 2 | 3) {
            let what = match version.swap_bytes() {
                2 | 3 => "a file for big-endian machines".to_string(),
                _ => format!("version {version}; 2 and 3 are read, convert the model again"),
            };
            return Err(self.damaged(what));
        }
        let (tensors, keys) = (self.u64()?, self.u64()?);
        if tensors > MOST_TENSORS {
            return Err(GgufError::TooMuch { what: "tensors", limit: MOST_TENSORS });
        }
        if keys > MOST_KEYS {
            return Err(GgufError::TooMuch { what: "keys", limit: MOST_KEYS });
        }
        Ok((keys, tensors))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        if self.length - self.at < N as u64 {
            return Err(self.damaged("an early end"));
        }
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        if self.length - self.at < bytes {
            return Err(self.damaged("an early end"));
        }
        // It fits a signed number: no file is longer.
        self.file.seek_relative(i64::try_from(bytes).unwrap_or(i64::MAX))?;
        self.at += bytes;
        Ok(())
    }

    fn name(&mut self, of: &str) -> Result<String, GgufError> {
        let length = self.u64()?;
        if length > LONGEST_NAME {
            return Err(self.damaged(format!("the name of a {of} of {length} bytes")));
        }
        self.text(length)
    }

    /// A text whose length was read and is bounded.
    fn text(&mut self, length: u64) -> Result<String, GgufError> {
        if self.length - self.at < length {
            return Err(self.damaged("an early end"));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.file.read_exact(&mut bytes)?;
        let text =
            String::from_utf8(bytes).map_err(|_| self.damaged("a text that is not UTF-8"))?;
        self.at += length;
        Ok(text)
    }

    fn value(&mut self) -> Result<GgufValue, GgufError> {
        match self.u32()? {
            TEXT => {
                let length = self.u64()?;
                if length > LONGEST_TEXT {
                    self.skip(length)?;
                    return Ok(GgufValue::Skipped(length));
                }
                self.text(length).map(GgufValue::Text)
            }
            LIST => self.list(),
            kind => self.scalar(kind),
        }
    }

    fn scalar(&mut self, kind: u32) -> Result<GgufValue, GgufError> {
        Ok(match kind {
            0 => GgufValue::Number(i64::from(u8::from_le_bytes(self.array()?))),
            1 => GgufValue::Number(i64::from(i8::from_le_bytes(self.array()?))),
            2 => GgufValue::Number(i64::from(u16::from_le_bytes(self.array()?))),
            3 => GgufValue::Number(i64::from(i16::from_le_bytes(self.array()?))),
            4 => GgufValue::Number(i64::from(self.u32()?)),
            5 => GgufValue::Number(i64::from(i32::from_le_bytes(self.array()?))),
            6 => GgufValue::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => GgufValue::Number(i64::from(self.array::<1>()? != [0])),
            10 => GgufValue::Number(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => GgufValue::Number(i64::from_le_bytes(self.array()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(self.damaged(format!("a value of unknown kind {other}"))),
        })
    }

    fn list(&mut self) -> Result<GgufValue, GgufError> {
        let (kind, count) = (self.u32()?, self.u64()?);
        match (kind, size_of_kind(kind)) {
            (TEXT, _) => {
                // Each has a length at least, so the file bounds the loop.
                if count > (self.length - self.at) / 8 {
                    return Err(self.damaged(format!("a list of {count} texts")));
                }
                for _ in 0..count {
                    let length = self.u64()?;
                    self.skip(length)?;
                }
                Ok(GgufValue::Skipped(count))
            }
            (_, None) => Err(self.damaged(format!("a list of unknown kind {kind}"))),
            (_, Some(size)) if count > LONGEST_LIST || matches!(kind, 6 | 12) => {
                let bytes = count.checked_mul(size);
                self.skip(bytes.ok_or_else(|| self.damaged("an endless list"))?)?;
                Ok(GgufValue::Skipped(count))
            }
            _ => (0..count)
                .map(|_| match self.scalar(kind)? {
                    GgufValue::Number(n) => Ok(n),
                    _ => Err(self.damaged("a list of mixed kinds")),
                })
                .collect::<Result<_, _>>()
                .map(GgufValue::Numbers),
        }
    }

    fn tensors(&mut self, count: u64, alignment: u64) -> Result<GgufTensors, GgufError> {
        let mut tensors = GgufTensors::default();
        let mut places = Vec::new();
        for _ in 0..count {
            let (at, name) = (self.at, self.name("tensor")?);
            let wrong = |what: &str| GgufError::Damaged { what: format!("{what} of {name}"), at };
            let dimensions = self.u32()?;
            if dimensions > 8 {
                return Err(wrong("too many dimensions"));
            }
            let extents = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
            let number = self.u32()?;
            let kind = ElementType::from_ggml(number)
                .ok_or_else(|| wrong(&format!("the unknown or withdrawn type {number}")))?;
            let offset = self.u64()?;
            let columns = extents.first().copied().unwrap_or(1);
            let elements = extents
                .iter()
                .try_fold(1u64, |all, &extent| all.checked_mul(extent))
                .filter(|&n| n <= i64::MAX as u64 / 8)
                .ok_or_else(|| wrong("extents beyond counting"))?;
            if !columns.is_multiple_of(kind.block()) {
                return Err(wrong("rows that do not divide into blocks"));
            }
            if !offset.is_multiple_of(alignment) {
                return Err(wrong("an offset that is not aligned"));
            }
            let bytes = kind.bytes_for(elements).get();
            let end =
                offset.checked_add(bytes).ok_or_else(|| wrong("an offset beyond counting"))?;
            places.push((offset, end));
            let rows = elements.checked_div(columns).unwrap_or(0);
            tensors.count_in(&name, kind, elements, bytes, rows);
        }
        self.check_places(places, alignment)?;
        Ok(tensors)
    }

    /// No two tensors share bytes, and the file holds the last one.
    fn check_places(&self, mut places: Vec<(u64, u64)>, alignment: u64) -> Result<(), GgufError> {
        places.retain(|(start, end)| start < end);
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[1].0 < pair[0].1) {
            return Err(self.damaged("tensors that overlap"));
        }
        let Some(&(_, end)) = places.last() else { return Ok(()) };
        let start = self.at.next_multiple_of(alignment);
        let need = start.checked_add(end).ok_or_else(|| self.damaged("a file beyond counting"))?;
        if need > self.length {
            return Err(GgufError::Truncated { have: self.length, need });
        }
        Ok(())
    }
}

const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Bytes of a number of this kind.
fn size_of_kind(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
