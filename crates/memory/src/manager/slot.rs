//! One device of a manager: its gate and its pool.

use std::sync::Arc;

use super::gate::DeviceGate;
use super::report::{DeviceLimit, DeviceUsage, LimitType};
use crate::config::MemoryConfig;
use crate::memory::{Device, Memory, Request};
use crate::stack::fallback::Fallback;
use crate::stack::pool::Pool;
use plimsoll_machine::error::Result;
use plimsoll_machine::machine::mps_client_limit;
use plimsoll_machine::sys::nvml;
use plimsoll_machine::units::Bytes;

/// A limit, applied to one device.
#[derive(Debug)]
pub(super) struct Drawn {
    pub(super) limit: DeviceLimit,
    /// Whether the pool's own budget holds it, too.
    pub(super) by_pool: bool,
    /// Whether the driver does.
    pub(super) by_driver: bool,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) gate: Arc<DeviceGate>,
    pub(super) pool: Option<Arc<Pool>>,
    /// The pool with the host's behind it, once that was asked for.
    pub(super) fallback: Option<Arc<Fallback>>,
}

impl Slot {
    pub(super) fn pool(
        &mut self,
        config: &MemoryConfig,
        enforced: Option<Bytes>,
    ) -> Result<Arc<Pool>> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let limit = config.limit.into_iter().chain(enforced).min();
        let config = MemoryConfig { limit, ..config.clone() };
        let pool = Arc::new(Pool::new(Arc::clone(&self.gate) as Arc<dyn Memory>, config)?);
        self.pool = Some(Arc::clone(&pool));
        Ok(pool)
    }

    /// What a limit changes: the gate's limit, and whether there is a pool.
    pub(super) fn state(&self) -> (Bytes, bool) {
        (self.gate.limit(), self.pool.is_some())
    }

    /// Undoes a limit.
    pub(super) fn restore(&mut self, (limit, had_pool): (Bytes, bool)) {
        self.gate.set_limit(limit);
        if !had_pool {
            (self.pool, self.fallback) = (None, None);
        }
    }

    pub(super) fn is_cuda(&self) -> bool {
        self.gate.info().backend == "cuda"
    }

    /// Applies the limit here and tries it.
    pub(super) fn limit(
        &mut self,
        config: &MemoryConfig,
        limit: Bytes,
        daemon: bool,
    ) -> Result<Drawn> {
        self.gate.set_limit(limit);
        let pool = self.pool(config, Some(limit))?;
        let by_pool = pool.capacity() <= limit;
        let over = || pool.allocate(Request::new(limit.saturating_add(Bytes(1)))).map(drop);
        // A pool with a larger budget would take all there is before it refuses.
        let verified = self.gate.holds() && (!by_pool || self.gate.is_spared(&over));
        let by_driver = daemon && self.is_held_by_mps();
        let (limit_type, why) = self.worth(verified, by_driver);
        let limit = DeviceLimit {
            device: self.name.clone(),
            limit_type,
            why,
            verified,
            budget: pool.capacity().min(limit),
            held: self.gate.held(),
        };
        Ok(Drawn { limit, by_pool, by_driver })
    }

    /// Whether the driver itself holds this process: the variable that MPS reads sets a
    /// limit, the driver reads it back as what is free while NVML has more, and refuses.
    fn is_held_by_mps(&self) -> bool {
        let info = self.gate.info();
        let limit = self.is_cuda().then(|| mps_client_limit(info.number)).flatten();
        let room = info.pci_bus.and_then(nvml::free_on_bus);
        limit.zip(room).is_some_and(|(limit, room)| self.gate.device_holds(limit, room))
    }

    /// How far a limit is held here: the manager's own docs argue it.
    fn worth(&self, verified: bool, by_driver: bool) -> (LimitType, &'static str) {
        match self.gate.info().backend {
            _ if !verified => (LimitType::Unavailable, "a request past it was not refused"),
            _ if by_driver => (LimitType::Hard, "the driver refuses, by an MPS client limit"),
            "sim" if self.gate.is_only_door() => (LimitType::Hard, "nobody can pass it by"),
            "sim" => (LimitType::Soft, "the program keeps a handle of its own to the device"),
            "cpu" => (LimitType::Soft, "others in the process use the system's allocator"),
            _ => (LimitType::Soft, "others in the process can call the driver"),
        }
    }

    pub(super) fn usage(&self) -> DeviceUsage {
        let (gate, info) = (&self.gate, self.gate.info());
        let pooled = self.pool.as_ref().map(|pool| pool.stats().in_use_bytes);
        DeviceUsage {
            device: self.name.clone(),
            held: gate.held(),
            peak: gate.peak(),
            in_use: pooled.unwrap_or(Bytes::ZERO),
            device_used: gate.free_memory().ok().map(|free| info.total.saturating_sub(free)),
            total: info.total,
            asked: gate.asked(),
            refused: gate.refused(),
        }
    }
}
