//! Training steps: forward pass, loss, backward pass, optimizer.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::decoder::{EagerDecoder, EagerPass};
use super::job::{EagerBase, EagerJob};
use super::ops::{EagerMatrix, NF4_BLOCK, Saved, column_sums};
use super::shares::{DdpBuckets, stepped};
use super::tape::{BACKWARD_PRODUCTS, EagerMemory, EagerNode, EagerTape, EagerTensor, Gradient};
use super::{ADAPTERS, TorchMemory};
use crate::families::style::NormPlaces;
use crate::terms::training::{Optimizer, TrainingShard};

/// Steps after which nothing new is reserved.
const STEPS: usize = 3;
/// bitsandbytes: 256 scales share another.
pub(super) const SCALES: u64 = 256;
/// Weights with fewer numbers keep their states in 32 bits.
const SMALL_STATE: u64 = 4096;
/// How a decoder is trained.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EagerTraining {
    pub(crate) optimizer: Optimizer,
    pub(crate) accumulation: u64,
    /// GPUs that share the work, and how.
    pub(crate) gpus: u64,
    pub(crate) shard: TrainingShard,
}

/// What training holds, term by term.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrainedMemory {
    pub(crate) held: TorchMemory,
    pub(crate) weights: u64,
    pub(crate) adapters: u64,
    pub(crate) gradients: u64,
    pub(crate) states: u64,
}

/// A weight: its numbers, the bytes that it takes, and those of a number of its gradient; 0 where
/// it has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrainedWeight {
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) width: u64,
}

