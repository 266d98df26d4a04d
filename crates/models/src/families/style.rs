//! How Transformers runs a family's layers, as far as memory goes.
//!
//! `config.json` says widths, windows and activation functions. What only the family's code says
//! is here, by `model_type`: which norm, where norms stand, what is one matrix, which attention.
//! A family that is not here runs like Llama, and its estimate says that it was not checked.

use super::attention::{self, AttentionKind, OtherAttention, ScoreKind};
use crate::ModelShape;

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// One operator.
    Layer,
    /// One operator, in 32 bits.
    Plain32,
    /// A root mean square in 32 bits, scaled in the layer's own type.
    Rms,
    /// The same, scaled in 32 bits too.
    RmsInside,
    /// The same, and a name holds what is scaled until it is done.
    RmsHeld,
    /// The same of what is left when the mean is taken off.
    Centered,
}

/// Where norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormPlaces {
    /// Before attention and MLP.
    Before,
    /// Behind them.
    After,
    /// Both.
    Both,
    /// Behind the sums with what came in.
    Behind,
}

/// How the activation function is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// One operator.
    Native,
    /// One operator whose result says enough for its gradient.
    Relu,
    /// A formula in Python.
    Formula,
    /// A formula in Python with a gradient of its own, from the input alone.
    OwnGradient,
}

/// How positions are put into queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotaryKind {
    /// Not by turning them.
    None,
    /// All of a head, or as many numbers as the configuration says.
    Turned,
    /// The same, in layers with a window.
    InWindows,
    /// The same, but in every fourth layer.
    ButEveryFourth,
}

/// Which learned positions are added to the embedding in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PositionKind {
    /// The same for all sequences.
    Shared,
    /// Those of each sequence, as its padding has it.
    OfEachSequence,
}

/// Which of a layer's results the names of its program hold, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// One name for all: a result is let go when the next has it.
    Reused,
    /// Attention's result stays until the layer ends, its norm until the sum is made.
    UntilSum,
    /// The same, and the norm stays until the next one is made.
    UntilNorm,
    /// All stay until the layer ends.
    UntilEnd,
}

/// Keys and values out of one compressed vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LatentStyle {
    pub(crate) rank: u64,
    /// 0 where queries are not compressed.
    pub(crate) query_rank: u64,
    /// Numbers of a head that are not turned, those that are, and those of its values.
    pub(crate) plain: u64,
    pub(crate) turned: u64,
    pub(crate) value: u64,
}

/// How Transformers runs a decoder's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecoderStyle {
    pub(crate) norm: NormKind,
    pub(crate) places: NormPlaces,
    /// Whether queries and keys have norms of their own.
    pub(crate) query_norms: bool,
    /// Whether those come after all three products, not each after its own.
    pub(crate) late_norms: bool,
    /// Whether queries and keys are turned in 32 bits.
    pub(crate) wide_turns: bool,
    /// Whether cosines and sines stay in 32 bits.
    pub(crate) wide_angles: bool,
    /// Whether layers with a window have other cosines and sines than those without.
    pub(crate) angles_by_window: bool,
    /// Whether they are turned in attention itself, whose names hold every part until it returns.
    pub(crate) inline_turns: bool,
    /// Whether they are put together anew even where all of a head is turned.
    pub(crate) joins_turns: bool,
    /// Whether queries are scaled before attention.
    pub(crate) scales_query: bool,
    /// Whether what is added to the stream is scaled first, the embedding, and the logits.
    pub(crate) scales_residual: bool,
    pub(crate) scales_logits: bool,
    pub(crate) scales_embedding: bool,
    /// Positions that have an embedding of their own.
    pub(crate) positions: Option<PositionKind>,
    /// Whether the MLP is a part of the layer's program, so that the first product's result takes the
    /// name of its input.
    pub(crate) inline_mlp: bool,
    pub(crate) names: NameKind,
    /// Whether logits are bent to a cap.
    pub(crate) caps_logits: bool,
    /// The width of the embedding where it is not the layers'; 0 where it is.
    pub(crate) embedded_width: u64,
    /// Whether the MLP beside attention has a norm of its own.
    pub(crate) parallel_norm: bool,
    /// Whether attention and MLP read the same input.
    pub(crate) parallel: bool,
    pub(crate) fused_qkv: bool,
    pub(crate) fused_gate: bool,
    pub(crate) activation: Activation,
    pub(crate) rotary: RotaryKind,
    /// Numbers of a head that are turned; 0 for all.
    pub(crate) turned: u64,
    /// Whether training drops numbers out of the stream.
    pub(crate) dropout: bool,
    /// Whether it does so before the first layer too.
    pub(crate) drops_embedding: bool,
    /// Whether attention does so itself, while its names still hold queries, keys and values.
    pub(crate) drops_in_attention: bool,
    pub(crate) attention: AttentionKind,
    /// What may run in its place.
    pub(crate) other_attention: Option<OtherAttention>,
    /// Whether scores are bent to a cap, where they are stored.
    pub(crate) caps_scores: bool,
    /// Whether one head of keys is handed to attention for all heads of queries.
    pub(crate) broadcasts_keys: bool,
    /// Whether generating keeps keys and values of the tokens before.
    pub(crate) keeps_cache: bool,
    pub(crate) latent: Option<LatentStyle>,
    /// Whether experts' results are weighed in 32 bits.
    pub(crate) wide_routing: bool,
    /// The width of an MLP beside the experts, and whether it comes first and has a gate.
    pub(crate) shared_width: u64,
    pub(crate) shared_first: bool,
    /// Layers before the first with experts, and the width of their MLP.
    pub(crate) dense_layers: u64,
    pub(crate) dense_width: u64,
    /// Channels of a recurrent layer, and numbers of state in each.
    pub(crate) state_channels: u64,
    pub(crate) state_width: u64,
    /// Whether some of its layers are recurrent, and whether these are followed: those of Mamba are. Others
    /// make quite different tensors (Mamba-2), or were never compared.
    pub(crate) has_states: bool,
    pub(crate) follows_states: bool,
}

