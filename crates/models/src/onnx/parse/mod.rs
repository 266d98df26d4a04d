//! From the fields of an ONNX file to its header or its graph.

mod branch;
mod declared;
mod external;
mod node;
mod tensor;

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use plimsoll_machine::files;

use self::declared::Declaration;
use super::wire::{Wire, WireField};
use super::{OnnxError, OnnxGraph, OnnxHeader, OnnxValue, ValueId, order};

const MOST_NODES: usize = 200_000;
const MOST_VALUES: usize = 1_000_000;
const MOST_INPUTS: usize = 16_384;
const MOST_EXTENTS: usize = 64;
/// The most entries of the metadata.
pub(super) const MOST_METADATA_ENTRIES: usize = 4096;
/// The longest value in the metadata: the names of thousands of classes fit.
const LONGEST_METADATA_VALUE: usize = 1 << 20;
/// All metadata together, in bytes.
const MOST_METADATA: usize = 16 << 20;
/// Constants with more elements are weights: their values do not matter for shapes.
const SMALL: u64 = 1024;

/// What of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnnxScope {
    /// Inputs, outputs and metadata; operators and the data of weights are skipped.
    Header,
    /// Operators, tensors and the sizes of weights; the metadata is skipped.
    Graph,
}

impl OnnxGraph {
    /// Reads the graph of an ONNX file. Of files beside it that hold weights only the length
    /// is looked at.
    ///
    /// # Errors
    /// When the file is missing, truncated, damaged, or holds more than is sensible.
    pub fn open(path: &Path) -> Result<OnnxGraph, OnnxError> {
        let file = BufReader::with_capacity(1 << 15, files::open(path)?);
        OnnxParser::new(file, path.parent(), OnnxScope::Graph)?.into_graph()
    }

    /// Reads the graph of an ONNX file in memory, which has no other files beside it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: &[u8]) -> Result<OnnxGraph, OnnxError> {
        OnnxParser::new(Cursor::new(bytes), None, OnnxScope::Graph)?.into_graph()
    }
}

/// Reads the messages of a file, one after the other.
pub(super) struct OnnxParser<'a, F> {
    wire: Wire<F>,
    scope: OnnxScope,
    folder: Option<&'a Path>,
    pub(super) header: OnnxHeader,
    /// Bytes of the metadata so far.
    metadata_bytes: usize,
    /// The names of weights, in the scope of a header.
    weights: HashSet<String>,
    graph: OnnxGraph,
    names: HashMap<String, ValueId>,
    symbols: HashMap<String, usize>,
    /// Where the data of tensors outside of this file ends, by file.
    external: HashMap<String, u64>,
    /// What the branches of the current node read of the graph around them.
    free: HashSet<String>,
    /// The same for every node that has branches.
    captures: Vec<(usize, HashSet<String>)>,
    /// Whether the file gives a version of its operators.
    versioned: bool,
}

impl<'a, F: Read + Seek> OnnxParser<'a, F> {
    pub(super) fn new(
        file: F,
        folder: Option<&'a Path>,
        scope: OnnxScope,
    ) -> Result<Self, OnnxError> {
        Ok(OnnxParser {
            wire: Wire::new(file)?,
            scope,
            folder,
            header: OnnxHeader::default(),
            metadata_bytes: 0,
            weights: HashSet::new(),
            graph: OnnxGraph::default(),
            names: HashMap::new(),
            symbols: HashMap::new(),
            external: HashMap::new(),
            free: HashSet::new(),
            captures: Vec::new(),
            versioned: false,
        })
    }

