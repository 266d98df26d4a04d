//! Images in blocks of channels: the layout that the runtime's convolutions run in.
//!
//! A convolution reads and writes the block layout; what understands it (pools, activations,
//! sums, concatenations of whole blocks) stays in it, and copies are made where it begins and
//! ends. The copies live beside the originals, which is what makes them count.

use std::collections::HashMap;

use super::super::shapes::{Dim, Shaped};
use super::lower::{Lowered, Step};

const F32: u64 = 1;
/// Channels must divide by this.
const CHANNELS: u64 = 4;

/// A value in the block layout.
#[derive(Debug, Clone, Copy)]
struct Blocked {
    /// The value in the block layout.
    value: usize,
    /// The step that makes it.
    maker: usize,
    channels: u64,
    uses: usize,
    left: usize,
}

struct Blocks<'a> {
    lowered: &'a mut Lowered,
    shaped: &'a Shaped,
    block: u64,
    /// By the value of the file.
    known: HashMap<usize, Blocked>,
    /// Inputs that were laid out in blocks, for all who need them.
    copies: HashMap<usize, usize>,
    readers: HashMap<usize, Vec<usize>>,
    /// Convolutions that already have an activation or a sum.
    full: Vec<usize>,
}

/// Lays out what can be.
pub(super) fn apply(lowered: &mut Lowered, shaped: &Shaped, block: u64) {
    let (order, readers) = (lowered.order(), lowered.readers());
    let mut blocks = Blocks {
        lowered,
        shaped,
        block,
        known: HashMap::new(),
        copies: HashMap::new(),
        readers,
        full: Vec::new(),
    };
    for n in order {
        blocks.step(n);
    }
    blocks.finish();
}

