//! A decoder's layers as Transformers has them: norms, attention, MLP or experts, and what of
//! each outlives the next line of the program.

use super::job::EagerJob;
use super::ops::{EagerMatrix, Saved};
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient};
use super::{EagerCache, LAYER_WEIGHTS};
use crate::families::style::{
    AttentionKind, DecoderStyle, NameKind, NormKind, NormPlaces, RotaryKind, ScoreKind,
};
use crate::{Biases, ModelShape};

/// A decoder and how it is run.
#[derive(Debug, Clone)]
pub(crate) struct EagerDecoder<'a> {
    pub(crate) shape: &'a ModelShape,
    pub(crate) style: DecoderStyle,
    pub(crate) job: EagerJob,
    /// What each layer keeps.
    pub(crate) caches: Vec<EagerCache>,
    /// Sequences, and tokens of each.
    pub(crate) batch: u64,
    pub(crate) tokens: u64,
    /// What the allocator may hold, where that is said.
    pub(crate) room: Option<u64>,
}

/// Keys and values of a layer so far.
pub(super) type KeptPair = Option<[EagerTensor; 2]>;

/// What all layers of a pass share: positions, and the mask where there is one.
#[derive(Clone, Default)]
pub(super) struct EagerShared {
    pub(super) angles: Option<[EagerTensor; 2]>,
    pub(super) mask: Option<EagerTensor>,
}

/// One pass: tokens of each sequence at once, and all that are there then.
#[derive(Debug, Clone, Copy)]
pub(super) struct EagerPass {
    pub(super) count: u64,
    pub(super) tokens: u64,
}