impl EagerDecoder<'_> {
    /// What is held at most, with weights of these numbers of elements.
    pub(crate) fn training(&self, elements: &[u64], how: &EagerTraining) -> TrainedMemory {
        let weights = self.weights(elements, how);
        let mut tape = EagerTape::default();
        let sharded = if how.shard == TrainingShard::Fsdp2 { how.gpus.max(1) } else { 1 };
        if self.job.adapters.is_some() && sharded == 1 {
            self.load_adapted(&tape, elements);
        } else {
            for weight in &weights {
                tape.settle(weight.bytes);
            }
        }
        tape.begin(self.room);
        tape.share(sharded, self.gathered(&weights, how));
        let mut buckets = DdpBuckets::new(&tape, &weights, how);
        let stepped = stepped(&weights, how);
        let mut states = Vec::new();
        // The loss has a name until the next is there, and with it its graph.
        let mut graph = Vec::new();
        for _ in 0..STEPS {
            for _ in 0..how.accumulation.min(3) {
                let ids = tape.tensor(self.batch.saturating_mul(self.tokens), 8);
                buckets.before_pass(&tape);
                let loss = self.loss(&mut tape);
                drop(std::mem::replace(&mut graph, std::mem::take(&mut tape.retained)));
                tape.turn_back();
                tape.backward(&loss);
                graph.append(&mut tape.retained);
                drop((loss, ids));
                tape.hand_out_rest();
            }
            optimize(&tape, (&stepped, self.shape.hidden), how, &mut states);
            tape.zero();
        }
        let sum = |part: &dyn Fn(&TrainedWeight) -> u64| {
            weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(part(weight)))
        };
        let products = super::CUBLAS.iter().sum::<u64>().saturating_add(BACKWARD_PRODUCTS);
        TrainedMemory {
            held: TorchMemory { products, ..tape.figures() },
            weights: sum(&|weight| weight.bytes),
            adapters: if self.job.adapters.is_some() {
                sum(&|weight| if weight.width > 0 { weight.bytes } else { 0 })
            } else {
                0
            },
            gradients: sum(&|weight| weight.count.saturating_mul(weight.width) / sharded),
            states: states.iter().fold(0, |sum: u64, state| sum.saturating_add(state.bytes())),
        }
    }

    /// All weights: as they are, or packed under adapters and those.
    fn weights(&self, elements: &[u64], how: &EagerTraining) -> Vec<TrainedWeight> {
        let sharded = if how.shard == TrainingShard::Fsdp2 { how.gpus.max(1) } else { 1 };
        let width = self.job.weight_width;
        let plain = |count: u64, trained: bool| TrainedWeight {
            count,
            bytes: count.saturating_mul(width).div_ceil(sharded),
            width: if trained { width } else { 0 },
        };
        let Some(adapters) = self.job.adapters else {
            return elements.iter().map(|&count| plain(count, true)).collect();
        };
        let matrices: Vec<(u64, u64)> = self.matrices().into_values().collect();
        let packed = |count: u64| match adapters.base {
            EagerBase::Plain => count.saturating_mul(width),
            EagerBase::Nf4 => (count / 2)
                .saturating_add(count / NF4_BLOCK)
                .saturating_add(count / (NF4_BLOCK * SCALES) * 4),
            EagerBase::Int8 => count,
        };
        let all = elements.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
        let inner =
            matrices.iter().fold(0, |sum: u64, &(a, b)| sum.saturating_add(a.saturating_mul(b)));
        let mut weights: Vec<TrainedWeight> = matrices
            .iter()
            .map(|&(inputs, outputs)| {
                let count = inputs.saturating_mul(outputs);
                TrainedWeight { count, bytes: packed(count).div_ceil(sharded), width: 0 }
            })
            .collect();
        weights.push(plain(all.saturating_sub(inner), false));
        weights.extend(matrices.iter().flat_map(|&(inputs, outputs)| {
            [inputs, outputs].map(|side| {
                let count = side.saturating_mul(adapters.rank);
                TrainedWeight { count, bytes: count.saturating_mul(4).div_ceil(sharded), width: 4 }
            })
        }));
        weights
    }

    pub(super) fn is_packed(&self) -> bool {
        self.job.adapters.is_some_and(|adapters| adapters.base != EagerBase::Plain)
    }

    /// The matrices that adapters are for, by number, by a pass over one token.
    pub(super) fn matrices(&self) -> BTreeMap<usize, (u64, u64)> {
        let job = EagerJob { adapters: None, training: false, amp: false, ..self.job };
        let one = EagerDecoder { job, batch: 1, tokens: 1, ..self.clone() };
        let mut tape = EagerTape::default();
        let pass = EagerPass { count: 1, tokens: 1 };
        let mut x = tape.tensor(self.shape.hidden, 2);
        let shared = one.shared(&tape, pass);
        for layer in 0..one.caches.len() {
            (x, _) = one.layer(&mut tape, (layer, pass), &x, &shared, &mut None);
        }
        drop(x);
        let ends = self.projections().into_iter().flatten();
        let ends = ends.map(|matrix| (matrix.weight, (matrix.inputs, matrix.outputs)));
        let inner = tape.seen.range(..ADAPTERS).map(|(&number, &sides)| (number, sides));
        ends.chain(inner).collect()
    }

    /// A forward pass and its loss.
    fn loss<'s>(&'s self, tape: &mut EagerTape<'s>) -> EagerTensor {
        tape.records = true;
        tape.gather_ends();
        let pass = EagerPass { count: self.tokens, tokens: self.tokens };
        let (embedded, held) = self.embedding(tape, pass);
        let shared = self.shared(tape, pass);
        let mut x = tape.dropout(&embedded, self.style.drops_embedding);
        drop(embedded);
        let mut last = None;
        for layer in 0..self.caches.len() {
            let shared = shared.clone();
            tape.gather(layer);
            x = tape.goes_into(x, layer);
            if self.job.checkpointing {
                let one = move |tape: &mut EagerTape<'s>, x: EagerTensor| {
                    self.layer(tape, (layer, pass), &x, &shared, &mut None).0
                };
                x = tape.checkpointed(&x, Rc::new(one));
            } else {
                (x, last) = self.layer(tape, (layer, pass), &x, &shared, &mut None);
            }
            tape.scatter(layer);
            x = tape.made_by(x, layer);
        }
        drop(last);
        let (logits, normed) = self.logits(tape, x, held);
        let wide = tape.cast(&logits, 4);
        let likely = tape.unary(&wide, 4, Saved::Output);
        drop(wide);
        drop((normed, logits));
        let loss = tape.tensor(1, 4);
        let inputs = likely.node.map(|node| (node, Gradient::New(likely.bytes())));
        let node = EagerNode { inputs: inputs.into_iter().collect(), ..EagerNode::default() };
        let loss = tape.record(loss, node);
        tape.casts.clear();
        loss
    }

    /// What the last layer's result becomes: a number for each word of the vocabulary; and what they are
    /// made of, which has a name until the loss is there.
    fn logits(
        &self,
        tape: &mut EagerTape<'_>,
        x: EagerTensor,
        held: Vec<EagerTensor>,
    ) -> (EagerTensor, EagerTensor) {
        // Norms behind each sum leave nothing for one at the end.
        let last = match self.style.places {
            NormPlaces::Behind => x.clone(),
            _ => tape.norm(&self.job, self.normed(), &x),
        };
        drop(x);
        drop(held);
        let down = self.projections().map(|[_, down]| tape.linear(&self.job, &last, down));
        let normed = down.unwrap_or(last);
        let (narrow, vocab) = (self.narrow(), self.shape.vocab);
        let weight = usize::from(!self.shape.tied_embeddings);
        let matrix =
            EagerMatrix { weight, inputs: narrow, outputs: vocab, bias: false, inner: false };
        let mut logits = tape.linear(&self.job, &normed, matrix);
        if self.style.scales_logits {
            logits = tape.unary(&logits, logits.width, Saved::Nothing);
        }
        if self.style.caps_logits {
            logits = tape.unary(&logits, logits.width, Saved::Nothing);
            logits = tape.unary(&logits, logits.width, Saved::Output);
            logits = tape.unary(&logits, logits.width, Saved::Nothing);
        }
        (logits, normed)
    }

    /// The width of the embedding.
    pub(super) fn narrow(&self) -> u64 {
        match self.style.embedded_width {
            0 => self.shape.hidden,
            width => width,
        }
    }
}

