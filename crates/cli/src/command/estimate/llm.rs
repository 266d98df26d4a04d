//! `plimsoll estimate llm`: a language model, from the numbers of its `config.json`.
//!
//! The library does the arithmetic ([`ModelShape`]); here flags become a shape, and a
//! shape that cannot be is an error that names the flag.

use plimsoll::{
    Biases, Bytes, CacheTypes, Error, InferenceMemoryEstimate, Mlp, ModelShape, WeightType,
};
use serde::Serialize;

use super::advice::{self, Advice};
use super::answer::{FitVerdict, OfRange};
use crate::limit::LimitArgs;
use crate::model_flags::tokens;
use crate::outcome::{BadInput, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \\
      --heads 32 --kv-heads 8 --context 4096
  plimsoll estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 128256 \\
      --heads 32 --kv-heads 8 --context 8192 --dtype q4_k_m --limit 8GiB

The first is Mistral 7B: 13.49 + 0.50 + 0.29 = 14.28 GiB; with --dtype f32, which then
counts for the cache too, 26.98 + 1.00 + 0.29 = 28.27 GiB. Exits 1 when it does not fit.";

/// Estimate a language model from its shape
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Width of the residual stream (hidden_size)
    #[arg(long, value_name = "N")]
    pub(super) hidden: u64,
    /// Width inside the MLP, of one expert where there are several (intermediate_size)
    #[arg(long, value_name = "N")]
    pub(super) intermediate: u64,
    /// Layers (num_hidden_layers)
    #[arg(long, value_name = "N")]
    pub(super) layers: u64,
    /// Tokens in the vocabulary (vocab_size)
    #[arg(long, value_name = "N")]
    pub(super) vocab: u64,
    /// Query heads (num_attention_heads)
    #[arg(long, value_name = "N")]
    pub(super) heads: u64,
    /// Heads of keys and values (num_key_value_heads)
    #[arg(long, value_name = "N")]
    pub(super) kv_heads: u64,
    /// Width of a head; hidden / heads unless said
    #[arg(long, value_name = "N")]
    pub(super) head_dim: Option<u64>,
    /// Tokens of context, over all sequences
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub(super) context: u64,
    /// How weights are stored: f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0, …
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(super) dtype: WeightType,
    /// How the cache is stored, or keys and values (q8_0,q4_0); without it as --dtype where that
    /// is f32, f16 or bf16, else f16
    #[arg(long, value_name = "TYPE")]
    pub(super) kv_dtype: Option<CacheTypes>,
    /// The feed-forward part: gated (three matrices) or plain (two)
    #[arg(long, value_name = "KIND", default_value = "gated")]
    pub(super) mlp: Mlp,
    /// Which matrices have biases; bare --biases means all
    #[arg(
        long, value_name = "WHICH", num_args = 0..=1, require_equals = true,
        default_value = "none", default_missing_value = "all"
    )]
    pub(super) biases: BiasesWord,
    /// Tokens processed at once
    #[arg(long, visible_alias = "micro-batch", value_name = "N", default_value = "512")]
    pub(super) ubatch: u64,
    /// Attention runs without storing its scores
    #[arg(long)]
    pub(super) flash_attn: bool,
    /// The output matrix is the token embedding, stored once
    #[arg(long)]
    pub(super) tied_embeddings: bool,
    /// Attention and MLP both read the layer's input (Pythia)
    #[arg(long)]
    pub(super) parallel_residual: bool,
    /// Query, key and value are one matrix (Pythia, Falcon)
    #[arg(long)]
    pub(super) fused_qkv: bool,
    /// Experts in a layer, and how many each token uses (8:2); 8 alone means all of them
    #[arg(long, value_name = "N:USED", value_parser = experts, default_value = "1:1")]
    pub(super) experts: Experts,
    #[command(flatten)]
    pub(super) limit: LimitArgs,
}

/// Which matrices have biases, as a flag says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BiasesWord {
    /// No matrix
    None,
    /// Query, key and value (Qwen 2)
    Attention,
    /// Every matrix and norm (GPT-2, Pythia, Phi)
    All,
}

/// Experts in a layer, and how many of them each token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Experts {
    pub(super) all: u64,
    pub(super) used: u64,
}

fn experts(text: &str) -> Result<Experts, String> {
    let (all, used) = text.split_once(':').unwrap_or((text, text));
    match (all.parse(), used.parse()) {
        (Ok(all), Ok(used)) => Ok(Experts { all, used }),
        _ => Err("it must be a number, or two as in 8:2".to_string()),
    }
}

impl Args {
    /// How the cache is stored: as said, or as follows from the weights.
    pub(super) fn cache_type(&self) -> CacheTypes {
        self.kv_dtype.unwrap_or_else(|| CacheTypes::beside(self.dtype))
    }

