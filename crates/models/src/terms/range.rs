//! How far an estimate may be off: by who runs the model, and what of that was measured.

use super::{BaseDtype, EstimateRequest, Runner, Terms, TrainingRequest};
use crate::EstimateRange;
use crate::families::checked::{self, CheckedJob, CheckedSpread};

/// Architectures of GGUF files whose terms were compared with llama.cpp's logs.
const LOGGED: [&str; 8] =
    ["llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gptneox", "mistral", "phi2"];

/// The range of a total.
pub(super) fn of(terms: &Terms, request: &EstimateRequest) -> EstimateRange {
    let total = terms.total_bytes;
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
            EstimateRange::unchecked(total, "no detector was measured while it was trained")
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
    if train.gpus > 1 {
        let basis = "the share of one of several GPUs was counted with PyTorch's fake process group and not \
                     measured on GPUs; the upper end has 1 GiB for NCCL";
        return EstimateRange::unchecked(total, basis).with_more(1 << 30);
    }
    let job = match (train.lora, train.base_dtype) {
        (None, _) => CheckedJob::Train,
        (Some(_), Some(BaseDtype::Int8)) => CheckedJob::AdaptInt8,
        (Some(_), _) => CheckedJob::Adapt,
    };
    let mut words = vec![train.optimizer.name(), train.precision.name()];
    words.extend(train.checkpointing.then_some("checkpointing"));
    eager(total, family, job, &words)
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
                CheckedJob::Train => "training",
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
            "of 21 graphs on an H200 three were 5 to 9 % off, the others less",
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
