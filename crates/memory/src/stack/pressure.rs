//! A call when a level of pressure is crossed: the moment to drop caches, shrink batches
//! or trim a pool, before anything is refused.
//!
//! Every crossing is reported once, up and down, also when many threads race across it.
//! A thread notes the level last reported *before* it looks at what is in use, and claims
//! the change by compare-and-swap; a version beside the level makes the swap fail if
//! anyone else has reported meanwhile. So what is reported was true between the two, a
//! thread that was held up cannot report it again, and the reports form a chain: each
//! begins at the level where the one before it ended. A thread that has reported looks
//! again, so that the last report is the level that holds when all is quiet.
//!
//! It counts what passes through it, itself: one addition, where asking a pool for its
//! statistics would cost a walk over all arenas for each request. What others take from
//! the same upstream is not seen; watch the memory that they share instead.
//!
//! There is no hysteresis. Levels are those of [`MemoryPressure`], the same that
//! [`Memory::pressure`] gives, and a report that comes late would contradict it. A
//! program that goes up and down across a level gets a call each time; if that is
//! too often, it can act on the rise alone.
//!
//! # The callback
//!
//! It runs on the thread that crossed the level, outside of any lock of the watch, after
//! the block was handed out or taken back. It gets the memory *under* the watch and may
//! trim it, and may return blocks through the watch, which may report again, from within.
//! Reports of different threads may run at the same time.
//!
//! # Where to put it
//!
//! *Over* a pool or a limit it watches what is live: there the callback may trim the pool
//! or anything else. *Under* a pool it watches what is held, and is called while the pool
//! waits for memory, behind the pool's own lock: there it may signal other threads, and
//! trim what lies below, but must not call the pool.

use std::fmt;
use std::sync::Arc;

use super::layer::MemoryLayer;
use crate::memory::{Block, Handle, Mapping, Memory, Request, Stream};
use crate::pressure::MemoryPressure;
use crate::sync::{AtomicU64, Ordering};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// A level that was crossed.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct PressureChange<'a> {
    /// The level last reported.
    pub from: MemoryPressure,
    /// The level now.
    pub to: MemoryPressure,
    /// The memory under the watch, to trim.
    pub memory: &'a dyn Memory,
}

/// A line: it is written on the thread that allocates, and a pool would list all of its arenas.
impl fmt::Debug for PressureChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PressureChange")
            .field("from", &self.from)
            .field("to", &self.to)
            .field("memory", &self.memory.name())
            .finish()
    }
}

impl PressureChange<'_> {
    /// Whether it became tighter.
    #[must_use]
    pub fn is_rise(&self) -> bool {
        self.to > self.from
    }
}

type Callback = Box<dyn Fn(PressureChange<'_>) + Send + Sync>;

/// A memory that calls when a level of pressure is crossed.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use plimsoll_memory::backend::host::Host;
/// use plimsoll_memory::{Bytes, Memory, MemoryPressure, PressureWatch, Request, Stream};
///
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let host = Arc::new(Host::with_total(Bytes::mib(10)));
/// let watch = PressureWatch::new(host, {
///     let seen = Arc::clone(&seen);
///     move |change| {
///         if change.is_rise() {
///             change.memory.trim().ok();
///         }
///         seen.lock().unwrap().push((change.from, change.to));
///     }
/// });
/// let block = watch.allocate(Request::new(Bytes::mib(9)))?;
/// watch.release(block, Stream::DEFAULT)?;
/// use MemoryPressure::{High, Low};
/// assert_eq!(*seen.lock().unwrap(), [(Low, High), (High, Low)]);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub struct PressureWatch {
    upstream: Arc<dyn Memory>,
    gauge: Gauge,
    callback: Callback,
}

impl fmt::Debug for PressureWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PressureWatch")
            .field("upstream", &self.upstream)
            .field("gauge", &self.gauge)
            .finish_non_exhaustive()
    }
}

