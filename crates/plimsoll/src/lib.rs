//! GPU and host memory as one library: pools, limits, tracking, pressure, fallback,
//! estimates and chunking.
//!
//! This crate has no code of its own. It gives one name to three:
//!
//! | crate | what it has |
//! | --- | --- |
//! | `plimsoll-memory` | devices, pools, limits, tracking, fallback, chunking |
//! | `plimsoll-machine` | platforms, probes, tegrastats, forecasts, amounts and errors |
//! | `plimsoll-models` | model files, estimates, traces |
//!
//! ```
//! use std::sync::Arc;
//! use plimsoll::backend::sim::{Sim, SimConfig};
//! use plimsoll::{Bytes, Limit, Memory, MemoryConfig, Pool, Request, Stream};
//!
//! let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(8))));
//! let limit = Arc::new(Limit::new(device, Bytes::gib(2)));       // never a byte more
//! let pool = Pool::new(limit, MemoryConfig::for_inference())?;   // kept, cut and merged
//!
//! let block = pool.allocate(Request::new(Bytes::mib(64)).tagged("weights"))?;
//! pool.release(block, Stream::DEFAULT)?;
//! # Ok::<(), plimsoll::Error>(())
//! ```

pub use plimsoll_machine::{
    Bytes, Error, MemoryInfo, Result, error, files, format_bytes, is_jetson, is_unified, machine,
    memory_info, platform, probe, text, units,
};
pub use plimsoll_memory::*;
pub use plimsoll_models::{
    Biases, CacheTypes, ComputeTerms, ElementType, EstimateRange, InferenceMemoryEstimate,
    LayerCache, Mlp, ModelShape, ShapeTensor, WeightTerms, WeightType, estimate,
    estimate_inference_memory, pickle, trace,
};

/// The guide's Rust blocks, run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/chunking.md")]
    struct Chunking;
    #[doc = include_str!("../../../docs/guide/devices.md")]
    struct Devices;
    #[doc = include_str!("../../../docs/guide/estimates.md")]
    struct Estimates;
    #[doc = include_str!("../../../docs/guide/extending.md")]
    struct Extending;
    #[doc = include_str!("../../../docs/guide/fallback.md")]
    struct Fallback;
    #[doc = include_str!("../../../docs/guide/limits.md")]
    struct Limits;
    #[doc = include_str!("../../../docs/guide/pools.md")]
    struct Pools;
    #[doc = include_str!("../../../docs/guide/production.md")]
    struct Production;
    #[doc = include_str!("../../../docs/guide/tradeoffs.md")]
    struct Tradeoffs;
    #[doc = include_str!("../../../docs/guide/unified.md")]
    struct Unified;
}

/// The Rust blocks of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
