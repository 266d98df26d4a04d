//! The memory that a model is expected to take, before it is loaded.

use plimsoll::Bytes;
use plimsoll_infer::{EngineChoice, EngineDevice, EngineKind, ModelSource};
use plimsoll_models::terms::{self, EstimateRequest, Runner};

use super::plan::BenchPlan;
use crate::record::MemoryEstimate;

/// The estimate for a model on an engine under a plan, or why there is none.
pub(super) fn of(
    weights: &ModelSource,
    engine: EngineChoice,
    plan: &BenchPlan,
) -> Result<BenchEstimate, String> {
    let mut request = EstimateRequest::default();
    request.runner = match engine {
        EngineChoice::Kind(EngineKind::Ort) => Some(Runner::Ort),
        EngineChoice::Kind(EngineKind::Rten) => Some(Runner::Rten),
        EngineChoice::Kind(EngineKind::Echo) => return Err("echo runs no model".to_string()),
        _ => None,
    };
    request.on_gpu = match plan.device {
        EngineDevice::Cpu => Some(false),
        EngineDevice::Cuda(_) => Some(true),
        _ => None,
    };
    request.image = plan.imgsz.map(|side| (u64::from(side), u64::from(side)));
    let found = match weights {
        ModelSource::Path(path) => {
            let path = plimsoll_infer::find_weights(path).map_err(|error| error.to_string())?;
            terms::estimate(&path, &request)
        }
        ModelSource::Bytes { name, bytes } => terms::estimate_onnx(name, bytes, &request),
        _ => return Err("its source has no file to read".to_string()),
    };
    let found = found.map_err(|error| error.to_string())?;
    let most = found.weights.iter().max_by_key(|weights| weights.elements);
    let weights_type = most.map(|weights| weights.kind.clone());
    let memory = MemoryEstimate {
        weights_bytes: found.weights_bytes,
        activation_bytes: found.activation_bytes,
        overhead_bytes: found.overhead.bytes,
        total_bytes: found.total_bytes,
    };
    Ok(BenchEstimate { memory, high: Bytes(found.range.high_bytes), weights_type })
}

/// What a model's file alone says about running it.
#[derive(Debug)]
pub(super) struct BenchEstimate {
    pub(super) memory: MemoryEstimate,
    /// The upper end of its range.
    pub(super) high: Bytes,
    /// The type of most of its weights.
    pub(super) weights_type: Option<String>,
}

/// The estimate and the limit in a sentence. Without the engine's overhead, which is most of what
/// a small model takes, it does not say that the model fits; nor where the upper end of the range,
/// `high`, does not.
pub(super) fn words(estimate: &MemoryEstimate, high: Bytes, limit: Bytes) -> String {
    let total = Bytes(estimate.total_bytes);
    let (weights, activations) = (Bytes(estimate.weights_bytes), Bytes(estimate.activation_bytes));
    let overhead = match estimate.overhead_bytes {
        0 => "the engine's overhead is not known".to_string(),
        bytes => format!("overhead {}", Bytes(bytes)),
    };
    let verdict = match (total <= limit, estimate.overhead_bytes) {
        (false, _) => "does not fit below",
        (true, 0) => "without it, that is below",
        (true, _) if high > limit => "the upper end of its range does not fit below",
        (true, _) => "fits below",
    };
    format!(
        "estimate {total} (weights {weights}, activations {activations}, {overhead}): {verdict} \
         {limit}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_fits_only_where_all_of_it_was_estimated() {
        let mib = |n: u64| Bytes::mib(n).get();
        let of = |overhead_bytes| MemoryEstimate {
            weights_bytes: mib(10),
            activation_bytes: mib(20),
            overhead_bytes,
            total_bytes: mib(30) + overhead_bytes,
        };
        let words = |estimate, limit| words(&estimate, Bytes::mib(45), limit);
        let said = words(of(0), Bytes::mib(50));
        assert!(said.ends_with("not known): without it, that is below 50.00 MiB"), "{said}");
        assert!(words(of(mib(10)), Bytes::mib(50)).ends_with("fits below 50.00 MiB"));
        assert!(words(of(mib(10)), Bytes::mib(42)).ends_with("does not fit below 42.00 MiB"));
        assert!(words(of(0), Bytes::mib(20)).ends_with("does not fit below 20.00 MiB"));
    }
}
