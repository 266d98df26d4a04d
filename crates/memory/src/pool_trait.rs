//! A trait for code that monitors and trims pools but does not allocate.

use crate::memory::Memory;
use crate::pressure::MemoryPressure;
use crate::stats::MemoryStats;
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// What every pool can report and do, whatever its buffers are.
///
/// Every [`Memory`] implements it, and so does every
/// [`GenericMemoryPool`](crate::GenericMemoryPool); a dashboard or a trimming task takes
/// `&dyn GpuMemoryPool` and need not know which. `Memory` has methods of the same names: code
/// that allocates imports `Memory`, code that monitors imports this trait. With both imported,
/// the methods of [`Pool`](crate::Pool) itself are called.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::{GenericMemoryPool, GpuMemoryPool, MemoryConfig, Pool};
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
///
/// let blocks = Pool::new(Arc::new(Sim::new(SimConfig::default())), MemoryConfig::new())?;
/// let frames: GenericMemoryPool<Vec<u8>> = GenericMemoryPool::new(MemoryConfig::new());
/// for pool in [&blocks as &dyn GpuMemoryPool, &frames] {
///     assert_eq!(pool.stats().active_buffers, 0, "{}", pool.backend_name());
///     pool.clear_pool()?;
/// }
/// // With both traits imported, too.
/// use plimsoll_memory::Memory;
/// assert_eq!(blocks.stats().active_buffers, 0);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub trait GpuMemoryPool: Send + Sync {
    /// The kind of device, as it is written in `--device`.
    fn backend_name(&self) -> &str;
    /// What it holds and has handed out.
    fn stats(&self) -> MemoryStats;
    /// All of the device's memory; `None` if the pool does not know its device.
    fn total_memory(&self) -> Option<Bytes>;
    /// What nobody holds now; `None` if the device does not say.
    fn free_memory(&self) -> Option<Bytes>;
    /// The share of the budget that is in use; `None` if the pool has no budget.
    fn pressure(&self) -> Option<MemoryPressure>;
    /// Gives back what is held and not in use.
    fn clear_pool(&self) -> Result<()> {
        self.shrink().map(drop)
    }
    /// The same, and tells how much that was. Memory that queued work may still use is
    /// kept; [`Pool::clear`](crate::Pool::clear) waits for such work.
    fn shrink(&self) -> Result<Bytes>;
}

impl<M: Memory + ?Sized> GpuMemoryPool for M {
    fn backend_name(&self) -> &str {
        self.device().info().backend
    }

    fn stats(&self) -> MemoryStats {
        Memory::stats(self)
    }

    fn total_memory(&self) -> Option<Bytes> {
        Some(self.device().info().total)
    }

    fn free_memory(&self) -> Option<Bytes> {
        self.device().free_memory().ok()
    }

    fn pressure(&self) -> Option<MemoryPressure> {
        Some(Memory::pressure(self))
    }

    fn shrink(&self) -> Result<Bytes> {
        self.trim()
    }
}
