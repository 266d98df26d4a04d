//! A decoder's layers as Transformers has them: norms, attention, MLP or experts, and what of
//! each outlives the next line of the program.

use super::job::EagerJob;
use super::ops::{EagerMatrix, Saved};
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient};
use super::{EagerCache, LAYER_WEIGHTS};
use crate::families::style::{Activation, DecoderStyle, NormKind, NormPlaces, RotaryKind};
use crate::{Biases, Mlp, ModelShape};

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
        let width = match self.style.rotary {
            RotaryKind::None => 0,
            _ => self.style.rotated(self.head_width()),
        };
        let angles = (width > 0).then(|| {
            let numbers = pass.count.saturating_mul(width);
            let wide = [tape.tensor(numbers, 4), tape.tensor(numbers, 4)];
            wide.map(|wide| tape.tensor(wide.count, self.width()))
        });
        let windows = self.caches.iter().filter_map(|cache| cache.window);
        let masked = windows.min().is_some_and(|window| pass.count > 1 && pass.tokens >= window);
        let mask = (masked || (self.style.always_masks && pass.count > 1)).then(|| {
            let square = pass.count.saturating_mul(pass.tokens);
            // A generating program brings a mask of padding for each sequence.
            let batch = if self.job.training { 1 } else { self.batch };
            let (past, within) = (tape.tensor(square, 1), tape.tensor(square, 1));
            let both = tape.tensor(square, 1);
            drop((past, within));
            let padded = tape.tensor(square.saturating_mul(batch), 1);
            drop(both);
            padded
        });
        EagerShared { angles, mask }
    }

    /// The width of a head of queries and keys.
    pub(super) fn head_width(&self) -> u64 {
        self.style
            .latent
            .map_or_else(|| self.shape.head_width(), |latent| latent.plain + latent.turned)
    }

    pub(super) fn layer(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        shared: &EagerShared,
        kept: &mut KeptPair,
    ) -> EagerTensor {
        let style = &self.style;
        let before = matches!(style.places, NormPlaces::Before | NormPlaces::Both);
        let after = matches!(style.places, NormPlaces::After | NormPlaces::Both);
        let behind = style.places == NormPlaces::Behind;
        let normed = if before { tape.norm(&self.job, self.normed(), x) } else { x.clone() };
        let cache = &self.caches[layer];
        let mut mixed = if cache.state > 0 && cache.widths == [0, 0] {
            return self.recurrent(tape, (layer, pass), x, normed);
        } else {
            self.attention(tape, (layer, pass), &normed, shared, kept)
        };
        if style.parallel {
            mixed = tape.dropout(&mixed, style.dropout);
            let own = match style.parallel_norm {
                true => tape.norm(&self.job, self.normed(), x),
                false => normed.clone(),
            };
            drop(normed);
            let mut inner = self.mlp(tape, (layer, pass), &own);
            drop(own);
            inner = tape.dropout(&inner, style.dropout);
            let sum = tape.add(&inner, &mixed);
            drop((inner, mixed));
            return tape.add(&sum, x);
        }
        drop(normed);
        if after {
            mixed = tape.norm(&self.job, self.normed(), &mixed);
        }
        mixed = tape.dropout(&mixed, style.dropout);
        let mut residual = tape.add(x, &mixed);
        drop(mixed);
        if behind {
            residual = tape.norm(&self.job, self.normed(), &residual);
        }
        let normed =
            if before { tape.norm(&self.job, self.normed(), &residual) } else { residual.clone() };
        let mut inner = self.mlp(tape, (layer, pass), &normed);
        drop(normed);
        if after {
            inner = tape.norm(&self.job, self.normed(), &inner);
        }
        inner = tape.dropout(&inner, style.dropout);
        let out = tape.add(&residual, &inner);
        if behind { tape.norm(&self.job, self.normed(), &out) } else { out }
    }

    fn mlp(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
    ) -> EagerTensor {
        let (hidden, wide) = (self.shape.hidden, self.style.dense_width(self.shape, layer));
        if self.style.has_experts(self.shape, layer) {
            return self.experts(tape, (layer, pass), x);
        }
        self.dense(tape, layer, x, wide, hidden)
    }

    /// An MLP of its own width.
    fn dense(
        &self,
        tape: &mut EagerTape<'_>,
        layer: usize,
        x: &EagerTensor,
        wide: u64,
        hidden: u64,
    ) -> EagerTensor {
        let rows = x.count.checked_div(hidden).unwrap_or(0);
        let inner = if self.shape.mlp == Mlp::Plain {
            let first = tape.linear(&self.job, x, self.matrix(layer, 8, hidden, wide));
            self.activated(tape, first)
        } else if self.style.fused_gate {
            let both =
                tape.linear(&self.job, x, self.matrix(layer, 8, hidden, wide.saturating_mul(2)));
            let [gate, up] = tape.split(&both, [rows.saturating_mul(wide); 2]);
            drop(both);
            let gate = self.activated(tape, gate);
            tape.multiply(&up, &gate)
        } else {
            let gate = tape.linear(&self.job, x, self.matrix(layer, 8, hidden, wide));
            let gate = self.activated(tape, gate);
            let up = tape.linear(&self.job, x, self.matrix(layer, 9, hidden, wide));
            tape.multiply(&gate, &up)
        };
        tape.linear(&self.job, &inner, self.matrix(layer, 10, wide, hidden))
    }

    /// Experts by grouped products: each token's vector once for each of its experts, sorted.
    fn experts(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
    ) -> EagerTensor {
        let shape = self.shape;
        let (hidden, wide) = (shape.hidden, shape.intermediate);
        let rows = self.count(pass, 1).saturating_mul(shape.experts_used);
        let sorted = tape.copied(x, rows.saturating_mul(hidden));
        let both = self.grouped(tape, &sorted, (layer, 8), (hidden, wide.saturating_mul(2)), rows);
        // A copy without the rows of experts that are elsewhere.
        let filled = tape.unary(&both, both.width, Saved::Nothing);
        drop(both);
        let [gate, up] = tape.split(&filled, [rows.saturating_mul(wide); 2]);
        drop(filled);
        let gate = self.activated(tape, gate);
        let inner = tape.multiply(&gate, &up);
        drop((gate, up));
        let down = self.grouped(tape, &inner, (layer, 10), (wide, hidden), rows);
        drop(inner);
        let filled = tape.unary(&down, down.width, Saved::Nothing);
        drop(down);
        let width = if self.style.wide_routing { 4 } else { filled.width };
        let weighed = tape.unary(&filled, width, Saved::Input);
        let ordered = tape.copied(&weighed, weighed.count);
        let sum = tape.copied(&ordered, x.count);
        drop((filled, weighed, ordered, sorted));
        let out = tape.cast(&sum, x.width);
        drop(sum);
        match self.style.shared_width {
            0 => out,
            wide => {
                let shared = self.dense(tape, layer, x, wide, hidden);
                tape.add(&out, &shared)
            }
        }
    }

    /// A product of sorted rows with each expert's own matrix.
    fn grouped(
        &self,
        tape: &mut EagerTape<'_>,
        x: &EagerTensor,
        (layer, place): (usize, usize),
        (inputs, outputs): (u64, u64),
        rows: u64,
    ) -> EagerTensor {
        // All experts' matrices get a gradient, whoever is asked.
        let job = EagerJob { adapters: None, training: self.job.trains(), ..self.job };
        let matrix = self.matrix(layer, place, inputs, outputs);
        tape.grouped(&job, x, matrix, (rows, self.shape.experts))
    }

    /// What the activation function makes, with what a formula in Python leaves on the way.
    fn activated(&self, tape: &mut EagerTape<'_>, x: EagerTensor) -> EagerTensor {
        match self.style.activation {
            Activation::Native => return tape.unary(&x, x.width, Saved::Input),
            Activation::Relu => return tape.unary(&x, x.width, Saved::Output),
            Activation::OwnGradient if tape.records => {
                let working = [tape.take(x.bytes()), tape.take(x.bytes()), tape.take(x.bytes())];
                let out = tape.unary(&x, x.width, Saved::Input);
                drop(working);
                return out;
            }
            Activation::Formula | Activation::OwnGradient => {}
        }
        let half = tape.unary(&x, x.width, Saved::Nothing);
        // Powers are in 32 bits under autocast.
        let wide = if self.job.amp { tape.cast(&x, 4) } else { x.clone() };
        let power = tape.unary(&wide, wide.width, Saved::Input);
        drop(wide);
        let part = tape.unary(&power, power.width, Saved::Nothing);
        drop(power);
        let sum = tape.add(&x, &part);
        drop(part);
        let scaled = tape.unary(&sum, sum.width, Saved::Nothing);
        drop(sum);
        let bent = tape.unary(&scaled, scaled.width, Saved::Output);
        drop(scaled);
        let raised = tape.unary(&bent, bent.width, Saved::Nothing);
        drop(bent);
        tape.multiply(&half, &raised)
    }

    /// A recurrent layer in PyTorch's own operators: its inputs to the state, one for each token,
    /// channel and number of the state, three times in 32 bits.
    fn recurrent(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        normed: EagerTensor,
    ) -> EagerTensor {
        let (hidden, inner) = (self.shape.hidden, self.style.state_channels);
        let rows = self.count(pass, 1);
        let both =
            tape.linear(&self.job, &normed, self.matrix(layer, 0, hidden, inner.saturating_mul(2)));
        let [mixed, gate] = tape.split(&both, [rows.saturating_mul(inner); 2]);
        drop(both);
        let convolved = tape.copied(&mixed, mixed.count);
        drop(mixed);
        let mixed = tape.unary(&convolved, convolved.width, Saved::Input);
        drop(convolved);
        let steps = tape.linear(&self.job, &mixed, self.matrix(layer, 1, inner, inner.min(64)));
        let wide = mixed.count.saturating_mul(self.style.state_width);
        let grown = tape.spread(&mixed, wide, 4);
        let inputs = tape.spread(&mixed, wide, 4);
        let sums = tape.unary(&inputs, 4, Saved::Input);
        let columns = [tape.tensor(mixed.count, 4), tape.tensor(mixed.count, mixed.width)];
        drop((grown, inputs, steps, columns));
        let scanned = tape.spread(&sums, mixed.count, mixed.width);
        drop(sums);
        let open = tape.unary(&gate, gate.width, Saved::Input);
        drop(gate);
        let gated = tape.multiply(&scanned, &open);
        drop((scanned, open, mixed));
        let out = tape.cast(&gated, x.width);
        drop(gated);
        let out = tape.linear(&self.job, &out, self.matrix(layer, 2, inner, hidden));
        drop(normed);
        tape.add(x, &out)
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
