//! A model's shape and how it is to be run: everything that an estimate depends on.
//!
//! The five numbers that every model has are asked for; the rest begins at what is usual (a
//! gated MLP, no biases, f16 weights and cache, a micro-batch of 512, no flash attention) and
//! is changed by name. Shapes come from files and flags that we did not write, so
//! [`ModelShape::estimate`] checks them first and says which field cannot be so.

use super::cache::{self, LayerCache};
use super::element::ElementType;
use super::layer::{Biases, Mlp};
use super::weight_type::WeightType;
use super::weights::WeightTerms;
use super::{InferenceMemoryEstimate, compute, weights};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A language model and how it is to be run.
///
/// ```
/// use plimsoll_models::{ElementType, ModelShape, WeightType};
/// // Llama 3 8B as most people run it.
/// let estimate = ModelShape::new(4096, 14336, 32, 128_256, 32)
///     .with_kv_heads(8)
///     .with_context(8192)
///     .with_weights(WeightType::Q4KM)
///     .with_flash_attention(true)
///     .with_cache_types(ElementType::Q8_0, ElementType::Q8_0)
///     .estimate()?;
/// assert_eq!(estimate.kv_cache_mb(), 544.0);
/// assert_eq!(estimate.activation_mb(), 258.5);
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelShape {
    /// The width of the residual stream.
    pub hidden: u64,
    /// The width inside the MLP (of one expert, where there are several).
    pub intermediate: u64,
    /// Layers.
    pub layers: u64,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// Query heads.
    pub heads: u64,
    /// Heads of keys and values; fewer than `heads` where heads share them.
    pub kv_heads: u64,
    /// The width of a head; `hidden / heads` unless said.
    pub head_dim: Option<u64>,
    /// Tokens of context, over all sequences.
    pub context: u64,
    /// Tokens processed at once; more than the context holds count as the context.
    pub micro_batch: u64,
    /// Whether attention runs without storing its scores.
    pub flash_attention: bool,
    /// How weights are stored.
    pub weights: WeightType,
    /// How cached keys are stored.
    pub key_cache: ElementType,
    /// How cached values are stored.
    pub value_cache: ElementType,
    /// The feed-forward part.
    pub mlp: Mlp,
    /// Which matrices have biases.
    pub biases: Biases,
    /// Whether the output matrix is the token embedding, stored once.
    pub tied_embeddings: bool,
    /// Whether query, key and value are one matrix (Pythia, Falcon); mixes treat it otherwise.
    pub fused_qkv: bool,
    /// Whether attention and MLP both read the layer's input (Pythia): its vectors live longer.
    pub parallel_residual: bool,
    /// Experts in a layer; 1 for a dense model.
    pub experts: u64,
    /// Experts that each token goes through.
    pub experts_used: u64,
    /// Sequences at once: each has a window and a recurrent state of its own; they share the
    /// context.
    pub sequences: u64,
    /// Whether each sequence has a cache of its own, for its part of the context.
    pub separate_caches: bool,
    /// What each layer caches, where layers differ; one entry a layer.
    pub caches: Option<Vec<LayerCache>>,
}

/// More layers than any model has; it bounds the work that a hostile header can ask for.
const MOST_LAYERS: u64 = 65_536;

impl ModelShape {
    /// A dense model with a gated MLP, one key-value head a head, f16 weights and cache, 4,096
    /// tokens of context in micro-batches of 512, no flash attention.
    #[must_use]
    pub fn new(hidden: u64, intermediate: u64, layers: u64, vocab: u64, heads: u64) -> Self {
        ModelShape {
            hidden,
            intermediate,
            layers,
            vocab,
            heads,
            kv_heads: heads,
            head_dim: None,
            context: 4096,
            micro_batch: 512,
            flash_attention: false,
            weights: WeightType::F16,
            key_cache: ElementType::F16,
            value_cache: ElementType::F16,
            mlp: Mlp::Gated,
            biases: Biases::None,
            tied_embeddings: false,
            fused_qkv: false,
            parallel_residual: false,
            experts: 1,
            experts_used: 1,
            sequences: 1,
            separate_caches: false,
            caches: None,
        }
    }

    /// The same with this many heads of keys and values.
    #[must_use]
    pub fn with_kv_heads(self, kv_heads: u64) -> Self {
        ModelShape { kv_heads, ..self }
    }

