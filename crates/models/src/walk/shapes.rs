//! The extents of every tensor, from those of the inputs.
//!
//! Each extent carries how it is known: fixed in the file, named, or found only here. An
//! engine that plans before it runs can share memory between tensors only where it knows that
//! their extents are equal, so this matters for what it takes.

use std::collections::BTreeMap;

use super::fold;
use super::operators::{self, OperatorCall, ShapeRefusal};
use crate::onnx::{DeclaredExtent, OnnxError, OnnxGraph, OnnxNode, ValueId, bytes_of};

/// How an extent is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Known {
    /// Fixed in the file, or computed from what is.
    Fixed,
    /// A name in the file.
    Named(usize),
    /// From the size of an input alone.
    Given,
}

/// An extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim {
    /// How many.
    pub n: u64,
    /// How that is known.
    pub known: Known,
}

impl Dim {
    /// One that is fixed.
    pub(super) fn fixed(n: u64) -> Dim {
        Dim { n, known: Known::Fixed }
    }

    /// One that was computed from another.
    pub(super) fn from(self, n: u64) -> Dim {
        let known = if self.known == Known::Fixed { Known::Fixed } else { Known::Given };
        Dim { n, known }
    }

    /// Whether a planner can tell that both are the same.
    pub(super) fn surely_is(self, other: Dim) -> bool {
        self == other && self.known != Known::Given
    }
}

/// What open extents of the inputs are taken to be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputExtents {
    /// Rows and columns of images.
    pub image: (u64, u64),
    /// Images or sequences at once.
    pub batch: u64,
    /// Tokens of a sequence.
    pub tokens: u64,
    /// By `input:axis`; these win over all others.
    pub by_place: BTreeMap<String, u64>,
}

impl Default for InputExtents {
    fn default() -> Self {
        InputExtents { image: (640, 640), batch: 1, tokens: 128, by_place: BTreeMap::new() }
    }
}

impl InputExtents {
    /// What an open extent is: by its place, by its name, by where images have it.
    fn of(&self, input: &str, axis: usize, rank: usize, symbol: Option<&str>) -> u64 {
        if let Some(&n) = self.by_place.get(&format!("{input}:{axis}")) {
            return n;
        }
        if let Some(&n) = self.by_place.get(&format!("*:{axis}")) {
            return n;
        }
        let name = symbol.unwrap_or_default().to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match (rank, axis) {
            (_, 0) => self.batch,
            (4, 1) if says(&["height", "width"]) => self.image.0,
            (4, 1) => 3,
            (4, 2) => self.image.0,
            (4, 3) => self.image.1,
            (2, 1) => self.tokens,
            _ if says(&["past", "cache"]) => 0,
            _ if says(&["seq", "length", "token", "text", "time", "frame"]) => self.tokens,
            _ => 1,
        }
    }
}

impl InputExtents {
    /// Whether some open extent of a graph's inputs is its number of tokens.
    pub(crate) fn has_tokens(&self, graph: &OnnxGraph) -> bool {
        let other = InputExtents { tokens: self.tokens.wrapping_add(1), ..self.clone() };
        graph.inputs.iter().map(|&id| &graph.values[id]).any(|value| {
            let declared = value.declared.as_deref().unwrap_or_default();
            declared.iter().enumerate().any(|(axis, extent)| {
                let name = match extent {
                    DeclaredExtent::Fixed(_) => return false,
                    DeclaredExtent::Open(symbol) => Some(graph.symbols[*symbol].as_str()),
                    DeclaredExtent::Unnamed => None,
                };
                let of =
                    |extents: &InputExtents| extents.of(&value.name, axis, declared.len(), name);
                of(self) != of(&other)
            })
        })
    }
}

