//! What engines share on an NVIDIA GPU: a stream, memory for buffers of our own, pinned host
//! memory, and the parts of the pipeline that run on the GPU beside the model.
//!
//! An engine that computes on our stream can have frames prepared in its input and its output
//! searched on the GPU ([`DevicePipeline`]). It only has to tell at which addresses its input
//! and outputs are. The GPU memory for that comes from a pool under a limit
//! ([`EngineGpu`](sys::gpu::EngineGpu)). All driver calls go through `plimsoll::backend::cuda`;
//! the unsafe ones are in `sys`.

mod pipeline;
pub(super) mod sys;

pub(super) use pipeline::DevicePipeline;
