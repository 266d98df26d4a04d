//! The weights, tensor by tensor.
//!
//! Norms and biases are vectors, and files keep vectors at 32 bits whatever the type of the
//! matrices; that is also why a "FP16" file is a little more than two bytes a weight.

use super::element::BlockLayout;
use super::layer::Mlp;
use super::mix::{Role, tensor_type};
use super::shape::ModelShape;
use super::tensors;
use plimsoll_machine::units::Bytes;

/// What the weights take, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WeightTerms {
    /// The token embedding; with tied embeddings it is the output matrix too.
    pub embedding_bytes: Bytes,
    /// The output matrix; 0 with tied embeddings.
    pub output_bytes: Bytes,
    /// Query, key, value and output matrices.
    pub attention_bytes: Bytes,
    /// The feed-forward matrices, and the routers of experts.
    pub mlp_bytes: Bytes,
    /// Norms and biases.
    pub vector_bytes: Bytes,
}

impl WeightTerms {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> Bytes {
        [
            self.embedding_bytes,
            self.output_bytes,
            self.attention_bytes,
            self.mlp_bytes,
            self.vector_bytes,
        ]
        .into_iter()
        .sum()
    }

    pub(super) fn plus(self, other: WeightTerms) -> WeightTerms {
        WeightTerms {
            embedding_bytes: self.embedding_bytes.saturating_add(other.embedding_bytes),
            output_bytes: self.output_bytes.saturating_add(other.output_bytes),
            attention_bytes: self.attention_bytes.saturating_add(other.attention_bytes),
            mlp_bytes: self.mlp_bytes.saturating_add(other.mlp_bytes),
            vector_bytes: self.vector_bytes.saturating_add(other.vector_bytes),
        }
    }

    pub(super) fn times(self, n: u64) -> WeightTerms {
        WeightTerms {
            embedding_bytes: self.embedding_bytes.saturating_mul(n),
            output_bytes: self.output_bytes.saturating_mul(n),
            attention_bytes: self.attention_bytes.saturating_mul(n),
            mlp_bytes: self.mlp_bytes.saturating_mul(n),
            vector_bytes: self.vector_bytes.saturating_mul(n),
        }
    }
}

/// The whole model, by the rules of its weight type.
pub(super) fn sum(shape: &ModelShape) -> WeightTerms {
    let layout = |layer| {
        move |role, columns| tensor_type(shape.weights, role, shape.place(layer), columns).layout()
    };
    (0..shape.layers)
        .map(|layer| layer_terms(shape, layout(layer)))
        .fold(ends(shape, layout(0)), WeightTerms::plus)
}

/// What does not belong to a layer.
pub(super) fn ends(shape: &ModelShape, layout: impl Fn(Role, u64) -> BlockLayout) -> WeightTerms {
    fold(tensors::ends(shape), layout)
}

/// One layer.
pub(super) fn layer_terms(
    shape: &ModelShape,
    layout: impl Fn(Role, u64) -> BlockLayout,
) -> WeightTerms {
    fold(tensors::layer(shape), layout)
}

fn fold(
    parts: Vec<tensors::UntypedTensor>,
    layout: impl Fn(Role, u64) -> BlockLayout,
) -> WeightTerms {
    let mut terms = WeightTerms::default();
    for part in parts {
        part.add_to(&mut terms, &layout);
    }
    terms
}

/// Matrices from the hidden width to the inner one.
pub(super) fn inward_matrices(shape: &ModelShape) -> u64 {
    match shape.mlp {
        Mlp::Gated => 2,
        Mlp::Plain => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Biases, WeightType};

    fn parameters(shape: &ModelShape) -> u64 {
        // In F32 everything takes four bytes, so bytes count parameters.
        sum(&shape.clone().with_weights(WeightType::F32)).total().get() / 4
    }

    #[test]
    fn public_models_have_the_parameters_they_are_known_for() {
        let llama2_7b = ModelShape::new(4096, 11008, 32, 32000, 32);
        assert_eq!(parameters(&llama2_7b), 6_738_415_616);
        let mistral_7b = ModelShape::new(4096, 14336, 32, 32000, 32).with_kv_heads(8);
        assert_eq!(parameters(&mistral_7b), 7_241_732_096);
        let qwen25_7b = ModelShape::new(3584, 18944, 28, 152_064, 28)
            .with_kv_heads(4)
            .with_biases(Biases::Attention);
        assert_eq!(parameters(&qwen25_7b), 7_615_616_512);
        let gemma_7b = ModelShape::new(3072, 24576, 28, 256_000, 16)
            .with_head_dim(256)
            .with_tied_embeddings(true);
        assert_eq!(parameters(&gemma_7b), 8_537_680_896);
        let mixtral = mistral_7b.with_experts(8, 2);
        assert_eq!(parameters(&mixtral), 46_702_792_704);
        let pythia = ModelShape::new(2560, 10240, 32, 50304, 32)
            .with_mlp(Mlp::Plain)
            .with_biases(Biases::All)
            .with_fused_qkv(true);
        assert_eq!(parameters(&pythia), 2_775_208_960);
    }

    #[test]
    fn tied_embeddings_are_stored_once_as_the_output_matrix_is() {
        let untied = ModelShape::new(2048, 11008, 36, 151_936, 16).with_weights(WeightType::Q4KM);
        let tied = sum(&untied.clone().with_tied_embeddings(true));
        let untied = sum(&untied);
        assert_eq!(tied.output_bytes, Bytes::ZERO);
        assert_eq!(tied.embedding_bytes, untied.output_bytes);
        assert!(untied.embedding_bytes < untied.output_bytes);
    }

    #[test]
    fn the_terms_add_up() {
        let terms = sum(&ModelShape::new(4096, 14336, 32, 32000, 32).with_kv_heads(8));
        let attention = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2) * 2;
        assert_eq!(terms.attention_bytes, Bytes(attention));
        assert_eq!(terms.mlp_bytes, Bytes(32 * 3 * 4096 * 14336 * 2));
        assert_eq!(terms.embedding_bytes, Bytes(32000 * 4096 * 2));
        assert_eq!(terms.vector_bytes, Bytes(65 * 4096 * 4));
    }
}
