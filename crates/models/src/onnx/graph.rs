//! An ONNX graph as it was read: operators, tensors and their declared extents.

use std::collections::{BTreeMap, HashMap};

use super::element_name;

/// A tensor of the graph, by its place in [`OnnxGraph::values`].
pub type ValueId = usize;

/// A graph as it was read.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OnnxGraph {
    /// Its operators, in the order of the file.
    pub nodes: Vec<OnnxNode>,
    /// Its tensors.
    pub values: Vec<OnnxValue>,
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

impl OnnxGraph {
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
pub struct OnnxNode {
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
    pub attributes: HashMap<String, OnnxAttribute>,
}

impl OnnxNode {
    /// A whole number among the settings.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name)? {
            OnnxAttribute::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// A list of whole numbers among the settings.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name)? {
            OnnxAttribute::Ints(list) => Some(list),
            _ => None,
        }
    }

    /// A text among the settings.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name)? {
            OnnxAttribute::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What people call it: its name, or what it makes.
    #[must_use]
    pub fn label(&self, graph: &OnnxGraph) -> String {
        match (self.name.as_str(), self.outputs.iter().flatten().next()) {
            ("", Some(&output)) => format!("{} → {}", self.op, graph.values[output].name),
            (name, _) => format!("{} {name}", self.op),
        }
    }
}

/// A setting of an operator.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OnnxAttribute {
    /// A whole number.
    Int(i64),
    /// A fraction.
    Float(f32),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A short text.
    Text(String),
    /// A tensor: its type, extents and, where it is small, its elements.
    Tensor(Box<OnnxValue>),
    /// Something that nothing here needs.
    Other,
}

/// A tensor.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct OnnxValue {
    /// Its name.
    pub name: String,
    /// ONNX's number for the type of its elements; 0 where none is given.
    pub element: u64,
    /// Its extents as the file declares them.
    pub declared: Option<Vec<DeclaredExtent>>,
    /// Where it is a weight: how many bytes.
    pub weight: Option<OnnxWeight>,
    /// The elements of a small constant.
    pub elements: Option<Vec<f64>>,
}

/// An extent as a file declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeclaredExtent {
    /// Fixed.
    Fixed(u64),
    /// Open, with a name: a place in [`OnnxGraph::symbols`].
    Open(usize),
    /// Open, without one.
    Unnamed,
}

/// What a weight takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnnxWeight {
    /// Bytes.
    pub bytes: u64,
    /// Elements.
    pub elements: u64,
}
