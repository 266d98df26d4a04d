//! How much lives at once: an order, what dies where, and the worst moment.
//!
//! The plain walk assumes no engine: operators run in the order of the file, what follows from
//! weights alone was computed before, views share memory with what they look at, and operators
//! on single elements write over an input that is no longer needed. Every engine needs at
//! least this much, in this order.

use super::shapes::Shaped;
use crate::onnx::{OnnxNode, ValueId, element_name};

/// The worst moment of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peak {
    /// Bytes that live then, the inputs among them.
    pub bytes: u64,
    /// The operator that runs then.
    pub operator: String,
    /// Which one it is, counted from one.
    pub step: usize,
    /// How many operators there are.
    pub steps: usize,
    /// What lives then, the largest first.
    pub tensors: Vec<PeakTensor>,
    /// Bytes of the inputs.
    pub input_bytes: u64,
    /// Bytes of the outputs.
    pub output_bytes: u64,
}

/// A tensor that lives at the worst moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeakTensor {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its extents.
    pub shape: Vec<u64>,
    /// Its type.
    pub element: &'static str,
}

/// Whether it is an allocation or a free, whose, and how much.
pub type LifetimeEvent = (bool, ValueId, u64);

/// Operators whose output is their input seen otherwise.
pub(super) fn is_view(op: &str) -> bool {
    matches!(op, "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity" | "Dropout")
}

/// Operators on single elements, which may write over an input.
fn is_elementwise(op: &str) -> bool {
    matches!(
        op,
        "Relu"
            | "Sigmoid"
            | "Tanh"
            | "LeakyRelu"
            | "Elu"
            | "Selu"
            | "HardSigmoid"
            | "HardSwish"
            | "Softplus"
            | "Clip"
            | "Abs"
            | "Neg"
            | "Exp"
            | "Log"
            | "Sqrt"
            | "Erf"
            | "Add"
            | "Sub"
            | "Mul"
            | "Div"
            | "Pow"
            | "Softmax"
            | "Gelu"
            | "QuickGelu"
            | "PRelu"
            | "BatchNormalization"
    )
}

impl Shaped {
    /// The worst moment of the plain walk.
    #[must_use]
    pub fn peak(&self) -> Peak {
        Walk::new(self).run()
    }

    /// The plain walk as a trace of allocations and frees, weights first: what an allocator
    /// would be asked for.
    #[must_use]
    pub fn trace(&self) -> Vec<LifetimeEvent> {
        let weights = self.graph.values.iter().enumerate();
        let weights = weights.filter_map(|(id, value)| Some((true, id, value.weight?.bytes)));
        let mut walk = Walk::new(self);
        walk.events = Some(weights.filter(|event| event.2 > 0).collect());
        walk.run_on().1.unwrap_or_default()
    }

    fn tensor(&self, id: ValueId) -> PeakTensor {
        let shape = self.shapes[id].iter().flatten().map(|dim| dim.n).collect();
        let name = self.graph.values[id].name.clone();
        PeakTensor {
            name,
            bytes: self.bytes(id).unwrap_or(0),
            shape,
            element: element_name(self.elements[id]),
        }
    }
}

struct Walk<'a> {
    shaped: &'a Shaped,
    /// The operators that run.
    order: Vec<usize>,
    /// The value whose memory each value is in.
    home: Vec<ValueId>,
    /// Uses of a home that are still to come.
    uses: Vec<usize>,
    live: Vec<bool>,
    now: u64,
    events: Option<Vec<LifetimeEvent>>,
}

