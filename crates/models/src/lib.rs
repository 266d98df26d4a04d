//! Model files and recorded allocations: what they hold, and what running them takes.
//!
//! ```text
//! file ─→ source │ gguf │ safetensors │ onnx │ pt ─→ walk, estimate ─→ terms
//! ```
//!
//! - [`source`] finds a model and reads its header.
//! - [`gguf`], [`safetensors`], [`onnx`] and [`pt`] each read one format. None of them trusts a
//!   file: sizes are compared with the file before anything is made from them, and nothing in a
//!   file is run.
//! - [`graph`] writes the ONNX graph of a checkpoint.
//! - [`walk`] goes through an ONNX graph as an engine would.
//! - [`estimate`] turns the shape of a language model into bytes; `families` has what engines
//!   know of a model family and its files do not say.
//! - [`terms`] chooses among these by the file's format and adds up.
//! - [`trace`] reads recorded allocations and replays them on a pool.
//! - [`pickle`] reads Python's format as data, for checkpoints and for traces.
//!
//! The module docs of `families` say how to add a model family, and how to add a module of a
//! detector's checkpoint.

pub mod estimate;
mod families;
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
    Biases, CacheTypes, ComputeTerms, ElementType, EstimateRange, InferenceMemoryEstimate,
    LayerCache, Mlp, ModelShape, ShapeTensor, WeightTerms, WeightType, estimate_inference_memory,
};
pub use graph::GraphOptions;
pub use plimsoll_machine::{Bytes, Error};
pub use source::{Model, ModelInfo, ModelSource, find_weights};

/// The result of what reads model files.
pub type ModelResult<T> = Result<T, ModelError>;

/// A model that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model {model}: {why}")]
pub struct ModelError {
    /// The file, or the name of an embedded one.
    pub model: String,
    /// What is wrong with it.
    pub why: String,
}