    fn shape(&self) -> ModelShape {
        let shape =
            ModelShape::new(self.hidden, self.intermediate, self.layers, self.vocab, self.heads)
                .with_kv_heads(self.kv_heads)
                .with_context(self.context)
                .with_micro_batch(self.ubatch)
                .with_flash_attention(self.flash_attn)
                .with_weights(self.dtype)
                .with_cache_types(self.cache_type().keys, self.cache_type().values)
                .with_mlp(self.mlp)
                .with_biases(match self.biases {
                    BiasesWord::None => Biases::None,
                    BiasesWord::Attention => Biases::Attention,
                    BiasesWord::All => Biases::All,
                })
                .with_tied_embeddings(self.tied_embeddings)
                .with_parallel_residual(self.parallel_residual)
                .with_fused_qkv(self.fused_qkv)
                .with_experts(self.experts.all, self.experts.used);
        match self.head_dim {
            Some(width) => shape.with_head_dim(width),
            None => shape,
        }
    }

    /// What it takes.
    pub(super) fn estimate(&self) -> plimsoll::Result<InferenceMemoryEstimate> {
        self.shape().estimate()
    }
}

#[derive(Debug, Serialize)]
pub(super) struct LlmEstimate {
    pub(super) weights_bytes: u64,
    pub(super) kv_cache_bytes: u64,
    pub(super) activation_bytes: u64,
    /// 0, as no engine or device is named here.
    /// Null: no engine is named here.
    pub(super) overhead_bytes: Option<u64>,
    pub(super) total_bytes: u64,
    pub(super) range: OfRange,
    pub(super) checked: bool,
    pub(super) basis: String,
    pub(super) limit_bytes: Option<u64>,
    /// Null without a limit, as is the verdict.
    pub(super) fits: Option<bool>,
    pub(super) verdict: Option<FitVerdict>,
    pub(super) how: &'static str,
    pub(super) dtype: String,
    pub(super) kv_dtype: String,
    pub(super) context: u64,
    pub(super) details: Details,
    /// What would make it fit; empty where it does.
    pub(super) advice: Vec<Advice>,
}

#[derive(Debug, Serialize)]
pub(super) struct Details {
    /// The weights, by what they are for.
    weights: LlmWeights,
    /// The moments that compete for the activations; the largest is what is reserved.
    activations: Activations,
    /// The buffer on the host beside the device; not in the total.
    pub(super) host_compute_bytes: u64,
}

#[derive(Debug, Serialize)]
struct LlmWeights {
    embedding_bytes: u64,
    output_bytes: u64,
    attention_bytes: u64,
    mlp_bytes: u64,
    vector_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Activations {
    attention_bytes: u64,
    mlp_bytes: u64,
    logits_bytes: u64,
}

impl From<&InferenceMemoryEstimate> for Details {
    fn from(estimate: &InferenceMemoryEstimate) -> Details {
        let (weights, compute) = (&estimate.weights, &estimate.compute);
        Details {
            weights: LlmWeights {
                embedding_bytes: weights.embedding_bytes.get(),
                output_bytes: weights.output_bytes.get(),
                attention_bytes: weights.attention_bytes.get(),
                mlp_bytes: weights.mlp_bytes.get(),
                vector_bytes: weights.vector_bytes.get(),
            },
            activations: Activations {
                attention_bytes: compute.attention_bytes.get(),
                mlp_bytes: compute.mlp_bytes.get(),
                logits_bytes: compute.logits_bytes.get(),
            },
            host_compute_bytes: estimate.host_compute_bytes.get(),
        }
    }
}

/// Estimates the model.
pub(super) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let estimate = args.estimate().map_err(by_flag)?;
    let limit = args.limit.limit();
    let ends = (estimate.total_bytes, Bytes(estimate.range().high_bytes));
    let verdict = limit.map(|limit| FitVerdict::of(ends, limit, Bytes::ZERO, None));
    let no = verdict.is_some_and(|verdict| !verdict.fits());
    let advice = match limit.filter(|_| no) {
        Some(limit) => advice::what_fits(args, limit),
        None => Vec::new(),
    };
    out.answer(&answer(args, &estimate, (limit, verdict), advice))?;
    Ok(Outcome::from(!no))
}

fn answer(
    args: &Args,
    estimate: &InferenceMemoryEstimate,
    (limit, verdict): (Option<Bytes>, Option<FitVerdict>),
    advice: Vec<Advice>,
) -> LlmEstimate {
    let range = estimate.range();
    LlmEstimate {
        weights_bytes: estimate.model_bytes.get(),
        kv_cache_bytes: estimate.kv_cache_bytes.get(),
        activation_bytes: estimate.activation_bytes.get(),
        overhead_bytes: None,
        total_bytes: estimate.total_bytes.get(),
        range: OfRange::from(&range),
        checked: range.checked,
        basis: range.basis,
        limit_bytes: limit.map(Bytes::get),
        fits: verdict.map(FitVerdict::fits),
        verdict,
        how: "estimated",
        dtype: args.dtype.to_string(),
        kv_dtype: args.cache_type().to_string(),
        context: args.context,
        details: Details::from(estimate),
        advice,
    }
}

/// The library names fields; a user has flags.
fn by_flag(error: Error) -> anyhow::Error {
    match error {
        Error::Config { field, value, range } => {
            let flag = match field {
                "micro_batch" => "ubatch".to_string(),
                "experts_used" => "experts".to_string(),
                field => field.replace('_', "-"),
            };
            BadInput::new(format!("--{flag} is {value}; it must be {range}")).into()
        }
        other => other.into(),
    }
}
