//! A second memory for when the first is full.
//!
//! [`Fallback`] is the layer: a request that the first memory refuses, because it is full
//! now or could never hold it, goes to the second. It is never silent: every such request
//! counts in `cpu_fallbacks`, and a warning is logged when the second memory begins to
//! hold something, one for each time that this happens and not one for each block. Other
//! failures of the first memory are failures, not a reason to go elsewhere.
//!
//! [`FallbackBuffer`] is the same idea for a buffer of numbers that the program owns: it
//! knows where it is and moves back when there is room.
//!
//! # Two devices
//!
//! A stack that stands on two devices must say which one a block lies on:
//! [`Memory::device_of`]. Streams are those of the first device.
//! The second, if it is another device, knows nothing of them, so a block that comes back
//! to it is held until the stream has done all that was queued, on the host: slow, and
//! right, in a case that is slow already.
//!
//! # Where to put it
//!
//! On top of two whole stacks: `fallback(pool over device, host)`. A tracker, a limit or a
//! watch may stand over it; a pool may not, since it takes what is under it for one
//! device. It offers no mapping.

mod buffer;
mod counter;
mod gpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::MemoryConfig;
use crate::memory::{Block, Device, Memory, Request, Stream, stranger};
use crate::pressure::MemoryPressure;
use crate::stats::MemoryStats;
pub use buffer::FallbackBuffer;
pub use counter::FallbackCounter;
pub use gpu::{GpuBuffer, MemoryBuffer};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A memory, and a second one for when it is full.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::backend::{host::Host, sim::{Sim, SimConfig}};
/// use plimsoll_memory::{Bytes, Fallback, Memory, Request, Stream};
///
/// let gpu = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::mib(64))));
/// let cpu = Arc::new(Host::with_total(Bytes::gib(1)));
/// let memory = Fallback::new(gpu, cpu);
/// let fits = memory.allocate(Request::new(Bytes::mib(48)))?;
/// let does_not = memory.allocate(Request::new(Bytes::mib(48)))?;
/// assert_eq!(memory.device_of(&fits).info().backend, "sim");
/// assert_eq!(memory.device_of(&does_not).info().backend, "cpu");
/// assert_eq!(memory.stats().cpu_fallbacks, 1);
/// memory.release(does_not, Stream::DEFAULT)?;
/// memory.release(fits, Stream::DEFAULT)?;
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Fallback {
    name: String,
    first: Arc<dyn Memory>,
    second: Arc<dyn Memory>,
    enabled: bool,
    counter: Arc<FallbackCounter>,
    /// Live blocks of the second memory.
    away: AtomicU64,
    crossings: AtomicU64,
    /// The most that was held by both at once.
    peak: AtomicU64,
}

