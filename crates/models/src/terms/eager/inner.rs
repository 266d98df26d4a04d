//! What a layer has besides attention: an MLP, experts, or a recurrent state, and the activation
//! functions in them.

use super::decoder::{EagerDecoder, EagerPass};
use super::job::EagerJob;
use super::ops::Saved;
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient};
use crate::Mlp;
use crate::families::style::Activation;

impl EagerDecoder<'_> {
    pub(super) fn mlp(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: EagerTensor,
    ) -> EagerTensor {
        let (hidden, wide) = (self.shape.hidden, self.style.dense_width(self.shape, layer));
        if self.style.has_experts(self.shape, layer) {
            return self.experts(tape, (layer, pass), &x);
        }
        self.dense(tape, layer, x, wide, hidden)
    }

    /// An MLP of its own width.
    fn dense(
        &self,
        tape: &mut EagerTape<'_>,
        layer: usize,
        x: EagerTensor,
        wide: u64,
        hidden: u64,
    ) -> EagerTensor {
        let rows = x.count.checked_div(hidden).unwrap_or(0);
        let inner = if self.shape.mlp == Mlp::Plain {
            let first = tape.linear(&self.job, &x, self.matrix(layer, 8, hidden, wide));
            drop(x);
            self.activated(tape, first)
        } else if self.style.fused_gate {
            let both =
                tape.linear(&self.job, &x, self.matrix(layer, 8, hidden, wide.saturating_mul(2)));
            let [gate, up] = tape.split(&both, [rows.saturating_mul(wide); 2]);
            let gate = self.activated(tape, gate);
            let inner = tape.multiply(&up, &gate);
            drop((gate, up));
            // Parts of one tensor, which a name holds.
            let out = tape.linear(&self.job, &inner, self.matrix(layer, 10, wide, hidden));
            drop(inner);
            return out;
        } else {
            let gate = tape.linear(&self.job, &x, self.matrix(layer, 8, hidden, wide));
            let gate = self.activated(tape, gate);
            let up = tape.linear(&self.job, &x, self.matrix(layer, 9, hidden, wide));
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
        let shared = self
            .style
            .shared_first
            .then(|| self.dense(tape, layer, x.clone(), self.style.shared_width, hidden));
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
        let shared = shared.or_else(|| {
            (self.style.shared_width > 0)
                .then(|| self.dense(tape, layer, x.clone(), self.style.shared_width, hidden))
        });
        match shared {
            None => out,
            // By a gate of its own.
            Some(shared) if self.style.shared_first => {
                let gated = tape.unary(&shared, shared.width, Saved::Input);
                drop(shared);
                tape.add(&out, &gated)
            }
            Some(shared) => tape.add(&out, &shared),
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
                tape.records = false;
                let out = self.formula(tape, &x);
                tape.records = true;
                let node = EagerNode {
                    inputs: x
                        .node
                        .map(|node| (node, Gradient::New(x.bytes())))
                        .into_iter()
                        .collect(),
                    saved: vec![x.memory.clone()],
                    working: vec![x.bytes(); 4],
                    ..EagerNode::default()
                };
                return tape.record(out, node);
            }
            Activation::Formula | Activation::OwnGradient => {}
        }
        self.formula(tape, &x)
    }

    /// GELU as a formula in Python.
    fn formula(&self, tape: &mut EagerTape<'_>, x: &EagerTensor) -> EagerTensor {
        let half = tape.unary(x, x.width, Saved::Nothing);
        // Powers are in 32 bits under autocast.
        let wide = if self.job.amp { tape.cast(x, 4) } else { x.clone() };
        let power = tape.power(&wide);
        drop(wide);
        let part = tape.unary(&power, power.width, Saved::Nothing);
        drop(power);
        let sum = tape.add(x, &part);
        drop(part);
        let scaled = tape.unary(&sum, sum.width, Saved::Nothing);
        drop(sum);
        let bent = tape.unary(&scaled, scaled.width, Saved::Output);
        drop(scaled);
        let raised = tape.shifted(&bent);
        drop(bent);
        tape.multiply(&half, &raised)
    }

    /// A recurrent layer in PyTorch's own operators: its inputs to the state, one for each token,
    /// channel and number of the state, three times in 32 bits.
    pub(super) fn recurrent(
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
