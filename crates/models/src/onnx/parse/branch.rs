//! The graphs of branches and loops. Their weights and operators are counted, and what they
//! read of the graph around them lives until they have run.

use std::collections::HashSet;
use std::io::{Read, Seek};

use super::super::wire::WireField;
use super::super::{OnnxError, OnnxValue};
use super::{MOST_NODES, MOST_VALUES, OnnxParser, limit};

const DEEPEST: usize = 8;

/// The names of an inner graph.
#[derive(Default)]
struct BranchNames {
    made: HashSet<String>,
    read: HashSet<String>,
}

impl<F: Read + Seek> OnnxParser<'_, F> {
    /// Reads an inner graph, and gives the names that it takes from around it.
    pub(super) fn inner_graph(
        &mut self,
        end: u64,
        depth: usize,
    ) -> Result<HashSet<String>, OnnxError> {
        limit(depth, DEEPEST, "graphs inside of each other")?;
        let mut names = BranchNames::default();
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 => {
                    limit(self.graph.inner_nodes, MOST_NODES, "nodes")?;
                    self.graph.inner_nodes += 1;
                    self.inner_node(stop, depth, &mut names)?;
                }
                5 => {
                    let tensor = self.tensor(stop)?;
                    self.add_inner(&tensor);
                    names.made.insert(tensor.name);
                }
                11 | 12 => {
                    let name = self.declaration(stop)?.name;
                    let list = if number == 11 { &mut names.made } else { &mut names.read };
                    list.insert(name);
                }
                _ => {}
            }
            limit(names.made.len() + names.read.len(), MOST_VALUES, "values")?;
            self.wire.go(stop)?;
        }
        names.read.retain(|name| !names.made.contains(name) && !name.is_empty());
        Ok(names.read)
    }

    fn inner_node(
        &mut self,
        end: u64,
        depth: usize,
        names: &mut BranchNames,
    ) -> Result<(), OnnxError> {
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 => {
                    names.read.insert(self.wire.text(stop)?);
                }
                2 => {
                    names.made.insert(self.wire.text(stop)?);
                }
                5 => self.inner_attribute(stop, depth, names)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    fn inner_attribute(
        &mut self,
        end: u64,
        depth: usize,
        names: &mut BranchNames,
    ) -> Result<(), OnnxError> {
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                5 => {
                    let tensor = self.tensor(stop)?;
                    self.add_inner(&tensor);
                }
                6 => names.read.extend(self.inner_graph(stop, depth + 1)?),
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(())
    }

    fn add_inner(&mut self, tensor: &OnnxValue) {
        let bytes = tensor.weight.map_or(0, |weight| weight.bytes);
        self.graph.inner_weights = self.graph.inner_weights.saturating_add(bytes);
    }
}
