//! How far an estimate may be off: by who runs the model, and what of that was measured.

use super::{BaseDtype, EstimateRequest, Optimizer, Runner, Terms, TrainingRequest};
use crate::EstimateRange;
use crate::families::huggingface as families;

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
        ("safetensors", Some(Runner::PyTorch)) if request.train.is_some() => {
            trained(total, family, request.train.unwrap_or_default())
        }
        ("safetensors", Some(Runner::PyTorch)) if gpu => match family {
            Some(name) if families::CHECKED.contains(&name) => EstimateRange::checked(
                total,
                EstimateRange::CHECKED,
                "models of this family ran on an H200, PyTorch 2.11 and Transformers 5.17",
            ),
            _ => EstimateRange::unchecked(total, "no model of this family was measured"),
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

/// Training: of the families that were measured, what was measured of it.
fn trained(total: u64, family: Option<&str>, train: TrainingRequest) -> EstimateRange {
    if train.gpus > 1 {
        let basis = "what several GPUs exchange was not measured; the upper end has 1 GiB for NCCL";
        return EstimateRange::unchecked(total, basis).with_more(1 << 30);
    }
    let known = family.is_some_and(|name| families::CHECKED_TRAINING.contains(&name));
    let rare = train.optimizer == Optimizer::Adafactor || train.base_dtype == Some(BaseDtype::Int8);
    match (known, rare) {
        (true, false) => EstimateRange::checked(
            total,
            EstimateRange::CHECKED,
            "models of this family were trained on an H200, PyTorch 2.11 and Transformers 5.17",
        ),
        (true, true) => EstimateRange::unchecked(
            total,
            "with this optimizer or type, estimates were up to 12 % low on an H200",
        ),
        (false, _) => EstimateRange::unchecked(
            total,
            "estimates of training this family were more than 5 % off, or it was not measured",
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
