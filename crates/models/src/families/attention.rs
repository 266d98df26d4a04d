//! Which attention Transformers runs for a family: PyTorch's own function, or single operators, which
//! store scores.

/// Families that PyTorch's function serves in every version of Transformers from 5.17 to 5.23 that has them,
/// by `_supports_sdpa` of their classes (`python/tests/test_torch_estimate.py`).
const FUSED: &str = include_str!("fused.txt");

/// Families that have a sink in each head's softmax, for which PyTorch's function has no place.
const SINKS: [&str; 8] = [
    "deepseek_v4",
    "flint",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "hy_v4",
    "inkling2_text",
    "mimo_v2_flash",
];

/// Other families that run single operators in every one of these versions.
const PLAIN: [&str; 4] = ["cpmant", "gpt_neox_japanese", "openai-gpt", "xglm"];

/// Families that PyTorch's function serves in 5.17 and not in 5.23.
const VARIES: [&str; 2] = ["gemma2", "vaultgemma"];

/// Who computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionKind {
    /// PyTorch's own function, which chooses.
    Sdpa,
    /// Single operators, which store scores.
    Operators(ScoreKind),
}

/// How single operators make scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScoreKind {
    /// As Transformers has it for families that have nothing of their own.
    Plain,
    /// The same with one more score for each query, and all in the model's type.
    Sinks,
    /// Of the family's own: in 32 bits.
    Wide,
    /// Added to a bias as they are made.
    AddedTo,
    /// With a bias in 32 bits after their scale.
    Biased,
}

impl ScoreKind {
    /// Whether a layer's program gives its weights back to the next.
    pub(crate) fn gives_weights(self) -> bool {
        !matches!(self, ScoreKind::Plain | ScoreKind::Sinks)
    }
}

/// Operators that may run in place of PyTorch's function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OtherAttention {
    pub(crate) scores: ScoreKind,
    /// Why, as words behind what a range rests on.
    pub(crate) reason: &'static str,
}

/// Of a family that has no operators of its own.
pub(crate) fn of(family: &str) -> (AttentionKind, Option<OtherAttention>) {
    let has = |list: &[&str]| list.contains(&family);
    let or_plain =
        |reason| (AttentionKind::Sdpa, Some(OtherAttention { scores: ScoreKind::Plain, reason }));
    if has(&SINKS) {
        (AttentionKind::Operators(ScoreKind::Sinks), None)
    } else if has(&PLAIN) {
        (AttentionKind::Operators(ScoreKind::Plain), None)
    } else if has(&VARIES) {
        or_plain(
            "the upper end has the scores that Transformers 5.23 stores for this family and 5.17 does not",
        )
    } else if FUSED.split_whitespace().any(|known| known == family) {
        (AttentionKind::Sdpa, None)
    } else {
        or_plain(
            "whether Transformers stores scores for this family is not known: the upper end has them",
        )
    }
}

/// The family that an architecture of a GGUF file is in Transformers.
pub(crate) fn of_gguf(architecture: &str) -> &str {
    match architecture {
        "command-r" => "cohere",
        "deepseek2" => "deepseek_v2",
        "gpt-oss" => "gpt_oss",
        "gptneox" => "gpt_neox",
        "phi2" => "phi",
        "qwen2moe" => "qwen2_moe",
        "qwen3moe" => "qwen3_moe",
        "starcoder" => "gpt_bigcode",
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_in_one_list_and_one_that_is_in_none_may_store_scores() {
        let fused: Vec<&str> = FUSED.split_whitespace().collect();
        assert!(fused.windows(2).all(|pair| pair[0] < pair[1]), "sorted, each once");
        for family in SINKS.iter().chain(&PLAIN).chain(&VARIES) {
            assert!(!fused.contains(family), "{family}");
        }
        for family in ["llama", "qwen3_moe", "gemma3_text", "deepseek_v3"] {
            assert_eq!(of(family), (AttentionKind::Sdpa, None));
        }
        assert_eq!(of("gpt_oss").0, AttentionKind::Operators(ScoreKind::Sinks));
        assert!(of("gemma2").1.is_some() && of("made_up_yesterday").1.is_some());
        assert_eq!(of(of_gguf("qwen3moe")), (AttentionKind::Sdpa, None));
    }
}
