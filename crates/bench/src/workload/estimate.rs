//! What a model is expected to take, before it is loaded.

use plimsoll::Bytes;
use plimsoll_infer::{Device, EngineChoice, EngineKind, ModelSource};
use plimsoll_models::terms::{self, EstimateRequest, Runner};

use super::plan::Plan;
use crate::record::MemoryEstimate;

/// The estimate for a model under a plan, or why there is none.
pub(super) fn of(weights: &ModelSource, plan: &Plan) -> Result<MemoryEstimate, String> {
    let mut request = EstimateRequest::default();
    request.runner = match plan.engine {
        EngineChoice::Kind(EngineKind::Ort) => Some(Runner::Ort),
        EngineChoice::Kind(EngineKind::Rten) => Some(Runner::Rten),
        EngineChoice::Kind(EngineKind::Echo) => return Err("echo runs no model".to_string()),
        _ => None,
    };
    request.on_gpu = match plan.device {
        Device::Cpu => Some(false),
        Device::Cuda(_) => Some(true),
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
    Ok(MemoryEstimate {
        weights_bytes: found.weights_bytes,
        activation_bytes: found.activation_bytes,
        overhead_bytes: found.overhead.bytes,
        total_bytes: found.total_bytes,
    })
}

/// The estimate in a sentence, against the limit. Without the engine's own overhead it does not
/// say that a model fits: that is most of what a small one takes.
pub(super) fn words(estimate: &MemoryEstimate, limit: Bytes) -> String {
    let total = Bytes(estimate.total_bytes);
    let (weights, activations) = (Bytes(estimate.weights_bytes), Bytes(estimate.activation_bytes));
    let overhead = match estimate.overhead_bytes {
        0 => "what the engine takes besides is not known".to_string(),
        bytes => format!("overhead {}", Bytes(bytes)),
    };
    let verdict = match (total <= limit, estimate.overhead_bytes) {
        (false, _) => "does not fit below",
        (true, 0) => "that alone is below",
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
        let said = words(&of(0), Bytes::mib(50));
        assert!(said.ends_with("not known): that alone is below 50.00 MiB"), "{said}");
        assert!(words(&of(mib(10)), Bytes::mib(50)).ends_with("fits below 50.00 MiB"));
        assert!(words(&of(0), Bytes::mib(20)).ends_with("does not fit below 20.00 MiB"));
    }
}
