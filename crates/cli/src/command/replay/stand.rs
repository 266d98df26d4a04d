//! What a trace is replayed on: a device and a pool that may use all of it.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::backend::host::Host;
use plimsoll::backend::sim::{Latencies, Sim, SimConfig};
use plimsoll::backend::{BackendKind, DeviceId, open};
use plimsoll::{Bytes, Memory, MemoryConfig, Packing, Pool, Result};

/// The simulated device's size unless told: that of the one whose costs it charges.
const SIM_TOTAL: Bytes = Bytes::gib(141);
/// Larger than any device. The pool's tables grow with the device's size.
pub(super) const MOST_TOTAL: Bytes = Bytes::gib(4096);

/// What was asked for.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) backend: DeviceId,
    pub(super) tight: bool,
    pub(super) can_map: bool,
    /// Whether the simulated device charges for its calls.
    pub(super) charges: bool,
    pub(super) cap: Option<Bytes>,
}

/// A pool on a device.
pub(super) struct Stand {
    pub(super) pool: Pool,
    sim: Option<Arc<Sim>>,
}

impl Setup {
    /// The same with a device of this size.
    pub(super) fn with_cap(&self, cap: Bytes) -> Setup {
        Setup { cap: Some(cap), ..self.clone() }
    }

    /// The same with a device that charges nothing.
    pub(super) fn without_charges(&self) -> Setup {
        Setup { charges: false, ..self.clone() }
    }

    pub(super) fn packing(&self) -> Packing {
        if self.tight { Packing::Tight } else { Packing::Quick }
    }

    /// A new device with an empty pool on it.
    pub(super) fn open(&self) -> Result<Stand> {
        let (device, sim): (Arc<dyn Memory>, _) = match self.backend.kind {
            BackendKind::Host => match self.cap {
                Some(cap) => (Arc::new(Host::with_total(cap)), None),
                None => (Arc::new(Host::open()?), None),
            },
            BackendKind::Sim => {
                let sim = Arc::new(Sim::new(self.sim()));
                (sim.clone(), Some(sim))
            }
            _ => (open(self.backend)?, None),
        };
        let config = MemoryConfig::new()
            .with_gpu_memory_fraction(1.0)
            .with_min_free_bytes(0)
            .with_tracking(false)
            .with_packing(self.packing());
        Ok(Stand { pool: Pool::new(device, config)?, sim })
    }

    fn sim(&self) -> SimConfig {
        let config = SimConfig::default()
            .with_total(self.cap.unwrap_or(SIM_TOTAL))
            .with_mapping(self.can_map);
        if self.charges { config.with_latencies(Latencies::measured()) } else { config }
    }
}

impl Stand {
    /// The simulated time that the device has charged so far; none for a real one.
    pub(super) fn charged(&self) -> Duration {
        self.sim.as_ref().map_or(Duration::ZERO, |sim| sim.charged())
    }

    /// Whether calls are charged rather than made.
    pub(super) fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// The device's size.
    pub(super) fn total(&self) -> Bytes {
        self.pool.device().info().total
    }

    /// Whether the device maps memory by the page.
    pub(super) fn can_map(&self) -> bool {
        self.pool.device().mapping().is_some()
    }
}
