//! A seat for one process at a time, which others can take over when its holder is dead.
//!
//! A spinning lock in shared memory would stay taken for ever by a process that is killed while it
//! holds it. This one names its holder, by the place of its slot, and whoever finds it taken can
//! ask whether that one lives. Its number of turns changes with every change of hands, so that
//! nobody takes over from a holder that is not the one who was asked about.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::sync::AtomicU64;

/// Turns in the upper half; in the lower one more than the holder's slot, and 0 for nobody. The
/// slot behind the last is `run` itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RobustLock(AtomicU64);

/// How a seat was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockAcquired {
    /// It was free.
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

    /// Takes the seat for a slot, if nobody who lives has it.
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

    /// Frees the seat if this slot has it; whether it had. Its holder does so when it is done, and
    /// who has just taken a slot: its last owner is dead.
    pub(crate) fn release(&self, slot: usize) -> bool {
        let now = self.0.load(Acquire);
        let had = now as u32 as usize == slot + 1
            && self.0.compare_exchange(now, next(now, 0), AcqRel, Relaxed).is_ok();
        if had {
            crate::sync::wake(&self.0);
        }
        had
    }

    /// Waits for a while until the holder is done. It may be dead, so not for long.
    pub(crate) fn wait(&self) {
        crate::sync::wait(&self.0, self.0.load(Relaxed) as u32);
    }
}