impl PressureWatch {
    /// Calls `callback` for every crossing. The capacity of `upstream` is asked for once.
    #[must_use]
    pub fn new(
        upstream: Arc<dyn Memory>,
        callback: impl Fn(PressureChange<'_>) + Send + Sync + 'static,
    ) -> PressureWatch {
        let gauge = Gauge::new(upstream.capacity());
        PressureWatch { upstream, gauge, callback: Box::new(callback) }
    }

    fn added(&self, size: Bytes) {
        self.gauge.used.fetch_add(size.0, Ordering::SeqCst);
        self.report();
    }

    fn removed(&self, size: Bytes) {
        self.gauge.remove(size.0);
        self.report();
    }

    fn report(&self) {
        while let Some((from, to)) = self.gauge.claim() {
            (self.callback)(PressureChange { from, to, memory: &*self.upstream });
        }
    }
}

const LEVELS: [MemoryPressure; 4] =
    [MemoryPressure::Low, MemoryPressure::Medium, MemoryPressure::High, MemoryPressure::Critical];
const LEVEL_BITS: u32 = 2;

/// What is in use, and the level that was last reported, under a version.
#[derive(Debug)]
struct Gauge {
    capacity: Bytes,
    used: AtomicU64,
    /// The version, and in the lowest bits the level.
    reported: AtomicU64,
}

impl Gauge {
    fn new(capacity: Bytes) -> Gauge {
        let level = MemoryPressure::of(Bytes::ZERO, capacity) as u64;
        Gauge { capacity, used: AtomicU64::new(0), reported: AtomicU64::new(level) }
    }

    fn level(&self) -> MemoryPressure {
        MemoryPressure::of(Bytes(self.used.load(Ordering::SeqCst)), self.capacity)
    }

    /// Stops at nothing: see [`Budget::credit`](crate::Budget::credit).
    fn remove(&self, size: u64) {
        let less = |used: u64| Some(used.saturating_sub(size));
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// A change of level that is now the caller's to report, and nobody else's.
    fn claim(&self) -> Option<(MemoryPressure, MemoryPressure)> {
        loop {
            // Before the look at what is in use: see the head of this file.
            let reported = self.reported.load(Ordering::SeqCst);
            let from = LEVELS[(reported & (LEVELS.len() as u64 - 1)) as usize];
            let to = self.level();
            if from == to {
                return None;
            }
            let next = ((reported >> LEVEL_BITS) + 1) << LEVEL_BITS | to as u64;
            let swap = (Ordering::SeqCst, Ordering::SeqCst);
            if self.reported.compare_exchange(reported, next, swap.0, swap.1).is_ok() {
                return Some((from, to));
            }
        }
    }
}

impl MemoryLayer for PressureWatch {
    fn inner(&self) -> &dyn Memory {
        &*self.upstream
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let block = self.upstream.allocate(request)?;
        self.added(block.size());
        Ok(block)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.upstream.release(block, stream)?;
        self.removed(block.size());
        Ok(())
    }

    fn create(&self, pages: &dyn Mapping, size: Bytes) -> Result<Handle> {
        let handle = pages.create(size)?;
        self.added(size);
        Ok(handle)
    }

    fn destroy(&self, pages: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()> {
        pages.destroy(handle, size)?;
        self.removed(size);
        Ok(())
    }

    /// The level of what passed through here, as it is reported.
    fn pressure(&self) -> MemoryPressure {
        self.gauge.level()
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn cross(gauge: &Gauge, change: impl FnOnce(&Gauge)) -> Vec<(MemoryPressure, MemoryPressure)> {
        change(gauge);
        std::iter::from_fn(|| gauge.claim()).collect()
    }

    /// Two threads that both go up: in every interleaving they report one way up, and
    /// what was last reported is what holds.
    #[test]
    fn a_rise_is_reported_once() {
        loom::model(|| {
            let gauge = Arc::new(Gauge::new(Bytes(10)));
            let up = |gauge: &Gauge| {
                gauge.used.fetch_add(4, Ordering::SeqCst);
            };
            let other = Arc::clone(&gauge);
            let thread = thread::spawn(move || cross(&other, up));
            let mut reports = cross(&gauge, up);
            reports.extend(thread.join().unwrap());
            assert_eq!(reports, [(MemoryPressure::Low, MemoryPressure::High)]);
        });
    }
}
