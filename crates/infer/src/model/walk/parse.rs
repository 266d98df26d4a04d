//! From the bytes of a file to a graph.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Cursor, Read, Seek};
use std::path::{Component, Path};

use super::wire::{Field, Wire};
use super::{Attribute, Declared, Graph, GraphError, Node, Value, ValueId, Weight, bytes_of};

const MOST_NODES: usize = 200_000;
const MOST_VALUES: usize = 1_000_000;
const MOST_INPUTS: usize = 16_384;
const MOST_EXTENTS: usize = 64;
/// Constants with more elements are weights: their values do not matter for shapes.
const SMALL: u64 = 1024;
const DEEPEST: usize = 8;

impl Graph {
    /// Reads the graph of an ONNX file. Of files beside it that hold weights only the length
    /// is looked at.
    ///
    /// # Errors
    /// When the file is missing, truncated, damaged, or holds more than is sensible.
    pub fn open(path: &Path) -> Result<Graph, GraphError> {
        Parser::new(File::open(path)?, path.parent())?.model()
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
        })
    }

    fn model(mut self) -> Result<Graph, GraphError> {
        let end = self.wire.length;
        let mut found = false;
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                7 => {
                    found = true;
                    self.graph(stop)?;
                }
                8 => self.opset(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        if !found {
            return Err(GraphError::Damaged { what: "no graph in it", at: end });
        }
        self.check_outside()?;
        // Old files list every weight as an input as well: those are not for the caller.
        let values = &self.graph.values;
        self.graph.inputs.retain(|&input| values[input].weight.is_none());
        Ok(self.graph)
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
                    self.graph.nodes.push(node);
                }
                5 => {
                    let tensor = self.tensor(stop)?;
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
                (6, Field::Bytes(stop)) => self.inner_graph(stop, 0)?,
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

    /// The graph of a branch or a loop: its weights count, its operators are told.
    fn inner_graph(&mut self, end: u64, depth: usize) -> Result<(), GraphError> {
        limit(depth, DEEPEST, "graphs inside of each other")?;
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 => {
                    self.graph.inner_nodes += 1;
                    self.inner_node(stop, depth)?;
                }
                5 => {
                    let tensor = self.tensor(stop)?;
                    self.add_inner(&tensor);
                }
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    fn inner_node(&mut self, end: u64, depth: usize) -> Result<(), GraphError> {
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            if number == 5 {
                while let Some((number, field)) = self.wire.next(stop)? {
                    let Field::Bytes(stop) = field else { continue };
                    match number {
                        5 => {
                            let tensor = self.tensor(stop)?;
                            self.add_inner(&tensor);
                        }
                        6 => self.inner_graph(stop, depth + 1)?,
                        _ => {}
                    }
                    self.wire.go(stop)?;
                }
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    fn add_inner(&mut self, tensor: &Value) {
        let bytes = tensor.weight.map_or(0, |weight| weight.bytes);
        self.graph.inner_weights = self.graph.inner_weights.saturating_add(bytes);
    }

    fn tensor(&mut self, end: u64) -> Result<Value, GraphError> {
        let mut value = Value::default();
        let mut dims = Vec::new();
        let mut data = Data::default();
        let mut outside = Vec::new();
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, Field::Number(n)) => dims.push(n.cast_signed()),
                (1, Field::Bytes(stop)) => self.packed(stop, &mut dims)?,
                (2, Field::Number(n)) => value.element = n,
                (8, Field::Bytes(stop)) => value.name = self.wire.text(stop)?,
                (9, Field::Bytes(stop)) => {
                    data.raw_length = stop - self.wire.at;
                    if data.raw_length <= SMALL * 8 {
                        data.raw = Some(self.wire.bytes(stop, SMALL as usize * 8)?);
                    }
                    self.wire.go(stop)?;
                }
                (4, Field::Fixed(bits)) => data.push(f64::from(f32::from_bits(bits))),
                (4, Field::Bytes(stop)) => self.floats(stop, &mut data)?,
                (5 | 7 | 11, Field::Number(n)) => data.push(n.cast_signed() as f64),
                (5 | 7 | 11, Field::Bytes(stop)) => self.whole(stop, &mut data)?,
                (13, Field::Bytes(stop)) => {
                    limit(outside.len(), MOST_EXTENTS, "entries of external data")?;
                    outside.push(self.entry(stop)?);
                }
                (_, Field::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
            limit(dims.len(), MOST_EXTENTS, "extents in a shape")?;
        }
        let at = self.wire.at;
        let wrong = |what| GraphError::Damaged { what, at };
        let mut elements = 1u64;
        for &extent in &dims {
            let extent = u64::try_from(extent).map_err(|_| wrong("a negative extent"))?;
            elements =
                elements.checked_mul(extent).ok_or_else(|| wrong("extents beyond counting"))?;
        }
        if elements > 1 << 56 {
            return Err(wrong("extents beyond counting"));
        }
        let bytes = bytes_of(value.element, elements);
        if data.raw_length > 0 && data.raw_length < bytes {
            return Err(wrong("a tensor with less data than its extents say"));
        }
        self.note_outside(&outside, bytes)?;
        value.declared = Some(dims.iter().map(|&n| Declared::Fixed(n.cast_unsigned())).collect());
        value.elements = data.elements(value.element, elements);
        value.weight = Some(Weight { bytes, elements });
        Ok(value)
    }

    fn floats(&mut self, end: u64, data: &mut Data) -> Result<(), GraphError> {
        if end - self.wire.at > SMALL * 4 {
            return self.wire.go(end);
        }
        while self.wire.at < end {
            data.push(f64::from(f32::from_le_bytes(self.wire.array()?)));
        }
        Ok(())
    }

    fn whole(&mut self, end: u64, data: &mut Data) -> Result<(), GraphError> {
        if end - self.wire.at > SMALL * 10 {
            return self.wire.go(end);
        }
        while self.wire.at < end {
            data.push(self.wire.varint()?.cast_signed() as f64);
        }
        Ok(())
    }

    fn entry(&mut self, end: u64) -> Result<(String, String), GraphError> {
        let (mut key, mut value) = (String::new(), String::new());
        while let Some((number, field)) = self.wire.next(end)? {
            let Field::Bytes(stop) = field else { continue };
            match number {
                1 => key = self.wire.text(stop)?,
                2 => value = self.wire.text(stop)?,
                _ => self.wire.go(stop)?,
            }
        }
        Ok((key, value))
    }

    fn note_outside(&mut self, entries: &[(String, String)], bytes: u64) -> Result<(), GraphError> {
        let get = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let Some(location) = get("location") else { return Ok(()) };
        let offset = get("offset").map_or(Ok(0), |text| text.parse::<u64>());
        let offset = offset.map_err(|_| self.wire.damaged("an offset that is no number"))?;
        let end = offset.saturating_add(bytes);
        let last = self.outside.entry(location.clone()).or_default();
        *last = end.max(*last);
        limit(self.outside.len(), 4096, "files of external data")
    }

    /// The files beside this one hold what it says they do.
    fn check_outside(&self) -> Result<(), GraphError> {
        let Some(folder) = self.folder else { return Ok(()) };
        for (name, &need) in &self.outside {
            // A file names others in its own folder, and none elsewhere.
            if Path::new(name).components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(GraphError::Wrong(format!(
                    "its weights are said to be in {name}, outside of its folder: refused"
                )));
            }
            let path = folder.join(name);
            let have = fs::metadata(&path)
                .map_err(|error| {
                    GraphError::Wrong(format!("its weights are in {}: {error}", path.display()))
                })?
                .len();
            if have < need {
                return Err(GraphError::Truncated { name: path.display().to_string(), have, need });
            }
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

/// The elements of a tensor, in whichever field they come.
#[derive(Default)]
struct Data {
    raw: Option<Vec<u8>>,
    raw_length: u64,
    list: Vec<f64>,
}

impl Data {
    fn push(&mut self, element: f64) {
        if (self.list.len() as u64) < SMALL {
            self.list.push(element);
        }
    }

    /// The elements where there are few and their type is plain.
    fn elements(self, element: u64, count: u64) -> Option<Vec<f64>> {
        if count > SMALL {
            return None;
        }
        let list = match self.raw {
            Some(raw) => decode(element, &raw)?,
            None => self.list,
        };
        (list.len() as u64 >= count).then(|| list.into_iter().take(count as usize).collect())
    }
}

fn decode(element: u64, raw: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(raw: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        raw.as_chunks::<N>().0.iter().map(|&bytes| read(bytes)).collect()
    }
    Some(match element {
        1 => each(raw, |bytes| f64::from(f32::from_le_bytes(bytes))),
        2 | 9 => each(raw, |[byte]| f64::from(byte)),
        3 => each(raw, |bytes| f64::from(i8::from_le_bytes(bytes))),
        6 => each(raw, |bytes| f64::from(i32::from_le_bytes(bytes))),
        7 => each(raw, |bytes| i64::from_le_bytes(bytes) as f64),
        11 => each(raw, f64::from_le_bytes),
        _ => return None,
    })
}
