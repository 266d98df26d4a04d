//! What the calls for memory cost on a device: how many of each kind a pool made, and how long they took.
//!
//! The first pass of a trace is mostly such calls, and what one costs differs from device to device, so a replay
//! shows them. Between the pool and the device stands a memory that forwards everything and reads the clock around each
//! call that takes, maps or returns memory. On the simulated device it is what that charged.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::backend::sim::Sim;
use plimsoll::{
    Block, Bytes, Device, Handle, Mapping, Memory, MemoryStats, Request, Result, Stream,
};
use serde::Serialize;

/// The kinds of calls, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeviceCall {
    /// Addresses set aside.
    Reserve,
    /// Physical memory taken.
    Create,
    /// Physical memory mapped and made accessible.
    Map,
    /// Unmapped.
    Unmap,
    /// Physical memory returned.
    Destroy,
    /// A plain block taken.
    Allocate,
    /// A plain block returned.
    Free,
}

impl DeviceCall {
    const ALL: [DeviceCall; 7] = [
        DeviceCall::Reserve,
        DeviceCall::Create,
        DeviceCall::Map,
        DeviceCall::Unmap,
        DeviceCall::Destroy,
        DeviceCall::Allocate,
        DeviceCall::Free,
    ];

    /// What it is called on the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            DeviceCall::Reserve => "addresses set aside",
            DeviceCall::Create => "memory taken",
            DeviceCall::Map => "mapped",
            DeviceCall::Unmap => "unmapped",
            DeviceCall::Destroy => "memory returned",
            DeviceCall::Allocate => "plain blocks taken",
            DeviceCall::Free => "plain blocks returned",
        }
    }
}

/// The calls of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct CallCost {
    pub(super) call: DeviceCall,
    pub(super) calls: u64,
    pub(super) total_ns: u64,
}

/// Counts that several threads add to.
#[derive(Debug, Default)]
struct CallCount {
    calls: AtomicU64,
    nanos: AtomicU64,
}

/// A device whose calls for memory are counted and timed.
pub(super) struct ClockedMemory {
    inner: Arc<dyn Memory>,
    /// The device itself where it is simulated: it says what its calls cost.
    sim: Option<Arc<Sim>>,
    counts: [CallCount; DeviceCall::ALL.len()],
}

impl fmt::Debug for ClockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClockedMemory").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ClockedMemory {
    pub(super) fn new(inner: Arc<dyn Memory>, sim: Option<Arc<Sim>>) -> ClockedMemory {
        ClockedMemory { inner, sim, counts: Default::default() }
    }

    /// The calls so far, by kind.
    pub(super) fn calls(&self) -> Vec<CallCost> {
        let counts = DeviceCall::ALL.into_iter().zip(&self.counts);
        let cost = counts.map(|(call, count)| CallCost {
            call,
            calls: count.calls.load(Ordering::Relaxed),
            total_ns: count.nanos.load(Ordering::Relaxed),
        });
        cost.filter(|cost| cost.calls > 0).collect()
    }

    /// Makes a call, and counts it with what the simulated device charged for it, or else the time that passed.
    fn timed<T>(&self, call: DeviceCall, run: impl FnOnce() -> T) -> T {
        let charged = || self.sim.as_ref().map(|sim| sim.charged());
        let (before, start) = (charged(), Instant::now());
        let done = run();
        let took = match (before, charged()) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => start.elapsed(),
        };
        let count = &self.counts[call as usize];
        count.calls.fetch_add(1, Ordering::Relaxed);
        count.nanos.fetch_add(nanos(took), Ordering::Relaxed);
        done
    }

    fn pages(&self) -> Result<&dyn Mapping> {
        self.inner.mapping().ok_or_else(|| plimsoll::Error::Unavailable {
            what: "mapping physical memory".to_string(),
            why: format!("{} does not offer it", self.inner.name()),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Memory for ClockedMemory {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn device(&self) -> &dyn Device {
        self.inner.device()
    }

    fn owns(&self, block: &Block) -> bool {
        self.inner.owns(block)
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        self.timed(DeviceCall::Allocate, || self.inner.allocate(request))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.timed(DeviceCall::Free, || self.inner.release(block, stream))
    }

    fn stats(&self) -> MemoryStats {
        self.inner.stats()
    }

    fn capacity(&self) -> Bytes {
        self.inner.capacity()
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.inner.mapping().map(|_| self as &dyn Mapping)
    }
}

impl Mapping for ClockedMemory {
    fn page_size(&self) -> Bytes {
        self.inner.mapping().map_or(Bytes::ZERO, Mapping::page_size)
    }

    fn can_alias(&self) -> bool {
        self.inner.mapping().is_some_and(Mapping::can_alias)
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        let pages = self.pages()?;
        self.timed(DeviceCall::Reserve, || pages.reserve(size))
    }

    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        self.pages()?.unreserve(base, size)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let pages = self.pages()?;
        self.timed(DeviceCall::Create, || pages.create(size))
    }

    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        let pages = self.pages()?;
        self.timed(DeviceCall::Destroy, || pages.destroy(handle, size))
    }

    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        let pages = self.pages()?;
        self.timed(DeviceCall::Map, || pages.map(address, handle, size))
    }

    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        let pages = self.pages()?;
        self.timed(DeviceCall::Unmap, || pages.unmap(address, size))
    }
}
