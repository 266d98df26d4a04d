//! What a trace is replayed on: a device and a pool that may use all of it.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::backend::cuda::{Cuda, CudaOptions, Toucher};
use plimsoll::backend::host::Host;
use plimsoll::backend::sim::{Latencies, Sim, SimConfig};
use plimsoll::backend::{BackendKind, DeviceId, open};
use plimsoll::trace::Trace;
use plimsoll::trace::replay::TraceReplay;
use plimsoll::{Bytes, Error, Limit, Memory, MemoryConfig, Packing, Pool, Result};

use super::clocked::{CallCost, ClockedMemory};

/// The default size of the simulated device: that of the real one whose costs it charges.
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
    /// Whether kernels touch the blocks.
    pub(super) kernels: bool,
    pub(super) cap: Option<Bytes>,
}

/// A pool on a device.
pub(super) struct Stand {
    pub(super) pool: Pool,
    clocked: Arc<ClockedMemory>,
    sim: Option<Arc<Sim>>,
    toucher: Option<Toucher>,
}

/// A device, and what of it is more than a memory.
struct Ground {
    memory: Arc<dyn Memory>,
    sim: Option<Arc<Sim>>,
    toucher: Option<Toucher>,
}

impl Ground {
    fn plain(memory: Arc<dyn Memory>) -> Ground {
        Ground { memory, sim: None, toucher: None }
    }
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
        let ground = self.ground()?;
        if self.kernels && ground.toucher.is_none() {
            return Err(Error::Config {
                field: "--kernels",
                value: format!("set on {}", self.backend),
                range: "left out: kernels run on cuda:N alone",
            });
        }
        let config = MemoryConfig::new()
            .with_gpu_memory_fraction(1.0)
            .with_min_free_bytes(0)
            .with_tracking(false)
            .with_packing(self.packing());
        let Ground { memory, sim, toucher } = ground;
        let clocked = Arc::new(ClockedMemory::new(memory, sim.clone()));
        let pool = Pool::new(clocked.clone(), config)?;
        Ok(Stand { pool, clocked, sim, toucher })
    }

    fn ground(&self) -> Result<Ground> {
        Ok(match (self.backend.kind, self.cap) {
            (BackendKind::Host, Some(cap)) => Ground::plain(Arc::new(Host::with_total(cap))),
            (BackendKind::Sim, _) => {
                let sim = Arc::new(Sim::new(self.sim()));
                Ground { memory: sim.clone(), sim: Some(sim), toucher: None }
            }
            (BackendKind::Cuda, cap) => {
                let options = CudaOptions::new(self.backend.number).mapping(self.can_map);
                let options = cap.map_or(options.clone(), |cap| options.total(cap));
                let device = Arc::new(Cuda::open_with(&options)?);
                let toucher = self.kernels.then(|| Toucher::new(&device)).transpose()?;
                Ground { memory: device, sim: None, toucher }
            }
            (_, Some(cap)) => Ground::plain(Arc::new(Limit::new(open(self.backend)?, cap))),
            (_, None) => Ground::plain(open(self.backend)?),
        })
    }

    fn sim(&self) -> SimConfig {
        let config = SimConfig::default()
            .with_total(self.cap.unwrap_or(SIM_TOTAL))
            .with_mapping(self.can_map);
        if self.charges { config.with_latencies(Latencies::measured()) } else { config }
    }
}

impl Stand {
    /// A replay on its pool, with kernels on the blocks where that was asked for.
    pub(super) fn replay<'a>(&'a self, trace: &'a Trace) -> Result<TraceReplay<'a>> {
        let replay = TraceReplay::new(&self.pool, trace)?;
        Ok(match &self.toucher {
            None => replay,
            Some(toucher) => replay.with_work(Box::new(|block, stream| {
                toucher.touch(stream, block.address(), block.size())
            })),
        })
    }

    /// The simulated time that the device has charged so far; none for a real one.
    pub(super) fn charged(&self) -> Duration {
        self.sim.as_ref().map_or(Duration::ZERO, |sim| sim.charged())
    }

    /// The calls for memory that the device has had so far.
    pub(super) fn calls(&self) -> Vec<CallCost> {
        self.clocked.calls()
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
