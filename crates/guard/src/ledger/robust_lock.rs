//! A lock for processes that others can take over when its holder has died.
//!
//! A spin lock in shared memory would stay locked forever by a process that is killed while it
//! holds it. This lock names its holder, by the index of its slot, so a process that finds it
//! locked can check whether the holder is alive. It also counts how often its holder changed, so
//! that no process takes it over from another holder than the one that was checked.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::sync::AtomicU64;

/// The upper half counts changes of the holder. The lower half is the holder's slot plus one, and 0
/// for nobody. The slot after the last is `run` itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RobustLock(AtomicU64);

/// How the lock was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockAcquired {
    /// Nobody held it.
    WasFree,
    /// Its holder had died in the middle of its work.
    FromDeadHolder,
}

fn next(now: u64, holder: u32) -> u64 {
    (now >> 32).wrapping_add(1) << 32 | u64::from(holder)
}

impl RobustLock {
    #[cfg(loom)]
    pub(crate) fn new() -> RobustLock {
        RobustLock(AtomicU64::new(0))
    }

    /// Acquires the lock for a slot, if no living process holds it.
    pub(crate) fn try_acquire(
        &self,
        slot: usize,
        lives: impl FnOnce(usize) -> bool,
    ) -> Option<LockAcquired> {
        let now = self.0.load(Acquire);
        let taken = match now as u32 {
            0 => LockAcquired::WasFree,
            holder if lives(holder as usize - 1) => return None,
            _ => LockAcquired::FromDeadHolder,
        };
        let new = next(now, slot as u32 + 1);
        self.0.compare_exchange(now, new, AcqRel, Relaxed).ok().map(|_| taken)
    }

    /// Releases the lock if this slot holds it; returns whether it did. The holder calls it when it
    /// is done, and so does a process that has just taken over a slot, whose last owner is dead.
    pub(crate) fn release(&self, slot: usize) -> bool {
        let now = self.0.load(Acquire);
        let had = now as u32 as usize == slot + 1
            && self.0.compare_exchange(now, next(now, 0), AcqRel, Relaxed).is_ok();
        if had {
            crate::sync::wake(&self.0);
        }
        had
    }

    /// Waits for a while until the holder is done. The holder may be dead, so not for long.
    pub(crate) fn wait(&self) {
        crate::sync::wait(&self.0, self.0.load(Relaxed) as u32);
    }
}
