//! A program's tensors without data: each lives as long as something refers to it, and what the
//! backward pass needs is referred to by its tape.
//!
//! The order of requests is that of PyTorch's autograd: nodes run in the opposite order of their
//! making, a node's gradients are made before what it saved is let go, and a second gradient for
//! the same tensor is added into a third.

mod again;
mod gathered;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use self::gathered::{FsdpExchange, Gathering};
use super::super::super::walk::torch::{CUBLAS, CachedBlockId, Caching, TorchMemory};

pub(super) use self::again::Again;
pub(super) use self::gathered::GatheredGroup;

/// What cuBLAS works in for the thread that runs backward passes.
pub(super) const BACKWARD_PRODUCTS: u64 = 32 << 20;

/// The allocator, and what lives in it besides weights.
#[derive(Debug, Default)]
pub(super) struct EagerHeap {
    pub(super) torch: Caching,
    live: u64,
    most: u64,
    has_product: bool,
}

#[derive(Debug)]
struct EagerBlock {
    heap: Rc<RefCell<EagerHeap>>,
    place: Option<CachedBlockId>,
    bytes: u64,
}

impl Drop for EagerBlock {
    fn drop(&mut self) {
        let mut heap = self.heap.borrow_mut();
        heap.live = heap.live.saturating_sub(self.bytes);
        heap.torch.free(self.place);
    }
}

/// A tensor's memory, shared by all that see it.
#[derive(Debug, Clone)]
pub(super) struct EagerMemory(Rc<EagerBlock>);

/// A tensor: numbers of a width, and who made it where that matters for a backward pass.
#[derive(Debug, Clone)]
pub(super) struct EagerTensor {
    pub(super) memory: EagerMemory,
    pub(super) count: u64,
    /// Bytes of a number.
    pub(super) width: u64,
    pub(super) node: Option<usize>,
}

impl EagerMemory {
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl EagerTensor {
    pub(super) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.width)
    }

    /// The same memory, of which only a part is meant.
    pub(super) fn part(&self, count: u64) -> EagerTensor {
        EagerTensor { count, ..self.clone() }
    }
}

/// A gradient that a node makes for one of its inputs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gradient {
    /// In memory of its own.
    New(u64),
    /// In memory of its own that is seen through a view, as a product of matrices is.
    View(u64),
    /// What arrived, unchanged.
    Same,
    /// The same through a view.
    Seen,
}

/// The gradient of a weight: which, its bytes, and those of what is made before it is cast.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightGradient {
    pub(super) weight: usize,
    pub(super) bytes: u64,
    pub(super) narrow: u64,
}

/// What the backward pass of one operator does.
#[derive(Default)]
pub(super) struct EagerNode<'a> {
    pub(super) inputs: Vec<(usize, Gradient)>,
    pub(super) saved: Vec<EagerMemory>,
    /// What it takes until its working memory is there.
    pub(super) opening: u64,
    /// What it takes while it runs, and what it takes for a moment once its gradients are made.
    pub(super) working: Vec<u64>,
    pub(super) brief: Vec<u64>,
    pub(super) weights: Vec<WeightGradient>,
    /// Whether an input's gradient is made before that of a weight, whose sum comes last.
    pub(super) inputs_first: bool,
    /// Whether the gradients that arrive are parts of one.
    pub(super) gathers: bool,
    /// A part that is run again before its own backward pass, from this input.
    pub(super) again: Option<(EagerTensor, Again<'a>)>,
    pub(super) gradient: Option<EagerMemory>,
    /// Whether the gradient is seen through a view.
    pub(super) view: bool,
    /// Whether the gradient stays, as that of a tensor that no operator made does.
    pub(super) keeps: bool,
    /// What is exchanged with other GPUs in the backward pass, where that comes here.
    pub(super) exchange: Option<FsdpExchange>,
}

/// The gradients of weights.
#[derive(Debug, Default, Clone)]
struct WeightSlot {
    /// Operators that use it in a pass, and those whose gradient has arrived.
    uses: usize,
    arrived: usize,
    pending: Option<(EagerMemory, bool)>,
    kept: Option<EagerMemory>,
}

/// All tensors of a program and the tape of its backward pass.
#[derive(Default)]
pub(super) struct EagerTape<'a> {
    heap: Rc<RefCell<EagerHeap>>,
    nodes: Vec<EagerNode<'a>>,
    slots: BTreeMap<usize, WeightSlot>,
    /// Matrices that were met: inputs and outputs by number.
    pub(super) seen: BTreeMap<usize, (u64, u64)>,
    /// What stays as long as the graph of a pass is there.
    pub(super) retained: Vec<EagerMemory>,
    /// Whether operators are recorded for a backward pass.
    pub(super) records: bool,
    /// The node after which nothing is made any more, where a part is run again.
    last: Option<usize>,
    /// Whether what nodes saved is theirs alone, as after a part was run again: they let go of it at once.
    unpacks: bool,
    /// What autocast keeps until the forward pass is over.
    pub(super) casts: Vec<EagerMemory>,
    /// Whether a backward pass has run a product.
    has_backward_product: bool,
    gathering: Gathering,
}

