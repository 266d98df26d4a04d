//! Will it fit? What a language model takes, from its shape alone.
//!
//! Four terms, and none of them is a guess. *Weights* are summed tensor by tensor, with the
//! types that a file of that name really holds. The *cache* is summed layer by layer, because
//! models whose layers differ (sliding windows, hybrids, compressed caches) break any single
//! formula, and its types are its own: a Q4 model usually keeps an f16 cache. *Activations*
//! are what an engine reserves before the first token, not the two vectors that a token needs:
//! the attention scores of a whole micro-batch against the whole context, or its logits,
//! whichever is larger. *Overhead* is 0 until an engine or a device is named, because
//! a number that was not measured is worse than none.
//!
//! ```
//! use plimsoll_models::estimate_inference_memory;
//! // Mistral 7B, 4,096 tokens, FP16.
//! let estimate = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 2);
//! assert_eq!(format!("{:.2} GiB", estimate.total_gb()), "14.28 GiB");
//! ```
//!
//! The forms follow llama.cpp, whose logs print every term and can be checked against; other
//! engines differ mostly in activations and overhead.

mod cache;
mod compute;
mod element;
mod layer;
mod mix;
mod range;
mod shape;
mod tensors;
mod weight_type;
mod weights;

pub use cache::LayerCache;
pub use compute::ComputeTerms;
pub use element::{CacheTypes, ElementType};
pub use layer::{Biases, Mlp};
pub use range::EstimateRange;
pub use shape::ModelShape;
pub use tensors::ShapeTensor;
pub use weight_type::WeightType;
pub use weights::WeightTerms;

use element::BlockLayout;
use plimsoll_machine::units::Bytes;

/// What running a model takes, term by term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InferenceMemoryEstimate {
    /// The weights.
    pub model_bytes: Bytes,
    /// Keys and values of the whole context.
    pub kv_cache_bytes: Bytes,
    /// The compute buffer that the engine reserves on the device.
    pub activation_bytes: Bytes,
    /// What an engine or a device takes for itself; 0 unless one was named.
    pub overhead_bytes: Bytes,
    /// All four.
    pub total_bytes: Bytes,
    /// The compute buffer on the host beside a device (inputs and masks); not in the total.
    pub host_compute_bytes: Bytes,
    /// The weights, by what they are for.
    pub weights: WeightTerms,
    /// The moments that compete for the compute buffer.
    pub compute: ComputeTerms,
}

impl InferenceMemoryEstimate {
    fn new(weights: WeightTerms, kv_cache: Bytes, compute: ComputeTerms, host: Bytes) -> Self {
        InferenceMemoryEstimate {
            model_bytes: weights.total(),
            kv_cache_bytes: kv_cache,
            activation_bytes: compute.peak(),
            host_compute_bytes: host,
            weights,
            compute,
            ..InferenceMemoryEstimate::default()
        }
        .with_overhead(Bytes::ZERO)
    }

    /// The same with what an engine or a device takes for itself (a CUDA context, say).
    ///
    /// ```
    /// use plimsoll_models::{Bytes, estimate_inference_memory};
    /// let bare = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 2);
    /// let real = bare.with_overhead(Bytes::mib(621));
    /// assert_eq!(real.total_bytes, bare.total_bytes + Bytes::mib(621));
    /// ```
    #[must_use]
    pub fn with_overhead(self, overhead: Bytes) -> Self {
        let parts = [self.model_bytes, self.kv_cache_bytes, self.activation_bytes, overhead];
        InferenceMemoryEstimate {
            overhead_bytes: overhead,
            total_bytes: parts.into_iter().sum(),
            ..self
        }
    }

    /// What it is expected to lie between.
    #[must_use]
    pub fn range(&self) -> EstimateRange {
        let basis = "the formulas agree with llama.cpp's logs within 0.1 % where one device runs \
                     the whole model; a backend that keeps copies of weights takes more";
        EstimateRange::checked(self.total_bytes.get(), 5, basis)
    }

    /// Whether the upper end of its range fits into `limit`.
    #[must_use]
    pub fn fits(&self, limit: Bytes) -> bool {
        self.range().high_bytes <= limit.get()
    }

