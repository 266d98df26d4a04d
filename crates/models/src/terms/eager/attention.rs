//! Attention: which of PyTorch's ways runs, and what it stores.
//!
//! A fused kernel stores a number for each query. It is found for 16 bits without a mask, also
//! where heads share keys; for 32 bits or with a mask where each head has keys of its own, which
//! Transformers then copies out. What is left (shared keys in 32 bits, or one head of keys that is
//! handed over as it is) runs as single operators and stores scores.

use super::decoder::{EagerDecoder, EagerPass, EagerShared, KeptPair};
use super::ops::Saved;
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient};
use crate::families::attention::AttentionKind;
use crate::families::style::{LatentStyle, RotaryKind};

/// The widest head that a fused kernel for 16 bits has.
const WIDEST_HEAD: u64 = 256;
/// Masks are padded to a multiple of this many tokens.
const MASK_STEP: u64 = 16;

impl EagerDecoder<'_> {
    /// The result, and the weights where the program gives them back too.
    pub(super) fn attention(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        shared: &EagerShared,
        kept: &mut KeptPair,
    ) -> (EagerTensor, Option<EagerTensor>) {
        let hidden = self.shape.hidden;
        if let Some(latent) = self.style.latent {
            return self.latent(tape, (layer, pass), x, latent, kept);
        }
        let ([mut query, mut keys, mut values], mut held) = self.projected(tape, (layer, pass), x);
        if self.style.query_norms && self.style.late_norms {
            let heads = (self.style.norm, self.head_width());
            query = tape.norm(&self.job, heads, &query);
            keys = tape.norm(&self.job, heads, &keys);
        }
        if self.turns(layer) {
            (query, keys) = self.turned(tape, (query, keys), shared, &mut held);
        }
        if self.caches() {
            let cache = &self.caches[layer];
            let longer = |width| self.batch.saturating_mul(cache.held(pass)).saturating_mul(width);
            let [all_keys, all_values] = cache.widths.map(longer);
            let width = keys.width;
            // Without a window each is let go as soon as the longer one is made.
            let (old_keys, old_values) = kept.take().map(|[a, b]| (a, b)).unzip();
            let new_keys = tape.tensor(all_keys, width);
            let old_keys = old_keys.filter(|_| cache.window.is_some());
            let new_values = tape.tensor(all_values, width);
            drop((old_keys, old_values));
            (keys, values) = (new_keys.clone(), new_values.clone());
            *kept = Some([new_keys, new_values]);
        }
        held.extend([query.clone(), keys.clone(), values.clone()]);
        if let AttentionKind::Operators(scores) = self.style.attention {
            let attended = self.by_operators(tape, pass, scores, [query, keys, values]);
            let width = attended.out.count.checked_div(self.count(pass, 1)).unwrap_or(0);
            let out = tape.linear(&self.job, &attended.out, self.matrix(layer, 4, width, hidden));
            return (out, Some(attended.weights));
        }
        let windowed = self.caches[layer].window.is_some() || self.style.broadcasts_keys;
        let mask = shared.mask.as_ref().filter(|_| windowed);
        let attended = self.attended(tape, pass, [query, keys, values], mask);
        let width = attended.count.checked_div(self.count(pass, 1)).unwrap_or(0);
        let out = tape.linear(&self.job, &attended, self.matrix(layer, 4, width, hidden));
        drop(attended);
        (tape.dropout(&out, self.drops() && self.style.drops_in_attention), None)
    }

    /// Queries, keys and values, and what names hold until attention returns.
    fn projected(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
    ) -> ([EagerTensor; 3], Vec<EagerTensor>) {
        let hidden = self.shape.hidden;
        let [key, value] = self.caches[layer].widths;
        let widths = [self.shape.heads.saturating_mul(self.head_width()), key, value];
        if self.style.fused_qkv {
            let all = widths.iter().fold(0, |sum: u64, &width| sum.saturating_add(width));
            let all = tape.linear(&self.job, x, self.matrix(layer, 0, hidden, all));
            let parts = tape.split(&all, widths.map(|width| self.count(pass, width)));
            return (parts, vec![all]);
        }
        let mut place = 0;
        let parts = widths.map(|width| {
            place += 1;
            let out = tape.linear(&self.job, x, self.matrix(layer, place, hidden, width));
            if self.style.query_norms && !self.style.late_norms && place < 3 {
                return tape.norm(&self.job, (self.style.norm, self.head_width()), &out);
            }
            if self.style.scales_query && place == 1 {
                return tape.unary(&out, out.width, Saved::Nothing);
            }
            // What turning makes of a gradient has heads first, and so has the sum over heads that share
            // it, where attention is single operators; a copy has tokens first again.
            let summed = self.job.weight_width == 4 && !self.job.amp && value < widths[0];
            if self.turns(layer) && (place < 3 || summed) {
                return tape.expanded(&out, out.count);
            }
            out
        });
        (parts, Vec::new())
    }

    /// Queries, keys and values out of compressed vectors (MLA). The cache has the compressed ones,
    /// and each layer unfolds all of them.
    fn latent(
        &self,
        tape: &mut EagerTape<'_>,
        (layer, pass): (usize, EagerPass),
        x: &EagerTensor,
        latent: LatentStyle,
        kept: &mut KeptPair,
    ) -> (EagerTensor, Option<EagerTensor>) {
        let (hidden, heads) = (self.shape.hidden, self.shape.heads);
        let (key, value) = (
            heads.saturating_mul(latent.plain.saturating_add(latent.turned)),
            heads.saturating_mul(latent.value),
        );
        let query = match latent.query_rank {
            0 => tape.linear(&self.job, x, self.matrix(layer, 0, hidden, key)),
            rank => {
                let mut low = tape.linear(&self.job, x, self.matrix(layer, 5, hidden, rank));
                low = tape.norm(&self.job, (self.style.norm, rank), &low);
                tape.linear(&self.job, &low, self.matrix(layer, 0, rank, key))
            }
        };
        let both = latent.rank.saturating_add(latent.turned);
        let low = tape.linear(&self.job, x, self.matrix(layer, 1, hidden, both));
        let part = low.part(self.count(pass, latent.rank));
        let mut narrow = tape.norm(&self.job, (self.style.norm, latent.rank), &part);
        let turned_width = heads.saturating_mul(latent.turned);
        let turned = self.pairs_turned(tape, &query, self.count(pass, turned_width));
        let turned_key = self.pairs_turned(tape, &low, self.count(pass, latent.turned));
        let held = self.batch.saturating_mul(pass.tokens);
        if self.caches() {
            let new = [latent.rank, latent.turned]
                .map(|width| tape.tensor(held.saturating_mul(width), narrow.width));
            narrow = new[0].clone();
            *kept = Some(new);
        }
        let whole = tape.copied(&query, self.count(pass, key));
        let wide = heads.saturating_mul(latent.plain).saturating_add(value);
        let open = tape.linear(&self.job, &narrow, self.matrix(layer, 2, latent.rank, wide));
        let keys = tape.copied(&open, held.saturating_mul(key));
        let values = open.part(held.saturating_mul(value));
        let given = [whole, keys, values];
        let (attended, weights) = match self.style.attention {
            AttentionKind::Operators(scores) => {
                let attended = self.by_operators(tape, pass, scores, given);
                (attended.out, Some(attended.weights))
            }
            AttentionKind::Sdpa => (self.attended(tape, pass, given, None), None),
        };
        drop((turned, turned_key));
        (tape.linear(&self.job, &attended, self.matrix(layer, 4, value, hidden)), weights)
    }

    /// Pairs of neighbours turned by position: two products and their sum for each half.
    fn pairs_turned(&self, tape: &mut EagerTape<'_>, x: &EagerTensor, count: u64) -> EagerTensor {
        let half = x.part(count / 2);
        let halves = [(); 2].map(|()| {
            let products = [(); 2].map(|()| tape.unary(&half, half.width, Saved::Nothing));
            tape.add(&products[0], &products[1])
        });
        tape.copied(&halves[0], count)
    }

    /// Queries and keys turned by position.
    fn turned(
        &self,
        tape: &mut EagerTape<'_>,
        (query, keys): (EagerTensor, EagerTensor),
        shared: &EagerShared,
        held: &mut Vec<EagerTensor>,
    ) -> (EagerTensor, EagerTensor) {
        let narrow = query.width;
        let width = if self.style.wide_turns { 4 } else { narrow };
        let whole = [tape.cast(&query, width), tape.cast(&keys, width)];
        if self.style.joins_turns {
            let [query, keys] = whole.map(|x| {
                let part = self.turned_part(tape, &x, shared);
                self.joined(tape, &part, &x)
            });
            return (query, keys);
        }
        let parts = whole.each_ref().map(|x| self.turned_part(tape, x, shared));
        if self.style.inline_turns {
            held.extend(parts.iter().chain(&whole).cloned());
        }
        let [query_part, keys_part] = parts;
        let turned_query = self.joined(tape, &query_part, &whole[0]);
        drop(query_part);
        let turned_keys = self.joined(tape, &keys_part, &whole[1]);
        drop(keys_part);
        let turned = (tape.cast(&turned_query, narrow), tape.cast(&turned_keys, narrow));
        drop(turned_query);
        drop(turned_keys);
        drop(whole);
        drop(query);
        drop(keys);
        turned
    }

    /// A product with cosines, and one of the swapped halves with sines.
    fn turned_part(
        &self,
        tape: &mut EagerTape<'_>,
        x: &EagerTensor,
        shared: &EagerShared,
    ) -> EagerTensor {
        let width =
            shared.angles.as_ref().map_or(x.width, |[cosines, _]| cosines.width.max(x.width));
        let head = self.head_width().max(1);
        let count = x.count / head * self.style.rotated(head);
        let part = x.part(count);
        let cosines = tape.unary(&part, width, Saved::Nothing);
        let [left, right] = [(); 2].map(|()| tape.half(&part, x.bytes()));
        let turned = tape.unary(&right, right.width, Saved::Nothing);
        let swapped = tape.tensor(count, x.width);
        let inputs = [&turned, &left].into_iter().filter_map(|half| half.node);
        let inputs = inputs.map(|node| (node, Gradient::Same)).collect();
        let swapped = tape.record(swapped, EagerNode { inputs, ..EagerNode::default() });
        drop(turned);
        let sines = tape.unary(&swapped, width, Saved::Nothing);
        drop(swapped);
        tape.add(&cosines, &sines)
    }

    /// What was turned with what was not, where only a part was.
    fn joined(
        &self,
        tape: &mut EagerTape<'_>,
        turned: &EagerTensor,
        x: &EagerTensor,
    ) -> EagerTensor {
        if !self.joins() {
            return turned.clone();
        }
        let whole = tape.tensor(x.count, turned.width);
        let rest = x.bytes().saturating_sub(turned.bytes());
        let inputs = [(turned, turned.bytes()), (x, rest)]
            .into_iter()
            .filter_map(|(part, bytes)| Some((part.node?, Gradient::New(bytes))));
        let node = EagerNode { inputs: inputs.collect(), ..EagerNode::default() };
        tape.record(whole, node)
    }

    /// Whether a layer has positions: in some families only those with a window, or not every fourth.
    fn turns(&self, layer: usize) -> bool {
        match self.style.rotary {
            RotaryKind::None => false,
            RotaryKind::Turned => true,
            RotaryKind::InWindows => self.caches[layer].window.is_some(),
            RotaryKind::ButEveryFourth => !(layer + 1).is_multiple_of(4),
        }
    }

    /// Whether queries are put together anew, head by head.
    fn joins(&self) -> bool {
        let head = self.head_width();
        let part = self.style.rotary != RotaryKind::None && self.style.rotated(head) < head;
        part || self.style.joins_turns || self.style.latent.is_some()
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
        let [query, mut keys, mut values] = if self.job.amp {
            [tape.cast(&query, 2), tape.cast(&keys, 2), tape.cast(&values, 2)]
        } else {
            [query, keys, values]
        };
        let shares = keys.count / pass.tokens.max(1) < query.count / pass.count.max(1);
        let same = self.head_width() == self.value_width() && self.head_width() <= WIDEST_HEAD;
        let copies = mask.is_some() && !self.style.broadcasts_keys;
        if shares && (copies || !same) {
            let wide_keys = self.for_each_head(tape, pass, &keys, self.head_width());
            values = self.for_each_head(tape, pass, &values, self.value_width());
            keys = wide_keys;
        } else if shares && (query.width == 4 || self.style.broadcasts_keys) {
            return self.by_math(tape, pass, (scores, out), [query, keys, values], mask);
        }
        // Of 16 bits it has the order of its queries; the next product needs tokens first.
        let turned = self.joins() && query.width == 2;
        let attended = self.fused(tape, pass, out, [query, keys, values], mask);
        if turned { tape.copied(&attended, attended.count) } else { attended }
    }

    /// Shared keys or values, as wide as if each head had its own: a copy, but of a single head's a view.
    pub(super) fn for_each_head(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        x: &EagerTensor,
        width: u64,
    ) -> EagerTensor {
        let one = pass.tokens.saturating_mul(self.batch).saturating_mul(width);
        let all = one.saturating_mul(self.shape.heads);
        if x.count == one { tape.expanded(x, all) } else { tape.copied(x, all) }
    }

    pub(super) fn value_width(&self) -> u64 {
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
            // The kernel for 16 bits takes it as it is.
            if query.width == 2 || pass.tokens.is_multiple_of(MASK_STEP) {
                return plain;
            }
            tape.tensor(
                square / pass.tokens.max(1) * pass.tokens.next_multiple_of(MASK_STEP),
                query.width,
            )
        });
        let rows = self.count(pass, self.shape.heads);
        let out = tape.tensor(out, query.width);
        let sums = tape.take(rows.saturating_mul(4));
        let mut node = EagerNode::default();
        for part in [&query, &keys, &values] {
            node.inputs.extend(part.node.map(|node| (node, Gradient::New(part.bytes()))));
        }
        node.saved.extend([&keys, &query, &values].map(|part| part.memory.clone()));
        node.saved.extend([sums, out.memory.clone()]);
        node.saved.extend(mask.map(|mask| mask.memory));
        let mut working = rows.saturating_add(query.count).saturating_mul(4);
        if keys.count < query.count {
            working = working.saturating_add(query.bytes().saturating_mul(2));
        }
        node.brief.push(working);
        tape.record(out, node)
    }

    /// PyTorch's own operators, where it finds no fused kernel: scores and their softmax in 32
    /// bits, and a byte for each that says whether it is masked.
    fn by_math(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        (scores, out): (u64, u64),
        [query, keys, values]: [EagerTensor; 3],
        mask: Option<&EagerTensor>,
    ) -> EagerTensor {
        let narrow = query.width;
        let (query, keys, values) =
            (tape.cast(&query, 4), tape.cast(&keys, 4), tape.cast(&values, 4));
        let scaled = tape.unary(&query, 4, Saved::Nothing);
        let square = if pass.count > 1 { pass.count.saturating_mul(pass.tokens) } else { 0 };
        let mask = match mask {
            Some(mask) => tape.take(mask.count.saturating_mul(narrow)),
            None => {
                let (all, causal) = (tape.take(square), tape.take(square));
                drop(all);
                let mask = tape.take(square.saturating_mul(4));
                drop(causal);
                mask
            }
        };
        let wide =
            query.count.checked_div(pass.count.max(1)).unwrap_or(0).saturating_mul(pass.tokens);
        // Shared keys are copied out for each head, or by the product itself.
        let own = |tape: &mut EagerTape<'_>, x: &EagerTensor| match self.style.broadcasts_keys {
            true => x.clone(),
            false => tape.copied(x, wide),
        };
        let (own_keys, own_values) = (own(tape, &keys), own(tape, &values));
        let scaled_keys = tape.unary(&own_keys, 4, Saved::Nothing);
        // Heads of a single sequence are one after the other as they are.
        let flat = if self.batch == 1 { scaled.clone() } else { tape.shifted(&scaled) };
        let flat_keys = self.spread_out(tape, &scaled_keys, wide);
        let weights = tape.matrices(&flat, &flat_keys, scores);
        drop((flat, flat_keys, scaled_keys));
        let mut shares = tape.softmax(&weights, 4);
        drop(tape.take(scores));
        drop(weights);
        shares = tape.dropout(&shares, self.drops());
        let given_back = tape.cast(&shares, narrow);
        let flat_values = self.spread_out(tape, &own_values, wide);
        let attended = tape.matrices(&shares, &flat_values, out);
        drop(flat_values);
        let attended = tape.cast(&attended, narrow);
        drop((mask, scaled, own_keys, own_values));
        drop((given_back, shares));
        drop((query, keys, values));
        tape.copied(&attended, out)
    }

    /// What a product makes of keys that all heads share.
    fn spread_out(&self, tape: &mut EagerTape<'_>, x: &EagerTensor, count: u64) -> EagerTensor {
        if self.style.broadcasts_keys { tape.copied(x, count) } else { x.clone() }
    }
}

impl EagerTape<'_> {
    /// A view of half of a tensor, whose gradient becomes one of the whole.
    fn half(&mut self, x: &EagerTensor, whole: u64) -> EagerTensor {
        let inputs = x.node.map(|node| (node, Gradient::New(whole))).into_iter().collect();
        self.record(x.part(x.count / 2), EagerNode { inputs, ..EagerNode::default() })
    }

    /// Products of many matrices; both sides are saved.
    pub(super) fn matrices(&mut self, a: &EagerTensor, b: &EagerTensor, count: u64) -> EagerTensor {
        let out = self.tensor(count, a.width);
        self.product();
        let mut node = EagerNode::default();
        // The gradient of the second side is made first.
        for part in [b, a] {
            node.inputs.extend(part.node.map(|node| (node, Gradient::View(part.bytes()))));
            node.saved.push(part.memory.clone());
        }
        self.record(out, node)
    }
}
