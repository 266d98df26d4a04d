//! Granting and giving back: every way in which a figure of the ledger changes.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::{Device, Ledger, NO_LIMIT, Process, Refused};
use crate::sync::AtomicU64;

pub(super) fn take(counter: &AtomicU64, bytes: u64) {
    // Saturating: a figure that is too low would let memory past the line, one that wraps
    // round would close it for ever.
    let _ = counter.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(bytes)));
}

impl Device {
    /// What allocation calls may take together with what is charged.
    #[must_use]
    pub fn line(&self, reserve: u64) -> u64 {
        match self.budget.load(Relaxed) {
            NO_LIMIT => NO_LIMIT,
            budget => budget.saturating_sub(reserve),
        }
    }

    /// Raises `used` if it stays at or below the line; the new value.
    fn raise(&self, bytes: u64, line: u64) -> Option<u64> {
        let mut now = self.used.load(Relaxed);
        loop {
            let after = now.checked_add(bytes).filter(|&after| after <= line)?;
            match self.used.compare_exchange_weak(now, after, AcqRel, Relaxed) {
                Ok(_) => return Some(after),
                Err(other) => now = other,
            }
        }
    }

    /// Notes that so much was charged at once.
    pub fn reached(&self, charged: u64, at: u64) {
        if charged > self.peak.load(Relaxed) && self.peak.fetch_max(charged, Relaxed) < charged {
            self.peak_at.store(at, Relaxed);
        }
    }

    /// What may still be allocated.
    #[must_use]
    pub fn free(&self, reserve: u64) -> u64 {
        self.line(reserve).saturating_sub(self.used.load(Relaxed))
    }
}

impl Ledger {
    /// What is held back for the driver.
    #[must_use]
    pub fn held_back(&self) -> u64 {
        self.reserve.load(Relaxed)
    }

