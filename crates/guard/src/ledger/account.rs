//! Charging and giving back: every way in which a figure of the ledger changes.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::{GuardLedger, LedgerDevice, LedgerProcess, NO_LIMIT};
use crate::sync::AtomicU64;

pub(super) fn subtract(counter: &AtomicU64, bytes: u64) {
    // Saturating: a figure that is too low would let memory exceed the limit, and one that wraps
    // around would refuse everything forever.
    let _ = counter.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(bytes)));
}

impl LedgerDevice {
    /// What allocations may reach, with all that is charged: the limit less `reserve`.
    #[must_use]
    pub fn allocation_limit(&self, reserve: u64) -> u64 {
        match self.budget.load(Relaxed) {
            NO_LIMIT => NO_LIMIT,
            budget => budget.saturating_sub(reserve),
        }
    }

    /// Raises `used` if it stays at or below `limit`; returns the new value.
    fn raise(&self, bytes: u64, limit: u64) -> Option<u64> {
        let mut now = self.used.load(Relaxed);
        loop {
            let after = now.checked_add(bytes).filter(|&after| after <= limit)?;
            match self.used.compare_exchange_weak(now, after, AcqRel, Relaxed) {
                Ok(_) => return Some(after),
                Err(other) => now = other,
            }
        }
    }

    /// Records that `charged` was charged at once.
    pub fn record_peak(&self, charged: u64, at: u64) {
        if charged > self.peak.load(Relaxed) && self.peak.fetch_max(charged, Relaxed) < charged {
            self.peak_at.store(at, Relaxed);
        }
    }

    /// What may still be allocated.
    #[must_use]
    pub fn free(&self, reserve: u64) -> u64 {
        self.allocation_limit(reserve).saturating_sub(self.used.load(Relaxed))
    }
}

impl GuardLedger {
    /// What is reserved for the driver.
    #[must_use]
    pub fn driver_reserve(&self) -> u64 {
        self.reserve.load(Relaxed)
    }

