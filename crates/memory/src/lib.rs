//! GPU and host memory as one library.
pub mod error;
pub mod estimate;
pub mod units;

pub use error::{Error, Result};
pub use estimate::{
    Biases, ComputeTerms, ElementType, InferenceMemoryEstimate, LayerCache, Mlp, ModelShape,
    WeightTerms, WeightType, estimate_inference_memory,
};
pub use units::{Bytes, format_bytes};
