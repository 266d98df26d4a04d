//! The tensors of a GGUF file: sums by type and by layer.

use std::collections::BTreeMap;

use crate::estimate::ElementType;

/// Layers with a higher number are not counted one by one.
const MOST_LAYERS: u64 = 65_536;

/// All tensors of a file, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GgufTensors {
    /// How many there are.
    pub count: u64,
    /// Bytes and elements by type.
    pub by_type: BTreeMap<&'static str, (u64, u64)>,
    /// Bytes by layer.
    pub by_layer: Vec<u64>,
    /// Bytes of the token embedding, which engines leave on the host.
    pub embedding_bytes: u64,
    /// Bytes of the output matrix; 0 where the embedding serves for it.
    pub output_bytes: u64,
    /// Rows of the token embedding.
    pub vocab: Option<u64>,
    /// The rows of `attn_qkv` where query, key and value are one matrix.
    pub fused_qkv: bool,
    /// Whether the MLP has a gate.
    pub gated: bool,
    /// Whether a layer has a norm before its MLP.
    pub mlp_norm: bool,
}

impl GgufTensors {
    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.by_type.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }

    /// Adds those of another part of the same model.
    pub fn add(&mut self, other: GgufTensors) {
        self.count += other.count;
        for (kind, (bytes, elements)) in other.by_type {
            let sum = self.by_type.entry(kind).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        }
        if self.by_layer.len() < other.by_layer.len() {
            self.by_layer.resize(other.by_layer.len(), 0);
        }
        for (sum, bytes) in self.by_layer.iter_mut().zip(other.by_layer) {
            *sum = sum.saturating_add(bytes);
        }
        self.embedding_bytes = self.embedding_bytes.saturating_add(other.embedding_bytes);
        self.output_bytes = self.output_bytes.saturating_add(other.output_bytes);
        self.vocab = self.vocab.or(other.vocab);
        self.fused_qkv |= other.fused_qkv;
        self.gated |= other.gated;
        self.mlp_norm |= other.mlp_norm;
    }

    pub(super) fn count_in(
        &mut self,
        name: &str,
        kind: ElementType,
        elements: u64,
        bytes: u64,
        rows: u64,
    ) {
        self.count += 1;
        let sum = self.by_type.entry(kind.name()).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        match name {
            "token_embd.weight" => {
                self.embedding_bytes = bytes;
                self.vocab = Some(rows);
            }
            "output.weight" => self.output_bytes = bytes,
            _ => {}
        }
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        else {
            return;
        };
        self.fused_qkv |= part.starts_with("attn_qkv.");
        self.gated |= part.starts_with("ffn_gate.") || part.starts_with("ffn_gate_exps.");
        self.mlp_norm |= part.starts_with("ffn_norm.");
        let layer = layer.parse::<usize>().ok().filter(|&n| (n as u64) < MOST_LAYERS);
        if let Some(layer) = layer {
            if self.by_layer.len() <= layer {
                self.by_layer.resize(layer + 1, 0);
            }
            self.by_layer[layer] = self.by_layer[layer].saturating_add(bytes);
        }
    }
}
