//! Training on several GPUs: what one of them holds of weights, gradients and states, and besides.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::LAYER_WEIGHTS;
use super::decoder::EagerDecoder;
use super::tape::{EagerMemory, EagerTape, GatheredGroup};
use super::train::{EagerTraining, TrainedWeight};
use crate::terms::training::TrainingShard;

/// What DDP puts into its first bucket, and into each of the others, at least.
const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;

/// What DDP sends at once when it begins, at least, and how many such buffers there are at a time.
const SENT: u64 = 250 << 20;
const SENDING: usize = 2;

/// The buckets in which DDP holds gradients a second time; ZeRO-1 has them, too. At first they are filled
/// with weights as the model has them; from the second pass on in the order in which gradients came.
#[derive(Debug, Default)]
pub(super) struct DdpBuckets {
    held: Vec<EagerMemory>,
    passes: u64,
    /// Their sizes from the second pass on.
    later: Vec<u64>,
}

impl DdpBuckets {
    pub(super) fn new(
        tape: &EagerTape<'_>,
        weights: &[TrainedWeight],
        how: &EagerTraining,
    ) -> DdpBuckets {
        if how.gpus < 2 || how.shard == TrainingShard::Fsdp2 {
            return DdpBuckets::default();
        }
        // The first GPU's weights are sent to all; the buckets lie in what these buffers leave.
        let mut sending = VecDeque::new();
        for bytes in filled(weights.iter().map(|weight| weight.bytes), SENT, SENT) {
            if sending.len() == SENDING {
                sending.pop_front();
            }
            sending.push_back(tape.take(bytes));
        }
        drop(sending);
        let gradients: Vec<u64> =
            weights.iter().map(|weight| weight.count.saturating_mul(weight.width)).collect();
        let first = filled(gradients.iter().copied(), FIRST_BUCKET, BUCKET);
        let later = filled(gradients.iter().rev().copied(), FIRST_BUCKET, BUCKET);
        let held = first.into_iter().rev().map(|bytes| tape.take(bytes)).collect();
        DdpBuckets { held, passes: 0, later }
    }

    /// Before the second pass the buckets are made anew.
    pub(super) fn before_pass(&mut self, tape: &EagerTape<'_>) {
        if self.passes == 1 {
            self.held.clear();
            self.held = self.later.iter().map(|&bytes| tape.take(bytes)).collect();
        }
        self.passes += 1;
    }
}

/// Sums of sizes in order, each at least this much: the first, and the others.
fn filled(sizes: impl Iterator<Item = u64>, first: u64, others: u64) -> Vec<u64> {
    let mut sums = Vec::new();
    let mut sum = 0_u64;
    for size in sizes {
        sum = sum.saturating_add(size);
        if sum >= if sums.is_empty() { first } else { others } {
            sums.push(std::mem::take(&mut sum));
        }
    }
    sums.push(sum);
    sums
}

/// The weights whose states one GPU holds: all, or what ZeRO-1 gives to the one with the most. It
/// gives the largest first, each to the GPU that has the least.
pub(super) fn stepped<'a>(
    weights: &'a [TrainedWeight],
    how: &EagerTraining,
) -> Vec<&'a TrainedWeight> {
    let mut trained: Vec<_> = weights.iter().filter(|weight| weight.width > 0).collect();
    if how.shard != TrainingShard::Zero1 {
        return trained;
    }
    trained.sort_by_key(|weight| Reverse(weight.count));
    // More GPUs than weights get nothing.
    let gpus = how.gpus.clamp(1, trained.len().max(1) as u64);
    let mut shares: BinaryHeap<_> = (0..gpus).map(|gpu| Reverse((0_u64, gpu))).collect();
    let mut given = Vec::with_capacity(trained.len());
    for weight in &trained {
        if let Some(Reverse((count, gpu))) = shares.pop() {
            given.push(gpu);
            shares.push(Reverse((count.saturating_add(weight.count), gpu)));
        }
    }
    let fullest = shares.into_iter().map(|Reverse(share)| share).max().map(|(_, gpu)| gpu);
    let has = |gpu: &u64| Some(*gpu) == fullest;
    trained.into_iter().zip(given).filter(|(_, gpu)| has(gpu)).map(|(weight, _)| weight).collect()
}

impl EagerDecoder<'_> {
    /// The weights that FSDP2 gathers together: those of each layer, and the ends with what is left.
    pub(super) fn gathered(
        &self,
        weights: &[TrainedWeight],
        how: &EagerTraining,
    ) -> Vec<GatheredGroup> {
        if how.gpus < 2 || how.shard != TrainingShard::Fsdp2 {
            return Vec::new();
        }
        let sum = |part: &dyn Fn(&TrainedWeight) -> u64| {
            weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(part(weight)))
        };
        let layers = self.caches.len().max(1);
        let table = self.shape.vocab.saturating_mul(self.narrow()).saturating_mul(self.width());
        let ends = vec![table; if self.shape.tied_embeddings { 1 } else { 2 }];
        let of_ends = table.saturating_mul(ends.len() as u64);
        let whole = sum(&|weight| weight.bytes.saturating_mul(how.gpus));
        let layer = whole.saturating_sub(of_ends) / layers as u64;
        let trained_ends = if self.job.trains() { of_ends } else { 0 };
        let gradients = sum(&|weight| weight.count.saturating_mul(weight.width));
        let of_layer = gradients.saturating_sub(trained_ends) / layers as u64;
        let matrices = self.matrices();
        let group = |number: usize| {
            if self.is_packed() {
                // Packed matrices are smaller than their sides say.
                return GatheredGroup { weights: vec![layer], gradients: of_layer };
            }
            let first = (number + 1) * LAYER_WEIGHTS;
            let own = matrices.range(first..first + LAYER_WEIGHTS);
            let mut weights: Vec<u64> = own
                .map(|(_, (inputs, outputs))| {
                    inputs.saturating_mul(*outputs).saturating_mul(self.width())
                })
                .collect();
            let known = weights.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
            weights.push(layer.saturating_sub(known));
            GatheredGroup { weights, gradients: of_layer }
        };
        let mut groups: Vec<_> = (0..layers).map(group).collect();
        groups.push(GatheredGroup { weights: ends, gradients: trained_ends });
        groups
    }
}