impl EagerDecoder<'_> {
    /// Numbers of a vector of `width` for each token of a pass.
    pub(super) fn count(&self, pass: EagerPass, width: u64) -> u64 {
        self.batch.saturating_mul(pass.count).saturating_mul(width)
    }

    /// The bytes of a number in the stream between layers.
    pub(super) fn width(&self) -> u64 {
        self.job.weight_width
    }

    pub(super) fn matrix(
        &self,
        layer: usize,
        place: usize,
        inputs: u64,
        outputs: u64,
    ) -> EagerMatrix {
        let weight = (layer + 1) * LAYER_WEIGHTS + place;
        let bias = match self.shape.biases {
            Biases::All => true,
            Biases::Attention => (1..4).contains(&place),
            Biases::None => false,
        };
        EagerMatrix { weight, inputs, outputs, bias, inner: true }
    }

    /// The norms between layers.
    pub(super) fn normed(&self) -> (NormKind, u64) {
        (self.style.norm, self.shape.hidden)
    }

    /// Positions and mask of a pass.
    pub(super) fn shared(&self, tape: &EagerTape<'_>, pass: EagerPass) -> EagerShared {
        let windows = self.caches.iter().filter_map(|cache| cache.window);
        // Falcon brings a mask of padding where it generates.
        let padded = self.style.broadcasts_keys && !self.job.training;
        let masked = padded || windows.min().is_some_and(|window| pass.tokens >= window);
        let masked = masked && pass.count > 1;
        let mask = masked.then(|| {
            let square = pass.count.saturating_mul(pass.tokens);
            // A generating program brings a mask of padding for each sequence.
            let batch = if self.job.training { 1 } else { self.batch };
            // Within the window, not ahead, both, and of each sequence what is no padding.
            let mut both = tape.tensor(1, 1);
            for _ in 0..if padded { 1 } else { 2 } {
                let rule = tape.tensor(square, 1);
                both = tape.tensor(square, 1);
                drop(rule);
            }
            if !padded {
                both = tape.tensor(square, 1);
            }
            let padded = tape.tensor(square.saturating_mul(batch), 1);
            drop(both);
            padded
        });
        let mask = match self.style.attention {
            AttentionKind::Operators(kind) => self.added_mask(tape, pass, kind),
            AttentionKind::Sdpa => mask,
        };
        let width = match self.style.rotary {
            RotaryKind::None => 0,
            _ => self.style.rotated(self.head_width()),
        };
        let angles = (width > 0).then(|| {
            // A generating program brings positions for each sequence.
            let sequences = if self.job.training { 1 } else { self.batch };
            let numbers = pass.count.saturating_mul(width).saturating_mul(sequences);
            let half = tape.tensor(numbers / 2, 4);
            tape.product();
            let whole = tape.tensor(numbers, 4);
            let wide = [(); 2].map(|()| {
                let waves = tape.tensor(numbers, 4);
                let scaled = tape.tensor(numbers, 4);
                drop(waves);
                scaled
            });
            let angles = wide.each_ref().map(|wide| match self.width() {
                width if width < 4 && !self.style.wide_angles => tape.tensor(numbers, width),
                _ => wide.clone(),
            });
            drop((half, whole));
            angles
        });
        EagerShared { angles, mask }
    }

    /// A mask that is added to scores, in their type: for each sequence, as padding may differ.
    fn added_mask(
        &self,
        tape: &EagerTape<'_>,
        pass: EagerPass,
        kind: ScoreKind,
    ) -> Option<EagerTensor> {
        if pass.count == 1 {
            return None;
        }
        let square = pass.count.saturating_mul(pass.tokens);
        let all = square.saturating_mul(self.batch);
        let past = tape.tensor(square, 1);
        // Where the program brings a mask of padding, as generating does.
        let padded = if self.job.training && kind != ScoreKind::AddedTo {
            past
        } else {
            let both = tape.tensor(square, 1);
            drop(past);
            let padded = tape.tensor(all, 1);
            drop(both);
            padded
        };
        let mask = tape.tensor(all, self.width());
        drop(padded);
        Some(if kind == ScoreKind::Biased { tape.tensor(mask.count, 1) } else { mask })
    }

    /// The stream before the first layer, and what names hold beside it.
    pub(super) fn embedding(
        &self,
        tape: &EagerTape<'_>,
        pass: EagerPass,
    ) -> (EagerTensor, Vec<EagerTensor>) {
        let numbers = self.count(pass, self.shape.hidden);
        let embedded = tape.tensor(numbers, self.width());
        if self.style.learned_positions {
            // A generating program brings positions for each sequence.
            let sequences = if self.job.training { self.batch } else { 1 };
            let positions = tape.tensor(numbers / sequences.max(1), self.width());
            let sum = tape.tensor(numbers, self.width());
            return (sum, vec![embedded, positions]);
        }
        let embedded =
            if self.style.scales_embedding { tape.tensor(numbers, self.width()) } else { embedded };
        (embedded.clone(), vec![embedded])
    }

    /// Whether keys and values are kept for the next tokens.
    pub(super) fn caches(&self) -> bool {
        self.style.keeps_cache && !self.job.training
    }

    /// The width of a head of queries and keys.
    pub(super) fn head_width(&self) -> u64 {
        self.style
            .latent
            .map_or_else(|| self.shape.head_width(), |latent| latent.plain + latent.turned)
    }

    /// What a layer gives, and what it gives back besides.
    pub(super) fn layer(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        shared: &EagerShared,
        kept: &mut KeptPair,
    ) -> (EagerTensor, Option<EagerTensor>) {
        let style = &self.style;
        let before = matches!(style.places, NormPlaces::Before | NormPlaces::Both);
        let after = matches!(style.places, NormPlaces::After | NormPlaces::Both);
        let behind = style.places == NormPlaces::Behind;
        let normed = if before { tape.norm(&self.job, self.normed(), x) } else { x.clone() };
        let cache = &self.caches[layer];
        if cache.state > 0 && cache.widths == [0, 0] {
            return (self.recurrent(tape, (layer, pass), x, normed), None);
        }
        let (mut mixed, weights) = self.attention(tape, (layer, pass), &normed, shared, kept);
        if style.parallel {
            mixed = tape.dropout(&mixed, style.dropout);
            let mut inner = if style.parallel_norm {
                drop(normed);
                let own = tape.norm(&self.job, self.normed(), x);
                self.mlp(tape, (layer, pass), &own)
            } else {
                // The program's name for it stays until the layer returns.
                self.mlp(tape, (layer, pass), &normed)
            };
            inner = tape.dropout(&inner, style.dropout);
            let sum = tape.add(&inner, &mixed);
            return (tape.add(&sum, x), weights);
        }
        let names = style.names;
        let first = (names != NameKind::Reused).then_some(normed);
        if after {
            mixed = tape.norm(&self.job, self.normed(), &mixed);
        }
        mixed = tape.dropout(&mixed, style.dropout);
        let mut residual = self.added(tape, x, &mixed);
        let mixed = (names != NameKind::Reused).then_some(mixed);
        let first = first.filter(|_| names != NameKind::UntilSum);
        if behind {
            residual = tape.norm(&self.job, self.normed(), &residual);
        }
        let second =
            if before { tape.norm(&self.job, self.normed(), &residual) } else { residual.clone() };
        let first = first.filter(|_| names != NameKind::UntilNorm);
        let mut inner = self.mlp(tape, (layer, pass), &second);
        let second = (names != NameKind::Reused).then_some(second);
        if after {
            inner = tape.norm(&self.job, self.normed(), &inner);
        }
        inner = tape.dropout(&inner, style.dropout);
        let out = self.added(tape, &residual, &inner);
        let out = if behind { tape.norm(&self.job, self.normed(), &out) } else { out };
        drop((inner, second, mixed, first));
        (out, weights)
    }

    /// What is added to the stream, scaled first where the family does that.
    fn added(&self, tape: &mut EagerTape<'_>, x: &EagerTensor, more: &EagerTensor) -> EagerTensor {
        let scaled =
            self.style.scales_residual.then(|| tape.unary(more, more.width, Saved::Nothing));
        tape.add(x, scaled.as_ref().unwrap_or(more))
    }
}

impl EagerTape<'_> {
    /// Views of parts of a tensor, whose gradients become one again.
    pub(super) fn split<const N: usize>(
        &mut self,
        x: &EagerTensor,
        counts: [u64; N],
    ) -> [EagerTensor; N] {
        let whole = EagerNode {
            inputs: x.node.map(|node| (node, Gradient::New(x.bytes()))).into_iter().collect(),
            gathers: true,
            ..EagerNode::default()
        };
        let x = self.record(x.clone(), whole);
        counts.map(|count| {
            let part = x.part(count);
            let inputs = x.node.map(|node| (node, Gradient::Same)).into_iter().collect();
            self.record(part, EagerNode { inputs, ..EagerNode::default() })
        })
    }
}
