//! A run under the guard: what a slot holds is counted at every call of the driver, by the
//! tag of its thread, and what would pass the limit is refused, whoever asks for it.
//!
//! Who starts a run says what guard it is under ([`BenchPlan::guard`](super::BenchPlan::guard)); this is
//! all that a run asks of it. Without one, engines are asked and the limit is theirs to keep.

use std::any::Any;
use std::sync::Arc;

use plimsoll::Bytes;

/// The guard of this process.
pub trait BenchGuard: std::fmt::Debug + Send + Sync {
    /// Draws the line, and returns the one that is held: another may stand already.
    fn hold(&self, limit: Bytes, keep_free: Option<Bytes>) -> Bytes;
    /// From now on what this thread allocates on a GPU is the slot's, until the result is
    /// dropped.
    fn enter(&self, slot: usize) -> Box<dyn Any>;
    /// What a slot holds now, and the most that it held at once; nothing before the driver was
    /// called through the guard.
    fn slot(&self, slot: usize) -> Option<(Bytes, Bytes)>;
    /// The rest; nothing before the driver was called through the guard.
    fn whole(&self) -> Option<GuardTotals>;
}

/// What the guard tells beside the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuardTotals {
    /// The most that belonged to no slot: what the driver took for itself, and what was asked
    /// for by threads that are no slot's.
    pub shared_peak: Bytes,
    /// The most that the device was charged with at once.
    pub peak: Bytes,
    /// Whether a request past the line was tried and refused.
    pub verified: bool,
    /// Requests that were refused.
    pub refused: u64,
    /// Their bytes.
    pub refused_bytes: Bytes,
}

/// Whether a run is under the guard.
#[derive(Debug, Clone, Default)]
pub enum Guarded {
    /// Nobody asked for it: the run uses no GPU, or does not want it.
    #[default]
    No,
    /// It was wanted and could not be had, and why.
    Not(String),
    /// It is.
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

/// What a slot has asked for at the least, context and code included, where the guard has refused
/// something since it told `before`; nothing where it has not.
pub(super) fn asked_for(guard: &dyn BenchGuard, slot: usize, before: GuardTotals) -> Option<Bytes> {
    let whole = guard.whole()?;
    let refused = whole.refused.checked_sub(before.refused).filter(|refused| *refused > 0)?;
    // The mean of those that were refused: a request that was tried again is one.
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