/// As Llama runs.
pub(crate) const LLAMA: DecoderStyle = DecoderStyle {
    norm: NormKind::Rms,
    places: NormPlaces::Before,
    query_norms: false,
    late_norms: false,
    wide_turns: false,
    wide_angles: false,
    angles_by_window: false,
    inline_turns: false,
    joins_turns: false,
    scales_query: false,
    scales_residual: false,
    scales_logits: false,
    scales_embedding: false,
    positions: None,
    inline_mlp: false,
    names: NameKind::Reused,
    caps_logits: false,
    embedded_width: 0,
    parallel_norm: false,
    parallel: false,
    fused_qkv: false,
    fused_gate: false,
    activation: Activation::Native,
    rotary: RotaryKind::Turned,
    turned: 0,
    dropout: false,
    drops_embedding: false,
    drops_in_attention: false,
    attention: AttentionKind::Sdpa,
    other_attention: None,
    caps_scores: false,
    broadcasts_keys: false,
    keeps_cache: true,
    latent: None,
    wide_routing: false,
    shared_width: 0,
    shared_first: false,
    dense_layers: 0,
    dense_width: 0,
    state_channels: 0,
    state_width: 0,
    has_states: false,
    follows_states: false,
};

/// As GPT-2 runs.
const GPT: DecoderStyle = DecoderStyle { norm: NormKind::Layer, rotary: RotaryKind::None, ..LLAMA };

impl DecoderStyle {
    /// Of a family; one that is not known runs as Llama does.
    pub(crate) fn of(family: &str) -> DecoderStyle {
        let mut style =
            DecoderStyle::like_gpt(family).unwrap_or_else(|| DecoderStyle::like_llama(family));
        style.follows_states = matches!(family, "mamba" | "falcon_mamba");
        match style.attention {
            AttentionKind::Operators(_) => style,
            AttentionKind::Sdpa => {
                let (attention, other_attention) = attention::of(family);
                DecoderStyle { attention, other_attention, ..style }
            }
        }
    }

    /// Of a GGUF file: Llama's, but for the attention of the family that its architecture names.
    pub(crate) fn of_gguf(architecture: &str) -> DecoderStyle {
        let family = DecoderStyle::of(attention::of_gguf(architecture));
        DecoderStyle {
            attention: family.attention,
            other_attention: family.other_attention,
            caps_scores: family.caps_scores,
            ..LLAMA
        }
    }

    /// Of the families that differ from GPT-2.
    fn like_gpt(family: &str) -> Option<DecoderStyle> {
        Some(match family {
            "gpt2" | "gpt_bigcode" => DecoderStyle {
                fused_qkv: true,
                dropout: true,
                drops_embedding: true,
                drops_in_attention: true,
                positions: Some(PositionKind::Shared),
                names: NameKind::UntilSum,
                ..GPT
            },
            "opt" => DecoderStyle {
                dropout: true,
                positions: Some(PositionKind::OfEachSequence),
                scales_query: true,
                inline_mlp: true,
                ..GPT
            },
            "gpt_neox" => DecoderStyle {
                parallel_norm: true,
                parallel: true,
                fused_qkv: true,
                rotary: RotaryKind::Turned,
                ..GPT
            },
            "phi" => DecoderStyle {
                parallel: true,
                rotary: RotaryKind::Turned,
                inline_turns: true,
                ..GPT
            },
            "falcon" => DecoderStyle {
                parallel: true,
                fused_qkv: true,
                rotary: RotaryKind::Turned,
                broadcasts_keys: true,
                ..GPT
            },
            "starcoder2" => DecoderStyle { rotary: RotaryKind::Turned, ..GPT },
            "stablelm" => DecoderStyle {
                rotary: RotaryKind::Turned,
                inline_turns: true,
                names: NameKind::UntilEnd,
                ..GPT
            },
            _ => return DecoderStyle::by_operators(family),
        })
    }

