//! Families of language models in Hugging Face's format, by the `model_type` of `config.json`.
//!
//! What the file says (widths, heads, windows, experts) is read in `safetensors::config`. Here is
//! what it does not say.

use super::style::Activation;
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

/// Families whose output matrix is the embedding unless their configuration says otherwise.
const TIED: [&str; 12] = [
    "bloom",
    "cohere",
    "cohere2",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "mpt",
    "opt",
    "starcoder2",
];

/// Activation functions that Transformers computes by a formula in Python.
const FORMULAS: [&str; 4] = ["gelu_new", "gelu_fast", "gelu_accurate", "gelu_python"];

/// How the activation function of a name is computed; by the family where none is named.
pub(crate) fn activation(name: Option<&str>, model_type: &str) -> Activation {
    let formula = match name {
        Some(name) => FORMULAS.contains(&name),
        None => matches!(model_type, "gpt2" | "gpt_neo" | "gptj" | "codegen" | "phi"),
    };
    match name {
        // Bloom has a formula of its own, whatever is named.
        _ if model_type == "bloom" => Activation::OwnGradient,
        _ if formula => Activation::Formula,
        Some("relu") => Activation::Relu,
        None if model_type == "opt" => Activation::Relu,
        _ => Activation::Native,
    }
}

/// One layer of this many sees all tokens where the configuration has no list; the others see the
/// window.
pub(crate) fn window_period(model_type: &str) -> Option<u64> {
    match model_type {
        "gemma2" | "gpt_oss" => Some(2),
        "gemma3" | "gemma3_text" => Some(6),
        "cohere2" => Some(4),
        _ => None,
    }
}

/// Of a head, what is turned by position where the configuration does not say.
pub(crate) fn turned_share(model_type: &str) -> f64 {
    match model_type {
        "gpt_neox" | "stablelm" => 0.25,
        "phi" | "glm" | "glm4" => 0.5,
        _ => 1.0,
    }
}

/// Whether every layer keeps a state and none a cache.
pub(crate) fn is_recurrent(model_type: &str) -> bool {
    matches!(model_type, "mamba" | "mamba2" | "falcon_mamba")
}

/// Whether some layers are recurrent, of a family whose configuration does not have their states.
pub(crate) fn has_states(model_type: &str) -> bool {
    is_recurrent(model_type) || matches!(model_type, "recurrent_gemma" | "rwkv" | "xlstm")
}

/// Whether the output matrix is the embedding where the configuration does not say.
pub(crate) fn is_tied(model_type: &str) -> bool {
    TIED.contains(&model_type)
}

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