/// A graph whose tensors have extents.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Shaped {
    /// The graph.
    pub graph: OnnxGraph,
    /// The extents of each value; `None` where they are not known before it runs.
    pub shapes: Vec<Option<Vec<Dim>>>,
    /// ONNX's number for the type of each value.
    pub elements: Vec<u64>,
    /// Whether a value is fixed: a weight, or computed from weights alone.
    pub constant: Vec<bool>,
    /// The elements of small values that are known before it runs.
    pub known: Vec<Option<Vec<f64>>>,
    /// What was taken for granted: inputs, outputs that depend on the data.
    pub notes: Vec<String>,
    /// Operators that are not known here, with how often they occur.
    pub unknown: BTreeMap<String, usize>,
}

impl OnnxGraph {
    /// Gives every tensor its extents.
    ///
    /// # Errors
    /// When the graph cannot be: extents that do not go together, or beyond counting.
    pub fn shape(self, extents: &InputExtents) -> Result<Shaped, OnnxError> {
        let count = self.values.len();
        let mut shaped = Shaped {
            shapes: vec![None; count],
            elements: self.values.iter().map(|value| value.element).collect(),
            constant: vec![false; count],
            known: self.values.iter().map(|value| value.elements.clone()).collect(),
            notes: Vec::new(),
            unknown: BTreeMap::new(),
            graph: self,
        };
        shaped.begin(extents)?;
        for index in 0..shaped.graph.nodes.len() {
            shaped.node(index)?;
        }
        if shaped.graph.inner_nodes > 0 {
            shaped.notes.push(format!(
                "{} operators inside of branches and loops are not walked: what they make for themselves is not counted",
                shaped.graph.inner_nodes
            ));
        }
        Ok(shaped)
    }
}

impl Shaped {
    /// Bytes of a value; `None` where its extents are not known.
    #[must_use]
    pub fn bytes(&self, id: ValueId) -> Option<u64> {
        let shape = self.shapes.get(id)?.as_ref()?;
        let elements = shape.iter().try_fold(1u64, |all, dim| all.checked_mul(dim.n))?;
        Some(bytes_of(self.elements[id], elements))
    }

    fn begin(&mut self, extents: &InputExtents) -> Result<(), OnnxError> {
        for (id, value) in self.graph.values.iter().enumerate() {
            if value.weight.is_some() {
                self.constant[id] = true;
                self.shapes[id] = value.declared.as_ref().map(|list| {
                    let fixed = |extent: &DeclaredExtent| match extent {
                        DeclaredExtent::Fixed(n) => *n,
                        _ => 0,
                    };
                    list.iter().map(|extent| Dim::fixed(fixed(extent))).collect()
                });
            }
        }
        for &id in &self.graph.inputs {
            let value = &self.graph.values[id];
            let Some(declared) = &value.declared else {
                self.notes.push(format!("input {} has no declared extents", value.name));
                continue;
            };
            let mut open = Vec::new();
            let dims = declared.iter().enumerate().map(|(axis, extent)| {
                let symbol = match extent {
                    DeclaredExtent::Fixed(n) => return Dim::fixed(*n),
                    DeclaredExtent::Open(symbol) => Some(*symbol),
                    DeclaredExtent::Unnamed => None,
                };
                let name = symbol.map(|symbol| self.graph.symbols[symbol].as_str());
                let n = extents.of(&value.name, axis, declared.len(), name);
                open.push(format!("{}={n}", name.unwrap_or("?")));
                Dim { n, known: symbol.map_or(Known::Given, Known::Named) }
            });
            let dims: Vec<Dim> = dims.collect();
            if !open.is_empty() {
                self.notes.push(format!("input {}: {} taken", value.name, open.join(", ")));
            }
            self.shapes[id] = Some(dims);
        }
        self.check_given(extents)
    }

