//! The graph as a list of steps on buffers, which can be rewritten.

use std::collections::HashMap;

use super::super::live::is_view;
use super::super::shapes::{Dim, Shaped};
use super::plan::DeviceContents;
use crate::onnx::{OnnxNode, bytes_of, element_bits};

/// A tensor that takes room.
#[derive(Debug, Clone)]
pub(in super::super) struct OrtBuffer {
    pub(in super::super) bytes: u64,
    pub(in super::super) shape: Option<Vec<Dim>>,
    pub(in super::super) bits: u64,
}

/// An operator that runs.
#[derive(Debug, Clone)]
pub(in super::super) struct Step {
    /// The runtime's number for it: its place in the file, or later for what was made since.
    pub(super) number: usize,
    pub(in super::super) op: String,
    pub(in super::super) label: String,
    /// The node of the file that it came from.
    pub(in super::super) node: usize,
    pub(in super::super) inputs: Vec<usize>,
    pub(in super::super) outputs: Vec<usize>,
    pub(super) is_view: bool,
    /// Inputs that it may write over.
    pub(super) in_place: Vec<usize>,
    /// Buffers that it takes while it runs.
    pub(super) workspace: Vec<u64>,
    pub(super) gone: bool,
}

/// All steps.
#[derive(Debug, Clone)]
pub(in super::super) struct Lowered {
    pub(in super::super) steps: Vec<Step>,
    pub(in super::super) values: Vec<OrtBuffer>,
    pub(super) is_output: Vec<bool>,
    pub(super) has_readers: Vec<bool>,
    is_input: Vec<bool>,
    next_number: usize,
}

impl Lowered {
    pub(super) fn new(shaped: &Shaped) -> Lowered {
        let graph = &shaped.graph;
        let values: Vec<OrtBuffer> = (0..graph.values.len())
            .map(|id| OrtBuffer {
                bytes: shaped.bytes(id).unwrap_or(0),
                shape: shaped.shapes[id].clone(),
                bits: element_bits(shaped.elements[id]).unwrap_or(0),
            })
            .collect();
        let mut is_output = vec![false; values.len()];
        let mut is_input = vec![false; values.len()];
        for &id in &graph.outputs {
            is_output[id] = true;
        }
        for &id in &graph.inputs {
            is_input[id] = true;
        }
        let mut lowered = Lowered {
            steps: Vec::new(),
            has_readers: vec![false; values.len()],
            values,
            is_output,
            is_input,
            next_number: graph.nodes.len(),
        };
        for (number, node) in graph.nodes.iter().enumerate() {
            let outputs: Vec<usize> = node.outputs.iter().flatten().copied().collect();
            if outputs.iter().all(|&id| shaped.constant[id]) {
                continue;
            }
            let varies = |id: &usize| !shaped.constant[*id];
            let inputs: Vec<usize> = node.inputs.iter().flatten().copied().filter(varies).collect();
            let in_place = if may_write_over(&node.op) || cpu_may_write_over(&node.op) {
                inputs.first().copied().into_iter().collect()
            } else {
                Vec::new()
            };
            lowered.steps.push(Step {
                number,
                op: node.op.clone(),
                label: node.label(graph),
                node: number,
                is_view: node.domain.is_empty() && is_view(&node.op),
                in_place,
                workspace: workspace(shaped, number),
                inputs,
                outputs,
                gone: false,
            });
        }
        lowered
    }

    /// Kernels take what cuDNN's do, not what the CPU's do.
    pub(super) fn on_cudnn(&mut self, shaped: &Shaped) {
        /// The channels of an image that is read are filled up to a multiple of this: YOLO11n and
        /// SqueezeNet held one region less than on an H200 without it.
        const CHANNELS: u64 = 8;
        for step in &mut self.steps {
            let copies = cudnn_copies(shaped, step.node, CHANNELS);
            if copies > 0 || matches!(step.op.as_str(), "ConvTranspose" | "LRN") {
                step.workspace = vec![copies];
            }
        }
    }

