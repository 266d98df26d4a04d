//! Reserve before asking: what may be out, what is, and the most that ever was.
//!
//! Everything that holds memory to a limit counts with this one type. The bytes of a
//! request are reserved *before* a driver or another memory is asked, by compare-and-swap,
//! and credited if that fails. So the sum of what is reserved never exceeds the limit, not
//! for an instant and not from any number of threads. Adding first and looking afterwards
//! would exceed the limit for a moment and refuse requests that fit; asking the driver
//! first would let it hand out what must then be taken back. A return goes the other way
//! round: the driver has the memory back before the bytes are credited.

use crate::sync::{AtomicU64, Ordering};
use plimsoll_machine::units::Bytes;

/// A limit in bytes and what is reserved of it, without a lock.
///
/// ```
/// use plimsoll_memory::{Budget, Bytes};
///
/// let budget = Budget::new(Bytes::mib(8));
/// budget.reserve(Bytes::mib(6)).unwrap();
/// assert_eq!(budget.reserve(Bytes::mib(3)), Err(Bytes::mib(2)), "the error is what is free");
/// budget.credit(Bytes::mib(6));
/// assert_eq!((budget.reserved(), budget.peak()), (Bytes::ZERO, Bytes::mib(6)));
/// ```
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    reserved: AtomicU64,
    peak: AtomicU64,
}

impl Budget {
    /// Nothing reserved of this limit; [`Bytes::MAX`] is no limit.
    #[must_use]
    pub fn new(limit: Bytes) -> Budget {
        Budget {
            limit: AtomicU64::new(limit.get()),
            reserved: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        Bytes(self.limit.load(Ordering::Acquire))
    }

    /// Moves the limit for requests from now on. What is reserved beyond it stays reserved.
    pub fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.get(), Ordering::Release);
    }

    /// What is reserved now.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved.load(Ordering::Acquire))
    }

    /// What can still be reserved.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.limit().saturating_sub(self.reserved())
    }

    /// The most that was ever reserved at once.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        // A reservation is visible a moment before its peak is.
        Bytes(self.peak.load(Ordering::Acquire)).max(self.reserved())
    }

    /// Reserves this many bytes; the error is what was free.
    pub fn reserve(&self, size: Bytes) -> Result<(), Bytes> {
        let limit = self.limit();
        let mut reserved = self.reserved.load(Ordering::Relaxed);
        loop {
            let free = limit.saturating_sub(Bytes(reserved));
            if size > free {
                return Err(free);
            }
            let more = reserved + size.get();
            match self.reserved.compare_exchange_weak(
                reserved,
                more,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.raise_peak(more);
                    return Ok(());
                }
                Err(now) => reserved = now,
            }
        }
    }

    /// Gives bytes back. Stops at nothing: a block that was reserved elsewhere must not
    /// wrap the count and so close, or open, the limit for good.
    pub fn credit(&self, size: Bytes) {
        let less = |reserved: u64| Some(reserved.saturating_sub(size.get()));
        // It never refuses, so there is no error to look at.
        let _ = self.reserved.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    /// A look is cheaper than a write, and the peak seldom rises.
    fn raise_peak(&self, reserved: u64) {
        if self.peak.load(Ordering::Relaxed) < reserved {
            self.peak.fetch_max(reserved, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_what_is_reserved_refuses_until_enough_is_credited() {
        let budget = Budget::new(Bytes::MAX);
        budget.reserve(Bytes(8)).unwrap();
        budget.set_limit(Bytes(4));
        assert_eq!((budget.free(), budget.reserve(Bytes(1))), (Bytes(0), Err(Bytes(0))));
        budget.credit(Bytes(6));
        assert_eq!((budget.reserve(Bytes(3)), budget.reserve(Bytes(2))), (Err(Bytes(2)), Ok(())));
        assert_eq!((budget.reserved(), budget.peak()), (Bytes(4), Bytes(8)));
    }

    #[test]
    fn a_credit_for_what_was_never_reserved_stops_at_nothing() {
        let budget = Budget::new(Bytes(4));
        budget.reserve(Bytes(1)).unwrap();
        budget.credit(Bytes(3));
        assert_eq!((budget.reserved(), budget.free()), (Bytes(0), Bytes(4)));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const LIMIT: Bytes = Bytes(3);

    /// Three of four fit: in every interleaving of two threads that reserve and credit,
    /// nobody sees more than the limit reserved, and nothing stays behind.
    #[test]
    fn the_limit_is_never_exceeded() {
        loom::model(|| {
            let budget = Arc::new(Budget::new(LIMIT));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let budget = Arc::clone(&budget);
                    thread::spawn(move || match budget.reserve(Bytes(2)) {
                        Ok(()) => {
                            assert!(budget.reserved() <= LIMIT);
                            budget.credit(Bytes(2));
                        }
                        Err(free) => assert_eq!(free, Bytes(1), "refused only while it is full"),
                    })
                })
                .collect();
            assert!(budget.reserved() <= LIMIT);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!((budget.reserved(), budget.peak()), (Bytes(0), Bytes(2)));
        });
    }

    /// Two threads that both fit: in every interleaving both get their bytes, none is lost,
    /// and the peak is their sum.
    #[test]
    fn no_reservation_is_lost() {
        loom::model(|| {
            let budget = Arc::new(Budget::new(LIMIT));
            let other = Arc::clone(&budget);
            let thread = thread::spawn(move || other.reserve(Bytes(1)));
            budget.reserve(Bytes(2)).unwrap();
            thread.join().unwrap().unwrap();
            assert_eq!((budget.reserved(), budget.peak()), (LIMIT, LIMIT));
            assert_eq!(budget.reserve(Bytes(1)), Err(Bytes(0)));
        });
    }
}
