use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use plimsoll_memory::backend::sim::SimCall;
use plimsoll_memory::{Bytes, Error, Limit, Memory, MemoryPressure, Pool, Request, Stream};
use proptest::prelude::*;

use crate::{Random, everything, host, sim};

const KIB: u64 = 1 << 10;

/// Threads that take and return at random; says how many requests were refused.
fn race(limit: &Limit, threads: u64, rounds: u64, most: u64) -> u64 {
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..threads {
            let refused = &refused;
            scope.spawn(move || {
                let mut random = Random(number + 1);
                let mut held = Vec::new();
                for _ in 0..rounds {
                    match limit.allocate(Request::new(random.below(most))) {
                        Ok(block) => held.push(block),
                        Err(error) => {
                            assert!(error.is_full_now(), "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    assert!(limit.charged() <= limit.limit());
                    if random.below(2) == 0 && !held.is_empty() {
                        let block = held.swap_remove(random.below(held.len() as u64) as usize);
                        limit.release(block, Stream::DEFAULT).unwrap();
                    }
                }
                for block in held {
                    limit.release(block, Stream::DEFAULT).unwrap();
                }
            });
        }
    });
    refused.into_inner()
}

/// The host counts under its lock, so its peak is exact: never past the line.
#[test]
fn racing_threads_never_pass_the_line() {
    let upstream = host(64);
    let limit = Limit::new(upstream.clone(), Bytes(100 * KIB));
    let refused = race(&limit, 8, 2_000, 40 * KIB);
    assert!(refused > 0, "the line was never reached");
    assert_eq!(limit.refusals(), refused);
    assert!(upstream.stats().peak_bytes <= limit.limit());
    assert!(upstream.stats().peak_bytes > Bytes(60 * KIB));
    assert_eq!(limit.charged(), Bytes::ZERO);
}

#[test]
fn what_upstream_refuses_is_given_back() {
    let device = sim(64);
    let limit = Limit::new(device.clone(), Bytes::mib(4));
    let mut count = 0;
    device.sabotage(Some(Box::new(move |call| {
        count += 1;
        let fails =
            matches!(call, SimCall::Allocate | SimCall::Create | SimCall::Free) && count % 3 == 0;
        fails.then(|| Error::Device { call: "sabotaged", why: "told to".into() })
    })));
    let pages = limit.mapping().unwrap();
    let mut charged = Bytes::ZERO;
    for _ in 0..100 {
        if let Ok(block) = limit.allocate(Request::new(1000u64)) {
            charged += block.size();
            if limit.release(block, Stream::DEFAULT).is_ok() {
                charged -= block.size();
            }
        }
        if let Ok(handle) = pages.create(Bytes::mib(2)) {
            pages.destroy(handle, Bytes::mib(2)).unwrap();
        }
        assert_eq!(limit.charged(), charged);
    }
    assert_eq!(limit.refusals(), 0, "upstream's refusals are not the line's");
}

/// Pages are charged like blocks: a pool is held to the line with all that it holds.
#[test]
fn a_pool_over_a_limit_holds_no_more() {
    let device = sim(64);
    let limit = Arc::new(Limit::new(device.clone(), Bytes::mib(10)));
    let pool = Pool::new(limit.clone(), everything()).unwrap();
    assert_eq!(pool.capacity(), Bytes::mib(10));
    let blocks: Vec<_> =
        (0..5).map(|_| pool.allocate(Request::new(Bytes::mib(2))).unwrap()).collect();
    assert_eq!(limit.charged(), Bytes::mib(10));
    assert!(pool.allocate(Request::new(1u64)).unwrap_err().is_full_now());
    assert_eq!(limit.pressure(), MemoryPressure::Critical);
    for block in blocks {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
    assert_eq!(limit.charged(), Bytes::mib(10), "the pool still holds it");
    pool.clear().unwrap();
    assert_eq!(limit.charged(), Bytes::ZERO);
    drop(pool);
    assert_eq!(device.stats().peak_bytes, Bytes::mib(10));
}

/// Two pools under one line share it, and a pool that is dropped gives its part back.
#[test]
fn two_pools_share_a_line() {
    let limit: Arc<Limit> = Arc::new(Limit::new(sim(64), Bytes::mib(12)));
    let pools = [0, 1].map(|_| Pool::new(limit.clone(), everything()).unwrap());
    let _first = pools[0].allocate(Request::new(Bytes::mib(8))).unwrap();
    assert!(pools[1].allocate(Request::new(Bytes::mib(8))).unwrap_err().is_full_now());
    assert!(limit.refusals() > 0);
    let [first, second] = pools;
    drop(first);
    second.allocate(Request::new(Bytes::mib(8))).unwrap();
    assert_eq!(limit.charged(), Bytes::mib(8));
}

/// Shares of one pool, one line for each user.
#[test]
fn lines_over_a_shared_pool_are_apart() {
    let pool: Arc<Pool> = Arc::new(Pool::new(sim(64), everything()).unwrap());
    let [a, b] = [10, 20].map(|mib| Limit::new(pool.clone(), Bytes::mib(mib)));
    a.allocate(Request::new(Bytes::mib(10))).unwrap();
    assert_eq!((a.available(), b.available()), (Bytes::ZERO, Bytes::mib(20)));
    assert_eq!((a.pressure(), b.pressure()), (MemoryPressure::Critical, MemoryPressure::Low));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// One thread, any order: what is charged is what a model says, and a request is
    /// refused exactly when it does not fit.
    #[test]
    fn charges_are_what_is_live(
        line in 1u64..200,
        steps in prop::collection::vec((0u64..120, any::<prop::sample::Index>(), any::<bool>()), 1..60),
    ) {
        let limit = Limit::new(host(1), Bytes(line));
        let mut held = Vec::new();
        let mut charged = 0;
        for (size, index, take) in steps {
            if take || held.is_empty() {
                match limit.allocate(Request::new(size)) {
                    Ok(block) => {
                        charged += size;
                        prop_assert!(charged <= line);
                        held.push(block);
                    }
                    Err(Error::NeverFits { .. }) => prop_assert!(size > line),
                    Err(error) => {
                        prop_assert!(error.is_full_now());
                        prop_assert!(size <= line && charged + size > line);
                    }
                }
            } else {
                let block = held.swap_remove(index.index(held.len()));
                limit.release(block, Stream::DEFAULT).unwrap();
                charged -= block.size().get();
            }
            prop_assert_eq!(limit.charged(), Bytes(charged));
        }
    }
}
