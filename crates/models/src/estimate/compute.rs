//! The compute buffer: what an engine reserves for intermediate results.
//!
//! One token needs a few vectors; an engine reserves for a whole micro-batch at the worst
//! moment of the graph, and then reuses that one buffer for all layers. Three moments compete:
//!
//! - *attention*: without flash attention the scores of every head, micro-batch against
//!   context, the mask, and hidden vectors of every token: four in the engine's logs, six for
//!   models whose attention and MLP share an input (seen with Pythia, which also fuses its
//!   projections; which of the two costs the room the logs do not tell);
//! - *MLP*: the inner vectors of a layer, its input and its normed input, and the mask, which
//!   waits for the next layer;
//! - *logits*: the whole vocabulary for every token of the micro-batch, and the last hidden
//!   vector. It comes after the last attention, so the mask's place is free again.
//!
//! The buffer is as large as the largest. All of it is in 32-bit floats whatever the weights
//! are; the mask is 16-bit with flash attention.

use super::cache;
use super::shape::ModelShape;
use super::weights::inward_matrices;
use plimsoll_machine::units::Bytes;

/// The moments that compete for the compute buffer; it is as large as the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ComputeTerms {
    /// While attention runs.
    pub attention_bytes: Bytes,
    /// While the MLP runs.
    pub mlp_bytes: Bytes,
    /// While the logits are computed.
    pub logits_bytes: Bytes,
}

impl ComputeTerms {
    /// The largest of them: what is reserved.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        self.attention_bytes.max(self.mlp_bytes).max(self.logits_bytes)
    }
}

const FLOAT: u64 = 4;
const HALF: u64 = 2;

/// The buffer on the device.
pub(super) fn device(shape: &ModelShape) -> ComputeTerms {
    let a_token =
        |elements: u64| Bytes(elements).saturating_mul(shape.batch()).saturating_mul(FLOAT);
    let cells = cache::widest(shape);
    let mask_element = if shape.flash_attention { HALF } else { FLOAT };
    let mask = Bytes(cells).saturating_mul(shape.batch()).saturating_mul(mask_element);
    let scores = if shape.flash_attention { 0 } else { shape.heads.saturating_mul(cells) };
    let vectors = if shape.parallel_residual { 6 } else { 4 };
    let inner = shape
        .intermediate
        .saturating_mul(inward_matrices(shape))
        .saturating_mul(shape.experts_used);
    ComputeTerms {
        attention_bytes: [a_token(scores), mask, a_token(shape.hidden.saturating_mul(vectors))]
            .into_iter()
            .sum(),
        mlp_bytes: [a_token(inner), mask, a_token(shape.hidden.saturating_mul(2))]
            .into_iter()
            .sum(),
        logits_bytes: a_token(shape.vocab).saturating_add(a_token(shape.hidden)),
    }
}

/// The buffer on the host beside it: the mask and the embedded tokens before they go over.
pub(super) fn host(shape: &ModelShape) -> Bytes {
    let elements = cache::widest(shape).saturating_add(shape.hidden);
    Bytes(elements).saturating_mul(shape.batch()).saturating_mul(FLOAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistral() -> ModelShape {
        ModelShape::new(4096, 14336, 32, 32000, 32).with_kv_heads(8)
    }

    #[test]
    fn scores_dominate_a_long_context_and_logits_a_short_one() {
        let long = device(&mistral().with_context(32_768));
        assert_eq!(long.peak(), Bytes::mib(2048 + 64 + 32));
        assert_eq!(long.peak(), long.attention_bytes);
        let llama2 = ModelShape::new(4096, 11008, 32, 32000, 32);
        let short = device(&llama2.with_context(512));
        assert_eq!(short.peak(), short.logits_bytes);
        assert_eq!(short.peak().as_mib(), 62.5 + 8.0);
    }

    #[test]
    fn a_wide_mlp_can_be_the_largest_moment() {
        let short = device(&mistral().with_context(512));
        assert_eq!(short.peak(), short.mlp_bytes);
        assert_eq!(short.peak(), Bytes::mib(2 * 28 + 2 * 8 + 1));
    }

    #[test]
    fn flash_attention_leaves_the_logits_of_a_large_vocabulary() {
        let llama3 = ModelShape::new(4096, 14336, 32, 128_256, 32).with_kv_heads(8);
        let flash = device(&llama3.with_context(8192).with_flash_attention(true));
        assert_eq!(flash.peak().as_mib(), 258.5);
    }

    #[test]
    fn a_micro_batch_larger_than_the_context_counts_as_the_context() {
        let short = mistral().with_context(128);
        assert_eq!(device(&short), device(&short.clone().with_micro_batch(128)));
        assert_eq!(host(&short), Bytes((128 + 4096) * 128 * 4));
    }

    #[test]
    fn parallel_residual_models_hold_two_vectors_more() {
        let pythia = ModelShape::new(2560, 10240, 32, 50304, 32).with_context(2048);
        let parallel = device(&pythia.clone().with_parallel_residual(true)).attention_bytes;
        assert_eq!(parallel - device(&pythia).attention_bytes, Bytes(2 * 2560 * 512 * 4));
    }
}