    /// Whether a setting is on.
    #[must_use]
    pub fn is(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Notes something that the user should be told.
    pub fn warn(&self, flag: u32) {
        if self.warnings.load(Relaxed) & flag == 0 {
            self.warnings.fetch_or(flag, Relaxed);
        }
    }

    /// Counts an allocation that begins; [`Ledger::granted`], [`Ledger::undo`] or
    /// [`Ledger::refuse`] must follow.
    #[inline]
    pub fn begin(&self, process: &Process) {
        process.mine().begin_to_add();
    }

    /// Begins an allocation: charges `bytes` if they fit. The value is what is charged with
    /// them; [`Ledger::granted`] or [`Ledger::undo`] must follow.
    ///
    /// # Errors
    ///
    /// The limit is reached, also after `reclaim` gave back the shares of dead processes.
    #[inline(always)]
    pub fn grant(
        &self,
        process: &Process,
        device: usize,
        bytes: u64,
        reclaim: impl FnOnce(),
    ) -> Result<u64, Refused> {
        let mine = process.mine();
        mine.begin_to_add();
        let line = self.devices[device].line(self.held_back());
        let granted = match self.devices[device].raise(bytes, line) {
            Some(now) => Some(now),
            None => {
                reclaim();
                self.devices[device].raise(bytes, line)
            }
        };
        match granted {
            Some(now) => {
                mine.add(device, bytes);
                Ok(now)
            }
            None => {
                self.refuse(process, device, bytes);
                Err(Refused::Line)
            }
        }
    }

    /// Counts a refusal that ends the operation.
    #[cold]
    pub fn refuse(&self, process: &Process, device: usize, bytes: u64) {
        self.devices[device].refused.fetch_add(1, Relaxed);
        let sum = &self.devices[device].refused_bytes;
        let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(bytes)));
        process.refused.fetch_add(1, Relaxed);
        process.mine().end();
    }

    /// Counts a request that is refused before anything was charged.
    #[cold]
    pub fn refuse_now(&self, process: &Process, device: usize, bytes: u64) {
        self.begin(process);
        self.refuse(process, device, bytes);
    }

    /// Takes a refusal out of the count that was only a trial.
    pub fn forget_refusal(&self, process: &Process, device: usize, bytes: u64) {
        take(&self.devices[device].refused, 1);
        take(&self.devices[device].refused_bytes, bytes);
        take(&process.refused, 1);
        process.own.fetch_add(1, Relaxed);
    }

    /// Charges bytes ahead of what the driver will take, if they fit. Nothing is counted as
    /// asked for or refused; [`Ledger::recharge`] settles it.
    pub fn hold(&self, process: &Process, device: usize, bytes: u64) -> bool {
        self.hold_below(process, device, bytes, self.held_back())
    }

    /// As [`Ledger::hold`], with another reserve: what the driver takes may use it up.
    pub fn hold_below(&self, process: &Process, device: usize, bytes: u64, reserve: u64) -> bool {
        process.own.fetch_add(1, Relaxed);
        let mine = process.mine();
        mine.begin_to_add();
        let line = self.devices[device].line(reserve);
        let held = self.devices[device].raise(bytes, line).is_some();
        if held {
            mine.add(device, bytes);
        }
        mine.end();
        held
    }

    /// Takes back what [`Ledger::grant`] charged, for a reason of our own.
    #[cold]
    pub fn withdraw(&self, process: &Process, device: usize, bytes: u64) {
        process.mine().take(device, bytes);
        take(&self.devices[device].used, bytes);
        self.refuse(process, device, bytes);
    }

    /// Ends an allocation that the driver has made.
    #[inline(always)]
    pub fn granted(&self, process: &Process, device: usize, charged: u64, at: u64) {
        self.devices[device].reached(charged, at);
        process.mine().end();
    }

    /// Ends an allocation that the driver has not made.
    pub fn undo(&self, process: &Process, device: usize, bytes: u64) {
        process.mine().take(device, bytes);
        take(&self.devices[device].used, bytes);
        process.failed.fetch_add(1, Relaxed);
        process.mine().end();
    }

    /// Begins a free, before the driver is asked; [`Ledger::released`] or
    /// [`Ledger::kept`] must follow.
    #[inline]
    pub fn release(&self, process: &Process) {
        process.mine().begin_to_take();
    }

    /// Ends a free that the driver has refused.
    #[cold]
    pub fn kept(&self, process: &Process) {
        process.mine().took_nothing();
    }

    /// Gives back what the driver has taken back.
    #[inline(always)]
    pub fn released(&self, process: &Process, device: usize, bytes: u64) {
        let mine = process.mine();
        mine.take(device, bytes);
        take(&self.devices[device].used, bytes);
        mine.end();
    }

    /// Moves a charge that cannot be refused from `before` to `after`: what the driver takes
    /// by itself. The limit may be passed by it; the reserve is there so that it is not.
    pub fn recharge(&self, process: &Process, device: usize, before: u64, after: u64, at: u64) {
        if before != after {
            self.shift(process, device, (before, after), at, || {});
        }
    }

    /// As [`Ledger::recharge`]; `also` is done as a part of the same operation.
    fn shift(
        &self,
        process: &Process,
        device: usize,
        (before, after): (u64, u64),
        at: u64,
        also: impl FnOnce(),
    ) {
        process.own.fetch_add(1, Relaxed);
        let mine = process.mine();
        mine.begin_to_add();
        also();
        if after > before {
            self.devices[device].used.fetch_add(after - before, AcqRel);
            mine.add(device, after - before);
        } else {
            mine.take(device, before - after);
            take(&self.devices[device].used, before - after);
        }
        // Lowered or raised, it may be the most so far: what is held ahead is no peak.
        self.devices[device].reached(self.devices[device].used.load(Relaxed), at);
        mine.end();
    }

    /// As [`Ledger::recharge`], for what the driver took for itself.
    pub fn charge_driver(&self, process: &Process, device: usize, change: i64, at: u64) {
        let (driver, own) = (&self.devices[device].driver, &process.driver[device]);
        let bytes = change.unsigned_abs();
        if change > 0 {
            self.tag(process, 0, bytes);
            self.shift(process, device, (0, bytes), at, || {
                let now = driver.fetch_add(bytes, AcqRel) + bytes;
                self.devices[device].driver_peak.fetch_max(now, Relaxed);
                own.fetch_add(bytes, AcqRel);
            });
        } else {
            self.untag(process, 0, bytes);
            self.shift(process, device, (bytes, 0), at, || {
                take(own, bytes);
                take(driver, bytes);
            });
        }
    }

    /// Counts a block for the tag of the thread that asked for it; what the driver took for
    /// itself has the tag 0, as has what nobody's thread asked for.
    pub fn tag(&self, process: &Process, tag: usize, bytes: u64) {
        if let (Some(held), Some(peak)) = (process.tagged.get(tag), process.tagged_peak.get(tag)) {
            peak.fetch_max(held.fetch_add(bytes, AcqRel) + bytes, Relaxed);
        }
    }

    /// The opposite of [`Ledger::tag`].
    pub fn untag(&self, process: &Process, tag: usize, bytes: u64) {
        if let Some(held) = process.tagged.get(tag) {
            take(held, bytes);
        }
    }
}
