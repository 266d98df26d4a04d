//! Work on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, available_parallelism};

/// The results of `work` for 0 to `count`, in that order. Threads take `at_once` pieces at a time.
pub(crate) fn map<T: Send>(
    count: usize,
    at_once: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let threads = available_parallelism().map_or(1, usize::from).min(count.div_ceil(at_once));
    let next = AtomicUsize::new(0);
    let share = || {
        let mut done = Vec::new();
        loop {
            let from = next.fetch_add(at_once, Ordering::Relaxed);
            if from >= count {
                return done;
            }
            done.extend((from..(from + at_once).min(count)).map(|at| (at, work(at))));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // A thread that cannot be started leaves its work to the others.
        let others: Vec<_> =
            (1..threads).filter_map(|_| Builder::new().spawn_scoped(scope, share).ok()).collect();
        let mut all = share();
        for other in others {
            match other.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
