//! What FSDP2 gathers of other GPUs' shares, and how it hands gradients out, in the order of its requests.
//!
//! Weights arrive in a buffer and are copied out of it; gradients are copied into one, of which a
//! share comes back. What arrives and those shares belong to streams of their own, whose free memory
//! nothing else can take.

use std::collections::BTreeMap;

use super::{EagerMemory, EagerNode, EagerTape, EagerTensor, Gradient};
use crate::terms::eager::{ADAPTERS, LAYER_WEIGHTS};

/// The stream on which weights arrive, and that of the shares of gradients.
const ARRIVING: usize = 1;
const SHARES: usize = 2;

/// Weights that are gathered together: those of a layer, or of the ends of the model.
#[derive(Debug, Clone, Default)]
pub(in crate::terms::eager) struct GatheredGroup {
    /// Bytes of each weight, whole.
    pub(in crate::terms::eager) weights: Vec<u64>,
    /// Bytes of all gradients, whole.
    pub(in crate::terms::eager) gradients: u64,
}

/// What FSDP2 does in the backward pass when it comes to a tensor.
#[derive(Debug, Clone, Copy)]
pub(in crate::terms::eager) enum FsdpExchange {
    /// Gathers the weights of this group, which made the tensor.
    Gather(usize),
    /// Hands out the gradients of this group, which the tensor went into.
    HandOut(usize),
}

/// What is whole or on its way.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Layers, and the ends of the model after them; none without FSDP2.
    groups: Vec<GatheredGroup>,
    gpus: u64,
    whole: BTreeMap<usize, Vec<EagerMemory>>,
    /// The buffer that weights arrived in last, and whose they are.
    arrived: Option<(usize, EagerMemory)>,
    /// The gradients that were handed out last.
    handed_out: Option<EagerMemory>,
    shares: BTreeMap<usize, EagerMemory>,
}

impl EagerTape<'_> {
    /// Shares all weights between GPUs.
    pub(in crate::terms::eager) fn share(&mut self, gpus: u64, groups: Vec<GatheredGroup>) {
        self.gathering = Gathering { groups, gpus, ..Gathering::default() };
    }

    /// The ends of the model, which are gathered first and stay.
    pub(in crate::terms::eager) fn gather_ends(&mut self) {
        if let Some(ends) = self.gathering.groups.len().checked_sub(1) {
            self.gather(ends);
        }
    }

    /// Before a group's forward pass: the buffer before it is let go once the next is there.
    pub(in crate::terms::eager) fn gather(&mut self, group: usize) {
        let Some(buffer) = self.buffer(group) else { return };
        self.gathering.arrived = None;
        self.copy_out(group);
        self.gathering.arrived = Some((group, buffer));
    }

    /// After it: its weights are a share again.
    pub(in crate::terms::eager) fn scatter(&mut self, group: usize) {
        self.gathering.whole.remove(&group);
    }

    /// The forward pass is over: the last layer's weights are asked for again.
    pub(in crate::terms::eager) fn turn_back(&mut self) {
        self.gathering.arrived = None;
        self.ask_before(self.gathering.groups.len().saturating_sub(1));
    }

    /// The backward pass is over: the gradients of the ends, and of layers whose input has none.
    pub(in crate::terms::eager) fn hand_out_rest(&mut self) {
        for group in (0..self.gathering.groups.len()).rev() {
            if !self.gradients_of(group).is_empty() {
                self.hand_out(group);
            }
        }
        self.gathering.handed_out = None;
        self.gathering.whole.clear();
    }

    /// Lets go of the shares of gradients.
    pub(super) fn zero_shares(&mut self) {
        self.gathering.shares.clear();
    }

    /// The tensor that a group made: its backward pass gathers its weights.
    pub(in crate::terms::eager) fn made_by(&mut self, x: EagerTensor, group: usize) -> EagerTensor {
        self.exchanging(x, FsdpExchange::Gather(group))
    }

    /// The tensor that goes into a group: once its gradient is there, those of the group are handed out.
    pub(in crate::terms::eager) fn goes_into(
        &mut self,
        x: EagerTensor,
        group: usize,
    ) -> EagerTensor {
        self.exchanging(x, FsdpExchange::HandOut(group))
    }

    fn exchanging(&mut self, x: EagerTensor, exchange: FsdpExchange) -> EagerTensor {
        if self.gathering.groups.is_empty() {
            return x;
        }
        let inputs = x.node.map(|node| (node, Gradient::Same)).into_iter().collect();
        self.record(x, EagerNode { inputs, exchange: Some(exchange), ..EagerNode::default() })
    }

    pub(super) fn exchange(&mut self, exchange: FsdpExchange) {
        match exchange {
            FsdpExchange::Gather(group) => {
                let asked = self.gathering.arrived.take().filter(|(arrived, _)| *arrived == group);
                let buffer = asked.map(|(_, buffer)| buffer).or_else(|| self.buffer(group));
                self.copy_out(group);
                drop(buffer);
                self.ask_before(group);
            }
            FsdpExchange::HandOut(group) => self.hand_out(group),
        }
    }

    /// Asks for the weights that are needed after those of this group.
    fn ask_before(&mut self, group: usize) {
        if let Some(next) = group.checked_sub(1) {
            self.gathering.arrived = self.buffer(next).map(|buffer| (next, buffer));
        }
    }

    fn buffer(&self, group: usize) -> Option<EagerMemory> {
        let weights = &self.gathering.groups.get(group)?.weights;
        Some(self.take_on(ARRIVING, weights.iter().fold(0, |sum, &n| sum.saturating_add(n))))
    }

    fn copy_out(&mut self, group: usize) {
        let Some(found) = self.gathering.groups.get(group) else { return };
        let whole = found.weights.iter().map(|&bytes| self.take(bytes)).collect();
        self.gathering.whole.insert(group, whole);
    }

    /// Gradients of a group become a share of the sum of all.
    fn hand_out(&mut self, group: usize) {
        let Some(bytes) = self.gathering.groups.get(group).map(|found| found.gradients) else {
            return;
        };
        self.scatter(group);
        self.gathering.handed_out = None;
        self.gathering.handed_out = Some(self.take(bytes));
        for weight in self.gradients_of(group) {
            self.slots.remove(&weight);
        }
        let share = self.take_on(SHARES, bytes.div_ceil(self.gathering.gpus.max(1)));
        // A second one is added to the first.
        self.gathering.shares.entry(group).or_insert(share);
    }

    /// The weights of a group that have a gradient now.
    fn gradients_of(&self, group: usize) -> Vec<usize> {
        let ends = self.gathering.groups.len().saturating_sub(1);
        let of = |weight: usize| (weight % ADAPTERS / LAYER_WEIGHTS).checked_sub(1).unwrap_or(ends);
        let slots = self.slots.iter().filter(|(_, slot)| slot.kept.is_some());
        slots.map(|(&weight, _)| weight).filter(|&weight| of(weight) == group).collect()
    }
}
