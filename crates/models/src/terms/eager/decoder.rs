//! A decoder's layers as Transformers has them: norms, attention, MLP or experts, and what of
//! each outlives the next line of the program.

use super::job::EagerJob;
use super::ops::{EagerMatrix, Saved};
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient, WeightGradient};
use super::{EagerCache, LAYER_WEIGHTS};
use crate::families::attention::{AttentionKind, ScoreKind};
use crate::families::style::{
    DecoderStyle, NameKind, NormKind, NormPlaces, PositionKind, RotaryKind,
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
    /// Those of layers of the other kind, where these have their own.
    _others: Option<[EagerTensor; 2]>,
    pub(super) mask: Option<EagerTensor>,
    /// That of layers with a window, where those without have one too.
    _window_mask: Option<EagerTensor>,
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
        let [windowed, whole] =
            [true, false].map(|is| self.caches.iter().any(|cache| cache.window.is_some() == is));
        let mixed = windowed && whole;
        let (mask, window_mask) = match self.style.attention {
            AttentionKind::Operators(kind) => {
                let mask = self.added_mask(tape, pass, (kind, windowed && !whole));
                (mask, mixed.then(|| self.added_mask(tape, pass, (kind, true))).flatten())
            }
            AttentionKind::Sdpa => (mask, None),
        };
        let angles = self.angles(tape, pass);
        let others = (self.style.angles_by_window && mixed).then(|| self.angles(tape, pass));
        EagerShared { angles, _others: others.flatten(), mask, _window_mask: window_mask }
    }

    /// Cosines and sines of all positions of a pass.
    fn angles(&self, tape: &EagerTape<'_>, pass: EagerPass) -> Option<[EagerTensor; 2]> {
        let width = match self.style.rotary {
            RotaryKind::None => 0,
            _ => self.style.rotated(self.head_width()),
        };
        (width > 0).then(|| {
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
        })
    }

    /// A mask that is added to scores, in their type: for each sequence, as padding may differ.
    fn added_mask(
        &self,
        tape: &EagerTape<'_>,
        pass: EagerPass,
        (kind, windowed): (ScoreKind, bool),
    ) -> Option<EagerTensor> {
        if pass.count == 1 {
            return None;
        }
        let square = pass.count.saturating_mul(pass.tokens);
        let all = square.saturating_mul(self.batch);
        let mut past = tape.tensor(square, 1);
        if windowed {
            past = tape.tensor(square, 1);
        }
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
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
    ) -> (EagerTensor, Vec<EagerTensor>) {
        let embedded = tape.tensor(self.count(pass, self.narrow()), self.width());
        let table = self.shape.vocab.saturating_mul(self.narrow()).saturating_mul(self.width());
        let mut embedded = if self.job.trains() {
            let weights = vec![WeightGradient { weight: 0, bytes: table, narrow: 0 }];
            tape.record(embedded, EagerNode { weights, ..EagerNode::default() })
        } else {
            embedded
        };
        if self.style.scales_embedding {
            embedded = tape.unary(&embedded, self.width(), Saved::Nothing);
        }
        // What is run again, or packed, needs an input with a gradient; the former asks for it by name.
        embedded = match self.job.adapters {
            Some(_) if self.job.checkpointing => tape.kept_leaf(embedded),
            Some(_) if self.is_packed() => tape.leaf(embedded),
            _ => embedded,
        };
        if let Some([up, _]) = self.projections() {
            embedded = tape.linear(&self.job, &embedded, up);
        }
        let numbers = embedded.count;
        if let Some(kind) = self.style.positions {
            // A generating program brings positions for each sequence.
            let shared = self.job.training && kind == PositionKind::Shared;
            let sequences = if shared { self.batch.max(1) } else { 1 };
            let positions = tape.tensor(numbers / sequences, self.width());
            let sum = tape.add(&embedded, &positions);
            return (sum, vec![embedded, positions]);
        }
        (embedded.clone(), vec![embedded])
    }

    /// Where the embedding is narrower than the layers: the matrices between it and them, and back.
    pub(super) fn projections(&self) -> Option<[EagerMatrix; 2]> {
        let (narrow, hidden) = (self.narrow(), self.shape.hidden);
        let between = |weight, inputs, outputs| EagerMatrix {
            weight,
            inputs,
            outputs,
            bias: false,
            inner: true,
        };
        (narrow != hidden).then(|| [between(3, narrow, hidden), between(2, hidden, narrow)])
    }

    /// Whether keys and values are kept for the next tokens.
    pub(super) fn caches(&self) -> bool {
        self.style.keeps_cache && !self.job.training
    }

    /// Whether numbers are dropped out of the stream.
    pub(super) fn drops(&self) -> bool {
        self.style.dropout && self.job.training
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
            mixed = tape.dropout(&mixed, self.drops());
            let mut inner = if style.parallel_norm {
                drop(normed);
                let own = tape.norm(&self.job, self.normed(), x);
                self.mlp(tape, (layer, pass), own.clone())
            } else {
                // The program's name for it stays until the layer returns.
                self.mlp(tape, (layer, pass), normed.clone())
            };
            inner = tape.dropout(&inner, self.drops());
            let sum = tape.add(&inner, &mixed);
            return (tape.add(&sum, x), self.given_on(weights));
        }
        let names = style.names;
        let first = (names != NameKind::Reused).then_some(normed);
        if after {
            mixed = tape.norm(&self.job, self.normed(), &mixed);
        }
        mixed = tape.dropout(&mixed, self.drops() && !style.drops_in_attention);
        let mut residual = self.added(tape, x, &mixed);
        let mixed = (names != NameKind::Reused).then_some(mixed);
        let first = first.filter(|_| names != NameKind::UntilSum);
        if behind {
            residual = tape.norm(&self.job, self.normed(), &residual);
        }
        if style.inline_mlp {
            residual = tape.viewed(&residual);
        }
        let second =
            if before { tape.norm(&self.job, self.normed(), &residual) } else { residual.clone() };
        let first = first.filter(|_| names != NameKind::UntilNorm);
        let held = (!style.inline_mlp).then(|| second.clone());
        let mut inner = self.mlp(tape, (layer, pass), second);
        let second = held.filter(|_| names != NameKind::Reused);
        if after {
            inner = tape.norm(&self.job, self.normed(), &inner);
        }
        inner = tape.dropout(&inner, self.drops());
        let mut out = self.added(tape, &residual, &inner);
        if style.inline_mlp {
            out = tape.viewed(&out);
        }
        let out = if behind { tape.norm(&self.job, self.normed(), &out) } else { out };
        drop((inner, second, mixed, first));
        (out, self.given_on(weights))
    }

    /// Attention's weights, where the layer's program gives them back too.
    fn given_on(&self, weights: Option<EagerTensor>) -> Option<EagerTensor> {
        weights.filter(|_| match self.style.attention {
            AttentionKind::Operators(scores) => scores.gives_weights(),
            AttentionKind::Sdpa => false,
        })
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
