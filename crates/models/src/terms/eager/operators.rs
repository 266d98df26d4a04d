//! Attention by single operators, which store scores: what each makes, and how long the
//! program's names hold it.

use super::decoder::{EagerDecoder, EagerPass};
use super::ops::Saved;
use super::tape::{EagerTape, EagerTensor};
use crate::families::attention::ScoreKind;

/// What it gives, what names hold until it returns, and its weights, which it gives back too.
pub(super) struct ByOperators {
    pub(super) out: EagerTensor,
    pub(super) weights: EagerTensor,
    _held: Vec<EagerTensor>,
}

impl EagerDecoder<'_> {
    pub(super) fn by_operators(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        kind: ScoreKind,
        given: [EagerTensor; 3],
    ) -> ByOperators {
        let scores = self.count(pass, self.shape.heads).saturating_mul(pass.tokens);
        match kind {
            ScoreKind::Plain | ScoreKind::Sinks => {
                self.plain_scores(tape, (pass, kind), scores, given)
            }
            ScoreKind::Wide => self.wide_scores(tape, scores, given),
            ScoreKind::AddedTo => self.added_scores(tape, scores, given),
            ScoreKind::Biased => self.biased_scores(tape, scores, given),
        }
    }

    /// What a product of matrices takes: a copy where heads are not one after the other yet, as they
    /// are in a cache.
    fn flat(&self, tape: &mut EagerTape<'_>, x: &EagerTensor) -> EagerTensor {
        if self.caches() { x.clone() } else { tape.copied(x, x.count) }
    }

    /// Keys and values for each head; scores by their scale, bent to a cap where there is one, with the mask;
    /// their softmax.
    fn plain_scores(
        &self,
        tape: &mut EagerTape<'_>,
        (pass, kind): (EagerPass, ScoreKind),
        count: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> ByOperators {
        let own_keys = self.for_own_head(tape, pass, &keys, self.head_width());
        let own_values = self.for_own_head(tape, pass, &values, self.value_width());
        let out = query.count / self.head_width().max(1) * self.value_width();
        // Heads of a single sequence are one after the other as they are.
        let flat = if self.batch == 1 { query.clone() } else { tape.shifted(&query) };
        let mut scores = tape.matrices(&flat, &own_keys, count);
        drop(flat);
        scores = tape.unary(&scores, scores.width, Saved::Nothing);
        if self.style.caps_scores {
            for saved in [Saved::Nothing, Saved::Output, Saved::Nothing] {
                scores = tape.unary(&scores, scores.width, saved);
            }
        }
        scores = tape.shifted(&scores);
        let (weights, with_sinks) = if kind == ScoreKind::Sinks {
            let [weights, all] = self.with_sinks(tape, pass, &scores);
            (weights, Some(all))
        } else {
            let wide = self.softmax(tape, &scores);
            (tape.cast(&wide, values.width), None)
        };
        drop(scores);
        let attended = tape.matrices(&weights, &own_values, out);
        let out = tape.copied(&attended, out);
        drop(with_sinks);
        ByOperators { out, weights, _held: vec![query, keys, values] }
    }

    /// The softmax of scores with one more for each query, and what it was made of: all less their largest.
    fn with_sinks(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        scores: &EagerTensor,
    ) -> [EagerTensor; 2] {
        let rows = self.count(pass, self.shape.heads);
        let mut all = tape.copied(scores, scores.count.saturating_add(rows));
        let largest = tape.tensor(rows, all.width);
        all = tape.shifted(&all);
        drop(largest);
        [tape.softmax(&all, all.width), all]
    }

    /// Keys or values that heads share, as a copy for each.
    fn for_own_head(
        &self,
        tape: &mut EagerTape<'_>,
        pass: EagerPass,
        x: &EagerTensor,
        width: u64,
    ) -> EagerTensor {
        let all = self.batch.saturating_mul(pass.tokens).saturating_mul(self.shape.heads);
        match x.count < all.saturating_mul(width) {
            true => self.for_each_head(tape, pass, x, width),
            false => x.clone(),
        }
    }

    /// In 32 bits: scores, by their scale or mask, with the mask, and their softmax.
    fn wide_scores(
        &self,
        tape: &mut EagerTape<'_>,
        count: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> ByOperators {
        let (wide_query, wide_keys) = (tape.cast(&query, 4), tape.cast(&keys, 4));
        let flat = (tape.copied(&wide_query, query.count), self.flat(tape, &wide_keys));
        let mut scores = tape.matrices(&flat.0, &flat.1, count);
        drop(flat);
        for _ in 0..2 {
            scores = tape.unary(&scores, 4, Saved::Nothing);
        }
        scores = tape.softmax(&scores, 4);
        let weights = tape.cast(&scores, values.width);
        drop(scores);
        let flat = self.flat(tape, &values);
        let attended = tape.matrices(&weights, &flat, query.count);
        drop((flat, wide_query, wide_keys));
        let out = tape.copied(&attended, query.count);
        ByOperators { out, weights, _held: vec![query, keys, values] }
    }

    /// Scores that are added to a bias, the same with the mask, and a softmax in 32 bits.
    fn added_scores(
        &self,
        tape: &mut EagerTape<'_>,
        count: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> ByOperators {
        let flat = tape.copied(&query, query.count);
        let (keys, values) = (self.flat(tape, &keys), self.flat(tape, &values));
        let scores = tape.matrices(&flat, &keys, count);
        let masked = tape.unary(&scores, scores.width, Saved::Nothing);
        let wide = self.softmax(tape, &masked);
        let weights = tape.cast(&wide, values.width);
        drop(wide);
        let attended = tape.matrices(&weights, &values, query.count);
        let out = tape.copied(&attended, query.count);
        let held = vec![query, flat, keys, values, scores, masked, out.clone()];
        ByOperators { out, weights, _held: held }
    }

    /// Scores by their scale, a bias in 32 bits, the mask, a softmax.
    fn biased_scores(
        &self,
        tape: &mut EagerTape<'_>,
        count: u64,
        [query, keys, values]: [EagerTensor; 3],
    ) -> ByOperators {
        let flat = (tape.copied(&query, query.count), self.flat(tape, &keys));
        let mut scores = tape.matrices(&flat.0, &flat.1, count);
        drop(flat);
        scores = tape.unary(&scores, scores.width, Saved::Nothing);
        for _ in 0..2 {
            scores = tape.unary(&scores, 4, Saved::Nothing);
        }
        let wide = tape.softmax(&scores, 4);
        let weights = tape.cast(&wide, values.width);
        drop(wide);
        let flat = self.flat(tape, &values);
        let attended = tape.matrices(&weights, &flat, query.count);
        drop(flat);
        let out = tape.copied(&attended, query.count);
        ByOperators { out, weights, _held: vec![query, keys, values, scores] }
    }

    /// In 32 bits, which a kernel of its own gives for float16; others are cast before.
    fn softmax(&self, tape: &mut EagerTape<'_>, x: &EagerTensor) -> EagerTensor {
        let wide = if self.job.bf16 { tape.cast(x, 4) } else { x.clone() };
        tape.softmax(&wide, 4)
    }
}
