//! What an ONNX file says of itself: inputs, outputs, metadata.
//!
//! An ONNX file is one protobuf message. A generated parser would build the whole graph,
//! weights included, to answer four questions; this walks the wire format instead: it
//! steps over every field that it does not need by its length, so a 10 MB model costs a
//! few hundred small steps and no copies but the names. It trusts nothing: every length is
//! checked against what is left, and what is collected is bounded. It uses nothing of this
//! crate, so that it can be fuzzed without building the engines.

use std::collections::{BTreeMap, BTreeSet};

/// The most inputs, outputs and metadata entries that are taken from a file.
const MOST_ENTRIES: usize = 4096;
/// The most extents of a shape.
const MOST_EXTENTS: usize = 64;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 4096;
/// The longest value in the metadata: the names of thousands of classes fit.
const LONGEST_VALUE: usize = 1 << 20;
/// All metadata together, in bytes.
const MOST_METADATA: usize = 16 << 20;

/// The number that ONNX gives to 32-bit floats.
pub const F32: u64 = 1;

/// Why a file is no ONNX file, or none that is read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The bytes end or run wild inside a field.
    #[error("not an ONNX file, or a damaged one: {what} at byte {at}")]
    Damaged {
        /// What was found.
        what: &'static str,
        /// Where, counted from the start of the file.
        at: usize,
    },
    /// The message has no graph in it.
    #[error("not an ONNX file: no graph in it")]
    NoGraph,
    /// More than anybody needs.
    #[error("the file has more {what} than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The most that is read.
        limit: usize,
    },
}

/// An input or output of the graph.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Value {
    /// Its name.
    pub name: String,
    /// ONNX's number for the type of its elements; 0 where none is given.
    pub element: u64,
    /// Its extents; `None` where one is not fixed. The whole is `None` where the rank is
    /// not known either.
    pub shape: Option<Vec<Option<usize>>>,
}

/// What an ONNX file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Header {
    /// The inputs that a caller must give: those with a default are left out.
    pub inputs: Vec<Value>,
    /// The outputs.
    pub outputs: Vec<Value>,
    /// The metadata: `names`, `stride`, `task`, …
    pub metadata: BTreeMap<String, String>,
    /// The program that wrote the file.
    pub producer: String,
}

impl Header {
    /// Reads the header of an ONNX file.
    ///
    /// # Errors
    /// When the bytes are no ONNX file, are damaged, or hold more than is sensible.
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        let mut header = Header::default();
        let mut graph = None;
        let mut room = MOST_METADATA;
        let mut fields = Fields::new(bytes, 0);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (2, Field::Bytes(text)) => header.producer = text.text(LONGEST_NAME)?,
                (7, Field::Bytes(message)) => graph = Some(message),
                (14, Field::Bytes(entry)) => header.add_metadata(entry, &mut room)?,
                _ => {}
            }
        }
        header.read_graph(graph.ok_or(HeaderError::NoGraph)?)?;
        Ok(header)
    }

    fn add_metadata(&mut self, entry: Slice<'_>, room: &mut usize) -> Result<(), HeaderError> {
        let (mut key, mut value) = (String::new(), String::new());
        let mut fields = entry.fields();
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Bytes(text)) => key = text.text(LONGEST_NAME)?,
                (2, Field::Bytes(text)) => value = text.text(LONGEST_VALUE)?,
                _ => {}
            }
        }
        let too_much = HeaderError::TooMuch { what: "metadata", limit: MOST_METADATA };
        *room = room.checked_sub(key.len() + value.len()).ok_or(too_much)?;
        check(self.metadata.len(), MOST_ENTRIES, "metadata entries")?;
        self.metadata.insert(key, value);
        Ok(())
    }

    fn read_graph(&mut self, graph: Slice<'_>) -> Result<(), HeaderError> {
        // Old files list every weight as an input as well: those are not for the caller.
        let mut weights = BTreeSet::new();
        let mut fields = graph.fields();
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (5, Field::Bytes(tensor)) => {
                    if let Some(name) = tensor_name(tensor)? {
                        weights.insert(name);
                    }
                }
                (11, Field::Bytes(value)) => {
                    check(self.inputs.len(), MOST_ENTRIES, "inputs")?;
                    self.inputs.push(read_value(value)?);
                }
                (12, Field::Bytes(value)) => {
                    check(self.outputs.len(), MOST_ENTRIES, "outputs")?;
                    self.outputs.push(read_value(value)?);
                }
                _ => {}
            }
        }
        self.inputs.retain(|input| !weights.contains(input.name.as_bytes()));
        Ok(())
    }
}

