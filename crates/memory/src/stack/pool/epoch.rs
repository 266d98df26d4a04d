//! The hand-over from a free on one thread to a reuse on another: one number.
//!
//! A free notes the epoch that is open; an event closes it. The order of the two steps of
//! closing is all that keeps this right, so it stands alone and is model-checked: an
//! epoch is closed *before* its event is recorded, so a free that noted it had queued its
//! work before, and the event covers that work. The other way round a free could slip in
//! between and claim an event that does not cover it.

use crate::sync::{AtomicU64, Ordering};

/// The epochs of a stream.
#[derive(Debug)]
pub(super) struct Epochs {
    open: AtomicU64,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs { open: AtomicU64::new(0) }
    }
}

impl Epochs {
    /// The epoch that a free notes. Work that it must wait for was queued before.
    pub(super) fn note(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }

    /// Closes the open epoch and records an event that covers it and all before.
    pub(super) fn close<T>(&self, record: impl FnOnce() -> T) -> (u64, T) {
        let closed = self.open.fetch_add(1, Ordering::SeqCst);
        (closed, record())
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// Two threads queue work and free; a third closes an epoch meanwhile. Whatever noted
    /// the closed epoch is covered by its event, in every interleaving.
    #[test]
    fn an_event_covers_every_free_of_its_epoch() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::default());
            // The stream's queue: a driver serialises it, and an event sees it as it is.
            let queue = Arc::new(Mutex::new([false; 2]));
            let frees: Vec<_> = (0..2)
                .map(|i| {
                    let (epochs, queue) = (Arc::clone(&epochs), Arc::clone(&queue));
                    thread::spawn(move || {
                        queue.lock().unwrap()[i] = true;
                        epochs.note()
                    })
                })
                .collect();
            let (closed, covered) = epochs.close(|| *queue.lock().unwrap());
            for (free, covered) in frees.into_iter().zip(covered) {
                let noted = free.join().unwrap();
                assert!(noted > closed || covered, "epoch {noted} is not covered by {closed}");
            }
        });
    }
}