    /// CUDA's kernels write over their input in other places than the CPU's.
    pub(super) fn in_place_on_cuda(&mut self) {
        for step in &mut self.steps {
            let may = may_write_over(&step.op) || cuda_may_write_over(&step.op);
            let input = step.inputs.first().filter(|_| may);
            step.in_place = input.copied().into_iter().collect();
        }
    }

    /// A new step, numbered behind all others.
    pub(super) fn add(&mut self, mut step: Step) -> usize {
        step.number = self.next_number;
        self.next_number += 1;
        self.steps.push(step);
        self.steps.len() - 1
    }

    /// A new tensor.
    pub(super) fn buffer(&mut self, shape: Vec<Dim>, element: u64) -> usize {
        let elements = shape.iter().fold(1u64, |all, dim| all.saturating_mul(dim.n));
        let bits = element_bits(element).unwrap_or(0);
        self.values.push(OrtBuffer {
            bytes: bytes_of(element, elements),
            shape: Some(shape),
            bits,
        });
        self.is_output.push(false);
        self.is_input.push(false);
        self.has_readers.push(false);
        self.values.len() - 1
    }

    /// Who makes each value, among the steps that run.
    pub(super) fn makers(&self) -> HashMap<usize, usize> {
        let running = self.steps.iter().enumerate().filter(|(_, step)| !step.gone);
        running.flat_map(|(n, step)| step.outputs.iter().map(move |&id| (id, n))).collect()
    }

    /// Who reads each value; twice where a step reads it twice.
    pub(super) fn readers(&self) -> HashMap<usize, Vec<usize>> {
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (n, step) in self.steps.iter().enumerate().filter(|(_, step)| !step.gone) {
            for &id in &step.inputs {
                readers.entry(id).or_default().push(n);
            }
        }
        readers
    }

    /// Everybody who read `from` reads `to` from now on.
    pub(super) fn redirect(&mut self, from: usize, to: usize) {
        for step in &mut self.steps {
            for id in step.inputs.iter_mut().chain(&mut step.in_place) {
                if *id == from {
                    *id = to;
                }
            }
        }
    }