    /// The total in GiB.
    #[must_use]
    pub fn total_gb(&self) -> f64 {
        self.total_bytes.as_gib()
    }

    /// The weights in MiB.
    #[must_use]
    pub fn model_mb(&self) -> f64 {
        self.model_bytes.as_mib()
    }

    /// The cache in MiB.
    #[must_use]
    pub fn kv_cache_mb(&self) -> f64 {
        self.kv_cache_bytes.as_mib()
    }

    /// The compute buffer in MiB.
    #[must_use]
    pub fn activation_mb(&self) -> f64 {
        self.activation_bytes.as_mib()
    }
}

/// What a model with a gated MLP takes, from eight numbers: `dtype_bytes` is the size of one
/// weight and of one cache element, the micro-batch is 512 and flash attention is off.
///
/// It never fails: what is too large to count stays at the maximum, and no heads means no
/// cache. [`ModelShape`] says more, and refuses shapes that cannot be.
///
/// ```
/// use plimsoll_models::estimate_inference_memory;
/// let fp32 = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 4);
/// assert_eq!(format!("{:.2}", fp32.total_gb()), "28.27");
/// assert_eq!(format!("{:.2}", fp32.model_mb() / 1024.0), "26.98");
/// assert_eq!(fp32.kv_cache_mb(), 1024.0);
/// assert_eq!(fp32.activation_mb(), 296.0);
/// ```
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "a signature that callers know; ModelShape has names"
)]
pub fn estimate_inference_memory(
    hidden: u64,
    intermediate: u64,
    layers: u64,
    vocab: u64,
    heads: u64,
    kv_heads: u64,
    context: u64,
    dtype_bytes: u64,
) -> InferenceMemoryEstimate {
    let shape = ModelShape::new(hidden, intermediate, layers, vocab, heads)
        .with_kv_heads(kv_heads)
        .with_context(context);
    let dtype = BlockLayout { elements: 1, bytes: dtype_bytes };
    let layer = weights::layer_terms(&shape, |_, _| dtype);
    let terms = weights::ends(&shape, |_, _| dtype).plus(layer.times(layers));
    let row = dtype.matrix(2, shape.kv_width());
    let cache = Bytes(row).saturating_mul(context).saturating_mul(layers);
    InferenceMemoryEstimate::new(terms, cache, compute::device(&shape), compute::host(&shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(bytes: Bytes) -> String {
        format!("{:.2}", bytes.as_gib())
    }

    #[test]
    fn mistral_7b_comes_out_as_published() {
        for (bytes, expected) in
            [(2, ["13.49", "0.50", "0.29", "14.28"]), (4, ["26.98", "1.00", "0.29", "28.27"])]
        {
            let e = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, bytes);
            let terms = [e.model_bytes, e.kv_cache_bytes, e.activation_bytes, e.total_bytes];
            assert_eq!(terms.map(gib), expected);
            assert_eq!(e.overhead_bytes, Bytes::ZERO);
            assert!(e.fits(Bytes::gib(32)) && !e.fits(Bytes::gib(14)));
        }
    }

    #[test]
    fn eight_numbers_and_the_full_shape_agree() {
        let shape = ModelShape::new(4096, 14336, 32, 32000, 32)
            .with_kv_heads(8)
            .with_context(4096)
            .with_weights(WeightType::F32)
            .with_cache_types(ElementType::F32, ElementType::F32);
        let full = shape.estimate().unwrap();
        assert_eq!(full, estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 4));
    }

    #[test]
    fn no_number_is_too_large_or_too_small() {
        let most = u64::MAX;
        let huge = estimate_inference_memory(most, most, most, most, most, most, most, most);
        assert_eq!(huge.total_bytes, Bytes::MAX);
        let none = estimate_inference_memory(0, 0, 0, 0, 0, 0, 0, 0);
        assert_eq!(none.total_bytes, Bytes::ZERO);
        let large = estimate_inference_memory(4096, 14336, 32, 32000, 0, 8, 4096, 2);
        assert_eq!(large.kv_cache_bytes, Bytes::ZERO);
    }
}
