//! The header's bytes, with a bound on everything.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::estimate::ElementType;

use super::GgufError;

const MOST_KEYS: u64 = 65_536;
const MOST_TENSORS: u64 = 131_072;
/// Texts longer than this are stepped over: chat templates, merges.
const LONGEST_TEXT: u64 = 1 << 12;
const LONGEST_NAME: u64 = 1 << 10;
/// Lists longer than this are stepped over: there is none so long with a number for each layer.
const LONGEST_LIST: u64 = 4096;
/// All keys and values that are kept, in bytes.
const MOST_KEPT: u64 = 4 << 20;
const MOST_LAYERS: u64 = 65_536;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A value of the header; what is long and of no use is stepped over.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number, or a truth.
    Number(i64),
    /// A fraction.
    Float(f64),
    /// A short text.
    Text(String),
    /// Whole numbers or truths, such as one for each layer.
    Numbers(Vec<i64>),
    /// Something that was stepped over, with how many elements it has.
    Skipped(u64),
}

/// All tensors of a file, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors {
    /// How many there are.
    pub count: u64,
    /// Bytes and elements by type.
    pub by_type: BTreeMap<&'static str, (u64, u64)>,
    /// Bytes by layer.
    pub by_layer: Vec<u64>,
    /// Bytes of the token embedding, which engines leave on the host.
    pub embedding_bytes: u64,
    /// Bytes of the output matrix; 0 where the embedding serves for it.
    pub output_bytes: u64,
    /// Rows of the token embedding.
    pub vocab: Option<u64>,
    /// The rows of `attn_qkv` where query, key and value are one matrix.
    pub fused_qkv: bool,
    /// Whether the MLP has a gate.
    pub gated: bool,
    /// Whether a layer has a norm before its MLP.
    pub mlp_norm: bool,
}

impl Tensors {
    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.by_type.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }

    /// Adds those of another part of the same model.
    pub fn add(&mut self, other: Tensors) {
        self.count += other.count;
        for (kind, (bytes, elements)) in other.by_type {
            let sum = self.by_type.entry(kind).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        }
        if self.by_layer.len() < other.by_layer.len() {
            self.by_layer.resize(other.by_layer.len(), 0);
        }
        for (sum, bytes) in self.by_layer.iter_mut().zip(other.by_layer) {
            *sum = sum.saturating_add(bytes);
        }
        self.embedding_bytes = self.embedding_bytes.saturating_add(other.embedding_bytes);
        self.output_bytes = self.output_bytes.saturating_add(other.output_bytes);
        self.vocab = self.vocab.or(other.vocab);
        self.fused_qkv |= other.fused_qkv;
        self.gated |= other.gated;
        self.mlp_norm |= other.mlp_norm;
    }

    fn count_in(&mut self, name: &str, kind: ElementType, elements: u64, bytes: u64, rows: u64) {
        self.count += 1;
        let sum = self.by_type.entry(kind.name()).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        match name {
            "token_embd.weight" => {
                self.embedding_bytes = bytes;
                self.vocab = Some(rows);
            }
            "output.weight" => self.output_bytes = bytes,
            _ => {}
        }
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        else {
            return;
        };
        self.fused_qkv |= part.starts_with("attn_qkv.");
        self.gated |= part.starts_with("ffn_gate.") || part.starts_with("ffn_gate_exps.");
        self.mlp_norm |= part.starts_with("ffn_norm.");
        let layer = layer.parse::<usize>().ok().filter(|&n| (n as u64) < MOST_LAYERS);
        if let Some(layer) = layer {
            if self.by_layer.len() <= layer {
                self.by_layer.resize(layer + 1, 0);
            }
            self.by_layer[layer] = self.by_layer[layer].saturating_add(bytes);
        }
    }
}

/// What stands in front of the data.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Header {
    /// The keys and values that are short enough to keep.
    pub values: BTreeMap<String, Value>,
    /// The tensors.
    pub tensors: Tensors,
    /// The length of the file.
    pub file_bytes: u64,
}

impl Header {
    /// Reads a header and checks that the data behind it is all there.
    ///
    /// # Errors
    /// When the bytes are no GGUF file, are damaged or truncated, or hold more than is sensible.
    pub fn read(file: impl Read + Seek) -> Result<Header, GgufError> {
        let mut bytes = Bytes::new(file)?;
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
            Some(Value::Number(n)) if *n > 0 && n.count_ones() == 1 && *n <= 1 << 20 => {
                n.cast_unsigned()
            }
            Some(_) => return Err(bytes.damaged("an alignment that is no power of two")),
        };
        let tensors = bytes.tensors(tensors, alignment)?;
        Ok(Header { values, tensors, file_bytes: bytes.length })
    }

    /// A whole number that is not negative.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Number(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Value {
    fn size(&self) -> u64 {
        match self {
            Value::Text(text) => text.len() as u64,
            Value::Numbers(list) => list.len() as u64 * 8,
            _ => 8,
        }
    }
}

/// A place in a file whose length is known.
struct Bytes<F> {
    file: BufReader<F>,
    at: u64,
    length: u64,
}

impl<F: Read + Seek> Bytes<F> {
    fn new(mut file: F) -> Result<Bytes<F>, GgufError> {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Bytes { file: BufReader::with_capacity(1 << 16, file), at: 0, length })
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

    fn value(&mut self) -> Result<Value, GgufError> {
        match self.u32()? {
            TEXT => {
                let length = self.u64()?;
                if length > LONGEST_TEXT {
                    self.skip(length)?;
                    return Ok(Value::Skipped(length));
                }
                self.text(length).map(Value::Text)
            }
            LIST => self.list(),
            kind => self.scalar(kind),
        }
    }

    fn scalar(&mut self, kind: u32) -> Result<Value, GgufError> {
        Ok(match kind {
            0 => Value::Number(i64::from(u8::from_le_bytes(self.array()?))),
            1 => Value::Number(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Number(i64::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Number(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Number(i64::from(self.u32()?)),
            5 => Value::Number(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Number(i64::from(self.array::<1>()? != [0])),
            10 => Value::Number(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => Value::Number(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(self.damaged(format!("a value of unknown kind {other}"))),
        })
    }

    fn list(&mut self) -> Result<Value, GgufError> {
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
                Ok(Value::Skipped(count))
            }
            (_, None) => Err(self.damaged(format!("a list of unknown kind {kind}"))),
            (_, Some(size)) if count > LONGEST_LIST || matches!(kind, 6 | 12) => {
                let bytes = count.checked_mul(size);
                self.skip(bytes.ok_or_else(|| self.damaged("an endless list"))?)?;
                Ok(Value::Skipped(count))
            }
            _ => (0..count)
                .map(|_| match self.scalar(kind)? {
                    Value::Number(n) => Ok(n),
                    _ => Err(self.damaged("a list of mixed kinds")),
                })
                .collect::<Result<_, _>>()
                .map(Value::Numbers),
        }
    }

    fn tensors(&mut self, count: u64, alignment: u64) -> Result<Tensors, GgufError> {
        let mut tensors = Tensors::default();
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
