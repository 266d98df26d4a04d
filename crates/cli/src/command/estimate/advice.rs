//! What would make a model fit: commands to run, each of which was computed to fit.
//!
//! Single changes come first, in the order of what they cost: flash attention costs
//! nothing, a smaller cache little, fewer bits a weight some quality, a shorter context
//! what the model is for. Where none of them is enough alone they are combined. Advice
//! that was not checked would be a guess, so every candidate goes through the estimate.

use plimsoll::{Bytes, CacheTypes, ElementType, WeightType};
use serde::Serialize;

use super::llm::{Args, BiasesWord};

/// Weight types to step down through, the largest first.
const LADDER: [WeightType; 7] = [
    WeightType::F16,
    WeightType::Q8_0,
    WeightType::Q6K,
    WeightType::Q5KM,
    WeightType::Q4KM,
    WeightType::Q3KM,
    WeightType::Q2K,
];

/// This many types are advised: the largest is the tightest, and the next ones leave room.
pub(super) const TYPES: usize = 3;

/// Contexts are cut in these steps, as engines round them up to it.
const CONTEXT_STEP: u64 = 256;

/// A change that makes it fit.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) change: String,
    pub(super) total_bytes: u64,
    pub(super) command: String,
}

/// Changes with which it fits into `limit`; empty where none was found.
pub(super) fn what_fits(args: &Args, limit: Bytes) -> Vec<Advice> {
    let smaller_cache = [ElementType::Q8_0, ElementType::Q4_0]
        .into_iter()
        .filter_map(|kind| with_cache(args, kind))
        .find(|candidate| fits(candidate, limit));
    let types = fewer_bits(args, limit).take(TYPES);
    let alone = with_flash(args).into_iter().chain(smaller_cache).chain(types);
    let found = checked(args, alone.chain(shorter(args, limit)), limit);
    if !found.is_empty() {
        return found;
    }
    let lean = with_cache(args, ElementType::Q8_0).or_else(|| with_flash(args));
    let lean = lean.unwrap_or_else(|| args.clone());
    let at = |kind| with_weights(&lean, kind).and_then(|args| shorter(&args, limit));
    let shorter = [shorter(&lean, limit), at(WeightType::Q4KM), at(WeightType::Q2K)];
    let together = fewer_bits(&lean, limit).next().into_iter().chain(shorter.into_iter().flatten());
    let mut found = checked(args, together, limit);
    found.truncate(2);
    found
}

fn checked(args: &Args, candidates: impl Iterator<Item = Args>, limit: Bytes) -> Vec<Advice> {
    let advice = |candidate: Args| {
        let total = total(&candidate).filter(|_| fits(&candidate, limit))?;
        Some(Advice {
            change: change(args, &candidate),
            total_bytes: total.get(),
            command: command(&candidate, limit),
        })
    };
    candidates.filter_map(advice).collect()
}

fn total(args: &Args) -> Option<Bytes> {
    args.estimate().ok().map(|estimate| estimate.total_bytes)
}

fn fits(args: &Args, limit: Bytes) -> bool {
    args.estimate().is_ok_and(|estimate| estimate.fits(limit))
}

fn with_flash(args: &Args) -> Option<Args> {
    (!args.flash_attn).then(|| Args { flash_attn: true, ..args.clone() })
}

/// A smaller cache, with flash attention, without which engines refuse quantised values.
fn with_cache(args: &Args, kind: ElementType) -> Option<Args> {
    let kinds = CacheTypes::from(kind);
    let bytes = |kinds: CacheTypes| kinds.bytes_for(CONTEXT_STEP);
    (bytes(kinds) < bytes(args.cache_type())).then(|| Args {
        kv_dtype: Some(kinds),
        flash_attn: true,
        ..args.clone()
    })
}

fn with_weights(args: &Args, dtype: WeightType) -> Option<Args> {
    let smaller = Args { dtype, ..args.clone() };
    (total(&smaller)? < total(args)?).then_some(smaller)
}

/// The weight types below the present one with which it fits, the largest first.
fn fewer_bits(args: &Args, limit: Bytes) -> impl Iterator<Item = Args> {
    LADDER
        .into_iter()
        .filter_map(|kind| with_weights(args, kind))
        .filter(move |candidate| fits(candidate, limit))
}

/// The longest context below the present one with which it fits.
fn shorter(args: &Args, limit: Bytes) -> Option<Args> {
    let at = |steps: u64| Args { context: steps * CONTEXT_STEP, ..args.clone() };
    let fits = |steps| fits(&at(steps), limit);
    let (mut low, mut high) = (0, args.context.div_ceil(CONTEXT_STEP));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    (low > 0).then(|| at(low))
}

/// What was changed, in words.
fn change(from: &Args, to: &Args) -> String {
    let mut parts = Vec::new();
    if from.dtype != to.dtype {
        parts.push(format!("{} weights", to.dtype));
    }
    if from.cache_type() != to.cache_type() {
        parts.push(format!("a {} cache", to.cache_type()));
    }
    if from.context != to.context {
        parts.push(format!("{} tokens of context", to.context));
    }
    if from.flash_attn != to.flash_attn {
        parts.push("flash attention".to_string());
    }
    parts.join(", ")
}

/// A size without loss, in the largest unit that divides it.
pub(super) fn exact(size: Bytes) -> String {
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, shift)| size.get().is_multiple_of(1 << shift))
        .map_or_else(
            || size.get().to_string(),
            |(unit, shift)| format!("{}{unit}", size.get() >> shift),
        )
}

/// The command line that says the same, defaults left out.
fn command(args: &Args, limit: Bytes) -> String {
    let mut line = "plimsoll estimate llm".to_string();
    let mut say = |flag: &str, value: String| line += &format!(" --{flag} {value}");
    say("hidden", args.hidden.to_string());
    say("intermediate", args.intermediate.to_string());
    say("layers", args.layers.to_string());
    say("vocab", args.vocab.to_string());
    say("heads", args.heads.to_string());
    say("kv-heads", args.kv_heads.to_string());
    if let Some(width) = args.head_dim {
        say("head-dim", width.to_string());
    }
    say("context", args.context.to_string());
    say("dtype", args.dtype.to_string());
    if let Some(kind) = args.kv_dtype {
        say("kv-dtype", kind.to_string());
    }
    if args.mlp != plimsoll::Mlp::Gated {
        say("mlp", args.mlp.to_string());
    }
    if args.ubatch != 512 {
        say("ubatch", args.ubatch.to_string());
    }
    if args.experts.all > 1 {
        say("experts", format!("{}:{}", args.experts.all, args.experts.used));
    }
    say("limit", exact(limit));
    let biases = match args.biases {
        BiasesWord::None => "",
        BiasesWord::Attention => " --biases=attention",
        BiasesWord::All => " --biases",
    };
    let flags = [
        (args.flash_attn, " --flash-attn"),
        (args.tied_embeddings, " --tied-embeddings"),
        (args.parallel_residual, " --parallel-residual"),
        (args.fused_qkv, " --fused-qkv"),
    ];
    let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    line + biases + &flags
}
