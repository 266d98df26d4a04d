//! Model files and recorded allocations: what they hold, and what running them takes.
//!
//! ```text
//! file ─→ source │ gguf │ safetensors │ onnx │ pt ─→ walk, estimate ─→ terms
//! ```
//!
//! [`source`] finds a model and reads its header; `gguf`, `safetensors`, `onnx` and `pt` each
//! read one format; [`graph`] writes the ONNX graph of a checkpoint; [`walk`] goes through a
//! graph as an engine would; [`estimate`] turns shapes into bytes; [`terms`] asks the right
//! one and adds up. [`trace`] reads recorded allocations and replays them on a pool.
//! [`pickle`] reads Python's format as data, for checkpoints and for traces.

pub mod estimate;
pub mod gguf;
pub mod graph;
pub mod onnx;
pub mod pickle;
pub mod pt;
pub mod safetensors;
pub mod source;
pub mod terms;
pub mod trace;
pub mod walk;

pub use estimate::{
    Biases, CacheTypes, ComputeTerms, ElementType, InferenceMemoryEstimate, LayerCache, Mlp,
    ModelShape, ShapeTensor, WeightTerms, WeightType, estimate_inference_memory,
};
pub use graph::GraphOptions;
pub use plimsoll_machine::{Bytes, Error};
pub use source::{Model, ModelInfo, ModelSource, find_weights};

/// The result of what reads model files.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A model that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model {model}: {why}")]
pub struct ModelError {
    /// The file, or the name of an embedded one.
    pub model: String,
    /// What is wrong with it.
    pub why: String,
}
