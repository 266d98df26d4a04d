//! An order in which every operator finds what it reads.
//!
//! The standard asks writers for it, but engines sort again, so files in another order exist and
//! run. No engine can run a cycle, a value that no operator makes, or one that two operators
//! make: these are errors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{OnnxError, OnnxGraph, ValueId};

/// Sorts the operators, those that are ready in the order of the file.
pub(super) fn arrange(graph: &mut OnnxGraph) -> Result<(), OnnxError> {
    let makers = makers(graph)?;
    check_reads(graph, &makers)?;
    if is_in_order(graph, &makers) {
        return Ok(());
    }
    let mut waits = vec![0usize; graph.nodes.len()];
    let mut readers = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for maker in node.inputs.iter().flatten().filter_map(|&id| makers[id]) {
            waits[index] += 1;
            readers[maker].push(index);
        }
    }
    let ready = waits.iter().enumerate().filter(|(_, waits)| **waits == 0);
    let mut ready: BinaryHeap<_> = ready.map(|(index, _)| Reverse(index)).collect();
    let mut order = Vec::with_capacity(graph.nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if let Some(stuck) = waits.iter().position(|&waits| waits > 0) {
        let label = graph.nodes[stuck].label(graph);
        return Err(wrong(format!("{label} waits for itself: the operators run in a circle")));
    }
    let mut nodes = std::mem::take(&mut graph.nodes);
    graph.nodes = order.into_iter().map(|index| std::mem::take(&mut nodes[index])).collect();
    Ok(())
}

fn wrong(why: String) -> OnnxError {
    OnnxError::Wrong(format!("the graph cannot be: {why}"))
}

/// The operator that makes each value.
fn makers(graph: &OnnxGraph) -> Result<Vec<Option<usize>>, OnnxError> {
    let mut makers = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for &id in node.outputs.iter().flatten() {
            if makers[id].replace(index).is_some() || graph.values[id].weight.is_some() {
                return Err(wrong(format!("{} is made twice", graph.values[id].name)));
            }
        }
    }
    Ok(makers)
}

fn check_reads(graph: &OnnxGraph, makers: &[Option<usize>]) -> Result<(), OnnxError> {
    let mut given = vec![false; graph.values.len()];
    for &id in &graph.inputs {
        given[id] = true;
    }
    let is_there =
        |id: ValueId| makers[id].is_some() || given[id] || graph.values[id].weight.is_some();
    for node in &graph.nodes {
        if let Some(&id) = node.inputs.iter().flatten().find(|&&id| !is_there(id)) {
            let (label, name) = (node.label(graph), &graph.values[id].name);
            return Err(wrong(format!("{label} reads {name}, which nobody makes")));
        }
    }
    match graph.outputs.iter().find(|&&id| !is_there(id)) {
        Some(&id) => Err(wrong(format!("nobody makes its output {}", graph.values[id].name))),
        None => Ok(()),
    }
}

fn is_in_order(graph: &OnnxGraph, makers: &[Option<usize>]) -> bool {
    let mut nodes = graph.nodes.iter().enumerate();
    nodes.all(|(index, node)| {
        node.inputs.iter().flatten().all(|&id| makers[id].is_none_or(|maker| maker < index))
    })
}
