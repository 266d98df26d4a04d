//! A process's share, and how many operations began and ended. Each thread counts its own.
//!
//! On some machines a locked addition costs as much as all the rest of a step, and every operation
//! begins, changes the share and ends. So a thread has counters that only it writes, by plain loads
//! and stores, and a reader adds up the counters of all threads. One thread may free what another
//! has allocated, so the counters of one thread may be below zero (they wrap around). The sum is
//! right whenever no operation is under way, and when the process has died.
//!
//! Counters belong to a thread by the address of its thread control block, which no two living
//! threads share; a new thread at the address of one that ended continues its counters. Threads
//! that find no free counters share one set, by locked additions.
//!
//! The beginning of an operation is stored before any figure changes, and its end after the last
//! change. Every change is a release, so a thread that sees a change also sees that the operation began. To
//! find out whether an operation is under way, a reader reads all ends first, and then all
//! beginnings. There are never more ends than beginnings, and what begins meanwhile only adds to
//! the second sum: if both are equal, no operation was under way when the last end was read. (A
//! free that the driver refused takes its beginning back. It has changed nothing.)

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{DEVICES, LedgerProcess};
use crate::sync::AtomicU64;
use crate::sys;

/// How many threads of a process have counters of their own.
const THREADS: usize = if cfg!(loom) { 1 } else { 32 };
/// In how many places a thread looks for its counters.
const TRIES: usize = 8;

/// The counters of all threads of a process.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadCounterSet {
    own: [ThreadCounters; THREADS],
    rest: ThreadCounters,
}

/// What one thread has counted; for the first devices in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct ThreadCounters {
    /// The address of the thread's control block; 0 while nobody has these counters.
    owner: AtomicU64,
    /// Allocations that began.
    allocs: AtomicU64,
    /// Frees that began.
    frees: AtomicU64,
    /// Operations that ended.
    done: AtomicU64,
    /// Allocated less freed, by device.
    used: [AtomicU64; DEVICES],
}

/// The counters of the calling thread: looked up once, and used for a while.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnCounters<'a> {
    cell: &'a ThreadCounters,
    /// Whether no other thread counts here.
    alone: bool,
}

impl OwnCounters<'_> {
    #[inline]
    fn count(self, counter: &AtomicU64, more: u64) {
        if self.alone {
            counter.store(counter.load(Relaxed).wrapping_add(more), Release);
        } else {
            counter.fetch_add(more, AcqRel);
        }
    }

    /// An allocation begins.
    #[inline]
    pub(super) fn begin_allocation(self) {
        self.count(&self.cell.allocs, 1);
    }

    /// A free begins.
    #[inline]
    pub(super) fn begin_free(self) {
        self.count(&self.cell.frees, 1);
    }

    /// Takes back what [`OwnCounters::begin_free`] counted: the driver has refused the free.
    pub(super) fn cancel_free(self) {
        self.count(&self.cell.frees, 1u64.wrapping_neg());
    }

    /// This many bytes more are held.
    #[inline]
    pub(super) fn add(self, device: usize, bytes: u64) {
        self.count(&self.cell.used[device], bytes);
    }

    /// This many bytes less are held.
    #[inline]
    pub(super) fn subtract(self, device: usize, bytes: u64) {
        self.count(&self.cell.used[device], bytes.wrapping_neg());
    }

    /// An operation ends.
    #[inline]
    pub(super) fn end_operation(self) {
        self.count(&self.cell.done, 1);
    }
}

#[cfg(loom)]
impl ThreadCounterSet {
    pub(super) fn new() -> ThreadCounterSet {
        let word = || AtomicU64::new(0);
        let cell = || ThreadCounters {
            owner: word(),
            allocs: word(),
            frees: word(),
            done: word(),
            used: core::array::from_fn(|_| word()),
        };
        ThreadCounterSet { own: core::array::from_fn(|_| cell()), rest: cell() }
    }
}

impl ThreadCounterSet {
    #[inline]
    fn own_counters(&self) -> OwnCounters<'_> {
        let me = sys::thread_id() as u64;
        let first = (me.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let cell = &self.own[first % THREADS];
        let alone = me != 0 && cell.owner.load(Relaxed) == me;
        if alone { OwnCounters { cell, alone } } else { self.find(me, first) }
    }

