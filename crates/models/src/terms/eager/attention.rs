//! Attention: which of PyTorch's ways runs, and what it stores.
//!
//! A fused kernel stores a number for each query. It is found for 16 bits without a mask, also
//! where heads share keys; for 32 bits or with a mask where each head has keys of its own, which
//! Transformers then copies out. What is left (shared keys in 32 bits, or one head of keys that is
//! handed over as it is) runs as single operators and stores scores.

use super::decoder::{EagerDecoder, EagerPass, EagerShared, KeptPair};
use super::ops::Saved;
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient};
use crate::families::style::{AttentionKind, NormKind, RotaryKind};

/// The widest head that a fused kernel for 16 bits has.
const WIDEST_HEAD: u64 = 256;
/// Masks are padded to a multiple of this many tokens.
const MASK_STEP: u64 = 16;

impl EagerDecoder<'_> {
    pub(super) fn attention(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        shared: &EagerShared,
        kept: &mut KeptPair,
    ) -> EagerTensor {
        let hidden = self.shape.hidden;
        let [mut query, mut keys, mut values] = match self.style.latent {
            Some(_) => self.unfolded(tape, (layer, pass), x),
            None => self.projected(tape, (layer, pass), x),
        };
        let early = self.style.norm == NormKind::Rms;
        if self.style.query_norms && !early {
            let heads = (self.style.norm, self.head_width());
            query = tape.norm(&self.job, heads, &query);
            keys = tape.norm(&self.job, heads, &keys);
        }
        if self.style.rotary != RotaryKind::None && self.style.latent.is_none() {
            let (turned_query, turned_keys) =
                (self.turned(tape, &query, shared), self.turned(tape, &keys, shared));
            (query, keys) = (turned_query, turned_keys);
            if self.style.wide_turns {
                let narrow = [tape.cast(&query, values.width), tape.cast(&keys, values.width)];
                [query, keys] = narrow;
            }
        }
        if !self.job.training {
            let cache = &self.caches[layer];
            let longer = |width| self.batch.saturating_mul(cache.held(pass)).saturating_mul(width);
            let counts = cache.widths.map(longer);
            let new = counts.map(|count| tape.tensor(count, keys.width));
            [keys, values] = new.clone();
            *kept = Some(new);
        }
        let windowed = self.caches[layer].window.is_some() || self.style.always_masks;
        let mask = shared.mask.as_ref().filter(|_| windowed);
        let attended = self.attended(tape, pass, [query, keys, values], mask);
        let width = attended.count.checked_div(self.count(pass, 1)).unwrap_or(0);
        tape.linear(&self.job, &attended, self.matrix(layer, 4, width, hidden))
    }

    fn projected(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
    ) -> [EagerTensor; 3] {
        let hidden = self.shape.hidden;
        let [key, value] = self.caches[layer].widths;
        let widths = [self.shape.heads.saturating_mul(self.head_width()), key, value];
        if self.style.fused_qkv {
            let all = widths.iter().fold(0, |sum: u64, &width| sum.saturating_add(width));
            let all = tape.linear(&self.job, x, self.matrix(layer, 0, hidden, all));
            return tape.split(&all, widths.map(|width| self.count(pass, width)));
        }
        let mut place = 0;
        widths.map(|width| {
            place += 1;
            let out = tape.linear(&self.job, x, self.matrix(layer, place, hidden, width));
            if self.style.query_norms && self.style.norm == NormKind::Rms && place < 3 {
                return tape.norm(&self.job, (NormKind::Rms, self.head_width()), &out);
            }
            out
        })
    }

    /// Queries, keys and values out of compressed vectors (MLA); the cache holds them unfolded.
    fn unfolded(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
    ) -> [EagerTensor; 3] {
        let Some(latent) = self.style.latent else { return [x.clone(), x.clone(), x.clone()] };
        let (hidden, heads) = (self.shape.hidden, self.shape.heads);
        let [key, value] = self.caches[layer].widths;
        let query = match latent.query_rank {
            0 => tape.linear(&self.job, x, self.matrix(layer, 0, hidden, key)),
            rank => {
                let mut low = tape.linear(&self.job, x, self.matrix(layer, 5, hidden, rank));
                low = tape.norm(&self.job, self.normed(), &low);
                tape.linear(&self.job, &low, self.matrix(layer, 0, rank, key))
            }
        };
        let both = latent.rank.saturating_add(latent.turned);
        let mut low = tape.linear(&self.job, x, self.matrix(layer, 1, hidden, both));
        low = tape.norm(&self.job, self.normed(), &low.part(self.count(pass, latent.rank)));
        let wide = heads.saturating_mul(latent.plain).saturating_add(value);
        let open = tape.linear(&self.job, &low, self.matrix(layer, 2, latent.rank, wide));
        let turned = self.count(pass, heads.saturating_mul(latent.turned));
        let part = tape.copied(&query, turned);
        let whole = tape.copied(&query, self.count(pass, key));
        drop((part, query, low));
        let keys = tape.copied(&open, self.count(pass, key));
        [whole, keys, open.part(self.count(pass, value))]
    }

    /// Turned by position: a product with cosines, and one of the turned halves with sines.
    fn turned(
        &self,
        tape: &mut EagerTape<'_>,
        x: &EagerTensor,
        shared: &EagerShared,
    ) -> EagerTensor {
        let width = if self.style.wide_turns { 4 } else { x.width };
        let x = &tape.cast(x, width);
        let width =
            shared.angles.as_ref().map_or(x.width, |[cosines, _]| cosines.width.max(x.width));
        let head = self.head_width().max(1);
        let count = x.count / head * self.style.rotated(head);
        let part = x.part(count);
        let cosines = tape.unary(&part, width, Saved::Nothing);
        let half = tape.unary(&x.part(count / 2), x.width, Saved::Nothing);
        let swapped = tape.copied(&part, count);
        drop(half);
        let sines = tape.unary(&swapped, width, Saved::Nothing);
        drop(swapped);
        let turned = tape.add(&cosines, &sines);
        drop((cosines, sines));
        if count == x.count {
            return turned;
        }
        let whole = tape.tensor(x.count, turned.width);
        let inputs = [&turned, x]
            .into_iter()
            .filter_map(|part| Some((part.node?, Gradient::New(part.bytes()))));
        let node = EagerNode { inputs: inputs.collect(), ..EagerNode::default() };
        tape.record(whole, node)
    }

    fn attended(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        [query, keys, values]: [EagerTensor; 3],
        mask: Option<&EagerTensor>,
    ) -> EagerTensor {
        let scores = self.count(pass, self.shape.heads).saturating_mul(pass.tokens);
        let out = query
            .count
            .checked_div(self.head_width())
            .unwrap_or(0)
            .saturating_mul(self.value_width());
        if self.style.attention == AttentionKind::Operators {
            return self.by_operators(tape, scores, out, [query, keys, values]);
        }
        let [mut query, mut keys, mut values] = if self.job.amp {
            [tape.cast(&query, 2), tape.cast(&keys, 2), tape.cast(&values, 2)]
        } else {
            [query, keys, values]
        };
        let shares = keys.count / pass.tokens.max(1) < query.count / pass.count.max(1);
        let same = self.head_width() == self.value_width() && self.head_width() <= WIDEST_HEAD;
        if shares && (mask.is_some() || !same) {
            let heads = pass.tokens.saturating_mul(self.batch).saturating_mul(self.shape.heads);
            let wide_keys = tape.copied(&keys, heads.saturating_mul(self.head_width()));
            values = tape.copied(&values, heads.saturating_mul(self.value_width()));
            keys = wide_keys;
        } else if shares && (query.width == 4 || self.style.broadcasts_keys) {
            let narrow = query.width;
            query = tape.cast(&query, 4);
            (keys, values) = (tape.cast(&keys, 4), tape.cast(&values, 4));
            let out = self.by_math(tape, pass, scores, out, [query, keys, values]);
            return tape.cast(&out, narrow);
        }
        self.fused(tape, pass, out, [query, keys, values], mask)
    }

    fn value_width(&self) -> u64 {
        self.style.latent.map_or_else(|| self.shape.head_width(), |latent| latent.value)
    }

    fn fused(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        out: u64,
        [query, keys, values]: [EagerTensor; 3],
        mask: Option<&EagerTensor>,
    ) -> EagerTensor {
        let mask = mask.map(|mask| {
            let square = self.batch.saturating_mul(pass.count).saturating_mul(pass.tokens);
            let plain = tape.tensor(square.max(mask.count), query.width);
            if pass.tokens.is_multiple_of(MASK_STEP) {
                return plain;
            }
            tape.tensor(
                square / pass.tokens.max(1) * pass.tokens.next_multiple_of(MASK_STEP),
                query.width,
            )
        });
        let rows = self.count(pass, self.shape.heads);
        let sums = tape.take(rows.saturating_mul(4));
        let out = tape.tensor(out, query.width);
        let mut node = EagerNode::default();
        for part in [&query, &keys, &values] {
            node.saved.push(part.memory.clone());
            node.inputs.extend(part.node.map(|node| (node, Gradient::New(part.bytes()))));
        }
        node.saved.extend([out.memory.clone(), sums]);
        node.saved.extend(mask.map(|mask| mask.memory));
        let mut working = rows.saturating_add(query.count).saturating_mul(4);
        if keys.count < query.count {
            working = working.saturating_add(query.bytes().saturating_mul(2));
        }
        node.working.push(working);
        tape.record(out, node)
    }

    /// PyTorch's own operators, where it finds no fused kernel: scores and their softmax in 32
    /// bits, and a byte for each that says whether it is masked.
    fn by_math(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        scores: u64,
        out: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> EagerTensor {
        let scaled = tape.unary(&query, 4, Saved::Nothing);
        let square = if pass.count > 1 { pass.count.saturating_mul(pass.tokens) } else { 0 };
        let (all, causal) = (tape.take(square), tape.take(square));
        drop(all);
        let mask = tape.take(square.saturating_mul(4));
        drop(causal);
        let wide =
            query.count.checked_div(pass.count.max(1)).unwrap_or(0).saturating_mul(pass.tokens);
        let (own_keys, own_values) = (tape.copied(&keys, wide), tape.copied(&values, wide));
        let scaled_keys = tape.unary(&own_keys, 4, Saved::Nothing);
        let weights = tape.matrices(&scaled, &scaled_keys, scores);
        drop(scaled);
        let shares = tape.unary(&weights, 4, Saved::Output);
        let masked = tape.take(scores);
        drop((masked, weights, mask));
        let attended = tape.matrices(&shares, &own_values, out);
        drop((shares, own_keys, scaled_keys));
        tape.copied(&attended, out)
    }

    /// A family's own operators: scores, the same with the mask, and what a softmax in 32 bits
    /// makes of them in their own type.
    fn by_operators(
        &self,
        tape: &mut EagerTape<'_>,
        scores: u64,
        out: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> EagerTensor {
        let width = values.width;
        let [query, keys] = match self.style.wide_scores {
            true => [tape.cast(&query, 4), tape.cast(&keys, 4)],
            false => [query, keys],
        };
        let bias = if self.style.biased { scores } else { 0 };
        let bias = tape.tensor(bias, query.width);
        let weights = tape.matrices(&query, &keys, scores);
        let masked = tape.unary(&weights, weights.width, Saved::Nothing);
        let wide = tape.unary(&masked, 4, Saved::Output);
        let narrow = tape.cast(&wide, width);
        drop((wide, bias));
        let attended = tape.matrices(&narrow, &values, out);
        drop((weights, masked, narrow));
        tape.copied(&attended, out)
    }
}

impl EagerTape<'_> {
    /// Products of many matrices; both sides are saved.
    fn matrices(&mut self, a: &EagerTensor, b: &EagerTensor, count: u64) -> EagerTensor {
        let out = self.tensor(count, a.width);
        self.product();
        let mut node = EagerNode::default();
        for part in [a, b] {
            node.inputs.extend(part.node.map(|node| (node, Gradient::View(part.bytes()))));
            node.saved.push(part.memory.clone());
        }
        self.record(out, node)
    }
}
