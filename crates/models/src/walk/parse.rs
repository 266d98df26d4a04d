//! From the bytes of a file to a graph.

mod inner;
mod outside;
mod tensor;

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read, Seek};
use std::path::Path;

use plimsoll_machine::files;

use super::wire::{Field, Wire};
use super::{Attribute, Declared, Graph, GraphError, Node, Value, ValueId, order};

const MOST_NODES: usize = 200_000;
const MOST_VALUES: usize = 1_000_000;
const MOST_INPUTS: usize = 16_384;
const MOST_EXTENTS: usize = 64;
/// Constants with more elements are weights: their values do not matter for shapes.
const SMALL: u64 = 1024;

impl Graph {
    /// Reads the graph of an ONNX file. Of files beside it that hold weights only the length
    /// is looked at.
    ///
    /// # Errors
    /// When the file is missing, truncated, damaged, or holds more than is sensible.
    pub fn open(path: &Path) -> Result<Graph, GraphError> {
        Parser::new(files::open(path)?, path.parent())?.model()
    }

    /// Reads the graph of an ONNX file in memory, which has no other files beside it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: &[u8]) -> Result<Graph, GraphError> {
        Parser::new(Cursor::new(bytes), None)?.model()
    }
}

struct Parser<'a, F> {
    wire: Wire<F>,
    folder: Option<&'a Path>,
    graph: Graph,
    names: HashMap<String, ValueId>,
    symbols: HashMap<String, usize>,
    /// Where the data of tensors outside of this file ends, by file.
    outside: HashMap<String, u64>,
    /// What the branches of the node at hand read of the graph around them.
    free: HashSet<String>,
    /// The same for every node that has branches.
    captures: Vec<(usize, HashSet<String>)>,
}

impl<'a, F: Read + Seek> Parser<'a, F> {
    fn new(file: F, folder: Option<&'a Path>) -> Result<Self, GraphError> {
        Ok(Parser {
            wire: Wire::new(file)?,
            folder,
            graph: Graph::default(),
            names: HashMap::new(),
            symbols: HashMap::new(),
            outside: HashMap::new(),
            free: HashSet::new(),
            captures: Vec::new(),
        })
    }

