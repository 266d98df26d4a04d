//! A block of the manager's, and where it lies.

use std::fmt;
use std::sync::Arc;

use super::GpuMemoryManager;
use crate::backend::{BackendKind, open};
use crate::memory::{Block, Device, Memory, Request, Stream};
use crate::stack::fallback::Fallback;
use crate::stack::pool::Pool;
use crate::stack::track::BufferLocation;
use plimsoll_machine::error::Result;

/// A block that [`GpuMemoryManager::allocate_or_fall_back`] handed out: on the device, or on
/// the host because the device was full.
#[derive(Debug)]
#[must_use = "a block that is not released is held for as long as the manager lives"]
pub struct PlacedBlock {
    block: Block,
    location: BufferLocation,
    memory: Arc<Fallback>,
}

impl PlacedBlock {
    /// The block.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Whether it lies on the device or on the host.
    #[must_use]
    pub fn location(&self) -> BufferLocation {
        self.location
    }

    /// The device that it lies on, for its bytes.
    #[must_use]
    pub fn device(&self) -> &dyn Device {
        self.memory.device_of(&self.block)
    }

    /// Gives it back, behind what was queued on a stream of the device that was asked.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::release`].
    pub fn release(self, stream: Stream) -> Result<()> {
        self.memory.release(self.block, stream)
    }
}

impl fmt::Display for PlacedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.block.size(), self.location)
    }
}

impl GpuMemoryManager {
    /// Memory on a device or, where that is full, on the host; the result says which. A block
    /// on the host is counted in [`MemoryStats::cpu_fallbacks`](crate::MemoryStats). With
    /// `cpu_fallback_enabled` off in the configuration the host is not asked. The pools' own
    /// `allocate` never hands out host memory for a device's.
    ///
    /// The host's pool is the manager's own for `cpu` where it has one, under the same limit.
    ///
    /// ```
    /// use plimsoll_memory::backend::sim::{Sim, SimConfig};
    /// use plimsoll_memory::{BufferLocation, Bytes, GpuMemoryManager, MemoryConfig, Request, Stream};
    ///
    /// let manager = GpuMemoryManager::new(MemoryConfig::new().with_min_free_bytes(0))?;
    /// let device = Sim::new(SimConfig::default().with_total(Bytes::mib(64)));
    /// let name = manager.add_device(std::sync::Arc::new(device));
    /// let first = manager.allocate_or_fall_back(&name, Request::new(Bytes::mib(40)))?;
    /// let second = manager.allocate_or_fall_back(&name, Request::new(Bytes::mib(40)))?;
    /// assert_eq!(first.location(), BufferLocation::Gpu);
    /// assert_eq!(second.location(), BufferLocation::Cpu);
    /// assert_eq!(manager.stats().cpu_fallbacks, 1);
    /// second.release(Stream::DEFAULT)?;
    /// first.release(Stream::DEFAULT)?;
    /// # Ok::<(), plimsoll_memory::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`](crate::Error::Unavailable) for a device that the manager does not
    /// have; out of memory where neither has room.
    pub fn allocate_or_fall_back(&self, device: &str, request: Request) -> Result<PlacedBlock> {
        let memory = self.fallback(device)?;
        let block = memory.allocate(request)?;
        let location = BufferLocation::of(memory.device_of(&block).info().backend);
        Ok(PlacedBlock { block, location, memory })
    }

    /// The pool of a device with the host's behind it, made when it is first asked for.
    fn fallback(&self, device: &str) -> Result<Arc<Fallback>> {
        let pool = self.pool(device)?;
        let host = self.host_pool()?;
        let mut state = self.state();
        let wanted = if device == "host" { "cpu" } else { device };
        let counter = Arc::clone(&state.fallbacks);
        let made = || {
            let fallback = Fallback::new(pool as Arc<dyn Memory>, host as Arc<dyn Memory>);
            Arc::new(fallback.with_config(&self.config).with_counter(counter))
        };
        let slot = state.slots.iter_mut().find(|slot| slot.name == wanted);
        Ok(match slot {
            Some(slot) => Arc::clone(slot.fallback.get_or_insert_with(made)),
            None => made(),
        })
    }

    /// The pool of `cpu`, or one beside the manager's devices.
    fn host_pool(&self) -> Result<Arc<Pool>> {
        if self.devices().iter().any(|name| name == "cpu") {
            return self.pool("cpu");
        }
        if let Some(host) = &self.state().host {
            return Ok(Arc::clone(host));
        }
        let pool = Pool::new(open(BackendKind::Host)? as Arc<dyn Memory>, self.config.clone())?;
        Ok(Arc::clone(self.state().host.get_or_insert_with(|| Arc::new(pool))))
    }
}
