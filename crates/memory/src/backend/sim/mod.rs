//! A device of arithmetic: exact, fast, and strict.
//!
//! It has no hardware behind it, yet keeps every promise of a real one, so that pools,
//! limits and schedules are tested with exact numbers: a total, a granularity, pages
//! that are mapped to addresses, streams with work of a known length on a clock that
//! the test moves, calls that cost what they were measured to cost, and calls that fail
//! when told to.
//!
//! It is also strict where hardware is silent: work that touches memory which is not
//! mapped, two pieces of work on the same bytes that nothing orders, and memory taken
//! away while work is using it are recorded as [`faults`](Sim::faults). A pool that is
//! wrong on a GPU gives wrong numbers once a month; here it fails the test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::memory::{
    Address, Block, Device, DeviceInfo, Event, Handle, Mapping, Memory, MemoryId, Request, Stream,
    refusal, stranger,
};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

mod cost;
mod space;
mod work;

pub use cost::{Latencies, SimCall};
use space::SimSpace;
use work::SimTimeline;

/// What the simulated device is like.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// All of its memory.
    pub total: Bytes,
    /// Whether physical memory can be mapped to addresses; many boards cannot.
    pub can_map: bool,
    /// Whether physical memory can be mapped at several addresses at once.
    pub can_alias: bool,
    /// The smallest page.
    pub page: Bytes,
    /// The step in which plain blocks are taken.
    pub granularity: Bytes,
    /// The alignment of every block.
    pub alignment: u64,
    /// What the calls cost; nothing unless asked for.
    pub latencies: Option<Latencies>,
    /// How long after it was recorded an event is over at the earliest. On a GPU that takes some
    /// microseconds even behind no work, so none is over when it is asked after at once.
    pub event_lag: Duration,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            total: Bytes::gib(8),
            can_map: true,
            can_alias: true,
            page: Bytes::mib(2),
            granularity: Bytes::kib(4),
            alignment: 256,
            latencies: None,
            event_lag: Duration::ZERO,
        }
    }
}

impl SimConfig {
    /// A device of this size.
    #[must_use]
    pub fn with_total(mut self, total: impl Into<Bytes>) -> Self {
        self.total = total.into();
        self
    }

    /// A device that can, or cannot, map physical memory.
    #[must_use]
    pub fn with_mapping(mut self, can_map: bool) -> Self {
        self.can_map = can_map;
        self
    }

    /// A device that can, or cannot, map physical memory at several addresses at once.
    #[must_use]
    pub fn with_aliases(mut self, can_alias: bool) -> Self {
        self.can_alias = can_alias;
        self
    }

    /// A device whose calls cost what they were measured to cost.
    #[must_use]
    pub fn with_latencies(mut self, latencies: Latencies) -> Self {
        self.latencies = Some(latencies);
        self
    }

    /// A device whose events are over this long after they were recorded.
    #[must_use]
    pub fn with_event_lag(mut self, lag: Duration) -> Self {
        self.event_lag = lag;
        self
    }
}

/// Decides which calls fail: given a call, the error that it shall end with.
pub type Saboteur = Box<dyn FnMut(SimCall) -> Option<Error> + Send>;

/// A device of arithmetic.
pub struct Sim {
    id: MemoryId,
    config: SimConfig,
    info: DeviceInfo,
    state: Mutex<SimState>,
    charged: AtomicU64,
    calls: [AtomicU64; SimCall::ALL.len()],
}

