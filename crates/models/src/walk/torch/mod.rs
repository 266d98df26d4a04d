//! What PyTorch takes for a graph on CUDA, run as it was written: operator by operator.
//!
//! ```text
//! steps ─→ what lives where ─→ requests in order ─→ caching allocator
//! ```
//!
//! Unlike an engine that plans, it makes a new tensor for every result and frees
//! tensors without a reference; transposes and slices are views until an operator needs them
//! contiguous; norms that an
//! exporter folded into convolutions run. Three things are taken besides: cuBLAS's workspace
//! from the first product on; cuDNN's, which is an allowance (see `cudnn_copies`); and places of
//! the largest elements in pools. All come from the allocator ([`Caching`]), and what that
//! reserves is what the device holds.

mod caching;
mod plan;

pub use caching::{CachedBlockId, Caching};

use self::plan::TorchPlan;
use super::ort::{Lowered, Step, cudnn_copies, eager_steps};
use super::shapes::Shaped;

/// What PyTorch sets aside for cuBLAS on the newest GPUs, and for cuBLASLt.
pub const CUBLAS: [u64; 2] = [32 << 20, 1 << 20];
/// As often as it is run: what fits in the first run may not fit between what it left.
const RUNS: usize = 3;

/// What PyTorch's allocator would say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TorchMemory {
    /// Bytes of its segments.
    pub reserved: u64,
    /// The most in blocks at once, weights among it.
    pub allocated: u64,
    /// The most that tensors take at once, without weights and workspaces.
    pub live: u64,
    /// The largest workspace of a convolution.
    pub copies: u64,
    /// What is set aside for products of matrices; 0 where there is none.
    pub products: u64,
    /// The largest piece that the driver is asked for.
    pub largest_segment: u64,
    /// The operator at which the most is allocated.
    pub operator: String,
    /// Whether all requests are met within the room that was given, what is free given back when it
    /// must be; none where no room was given.
    pub met: Option<bool>,
}

/// What a graph takes; `scale` turns bytes of the file into those of the type that it is run in.
#[must_use]
pub fn memory(shaped: &Shaped, scale: &dyn Fn(u64) -> u64) -> TorchMemory {
    let lowered = eager_steps(shaped);
    let mut run = TorchRun {
        shaped,
        lowered: &lowered,
        scale,
        plan: &TorchPlan::new(shaped, &lowered),
        place: vec![None; lowered.values.len()],
        torch: Caching::default(),
        live: 0,
        found: TorchMemory::default(),
    };
    for value in &shaped.graph.values {
        run.torch.take(scale(value.weight.map_or(0, |weight| weight.bytes)));
    }
    for &id in &shaped.graph.inputs {
        run.begin(id);
    }
    for _ in 0..RUNS {
        run.once();
    }
    run.found.reserved = run.torch.reserved();
    run.found.allocated = run.torch.peak();
    run.found.largest_segment = run.torch.largest_segment();
    run.found
}

/// What a backward pass needs of a detector's graph: every result that is no view, and the largest of
/// them. Behind a convolution was a norm, which was folded into it: it keeps what it read, and what it
/// made is kept for the activation function.
#[must_use]
pub fn kept_for_backward(shaped: &Shaped, scale: &dyn Fn(u64) -> u64) -> (u64, u64) {
    let lowered = eager_steps(shaped);
    let plan = TorchPlan::new(shaped, &lowered);
    let (mut sum, mut most) = (0u64, 0);
    for step in &lowered.steps {
        let times = if step.op == "Conv" { 2 } else { 1 };
        for &id in step.outputs.iter().filter(|&&id| plan.home[id] == id) {
            let bytes = scale(lowered.values[id].bytes);
            sum = sum.saturating_add(bytes.saturating_mul(times));
            most = most.max(bytes);
        }
    }
    (sum, most)
}

struct TorchRun<'a> {
    shaped: &'a Shaped,
    lowered: &'a Lowered,
    scale: &'a dyn Fn(u64) -> u64,
    plan: &'a TorchPlan,
    place: Vec<Option<CachedBlockId>>,
    torch: Caching,
    live: u64,
    found: TorchMemory,
}

impl TorchRun<'_> {
    fn bytes(&self, id: usize) -> u64 {
        (self.scale)(self.lowered.values[id].bytes)
    }

    fn begin(&mut self, id: usize) {
        self.place[id] = self.torch.take(self.bytes(id));
        self.live = self.live.saturating_add(self.bytes(id));
        self.found.live = self.found.live.max(self.live);
    }

    fn end(&mut self, id: usize) {
        if let Some(place) = self.place[id].take() {
            self.torch.free(Some(place));
            self.live = self.live.saturating_sub(self.bytes(id));
        }
    }

    fn once(&mut self) {
        for (&n, ends) in self.plan.order.iter().zip(&self.plan.ends) {
            let step = &self.lowered.steps[n];
            let before = self.torch.peak();
            self.step(step);
            if self.torch.peak() > before {
                self.found.operator.clone_from(&step.label);
            }
            for &id in ends {
                self.end(id);
            }
        }
        for &id in &self.plan.results {
            self.end(id);
        }
    }

    fn step(&mut self, step: &Step) {
        let product = matches!(step.op.as_str(), "MatMul" | "Gemm");
        let rank = |id: usize| self.lowered.values[id].shape.as_ref().map_or(0, Vec::len);
        // Products of many matrices need each of them in a row.
        let copied =
            step.inputs.iter().filter(|&&id| product && self.plan.turned[id] && rank(id) > 3);
        let copied: Vec<u64> = copied.map(|&id| self.bytes(id)).collect();
        let copies: Vec<_> = copied.into_iter().map(|bytes| self.torch.take(bytes)).collect();
        for &output in &step.outputs {
            if self.plan.home[output] == output {
                self.begin(output);
            }
        }
        if product && self.found.products == 0 {
            self.found.products = CUBLAS.iter().sum();
            for bytes in CUBLAS {
                self.torch.take(bytes);
            }
        }
        let workspace = self.workspace(step);
        let workspace = self.torch.take(workspace);
        for block in copies.into_iter().chain([workspace]) {
            self.torch.free(block);
        }
        if let (true, Some(&output)) = (self.had_norm(step), step.outputs.first()) {
            let before = self.place[output];
            self.begin(output);
            self.torch.free(before);
            self.live = self.live.saturating_sub(self.bytes(output));
        }
    }

    /// Whether a norm behind it runs, too. PyTorch's exporter folds norms into convolutions, and
    /// gives the weights that come out a name of its own.
    fn had_norm(&self, step: &Step) -> bool {
        let node = &self.shaped.graph.nodes[step.node];
        let filter = node.inputs.get(1).copied().flatten();
        let name = filter.map_or("", |id| &self.shaped.graph.values[id].name);
        node.op == "Conv" && name.starts_with("onnx::Conv_")
    }

    fn workspace(&mut self, step: &Step) -> u64 {
        if step.op == "MaxPool" {
            let output = step.outputs.first().map(|&id| &self.lowered.values[id]);
            // A place in 64 bits for every element.
            return output
                .map_or(0, |value| (value.bytes / (value.bits / 8).max(1)).saturating_mul(8));
        }
        let copies = (self.scale)(cudnn_copies(self.shaped, step.node, 1));
        self.found.copies = self.found.copies.max(copies);
        copies
    }
}

#[cfg(test)]
mod tests;