impl<'a> Walk<'a> {
    fn new(shaped: &'a Shaped) -> Walk<'a> {
        let graph = &shaped.graph;
        let count = graph.values.len();
        let runs = |node: &OnnxNode| !node.outputs.iter().flatten().all(|&id| shaped.constant[id]);
        let order = (0..graph.nodes.len()).filter(|&n| runs(&graph.nodes[n])).collect();
        let mut walk = Walk {
            shaped,
            order,
            home: (0..count).collect(),
            uses: vec![0; count],
            live: vec![false; count],
            now: 0,
            events: None,
        };
        for &index in &walk.order {
            let node = &graph.nodes[index];
            for &id in node.inputs.iter().flatten() {
                walk.uses[id] += 1;
            }
        }
        // What a caller gives or gets is not ours to write over, nor gone before the end.
        for &id in graph.inputs.iter().chain(&graph.outputs) {
            walk.uses[id] += 1;
        }
        walk
    }

    fn run(self) -> Peak {
        self.run_on().0
    }

    fn run_on(mut self) -> (Peak, Option<Vec<LifetimeEvent>>) {
        let graph = &self.shaped.graph;
        let bytes = |ids: &[ValueId]| -> u64 {
            ids.iter().filter_map(|&id| self.shaped.bytes(id)).fold(0, u64::saturating_add)
        };
        let (input_bytes, output_bytes) = (bytes(&graph.inputs), bytes(&graph.outputs));
        for &id in &graph.inputs {
            self.begin(id);
        }
        let steps = self.order.len();
        let mut peak = Peak {
            bytes: self.now,
            operator: "the inputs alone".to_string(),
            step: 0,
            steps,
            tensors: self.largest(),
            input_bytes,
            output_bytes,
        };
        for step in 0..steps {
            let node = &graph.nodes[self.order[step]];
            for &output in node.outputs.iter().flatten() {
                self.make(node, output);
            }
            if self.now > peak.bytes {
                peak.bytes = self.now;
                peak.step = step + 1;
                peak.operator = node.label(graph);
                peak.tensors = self.largest();
            }
            for &id in node.inputs.iter().flatten().chain(node.outputs.iter().flatten()) {
                self.release(id, node.inputs.contains(&Some(id)));
            }
        }
        (peak, self.events)
    }

    fn note(&mut self, taken: bool, id: ValueId) {
        let bytes = self.shaped.bytes(id).unwrap_or(0);
        if let (Some(events), true) = (&mut self.events, bytes > 0) {
            events.push((taken, id, bytes));
        }
    }

    fn begin(&mut self, id: ValueId) {
        self.live[id] = true;
        self.note(true, id);
        self.now = self.now.saturating_add(self.shaped.bytes(id).unwrap_or(0));
    }

    /// Gives an output its memory: an input's, or its own.
    fn make(&mut self, node: &OnnxNode, output: ValueId) {
        let standard = node.domain.is_empty() || node.op == "QuickGelu";
        let first = node.inputs.first().copied().flatten();
        let usable = |walk: &Walk<'_>, id: ValueId| {
            let home = walk.home[id];
            let bytes = walk.shaped.bytes(id);
            walk.live[home]
                && walk.uses[home] == 1
                && bytes.is_some()
                && bytes == walk.shaped.bytes(output)
                && walk.shaped.bytes(home) == bytes
        };
        let home = if standard && is_view(&node.op) {
            first.filter(|&id| self.live[self.home[id]])
        } else if standard && is_elementwise(&node.op) {
            node.inputs.iter().flatten().copied().find(|&id| usable(self, id))
        } else {
            None
        };
        match home {
            Some(id) => {
                let home = self.home[id];
                self.home[output] = home;
                self.uses[home] += self.uses[output];
                // An output that nobody reads must still be let go.
                self.uses[home] += usize::from(self.uses[output] == 0);
            }
            None => self.begin(output),
        }
    }

    /// One use less; the last one frees.
    fn release(&mut self, id: ValueId, used: bool) {
        let home = self.home[id];
        if used || home != id {
            if !used {
                return;
            }
            self.uses[home] = self.uses[home].saturating_sub(1);
        }
        if self.uses[home] == 0 && self.live[home] {
            self.live[home] = false;
            self.note(false, home);
            self.now = self.now.saturating_sub(self.shaped.bytes(home).unwrap_or(0));
        }
    }

    fn largest(&self) -> Vec<PeakTensor> {
        let mut tensors: Vec<PeakTensor> = (0..self.live.len())
            .filter(|&id| self.live[id])
            .map(|id| self.shaped.tensor(id))
            .collect();
        tensors.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        tensors.truncate(8);
        tensors
    }
}