impl Fallback {
    /// `first`, and `second` when that is full.
    #[must_use]
    pub fn new(first: Arc<dyn Memory>, second: Arc<dyn Memory>) -> Fallback {
        Fallback {
            name: format!("{}, else {}", first.name(), second.name()),
            first,
            second,
            enabled: true,
            counter: Arc::default(),
            away: AtomicU64::new(0),
            crossings: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// As the configuration says: with `cpu_fallback_enabled` off, the second memory is
    /// not asked.
    #[must_use]
    pub fn with_config(mut self, config: &MemoryConfig) -> Fallback {
        self.enabled = config.cpu_fallback_enabled;
        self
    }

    /// Counts into a counter that others count into as well.
    #[must_use]
    pub fn with_counter(mut self, counter: Arc<FallbackCounter>) -> Fallback {
        self.counter = counter;
        self
    }

    /// The counter behind `cpu_fallbacks`, for [`FallbackBuffer`]s to count into.
    #[must_use]
    pub fn counter(&self) -> &Arc<FallbackCounter> {
        &self.counter
    }

    /// How often the second memory began to hold something: as often as a warning was
    /// logged.
    #[must_use]
    pub fn crossings(&self) -> u64 {
        self.crossings.load(Ordering::Relaxed)
    }

    /// Whether both stand on one device, and so know the same streams.
    fn is_one_device(&self) -> bool {
        std::ptr::addr_eq(self.first.device(), self.second.device())
    }

    fn allocate_away(&self, request: Request, reason: &Error) -> Result<Block> {
        let stream = if self.is_one_device() { request.stream } else { Stream::DEFAULT };
        let block = self
            .second
            .allocate(request.on(stream))
            .map_err(|second| self.refusal(request.size, reason, second))?;
        self.counter.add();
        if self.away.fetch_add(1, Ordering::AcqRel) == 0 {
            self.crossings.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                requested = %request.size, %reason, instead = self.second.name(), "fell back"
            );
        }
        Ok(block)
    }

    /// What neither could serve: full now if one of them may serve it later.
    fn refusal(&self, requested: Bytes, first: &Error, second: Error) -> Error {
        if !second.is_out_of_memory() {
            return second;
        }
        let memory = self.name.clone();
        if first.is_full_now() || second.is_full_now() {
            let available = self.first.available().max(self.second.available());
            return Error::OutOfMemory { memory, requested, available };
        }
        // It is one block: it must fit in one of the two.
        let capacity = self.first.capacity().max(self.second.capacity());
        Error::NeverFits { memory, requested, capacity }
    }

    fn release_away(&self, block: Block, stream: Stream) -> Result<()> {
        if self.is_one_device() {
            self.second.release(block, stream)?;
        } else {
            let device = self.first.device();
            let event = device.record(stream)?;
            let waited = device.synchronize(event);
            device.forget(event)?;
            waited?;
            self.second.release(block, Stream::DEFAULT)?;
        }
        if self.away.fetch_sub(1, Ordering::AcqRel) == 1 {
            tracing::info!(memory = self.first.name(), "all is back on the first memory");
        }
        Ok(())
    }

    /// Both as one, and the most that they held together as far as was seen.
    fn both(&self) -> MemoryStats {
        let mut sum = self.first.stats().plus(self.second.stats());
        let now = sum.total_allocated_bytes.max(sum.peak_bytes).0;
        sum.peak_bytes = Bytes(self.peak.fetch_max(now, Ordering::Relaxed).max(now));
        sum
    }
}

impl Memory for Fallback {
    fn name(&self) -> &str {
        &self.name
    }

    /// The first: its streams are the ones that requests name.
    fn device(&self) -> &dyn Device {
        self.first.device()
    }

    fn device_of(&self, block: &Block) -> &dyn Device {
        if self.second.owns(block) {
            self.second.device_of(block)
        } else {
            self.first.device_of(block)
        }
    }

    fn owns(&self, block: &Block) -> bool {
        self.first.owns(block) || self.second.owns(block)
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let block = match self.first.allocate(request) {
            Err(reason) if self.enabled && reason.is_out_of_memory() => {
                self.allocate_away(request, &reason)?
            }
            other => other?,
        };
        // While only the first holds anything, its own peak is the peak of both.
        if self.away.load(Ordering::Relaxed) > 0 {
            self.both();
        }
        Ok(block)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        match () {
            () if self.first.owns(&block) => self.first.release(block, stream),
            () if self.second.owns(&block) => self.release_away(block, stream),
            () => Err(stranger(self, &block)),
        }
    }

    fn stats(&self) -> MemoryStats {
        let mut sum = self.both();
        sum.cpu_fallbacks += self.counter.get();
        sum
    }

    /// That of both. One block is never larger than the larger of the two.
    fn capacity(&self) -> Bytes {
        if self.enabled {
            self.first.capacity().saturating_add(self.second.capacity())
        } else {
            self.first.capacity()
        }
    }

    fn trim(&self) -> Result<Bytes> {
        Ok(self.first.trim()?.saturating_add(self.second.trim()?))
    }

    /// The tighter of the two: of a full device and an empty host, the full device.
    fn pressure(&self) -> MemoryPressure {
        self.first.pressure().max(self.second.pressure())
    }
}
