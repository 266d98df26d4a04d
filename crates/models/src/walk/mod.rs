//! ONNX graphs: what they hold and how much of it lives at once, without running them.
//!
//! ```text
//! onnx ─→ shapes ─→ live          peak of live bytes, and where it is
//!  OnnxGraph   Shaped    Peak
//! ```
//!
//! - `shapes`: the extents of every tensor from those of the inputs. An operator that is not
//!   known here is named in the answer, and what depends on it is left out by name, never
//!   guessed.
//! - `live`: an order of execution, what dies where, what is a view or written in place.
//! - `ort`: the same as ONNX Runtime does it, down to its arena; `torch`: as PyTorch does it on
//!   CUDA, down to its caching allocator.

mod fold;
mod live;
mod operators;
pub mod ort;
mod shapes;
pub mod torch;

pub use crate::onnx::{DeclaredExtent, OnnxError, OnnxGraph};
pub use live::{LifetimeEvent, Peak, PeakTensor};
pub use shapes::{InputExtents, Shaped};

#[cfg(test)]
mod tests;
