//! GPU and host memory: devices, pools, limits, tracking, pressure, fallback and chunking.
//!
//! Everything that hands out memory is a [`Memory`]: a device, and each layer over it. A
//! stack of them is put together at run time:
//!
//! ```
//! use std::sync::Arc;
//! use plimsoll_memory::backend::sim::{Sim, SimConfig};
//! use plimsoll_memory::{Bytes, Limit, Memory, MemoryConfig, Pool, Request, Stream};
//!
//! let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(8))));
//! let limit = Arc::new(Limit::new(device, Bytes::gib(2)));       // never a byte more
//! let pool = Pool::new(limit, MemoryConfig::for_inference())?;   // kept, cut and merged
//!
//! let block = pool.allocate(Request::new(Bytes::mib(64)).tagged("weights"))?;
//! println!("{} at {:#x}", block.size(), block.address().pointer());
//! pool.release(block, Stream::DEFAULT)?;
//!
//! let refused = pool.allocate(Request::new(Bytes::gib(3))).unwrap_err();
//! assert!(!refused.is_full_now(), "it can never fit, so retrying is pointless");
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```
//!
//! [`stack`] says which layers there are and where each belongs; [`stack::pool`] how the
//! pool works; [`chunk`] cuts work to what fits. On a
//! machine without a GPU everything runs on the host and on a simulated device.

pub mod backend;
mod budget;
pub mod chunk;
mod config;
pub mod current;
mod generic;
mod manager;
pub mod memory;
mod pool_trait;
mod pressure;
mod profile;
pub mod stack;
mod stats;
mod sync;
mod sys;

pub use backend::{BackendKind, DeviceId, select_backend_for_model};
pub use budget::Budget;
pub use chunk::{
    AdaptiveReport, AdaptiveRunner, ChunkFailure, ChunkPace, ChunkPlan, ChunkSearch,
    ChunkingConfig, FullNow, SAFETY_MARGIN, auto_chunk, calculate_chunking, run_adaptive, will_oom,
};
pub use config::{MemoryConfig, Packing};
pub use current::should_reduce_batch;
pub use generic::GenericMemoryPool;
pub use manager::{
    DeviceLimit, DeviceUsage, EngineVariable, GpuMemoryManager, LIMIT_PROFILES, LimitCheck,
    LimitProfile, LimitReport, LimitRequest, LimitType, LimitViolation, PlacedBlock,
    effective_limit,
};
pub use memory::{
    Address, Block, Device, DeviceInfo, Event, Handle, Mapping, Memory, MemoryId, Request, Stream,
};
pub use plimsoll_machine::{Bytes, Error, Result, format_bytes};
pub use pool_trait::GpuMemoryPool;
pub use pressure::MemoryPressure;
pub use profile::{
    MemoryProfiler, MemoryReport, MemorySnapshot, Obtained, generate_memory_report, get_free_memory,
};
pub use stack::fallback::{Fallback, FallbackBuffer, FallbackCounter, GpuBuffer, MemoryBuffer};
pub use stack::limit::Limit;
pub use stack::pool::{Capture, GpuPeaks, GraphMemory, Pool, PoolActivity, get_gpu_peaks};
pub use stack::pressure::{PressureChange, PressureWatch};
pub use stack::track::{AllocationTracker, BufferId, BufferLocation, BufferMetadata, Tracked};
pub use stats::MemoryStats;
