//! GPU and host memory as one library: pools, limits, tracking, pressure, fallback,
//! estimates and chunking.
//!
//! Everything that hands out memory is a [`Memory`]: a device, and each storey over it. A
//! stack of them is put together at run time:
//!
//! ```
//! use std::sync::Arc;
//! use plimsoll::backend::sim::{Sim, SimConfig};
//! use plimsoll::{Bytes, Limit, Memory, MemoryConfig, Pool, Request, Stream};
//!
//! let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(8))));
//! let line = Arc::new(Limit::new(device, Bytes::gib(2)));       // never a byte more
//! let pool = Pool::new(line, MemoryConfig::for_inference())?;   // kept, cut and merged
//!
//! let block = pool.allocate(Request::new(Bytes::mib(64)).tagged("weights"))?;
//! println!("{} at {:#x}", block.size(), block.address().pointer());
//! pool.release(block, Stream::DEFAULT)?;
//!
//! let refused = pool.allocate(Request::new(Bytes::gib(3))).unwrap_err();
//! assert!(!refused.is_full_now(), "it can never fit, so retrying is pointless");
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! [`stack`] says which storeys there are and where each belongs; [`stack::pool`] how the
//! pool works; [`chunk`] and [`estimate`] what fits before anything is allocated. On a
//! machine without a GPU everything runs on the host and on a simulated device.

pub mod backend;
pub mod chunk;
mod config;
pub mod current;
pub mod error;
pub mod estimate;
pub mod files;
mod generic;
mod gpu_pool;
pub mod machine;
mod manager;
pub mod memory;
pub mod pickle;
pub mod platform;
mod pressure;
pub mod probe;
mod profile;
pub mod stack;
mod stats;
mod sync;
mod sys;
pub mod text;
pub mod trace;
pub mod units;

pub use backend::{BackendKind, DeviceId, select_backend_for_model};
pub use chunk::{
    AdaptiveReport, AdaptiveRunner, ChunkFailure, ChunkPlan, ChunkingConfig, FullNow,
    SAFETY_MARGIN, auto_chunk, calculate_chunking, run_adaptive, will_oom,
};
pub use config::{MemoryConfig, Packing};
pub use current::should_reduce_batch;
pub use error::{Error, Result};
pub use estimate::{
    Biases, CacheTypes, ComputeTerms, ElementType, InferenceMemoryEstimate, LayerCache, Mlp,
    ModelShape, ShapeTensor, WeightTerms, WeightType, estimate_inference_memory,
};
pub use generic::GenericMemoryPool;
pub use gpu_pool::GpuMemoryPool;
pub use machine::{MemoryInfo, is_jetson, is_unified, memory_info};
pub use manager::{
    DeviceLimit, DeviceUsage, EngineVariable, GpuMemoryManager, LIMIT_PROFILES, LimitCheck,
    LimitProfile, LimitReport, LimitRequest, LimitType, LimitViolation, PlacedBlock,
    effective_limit,
};
pub use memory::{
    Address, Block, Device, DeviceInfo, Event, Handle, Mapping, Memory, MemoryId, Request, Stream,
};
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
pub use units::{Bytes, format_bytes};

/// The guide's Rust blocks, run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/chunking.md")]
    struct Chunking;
    #[doc = include_str!("../../../docs/guide/devices.md")]
    struct Devices;
    #[doc = include_str!("../../../docs/guide/estimates.md")]
    struct Estimates;
    #[doc = include_str!("../../../docs/guide/limits.md")]
    struct Limits;
    #[doc = include_str!("../../../docs/guide/pools.md")]
    struct Pools;
    #[doc = include_str!("../../../docs/guide/replays.md")]
    struct Replays;
}

/// The Rust blocks of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