    /// A place that was named must exist, and be open or agree.
    fn check_given(&self, extents: &InputExtents) -> Result<(), OnnxError> {
        for (place, &n) in &extents.by_place {
            let Some((input, axis)) = place.rsplit_once(':').filter(|(input, _)| *input != "*")
            else {
                continue;
            };
            let found = self.graph.inputs.iter().find(|&&id| self.graph.values[id].name == input);
            let shape = found.and_then(|&id| self.shapes[id].as_ref());
            let dim = axis.parse().ok().and_then(|axis: usize| shape?.get(axis));
            match dim {
                None => return Err(OnnxError::Wrong(format!("the graph has no input {place}"))),
                Some(dim) if dim.n != n => {
                    return Err(OnnxError::Wrong(format!(
                        "{place} is fixed at {} in the graph, not {n}; export it anew with that \
                         size or with open extents",
                        dim.n
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn node(&mut self, index: usize) -> Result<(), OnnxError> {
        let node = &self.graph.nodes[index];
        let call = OperatorCall {
            node,
            shapes: node.inputs.iter().map(|id| self.shapes[(*id)?].as_deref()).collect(),
            elements: node.inputs.iter().map(|id| id.map_or(0, |id| self.elements[id])).collect(),
            known: node.inputs.iter().map(|id| self.known[(*id)?].as_deref()).collect(),
            opset: self.graph.opset,
        };
        let known = fold::evaluate(&call);
        let found = operators::infer(&call);
        let inputs_constant = !node.inputs.is_empty()
            && node.inputs.iter().flatten().all(|&id| self.constant[id])
            || node.op == "Constant" && node.domain.is_empty();
        let wrong = |why: String| {
            OnnxError::Wrong(format!("the graph cannot be: {}: {why}", node.label(&self.graph)))
        };
        let outputs = node.outputs.clone();
        match found {
            Ok(found) => {
                for (id, made) in outputs.iter().zip(found) {
                    let Some(id) = *id else { continue };
                    let elements =
                        made.shape.iter().try_fold(1u64, |all, dim| all.checked_mul(dim.n));
                    if elements.is_none_or(|n| n > 1 << 50) {
                        return Err(wrong("a tensor beyond counting".to_string()));
                    }
                    self.shapes[id] = Some(made.shape);
                    self.elements[id] = made.element;
                }
            }
            Err(ShapeRefusal::Impossible(why)) => return Err(wrong(why)),
            Err(ShapeRefusal::Unknown) => {
                let name = operator_name(node);
                *self.unknown.entry(name).or_default() += 1;
                self.take_declared(&outputs);
            }
            // Said once, where it begins: what follows from it says nothing new.
            Err(ShapeRefusal::Follows) => self.take_declared(&outputs),
            Err(ShapeRefusal::Data(why)) => {
                let note = format!("{}: {why}", node.label(&self.graph));
                self.notes.push(note);
                self.take_declared(&outputs);
            }
        }
        if let (Some(list), Some(Some(id))) = (known, outputs.first()) {
            self.known[*id] = Some(list);
        }
        for id in outputs.iter().flatten() {
            let shape_alone = self.known[*id].is_some() && self.is_fixed_shape_of(index);
            self.constant[*id] = inputs_constant || shape_alone;
        }
        Ok(())
    }

    /// Whether a node asks for extents that are all fixed: engines fold that.
    fn is_fixed_shape_of(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        let input = node.inputs.first().copied().flatten();
        let fixed = |id: ValueId| {
            self.shapes[id]
                .as_ref()
                .is_some_and(|shape| shape.iter().all(|dim| dim.known == Known::Fixed))
        };
        matches!(node.op.as_str(), "Shape" | "Size") && input.is_some_and(fixed)
    }

    /// What a file declares of values that cannot be inferred.
    fn take_declared(&mut self, ids: &[Option<ValueId>]) {
        for id in ids.iter().flatten() {
            let Some(declared) = &self.graph.values[*id].declared else { continue };
            let fixed: Option<Vec<Dim>> = declared
                .iter()
                .map(|extent| match extent {
                    DeclaredExtent::Fixed(n) => Some(Dim::fixed(*n)),
                    _ => None,
                })
                .collect();
            self.shapes[*id] = fixed;
        }
    }
}

fn operator_name(node: &OnnxNode) -> String {
    if node.domain.is_empty() { node.op.clone() } else { format!("{}:{}", node.domain, node.op) }
}
