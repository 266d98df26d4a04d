//! How often the CPU had to stand in.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often the CPU had to stand in: shared by those who count it together.
///
/// ```
/// use plimsoll_memory::FallbackCounter;
/// let counter = FallbackCounter::new();
/// assert_eq!(counter.get(), 0);
/// ```
#[derive(Debug, Default)]
pub struct FallbackCounter(AtomicU64);

impl FallbackCounter {
    /// A counter at nothing.
    #[must_use]
    pub fn new() -> FallbackCounter {
        FallbackCounter::default()
    }

    /// What was counted.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
