//! What a model is expected to take, before it is loaded.

use plimsoll::Bytes;
use plimsoll_infer::model::terms::{self, Request, Runner};
use plimsoll_infer::{Device, EngineChoice, EngineKind, ModelSource};

use super::plan::Plan;
use crate::record::MemoryEstimate;

/// The estimate for a model under a plan, or why there is none.
pub(super) fn of(weights: &ModelSource, plan: &Plan) -> Result<MemoryEstimate, String> {
    let mut request = Request::default();
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

/// The estimate in a sentence, against the line.
pub(super) fn words(estimate: &MemoryEstimate, limit: Bytes) -> String {
    let total = Bytes(estimate.total_bytes);
    let verdict = if total <= limit { "fits below" } else { "does not fit below" };
    format!(
        "estimate {total} (weights {}, activations {}, overhead {}): {verdict} {limit}",
        Bytes(estimate.weights_bytes),
        Bytes(estimate.activation_bytes),
        Bytes(estimate.overhead_bytes),
    )
}