impl Blocks<'_> {
    fn step(&mut self, n: usize) {
        let step = &self.lowered.steps[n];
        if step.gone || step.outputs.len() != 1 {
            return;
        }
        let all_blocked = step.inputs.iter().all(|id| self.known.contains_key(id));
        match step.op.as_str() {
            "Conv" | "FusedConv" => self.conv(n),
            "MaxPool" | "AveragePool" => self.pool(n),
            _ if !all_blocked || step.inputs.is_empty() => {}
            "GlobalAveragePool" | "GlobalMaxPool" => self.pool(n),
            "Add" | "Sum" => self.binary(n, true),
            "Mul" if step.inputs.len() == 2 => self.binary(n, false),
            "Concat" => self.concat(n),
            "Relu" | "Sigmoid" | "Tanh" | "HardSigmoid" => self.activation(n, true),
            "Gelu" | "QuickGelu" => self.activation(n, false),
            "Resize" | "Upsample" => self.resize(n),
            _ => {}
        }
    }

    fn shape(&self, id: usize) -> Option<&[Dim]> {
        self.lowered.values[id].shape.as_deref().filter(|shape| shape.len() == 4)
    }

    fn round(&self, channels: u64) -> u64 {
        channels.next_multiple_of(self.block)
    }

    fn uses(&self, id: usize) -> usize {
        self.readers.get(&id).map_or(0, Vec::len) + usize::from(self.lowered.is_output[id])
    }

    /// Says that the step makes its output in blocks.
    fn make(&mut self, n: usize, channels: u64) {
        let output = self.lowered.steps[n].outputs[0];
        let Some(shape) = self.shape(output) else { return };
        let mut shape = shape.to_vec();
        shape[1] = Dim::fixed(self.round(channels));
        let value = self.lowered.buffer(shape, F32);
        let uses = self.uses(output);
        self.known.insert(output, Blocked { value, maker: n, channels, uses, left: uses });
        self.lowered.steps[n].outputs = vec![value];
    }

    /// One reader of the original less; gives the blocked value.
    fn read(&mut self, id: usize) -> Option<usize> {
        let known = self.known.get_mut(&id)?;
        known.left = known.left.saturating_sub(1);
        Some(known.value)
    }

    /// A step of its own in place of one of the file.
    fn replace(&mut self, n: usize, inputs: Vec<usize>) -> usize {
        let step = Step { inputs, in_place: Vec::new(), ..self.lowered.steps[n].clone() };
        self.lowered.steps[n].gone = true;
        self.lowered.add(step)
    }

    /// The blocked form of an input, copied where there is none.
    fn blocked_input(&mut self, id: usize, after: usize) -> Option<usize> {
        if let Some(value) = self.read(id) {
            return Some(value);
        }
        if let Some(&copy) = self.copies.get(&id) {
            return Some(copy);
        }
        let mut shape = self.shape(id)?.to_vec();
        shape[1] = Dim::fixed(self.round(shape[1].n));
        let copy = self.lowered.buffer(shape, F32);
        let step = Step {
            op: "ReorderInput".to_string(),
            label: format!("ReorderInput for {}", self.lowered.steps[after].label),
            inputs: vec![id],
            outputs: vec![copy],
            in_place: Vec::new(),
            is_view: false,
            workspace: Vec::new(),
            ..self.lowered.steps[after].clone()
        };
        self.lowered.add(step);
        self.copies.insert(id, copy);
        Some(copy)
    }

    fn conv(&mut self, n: usize) {
        let step = &self.lowered.steps[n];
        let node = &self.shaped.graph.nodes[step.node];
        let constant =
            |n: usize| node.inputs.get(n).copied().flatten().filter(|&id| self.shaped.constant[id]);
        let (Some(weight), &[input]) = (constant(1), &step.inputs[..]) else { return };
        let Some([out, channels, ..]) =
            self.shaped.shapes[weight].as_deref().filter(|s| s.len() == 4)
        else {
            return;
        };
        if self.shaped.elements[weight] != F32 {
            return;
        }
        let (out, channels) = (out.n, channels.n);
        let group = node.int("group").unwrap_or(1).max(1) as u64;
        let mut copies_input = true;
        if group > 1 {
            let depthwise = channels == 1 && out == group;
            let whole = channels.is_multiple_of(self.block)
                && out.is_multiple_of(group)
                && (out / group).is_multiple_of(self.block);
            if !out.is_multiple_of(CHANNELS) || !(depthwise || whole) {
                return;
            }
        } else if channels < self.block {
            // Few channels are read as they are.
            copies_input = false;
        } else if !channels.is_multiple_of(CHANNELS) {
            return;
        }
        let fused = step.op == "FusedConv";
        let new = self.replace(n, vec![input]);
        if copies_input && let Some(blocked) = self.blocked_input(input, new) {
            self.lowered.steps[new].inputs = vec![blocked];
        }
        if fused {
            self.full.push(new);
        }
        self.lowered.steps[new].op = "Conv".to_string();
        self.make(new, out);
    }

    fn pool(&mut self, n: usize) {
        let &[input] = &self.lowered.steps[n].inputs[..] else { return };
        let Some(channels) = self.shape(input).map(|shape| shape[1].n) else { return };
        let is_f32 = self.lowered.values[input].bits == 32;
        if !channels.is_multiple_of(self.block) || !is_f32 {
            return;
        }
        let new = self.replace(n, vec![input]);
        if let Some(blocked) = self.blocked_input(input, new) {
            self.lowered.steps[new].inputs = vec![blocked];
        }
        self.make(new, channels);
    }

    /// A sum or product of blocked values of one shape; a sum vanishes into a convolution.
    fn binary(&mut self, n: usize, is_sum: bool) {
        let inputs = self.lowered.steps[n].inputs.clone();
        let known: Vec<Blocked> = inputs.iter().map(|id| self.known[id]).collect();
        let shapes: Vec<_> = inputs.iter().map(|&id| self.shape(id)).collect();
        let alike = shapes.windows(2).all(|pair| match pair {
            [Some(a), Some(b)] => a.iter().zip(b.iter()).all(|(a, b)| a.surely_is(*b)),
            _ => false,
        });
        if !alike {
            return;
        }
        for &id in &inputs {
            self.read(id);
        }
        if is_sum && inputs.len() == 2 {
            for (place, other) in [(0, 1), (1, 0)] {
                let conv = known[place].maker;
                let is_conv = self.lowered.steps[conv].op == "Conv";
                if is_conv && known[place].uses == 1 && !self.full.contains(&conv) {
                    let sum = known[other].value;
                    self.lowered.steps[conv].inputs.push(sum);
                    self.lowered.steps[conv].in_place = vec![sum];
                    self.full.push(conv);
                    self.vanish(n, known[place]);
                    return;
                }
            }
        }
        self.lowered.steps[n].inputs = known.iter().map(|blocked| blocked.value).collect();
        self.make(n, known[0].channels);
    }

    /// The step's output is what the blocked value is already.
    fn vanish(&mut self, n: usize, into: Blocked) {
        let output = self.lowered.steps[n].outputs[0];
        let uses = self.uses(output);
        self.known.insert(output, Blocked { uses, left: uses, ..into });
        self.lowered.steps[n].gone = true;
    }

    fn concat(&mut self, n: usize) {
        let node = &self.shaped.graph.nodes[self.lowered.steps[n].node];
        let inputs = self.lowered.steps[n].inputs.clone();
        let known: Vec<Blocked> = inputs.iter().map(|id| self.known[id]).collect();
        let whole = known.iter().all(|blocked| blocked.channels.is_multiple_of(self.block));
        if node.int("axis") != Some(1) || !whole || inputs.len() != node.inputs.len() {
            return;
        }
        for &id in &inputs {
            self.read(id);
        }
        self.lowered.steps[n].inputs = known.iter().map(|blocked| blocked.value).collect();
        self.make(n, known.iter().map(|blocked| blocked.channels).sum());
    }

    fn activation(&mut self, n: usize, can_vanish: bool) {
        let input = self.lowered.steps[n].inputs[0];
        let known = self.known[&input];
        self.read(input);
        let is_conv = self.lowered.steps[known.maker].op == "Conv";
        if can_vanish && is_conv && known.uses == 1 && !self.has_activation(known.maker) {
            self.full.push(known.maker);
            self.vanish(n, known);
            return;
        }
        let step = &mut self.lowered.steps[n];
        step.inputs = vec![known.value];
        for id in &mut step.in_place {
            *id = known.value;
        }
        self.make(n, known.channels);
    }

    fn has_activation(&self, maker: usize) -> bool {
        // A sum may be followed by an activation; an activation by nothing.
        self.full.contains(&maker) && self.lowered.steps[maker].in_place.is_empty()
    }

    fn resize(&mut self, n: usize) {
        let step = &self.lowered.steps[n];
        let node = &self.shaped.graph.nodes[step.node];
        let (input, output) = (step.inputs[0], step.outputs[0]);
        let mode = node.text("mode").unwrap_or("nearest");
        let transform = node.text("coordinate_transformation_mode").unwrap_or("half_pixel");
        let fits = match mode {
            "nearest" => {
                transform == "asymmetric" && node.text("nearest_mode") == Some("floor")
                    || node.op == "Upsample"
            }
            "linear" => matches!(transform, "asymmetric" | "align_corners" | "half_pixel"),
            _ => false,
        };
        let whole = match (self.shape(input), self.shape(output)) {
            (Some(from), Some(to)) => {
                from[1].n == to[1].n
                    && from[2..]
                        .iter()
                        .zip(&to[2..])
                        .all(|(a, b)| a.n > 0 && b.n.is_multiple_of(a.n))
            }
            _ => false,
        };
        if !fits || !whole || step.inputs.len() != 1 {
            return;
        }
        let known = self.known[&input];
        self.read(input);
        let new = self.replace(n, vec![known.value]);
        self.make(new, known.channels);
    }

    /// Copies back what others still read in the layout of the file.
    fn finish(&mut self) {
        let mut left: Vec<(usize, Blocked)> = self
            .known
            .iter()
            .filter(|(_, blocked)| blocked.left > 0)
            .map(|(&id, &b)| (id, b))
            .collect();
        left.sort_by_key(|(id, _)| *id);
        for (id, blocked) in left {
            let step = Step {
                op: "ReorderOutput".to_string(),
                label: format!("ReorderOutput of {}", self.lowered.steps[blocked.maker].label),
                inputs: vec![blocked.value],
                outputs: vec![id],
                in_place: Vec::new(),
                is_view: false,
                workspace: Vec::new(),
                ..self.lowered.steps[blocked.maker].clone()
            };
            let step = Step { gone: false, ..step };
            self.lowered.add(step);
        }
    }
}
