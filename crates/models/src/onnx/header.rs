//! The header of an ONNX file: what a caller needs to know before running it.

use std::collections::{BTreeMap, HashSet};
use std::io::Cursor;

use super::OnnxError;
use super::parse::{OnnxParser, OnnxScope};

/// An input or output of the graph.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// ONNX's number for the type of its elements; 0 where none is given.
    pub element: u64,
    /// Its extents; `None` where one is not fixed. The whole is `None` where the rank is
    /// not known either.
    pub shape: Option<Vec<Option<usize>>>,
}

/// The header of an ONNX file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OnnxHeader {
    /// The inputs that a caller must give: those with a default are left out.
    pub inputs: Vec<ValueInfo>,
    /// The outputs.
    pub outputs: Vec<ValueInfo>,
    /// The metadata: `names`, `stride`, `task`, …
    pub metadata: BTreeMap<String, String>,
    /// The program that wrote the file.
    pub producer: String,
}

impl OnnxHeader {
    /// Reads the header of an ONNX file.
    ///
    /// # Errors
    /// When the bytes are no ONNX file, are damaged, or hold more than is sensible.
    pub fn parse(bytes: &[u8]) -> Result<OnnxHeader, OnnxError> {
        let parser = OnnxParser::new(Cursor::new(bytes), None, OnnxScope::Header)?;
        Ok(parser.model()?.header)
    }

    /// Old files list every weight as an input as well: those are not for the caller.
    pub(super) fn leave_out(&mut self, weights: &HashSet<String>) {
        self.inputs.retain(|input| !weights.contains(&input.name));
    }
}
