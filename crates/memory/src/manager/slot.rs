//! One device of a manager: its gate and its pool.

use std::sync::Arc;

use super::gate::Gate;
use super::report::{DeviceLimit, DeviceUsage, LimitType};
use crate::config::MemoryConfig;
use crate::error::Result;
use crate::memory::{Device, Memory, Request};
use crate::stack::pool::Pool;
use crate::units::Bytes;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) gate: Arc<Gate>,
    pub(super) pool: Option<Arc<Pool>>,
}

impl Slot {
    pub(super) fn pool(&mut self, config: &MemoryConfig, line: Option<Bytes>) -> Result<Arc<Pool>> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let limit = config.limit.into_iter().chain(line).min();
        let config = MemoryConfig { limit, ..config.clone() };
        let pool = Arc::new(Pool::new(Arc::clone(&self.gate) as Arc<dyn Memory>, config)?);
        self.pool = Some(Arc::clone(&pool));
        Ok(pool)
    }

    /// Draws the line here and tries it; also says whether the pool holds it by itself.
    pub(super) fn limit(
        &mut self,
        config: &MemoryConfig,
        line: Bytes,
    ) -> Result<(DeviceLimit, bool)> {
        self.gate.set_limit(line);
        let pool = self.pool(config, Some(line))?;
        let by_pool = pool.capacity() <= line;
        let over = || pool.allocate(Request::new(line.saturating_add(Bytes(1)))).map(drop);
        // A pool with a larger budget would take all there is before it refuses.
        let verified = self.gate.holds() && (!by_pool || self.gate.is_spared(&over));
        let (limit_type, why) = self.worth(verified);
        let limit = DeviceLimit {
            device: self.name.clone(),
            limit_type,
            why,
            verified,
            budget: pool.capacity().min(line),
            held: self.gate.held(),
        };
        Ok((limit, by_pool))
    }

    /// How far a limit is held here: the manager's own docs argue it.
    fn worth(&self, verified: bool) -> (LimitType, &'static str) {
        match self.gate.info().backend {
            _ if !verified => (LimitType::Unavailable, "a request past it was not refused"),
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
