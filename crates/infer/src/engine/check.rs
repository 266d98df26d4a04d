//! Checks that all engines share: the model's size, the input of a run, and `strict`.

use super::{EngineInfo, EngineOptions, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::tensor::Tensor;

/// The longest side of an input: four times what detectors are run at. A file may declare any.
const LONGEST_SIDE: usize = 16_384;

/// Refuses a model whose input is too large.
pub(super) fn check_sides(model: &ModelInfo) -> InferResult<()> {
    match model.input_size {
        Some((rows, columns)) if rows.max(columns) > LONGEST_SIDE => Err(InferError::Model {
            model: model.name.clone(),
            why: format!(
                "it declares an input of {rows} x {columns} pixels; sides of at most \
                 {LONGEST_SIDE} are run"
            ),
        }),
        _ => Ok(()),
    }
}

/// Applies `strict`: with it, a fallback is an error; without, a warning.
pub(super) fn settle(info: EngineInfo, options: &EngineOptions) -> InferResult<EngineInfo> {
    if options.strict && !info.fallbacks.is_empty() {
        let why = format!("strict: {}", info.fallbacks.join("; "));
        return Err(InferError::Engine { engine: info.name.into(), why });
    }
    for fallback in &info.fallbacks {
        tracing::warn!(engine = info.name, fallback, "does less than it was asked for");
    }
    Ok(info)
}

/// Checks that a tensor fits a model: an engine's own message for a wrong shape is long and
/// comes late.
pub(super) fn check_input(
    engine: &'static str,
    model: &ModelInfo,
    input: &Tensor,
) -> InferResult<()> {
    let wanted = &model.input_shape;
    let fits = wanted.is_empty()
        || (wanted.len() == input.shape.len()
            && wanted.iter().zip(&input.shape).all(|(&want, &have)| want == 0 || want == have));
    let elements = input.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
    if fits && elements == Some(input.data.len()) {
        return Ok(());
    }
    Err(InferError::Engine {
        engine: engine.into(),
        why: format!(
            "input {:?} with {} numbers was given to a model that wants {wanted:?}",
            input.shape,
            input.data.len()
        ),
    })
}

/// The error for an engine without an input of its own.
pub(super) fn no_input(engine: &'static str) -> InferError {
    InferError::Engine { engine: engine.into(), why: "it has no input of its own".into() }
}
