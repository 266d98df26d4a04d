//! A graph under construction: nodes, weights, and where each value comes from.

use std::collections::HashMap;

use half::f16;

use super::super::pt::{Array, PtError, PtResult};
use super::message::{Message, field_length};

/// The most nodes: YOLO11x has about 1,200.
const MOST_NODES: usize = 20_000;
/// A protobuf message cannot be larger than 2 GiB.
const LARGEST: usize = (1 << 31) - (1 << 20);

/// ONNX's numbers for the types of elements.
pub(super) const FLOAT: i64 = 1;
const INT64: i64 = 7;
const FLOAT16: i64 = 10;

/// A value that flows along an edge: images with this many channels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageValue {
    pub(super) name: String,
    pub(super) channels: usize,
    /// Rows and columns, where they are fixed.
    pub(super) size: Option<(usize, usize)>,
}

impl ImageValue {
    /// The same images with another name and other channels.
    pub(super) fn with(&self, name: String, channels: usize) -> ImageValue {
        ImageValue { name, channels, size: self.size }
    }
}

/// An attribute of a node.
#[derive(Debug, Clone)]
pub(super) enum NodeAttribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
}

/// Attributes by name.
pub(super) type NodeAttributes<'a> = &'a [(&'a str, NodeAttribute)];

/// A weight, as it will stand in the file.
#[derive(Debug)]
struct GraphWeight {
    head: Message,
    data: Vec<u8>,
}

/// Nodes and weights so far.
#[derive(Debug, Default)]
pub(super) struct GraphBuilder {
    nodes: Vec<Message>,
    weights: Vec<GraphWeight>,
    bytes: usize,
    names: HashMap<String, usize>,
    half: bool,
    visits: usize,
}

impl GraphBuilder {
    /// `half` keeps weights in sixteen bits from here on.
    pub(super) fn new(half: bool) -> GraphBuilder {
        GraphBuilder { half, ..GraphBuilder::default() }
    }

    /// Counts a module that is gone through. Modules that hold each other again and again
    /// can make a tree of billions from a few lines.
    pub(super) fn visit(&mut self) -> PtResult<()> {
        self.visits += 1;
        if self.visits > MOST_NODES { Err(PtError::TooLarge) } else { Ok(()) }
    }

    /// From here on in 32 bits, whatever came before.
    pub(super) fn full_precision(&mut self) -> bool {
        std::mem::take(&mut self.half)
    }

    /// A name that nothing has yet.
    fn unique(&mut self, wanted: String) -> String {
        let count = self.names.entry(wanted.clone()).or_default();
        *count += 1;
        match *count {
            1 => wanted,
            again => format!("{wanted}_{}", again - 1),
        }
    }

    /// Adds a node with one output and returns the output's name.
    pub(super) fn node(
        &mut self,
        place: &str,
        kind: &str,
        inputs: &[&str],
        attributes: NodeAttributes<'_>,
    ) -> PtResult<String> {
        let mut outputs = self.node_with(place, kind, inputs, attributes, 1)?;
        Ok(outputs.swap_remove(0))
    }

    /// Adds a node and returns the names of its outputs.
    pub(super) fn node_with(
        &mut self,
        place: &str,
        kind: &str,
        inputs: &[&str],
        attributes: NodeAttributes<'_>,
        outputs: usize,
    ) -> PtResult<Vec<String>> {
        let name = self.unique(format!("/{}/{kind}", place.replace('.', "/")));
        let outputs: Vec<String> =
            (0..outputs).map(|index| format!("{name}_output_{index}")).collect();
        self.raw_node(&name, kind, inputs, &outputs, attributes)?;
        Ok(outputs)
    }

    /// The axes in another order.
    pub(super) fn transpose(&mut self, place: &str, x: &str, order: &[i64]) -> PtResult<String> {
        self.node(place, "Transpose", &[x], &[("perm", NodeAttribute::Ints(order.to_vec()))])
    }

    /// The same numbers in another shape; 0 keeps an extent, −1 takes what is left.
    pub(super) fn reshape(&mut self, place: &str, x: &str, shape: &[i64]) -> PtResult<String> {
        let shape = self.ints(place, shape)?;
        self.node(place, "Reshape", &[x, &shape], &[])
    }

    /// Parts of these lengths along an axis.
    pub(super) fn split(
        &mut self,
        place: &str,
        x: &str,
        axis: i64,
        lengths: &[i64],
    ) -> PtResult<Vec<String>> {
        let sizes = self.ints(place, lengths)?;
        let axis = [("axis", NodeAttribute::Int(axis))];
        self.node_with(place, "Split", &[x, &sizes], &axis, lengths.len())
    }

    /// Adds a node whose outputs have the names that they must have.
    pub(super) fn raw_node(
        &mut self,
        name: &str,
        kind: &str,
        inputs: &[&str],
        outputs: &[String],
        attributes: NodeAttributes<'_>,
    ) -> PtResult<()> {
        if self.nodes.len() == MOST_NODES {
            return Err(PtError::TooLarge);
        }
        let mut node = Message::default();
        for input in inputs {
            node.text(1, input);
        }
        for output in outputs {
            node.text(2, output);
        }
        node.text(3, name).text(4, kind);
        for (name, value) in attributes {
            node.message(5, &attribute(name, value));
        }
        self.nodes.push(node);
        Ok(())
    }

    /// A weight of the network, in the precision of the graph.
    pub(super) fn weight(&mut self, name: String, array: &Array) -> PtResult<String> {
        let shape: Vec<i64> = array.shape.iter().map(|&extent| extent as i64).collect();
        if !self.half {
            return self.tensor(name, FLOAT, &shape, bytes_of(&array.data));
        }
        let mut data = Vec::with_capacity(2 * array.data.len());
        for &x in &array.data {
            data.extend_from_slice(&f16::from_f32(x).to_le_bytes());
        }
        self.tensor(name, FLOAT16, &shape, data)
    }

    /// A number in the precision of the graph.
    pub(super) fn scalar(&mut self, place: &str, value: f32) -> PtResult<String> {
        let array = Array { shape: Vec::new(), data: vec![value] };
        self.weight(format!("{place}.constant"), &array)
    }

    /// Numbers that stay in 32 bits.
    pub(super) fn floats(&mut self, place: &str, shape: &[i64], data: &[f32]) -> PtResult<String> {
        self.tensor(format!("{place}.constant"), FLOAT, shape, bytes_of(data))
    }

    /// Whole numbers: shapes and splits.
    pub(super) fn ints(&mut self, place: &str, values: &[i64]) -> PtResult<String> {
        let data = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.tensor(format!("{place}.constant"), INT64, &[values.len() as i64], data)
    }

    /// One whole number, without a shape.
    pub(super) fn index(&mut self, place: &str, value: i64) -> PtResult<String> {
        self.tensor(format!("{place}.constant"), INT64, &[], value.to_le_bytes().to_vec())
    }

    fn tensor(
        &mut self,
        name: String,
        kind: i64,
        shape: &[i64],
        data: Vec<u8>,
    ) -> PtResult<String> {
        let name = self.unique(name);
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > LARGEST {
            return Err(PtError::Options("its weights are past the 2 GiB of an ONNX file".into()));
        }
        let mut head = Message::default();
        for &extent in shape {
            head.number(1, extent);
        }
        head.number(2, kind).text(8, &name).announce(9, data.len());
        self.weights.push(GraphWeight { head, data });
        Ok(name)
    }

    /// To half precision or back, where the graph has any.
    pub(super) fn cast(&mut self, place: &str, input: &str, full: bool) -> PtResult<String> {
        let to = NodeAttribute::Int(if full { FLOAT } else { FLOAT16 });
        self.node(place, "Cast", &[input], &[("to", to)])
    }

    /// Writes the graph as field 7 behind `model`. The weights are let go one by one as they
    /// are written, so that a large network is not there twice.
    pub(super) fn finish(
        self,
        model: &mut Message,
        name: &str,
        inputs: &[Message],
        outputs: &[Message],
    ) {
        let mut ends = Message::default();
        ends.text(2, name);
        for input in inputs {
            ends.message(11, input);
        }
        for output in outputs {
            ends.message(12, output);
        }
        let weight = |weight: &GraphWeight| field_length(weight.head.0.len() + weight.data.len());
        let length = self.nodes.iter().map(|node| field_length(node.0.len())).sum::<usize>()
            + self.weights.iter().map(weight).sum::<usize>()
            + ends.0.len();
        model.0.reserve_exact(length + (1 << 16));
        model.announce(7, length);
        for node in &self.nodes {
            model.message(1, node);
        }
        for GraphWeight { head, data } in self.weights {
            model.announce(5, head.0.len() + data.len());
            model.0.extend_from_slice(&head.0);
            model.0.extend_from_slice(&data);
        }
        model.0.extend_from_slice(&ends.0);
    }
}

/// Numbers as they stand in a file.
fn bytes_of(data: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * data.len());
    for x in data {
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes
}

fn attribute(name: &str, value: &NodeAttribute) -> Message {
    let mut message = Message::default();
    message.text(1, name);
    match value {
        NodeAttribute::Float(value) => message.float(2, *value).number(20, 1),
        NodeAttribute::Int(value) => message.number(3, *value).number(20, 2),
        NodeAttribute::Text(value) => message.text(4, value).number(20, 3),
        NodeAttribute::Ints(values) => {
            for &value in values {
                message.number(8, value);
            }
            message.number(20, 7)
        }
    };
    message
}

/// An input or output of the graph; an extent is a number, or the name of one that is
/// only known when it runs.
pub(super) fn value_info(name: &str, extents: &[Result<i64, &str>]) -> Message {
    let (mut shape, mut tensor, mut kind) =
        (Message::default(), Message::default(), Message::default());
    for extent in extents {
        let mut dimension = Message::default();
        match extent {
            Ok(number) => dimension.number(1, *number),
            Err(name) => dimension.text(2, name),
        };
        shape.message(1, &dimension);
    }
    tensor.number(1, FLOAT).message(2, &shape);
    kind.message(1, &tensor);
    let mut info = Message::default();
    info.text(1, name).message(2, &kind);
    info
}
