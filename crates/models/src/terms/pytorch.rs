//! A language model in PyTorch with Transformers: run, or trained.
//!
//! The whole prompt is processed at once, and the cache grows by copies. On a GPU it takes what
//! the allocator reserves for that, else what lives.

use super::eager::{EagerAdapters, EagerBase, EagerCache, EagerDecoder, EagerJob, EagerTraining};
use super::language::cache_type;
use super::{
    BaseDtype, EstimateRequest, Runner, Terms, TrainingPrecision, TrainingRequest, TrainingTerms,
};
use crate::families::attention::{AttentionKind, OtherAttention, ScoreKind};
use crate::families::style::DecoderStyle;
use crate::{ElementType, LayerCache, ModelShape};

/// What scores may take more: where attention may or may not store them, or may hold one more tensor of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredScores {
    /// Bytes of the total.
    pub bytes: u64,
    /// Why that is not known, as words behind what a range rests on.
    pub reason: &'static str,
}

impl StoredScores {
    /// Where it takes more.
    fn of(other: OtherAttention, more: u64) -> Option<StoredScores> {
        (more > 0).then_some(StoredScores { bytes: more, reason: other.reason })
    }
}

/// What running or training a shape takes. `sizes` are the bytes of its tensors, where known.
pub(super) fn run(
    found: &mut Terms,
    shape: &ModelShape,
    style: &DecoderStyle,
    sizes: &[u64],
    request: &EstimateRequest,
) -> Result<(), String> {
    let batch = shape.sequences.max(1);
    let of = |cache: &LayerCache| {
        let mut cache = EagerCache::new(cache, batch);
        if let Some(latent) = style.latent {
            // Transformers keeps what is compressed, and of keys what is turned by position.
            cache.widths = [latent.rank, latent.turned];
        }
        cache
    };
    let width = cache_type(found, Some(Runner::PyTorch)).bytes_for(1).get();
    let decoder = EagerDecoder {
        shape,
        style: *style,
        job: EagerJob {
            bf16: cache_type(found, Some(Runner::PyTorch)) == ElementType::Bf16,
            ..EagerJob::inference(width)
        },
        caches: shape.caches.iter().flatten().map(of).collect(),
        batch,
        tokens: shape.context,
        room: request.allocator_room,
    };
    if let Some(train) = &request.train {
        return trained(found, decoder, sizes, train);
    }
    if !style.follows_states && has_states(&decoder) {
        return Err(
            "recurrent layers of this family are not estimated from files alone (those of Mamba are); \
             --exact runs the model's own program"
                .to_string(),
        );
    }
    let caches = decoder.caches.iter().filter(|_| style.keeps_cache);
    let caches = caches.map(|cache| cache.bytes(batch, shape.context, width));
    found.cache_by_layer = caches.collect();
    found.kv_cache_bytes = found.cache_by_layer.iter().fold(0, |sum, &n| sum.saturating_add(n));
    let weights = stored(found, sizes);
    let held = decoder.memory(&weights);
    let on_gpu = request.on_gpu == Some(true);
    found.stored_scores = style.other_attention.and_then(|other| {
        let others = decoder.with(other).memory(&weights);
        let more = if on_gpu {
            others.reserved.saturating_sub(held.reserved)
        } else {
            others.live.saturating_sub(held.live)
        };
        StoredScores::of(other, more)
    });
    if style.attention == AttentionKind::Operators(ScoreKind::Sinks) {
        let scores = [shape.heads, shape.context, shape.context, width];
        found.stored_scores = Some(StoredScores {
            bytes: scores.into_iter().fold(batch, u64::saturating_mul),
            reason: "the upper end has one more tensor of scores, which the allocator may hold",
        });
    }
    found.activation_bytes = held.live;
    found.notes.push(format!("the whole prompt is processed at once{}", scores(&decoder)));
    if on_gpu {
        found.hold(held);
    }
    Ok(())
}

/// The bytes of each tensor as they are to be stored, which may not be as the file has them.
fn stored(found: &Terms, sizes: &[u64]) -> Vec<u64> {
    let whole = u128::from(sizes.iter().fold(0, |sum: u64, &n| sum.saturating_add(n)));
    let stored = |&size: &u64| {
        let share = u128::from(size) * u128::from(found.weights_bytes);
        u64::try_from(share.checked_div(whole).unwrap_or(0)).unwrap_or(u64::MAX)
    };
    match sizes {
        [] => vec![found.weights_bytes],
        sizes => sizes.iter().map(stored).collect(),
    }
}

/// Whether some layers are recurrent.
fn has_states(decoder: &EagerDecoder<'_>) -> bool {
    decoder.style.has_states || decoder.caches.iter().any(|cache| cache.state > 0)
}

