//! A run under the guard. The guard counts what a slot uses at every call of the driver, by the
//! tag of its thread, and refuses every request that would exceed the limit.
//!
//! The program that starts a run provides the guard
//! ([`BenchPlan::guard`](super::BenchPlan::guard)); this trait is all that a run needs of it.
//! Without one, the engines report their memory and are asked to stay within the limit.

use std::any::Any;
use std::sync::Arc;

use plimsoll::Bytes;

/// The guard of this process.
pub trait BenchGuard: std::fmt::Debug + Send + Sync {
    /// Sets the limit, and returns the one that is enforced: a lower one may be set already.
    fn hold(&self, limit: Bytes, keep_free: Option<Bytes>) -> Bytes;
    /// Counts what this thread allocates on a GPU for the slot, until the result is dropped.
    fn enter(&self, slot: usize) -> Box<dyn Any>;
    /// What a slot uses now, and its peak; `None` before the first call of the driver.
    fn slot(&self, slot: usize) -> Option<(Bytes, Bytes)>;
    /// The rest; `None` before the first call of the driver.
    fn whole(&self) -> Option<GuardTotals>;
}

/// What the guard counts beside the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuardTotals {
    /// The peak of what belongs to no slot: what the driver takes for itself, and requests of
    /// other threads.
    pub shared_peak: Bytes,
    /// The peak of the whole device.
    pub peak: Bytes,
    /// Whether a request above the limit was tried and refused.
    pub verified: bool,
    /// Requests that were refused.
    pub refused: u64,
    /// Their bytes.
    pub refused_bytes: Bytes,
}

/// Whether a run is under the guard.
#[derive(Debug, Clone, Default)]
pub enum Guarded {
    /// It was not wanted: the run uses no GPU, or the user refused it.
    #[default]
    No,
    /// It was wanted and is not available, and why.
    Not(String),
    /// It is under the guard.
    Yes(Arc<dyn BenchGuard>),
}

impl Guarded {
    /// The guard, where there is one.
    #[must_use]
    pub fn get(&self) -> Option<&dyn BenchGuard> {
        match self {
            Guarded::Yes(guard) => Some(&**guard),
            Guarded::No | Guarded::Not(_) => None,
        }
    }
}

/// The least that a slot has requested, context and code included, where the guard has refused
/// something since it reported `before`; `None` where it has not.
pub(super) fn asked_for(guard: &dyn BenchGuard, slot: usize, before: GuardTotals) -> Option<Bytes> {
    let whole = guard.whole()?;
    let refused = whole.refused.checked_sub(before.refused).filter(|refused| *refused > 0)?;
    // The mean of the refused requests, as one may have been tried several times.
    let asked = whole.refused_bytes.saturating_sub(before.refused_bytes) / refused;
    let own = guard.slot(slot).map_or(Bytes::ZERO, |(_, peak)| peak);
    Some(own.saturating_add(whole.shared_peak).saturating_add(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FixedGuard(GuardTotals);

    impl BenchGuard for FixedGuard {
        fn hold(&self, limit: Bytes, _: Option<Bytes>) -> Bytes {
            limit
        }

        fn enter(&self, _: usize) -> Box<dyn Any> {
            Box::new(())
        }

        fn slot(&self, slot: usize) -> Option<(Bytes, Bytes)> {
            (slot == 1).then_some((Bytes::ZERO, Bytes::mib(10)))
        }

        fn whole(&self) -> Option<GuardTotals> {
            Some(self.0)
        }
    }

    #[test]
    fn what_was_refused_to_others_is_not_asked_for_by_a_slot() {
        let shared_peak = Bytes::mib(100);
        let of = |refused, mib| GuardTotals {
            refused,
            refused_bytes: Bytes::mib(mib),
            shared_peak,
            ..GuardTotals::default()
        };
        let before = of(3, 900);
        assert_eq!(asked_for(&FixedGuard(before), 1, before), None);
        let after = FixedGuard(of(5, 980));
        assert_eq!(asked_for(&after, 1, before), Some(Bytes::mib(150)));
        assert_eq!(asked_for(&after, 0, before), Some(Bytes::mib(140)), "nothing was held yet");
    }
}