fn check(have: usize, limit: usize, what: &'static str) -> Result<(), HeaderError> {
    if have < limit { Ok(()) } else { Err(HeaderError::TooMuch { what, limit }) }
}

/// The name of a weight, as bytes of the file.
fn tensor_name(tensor: Slice<'_>) -> Result<Option<&[u8]>, HeaderError> {
    let mut fields = tensor.fields();
    let mut name = None;
    while let Some((number, field)) = fields.next()? {
        if let (8, Field::Bytes(text)) = (number, field) {
            name = Some(text.bytes);
        }
    }
    Ok(name)
}

fn read_value(value: Slice<'_>) -> Result<Value, HeaderError> {
    let mut read = Value::default();
    let mut fields = value.fields();
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(text)) => read.name = text.text(LONGEST_NAME)?,
            (2, Field::Bytes(message)) => read_type(message, &mut read)?,
            _ => {}
        }
    }
    Ok(read)
}

fn read_type(message: Slice<'_>, value: &mut Value) -> Result<(), HeaderError> {
    let mut fields = message.fields();
    while let Some((number, field)) = fields.next()? {
        let (1, Field::Bytes(tensor)) = (number, field) else { continue };
        let mut fields = tensor.fields();
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Number(element)) => value.element = element,
                (2, Field::Bytes(shape)) => value.shape = Some(read_shape(shape)?),
                _ => {}
            }
        }
    }
    Ok(())
}

fn read_shape(shape: Slice<'_>) -> Result<Vec<Option<usize>>, HeaderError> {
    let mut extents = Vec::new();
    let mut fields = shape.fields();
    while let Some((number, field)) = fields.next()? {
        let (1, Field::Bytes(extent)) = (number, field) else { continue };
        check(extents.len(), MOST_EXTENTS, "extents in a shape")?;
        let mut fixed = None;
        let mut fields = extent.fields();
        while let Some((number, field)) = fields.next()? {
            if let (1, Field::Number(number)) = (number, field) {
                fixed = match number.cast_signed() {
                    // Some writers mean "any" by them.
                    0 | -1 => None,
                    ..-1 => {
                        let at = extent.at;
                        return Err(HeaderError::Damaged { what: "a negative extent", at });
                    }
                    number => usize::try_from(number).ok(),
                };
            }
        }
        extents.push(fixed);
    }
    Ok(extents)
}

/// A run of bytes that knows where in the file it is.
#[derive(Debug, Clone, Copy)]
struct Slice<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Slice<'a> {
    fn fields(self) -> Fields<'a> {
        Fields::new(self.bytes, self.at)
    }

    fn text(self, longest: usize) -> Result<String, HeaderError> {
        if self.bytes.len() > longest {
            return Err(HeaderError::TooMuch { what: "bytes in a text", limit: longest });
        }
        std::str::from_utf8(self.bytes)
            .map(str::to_string)
            .map_err(|_| HeaderError::Damaged { what: "a text that is not UTF-8", at: self.at })
    }
}

/// A field of a message.
enum Field<'a> {
    /// A number of variable length.
    Number(u64),
    /// A text, a message, or packed numbers.
    Bytes(Slice<'a>),
    /// Four or eight bytes that nothing here needs.
    Fixed,
}

/// Walks the fields of one message.
struct Fields<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Fields<'a> {
        Fields { rest: bytes, at }
    }

    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, HeaderError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return Err(self.damaged("a field of unknown kind")),
        };
        match key >> 3 {
            0 => Err(self.damaged("a field without a number")),
            number => Ok(Some((number, field))),
        }
    }

    fn take(&mut self, length: usize) -> Result<Slice<'a>, HeaderError> {
        let (bytes, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| self.damaged("an early end"))?;
        let slice = Slice { bytes, at: self.at };
        self.rest = rest;
        self.at += length;
        Ok(slice)
    }

    fn varint(&mut self) -> Result<u64, HeaderError> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index).min(63);
            if byte & 0x80 == 0 {
                self.take(index + 1)?;
                return Ok(value);
            }
        }
        Err(self.damaged("a number without an end"))
    }

    fn damaged(&self, what: &'static str) -> HeaderError {
        HeaderError::Damaged { what, at: self.at }
    }
}

#[cfg(test)]
#[path = "onnx_tests.rs"]
mod tests;
