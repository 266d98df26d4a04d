//! Detectors, from source to boxes: `source → prepare → engine → decode`.
//!
//! One value type for each arrow, and one loop body, `Pipeline::step`:
//!
//! ```text
//! source ──→ prepare ──→ engine ──→ decode
//!      Frame      Tensor     Tensors    Detections
//! ```
//!
//! Nothing in here reads a clock to measure: what is measured cannot see the measurer. A
//! stopwatch is handed in at the seams.

pub mod decode;
pub mod engine;
pub mod error;
pub mod pipeline;
pub mod prepare;
mod simd;
pub mod source;
pub mod tensor;

pub use decode::{
    Decoder, Detail, Detection, Keypoint, Layout, Mask, OrientedBox, Task, Thresholds,
};
pub use engine::{
    EngineChoice, EngineDevice, EngineInfo, EngineKind, EngineMemory, EngineOptions,
    InferenceEngine,
};
pub use error::{InferError, InferResult};
pub use pipeline::{Pipeline, Stage, Stopwatch};
pub use plimsoll_models::{ModelInfo, ModelSource, find_weights};
pub use prepare::{Framing, Letterbox, Prepare};
pub use source::{Frame, Pixels, Source, SourceInfo, Stager, Truth};
pub use tensor::Tensor;
