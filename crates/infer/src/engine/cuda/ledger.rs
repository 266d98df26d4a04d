//! What an engine holds on the device: counted, and refused past the line.
//!
//! TensorRT's shim asks before every allocation and tells after every free, as our own buffers
//! do, so `in_use` is exact for what is taken through us: weights, scratch memory, buffers.
//! What the driver takes for its context is not among it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::EngineMemory;

/// Bytes on a device, against a line.
#[derive(Debug, Default)]
pub(in crate::engine) struct Ledger {
    limit: Option<u64>,
    in_use: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
}

impl Ledger {
    pub(in crate::engine) fn new(limit: Option<u64>) -> Ledger {
        Ledger { limit, ..Ledger::default() }
    }

    /// Counts bytes that are about to be allocated, or refuses them.
    pub(in crate::engine) fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit.unwrap_or(u64::MAX);
        let fits = |now: u64| now.checked_add(bytes).filter(|&sum| sum <= limit);
        match self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::AcqRel);
                true
            }
            Err(_) => {
                self.refused.fetch_max(bytes, Ordering::AcqRel);
                false
            }
        }
    }

    /// Counts bytes that were freed.
    pub(in crate::engine) fn release(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// The largest request that was refused, where one was.
    pub(in crate::engine) fn refused(&self) -> Option<u64> {
        Some(self.refused.load(Ordering::Acquire)).filter(|&bytes| bytes > 0)
    }

    pub(in crate::engine) fn memory(&self) -> EngineMemory {
        let in_use = self.in_use.load(Ordering::Acquire);
        EngineMemory {
            in_use: Some(in_use),
            peak: Some(self.peak.load(Ordering::Acquire)),
            reserved: Some(in_use),
            limit: self.limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_held_and_the_peak_kept() {
        let ledger = Ledger::new(Some(100));
        assert!(ledger.charge(60) && ledger.charge(40));
        assert!(!ledger.charge(1) && !ledger.charge(u64::MAX));
        assert_eq!(ledger.refused(), Some(u64::MAX));
        ledger.release(60);
        assert!(ledger.charge(10));
        let memory = ledger.memory();
        assert_eq!((memory.in_use, memory.peak, memory.limit), (Some(50), Some(100), Some(100)));
        ledger.release(500);
        assert_eq!(ledger.memory().in_use, Some(0));
    }
}