    /// The same with heads of this width.
    #[must_use]
    pub fn with_head_dim(self, head_dim: u64) -> Self {
        ModelShape { head_dim: Some(head_dim), ..self }
    }

    /// The same with this many tokens of context.
    #[must_use]
    pub fn with_context(self, context: u64) -> Self {
        ModelShape { context, ..self }
    }

    /// The same with this many tokens processed at once.
    #[must_use]
    pub fn with_micro_batch(self, micro_batch: u64) -> Self {
        ModelShape { micro_batch, ..self }
    }

    /// The same with or without flash attention.
    #[must_use]
    pub fn with_flash_attention(self, flash_attention: bool) -> Self {
        ModelShape { flash_attention, ..self }
    }

    /// The same with weights stored so.
    #[must_use]
    pub fn with_weights(self, weights: WeightType) -> Self {
        ModelShape { weights, ..self }
    }

    /// The same with cached keys and values stored so.
    #[must_use]
    pub fn with_cache_types(self, key_cache: ElementType, value_cache: ElementType) -> Self {
        ModelShape { key_cache, value_cache, ..self }
    }

    /// The same with this feed-forward part.
    #[must_use]
    pub fn with_mlp(self, mlp: Mlp) -> Self {
        ModelShape { mlp, ..self }
    }

    /// The same with these biases.
    #[must_use]
    pub fn with_biases(self, biases: Biases) -> Self {
        ModelShape { biases, ..self }
    }

    /// The same with the output matrix shared with the token embedding, or not.
    #[must_use]
    pub fn with_tied_embeddings(self, tied_embeddings: bool) -> Self {
        ModelShape { tied_embeddings, ..self }
    }

    /// The same with query, key and value in one matrix, or not.
    #[must_use]
    pub fn with_fused_qkv(self, fused_qkv: bool) -> Self {
        ModelShape { fused_qkv, ..self }
    }

    /// The same with attention and MLP side by side, or one after the other.
    #[must_use]
    pub fn with_parallel_residual(self, parallel_residual: bool) -> Self {
        ModelShape { parallel_residual, ..self }
    }

    /// The same with this many experts a layer, of which each token goes through `used`.
    #[must_use]
    pub fn with_experts(self, experts: u64, used: u64) -> Self {
        ModelShape { experts, experts_used: used, ..self }
    }

    /// The same with a cache of its own for each layer.
    #[must_use]
    pub fn with_caches(self, caches: Vec<LayerCache>) -> Self {
        ModelShape { caches: Some(caches), ..self }
    }

    /// The same with this many sequences at once.
    #[must_use]
    pub fn with_sequences(self, sequences: u64) -> Self {
        ModelShape { sequences, ..self }
    }

    /// The same with a cache for each sequence, or one for all.
    #[must_use]
    pub fn with_separate_caches(self, separate_caches: bool) -> Self {
        ModelShape { separate_caches, ..self }
    }

    /// What running it takes.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the shape cannot be: it names the field and what it may be.
    pub fn estimate(&self) -> Result<InferenceMemoryEstimate> {
        self.check()?;
        self.terms(weights::sum(self))
    }

    /// What running it takes, with the weights as they were counted in a file. The shape then
    /// decides the cache and the activations alone.
    ///
    /// # Errors
    ///
    /// As [`estimate`](Self::estimate).
    pub fn estimate_with(&self, weights: WeightTerms) -> Result<InferenceMemoryEstimate> {
        self.check()?;
        self.terms(weights)
    }

    /// What each layer keeps; alike in all of them unless they were listed.
    #[must_use]
    pub fn cache_by_layer(&self) -> Vec<Bytes> {
        match &self.caches {
            Some(_) => cache::by_layer(self).map(Bytes).collect(),
            None => {
                let layers = self.layers.min(MOST_LAYERS);
                let one = cache::sum(self) / self.layers.max(1);
                (0..layers).map(|_| Bytes(one)).collect()
            }
        }
    }

