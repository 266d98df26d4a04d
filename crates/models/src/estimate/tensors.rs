//! The tensors of a shape, by the names that GGUF files have for them.
//!
//! One list serves two ends: its sum is the weights' term of an estimate, and a header written
//! from it is a model file without the data, which tests read back.

use super::element::{BlockLayout, ElementType};
use super::layer::{Biases, Mlp};
use super::mix::{Role, TensorPlace, tensor_type};
use super::shape::ModelShape;
use super::weights::WeightTerms;
use plimsoll_machine::units::Bytes;

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeTensor {
    /// Its name: `blk.0.attn_q.weight`.
    pub name: String,
    /// How it is stored.
    pub element: ElementType,
    /// Elements in a row.
    pub columns: u64,
    /// Rows; those of all experts where there are several.
    pub rows: u64,
}

/// Which term of the weights it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    Embedding,
    Output,
    Attention,
    Mlp,
    Vector,
}

/// A tensor before its type is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct UntypedTensor {
    name: &'static str,
    term: Term,
    /// What it is for, which decides its type; vectors and routers have none and stay at 32
    /// bits.
    role: Option<Role>,
    rows: u64,
    columns: u64,
}

impl UntypedTensor {
    fn matrix(
        name: &'static str,
        term: Term,
        role: Role,
        rows: u64,
        columns: u64,
    ) -> UntypedTensor {
        UntypedTensor { name, term, role: Some(role), rows, columns }
    }

    fn vector(name: &'static str, columns: u64) -> UntypedTensor {
        UntypedTensor { name, term: Term::Vector, role: None, rows: 1, columns }
    }

    /// Adds what it takes to its term.
    pub(super) fn add_to(self, terms: &mut WeightTerms, layout: impl Fn(Role, u64) -> BlockLayout) {
        let layout = match self.role {
            Some(role) => layout(role, self.columns),
            None => ElementType::F32.layout(),
        };
        let bytes = Bytes(layout.matrix(self.rows, self.columns));
        let term = match self.term {
            Term::Embedding => &mut terms.embedding_bytes,
            Term::Output => &mut terms.output_bytes,
            Term::Attention => &mut terms.attention_bytes,
            Term::Mlp => &mut terms.mlp_bytes,
            Term::Vector => &mut terms.vector_bytes,
        };
        *term = term.saturating_add(bytes);
    }
}

/// What does not belong to a layer: the embedding, the output matrix and the last norm.
pub(super) fn ends(shape: &ModelShape) -> Vec<UntypedTensor> {
    let (hidden, vocab) = (shape.hidden, shape.vocab);
    // A shared matrix is stored as the output matrix would be.
    let role = if shape.tied_embeddings { Role::Output } else { Role::Embedding };
    let mut parts = vec![
        UntypedTensor::matrix("token_embd.weight", Term::Embedding, role, vocab, hidden),
        UntypedTensor::vector("output_norm.weight", hidden),
    ];
    if shape.biases == Biases::All {
        parts.push(UntypedTensor::vector("output_norm.bias", hidden));
    }
    if !shape.tied_embeddings {
        parts.push(UntypedTensor::matrix(
            "output.weight",
            Term::Output,
            Role::Output,
            vocab,
            hidden,
        ));
    }
    parts
}

/// One layer.
pub(super) fn layer(shape: &ModelShape) -> Vec<UntypedTensor> {
    let mut parts = attention(shape);
    parts.extend(mlp(shape));
    parts
}

fn attention(shape: &ModelShape) -> Vec<UntypedTensor> {
    let (hidden, query, kv) = (shape.hidden, shape.query_width(), shape.kv_width());
    let matrix = |name, role, rows, columns| {
        UntypedTensor::matrix(name, Term::Attention, role, rows, columns)
    };
    let biased = shape.biases != Biases::None;
    let mut parts = vec![UntypedTensor::vector("attn_norm.weight", hidden)];
    if shape.fused_qkv {
        let all = query.saturating_add(kv).saturating_add(kv);
        parts.push(matrix("attn_qkv.weight", Role::FusedQkv, all, hidden));
        parts.extend(biased.then(|| UntypedTensor::vector("attn_qkv.bias", all)));
    } else {
        for (weight, bias, role, rows) in [
            ("attn_q.weight", "attn_q.bias", Role::Query, query),
            ("attn_k.weight", "attn_k.bias", Role::Key, kv),
            ("attn_v.weight", "attn_v.bias", Role::Value, kv),
        ] {
            parts.push(matrix(weight, role, rows, hidden));
            parts.extend(biased.then(|| UntypedTensor::vector(bias, rows)));
        }
    }
    parts.push(matrix("attn_output.weight", Role::AttentionOutput, hidden, query));
    if shape.biases == Biases::All {
        parts.push(UntypedTensor::vector("attn_norm.bias", hidden));
        parts.push(UntypedTensor::vector("attn_output.bias", hidden));
    }
    parts
}