/// A step of the optimizer: states where there are none yet, and what it takes for a while.
fn optimize(
    tape: &EagerTape<'_>,
    (stepped, hidden): (&[&TrainedWeight], u64),
    how: &EagerTraining,
    states: &mut Vec<EagerMemory>,
) {
    let parts = if how.shard == TrainingShard::Fsdp2 { how.gpus.max(1) } else { 1 };
    let trained = || stepped.iter().copied();
    if states.is_empty() {
        for weight in trained() {
            let each = match how.optimizer {
                Optimizer::AdamW | Optimizer::AdamWFused => {
                    weight.count.saturating_mul(weight.width)
                }
                Optimizer::AdamW8Bit if weight.count < SMALL_STATE => {
                    weight.count.saturating_mul(4)
                }
                Optimizer::AdamW8Bit => weight.count,
                // A row and a column of each matrix; less than a thousandth.
                Optimizer::Sgd | Optimizer::Adafactor => 0,
            };
            states.extend([(); 2].map(|()| tape.take(each / parts)));
            if how.optimizer == Optimizer::AdamW8Bit && weight.count >= SMALL_STATE {
                let scales = weight.count / SCALES * 4 / parts;
                states.extend([(); 2].map(|()| tape.take(scales)));
            }
        }
    }
    let bytes = |weight: &TrainedWeight| weight.count.saturating_mul(weight.width) / parts;
    match how.optimizer {
        Optimizer::AdamW => drop(trained().map(|w| tape.take(bytes(w))).collect::<Vec<_>>()),
        // One weight after the other: sums of its columns, and its update.
        Optimizer::Adafactor => trained().for_each(|weight| {
            drop(tape.take(column_sums(weight.count / hidden.max(1), hidden)));
            drop(tape.take(bytes(weight)));
        }),
        Optimizer::AdamWFused | Optimizer::AdamW8Bit | Optimizer::Sgd => {}
    }
}
