//! How far an estimate may be off: by who runs the model, and what of that was measured.

use super::{BaseDtype, EstimateRequest, Runner, Terms, TrainingRequest};
use crate::EstimateRange;
use crate::families::checked::{self, CheckedJob, CheckedSpread};

/// Architectures of GGUF files whose terms were compared with llama.cpp's logs.
const LOGGED: [&str; 8] =
    ["llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gptneox", "mistral", "phi2"];

/// What the buffers of NCCL may take.
const NCCL: u64 = 1 << 30;
/// The most GPUs whose shares were measured.
const MOST_GPUS: u64 = 8;

/// The range of a total; its upper end is that of what it may be besides.
pub(super) fn of(terms: &Terms, request: &EstimateRequest) -> EstimateRange {
    let range = around(terms, terms.total_bytes, request);
    let Some(more) = terms.stored_scores else { return range };
    let whole = around(terms, terms.total_bytes.saturating_add(more.bytes), request);
    let basis = format!("{}; {}", range.basis, more.reason);
    EstimateRange { high_bytes: whole.high_bytes, basis, ..range }
}

/// The range of a total that terms may have.
fn around(terms: &Terms, total: u64, request: &EstimateRequest) -> EstimateRange {
    let gpu = request.on_gpu == Some(true);
    let family = terms.family.as_deref();
    match (terms.format, request.runner) {
        ("GGUF", None | Some(Runner::LlamaCpp)) => match family {
            Some(name) if LOGGED.contains(&name) && request.gpu_layers.is_none() => {
                let basis = "weights, cache and compute buffer agree with llama.cpp's logs of \
                             such models within 0.1 %; what the driver takes is not in it";
                EstimateRange::checked(total, 5, basis)
            }
            _ => EstimateRange::unchecked(total, "no log of llama.cpp for such a model"),
        },
        ("safetensors", Some(Runner::PyTorch)) => match &request.train {
            Some(train) => trained(total, family, *train),
            None if gpu => eager(total, family, CheckedJob::Run, &[]),
            None => EstimateRange::unchecked(total, "nothing of this kind was measured"),
        },
        (_, _) if request.train.is_some() => {
            let basis = "no detector was measured on a GPU while it was trained; by their own programs \
                         seven were 11 % low to 11 % high";
            EstimateRange::unchecked(total, basis)
        }
        (_, None) if !gpu => {
            EstimateRange::unchecked(total, "no engine is named; what one adds is not in it")
        }
        ("ONNX" | "PyTorch checkpoint", runner) if terms.peak.is_some() => {
            graph(total, runner, gpu)
        }
        _ => EstimateRange::unchecked(total, "nothing of this kind was measured"),
    }
}

/// Training: by what of the model is trained.
fn trained(total: u64, family: Option<&str>, train: TrainingRequest) -> EstimateRange {
    let job = match (train.lora, train.base_dtype) {
        (None, _) => CheckedJob::Train,
        (Some(_), Some(BaseDtype::Int8)) => CheckedJob::AdaptInt8,
        (Some(_), _) => CheckedJob::Adapt,
    };
    let mut words = vec![train.optimizer.name(), train.precision.name()];
    words.extend(train.checkpointing.then_some("checkpointing"));
    let alone = eager(total, family, job, &words);
    if train.gpus < 2 {
        return alone;
    }
    let spread = family.and_then(|name| checked::spread(job, name));
    shared(total, train, &words, spread.filter(|_| alone.checked)).with_more(NCCL)
}

