use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use plimsoll_memory::{Bytes, Memory, MemoryPressure, Pool, PressureWatch, Request, Stream};
use proptest::prelude::*;

use crate::{Random, everything, host, sim};

type Seen = Arc<Mutex<Vec<(MemoryPressure, MemoryPressure)>>>;

fn watch(upstream: Arc<dyn Memory>) -> (PressureWatch, Seen) {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    let watch = PressureWatch::new(upstream, move |change| {
        assert_eq!(change.is_rise(), change.to > change.from);
        notes.lock().unwrap().push((change.from, change.to));
    });
    (watch, seen)
}

const LEVELS: [MemoryPressure; 4] =
    [MemoryPressure::Low, MemoryPressure::Medium, MemoryPressure::High, MemoryPressure::Critical];

/// It is written on the thread that allocates.
#[test]
fn a_change_is_shown_in_a_line() {
    let pool: Arc<dyn Memory> = Arc::new(Pool::new(sim(64), everything()).unwrap());
    let shown = Arc::new(Mutex::new(String::new()));
    let watch = PressureWatch::new(pool, {
        let shown = Arc::clone(&shown);
        move |change| *shown.lock().unwrap() = format!("{change:?}")
    });
    let share = watch.capacity().fraction(0.99);
    let _block = watch.allocate(Request::new(share)).unwrap();
    let shown = shown.lock().unwrap().clone();
    assert!(shown.contains("to: Critical") && shown.contains("pool on sim"), "{shown}");
    assert!(shown.len() < 120, "{shown}");
}

/// All threads go up together, then all down: each level is reported once each way, with
/// none left out that was seen and none reported twice.
#[test]
fn a_race_across_a_level_is_one_report() {
    for round in 0..60 {
        let (watch, seen) = watch(host(1));
        let start = Barrier::new(8);
        let blocks = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..16 {
                        let block = watch.allocate(Request::new(Bytes::kib(8))).unwrap();
                        blocks.lock().unwrap().push(block);
                    }
                });
            }
        });
        let up: Vec<_> = std::mem::take(&mut *seen.lock().unwrap());
        assert_chain(&up, MemoryPressure::Low, MemoryPressure::Critical);
        assert!(up.len() <= 3 && up.iter().all(|(from, to)| from < to), "{round}: {up:?}");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..16 {
                        let block = blocks.lock().unwrap().pop().unwrap();
                        watch.release(block, Stream::DEFAULT).unwrap();
                    }
                });
            }
        });
        let down = seen.lock().unwrap();
        assert_chain(&down, MemoryPressure::Critical, MemoryPressure::Low);
        assert!(down.len() <= 3 && down.iter().all(|(from, to)| from > to), "{round}: {down:?}");
    }
}

/// Reports of several threads may be noted in another order than they were claimed in;
/// they still leave and enter each level as often as a chain would.
fn assert_chain(
    reports: &[(MemoryPressure, MemoryPressure)],
    start: MemoryPressure,
    end: MemoryPressure,
) {
    for level in LEVELS {
        let left = reports.iter().filter(|(from, _)| *from == level).count() as i64;
        let entered = reports.iter().filter(|(_, to)| *to == level).count() as i64;
        let expected = i64::from(level == start) - i64::from(level == end);
        assert_eq!(left - entered, expected, "{level}: {reports:?}");
    }
    assert!(reports.iter().all(|(from, to)| from != to), "{reports:?}");
}

#[test]
fn racing_threads_leave_a_chain_that_ends_where_it_is() {
    for seed in 0..20 {
        let (watch, seen) = watch(host(1));
        thread::scope(|scope| {
            for number in 0..8 {
                let watch = &watch;
                scope.spawn(move || {
                    let mut random = Random(seed * 8 + number);
                    for _ in 0..100 {
                        let size = random.below(1 << 18);
                        if let Ok(block) = watch.allocate(Request::new(size)) {
                            watch.release(block, Stream::DEFAULT).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(watch.pressure(), MemoryPressure::Low);
        assert_chain(&seen.lock().unwrap(), MemoryPressure::Low, MemoryPressure::Low);
    }
}

#[test]
fn the_callback_may_trim_and_return_blocks() {
    let pool: Arc<Pool> = Arc::new(Pool::new(sim(64), everything()).unwrap());
    let cache = Arc::new(Mutex::new(Vec::new()));
    let trimmed = Arc::new(AtomicU64::new(0));
    let watch = Arc::new_cyclic(|watch: &std::sync::Weak<PressureWatch>| {
        let (cache, trimmed, watch) = (cache.clone(), trimmed.clone(), watch.clone());
        PressureWatch::new(pool.clone(), move |change| {
            if change.is_rise() && change.to >= MemoryPressure::High {
                let watch = watch.upgrade().unwrap();
                let blocks: Vec<_> = cache.lock().unwrap().drain(..).collect();
                for block in blocks {
                    watch.release(block, Stream::DEFAULT).unwrap();
                }
                trimmed.fetch_add(change.memory.trim().unwrap().get(), Ordering::Relaxed);
            }
        })
    });
    for _ in 0..40 {
        let block = watch.allocate(Request::new(Bytes::mib(4))).unwrap();
        cache.lock().unwrap().push(block);
    }
    assert!(trimmed.load(Ordering::Relaxed) >= Bytes::mib(40).get());
    assert!(watch.pressure() < MemoryPressure::High);
}

/// Under a pool what counts is what is held.
#[test]
fn under_a_pool_pages_count() {
    let (watch, seen) = watch(sim(64));
    let pool = Pool::new(Arc::new(watch), everything()).unwrap();
    let block = pool.allocate(Request::new(Bytes::mib(64))).unwrap();
    assert_chain(&seen.lock().unwrap(), MemoryPressure::Low, MemoryPressure::Critical);
    pool.release(block, Stream::DEFAULT).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 3, "the pool still holds it");
    pool.clear().unwrap();
    assert_chain(&seen.lock().unwrap(), MemoryPressure::Low, MemoryPressure::Low);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// One thread, any order: the reports are the changes of level, and nothing else.
    #[test]
    fn reports_are_the_changes_of_level(
        steps in prop::collection::vec((1u64..90_000, any::<bool>()), 1..80),
    ) {
        let total = Bytes::kib(256);
        let upstream = Arc::new(plimsoll_memory::backend::host::Host::with_total(total));
        let (watch, seen) = watch(upstream);
        let (mut held, mut used, mut level) = (Vec::new(), 0, MemoryPressure::Low);
        let mut expected = Vec::new();
        for (size, take) in steps {
            if take {
                let Ok(block) = watch.allocate(Request::new(size)) else { continue };
                used += size;
                held.push(block);
            } else if let Some(block) = held.pop() {
                watch.release(block, Stream::DEFAULT).unwrap();
                used -= block.size().get();
            }
            let now = MemoryPressure::of(Bytes(used), total);
            if now != level {
                expected.push((level, now));
                level = now;
            }
            prop_assert_eq!(watch.pressure(), level);
        }
        prop_assert_eq!(&*seen.lock().unwrap(), &expected);
    }
}
