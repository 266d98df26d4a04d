//! Reclaims the GPU memory of processes that have died. Any process may do this; a lock admits one
//! at a time.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::account::subtract;
use super::robust_lock::LockAcquired;
use super::{DEVICES, GuardLedger, LedgerProcess, state};

/// Tells whether the process of a slot is alive. What is unknown counts as true.
pub(crate) trait Liveness {
    /// Whether it is running.
    fn is_running(&self, slot: usize) -> bool;
    /// Whether the driver may still keep memory for it.
    fn may_hold_memory(&self, slot: usize) -> bool;
}

impl GuardLedger {
    /// Gives back what processes held that have died. `slot` is the caller's. If another process is
    /// already doing this, it returns at once.
    pub(crate) fn reclaim(&self, slot: usize, alive: &impl Liveness) {
        match self.reclaim_lock.try_acquire(slot, |of| of == slot || alive.is_running(of)) {
            None => return,
            // A process that was killed while reclaiming has left shares half given back.
            Some(LockAcquired::FromDeadHolder) => self.needs_audit.store(1, Release),
            Some(LockAcquired::WasFree) => {}
        }
        for (place, process) in self.processes().iter().enumerate() {
            if process.state.load(Acquire) == state::LIVE
                && place != slot
                && !alive.may_hold_memory(place)
            {
                self.release_dead(process);
            }
        }
        if self.needs_audit.load(Acquire) != 0 {
            self.audit();
        }
        self.reclaim_lock.release(slot);
    }

    /// Prepares a slot for its new owner. The last owner has died and has not finished what it was
    /// doing. The new owner gives back what the last one held, if nobody has done so yet. Returns
    /// whether that is done: it does not wait for a holder of the lock that is stopped.
    pub(crate) fn take_over_slot(&self, slot: usize, alive: &impl Liveness) -> bool {
        const TRIES: usize = if cfg!(loom) { 2 } else { 200 };
        if self.reclaim_lock.release(slot) {
            self.needs_audit.store(1, Release);
        }
        self.contexts_lock.release(slot);
        self.devices_lock.release(slot);
        let Some(process) = self.processes.get(slot) else { return false };
        for _ in 0..TRIES {
            if process.state.load(Acquire) != state::LIVE {
                return true;
            }
            let Some(taken) =
                self.reclaim_lock.try_acquire(slot, |of| of == slot || alive.is_running(of))
            else {
                self.reclaim_lock.wait();
                continue;
            };
            if taken == LockAcquired::FromDeadHolder {
                self.needs_audit.store(1, Release);
            }
            // Another process may have been faster.
            if process.state.load(Acquire) == state::LIVE {
                self.release_dead(process);
            }
            self.reclaim_lock.release(slot);
        }
        process.state.load(Acquire) != state::LIVE
    }

    /// Gives back what a process held that has died, or has become another program. Only the holder
    /// of the lock may call this.
    fn release_dead(&self, process: &LedgerProcess) {
        if process.operations_if_idle().is_none() {
            self.needs_audit.store(1, Release);
        }
        process.until.store(crate::sync::now(), Relaxed);
        // Once the slot is marked as dead, its share no longer counts and another process may take
        // it. A process that is killed after that leaves `used` too high, for an audit.
        let held: [u64; DEVICES] = core::array::from_fn(|device| process.used(device));
        let own: [u64; DEVICES] =
            core::array::from_fn(|device| process.driver[device].load(Relaxed));
        process.state.store(state::DEAD, Release);
        for ((device, held), own) in self.devices.iter().zip(held).zip(own) {
            subtract(&device.driver, own);
            subtract(&device.used, held);
        }
    }

    fn live(&self) -> impl Iterator<Item = &LedgerProcess> {
        self.processes().iter().filter(|process| process.state.load(Acquire) == state::LIVE)
    }

    /// How many operations there were so far; `None` while one is under way. What was read between
    /// two equal answers was read while nothing changed.
    #[must_use]
    pub fn operations_if_idle(&self) -> Option<u64> {
        self.live()
            .try_fold(0u64, |sum, process| Some(sum.wrapping_add(process.operations_if_idle()?)))
    }

    /// Subtracts from every device's `used` what no living process holds: what dead processes have
    /// left behind between two steps. That is the difference to the sum of the shares, read while
    /// no operation is under way; if one is, the audit is left for the next time.
    fn audit(&self) {
        let mut settled = true;
        for (index, device) in self.devices.iter().enumerate() {
            let before = self.operations_if_idle();
            let charged = device.used.load(Acquire);
            let shares: u64 = self.live().map(|process| process.used(index)).sum();
            let own = device.driver.load(Acquire);
            let drivers: u64 = self.live().map(|process| process.driver[index].load(Acquire)).sum();
            let (admitted, ended) =
                (self.system_admitted.load(Acquire), self.system_ended.load(Acquire));
            if before.is_none() || self.operations_if_idle() != before {
                settled = false;
                continue;
            }
            // What was left behind cannot change any more, whatever other processes do from here
            // on.
            subtract(&device.used, charged.saturating_sub(shares));
            subtract(&device.driver, own.saturating_sub(drivers));
            self.system_ended.fetch_add(admitted.saturating_sub(ended), Relaxed);
        }
        if settled {
            self.needs_audit.store(0, Release);
        }
    }
}
