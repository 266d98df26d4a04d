//! How close to the limit: four levels, the same everywhere.

use std::fmt;

use plimsoll_machine::units::Bytes;

/// The share of a budget that is in use, as a level to act on.
///
/// ```
/// use plimsoll_memory::{Bytes, MemoryPressure};
/// assert_eq!(MemoryPressure::of(Bytes(59), Bytes(100)), MemoryPressure::Low);
/// assert_eq!(MemoryPressure::of(Bytes(60), Bytes(100)), MemoryPressure::Medium);
/// assert_eq!(MemoryPressure::of(Bytes(80), Bytes(100)), MemoryPressure::High);
/// assert_eq!(MemoryPressure::of(Bytes(95), Bytes(100)), MemoryPressure::Critical);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryPressure {
    /// Below 60 %.
    Low,
    /// From 60 %.
    Medium,
    /// From 80 %.
    High,
    /// From 95 %.
    Critical,
}

impl MemoryPressure {
    /// The level of `used` out of `budget`. A budget of nothing is always critical.
    #[must_use]
    pub fn of(used: Bytes, budget: Bytes) -> MemoryPressure {
        // In u128, since a percentage of a u64 does not always fit one.
        let (used, budget) = (u128::from(used.0) * 100, u128::from(budget.0));
        match () {
            () if used >= budget * 95 => MemoryPressure::Critical,
            () if used >= budget * 80 => MemoryPressure::High,
            () if used >= budget * 60 => MemoryPressure::Medium,
            () => MemoryPressure::Low,
        }
    }
}

impl fmt::Display for MemoryPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryPressure::Low => "low",
            MemoryPressure::Medium => "medium",
            MemoryPressure::High => "high",
            MemoryPressure::Critical => "critical",
        })
    }
}
