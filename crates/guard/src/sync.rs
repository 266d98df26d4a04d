//! The atomics of the ledger. Under the model checker (`--cfg loom`) each operation is a step at
//! which the process may be killed; see `ledger/model.rs`.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(not(loom))]
pub(crate) use crate::sys::now;

#[cfg(loom)]
pub(crate) use model::{AtomicU32, AtomicU64, now, survive, wait, wake};

/// Sleeps for a while at the lower half of a word that processes share, if it still is `value`.
#[cfg(not(loom))]
pub(crate) fn wait(word: &AtomicU64, value: u32) {
    const MILLISECONDS: i64 = 20;
    // Both supported processors store the lower half first.
    crate::sys::futex_wait(word.as_ptr().cast(), value, true, MILLISECONDS);
}

/// Wakes one that waits there.
#[cfg(not(loom))]
pub(crate) fn wake(word: &AtomicU64) {
    crate::sys::futex_wake(word.as_ptr().cast(), true);
}

#[cfg(loom)]
mod model {
    use core::sync::atomic::Ordering;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    loom::thread_local! {
        /// Steps until this thread's process is killed; `None` for one that is not.
        static LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    pub(crate) fn wait(_: &AtomicU64, _: u32) {
        loom::thread::yield_now();
    }

    pub(crate) fn wake(_: &AtomicU64) {}

    pub(crate) fn now() -> u64 {
        1
    }

    /// The panic payload that ends a killed process.
    pub(crate) struct Killed;

    fn step() {
        let left = LEFT.with(Cell::get);
        if left == Some(0) {
            LEFT.with(|cell| cell.set(None));
            resume_unwind(Box::new(Killed));
        }
        LEFT.with(|cell| cell.set(left.map(|left| left - 1)));
    }

    /// Runs what a process does, and kills it before the step of that number. `Err` if it was
    /// killed.
    pub(crate) fn survive(steps: Option<u32>, work: impl FnOnce()) -> Result<(), Killed> {
        LEFT.with(|cell| cell.set(steps));
        let ended = catch_unwind(AssertUnwindSafe(work));
        LEFT.with(|cell| cell.set(None));
        match ended {
            Ok(()) => Ok(()),
            Err(payload) => match payload.downcast::<Killed>() {
                Ok(killed) => Err(*killed),
                Err(other) => resume_unwind(other),
            },
        }
    }

    /// Declares an atomic each of whose operations is a step: `$change` are those that take a
    /// value, `$exchange` the compare-and-swaps.
    macro_rules! atomic {
        ($name:ident, $number:ty; $($change:ident)*; $($exchange:ident)*) => {
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                pub fn new(value: $number) -> $name {
                    $name(loom::sync::atomic::$name::new(value))
                }
                pub fn load(&self, order: Ordering) -> $number {
                    step();
                    self.0.load(order)
                }
                pub fn store(&self, value: $number, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }
                $(pub fn $change(&self, value: $number, order: Ordering) -> $number {
                    step();
                    self.0.$change(value, order)
                })*
                $(pub fn $exchange(
                    &self,
                    now: $number,
                    new: $number,
                    good: Ordering,
                    bad: Ordering,
                ) -> Result<$number, $number> {
                    step();
                    // A weak one that fails for no reason only tries again: nothing new to check.
                    self.0.compare_exchange(now, new, good, bad)
                })*
                pub fn fetch_update(
                    &self,
                    good: Ordering,
                    bad: Ordering,
                    change: impl FnMut($number) -> Option<$number>,
                ) -> Result<$number, $number> {
                    step();
                    self.0.fetch_update(good, bad, change)
                }
            }
        };
    }
    atomic!(AtomicU32, u32; fetch_add fetch_or fetch_max fetch_min;
        compare_exchange compare_exchange_weak);
    atomic!(AtomicU64, u64; fetch_add fetch_or fetch_max fetch_min;
        compare_exchange compare_exchange_weak);
}