    fn terms(&self, weights: WeightTerms) -> Result<InferenceMemoryEstimate> {
        let estimate = InferenceMemoryEstimate::new(
            weights,
            Bytes(cache::sum(self)),
            compute::device(self),
            compute::host(self),
        );
        if estimate.total_bytes == Bytes::MAX {
            // The sums stop at the most that can be counted; past that they say nothing.
            return Err(Error::Malformed {
                what: "the shape".to_string(),
                why: "it takes more than 16 EiB; look for a number too many in context, layers, \
                      head-dim or vocab"
                    .to_string(),
            });
        }
        Ok(estimate)
    }

    /// Tokens that are really processed at once.
    pub(super) fn batch(&self) -> u64 {
        self.micro_batch.min(self.context)
    }

    /// The width of a head, said or derived; 0 where there are no heads.
    #[must_use]
    pub fn head_width(&self) -> u64 {
        self.head_dim.unwrap_or_else(|| self.hidden.checked_div(self.heads).unwrap_or(0))
    }

    /// The width of all queries of a token.
    pub(super) fn query_width(&self) -> u64 {
        self.head_width().saturating_mul(self.heads)
    }

    /// The width of all keys of a token.
    pub(super) fn kv_width(&self) -> u64 {
        self.head_width().saturating_mul(self.kv_heads)
    }

    fn check(&self) -> Result<()> {
        for (field, value) in [
            ("hidden", self.hidden),
            ("intermediate", self.intermediate),
            ("vocab", self.vocab),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("context", self.context),
            ("micro_batch", self.micro_batch),
            ("experts", self.experts),
            ("experts_used", self.experts_used),
            ("sequences", self.sequences),
        ] {
            if value == 0 {
                return Err(config(field, "0".to_string(), "at least 1"));
            }
        }
        if self.layers == 0 || self.layers > MOST_LAYERS {
            return Err(config("layers", self.layers.to_string(), "1 to 65536"));
        }
        self.check_heads()?;
        if self.experts_used > self.experts {
            let value = format!("{} of {} experts", self.experts_used, self.experts);
            return Err(config("experts_used", value, "no more than experts"));
        }
        match &self.caches {
            Some(caches) if caches.len() as u64 != self.layers => {
                let value = format!("{} entries for {} layers", caches.len(), self.layers);
                Err(config("caches", value, "one entry a layer"))
            }
            _ => Ok(()),
        }
    }

    fn check_heads(&self) -> Result<()> {
        if self.caches.is_some() {
            return Ok(()); // each layer says its own widths
        }
        if self.kv_heads > self.heads || !self.heads.is_multiple_of(self.kv_heads) {
            let value = format!("{} with heads = {}", self.kv_heads, self.heads);
            return Err(config("kv_heads", value, "a divisor of heads, and no more than heads"));
        }
        if self.head_dim.is_none() && !self.hidden.is_multiple_of(self.heads) {
            let value = format!("not given, with hidden = {}, heads = {}", self.hidden, self.heads);
            return Err(config("head_dim", value, "given where heads does not divide hidden"));
        }
        Ok(())
    }
}

fn config(field: &'static str, value: String, range: &'static str) -> Error {
    Error::Config { field, value, range }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistral() -> ModelShape {
        ModelShape::new(4096, 14336, 32, 32000, 32).with_kv_heads(8)
    }

    #[test]
    fn shapes_that_cannot_be_are_refused_by_name() {
        for (shape, field) in [
            (ModelShape { hidden: 0, ..mistral() }, "hidden"),
            (ModelShape { heads: 0, ..mistral() }, "heads"),
            (ModelShape { layers: 0, ..mistral() }, "layers"),
            (ModelShape { layers: u64::MAX, ..mistral() }, "layers"),
            (mistral().with_kv_heads(0), "kv_heads"),
            (mistral().with_kv_heads(64), "kv_heads"),
            (mistral().with_kv_heads(5), "kv_heads"),
            (ModelShape { hidden: 4097, ..mistral() }, "head_dim"),
            (mistral().with_head_dim(0), "head_dim"),
            (mistral().with_context(0), "context"),
            (mistral().with_micro_batch(0), "micro_batch"),
            (mistral().with_experts(8, 9), "experts_used"),
            (mistral().with_caches(vec![]), "caches"),
        ] {
            let error = shape.estimate().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let most = u64::MAX;
        let shape = ModelShape::new(most, most, 65_536, most, 1).with_context(most);
        let text = shape.estimate().unwrap_err().to_string();
        assert!(text.contains("16 EiB") && text.contains("context"), "{text}");
    }
}