/// Whether scores are stored, as words behind a note.
fn scores(decoder: &EagerDecoder<'_>) -> &'static str {
    let style = &decoder.style;
    let shape = decoder.shape;
    let shares = decoder.caches.iter().any(|cache| {
        cache.widths[0] > 0 && cache.widths[0] < shape.heads.saturating_mul(shape.head_width())
    });
    let wide = decoder.job.weight_width == 4 && !decoder.job.amp;
    let windows =
        decoder.caches.iter().any(|cache| cache.window.is_some_and(|w| w <= shape.context));
    match style.attention {
        AttentionKind::Operators(_) => ", and attention stores its scores",
        AttentionKind::Sdpa if shares && (wide || style.broadcasts_keys) => {
            ", and attention stores its scores: no fused kernel has keys that heads share in such a \
             case"
        }
        AttentionKind::Sdpa if windows => ", and attention gets a mask for its windows",
        AttentionKind::Sdpa => "",
    }
}

/// What training it takes.
fn trained(
    found: &mut Terms,
    mut decoder: EagerDecoder<'_>,
    sizes: &[u64],
    train: &TrainingRequest,
) -> Result<(), String> {
    if has_states(&decoder) {
        return Err(
            "training of recurrent layers is not estimated from files alone; --exact runs the model's \
             own program"
                .to_string(),
        );
    }
    decoder.job = job(train)?;
    let count: u64 = found.weights.iter().map(|part| part.elements).fold(0, u64::saturating_add);
    let whole = sizes.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
    let elements: Vec<u64> = match sizes {
        [] => vec![count],
        sizes => {
            let share = |&size: &u64| {
                let share = u128::from(size) * u128::from(count);
                u64::try_from(share.checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(u64::MAX)
            };
            sizes.iter().map(share).collect()
        }
    };
    let how = EagerTraining {
        optimizer: train.optimizer,
        accumulation: train.grad_accumulation.max(1),
        gpus: train.gpus.max(1),
        shard: train.shard,
    };
    let memory = decoder.training(&elements, &how);
    found.stored_scores = decoder.style.other_attention.and_then(|other| {
        let others = decoder.with(other).training(&elements, &how);
        StoredScores::of(other, others.held.reserved.saturating_sub(memory.held.reserved))
    });
    found.set_trained(memory.weights, decoder.job.weight_width);
    found.training = Some(TrainingTerms {
        gradient_bytes: memory.gradients,
        optimizer_bytes: memory.states,
        adapter_bytes: memory.adapters,
    });
    let known = [memory.weights, memory.gradients, memory.states];
    let known = known.into_iter().fold(0, u64::saturating_add);
    let held = memory.held;
    found.activation_bytes = held.reserved.saturating_sub(known);
    found.workspace_bytes = held.reserved.saturating_sub(held.allocated);
    found.largest_single_bytes = held.largest_segment;
    found.held = Some(held);
    found.notes.push(format!("three steps, without a cache of keys{}", scores(&decoder)));
    if let Some(rank) = train.lora {
        found.notes.push(format!(
            "adapters of rank {rank} in 32 bits on every linear layer but the output matrix, as PEFT \
             has them"
        ));
    }
    if train.gpus > 1 {
        found.notes.push(
            "each GPU holds this without the buffers of NCCL, for which the upper end of the range has 1 GiB"
                .to_string(),
        );
    }
    Ok(())
}

fn job(train: &TrainingRequest) -> Result<EagerJob, String> {
    let adapters = match (train.lora, train.base_dtype) {
        (None, None) => None,
        (None, Some(_)) => {
            return Err(
                "--base-dtype is the type of weights under adapters; give --lora RANK, too"
                    .to_string(),
            );
        }
        (Some(rank), base) => Some(EagerAdapters {
            rank,
            base: match base {
                None | Some(BaseDtype::Bf16) => EagerBase::Plain,
                Some(BaseDtype::Nf4) => EagerBase::Nf4,
                Some(BaseDtype::Int8) => EagerBase::Int8,
            },
        }),
    };
    let narrow = train.precision == TrainingPrecision::Bf16 || train.base_dtype.is_some();
    // What prepares a model for training over packed weights puts all the others in 32 bits.
    let packed = adapters.is_some_and(|adapters| adapters.base != EagerBase::Plain);
    Ok(EagerJob {
        weight_width: if narrow && !packed { 2 } else { 4 },
        bf16: narrow && !packed,
        amp: train.precision == TrainingPrecision::Amp,
        training: true,
        adapters,
        checkpointing: train.checkpointing,
    })
}