/// One of several GPUs: as far off as estimates of its family on one GPU and of this kind of sharing were,
/// both together.
fn shared(
    total: u64,
    train: TrainingRequest,
    words: &[&str],
    alone: Option<CheckedSpread>,
) -> EstimateRange {
    let nccl = "the upper end has 1 GiB for NCCL, which was not measured";
    let share = checked::spread(CheckedJob::Share, train.shard.name());
    let share = share.filter(|share| {
        train.lora.is_none()
            && train.gpus <= MOST_GPUS
            && words.iter().all(|word| share.tried(word))
    });
    match (alone, share) {
        (Some(alone), Some(share))
            if (alone.below + share.below).max(alone.above + share.above)
                <= EstimateRange::CHECKED =>
        {
            let basis = format!(
                "{} estimates of such training on one GPU, and {} of what one of 2 to {MOST_GPUS} GPUs holds with \
                 {}, on an H200 with PyTorch's fake process group; {nccl}",
                alone.rows, share.rows, train.shard
            );
            let reach = (alone.below + share.below, alone.above + share.above);
            EstimateRange::checked_between(total, reach, basis)
        }
        _ => EstimateRange::unchecked(
            total,
            format!(
                "such a share was not checked, or was more than 5 % off PyTorch's fake process group on an \
                 H200; {nccl}"
            ),
        ),
    }
}

/// A language model in PyTorch: as far off as estimates of its family were, if some of them had
/// what these words name.
fn eager(total: u64, family: Option<&str>, job: CheckedJob, words: &[&str]) -> EstimateRange {
    let spread = family.and_then(|name| checked::spread(job, name));
    if let Some(word) = spread.and_then(|spread| words.iter().find(|word| !spread.tried(word))) {
        let basis = format!("estimates of this family were checked, but none with {word}");
        return EstimateRange::unchecked(total, basis);
    }
    match spread {
        Some(CheckedSpread { rows, below, above, .. }) => {
            let what = match job {
                CheckedJob::Run => "running",
                CheckedJob::Train | CheckedJob::Share => "training",
                CheckedJob::Adapt | CheckedJob::AdaptInt8 => "training adapters of",
            };
            let basis = format!(
                "{rows} estimates of {what} models of this family, against their own program, which \
                 agreed with an H200 (PyTorch 2.11, Transformers 5.17)"
            );
            EstimateRange::checked_between(total, (below, above), basis)
        }
        None => EstimateRange::unchecked(
            total,
            "estimates of this family were more than 5 % off its own program, or were not checked",
        ),
    }
}

fn graph(total: u64, runner: Option<Runner>, gpu: bool) -> EstimateRange {
    let widest = EstimateRange::CHECKED;
    match (runner, gpu) {
        (Some(Runner::Ort), false) => {
            let basis = "the arena's own statistics for 14 graphs, at most 2 % off; what the \
                         process takes besides is not in it";
            EstimateRange::checked(total, widest, basis)
        }
        (Some(Runner::Ort), true) => EstimateRange::unchecked(
            total,
            "of 21 graphs on an H200 one was 7 % off, the others less than 5 %; the rules came from them",
        ),
        (Some(Runner::PyTorch), true) => {
            EstimateRange::checked(total, widest, "10 networks on an H200, PyTorch 2.11")
        }
        (None, true) => {
            let basis = "10 networks in a pool of this library on an H200, at most 2 % off";
            EstimateRange::checked(total, widest, basis)
        }
        _ => EstimateRange::unchecked(total, "no graph was measured with this engine there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::TrainingShard;

    #[test]
    fn a_share_counts_as_checked_where_an_h200_held_what_was_estimated() {
        let of = |shard, gpus, lora| {
            let train = TrainingRequest { shard, gpus, lora, ..TrainingRequest::default() };
            trained(1 << 40, Some("llama"), train)
        };
        let alone = of(TrainingShard::Ddp, 1, None);
        let split = of(TrainingShard::Fsdp2, 8, None);
        assert!(alone.checked && split.checked && split.basis.contains("fake process group"));
        assert!(split.low_bytes < alone.low_bytes && split.high_bytes > alone.high_bytes + NCCL);
        assert!(of(TrainingShard::Zero1, 4, None).checked);
        // A row was 6 % low; more GPUs and adapters were not measured.
        for other in [
            of(TrainingShard::Ddp, 4, None),
            of(TrainingShard::Fsdp2, 16, None),
            of(TrainingShard::Fsdp2, 8, Some(16)),
        ] {
            assert!(!other.checked && other.basis.contains("NCCL"), "{other:?}");
        }
    }
}
