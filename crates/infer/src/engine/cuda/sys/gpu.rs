//! A GPU as an engine uses it: one stream, and memory for our own buffers.
//!
//! Engines compute in the device's primary context, and so does [`Cuda`]. We hand our stream to
//! the engine. Copies, our kernels and the model's work are then in order without a wait
//! between them, and one wait at the end of a step is enough.

use std::ffi::c_void;
use std::sync::Arc;

use plimsoll::backend::cuda::Cuda;
use plimsoll::{Budget, Device, Limit, Memory, MemoryConfig, Packing, Pool, Result, Stream};

/// A device, our stream on it, and memory for buffers of our own.
#[derive(Debug)]
pub(in crate::engine) struct EngineGpu {
    memory: Limit,
    device: Arc<Cuda>,
    stream: Stream,
}

impl EngineGpu {
    /// Opens a device and makes a stream on it. Buffers are allocated from a pool, and reserved
    /// from the budget of the engine that they are for.
    pub(in crate::engine) fn open(number: u32, budget: &Arc<Budget>) -> Result<Arc<EngineGpu>> {
        let device = Arc::new(Cuda::open(number)?);
        let stream = device.new_stream()?;
        // A few buffers that stay for the whole run: what counts is to hold no more than they
        // need. The limit is the budget's, not a share of the device.
        let config = MemoryConfig::new()
            .with_gpu_memory_fraction(1.0)
            .with_min_free_bytes(0)
            .with_packing(Packing::Tight);
        let pool = Pool::new(Arc::clone(&device) as Arc<dyn Memory>, config)?;
        let memory = Limit::sharing(Arc::new(pool), Arc::clone(budget));
        Ok(Arc::new(EngineGpu { memory, device, stream }))
    }

    /// The device.
    pub(in crate::engine) fn device(&self) -> &Cuda {
        &self.device
    }

    /// Our stream on it.
    pub(in crate::engine) fn stream(&self) -> Stream {
        self.stream
    }

    /// The memory of our own buffers: a pool under the engine's limit.
    pub(in crate::engine) fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    /// The stream as engines take it (a `CUstream`).
    pub(in crate::engine) fn raw_stream(&self) -> Result<*mut c_void> {
        self.device.raw_stream(self.stream)
    }

    /// Whether the device's memory is the host's memory as well. A device that does not report
    /// it counts as such.
    pub(in crate::engine) fn is_integrated(&self) -> bool {
        self.device.info().is_unified.unwrap_or(true)
    }

    /// Waits until all queued work of the stream is done.
    pub(in crate::engine) fn synchronize(&self) -> Result<()> {
        self.device.synchronize_stream(self.stream)
    }
}