    /// Reads the whole file, in its scope.
    pub(super) fn model(mut self) -> Result<Self, OnnxError> {
        let (end, mut found) = (self.wire.length, false);
        let for_header = self.scope == OnnxScope::Header;
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                2 if for_header => self.header.producer = self.wire.text(stop)?,
                7 => {
                    found = true;
                    self.graph(stop)?;
                }
                8 if !for_header => {
                    self.versioned = true;
                    self.opset(stop)?;
                }
                14 if for_header => self.metadata(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        if !found {
            return Err(OnnxError::NoGraph);
        }
        self.header.leave_out(&self.weights);
        Ok(self)
    }

    fn into_graph(self) -> Result<OnnxGraph, OnnxError> {
        let mut read = self.model()?;
        if !read.versioned {
            // The version is behind the graph: a file that ends before it is truncated.
            let what = "no version of its operators behind the graph; if it was truncated, \
                        download it again,";
            return Err(OnnxError::Damaged { what, at: read.wire.length });
        }
        read.check_external()?;
        // Old files list every weight as an input as well: those are not for the caller.
        let values = &read.graph.values;
        read.graph.inputs.retain(|&input| values[input].weight.is_none());
        read.add_captures();
        order::arrange(&mut read.graph)?;
        Ok(read.graph)
    }

    fn metadata(&mut self, end: u64) -> Result<(), OnnxError> {
        let (key, value) = self.entry(end, LONGEST_METADATA_VALUE)?;
        self.metadata_bytes += key.len() + value.len();
        limit(self.metadata_bytes, MOST_METADATA, "metadata")?;
        limit(self.header.metadata.len(), MOST_METADATA_ENTRIES, "metadata entries")?;
        self.header.metadata.insert(key, value);
        Ok(())
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

    fn opset(&mut self, end: u64) -> Result<(), OnnxError> {
        let (mut domain, mut version) = (String::new(), 0);
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, WireField::Bytes(stop)) => domain = self.wire.text(stop)?,
                (2, WireField::Number(n)) => version = n,
                (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
        }
        if domain.is_empty() || domain == "ai.onnx" {
            self.graph.opset = version;
        }
        Ok(())
    }

    fn graph(&mut self, end: u64) -> Result<(), OnnxError> {
        let for_header = self.scope == OnnxScope::Header;
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 if !for_header => self.add_node(stop)?,
                5 | 15 if for_header => {
                    let name = self.tensor_name(stop, number == 15)?;
                    limit(self.weights.len(), MOST_VALUES, "values")?;
                    self.weights.insert(name);
                }
                5 | 15 => {
                    let tensor = if number == 5 { self.tensor(stop)? } else { self.sparse(stop)? };
                    let id = self.value(&tensor.name.clone())?;
                    self.graph.values[id] = tensor;
                }
                11 | 12 => self.add_declared(stop, number == 11)?,
                13 if !for_header => {
                    let declared = self.declaration(stop)?;
                    self.declare(declared)?;
                }
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    fn add_node(&mut self, end: u64) -> Result<(), OnnxError> {
        limit(self.graph.nodes.len(), MOST_NODES, "nodes")?;
        let node = self.node(end)?;
        let free = std::mem::take(&mut self.free);
        if !free.is_empty() {
            self.captures.push((self.graph.nodes.len(), free));
        }
        self.graph.nodes.push(node);
        Ok(())
    }

    /// An input or an output of the graph.
    fn add_declared(&mut self, end: u64, is_input: bool) -> Result<(), OnnxError> {
        const WHAT: &str = "inputs or outputs";
        let declared = self.declaration(end)?;
        if self.scope == OnnxScope::Header {
            let OnnxHeader { inputs, outputs, .. } = &mut self.header;
            let list = if is_input { inputs } else { outputs };
            limit(list.len(), MOST_INPUTS, WHAT)?;
            list.push(declared.into_info());
            return Ok(());
        }
        let id = self.declare(declared)?;
        let OnnxGraph { inputs, outputs, .. } = &mut self.graph;
        let list = if is_input { inputs } else { outputs };
        limit(list.len(), MOST_INPUTS, WHAT)?;
        list.push(id);
        Ok(())
    }

    /// Notes what is declared of a value of the graph, where it is no weight.
    fn declare(&mut self, declared: Declaration) -> Result<ValueId, OnnxError> {
        let id = self.value(&declared.name)?;
        let value = &mut self.graph.values[id];
        if value.weight.is_none() {
            value.element = declared.element;
            value.declared = declared.extents;
        }
        Ok(id)
    }

    /// The place of a value, made where there is none yet.
    fn value(&mut self, name: &str) -> Result<ValueId, OnnxError> {
        if let Some(&id) = self.names.get(name) {
            return Ok(id);
        }
        let id = self.graph.values.len();
        limit(id, MOST_VALUES, "values")?;
        self.names.insert(name.to_string(), id);
        self.graph.values.push(OnnxValue { name: name.to_string(), ..OnnxValue::default() });
        Ok(id)
    }
}

fn limit(have: usize, limit: usize, what: &'static str) -> Result<(), OnnxError> {
    if have < limit { Ok(()) } else { Err(OnnxError::TooMuch { what, limit }) }
}