    /// Drops the steps that are gone, and those that nobody needs.
    pub(super) fn settle(&mut self) {
        loop {
            let readers = self.readers();
            let mut changed = false;
            for n in 0..self.steps.len() {
                let step = &self.steps[n];
                let needed = step.outputs.iter().any(|id| {
                    self.is_output[*id] || readers.get(id).is_some_and(|r| !r.is_empty())
                });
                if !step.gone && !needed {
                    self.steps[n].gone = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        self.steps.retain(|step| !step.gone);
        self.has_readers = vec![false; self.values.len()];
        for step in &self.steps {
            for &id in &step.inputs {
                self.has_readers[id] = true;
            }
        }
    }

    /// How often each value is used: by its maker, its readers, and the caller.
    pub(super) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        for step in &self.steps {
            for &id in step.inputs.iter().chain(&step.outputs) {
                uses[id] += 1;
            }
        }
        for (id, count) in uses.iter_mut().enumerate() {
            *count += usize::from(self.is_output[id]) + usize::from(self.is_input[id]);
        }
        uses
    }

    /// Whether a planner can tell that two tensors take the same room.
    pub(super) fn same_size(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.values[a], &self.values[b]);
        match (&a.shape, &b.shape) {
            (Some(one), Some(other)) => {
                a.bits == b.bits
                    && !one.is_empty()
                    && one.len() == other.len()
                    && one.iter().zip(other).all(|(a, b)| a.surely_is(*b))
            }
            _ => false,
        }
    }

    /// The runtime's order: depth first from the ends, the input that was made last first.
    pub(super) fn order(&self) -> Vec<usize> {
        let makers = self.makers();
        let readers = self.readers();
        let mut by_number: Vec<usize> = (0..self.steps.len()).collect();
        by_number.sort_by_key(|&n| self.steps[n].number);
        let is_end = |n: &usize| {
            self.steps[*n].outputs.iter().all(|id| readers.get(id).is_none_or(Vec::is_empty))
        };
        let mut stack: Vec<(usize, bool)> =
            by_number.into_iter().filter(is_end).map(|n| (n, false)).collect();
        let mut seen = vec![false; self.steps.len()];
        let mut order = Vec::with_capacity(self.steps.len());
        while let Some((n, leaving)) = stack.pop() {
            if leaving {
                order.push(n);
                continue;
            }
            if std::mem::replace(&mut seen[n], true) {
                continue;
            }
            stack.push((n, true));
            let mut inputs: Vec<usize> =
                self.steps[n].inputs.iter().filter_map(|id| makers.get(id).copied()).collect();
            inputs.sort_by_key(|&n| self.steps[n].number);
            stack.extend(inputs.into_iter().filter(|&n| !seen[n]).map(|n| (n, false)));
        }
        order
    }

    /// What is in the arena of a device besides: weights and inputs.
    pub(super) fn inside(&self, shaped: &Shaped) -> DeviceContents {
        let mut seen = vec![false; shaped.constant.len()];
        let mut weights = Vec::new();
        for n in self.order() {
            for &id in shaped.graph.nodes[self.steps[n].node].inputs.iter().flatten() {
                if shaped.constant[id] && !std::mem::replace(&mut seen[id], true) {
                    weights.extend(shaped.bytes(id));
                }
            }
        }
        let inputs = shaped.graph.inputs.iter().filter_map(|&id| shaped.bytes(id)).collect();
        DeviceContents { weights, inputs }
    }

    /// What is set aside for weights that are laid out anew when the model is loaded.
    pub(super) fn packed(&self, shaped: &Shaped) -> Vec<u64> {
        let of = |step: &Step| -> Vec<u64> {
            let node = &shaped.graph.nodes[step.node];
            let turned = node.int("transB").unwrap_or(0) != 0;
            match step.op.as_str() {
                "MatMul" | "Gemm" | "FusedMatMul" => {
                    packed_matrix(shaped, node, 1, turned).into_iter().collect()
                }
                // What it reads, and what it read before.
                "LSTM" => {
                    [1, 2].iter().filter_map(|&n| packed_matrix(shaped, node, n, true)).collect()
                }
                _ => Vec::new(),
            }
        };
        self.steps.iter().filter(|step| !step.gone).flat_map(of).collect()
    }
}

/// What a weight takes when it is laid out anew; one matrix, or one for each direction.
fn packed_matrix(shaped: &Shaped, node: &OnnxNode, input: usize, turned: bool) -> Option<u64> {
    /// Columns are packed in groups of this many.
    const GROUP: u64 = 16;
    let weight = (*node.inputs.get(input)?)?;
    if !shaped.constant[weight] || shaped.elements[weight] != 1 {
        return None;
    }
    let (count, rows, columns) = match shaped.shapes[weight].as_deref()? {
        [rows, columns] => (1, rows.n, columns.n),
        [count, rows, columns] if node.op == "LSTM" => (count.n, rows.n, columns.n),
        _ => return None,
    };
    let (inner, outer) = if turned { (columns, rows) } else { (rows, columns) };
    Some(
        outer.next_multiple_of(GROUP).saturating_mul(inner).saturating_mul(count).saturating_mul(4),
    )
}

/// Operators that the runtime's kernels may run in place, on the CPU and on CUDA.
fn may_write_over(op: &str) -> bool {
    matches!(
        op,
        "Relu"
            | "Sigmoid"
            | "Tanh"
            | "LeakyRelu"
            | "Elu"
            | "HardSigmoid"
            | "Selu"
            | "Softplus"
            | "Softsign"
            | "ThresholdedRelu"
            | "Celu"
            | "ScatterND"
            | "Trilu"
    )
}

/// Those of the CPU alone.
fn cpu_may_write_over(op: &str) -> bool {
    matches!(op, "Clip" | "Cast" | "Softmax" | "LogSoftmax" | "ScatterElements" | "Scatter")
}

/// Those of CUDA alone.
fn cuda_may_write_over(op: &str) -> bool {
    matches!(op, "HardSwish" | "Gelu" | "QuickGelu")
}

/// What cuDNN takes while a convolution runs, as far as a rule has it: its fast kernels want
/// channels last, so input, filter and output are copied into that order and back. Not where
/// filters are single pixels, or have a channel each.
///
/// An allowance: which kernel is chosen cannot be known before. Beside the requests that PyTorch
/// itself makes for five networks it gave what an H200 had allocated at most, to 0.1 MiB
/// (docs/results). The channels that are read are filled up to a multiple of `channels_of`.
pub(in super::super) fn cudnn_copies(shaped: &Shaped, index: usize, channels_of: u64) -> u64 {
    let node = &shaped.graph.nodes[index];
    let all = (node.inputs.first(), node.inputs.get(1), node.outputs.first());
    let (true, (Some(&Some(input)), Some(&Some(filter)), Some(&Some(output)))) =
        (matches!(node.op.as_str(), "Conv" | "ConvTranspose"), all)
    else {
        return 0;
    };
    let Some([_, channels, window @ ..]) = shaped.shapes[filter].as_deref() else { return 0 };
    let own_channels = channels.n == 1 && node.int("group").is_some_and(|groups| groups > 1);
    if own_channels || window.iter().all(|dim| dim.n == 1) {
        return 0;
    }
    let filled_up = |id: usize, axis: usize, bytes: u64| {
        let shape = shaped.shapes[id].as_deref();
        let n = shape.and_then(|shape| shape.get(axis)).map_or(1, |dim| dim.n.max(1));
        (bytes / n).saturating_mul(n.next_multiple_of(channels_of))
    };
    let [read, weights, written] = [input, filter, output].map(|id| shaped.bytes(id).unwrap_or(0));
    let axis = usize::from(node.op == "Conv");
    let copies = filled_up(input, 1, read).saturating_add(filled_up(filter, axis, weights));
    copies.saturating_add(written)
}

/// Buffers that a kernel of the CPU takes while it runs.
fn workspace(shaped: &Shaped, index: usize) -> Vec<u64> {
    let node = &shaped.graph.nodes[index];
    let shape = |n: usize| {
        node.inputs.get(n).copied().flatten().and_then(|id| shaped.shapes[id].as_deref())
    };
    let floats = |dims: &[Dim]| dims.iter().fold(4u64, |all, dim| all.saturating_mul(dim.n));
    match (node.op.as_str(), shape(0), shape(1)) {
        // Every input pixel times the kernel, before it is folded together.
        ("ConvTranspose", Some(input), Some(weight)) if input.len() > 2 && weight.len() > 2 => {
            let pixels = floats(&input[2..]) / 4;
            vec![floats(&weight[1..]).saturating_mul(pixels)]
        }
        // The gates of every moment, and both ways round what goes backwards.
        ("LSTM", Some([steps, batch, width]), Some([directions, gates, _])) => {
            let moments = floats(&[*steps, *batch]);
            let mut taken = vec![moments.saturating_mul(gates.n); directions.n.min(2) as usize];
            if node.text("direction").is_some_and(|way| way != "forward") {
                taken.push(moments.saturating_mul(width.n));
                taken.push(moments.saturating_mul(gates.n / 4));
            }
            taken
        }
        // The scales, and the squares of one image with room at both ends.
        ("LRN", Some([_, channels, rest @ ..]), _) => {
            let more = node.int("size").unwrap_or(1).max(1) as u64 - 1;
            let squares = channels.n.saturating_add(more).saturating_mul(floats(rest));
            vec![floats(shape(0).unwrap_or_default()), squares]
        }
        _ => Vec::new(),
    }
}
