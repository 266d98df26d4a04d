//! The most that the pools of this process had on GPUs at once.
//!
//! What is held changes seldom and is counted exactly. What is live changes with every event, and
//! one counter for all threads would make them meet; so each arena keeps its own peak under the
//! lock that it holds anyway, and reports it only when it rises. With one stream the sum of those
//! is the peak; with several it is at least the peak, as their peaks need not have been at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_machine::units::Bytes;

/// The most that pools had on the GPUs of this process at once, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuPeaks {
    /// Handed out: exact with one stream, at most this with several.
    pub allocated: Bytes,
    /// Held from the devices.
    pub reserved: Bytes,
}

/// The most that this process's pools on GPUs had handed out and held at once; `None` before
/// there is a pool on a GPU. Pools on the host and on simulated devices do not count.
///
/// ```
/// match plimsoll_memory::get_gpu_peaks() {
///     Some(peaks) => println!("{} live, {} held at most", peaks.allocated, peaks.reserved),
///     None => println!("no pool on a GPU was made"),
/// }
/// ```
#[must_use]
pub fn get_gpu_peaks() -> Option<GpuPeaks> {
    let book = book();
    let PeakPair { live, held } = book.now().or(book.most);
    book.any.then_some(GpuPeaks { allocated: Bytes(live.min(held)), reserved: Bytes(held) })
}

/// What one pool had at most; shared with its arenas.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    live: AtomicU64,
    held: AtomicU64,
}

impl Peaks {
    /// An arena's live memory has never been as much: this much more than before.
    pub(super) fn live_rose(&self, by: u64) {
        self.live.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn holds(&self, held: u64) {
        self.held.fetch_max(held, Ordering::Relaxed);
    }

    pub(super) fn held(&self) -> Bytes {
        Bytes(self.held.load(Ordering::Relaxed))
    }

    fn pair(&self) -> PeakPair {
        PeakPair {
            live: self.live.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct PeakPair {
    live: u64,
    held: u64,
}

impl PeakPair {
    fn plus(self, other: PeakPair) -> PeakPair {
        let PeakPair { live, held } = other;
        PeakPair { live: self.live.saturating_add(live), held: self.held.saturating_add(held) }
    }

    /// The larger of each.
    fn or(self, other: PeakPair) -> PeakPair {
        PeakPair { live: self.live.max(other.live), held: self.held.max(other.held) }
    }
}

/// The pools of this process on GPUs.
#[derive(Debug)]
struct PeakList {
    pools: Vec<Arc<Peaks>>,
    /// The most that there was at once before a pool was dropped.
    most: PeakPair,
    any: bool,
}

static PEAK_LIST: Mutex<PeakList> =
    Mutex::new(PeakList { pools: Vec::new(), most: PeakPair { live: 0, held: 0 }, any: false });

fn book() -> MutexGuard<'static, PeakList> {
    PEAK_LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeakList {
    /// The sum over all pools that there are.
    fn now(&self) -> PeakPair {
        self.pools.iter().fold(PeakPair::default(), |sum, pool| sum.plus(pool.pair()))
    }
}

/// A pool's place among those of the process, for as long as it lives.
#[derive(Debug)]
pub(super) struct PoolPeaks(pub(super) Arc<Peaks>);

impl PoolPeaks {
    /// For a pool on a device of this backend.
    pub(super) fn on(backend: &str) -> PoolPeaks {
        let peaks = Arc::<Peaks>::default();
        if !matches!(backend, "cpu" | "sim") {
            let mut book = book();
            book.pools.push(Arc::clone(&peaks));
            book.any = true;
        }
        PoolPeaks(peaks)
    }
}

impl Drop for PoolPeaks {
    fn drop(&mut self) {
        let mut book = book();
        if let Some(place) = book.pools.iter().position(|pool| Arc::ptr_eq(pool, &self.0)) {
            book.most = book.now().or(book.most);
            book.pools.swap_remove(place);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backend::sim::{Sim, SimConfig};
    use crate::config::MemoryConfig;
    use crate::memory::{Memory, Request, Stream};
    use crate::stack::pool::Pool;

    #[test]
    fn pools_at_once_add_up_and_pools_in_turn_do_not() {
        let told = || get_gpu_peaks().map(|peaks| (peaks.allocated.get(), peaks.reserved.get()));
        drop(PoolPeaks::on("cpu"));
        assert_eq!(told(), None, "the host is no GPU");
        let (first, second) = (PoolPeaks::on("cuda"), PoolPeaks::on("rocm"));
        assert_eq!(told(), Some((0, 0)));
        first.0.holds(100);
        first.0.live_rose(60);
        second.0.holds(10);
        second.0.live_rose(30);
        assert_eq!(told(), Some((90, 110)));
        drop(second);
        assert_eq!(told(), Some((90, 110)), "it was so at once");
        let third = PoolPeaks::on("cuda");
        third.0.holds(5);
        assert_eq!(told(), Some((90, 110)), "100 and 5 are less");
        drop((first, third));
        assert_eq!(told(), Some((90, 110)));
    }

    #[test]
    fn the_live_peak_of_one_stream_is_exact() {
        let device = Arc::new(Sim::new(SimConfig::default()));
        let pool = Pool::new(device, MemoryConfig::new()).unwrap();
        let large = pool.allocate(Request::new(Bytes::mib(3))).unwrap();
        let small = pool.allocate(Request::new(Bytes::mib(1))).unwrap();
        pool.release(large, Stream::DEFAULT).unwrap();
        let other = pool.allocate(Request::new(Bytes::mib(2))).unwrap();
        assert_eq!(pool.peaks.0.pair().live, Bytes::mib(4).get());
        assert_eq!(pool.peaks.0.held(), pool.stats().peak_bytes);
        pool.release(small, Stream::DEFAULT).unwrap();
        pool.release(other, Stream::DEFAULT).unwrap();
    }
}