    #[cold]
    fn find(&self, me: u64, first: usize) -> OwnCounters<'_> {
        let mine =
            |cell: &&ThreadCounters| match cell.owner.compare_exchange(0, me, AcqRel, Relaxed) {
                Ok(_) => true,
                Err(owner) => owner == me,
            };
        let mut places = (first..first + TRIES).map(|place| &self.own[place % THREADS]);
        let found = if me == 0 { None } else { places.find(mine) };
        let rest = OwnCounters { cell: &self.rest, alone: false };
        found.map_or(rest, |cell| OwnCounters { cell, alone: true })
    }

    fn sum(&self, counter: impl Fn(&ThreadCounters) -> &AtomicU64) -> u64 {
        let cells = self.own.iter().chain([&self.rest]);
        cells.fold(0u64, |sum, cell| sum.wrapping_add(counter(cell).load(Acquire)))
    }

    /// Resets everything for a new process.
    pub(crate) fn clear(&self) {
        for cell in self.own.iter().chain([&self.rest]) {
            let counters = [&cell.owner, &cell.allocs, &cell.frees, &cell.done];
            counters.into_iter().chain(&cell.used).for_each(|word| word.store(0, Relaxed));
        }
    }
}

impl LedgerProcess {
    /// What the process holds on a device. Exact while no operation is under way, and for a dead
    /// process.
    #[must_use]
    pub fn used(&self, device: usize) -> u64 {
        let sum = self.threads.sum(|cell| &cell.used[device]);
        // Two threads that were read at different moments may seem to have freed more than was
        // allocated.
        sum.cast_signed().max(0).unsigned_abs()
    }

    /// The counters of the calling thread.
    #[inline]
    pub(super) fn own_counters(&self) -> OwnCounters<'_> {
        self.threads.own_counters()
    }

    /// Allocations that began.
    #[must_use]
    pub fn allocs(&self) -> u64 {
        self.threads.sum(|cell| &cell.allocs)
    }

    /// Allocations that the program asked for.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.allocs().saturating_sub(self.own.load(Relaxed))
    }

    /// Frees that began.
    #[must_use]
    pub fn frees(&self) -> u64 {
        self.threads.sum(|cell| &cell.frees)
    }

    /// How many operations have ended; `None` while one is under way, or was when the process died.
    pub(super) fn operations_if_idle(&self) -> Option<u64> {
        let done = self.threads.sum(|cell| &cell.done);
        (self.allocs().wrapping_add(self.frees()) == done).then_some(done)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::watch::{GuardSettings, GuardWatch};

    #[test]
    fn every_thread_is_counted_with_a_cell_and_without() {
        let folder = tempfile::tempdir().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let process = watch.slot(0);
        // All threads run at once, so that there are more than have counters of their own.
        let gate = std::sync::Barrier::new(80);
        std::thread::scope(|scope| {
            for _ in 0..80 {
                scope.spawn(|| {
                    gate.wait();
                    let mine = process.own_counters();
                    for _ in 0..1000 {
                        mine.begin_allocation();
                        mine.add(1, 512);
                        mine.end_operation();
                        mine.begin_free();
                        mine.subtract(1, 512);
                        mine.begin_free();
                        mine.cancel_free();
                        mine.end_operation();
                    }
                    mine.begin_allocation();
                    mine.add(1, 512);
                    gate.wait();
                    assert!(process.operations_if_idle().is_none());
                    gate.wait();
                    process.own_counters().end_operation();
                });
            }
        });
        assert_eq!(process.operations_if_idle(), Some(160_080));
        assert_eq!((process.allocs(), process.frees()), (80_080, 80_000));
        assert_eq!((process.used(0), process.used(1)), (0, 80 * 512));
        // Frees what other threads allocated.
        process.own_counters().subtract(1, 80 * 512);
        assert_eq!(process.used(1), 0);
        process.own_counters().subtract(1, 512);
        assert_eq!(process.used(1), 0);
        assert!(process.threads.rest.done.load(super::Relaxed) > 0);
        process.threads.clear();
        assert_eq!(
            (process.allocs(), process.frees(), process.operations_if_idle(), process.used(1)),
            (0, 0, Some(0), 0)
        );
    }
}