fn mlp(shape: &ModelShape) -> Vec<UntypedTensor> {
    let (hidden, inner, experts) = (shape.hidden, shape.intermediate, shape.experts);
    let several = experts > 1;
    let mut parts = vec![UntypedTensor::vector("ffn_norm.weight", hidden)];
    let mut matrix = |dense, of_experts, bias, role, rows: u64, columns: u64| {
        let name = if several { of_experts } else { dense };
        parts.push(UntypedTensor::matrix(
            name,
            Term::Mlp,
            role,
            rows.saturating_mul(experts),
            columns,
        ));
        if shape.biases == Biases::All {
            parts.push(UntypedTensor::vector(bias, rows.saturating_mul(experts)));
        }
    };
    let up = Role::GateOrUp;
    if shape.mlp == Mlp::Gated {
        matrix("ffn_gate.weight", "ffn_gate_exps.weight", "ffn_gate.bias", up, inner, hidden);
    }
    matrix("ffn_up.weight", "ffn_up_exps.weight", "ffn_up.bias", up, inner, hidden);
    matrix("ffn_down.weight", "ffn_down_exps.weight", "ffn_down.bias", Role::Down, hidden, inner);
    if shape.biases == Biases::All {
        parts.push(UntypedTensor::vector("ffn_norm.bias", hidden));
    }
    if several {
        let (term, role) = (Term::Mlp, None);
        let name = "ffn_gate_inp.weight";
        parts.push(UntypedTensor { name, term, role, rows: experts, columns: hidden });
    }
    parts
}

impl ModelShape {
    /// The tensors that a GGUF file of this shape and weight type holds.
    ///
    /// ```
    /// use plimsoll_models::{ElementType, ModelShape, WeightType};
    /// let shape = ModelShape::new(4096, 11008, 32, 32000, 32).with_weights(WeightType::Q4KM);
    /// let tensors = shape.tensors();
    /// assert_eq!(tensors.len(), 3 + 32 * 9);
    /// let down = tensors.iter().find(|tensor| tensor.name == "blk.0.ffn_down.weight");
    /// assert_eq!(down.map(|tensor| tensor.element), Some(ElementType::Q6K));
    /// ```
    #[must_use]
    pub fn tensors(&self) -> Vec<ShapeTensor> {
        let tensor = |part: &UntypedTensor, name: String, layer: u64| ShapeTensor {
            name,
            element: part.role.map_or(ElementType::F32, |role| {
                tensor_type(self.weights, role, self.place(layer), part.columns)
            }),
            columns: part.columns,
            rows: part.rows,
        };
        let mut tensors: Vec<_> =
            ends(self).iter().map(|part| tensor(part, part.name.to_string(), 0)).collect();
        let parts = layer(self);
        for layer in 0..self.layers {
            let named = parts.iter().map(|part| (part, format!("blk.{layer}.{}", part.name)));
            tensors.extend(named.map(|(part, name)| tensor(part, name, layer)));
        }
        tensors
    }

    /// What the rules of a mix look at.
    pub(super) fn place(&self, layer: u64) -> TensorPlace {
        let sharing = self.heads.checked_div(self.kv_heads).unwrap_or(1);
        TensorPlace { layer, layers: self.layers, sharing, experts: self.experts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::WeightType;

    #[test]
    fn the_list_and_the_terms_agree() {
        let base = ModelShape::new(2560, 10240, 4, 50304, 32).with_kv_heads(8);
        for shape in [
            base.clone().with_weights(WeightType::Q4KM),
            base.clone().with_biases(Biases::All).with_mlp(Mlp::Plain).with_fused_qkv(true),
            base.clone().with_biases(Biases::Attention).with_tied_embeddings(true),
            base.with_experts(8, 2).with_weights(WeightType::Q5KM).with_biases(Biases::All),
        ] {
            let sum: Bytes = shape
                .tensors()
                .iter()
                .map(|tensor| Bytes(tensor.element.layout().matrix(tensor.rows, tensor.columns)))
                .sum();
            assert_eq!(sum, shape.estimate().unwrap().model_bytes);
        }
    }
}