    fn model(mut self) -> Result<Graph, GraphError> {
        let end = self.wire.length;
        let (mut found, mut versioned) = (false, false);
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                7 => {
                    found = true;
                    self.graph(stop)?;
                }
                8 => {
                    versioned = true;
                    self.opset(stop)?;
                }
                _ => {}
            }
            self.wire.go(stop)?;
        }
        if !found {
            return Err(GraphError::Damaged { what: "no graph in it", at: end });
        }
        if !versioned {
            // It stands behind the graph: a file that ends before it broke off there.
            let what = "no version of its operators behind the graph; if it was truncated, \
                        download it again,";
            return Err(GraphError::Damaged { what, at: end });
        }
        self.check_outside()?;
        // Old files list every weight as an input as well: those are not for the caller.
        let values = &self.graph.values;
        self.graph.inputs.retain(|&input| values[input].weight.is_none());
        self.add_captures();
        order::arrange(&mut self.graph)?;
        Ok(self.graph)
    }

    /// A branch or loop reads what its inner graphs read of the graph around them.
    fn add_captures(&mut self) {
        for (node, names) in std::mem::take(&mut self.captures) {
            let mut ids: Vec<ValueId> =
                names.iter().filter_map(|name| self.names.get(name).copied()).collect();
            ids.sort_unstable();
            self.graph.nodes[node].inputs.extend(ids.into_iter().map(Some));
        }
    }

    fn opset(&mut self, end: u64) -> Result<(), GraphError> {
        let (mut domain, mut version) = (String::new(), 0);
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, Field::Bytes(stop)) => domain = self.wire.text(stop)?,
                (2, Field::Number(n)) => version = n,
                (_, Field::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
        }
        if domain.is_empty() || domain == "ai.onnx" {
            self.graph.opset = version;
        }
        Ok(())
    }

    fn graph(&mut self, end: u64) -> Result<(), GraphError> {
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 => {
                    limit(self.graph.nodes.len(), MOST_NODES, "nodes")?;
                    let node = self.node(stop)?;
                    let free = std::mem::take(&mut self.free);
                    if !free.is_empty() {
                        self.captures.push((self.graph.nodes.len(), free));
                    }
                    self.graph.nodes.push(node);
                }
                5 => {
                    let tensor = self.tensor(stop)?;
                    let id = self.value(&tensor.name.clone())?;
                    self.graph.values[id] = tensor;
                }
                15 => {
                    let tensor = self.sparse(stop)?;
                    let id = self.value(&tensor.name.clone())?;
                    self.graph.values[id] = tensor;
                }
                11..=13 => {
                    let id = self.declaration(stop)?;
                    let list = match number {
                        11 => &mut self.graph.inputs,
                        12 => &mut self.graph.outputs,
                        _ => {
                            self.wire.go(stop)?;
                            continue;
                        }
                    };
                    limit(list.len(), MOST_INPUTS, "inputs or outputs")?;
                    list.push(id);
                }
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    /// The place of a value, made where there is none yet.
    fn value(&mut self, name: &str) -> Result<ValueId, GraphError> {
        if let Some(&id) = self.names.get(name) {
            return Ok(id);
        }
        let id = self.graph.values.len();
        limit(id, MOST_VALUES, "values")?;
        self.names.insert(name.to_string(), id);
        self.graph.values.push(Value { name: name.to_string(), ..Value::default() });
        Ok(id)
    }

    fn link(&mut self, end: u64) -> Result<Option<ValueId>, GraphError> {
        let name = self.wire.text(end)?;
        if name.is_empty() { Ok(None) } else { self.value(&name).map(Some) }
    }

    fn node(&mut self, end: u64) -> Result<Node, GraphError> {
        let mut node = Node::default();
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 | 2 => {
                    let id = self.link(stop)?;
                    let list = if number == 1 { &mut node.inputs } else { &mut node.outputs };
                    limit(list.len(), MOST_INPUTS, "inputs or outputs")?;
                    list.push(id);
                }
                3 => node.name = self.wire.text(stop)?,
                4 => node.op = self.wire.text(stop)?,
                5 => {
                    limit(node.attributes.len(), MOST_EXTENTS, "attributes of a node")?;
                    let (name, attribute) = self.attribute(stop)?;
                    node.attributes.insert(name, attribute);
                }
                7 => node.domain = self.wire.text(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        if node.domain == "ai.onnx" {
            node.domain.clear();
        }
        Ok(node)
    }

    fn attribute(&mut self, end: u64) -> Result<(String, Attribute), GraphError> {
        let mut name = String::new();
        let mut found = Attribute::Other;
        let mut ints = Vec::new();
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, Field::Bytes(stop)) => name = self.wire.text(stop)?,
                (2, Field::Fixed(bits)) => found = Attribute::Float(f32::from_bits(bits)),
                (3, Field::Number(n)) => found = Attribute::Int(n.cast_signed()),
                (4, Field::Bytes(stop)) if stop - self.wire.at <= 4096 => {
                    let bytes = self.wire.bytes(stop, 4096)?;
                    found = Attribute::Text(String::from_utf8_lossy(&bytes).into_owned());
                }
                (5, Field::Bytes(stop)) => found = Attribute::Tensor(Box::new(self.tensor(stop)?)),
                (6, Field::Bytes(stop)) => {
                    let free = self.inner_graph(stop, 0)?;
                    self.free.extend(free);
                }
                (8, Field::Number(n)) => ints.push(n.cast_signed()),
                (8, Field::Bytes(stop)) => self.packed(stop, &mut ints)?,
                (_, Field::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
            limit(ints.len(), 65_536, "numbers in an attribute")?;
        }
        if !ints.is_empty() {
            found = Attribute::Ints(ints);
        }
        Ok((name, found))
    }

    fn packed(&mut self, end: u64, into: &mut Vec<i64>) -> Result<(), GraphError> {
        while self.wire.at < end {
            into.push(self.wire.varint()?.cast_signed());
            limit(into.len(), 65_536, "numbers in a list")?;
        }
        Ok(())
    }

    fn declaration(&mut self, end: u64) -> Result<ValueId, GraphError> {
        let (mut name, mut element, mut declared) = (String::new(), 0, None);
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 => name = self.wire.text(stop)?,
                2 => (element, declared) = self.type_of(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        let id = self.value(&name)?;
        let value = &mut self.graph.values[id];
        if value.weight.is_none() {
            value.element = element;
            value.declared = declared;
        }
        Ok(id)
    }

    fn type_of(&mut self, end: u64) -> Result<(u64, Option<Vec<Declared>>), GraphError> {
        let (mut element, mut declared) = (0, None);
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            if number == 1 {
                while let Some((number, field)) = self.wire.next(stop)? {
                    match (number, field) {
                        (1, Field::Number(n)) => element = n,
                        (2, Field::Bytes(stop)) => declared = Some(self.shape(stop)?),
                        (_, Field::Bytes(stop)) => self.wire.go(stop)?,
                        _ => {}
                    }
                }
            }
            self.wire.go(stop)?;
        }
        Ok((element, declared))
    }

    fn shape(&mut self, end: u64) -> Result<Vec<Declared>, GraphError> {
        let mut extents = Vec::new();
        while let Some((_, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            limit(extents.len(), MOST_EXTENTS, "extents in a shape")?;
            let mut extent = Declared::Unnamed;
            while let Some((number, field)) = self.wire.next(stop)? {
                match (number, field) {
                    (1, Field::Number(n)) => {
                        extent = match n.cast_signed() {
                            // Some writers mean "any" by them.
                            0 | -1 => Declared::Unnamed,
                            ..-1 => return Err(self.wire.damaged("a negative extent")),
                            _ => Declared::Fixed(n),
                        };
                    }
                    (2, Field::Bytes(stop)) => {
                        let name = self.wire.text(stop)?;
                        extent = Declared::Open(self.symbol(name));
                    }
                    (_, Field::Bytes(stop)) => self.wire.go(stop)?,
                    _ => {}
                }
            }
            extents.push(extent);
        }
        Ok(extents)
    }

    fn symbol(&mut self, name: String) -> usize {
        let next = self.symbols.len();
        let id = *self.symbols.entry(name.clone()).or_insert(next);
        if id == next {
            self.graph.symbols.push(name);
        }
        id
    }
}

fn limit(have: usize, limit: usize, what: &'static str) -> Result<(), GraphError> {
    if have < limit { Ok(()) } else { Err(GraphError::TooMuch { what, limit }) }
}