impl<'a> EagerTape<'a> {
    /// With an allocator that has this much and no more, where that is said.
    pub(super) fn within(room: Option<u64>) -> EagerTape<'a> {
        let torch = room.map_or_else(Caching::default, Caching::within);
        let heap = Rc::new(RefCell::new(EagerHeap { torch, ..EagerHeap::default() }));
        EagerTape { heap, ..EagerTape::default() }
    }

    pub(super) fn take(&self, bytes: u64) -> EagerMemory {
        self.take_on(0, bytes)
    }

    /// Memory of a stream: what it frees serves that stream alone.
    fn take_on(&self, stream: usize, bytes: u64) -> EagerMemory {
        let over = self.last.is_some_and(|last| self.nodes.len() > last);
        let bytes = if over { 0 } else { bytes };
        let mut heap = self.heap.borrow_mut();
        heap.live = heap.live.saturating_add(bytes);
        heap.most = heap.most.max(heap.live);
        let place = heap.torch.take_on(stream, bytes);
        drop(heap);
        EagerMemory(Rc::new(EagerBlock { heap: Rc::clone(&self.heap), place, bytes }))
    }

    /// Memory that stays and is not counted as live: weights.
    pub(super) fn settle(&self, bytes: u64) -> Option<CachedBlockId> {
        self.heap.borrow_mut().torch.take(bytes)
    }

    /// Lets go of what was settled.
    pub(super) fn unsettle(&self, place: Option<CachedBlockId>) {
        self.heap.borrow_mut().torch.free(place);
    }

    /// The model is there: its program begins in an allocator that has this much and no more, where
    /// that is said. What making the model took besides is given back.
    pub(super) fn begin(&self, room: Option<u64>) {
        self.heap.borrow_mut().torch.begin(room);
    }

    pub(super) fn tensor(&self, count: u64, width: u64) -> EagerTensor {
        let memory = self.take(count.saturating_mul(width));
        EagerTensor { memory, count, width, node: None }
    }

    /// A product of matrices ran: the first sets aside what cuBLAS works in.
    pub(super) fn product(&self) {
        let mut heap = self.heap.borrow_mut();
        if !std::mem::replace(&mut heap.has_product, true) {
            for bytes in CUBLAS {
                heap.torch.take(bytes);
            }
        }
    }

    /// What the allocator says; `live` is what lived at most besides weights.
    pub(super) fn figures(&self) -> TorchMemory {
        let heap = self.heap.borrow();
        TorchMemory {
            reserved: heap.torch.peak_reserved(),
            allocated: heap.torch.peak(),
            live: heap.most,
            largest_segment: heap.torch.largest_segment(),
            met: heap.torch.met(),
            ..TorchMemory::default()
        }
    }

    /// The tensor with a node behind it, where something is recorded and an input or weight of it
    /// gets a gradient.
    pub(super) fn record(&mut self, mut out: EagerTensor, node: EagerNode<'a>) -> EagerTensor {
        if self.records && !(node.inputs.is_empty() && node.weights.is_empty()) {
            for weight in &node.weights {
                self.slot(weight.weight).uses += 1;
            }
            out.node = Some(self.nodes.len());
            self.nodes.push(node);
        }
        out
    }

    /// A tensor that gets a gradient though no operator made it.
    pub(super) fn leaf(&mut self, mut tensor: EagerTensor) -> EagerTensor {
        tensor.node = self.records.then_some(self.nodes.len());
        if self.records {
            self.nodes.push(EagerNode::default());
        }
        tensor
    }

    /// The same where the program asks for its gradient: both stay as long as the graph does.
    pub(super) fn kept_leaf(&mut self, tensor: EagerTensor) -> EagerTensor {
        self.retained.push(tensor.memory.clone());
        let leaf = self.leaf(tensor);
        if let Some(node) = leaf.node {
            self.nodes[node].keeps = true;
        }
        leaf
    }

    fn slot(&mut self, weight: usize) -> &mut WeightSlot {
        self.slots.entry(weight).or_default()
    }

    /// The backward pass of a result.
    pub(super) fn backward(&mut self, from: &EagerTensor) {
        let Some(last) = from.node else { return };
        self.nodes[last].gradient = Some(self.take(from.bytes()));
        self.unwind(0);
    }

    /// All nodes from `first` on, the last one first.
    fn unwind(&mut self, first: usize) {
        self.records = false;
        while self.nodes.len() > first {
            let Some(mut node) = self.nodes.pop() else { break };
            let Some(gradient) = node.gradient.take() else { continue };
            match node.again.take() {
                Some((x, part)) => self.unwind_again(&node, x, &part, gradient),
                None => self.unwind_one(node, gradient),
            }
        }
        self.records = true;
    }

    fn unwind_one(&mut self, mut node: EagerNode<'a>, gradient: EagerMemory) {
        if let Some(exchange) = node.exchange {
            self.exchange(exchange);
        }
        let early = node.inputs_first.then(|| self.inputs_made(&node, &gradient));
        let opening = self.take(node.opening);
        let working: Vec<_> = node.working.iter().map(|&bytes| self.take(bytes)).collect();
        drop(opening);
        let weights: Vec<_> = node
            .weights
            .iter()
            .map(|weight| {
                let narrow = self.take(weight.narrow);
                let memory = (weight.narrow == 0).then(|| self.take(weight.bytes));
                (weight.weight, memory, narrow, weight.bytes)
            })
            .collect();
        if !node.weights.is_empty() {
            self.backward_product();
        }
        let made = early.unwrap_or_else(|| self.inputs_made(&node, &gradient));
        if self.unpacks && node.inputs_first {
            // A sum over rows comes when the operator itself is done.
            node.saved.clear();
        }
        for &bytes in &node.brief {
            drop(self.take(bytes));
        }
        drop(working);
        if node.keeps {
            self.retained.push(gradient.clone());
        }
        if self.unpacks {
            drop(node.saved);
            drop(gradient);
        } else {
            drop(gradient);
            drop(node.saved);
        }
        for (input, memory, view) in made {
            self.give(input, memory, view);
        }
        for (weight, memory, narrow, bytes) in weights {
            let cast = memory.is_none();
            let memory = memory.unwrap_or_else(|| self.take(bytes));
            drop(narrow);
            self.keep(weight, memory, cast);
        }
    }

    /// The gradients that a node makes for its inputs.
    fn inputs_made(
        &mut self,
        node: &EagerNode<'a>,
        gradient: &EagerMemory,
    ) -> Vec<(usize, EagerMemory, bool)> {
        let made = node
            .inputs
            .iter()
            .map(|&(input, kind)| match kind {
                Gradient::New(bytes) => (input, self.take(bytes), false),
                Gradient::View(bytes) => (input, self.take(bytes), true),
                Gradient::Same => (input, gradient.clone(), node.view),
                Gradient::Seen => (input, gradient.clone(), true),
            })
            .collect();
        // A frozen matrix gets no gradient, so that the first product may be an input's.
        if node.inputs.iter().any(|(_, kind)| matches!(kind, Gradient::View(_))) {
            self.backward_product();
        }
        made
    }

    /// A backward pass ran a product: the first sets aside what cuBLAS works in for its thread.
    fn backward_product(&mut self) {
        if !std::mem::replace(&mut self.has_backward_product, true) {
            self.settle(BACKWARD_PRODUCTS);
        }
    }

    /// A gradient for a node: the second becomes a sum.
    fn give(&mut self, node: usize, memory: EagerMemory, view: bool) {
        if self.nodes[node].gathers {
            self.nodes[node].saved.push(memory.clone());
            self.nodes[node].gradient = Some(memory);
            return;
        }
        let sum = match self.nodes[node].gradient.take() {
            // Nobody else has it: added in place.
            Some(old) if Rc::strong_count(&old.0) == 1 && !self.nodes[node].view => old,
            Some(old) => {
                self.nodes[node].view = false;
                let sum = self.take(memory.0.bytes.max(old.0.bytes));
                drop(old);
                sum
            }
            None => {
                self.nodes[node].view = view;
                memory
            }
        };
        self.nodes[node].gradient = Some(sum);
    }

    /// A gradient for a weight: added up over its uses, then kept, or added to what is kept.
    fn keep(&mut self, weight: usize, memory: EagerMemory, cast: bool) {
        let memory = match self.slot(weight).pending.take() {
            // One that a cast made is added to in place; others are views of a product.
            Some((old, true)) => old,
            Some((old, false)) => {
                let sum = self.take(memory.0.bytes);
                drop(old);
                sum
            }
            None => memory,
        };
        let slot = self.slot(weight);
        slot.arrived += 1;
        if slot.arrived < slot.uses {
            slot.pending = Some((memory, cast));
            return;
        }
        (slot.arrived, slot.uses) = (0, 0);
        slot.kept.get_or_insert(memory);
    }

    /// Lets go of all gradients.
    pub(super) fn zero(&mut self) {
        self.slots.clear();
        self.zero_shares();
    }

    /// Whether a weight has a gradient.
    #[cfg(test)]
    pub(super) fn has_gradient(&self, weight: usize) -> bool {
        self.slots.get(&weight).is_some_and(|slot| slot.kept.is_some())
    }
}

#[cfg(test)]
mod tests;