    /// Of those that have attention of their own, operator by operator.
    fn by_operators(family: &str) -> Option<DecoderStyle> {
        Some(match family {
            "gpt_neo" => DecoderStyle {
                attention: AttentionKind::Operators(ScoreKind::Wide),
                positions: Some(PositionKind::Shared),
                names: NameKind::UntilSum,
                ..GPT
            },
            "bloom" => DecoderStyle {
                fused_qkv: true,
                attention: AttentionKind::Operators(ScoreKind::AddedTo),
                names: NameKind::UntilNorm,
                ..GPT
            },
            "mpt" => DecoderStyle {
                fused_qkv: true,
                attention: AttentionKind::Operators(ScoreKind::Biased),
                names: NameKind::UntilNorm,
                keeps_cache: false,
                ..GPT
            },
            "gptj" | "codegen" => DecoderStyle {
                parallel: true,
                rotary: RotaryKind::Turned,
                inline_turns: true,
                attention: AttentionKind::Operators(ScoreKind::Wide),
                ..GPT
            },
            _ => return None,
        })
    }

    /// Of the families that differ from Llama.
    fn like_llama(family: &str) -> DecoderStyle {
        match family {
            "cohere" | "cohere2" => DecoderStyle {
                norm: NormKind::Centered,
                wide_turns: true,
                parallel: true,
                scales_logits: true,
                rotary: match family {
                    "cohere2" => RotaryKind::InWindows,
                    _ => RotaryKind::Turned,
                },
                ..LLAMA
            },
            "smollm3" => DecoderStyle { rotary: RotaryKind::ButEveryFourth, ..LLAMA },
            "olmo" => DecoderStyle { norm: NormKind::Plain32, wide_angles: true, ..LLAMA },
            "olmo2" | "olmo3" => DecoderStyle {
                norm: NormKind::RmsHeld,
                places: NormPlaces::After,
                query_norms: true,
                wide_angles: true,
                ..LLAMA
            },
            "qwen2_moe" => DecoderStyle { shared_first: true, ..LLAMA },
            "olmoe" | "qwen3" | "qwen3_moe" => DecoderStyle { query_norms: true, ..LLAMA },
            "gemma" => DecoderStyle { norm: NormKind::RmsInside, scales_embedding: true, ..LLAMA },
            "gemma2" => DecoderStyle {
                norm: NormKind::RmsInside,
                places: NormPlaces::Both,
                scales_embedding: true,
                caps_scores: true,
                ..LLAMA
            },
            "gemma3" | "gemma3_text" => DecoderStyle {
                norm: NormKind::RmsInside,
                places: NormPlaces::Both,
                query_norms: true,
                late_norms: true,
                angles_by_window: true,
                scales_embedding: true,
                ..LLAMA
            },
            "phi3" => {
                DecoderStyle { fused_qkv: true, fused_gate: true, joins_turns: true, ..LLAMA }
            }
            "granite" | "granitemoe" => DecoderStyle {
                scales_residual: true,
                scales_embedding: true,
                scales_logits: true,
                ..LLAMA
            },
            "glm" | "glm4" => DecoderStyle { fused_gate: true, ..LLAMA },
            "deepseek_v2" | "deepseek_v3" => DecoderStyle { wide_routing: true, ..LLAMA },
            _ => LLAMA,
        }
    }

    /// Numbers of a head that are turned.
    pub(crate) fn rotated(&self, head: u64) -> u64 {
        if self.turned == 0 { head } else { self.turned.min(head) }
    }

    /// Whether a layer has experts.
    pub(crate) fn has_experts(&self, shape: &ModelShape, layer: usize) -> bool {
        shape.experts > 1 && layer as u64 >= self.dense_layers
    }

    /// The width of a layer's MLP where it has no experts.
    pub(crate) fn dense_width(&self, shape: &ModelShape, layer: usize) -> u64 {
        if (layer as u64) < self.dense_layers { self.dense_width } else { shape.intermediate }
    }
}
