//! The layers: each is a memory that wraps a memory, adds one idea and forwards the rest.
//!
//! | layer | its idea | over a pool it sees | under a pool it sees |
//! | --- | --- | --- | --- |
//! | [`pool`] | keeps what was returned, for the next who asks | | |
//! | [`limit`] | a limit that is never exceeded | what is live | what is held |
//! | [`track`] | a list of what is live | callers' buffers | the pool's pages |
//! | [`pressure`] | calls when a level is crossed | how much is live | how much is held |
//! | [`fallback`] | a second memory for when the first is full | | (not under a pool) |
//!
//! What is *over* a pool is asked for every request and costs some tens of nanoseconds
//! there; what is *under* it is asked only when the pool asks the device. So a limit that
//! the process must hold to belongs under the pool, a share of one pool for each of its
//! users over it. Each file says more about its own place.
//!
//! ```
//! use std::sync::Arc;
//! use plimsoll_memory::backend::{host::Host, sim::{Sim, SimConfig}};
//! use plimsoll_memory::{Bytes, Fallback, Limit, Memory, MemoryConfig, Pool, Request, Stream, Tracked};
//!
//! let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(4))));
//! let limit = Arc::new(Limit::new(device, Bytes::gib(1)));
//! let pool = Arc::new(Pool::new(limit, MemoryConfig::for_inference())?);
//! let host = Arc::new(Host::with_total(Bytes::gib(2)));
//! let memory = Tracked::new(Arc::new(Fallback::new(pool, host)));
//!
//! let large = memory.allocate(Request::new(Bytes::mib(1500)).tagged("weights"))?;
//! assert_eq!(memory.device_of(&large).info().backend, "cpu");
//! assert_eq!(memory.stats().cpu_fallbacks, 1);
//! memory.release(large, Stream::DEFAULT)?;
//! assert!(memory.live().is_empty());
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```

pub mod fallback;
pub(crate) mod layer;
pub mod limit;
pub mod pool;
pub mod pressure;
pub mod track;

pub use layer::MemoryLayer;
