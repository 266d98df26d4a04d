//! What a pool counts beside its arenas, and the sum over all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Pool;
use super::arena::Arena;
use crate::stats::MemoryStats;
use plimsoll_machine::units::Bytes;

/// How often the figures of all arenas are read for a moment when none changes.
const STATS_TRIES: u32 = 64;

/// What a pool has done beside handing out memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolActivity {
    /// Handles that were mapped at another place: they moved there, or a part of them was lent.
    pub remapped_handles: u64,
    /// Handles that were still mapped where they were needed: no call to the device.
    pub found_handles: u64,
    /// Handles or plain blocks that were taken from the device.
    pub taken_from_device: u64,
    /// Handles or plain blocks that were given back to it.
    pub returned_to_device: u64,
    /// Times that a stream or the host was made to wait for another stream.
    pub sync_waits: u64,
    /// Requests that the fast path could not serve.
    pub slow_requests: u64,
    /// The time that those requests took together, waiting for each other included. The
    /// clock is read there alone: on the fast path it would cost as much as the request.
    pub slow_time: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Held from upstream, mapped or spare.
    pub(super) held: AtomicU64,
    pub(super) spare: AtomicU64,
    pub(super) remapped: AtomicU64,
    pub(super) found: AtomicU64,
    pub(super) taken: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) slow: AtomicU64,
    pub(super) slow_nanos: AtomicU64,
}

impl Pool {
    /// What it has done beside handing out memory.
    #[must_use]
    pub fn activity(&self) -> PoolActivity {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PoolActivity {
            remapped_handles: count(&self.counts.remapped),
            found_handles: count(&self.counts.found),
            taken_from_device: count(&self.counts.taken),
            returned_to_device: count(&self.counts.returned),
            sync_waits: self.order.waits(),
            slow_requests: count(&self.counts.slow),
            slow_time: Duration::from_nanos(count(&self.counts.slow_nanos)),
        }
    }

    /// What all arenas hold and have handed out.
    pub(super) fn sum_arenas(&self) -> MemoryStats {
        // Each arena is consistent by itself; all of them are if none changed while they
        // were read. Versions only go up, so their sum tells.
        let private = self.private_arenas();
        let arenas = || self.shared_arenas().chain(private.iter().map(AsRef::as_ref));
        let versions = || arenas().map(Arena::version).fold(0, u64::wrapping_add);
        for _ in 0..STATS_TRIES {
            let before = versions();
            let spare = Bytes(self.counts.spare.load(Ordering::Acquire));
            let sum = arenas().map(|arena| arena.figures().stats(Bytes::ZERO)).fold(
                MemoryStats {
                    total_allocated_bytes: spare,
                    pooled_bytes: spare,
                    ..MemoryStats::default()
                },
                MemoryStats::plus,
            );
            if versions() == before {
                return self.with_peak(sum);
            }
            std::hint::spin_loop();
        }
        // So busy that there is no quiet moment: a page on its way from one arena to
        // another may have been seen twice, so the parts are held to the whole.
        let mut sum = arenas()
            .map(|arena| arena.figures().stats(Bytes::ZERO))
            .fold(MemoryStats::default(), MemoryStats::plus);
        sum.total_allocated_bytes = Bytes(self.counts.held.load(Ordering::Relaxed));
        sum.in_use_bytes = sum.in_use_bytes.min(sum.total_allocated_bytes);
        sum.pooled_bytes = sum.pooled_bytes.min(sum.total_allocated_bytes - sum.in_use_bytes);
        self.with_peak(sum)
    }

    fn with_peak(&self, stats: MemoryStats) -> MemoryStats {
        MemoryStats { peak_bytes: self.peaks.0.held(), ..stats }
    }
}
