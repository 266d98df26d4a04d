//! Families of language models in Hugging Face's format, by the `model_type` of `config.json`.
//!
//! What the file says (widths, heads, windows, experts) is read in `safetensors::config`. Here is
//! what it does not say.

use crate::estimate::{Biases, Mlp};

/// Families whose MLP has two matrices and whose every matrix and norm has a bias.
const PLAIN: [&str; 12] = [
    "gpt2",
    "gpt_neox",
    "gpt_neo",
    "gptj",
    "gpt_bigcode",
    "codegen",
    "phi",
    "opt",
    "bloom",
    "mpt",
    "falcon",
    "starcoder2",
];

/// Families with a bias beside query, key and value alone.
const ATTENTION_BIAS: [&str; 2] = ["qwen2", "qwen2_moe"];

/// Families of which models were measured in PyTorch on a GPU (docs/results).
pub(crate) const CHECKED: [&str; 16] = [
    "bloom", "falcon", "gemma", "gemma2", "gpt2", "gpt_neox", "granite", "llama", "mistral",
    "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "stablelm",
];

/// The MLP of a family; gated where it is not known otherwise.
pub(crate) fn mlp(model_type: &str) -> Mlp {
    if PLAIN.contains(&model_type) { Mlp::Plain } else { Mlp::Gated }
}

/// The biases of a family; none where it is not known otherwise.
pub(crate) fn biases(model_type: &str) -> Biases {
    match model_type {
        kind if ATTENTION_BIAS.contains(&kind) => Biases::Attention,
        kind if PLAIN.contains(&kind) => Biases::All,
        _ => Biases::None,
    }
}
