//! ONNX graphs: what they hold and how much of it lives at once, without running them.
//!
//! ```text
//! parse ─→ shapes ─→ live          peak of live bytes, and where it is
//!  Graph     Shaped    Peak
//! ```
//!
//! - `parse`: the graph by the wire format, stepping over the data of weights; files beside
//!   it that hold weights are looked at for their length alone. `order` sorts its operators
//!   where the file does not.
//! - `shapes`: the extents of every tensor from those of the inputs. An operator that is not
//!   known here is named in the answer, and what depends on it is left out by name, never
//!   guessed.
//! - `live`: an order of execution, what dies where, what is a view or written in place.
//! - `ort`: the same as ONNX Runtime does it, down to its arena; `torch`: as PyTorch does it on
//!   CUDA, down to its caching allocator.
//!
//! It uses nothing of this crate, so that it can be fuzzed without building the engines.

mod fold;
mod live;
mod operators;
mod order;
pub mod ort;
mod parse;
mod shapes;
pub mod torch;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::io;

pub use live::{LiveTensor, Peak, TraceEvent};
pub use shapes::{Extents, Shaped};

/// Why a graph cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The bytes cannot be what a writer meant.
    #[error("not an ONNX file, or a damaged one: {what} at byte {at}")]
    Damaged {
        /// What was found.
        what: &'static str,
        /// Where, counted from the start of the file.
        at: u64,
    },
    /// The file ends before what it promises.
    #[error("{name} is truncated: it has {have} of {need} bytes; download it again")]
    Truncated {
        /// The file, or `the file`.
        name: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes that are needed.
        need: u64,
    },
    /// More than any model has.
    #[error("the file has more {what} than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The most that is read.
        limit: usize,
    },
    /// The graph cannot be: a node reads what nobody makes, or an input is fixed otherwise.
    #[error("{0}")]
    Wrong(String),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A tensor of the graph, by its place in [`Graph::values`].
pub type ValueId = usize;

/// A graph as it was read.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Graph {
    /// Its operators, in the order of the file.
    pub nodes: Vec<Node>,
    /// Its tensors.
    pub values: Vec<Value>,
    /// The tensors that a caller gives.
    pub inputs: Vec<ValueId>,
    /// The tensors that a caller gets.
    pub outputs: Vec<ValueId>,
    /// The version of the standard operators.
    pub opset: u64,
    /// Operators inside of branches and loops, which are not walked.
    pub inner_nodes: usize,
    /// Bytes of weights inside of branches and loops.
    pub inner_weights: u64,
    /// The names of extents that are open.
    pub symbols: Vec<String>,
}

impl Graph {
    /// Bytes and elements of the weights, by type.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let mut by_type: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for value in &self.values {
            if let Some(weight) = &value.weight {
                let sum = by_type.entry(element_name(value.element)).or_default();
                *sum = (sum.0.saturating_add(weight.bytes), sum.1.saturating_add(weight.elements));
            }
        }
        if self.inner_weights > 0 {
            by_type.insert("in branches", (self.inner_weights, 0));
        }
        by_type
    }
}

/// An operator.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Node {
    /// Its name; often empty.
    pub name: String,
    /// What it does.
    pub op: String,
    /// Whose operator it is; empty for the standard.
    pub domain: String,
    /// What it reads; `None` where an optional input is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// What it makes.
    pub outputs: Vec<Option<ValueId>>,
    /// Its settings.
    pub attributes: HashMap<String, Attribute>,
}

impl Node {
    /// A whole number among the settings.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name)? {
            Attribute::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// A list of whole numbers among the settings.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name)? {
            Attribute::Ints(list) => Some(list),
            _ => None,
        }
    }

    /// A text among the settings.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name)? {
            Attribute::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What people call it: its name, or what it makes.
    #[must_use]
    pub fn label(&self, graph: &Graph) -> String {
        match (self.name.as_str(), self.outputs.iter().flatten().next()) {
            ("", Some(&output)) => format!("{} → {}", self.op, graph.values[output].name),
            (name, _) => format!("{} {name}", self.op),
        }
    }
}

/// A setting of an operator.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Attribute {
    /// A whole number.
    Int(i64),
    /// A fraction.
    Float(f32),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A short text.
    Text(String),
    /// A tensor: its type, extents and, where it is small, its elements.
    Tensor(Box<Value>),
    /// Something that nothing here needs.
    Other,
}

/// A tensor.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Value {
    /// Its name.
    pub name: String,
    /// ONNX's number for the type of its elements; 0 where none is given.
    pub element: u64,
    /// Its extents as the file declares them.
    pub declared: Option<Vec<Declared>>,
    /// Where it is a weight: how many bytes.
    pub weight: Option<Weight>,
    /// The elements of a small constant.
    pub elements: Option<Vec<f64>>,
}

/// An extent as a file declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Declared {
    /// Fixed.
    Fixed(u64),
    /// Open, with a name: a place in [`Graph::symbols`].
    Open(usize),
    /// Open, without one.
    Unnamed,
}

/// What a weight takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weight {
    /// Bytes.
    pub bytes: u64,
    /// Elements.
    pub elements: u64,
}

/// Bits of an element of ONNX's type; `None` for texts and unknown types.
#[must_use]
pub fn element_bits(element: u64) -> Option<u64> {
    match element {
        1 | 6 | 12 => Some(32),
        2 | 3 | 9 | 17..=20 | 24 => Some(8),
        4 | 5 | 10 | 16 => Some(16),
        7 | 11 | 13 | 14 => Some(64),
        15 => Some(128),
        21..=23 => Some(4),
        25 | 26 => Some(2),
        _ => None,
    }
}

/// The name of ONNX's type.
#[must_use]
pub fn element_name(element: u64) -> &'static str {
    const NAMES: [&str; 27] = [
        "unknown",
        "f32",
        "u8",
        "i8",
        "u16",
        "i16",
        "i32",
        "i64",
        "text",
        "bool",
        "f16",
        "f64",
        "u32",
        "u64",
        "c64",
        "c128",
        "bf16",
        "f8e4m3fn",
        "f8e4m3fnuz",
        "f8e5m2",
        "f8e5m2fnuz",
        "u4",
        "i4",
        "f4e2m1",
        "f8e8m0",
        "u2",
        "i2",
    ];
    usize::try_from(element).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or("unknown")
}

/// Bytes of so many elements, packed where they are smaller than a byte.
#[must_use]
pub fn bytes_of(element: u64, elements: u64) -> u64 {
    elements.saturating_mul(element_bits(element).unwrap_or(0)).div_ceil(8)
}

#[cfg(test)]
mod tests;
