//! The operators of a graph and their settings.

use std::io::{Read, Seek};

use super::super::wire::WireField;
use super::super::{OnnxAttribute, OnnxError, OnnxNode, ValueId};
use super::{MOST_EXTENTS, MOST_INPUTS, OnnxParser, limit};

impl<F: Read + Seek> OnnxParser<'_, F> {
    fn link(&mut self, end: u64) -> Result<Option<ValueId>, OnnxError> {
        let name = self.wire.text(end)?;
        if name.is_empty() { Ok(None) } else { self.value(&name).map(Some) }
    }

    pub(super) fn node(&mut self, end: u64) -> Result<OnnxNode, OnnxError> {
        let mut node = OnnxNode::default();
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
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

    fn attribute(&mut self, end: u64) -> Result<(String, OnnxAttribute), OnnxError> {
        let mut name = String::new();
        let mut found = OnnxAttribute::Other;
        let mut ints = Vec::new();
        while let Some((number, field)) = self.wire.next(end)? {
            match (number, field) {
                (1, WireField::Bytes(stop)) => name = self.wire.text(stop)?,
                (2, WireField::Fixed(bits)) => found = OnnxAttribute::Float(f32::from_bits(bits)),
                (3, WireField::Number(n)) => found = OnnxAttribute::Int(n.cast_signed()),
                (4, WireField::Bytes(stop)) if stop - self.wire.at <= 4096 => {
                    let bytes = self.wire.bytes(stop, 4096)?;
                    found = OnnxAttribute::Text(String::from_utf8_lossy(&bytes).into_owned());
                }
                (5, WireField::Bytes(stop)) => {
                    found = OnnxAttribute::Tensor(Box::new(self.tensor(stop)?))
                }
                (6, WireField::Bytes(stop)) => {
                    let free = self.inner_graph(stop, 0)?;
                    self.free.extend(free);
                }
                (8, WireField::Number(n)) => ints.push(n.cast_signed()),
                (8, WireField::Bytes(stop)) => self.packed(stop, &mut ints)?,
                (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                _ => {}
            }
            limit(ints.len(), 65_536, "numbers in an attribute")?;
        }
        if !ints.is_empty() {
            found = OnnxAttribute::Ints(ints);
        }
        Ok((name, found))
    }

    pub(super) fn packed(&mut self, end: u64, into: &mut Vec<i64>) -> Result<(), OnnxError> {
        while self.wire.at < end {
            into.push(self.wire.varint()?.cast_signed());
            limit(into.len(), 65_536, "numbers in a list")?;
        }
        Ok(())
    }
}
