//! A process's share, and how many operations began and ended: each thread counts its own.
//!
//! A locked addition costs as much as all the rest of a step on some machines, and every
//! operation begins, changes the share and ends. So a thread writes to a cell that is its
//! alone, by plain loads and stores, and whoever wants to know adds the cells up. What one
//! thread allocates another may free, so a cell by itself may be below zero (it wraps round);
//! the sum is right whenever nothing is under way, and when the process is dead.
//!
//! A cell belongs to a thread by the address of its own data, which no two living threads
//! share; one that is born where another died goes on in its cell. Threads that find none left
//! share one, and lock.
//!
//! An operation's beginning is stored before any figure changes, and its end after the last
//! one; every change of a figure is a release, so who sees a change sees that it began. To see
//! whether something is under way all ends are read first, and then all beginnings. There are
//! never more ends than beginnings, and what begins meanwhile only adds to the second sum: if
//! both are the same, nothing was under way when the last end was read. (A free that the driver
//! refused takes its beginning back. It has changed nothing.)

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{DEVICES, LedgerProcess};
use crate::sync::AtomicU64;
use crate::sys;

/// Threads of a process that count for themselves.
const THREADS: usize = if cfg!(loom) { 1 } else { 32 };
/// Places where a thread looks for its cell.
const TRIES: usize = 8;

/// What the threads of a process have counted.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadCounterSet {
    own: [ThreadCounters; THREADS],
    rest: ThreadCounters,
}

/// What one thread has counted; for the first devices in one line of the processor's cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct ThreadCounters {
    /// Where the thread's own data lies; 0 before it is taken.
    owner: AtomicU64,
    /// Operations that began and were to add memory.
    allocs: AtomicU64,
    /// Operations that began and were to take it away.
    frees: AtomicU64,
    /// Operations that came to their end.
    done: AtomicU64,
    /// Allocated less freed, by device.
    used: [AtomicU64; DEVICES],
}

/// The cell that the calling thread counts in: looked up once, and used for a while.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnCounters<'a> {
    cell: &'a ThreadCounters,
    /// Whether nobody else counts there.
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

    /// An operation that is to add memory.
    #[inline]
    pub(super) fn begin_allocation(self) {
        self.count(&self.cell.allocs, 1);
    }

    /// An operation that is to take it away.
    #[inline]
    pub(super) fn begin_free(self) {
        self.count(&self.cell.frees, 1);
    }

    /// What [`OwnCounters::begin_free`] counted was none: the driver has refused it.
    pub(super) fn cancel_free(self) {
        self.count(&self.cell.frees, 1u64.wrapping_neg());
    }

    /// So much more is held.
    #[inline]
    pub(super) fn add(self, device: usize, bytes: u64) {
        self.count(&self.cell.used[device], bytes);
    }

    /// So much less is held.
    #[inline]
    pub(super) fn subtract(self, device: usize, bytes: u64) {
        self.count(&self.cell.used[device], bytes.wrapping_neg());
    }

    /// The end of an operation.
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

    /// As before the first thread.
    pub(crate) fn clear(&self) {
        for cell in self.own.iter().chain([&self.rest]) {
            let counters = [&cell.owner, &cell.allocs, &cell.frees, &cell.done];
            counters.into_iter().chain(&cell.used).for_each(|word| word.store(0, Relaxed));
        }
    }
}

impl LedgerProcess {
    /// What it holds on a device: exact while nothing is under way, and of a dead process.
    #[must_use]
    pub fn used(&self, device: usize) -> u64 {
        let sum = self.threads.sum(|cell| &cell.used[device]);
        // Two threads that were read at different moments may seem to have freed more.
        sum.cast_signed().max(0).unsigned_abs()
    }

    /// Where the calling thread counts.
    #[inline]
    pub(super) fn own_counters(&self) -> OwnCounters<'_> {
        self.threads.own_counters()
    }

    /// Operations that began and were to add memory.
    #[must_use]
    pub fn allocs(&self) -> u64 {
        self.threads.sum(|cell| &cell.allocs)
    }

    /// Operations that began and were to take it away.
    #[must_use]
    pub fn frees(&self) -> u64 {
        self.threads.sum(|cell| &cell.frees)
    }

    /// Operations that came to their end, all of them; nothing while one is under way, or was when
    /// the process died.
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
        // All are there at once, so that there are more than have a cell.
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
        // What others allocated.
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
