//! What a piece of work takes: pictures before and after, and the peak between.
//!
//! A picture that is taken between two steps says nothing of what was live within them,
//! and the largest of many pictures is not a peak. So [`MemoryProfiler`] does not sample:
//! it is itself a [`Memory`], the topmost layer, and counts every byte that goes through
//! it. The peak since the last reset is exact, whenever it is asked for.
//!
//! What is counted is *live* memory as it was asked for; what is held from the device
//! (live, pooled and lost to rounding) comes from the memory below, and what is free from
//! the device. A picture keeps the three apart.

mod report;

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub use report::{MemoryReport, Obtained, generate_memory_report};

use crate::memory::{Block, Memory, Request, Stream};
use crate::stack;
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// A memory that counts the peak of what goes through it, and takes pictures.
///
/// Blocks must be returned through it as well. With several threads, a call counts until
/// it has returned: a release that overlaps an allocation is taken to come after it, so
/// the peak is never too low.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::{Bytes, Memory, MemoryConfig, MemoryProfiler, Pool, Request, Stream};
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
///
/// let device = Arc::new(Sim::new(SimConfig::default()));
/// let memory = MemoryProfiler::new(Arc::new(Pool::new(device, MemoryConfig::new())?));
///
/// let baseline = memory.capture("Baseline");
/// let grid = memory.allocate(Request::new(Bytes::gib(2)))?;
/// let scratch = memory.allocate(Request::new(Bytes::gib(1)))?;
/// memory.release(scratch, Stream::DEFAULT)?;
/// let after = memory.capture("After voxelization");
///
/// assert_eq!(after.allocated, Bytes::gib(2));
/// let summary = MemoryProfiler::print_summary(&[baseline, after]);
/// assert!(summary.ends_with("Peak memory: 3.00 GiB (by \"After voxelization\")\n"));
///
/// memory.reset_peak_memory();
/// memory.release(grid, Stream::DEFAULT)?;
/// assert_eq!(memory.get_peak_memory(), Bytes::gib(2));
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryProfiler {
    upstream: Arc<dyn Memory>,
    live: AtomicU64,
    peak: AtomicU64,
    start: Instant,
}

/// What a memory and its device were like at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// What the moment is called.
    pub label: String,
    /// By the system's clock.
    pub time: SystemTime,
    /// Since the profiler was made; never goes back.
    pub elapsed: Duration,
    /// Handed to callers and not yet returned.
    pub allocated: Bytes,
    /// Held from the device: allocated, pooled and lost to rounding.
    pub reserved: Bytes,
    /// The most that was live through the profiler since its peak was last reset.
    pub peak: Bytes,
    /// What nobody holds on the device; `None` if it did not say.
    pub free: Option<Bytes>,
    /// All of the device's memory.
    pub total: Bytes,
    /// How the figures of the memory were obtained; those of the device are sampled
    /// unless it is simulated.
    pub obtained: Obtained,
}

impl MemoryProfiler {
    /// Counts what goes through to this memory from now on, beginning with what is live there
    /// already: a peak is never below what was live when it began.
    #[must_use]
    pub fn new(upstream: Arc<dyn Memory>) -> MemoryProfiler {
        let live = upstream.stats().in_use_bytes.get();
        MemoryProfiler {
            upstream,
            live: AtomicU64::new(live),
            peak: AtomicU64::new(live),
            start: Instant::now(),
        }
    }

    /// A picture of the moment. Asks the device once what is free.
    #[must_use]
    pub fn capture(&self, label: impl Into<String>) -> MemorySnapshot {
        let device = self.upstream.device();
        let stats = self.upstream.stats();
        MemorySnapshot {
            label: label.into(),
            time: SystemTime::now(),
            elapsed: self.start.elapsed(),
            allocated: stats.in_use_bytes,
            reserved: stats.total_allocated_bytes,
            peak: self.get_peak_memory(),
            free: device.free_memory().ok(),
            total: device.info().total,
            obtained: Obtained::by_counting(device),
        }
    }

    /// Several pictures as text, with the peak and the picture by which it had been
    /// reached. A library does not print: that is left to the caller.
    #[must_use]
    pub fn print_summary(snapshots: &[MemorySnapshot]) -> String {
        let mut text = String::new();
        for snapshot in snapshots {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{snapshot}");
        }
        let first_at_peak =
            |best: Option<&MemorySnapshot>, peak| best.is_none_or(|b| b.peak < peak);
        let mut best = None;
        for snapshot in snapshots {
            if first_at_peak(best, snapshot.peak) {
                best = Some(snapshot);
            }
        }
        if let Some(best) = best {
            let _ = writeln!(text, "Peak memory: {} (by {:?})", best.peak, best.label);
        }
        text
    }

    /// Begins a new peak at what is live now.
    pub fn reset_peak_memory(&self) {
        self.peak.store(self.live.load(Ordering::SeqCst), Ordering::SeqCst);
        // What became live between the two is in neither, unless it is looked at again.
        self.peak.fetch_max(self.live.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The most that was live at once since the last reset.
    #[must_use]
    pub fn get_peak_memory(&self) -> Bytes {
        Bytes(self.peak.load(Ordering::SeqCst))
    }
}

impl stack::MemoryLayer for MemoryProfiler {
    const OFFERS_PAGES: bool = false;

    fn inner(&self) -> &dyn Memory {
        &*self.upstream
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let block = self.upstream.allocate(request)?;
        let size = block.size().get();
        let live = self.live.fetch_add(size, Ordering::SeqCst).saturating_add(size);
        self.peak.fetch_max(live, Ordering::SeqCst);
        Ok(block)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.upstream.release(block, stream)?;
        let less = |live: u64| Some(live.saturating_sub(block.size().get()));
        // Always succeeds; what was allocated past the profiler takes nothing away twice.
        let _ = self.live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        Ok(())
    }
}

impl MemorySnapshot {
    /// The share of the device that is held by anyone; `None` if it did not say.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        share(self.total.saturating_sub(self.free?), self.total)
    }
}

impl fmt::Display for MemorySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.label)?;
        writeln!(f, "  Allocated:   {}", self.allocated)?;
        writeln!(f, "  Reserved:    {}", self.reserved)?;
        writeln!(f, "  Free:        {}", or_dash(self.free))?;
        writeln!(f, "  Utilisation: {}", percent(self.utilisation()))
    }
}

/// What could be had through this memory now: the least of what it may still hand out and
/// what is free on the device or held here and not in use. Free memory need not lie in one
/// piece, so this is the most that a request can hope for.
///
/// ```
/// use plimsoll_memory::{Bytes, get_free_memory, will_oom};
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
/// let device = Sim::new(SimConfig::default().with_total(Bytes::gib(8)));
/// let required = Bytes::gib(6);
/// assert!(will_oom(required, get_free_memory(&device)?), "more than 70 % of 8 GiB");
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub fn get_free_memory(memory: &dyn Memory) -> Result<Bytes> {
    let free = memory.device().free_memory()?;
    Ok(memory.available().min(free.saturating_add(memory.stats().pooled_bytes)))
}

/// `part` of `whole`; unknown of nothing.
fn share(part: Bytes, whole: Bytes) -> Option<f64> {
    (whole > Bytes::ZERO).then(|| part.get() as f64 / whole.get() as f64)
}

fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "–".to_string(), |value| value.to_string())
}

fn percent(share: Option<f64>) -> String {
    or_dash(share.map(|share| format!("{:.1} %", share * 100.0)))
}

#[cfg(test)]
mod tests;
