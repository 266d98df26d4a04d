//! What a memory holds, counted without a lock that a reader could wait for.
//!
//! Writers are serialised by whatever guards the data that they count (an arena's lock,
//! a bucket list's lock), so counting itself is plain stores. A reader must still not
//! see half of an update, so the figures carry a version that is odd while they change:
//! a reader takes the version, the figures and the version again, and starts over when
//! the two differ. The hot path pays two stores; a snapshot is always consistent.

use crate::sync::{AtomicU64, Ordering, fence};
use plimsoll_machine::units::Bytes;

/// A consistent picture of a memory: `in_use + pooled ≤ total` always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Held from the device now (reserved).
    pub total_allocated_bytes: Bytes,
    /// Handed to callers and not yet returned (live).
    pub in_use_bytes: Bytes,
    /// Held and free to be handed out again. What is neither is lost to rounding.
    pub pooled_bytes: Bytes,
    /// The most that was ever held.
    pub peak_bytes: Bytes,
    /// Requests served from what was held.
    pub pool_hits: u64,
    /// Requests that the device had to be asked for.
    pub pool_misses: u64,
    /// Requests that went to the CPU because the device was full.
    pub cpu_fallbacks: u64,
    /// Blocks that are live.
    pub active_buffers: u64,
}

impl MemoryStats {
    /// The share of requests that was served from what was held; `None` before the first.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let requests = self.pool_hits + self.pool_misses;
        (requests > 0).then(|| self.pool_hits as f64 / requests as f64)
    }

    /// Two memories seen as one. Peaks do not add: the sum is only an upper bound, so
    /// the peak of a sum is left to whoever counts both.
    pub(crate) fn plus(self, other: MemoryStats) -> MemoryStats {
        MemoryStats {
            total_allocated_bytes: self.total_allocated_bytes + other.total_allocated_bytes,
            in_use_bytes: self.in_use_bytes + other.in_use_bytes,
            pooled_bytes: self.pooled_bytes + other.pooled_bytes,
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            pool_hits: self.pool_hits + other.pool_hits,
            pool_misses: self.pool_misses + other.pool_misses,
            cpu_fallbacks: self.cpu_fallbacks + other.cpu_fallbacks,
            active_buffers: self.active_buffers + other.active_buffers,
        }
    }
}

/// The figures behind a [`MemoryStats`], in the order in which they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StatFigures {
    /// Held from the device.
    pub(crate) held: u64,
    /// Live, as asked for.
    pub(crate) live: u64,
    /// Live, as handed out: rounding included.
    pub(crate) taken: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) blocks: u64,
}

impl StatFigures {
    /// As users see them.
    pub(crate) fn stats(self, peak: Bytes) -> MemoryStats {
        MemoryStats {
            total_allocated_bytes: Bytes(self.held),
            in_use_bytes: Bytes(self.live),
            pooled_bytes: Bytes(self.held - self.taken),
            peak_bytes: peak,
            pool_hits: self.hits,
            pool_misses: self.misses,
            cpu_fallbacks: 0,
            active_buffers: self.blocks,
        }
    }
}

const FIGURES: usize = 6;

/// Figures under a version: one writer at a time, any number of readers, no waiting.
#[derive(Debug)]
pub(crate) struct Counters {
    version: AtomicU64,
    figures: [AtomicU64; FIGURES],
}

impl Default for Counters {
    fn default() -> Self {
        Counters { version: AtomicU64::new(0), figures: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Counters {
    /// Publishes new figures. The caller holds the lock that serialises writers.
    #[inline]
    pub(crate) fn publish(&self, figures: &StatFigures) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Orders the odd version before the figures for whoever sees one of them.
        fence(Ordering::Release);
        let StatFigures { held, live, taken, hits, misses, blocks } = *figures;
        for (place, value) in self.figures.iter().zip([held, live, taken, hits, misses, blocks]) {
            place.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Goes up with every update.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// A picture in which no update is half done.
    pub(crate) fn snapshot(&self) -> StatFigures {
        loop {
            if let Some(figures) = self.try_snapshot() {
                return figures;
            }
            std::hint::spin_loop();
        }
    }

    /// The same, unless an update is under way just now.
    fn try_snapshot(&self) -> Option<StatFigures> {
        let before = self.version.load(Ordering::Acquire);
        let [held, live, taken, hits, misses, blocks] =
            std::array::from_fn(|i| self.figures[i].load(Ordering::Relaxed));
        // Orders the figures before the second look at the version.
        fence(Ordering::Acquire);
        let quiet = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        quiet.then_some(StatFigures { held, live, taken, hits, misses, blocks })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_what_was_published() {
        let counters = Counters::default();
        let figures = StatFigures { held: 10, live: 3, taken: 4, hits: 5, misses: 1, blocks: 2 };
        counters.publish(&figures);
        assert_eq!(counters.snapshot(), figures);
        let stats = counters.snapshot().stats(Bytes(12));
        assert_eq!(stats.pooled_bytes, Bytes(6));
        assert_eq!(stats.hit_rate(), Some(5.0 / 6.0));
        assert_eq!(MemoryStats::default().hit_rate(), None, "no request, no share");
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// Two writers behind a lock, one reader without: in every interleaving of up to
    /// two preemptions, a picture that is given is one that was published.
    #[test]
    fn no_reader_sees_half_an_update() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let counters = Arc::new(Counters::default());
            let lock = Arc::new(Mutex::new(StatFigures::default()));
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (counters, lock) = (Arc::clone(&counters), Arc::clone(&lock));
                    thread::spawn(move || {
                        let mut figures = lock.lock().unwrap();
                        figures.held += 2;
                        figures.live += 1;
                        figures.taken += 1;
                        counters.publish(&figures);
                    })
                })
                .collect();
            if let Some(seen) = counters.try_snapshot() {
                assert_eq!(seen.live, seen.taken);
                assert_eq!(seen.held, 2 * seen.live);
            }
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(counters.snapshot().live, 2);
        });
    }
}
