//! The first contents of a ledger. `run` creates one, or a process does from its environment.

use core::sync::atomic::Ordering::{Relaxed, Release};

use super::{DEVICES, GuardLedger, MAGIC};

/// The limits and settings of a new ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LedgerSetup<'a> {
    /// The limit of every device that has none of its own; [`super::NO_LIMIT`] refuses nothing.
    pub(crate) limit: u64,
    /// Limits by the program's own device numbers; 0 for the default.
    pub(crate) limits: [u64; DEVICES],
    /// Reserved below the limit for what the driver takes for itself.
    pub(crate) reserve: u64,
    /// What must stay available on unified memory.
    pub(crate) keep_free: u64,
    /// Bits of [`super::flag`].
    pub(crate) flags: u32,
    /// Where the system's memory is read.
    pub(crate) meminfo: &'a [u8],
}

impl LedgerSetup<'_> {
    /// Fills in a ledger, all zeros until now, and marks it as valid.
    pub(crate) fn fill(&self, ledger: &mut GuardLedger) {
        ledger.default_budget.store(self.limit, Relaxed);
        for (budget, limit) in ledger.budgets.iter().zip(self.limits) {
            budget.store(limit, Relaxed);
        }
        ledger.reserve.store(self.reserve, Relaxed);
        ledger.keep_free.store(self.keep_free, Relaxed);
        ledger.flags.store(self.flags, Relaxed);
        let count = self.meminfo.len().min(ledger.meminfo.len() - 1);
        ledger.meminfo[..count].copy_from_slice(&self.meminfo[..count]);
        ledger.magic.store(MAGIC, Release);
    }
}
