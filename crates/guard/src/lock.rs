//! A lock for threads of one process.
//!
//! It is held for a few dozen nanoseconds, so a thread that finds it taken tries again for a while.
//! But not forever: the holder may have been preempted by a thread of higher priority, which is the
//! very one that tries (`SCHED_FIFO`). After a bounded number of tries the thread waits in the
//! kernel. Unlocking costs no locked instruction: a waiter that it does not see wakes up after a
//! millisecond and tries again.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sys;

/// The lock; all zeros are an open one.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ThreadLock {
    is_held: AtomicU32,
    waiting: AtomicU32,
}

/// Keeps the lock until it is dropped.
#[derive(Debug)]
pub(crate) struct ThreadLockGuard<'a>(&'a ThreadLock);

/// How often a thread tries a taken lock before it waits in the kernel.
const TRIES: u32 = 200;

impl ThreadLock {
    pub(crate) const fn new() -> ThreadLock {
        ThreadLock { is_held: AtomicU32::new(0), waiting: AtomicU32::new(0) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> ThreadLockGuard<'_> {
        if self.is_held.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.wait();
        }
        ThreadLockGuard(self)
    }

    pub(crate) fn try_lock(&self) -> Option<ThreadLockGuard<'_>> {
        self.is_held.compare_exchange(0, 1, Acquire, Relaxed).ok().map(|_| ThreadLockGuard(self))
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..TRIES {
            core::hint::spin_loop();
            if self.is_held.compare_exchange_weak(0, 1, Acquire, Relaxed).is_ok() {
                return;
            }
        }
        self.waiting.fetch_add(1, AcqRel);
        while self.is_held.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            sys::futex_wait(self.is_held.as_ptr(), 1, false, 1);
        }
        self.waiting.fetch_sub(1, AcqRel);
    }
}

impl Drop for ThreadLockGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.is_held.store(0, Release);
        if self.0.waiting.load(Relaxed) != 0 {
            sys::futex_wake(self.0.is_held.as_ptr(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_gets_it_and_nobody_waits_for_ever() {
        let (lock, count) = (ThreadLock::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for turn in 0..2000 {
                        let _held = lock.lock();
                        let before = count.load(Relaxed);
                        // Sometimes long enough that the others wait in the kernel.
                        if turn % 500 == 0 {
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                        count.store(before + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 16_000);
        assert_eq!(lock.waiting.load(Relaxed), 0);
        assert!(lock.try_lock().is_some());
    }
}