    /// Whether a setting is on.
    #[must_use]
    pub fn has_setting(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Notes a warning for the user.
    pub fn warn(&self, flag: u32) {
        if self.warnings.load(Relaxed) & flag == 0 {
            self.warnings.fetch_or(flag, Relaxed);
        }
    }

    /// Begins an allocation without a charge; [`GuardLedger::finish_allocation`],
    /// [`GuardLedger::fail_allocation`] or [`GuardLedger::refuse`] must follow.
    #[inline]
    pub fn begin_allocation(&self, process: &LedgerProcess) {
        process.own_counters().begin_allocation();
    }

    /// Begins an allocation: charges `bytes` if they fit, and returns what the device is charged
    /// then; [`GuardLedger::finish_allocation`] or [`GuardLedger::fail_allocation`] must follow.
    /// `None` if the limit is reached, even after `reclaim` gave back the shares of dead processes;
    /// then the request is counted as refused and has ended.
    #[inline(always)]
    pub fn grant(
        &self,
        process: &LedgerProcess,
        device: usize,
        bytes: u64,
        reclaim: impl FnOnce(),
    ) -> Option<u64> {
        let mine = process.own_counters();
        mine.begin_allocation();
        let limit = self.devices[device].allocation_limit(self.driver_reserve());
        let granted = match self.devices[device].raise(bytes, limit) {
            Some(now) => Some(now),
            None => {
                reclaim();
                self.devices[device].raise(bytes, limit)
            }
        };
        match granted {
            Some(_) => mine.add(device, bytes),
            None => self.refuse(process, device, bytes),
        }
        granted
    }

    /// Counts a refusal, which ends the operation.
    #[cold]
    pub fn refuse(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        self.devices[device].refused.fetch_add(1, Relaxed);
        let sum = &self.devices[device].refused_bytes;
        let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(bytes)));
        process.refused.fetch_add(1, Relaxed);
        process.own_counters().end_operation();
    }

    /// Counts a request that is refused before anything was charged.
    #[cold]
    pub fn refuse_uncharged(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        self.begin_allocation(process);
        self.refuse(process, device, bytes);
    }

    /// Removes a refusal from the counts that was only a check of the limit.
    pub fn forget_refusal(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        subtract(&self.devices[device].refused, 1);
        subtract(&self.devices[device].refused_bytes, bytes);
        subtract(&process.refused, 1);
        process.own.fetch_add(1, Relaxed);
    }

    /// Charges bytes before the driver takes them, if they fit. Nothing is counted as asked for or
    /// refused; [`GuardLedger::recharge`] follows with what the driver took.
    pub fn reserve_ahead(&self, process: &LedgerProcess, device: usize, bytes: u64) -> bool {
        self.reserve_ahead_within(process, device, bytes, self.driver_reserve())
    }

    /// As [`GuardLedger::reserve_ahead`], with another reserve: what the driver takes may use it
    /// up.
    pub fn reserve_ahead_within(
        &self,
        process: &LedgerProcess,
        device: usize,
        bytes: u64,
        reserve: u64,
    ) -> bool {
        process.own.fetch_add(1, Relaxed);
        let mine = process.own_counters();
        mine.begin_allocation();
        let limit = self.devices[device].allocation_limit(reserve);
        let held = self.devices[device].raise(bytes, limit).is_some();
        if held {
            mine.add(device, bytes);
        }
        mine.end_operation();
        held
    }

    /// Refuses a request that [`GuardLedger::grant`] has charged already.
    #[cold]
    pub fn refuse_charged(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        process.own_counters().subtract(device, bytes);
        subtract(&self.devices[device].used, bytes);
        self.refuse(process, device, bytes);
    }

    /// Ends an allocation that the driver has made.
    #[inline(always)]
    pub fn finish_allocation(&self, process: &LedgerProcess, device: usize, charged: u64, at: u64) {
        self.devices[device].record_peak(charged, at);
        process.own_counters().end_operation();
    }

    /// Ends an allocation that the driver has not made.
    pub fn fail_allocation(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        process.own_counters().subtract(device, bytes);
        subtract(&self.devices[device].used, bytes);
        process.failed.fetch_add(1, Relaxed);
        process.own_counters().end_operation();
    }

    /// Begins a free, before the driver is called; [`GuardLedger::finish_free`] or
    /// [`GuardLedger::free_refused`] must follow.
    #[inline]
    pub fn begin_free(&self, process: &LedgerProcess) {
        process.own_counters().begin_free();
    }

    /// Ends a free that the driver has refused.
    #[cold]
    pub fn free_refused(&self, process: &LedgerProcess) {
        process.own_counters().cancel_free();
    }

    /// Ends a free that the driver has made, and gives its bytes back.
    #[inline(always)]
    pub fn finish_free(&self, process: &LedgerProcess, device: usize, bytes: u64) {
        let mine = process.own_counters();
        mine.subtract(device, bytes);
        subtract(&self.devices[device].used, bytes);
        mine.end_operation();
    }

    /// Changes a charge that cannot be refused from `before` to `after`: what the driver takes for
    /// itself. It may exceed the limit; the reserve is there to prevent that.
    pub fn recharge(
        &self,
        process: &LedgerProcess,
        device: usize,
        before: u64,
        after: u64,
        at: u64,
    ) {
        if before != after {
            self.move_charge(process, device, (before, after), at, || {});
        }
    }

    /// As [`GuardLedger::recharge`]; `also` is done as part of the same operation.
    fn move_charge(
        &self,
        process: &LedgerProcess,
        device: usize,
        (before, after): (u64, u64),
        at: u64,
        also: impl FnOnce(),
    ) {
        process.own.fetch_add(1, Relaxed);
        let mine = process.own_counters();
        mine.begin_allocation();
        also();
        if after > before {
            self.devices[device].used.fetch_add(after - before, AcqRel);
            mine.add(device, after - before);
        } else {
            mine.subtract(device, before - after);
            subtract(&self.devices[device].used, before - after);
        }
        // The peak is recorded here, whether the charge rose or fell: what was charged ahead of the
        // driver is no peak.
        self.devices[device].record_peak(self.devices[device].used.load(Relaxed), at);
        mine.end_operation();
    }

    /// As [`GuardLedger::recharge`], for what the driver took for itself.
    pub fn charge_driver(&self, process: &LedgerProcess, device: usize, change: i64, at: u64) {
        let (driver, own) = (&self.devices[device].driver, &process.driver[device]);
        let bytes = change.unsigned_abs();
        if change > 0 {
            self.tag(process, 0, bytes);
            self.move_charge(process, device, (0, bytes), at, || {
                let now = driver.fetch_add(bytes, AcqRel) + bytes;
                self.devices[device].driver_peak.fetch_max(now, Relaxed);
                own.fetch_add(bytes, AcqRel);
            });
        } else {
            self.untag(process, 0, bytes);
            self.move_charge(process, device, (bytes, 0), at, || {
                subtract(own, bytes);
                subtract(driver, bytes);
            });
        }
    }

    /// Counts a block under the tag of the thread that asked for it. Tag 0 has what the driver took
    /// for itself, and what threads without a tag asked for.
    pub fn tag(&self, process: &LedgerProcess, tag: usize, bytes: u64) {
        if let (Some(held), Some(peak)) = (process.tagged.get(tag), process.tagged_peak.get(tag)) {
            peak.fetch_max(held.fetch_add(bytes, AcqRel) + bytes, Relaxed);
        }
    }

    /// The opposite of [`GuardLedger::tag`].
    pub fn untag(&self, process: &LedgerProcess, tag: usize, bytes: u64) {
        if let Some(held) = process.tagged.get(tag) {
            subtract(held, bytes);
        }
    }
}