struct SimState {
    space: SimSpace,
    work: SimTimeline,
    saboteur: Option<Saboteur>,
    faults: Vec<String>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Sim {
    /// A device as described.
    #[must_use]
    pub fn new(config: SimConfig) -> Sim {
        Sim {
            id: MemoryId::next(),
            info: DeviceInfo {
                name: "sim".to_string(),
                backend: "sim",
                number: 0,
                total: config.total,
                alignment: config.alignment,
                granularity: config.granularity,
                is_unified: Some(false),
                compute_capability: None,
                pci_bus: None,
            },
            state: Mutex::new(SimState {
                space: SimSpace::new(&config),
                work: SimTimeline::default(),
                saboteur: None,
                faults: Vec::new(),
            }),
            config,
            charged: AtomicU64::new(0),
            calls: Default::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a call: counts it, charges for it, and lets the saboteur decide whether it fails.
    fn enter(&self, call: SimCall, size: Bytes) -> Result<MutexGuard<'_, SimState>> {
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(latencies) = &self.config.latencies {
            self.charged.fetch_add(latencies.of(call, size), Ordering::Relaxed);
        }
        let mut state = self.state();
        match state.saboteur.as_mut().and_then(|decide| decide(call)) {
            Some(error) => Err(error),
            None => Ok(state),
        }
    }

    /// The simulated time that all calls together have cost.
    #[must_use]
    pub fn charged(&self) -> Duration {
        Duration::from_nanos(self.charged.load(Ordering::Relaxed))
    }

    /// How often a call was made.
    #[must_use]
    pub fn calls(&self, call: SimCall) -> u64 {
        self.calls[call as usize].load(Ordering::Relaxed)
    }

    /// Lets calls fail from now on, or no longer.
    pub fn sabotage(&self, saboteur: Option<Saboteur>) {
        self.state().saboteur = saboteur;
    }

    /// Queues work of a known length that uses these bytes.
    pub fn launch(&self, stream: Stream, length: Duration, uses: &[(Address, Bytes)]) {
        let state = &mut *self.state();
        for (address, size) in uses {
            if !state.space.is_backed(address.pointer(), size.0) {
                let at = address.pointer();
                state.faults.push(format!("work on {stream:?} uses {size} at {at:#x}: not mapped"));
            }
        }
        let uses = uses.iter().flat_map(|(a, size)| state.space.uses(a.pointer(), size.0));
        let uses = uses.collect();
        state.faults.extend(state.work.launch(stream, length.as_nanos() as u64, uses));
    }

    /// Moves the clock on.
    pub fn advance(&self, time: Duration) {
        self.state().work.advance(time.as_nanos() as u64);
    }

    /// What hardware would have done wrong in silence.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    fn refuse(&self, size: Bytes, free: Bytes) -> Error {
        refusal("sim", size, free, self.config.total)
    }

    /// Records a fault for memory that is taken away under unfinished work.
    fn check_idle(state: &mut SimState, what: &str, address: u64, size: u64) {
        if let Some(stream) = state.work.user_of(address, address + size) {
            state
                .faults
                .push(format!("{what} of {address:#x} under unfinished work on {stream:?}"));
        }
    }
}

impl Memory for Sim {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let held = request.size.max(Bytes(1)).round_up(self.config.granularity.0);
        let mut state = self.enter(SimCall::Allocate, held)?;
        let free = state.space.free_bytes();
        let (base, generation) = state
            .space
            .allocate(request.size.0, held.0)
            .ok_or_else(|| self.refuse(request.size, free))?;
        let address = Address { buffer: base, offset: 0 };
        Ok(Block::new(self.id, base, generation, request.size, address))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        let mut state = self.enter(SimCall::Free, block.size())?;
        if !self.owns(&block) || !state.space.is_live(&block) {
            return Err(stranger(self, &block));
        }
        // A plain block is returned behind the work of its stream by waiting for it.
        state.work.drain(stream);
        Sim::check_idle(&mut state, "free", block.key(), block.size().0);
        state.space.free(block.key());
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        self.state().space.stats()
    }

    fn capacity(&self) -> Bytes {
        self.config.total
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.config.can_map.then_some(self)
    }
}

impl Mapping for Sim {
    fn page_size(&self) -> Bytes {
        self.config.page
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        self.enter(SimCall::Reserve, size)?.space.reserve(size.0)
    }

    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        self.enter(SimCall::Unreserve, size)?.space.unreserve(base, size.0)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let mut state = self.enter(SimCall::Create, size)?;
        let free = state.space.free_bytes();
        state.space.create(size.0)?.ok_or_else(|| self.refuse(size, free))
    }

    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        self.enter(SimCall::Destroy, size)?.space.destroy(handle, size.0)
    }

    fn can_alias(&self) -> bool {
        self.config.can_alias
    }

    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        self.enter(SimCall::Map, size)?.space.map(address, handle, size.0)
    }

    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        let mut state = self.enter(SimCall::Unmap, size)?;
        Sim::check_idle(&mut state, "unmapping", address, size.0);
        state.space.unmap(address, size.0)
    }
}

impl Device for Sim {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Result<Bytes> {
        Ok(self.enter(SimCall::Info, Bytes::ZERO)?.space.free_bytes())
    }

    fn new_stream(&self) -> Result<Stream> {
        self.state().work.new_stream()
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        let lag = self.config.event_lag.as_nanos() as u64;
        Ok(self.enter(SimCall::Record, Bytes::ZERO)?.work.record(stream, lag))
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.enter(SimCall::Query, Bytes::ZERO)?.work.is_done(event)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.enter(SimCall::Wait, Bytes::ZERO)?.work.wait(stream, event)
    }

    fn synchronize(&self, event: Event) -> Result<()> {
        self.enter(SimCall::Synchronize, Bytes::ZERO)?.work.synchronize(event)
    }

    fn forget(&self, event: Event) -> Result<()> {
        self.state().work.forget(event);
        Ok(())
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.enter(SimCall::Copy, bytes.len().into())?.space.write(to.pointer(), bytes)
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.enter(SimCall::Copy, bytes.len().into())?.space.read(from.pointer(), bytes)
    }
}
