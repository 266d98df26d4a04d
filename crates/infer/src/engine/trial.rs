//! Loads and runs a model once, in a process that may crash.
//!
//! A graph is a program: it may nest so deep that an engine's recursion leaves its stack, or
//! grow without end, and an engine's own out-of-memory is an abort more often than an error.
//! None of that can be caught. So a caller that must survive runs this in a child process
//! first, watches it, and loads the model only if the child succeeded.
//!
//! It runs on the CPU, whatever the device: the size that a graph grows to is the same
//! everywhere, and no memory of a GPU is used, or counted against its limit.

use super::{EngineChoice, EngineDevice, EngineKind, EngineOptions, open};
use crate::error::InferResult;
use crate::tensor::Tensor;
use plimsoll_models::ModelSource;

/// The stack of a thread that loads and runs models: engines go through a graph by recursion,
/// and a chain of ten thousand operators takes some ten MiB. Only what is used is in memory.
pub const STACK: usize = 64 << 20;

/// Loads a model and runs it once, on an input of zeros. What was compiled for a GPU alone, an
/// engine of TensorRT, is not tried.
///
/// # Errors
/// Those of [`open`] and of [`InferenceEngine::run`](super::InferenceEngine::run). What matters more is whether
/// it returns at all.
pub fn trial(
    choice: EngineChoice,
    source: &ModelSource,
    options: &EngineOptions,
) -> InferResult<()> {
    let candidates = source.candidates()?;
    let graph = candidates.iter().find(|candidate| !candidate.is_engine());
    let (Some(graph), false) = (graph, is_for_gpus(choice)) else { return Ok(()) };
    let mut options = options.clone();
    (options.device, options.strict) = (EngineDevice::Cpu, false);
    let mut engine = open(choice, graph, &options)?;
    let (rows, columns) = engine.model().input_size.unwrap_or(options.open_size());
    engine.run(&Tensor::zeros(&[1, 3, rows, columns]))?;
    Ok(())
}

fn is_for_gpus(choice: EngineChoice) -> bool {
    choice == EngineChoice::Kind(EngineKind::Tensorrt)
}
