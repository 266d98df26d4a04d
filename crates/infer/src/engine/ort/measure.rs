//! Measures what ONNX Runtime really takes for a graph on the CPU, to check estimates.
//!
//! Any graph will do, not detectors alone: every input is fed zeros of its own type. The
//! arena is asked after the model is loaded and after each run, since the runtime plans its
//! memory in the first run and uses the plan from the second on.

use std::path::Path;

use ort::memory::Allocator;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{Session, SessionInputValue};
use ort::value::{Tensor, TensorElementType, ValueType};

use super::providers::ProviderPlan;
use super::runtime::Runtime;
use super::{NAME, sys};
use crate::engine::shield::shielded;
use crate::engine::{EngineMemory, EngineOptions};
use crate::error::{InferError, InferResult};

/// The arena after the model was loaded, and after each run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaMeasurement {
    /// After the model was loaded.
    pub loaded: EngineMemory,
    /// After each run.
    pub runs: Vec<EngineMemory>,
    /// The version of the runtime.
    pub version: String,
}

/// Loads a graph, runs it `runs` times on zeros, and reads the arena's statistics each time.
/// `extent` gives an input's extent where the graph leaves it open. With `optimized` the graph
/// that the runtime made of it is written there.
///
/// # Errors
/// [`InferError::Unavailable`] without a library, [`InferError::Engine`] when the graph cannot be run.
pub fn measure(
    model: &Path,
    options: &EngineOptions,
    runs: usize,
    extent: &dyn Fn(&str, usize) -> usize,
    optimized: Option<&Path>,
) -> InferResult<ArenaMeasurement> {
    shielded(NAME, || {
        let runtime = Runtime::get(options.library.as_deref())?;
        let failed =
            |error: ort::Error| InferError::Engine { engine: NAME.into(), why: error.to_string() };
        let mut session = build(&runtime, model, options, optimized).map_err(failed)?;
        let plan = ProviderPlan::Cpu;
        let arena =
            plan.memory().and_then(|memory| Allocator::new(&session, memory)).map_err(failed)?;
        let ask = || {
            sys::arena(&arena).ok_or_else(|| InferError::Unavailable {
                what: "the arena's statistics".into(),
                why: "this runtime's allocator keeps none".into(),
            })
        };
        let loaded = ask()?;
        let mut after = Vec::new();
        for _ in 0..runs {
            let inputs = zeros(&session, extent).map_err(failed)?;
            drop(session.run(inputs).map_err(failed)?);
            after.push(ask()?);
        }
        Ok(ArenaMeasurement { loaded, runs: after, version: runtime.version })
    })
}

fn build(
    runtime: &Runtime,
    model: &Path,
    options: &EngineOptions,
    optimized: Option<&Path>,
) -> ort::Result<Session> {
    let mut builder = Session::builder(&runtime.environment)?
        .with_optimization_level(GraphOptimizationLevel::Level3)?;
    if let Some(threads) = options.threads {
        builder = builder.with_intra_threads(threads.max(1))?;
    }
    if let Some(path) = optimized {
        builder = builder.with_optimized_model_path(path)?;
    }
    builder.commit_from_file(model)
}

type Inputs = Vec<(String, SessionInputValue<'static>)>;

fn zeros(session: &Session, extent: &dyn Fn(&str, usize) -> usize) -> ort::Result<Inputs> {
    session
        .inputs()
        .iter()
        .map(|input| {
            let ValueType::Tensor { ty, shape, .. } = input.dtype() else {
                return Err(ort::Error::new(format!("input {} is no tensor", input.name())));
            };
            let shape: Vec<i64> = shape
                .iter()
                .enumerate()
                .map(|(axis, &n)| if n < 0 { extent(input.name(), axis) as i64 } else { n })
                .collect();
            Ok((input.name().to_string(), zero(*ty, shape)?))
        })
        .collect()
}

fn zero(ty: TensorElementType, shape: Vec<i64>) -> ort::Result<SessionInputValue<'static>> {
    let n = shape.iter().product::<i64>().max(0) as usize;
    Ok(match ty {
        TensorElementType::Float32 => Tensor::from_array((shape, vec![0f32; n]))?.into(),
        TensorElementType::Float64 => Tensor::from_array((shape, vec![0f64; n]))?.into(),
        TensorElementType::Int64 => Tensor::from_array((shape, vec![0i64; n]))?.into(),
        TensorElementType::Int32 => Tensor::from_array((shape, vec![0i32; n]))?.into(),
        TensorElementType::Uint8 => Tensor::from_array((shape, vec![0u8; n]))?.into(),
        TensorElementType::Bool => Tensor::from_array((shape, vec![false; n]))?.into(),
        other => return Err(ort::Error::new(format!("an input of {other:?} is not fed here"))),
    })
}
