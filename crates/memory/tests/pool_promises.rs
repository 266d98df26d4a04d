//! What the pool promises, one by one, with exact numbers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_memory::backend::host::Host;
use plimsoll_memory::backend::sim::{Sim, SimCall, SimConfig};
use plimsoll_memory::{
    Address, Block, Bytes, Device, Error, Limit, Memory, MemoryConfig, Packing, Pool, Request,
    Stream,
};

fn sim(total: Bytes) -> Arc<Sim> {
    Arc::new(Sim::new(SimConfig::default().with_total(total)))
}

fn whole() -> MemoryConfig {
    MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0)
}

fn pool(device: &Arc<Sim>, config: MemoryConfig) -> Arc<Pool> {
    Arc::new(Pool::new(device.clone(), config).unwrap())
}

fn work(device: &Sim, stream: Stream, nanos: u64, block: &Block) {
    device.launch(stream, Duration::from_nanos(nanos), &[(block.address(), block.size())]);
}

/// Calls that a pool makes while it hands out and takes back what it holds.
fn driver_calls(device: &Sim) -> u64 {
    SimCall::ALL.iter().filter(|call| **call != SimCall::Info).map(|call| device.calls(*call)).sum()
}

#[test]
fn its_own_stream_gets_a_freed_block_at_once_and_without_a_driver_call() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole());
    let first = pool.allocate(Request::new(Bytes::mib(4))).unwrap();
    work(&device, Stream::DEFAULT, 1_000, &first);
    pool.release(first, Stream::DEFAULT).unwrap();
    let calls = driver_calls(&device);
    let second = pool.allocate(Request::new(Bytes::mib(4))).unwrap();
    assert_eq!(second.address(), first.address());
    assert_eq!(driver_calls(&device), calls, "a hit on the own stream asked the driver");
    work(&device, Stream::DEFAULT, 1_000, &second);
    assert!(device.faults().is_empty());
}

#[test]
fn another_stream_gets_it_only_behind_an_event() {
    // No room for a second block, so the first must be reused.
    let device = sim(Bytes::mib(8));
    let pool = pool(&device, whole());
    let other = device.new_stream().unwrap();
    let first = pool.allocate(Request::new(Bytes::mib(7))).unwrap();
    work(&device, Stream::DEFAULT, 1_000, &first);
    pool.release(first, Stream::DEFAULT).unwrap();
    assert_eq!(device.calls(SimCall::Record), 0, "an event was recorded before anyone asked");
    let second = pool.allocate(Request::new(Bytes::mib(7)).on(other)).unwrap();
    assert_eq!(second.address(), first.address());
    assert_eq!((device.calls(SimCall::Record), device.calls(SimCall::Wait)), (1, 1));
    assert_eq!(pool.activity().sync_waits, 1);
    work(&device, other, 1_000, &second);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn one_event_serves_everything_freed_before_it() {
    let device = sim(Bytes::mib(32));
    let pool = pool(&device, whole());
    let other = device.new_stream().unwrap();
    let blocks: Vec<_> =
        (0..8).map(|_| pool.allocate(Request::new(Bytes::mib(4))).unwrap()).collect();
    for block in &blocks {
        work(&device, Stream::DEFAULT, 100, block);
    }
    for block in blocks {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
    for _ in 0..8 {
        let block = pool.allocate(Request::new(Bytes::mib(4)).on(other)).unwrap();
        work(&device, other, 100, &block);
    }
    assert_eq!(device.calls(SimCall::Record), 1);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn pages_move_instead_of_being_added() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole().with_packing(Packing::Tight));
    // Sixteen blocks of a page and a half, every second one returned: no hole is large
    // enough for the next request, but whole pages lie in them once neighbours go too.
    let size = Bytes::mib(6);
    let blocks: Vec<_> = (0..16).map(|_| pool.allocate(Request::new(size)).unwrap()).collect();
    let held = pool.stats().total_allocated_bytes;
    for block in blocks.iter().step_by(2) {
        pool.release(*block, Stream::DEFAULT).unwrap();
    }
    let large = pool.allocate(Request::new(Bytes::mib(40))).unwrap();
    assert_eq!(large.size(), Bytes::mib(40));
    assert_eq!(pool.stats().total_allocated_bytes, held, "memory was added instead of moved");
    assert!(pool.activity().remapped_handles >= 17, "{:?}", pool.activity());
}

#[test]
fn small_blocks_fill_pages_that_are_in_use_before_they_break_whole_ones() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole().with_packing(Packing::Tight));
    let take = |mib| pool.allocate(Request::new(Bytes::mib(mib))).unwrap();
    let give_back = |block| pool.release(block, Stream::DEFAULT).unwrap();
    // Three times: behind 3 MiB the rest of a page, a whole page and the front of a page; further on a whole
    // page by itself, which is the smallest gap.
    let groups: Vec<_> = (0..3).map(|_| [3, 4, 1, 2].map(take)).collect();
    take(2);
    for [_, gap, _, page] in groups {
        give_back(gap);
        give_back(page);
    }
    let taken = device.calls(SimCall::Create);
    let small: Vec<_> = (0..6).map(|_| take(1)).collect();
    let large = take(12);
    assert_eq!(device.calls(SimCall::Create), taken, "whole pages were broken");
    for block in small.into_iter().chain([large]) {
        work(&device, Stream::DEFAULT, 1, &block);
    }
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn what_a_request_lacks_is_taken_in_few_handles() {
    let device = sim(Bytes::gib(64));
    let quick = pool(&device, whole());
    let blocks: Vec<_> = (0..64)
        .map(|_| quick.allocate(Request::new(Bytes(Bytes::mib(62).0 + 300_000))).unwrap())
        .collect();
    // 4 GiB: in pages of 2 MiB they are two thousand, and none of it is taken for nothing.
    let (taken, held) = (device.calls(SimCall::Create), quick.stats().total_allocated_bytes);
    assert!((64..200).contains(&taken), "{taken} handles");
    let live = quick.stats().in_use_bytes;
    assert!(held.0 - live.0 <= Bytes::mib(64).0, "{held} for {live}");
    // Returned, they are one stretch, and serve what is larger than any handle.
    for block in blocks {
        quick.release(block, Stream::DEFAULT).unwrap();
    }
    quick.allocate(Request::new(Bytes::gib(3))).unwrap();
    assert_eq!(device.calls(SimCall::Create), taken, "memory was taken though all of it is free");
}

/// What a handle costs is spread over the requests that were served since, and smaller ones waste less.
#[test]
fn handles_are_smaller_where_many_requests_share_their_cost() {
    let handles = |requests: u32| {
        let device = sim(Bytes::gib(64));
        let pool = pool(&device, whole());
        let _kept = pool.allocate(Request::new(Bytes::mib(64))).unwrap();
        for _ in 0..requests {
            let block = pool.allocate(Request::new(Bytes::mib(8))).unwrap();
            pool.release(block, Stream::DEFAULT).unwrap();
        }
        let before = device.calls(SimCall::Create);
        pool.allocate(Request::new(Bytes::mib(64))).unwrap();
        device.calls(SimCall::Create) - before
    };
    let (few, many) = (handles(1), handles(2_000));
    assert!(few <= 8 && many >= 2 * few, "{few} and {many} handles");
}

#[test]
fn a_device_that_has_no_large_pieces_left_gives_small_ones() {
    let device = sim(Bytes::gib(64));
    let pool = pool(&device, whole());
    // Refused twice, it asks for a quarter of what it asked for first.
    let mut refusals = 2;
    device.sabotage(Some(Box::new(move |call| {
        let refuse = call == SimCall::Create && refusals > 0;
        refusals -= u32::from(refuse);
        refuse.then(|| Error::OutOfMemory {
            memory: "a device in pieces".to_string(),
            requested: Bytes::mib(16),
            available: Bytes::mib(61),
        })
    })));
    let block = pool.allocate(Request::new(Bytes::mib(61))).unwrap();
    assert_eq!(block.size(), Bytes::mib(61));
    assert!(pool.stats().total_allocated_bytes <= Bytes::mib(64));
    // Two that were refused, and at least four of a quarter.
    assert!(device.calls(SimCall::Create) >= 2 + 4, "{}", device.calls(SimCall::Create));
    device.sabotage(None);
    pool.release(block, Stream::DEFAULT).unwrap();
    assert_eq!(pool.clear().unwrap(), device.stats().peak_bytes, "what was taken went back");
}

#[test]
fn a_page_under_unfinished_work_is_not_unmapped_but_waited_for_when_full() {
    let device = sim(Bytes::mib(16));
    let pool = pool(&device, whole().with_packing(Packing::Tight));
    let a = pool.allocate(Request::new(Bytes::mib(6))).unwrap();
    let b = pool.allocate(Request::new(Bytes::mib(2))).unwrap();
    let c = pool.allocate(Request::new(Bytes::mib(8))).unwrap();
    work(&device, Stream::DEFAULT, 5_000, &a);
    pool.release(a, Stream::DEFAULT).unwrap();
    pool.release(c, Stream::DEFAULT).unwrap();
    // 14 MiB are free, in two places; one place needs the pages of the other.
    let d = pool.allocate(Request::new(Bytes::mib(14))).unwrap();
    work(&device, Stream::DEFAULT, 1, &d);
    assert!(pool.activity().sync_waits >= 1, "nobody waited for the work on the page");
    assert_eq!(device.faults(), Vec::<String>::new());
    pool.release(b, Stream::DEFAULT).unwrap();
}

#[test]
fn full_now_is_told_from_can_never_fit() {
    let device = sim(Bytes::mib(64));
    for (config, can) in [(whole(), true), (whole().with_packing(Packing::Tight), true)] {
        let pool = pool(&device, config);
        let all = pool.allocate(Request::new(Bytes::mib(60))).unwrap();
        let full = pool.allocate(Request::new(Bytes::mib(10))).unwrap_err();
        assert_eq!(full.is_full_now(), can, "{full}");
        let never = pool.allocate(Request::new(Bytes::mib(65))).unwrap_err();
        assert!(matches!(never, Error::NeverFits { .. }), "{never}");
        let never = pool.allocate(Request::new(Bytes::MAX)).unwrap_err();
        assert!(matches!(never, Error::NeverFits { .. }), "{never}");
        pool.release(all, Stream::DEFAULT).unwrap();
        pool.allocate(Request::new(Bytes::mib(10))).unwrap();
    }
}

#[test]
fn the_limit_and_the_free_reserve_hold() {
    let device = sim(Bytes::mib(256));
    let pool = pool(&device, whole().with_limit(Bytes::mib(100)));
    let mut blocks = Vec::new();
    while let Ok(block) = pool.allocate(Request::new(Bytes::kib(900))) {
        blocks.push(block);
        assert!(device.stats().total_allocated_bytes <= Bytes::mib(100));
    }
    assert!(blocks.len() > 100, "only {} blocks of 900 KiB in 100 MiB", blocks.len());

    let device = sim(Bytes::mib(256));
    let stranger = device.allocate(Request::new(Bytes::mib(100))).unwrap();
    let pool = Pool::new(device.clone(), whole().with_min_free_bytes(50 << 20)).unwrap();
    while pool.allocate(Request::new(Bytes::mib(3))).is_ok() {
        assert!(device.free_memory().unwrap() >= Bytes::mib(50));
    }
    device.release(stranger, Stream::DEFAULT).unwrap();
    pool.allocate(Request::new(Bytes::mib(3))).unwrap();
}

#[test]
fn it_gives_memory_back_before_it_fails() {
    // No mapping: what lies free in blocks of one size must be returned for another.
    let config = SimConfig::default().with_total(Bytes::mib(64)).with_mapping(false);
    let device = Arc::new(Sim::new(config));
    let pool = Pool::new(device.clone(), whole()).unwrap();
    let small: Vec<_> =
        (0..6).map(|_| pool.allocate(Request::new(Bytes::mib(10))).unwrap()).collect();
    for block in small {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
    let large = pool.allocate(Request::new(Bytes::mib(60))).unwrap();
    assert_eq!(large.size(), Bytes::mib(60));
}

#[test]
fn strangers_and_second_returns_are_errors() {
    let (one, two) = (sim(Bytes::gib(1)), sim(Bytes::gib(1)));
    let (one, two) = (pool(&one, whole()), pool(&two, whole()));
    let block = one.allocate(Request::new(100u64)).unwrap();
    assert!(matches!(two.release(block, Stream::DEFAULT), Err(Error::ForeignBlock { .. })));
    one.release(block, Stream::DEFAULT).unwrap();
    assert!(matches!(one.release(block, Stream::DEFAULT), Err(Error::AlreadyFreed { .. })));
    // The place is in use again; the old name still does not match.
    let again = one.allocate(Request::new(100u64)).unwrap();
    assert_eq!(again.address(), block.address());
    assert!(matches!(one.release(block, Stream::DEFAULT), Err(Error::AlreadyFreed { .. })));
    one.release(again, Stream::DEFAULT).unwrap();
}

#[test]
fn captured_memory_keeps_its_place_until_the_graph_is_gone() {
    for can_map in [true, false] {
        let config = SimConfig::default().with_total(Bytes::mib(64)).with_mapping(can_map);
        let device = Arc::new(Sim::new(config));
        let pool = pool(&device, whole());
        let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(16)).unwrap();
        let calls = driver_calls(&device);
        let a = pool.allocate(Request::new(Bytes::mib(6))).unwrap();
        pool.release(a, Stream::DEFAULT).unwrap();
        let b = pool.allocate(Request::new(Bytes::mib(9))).unwrap();
        let too_much = pool.allocate(Request::new(Bytes::mib(12))).unwrap_err();
        assert!(too_much.is_full_now(), "{too_much}");
        let busy = pool.trim().unwrap_err();
        assert!(matches!(busy, Error::Capturing { .. }), "{busy}");
        assert_eq!(driver_calls(&device), calls, "the driver was asked during a capture");
        let graph = capture.end();
        pool.release(b, Stream::DEFAULT).unwrap();

        // All of it is free, yet nobody gets it and nothing is given back.
        pool.clear().unwrap();
        assert_eq!(pool.stats().total_allocated_bytes, graph.held());
        let used = |block: &Block| block.address().pointer();
        let others: Vec<_> =
            std::iter::from_fn(|| pool.allocate(Request::new(Bytes::mib(2))).ok()).collect();
        let taken = used(&b)..used(&b) + Bytes::mib(9).0;
        assert!(others.iter().all(|block| !taken.contains(&used(block))));
        let before = others.len();

        drop(graph);
        let more = std::iter::from_fn(|| pool.allocate(Request::new(Bytes::mib(2))).ok()).count();
        assert!(more >= 6, "after {before}, only {more} more blocks once the graph was dropped");
        assert_eq!(device.faults(), Vec::<String>::new());
    }
}

#[test]
fn an_abandoned_capture_gives_its_memory_back() {
    let device = sim(Bytes::mib(64));
    let pool = pool(&device, whole());
    drop(pool.begin_capture(Stream::DEFAULT, Bytes::mib(16)).unwrap());
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn other_streams_go_on_during_a_capture_with_what_is_held() {
    let device = sim(Bytes::mib(64));
    let pool = pool(&device, whole());
    let other = device.new_stream().unwrap();
    let held = pool.allocate(Request::new(Bytes::mib(8)).on(other)).unwrap();
    let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(4)).unwrap();
    pool.release(held, other).unwrap();
    let again = pool.allocate(Request::new(Bytes::mib(8)).on(other)).unwrap();
    let more = pool.allocate(Request::new(Bytes::mib(40)).on(other)).unwrap_err();
    assert!(matches!(more, Error::Capturing { .. }), "{more}");
    drop(capture.end());
    pool.allocate(Request::new(Bytes::mib(40)).on(other)).unwrap();
    pool.release(again, other).unwrap();
}

/// Every thread works on a stream of its own, writes its own pattern and finds it again.
fn hammer(device: &Arc<dyn Device>, pool: &Pool, threads: u16) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (device, pool) = (Arc::clone(device), &pool);
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                let mut held: Vec<(Block, u8)> = Vec::new();
                let mut seed = u64::from(thread) + 1;
                let mut random = move |below: u64| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed % below
                };
                for round in 0..2_000u32 {
                    if random(2) == 0 || held.is_empty() {
                        let most = [200, 70_000, 3 << 20][random(3) as usize];
                        let size = 1 + random(most);
                        let Ok(block) = pool.allocate(Request::new(size).on(stream)) else {
                            continue;
                        };
                        let pattern = (round as u8) ^ thread as u8;
                        device.write(block.address(), &[pattern]).unwrap();
                        device.write(block.address().plus(size - 1), &[pattern]).unwrap();
                        held.push((block, pattern));
                    } else {
                        let (block, pattern) = held.swap_remove(random(held.len() as u64) as usize);
                        let mut byte = [0];
                        device.read(block.address().plus(block.size().0 - 1), &mut byte).unwrap();
                        assert_eq!(byte[0], pattern, "another thread wrote into a live block");
                        pool.release(block, stream).unwrap();
                    }
                    let stats = pool.stats();
                    assert!(stats.in_use_bytes + stats.pooled_bytes <= stats.total_allocated_bytes);
                    assert!(stats.total_allocated_bytes <= pool.capacity());
                }
                for (block, _) in held {
                    pool.release(block, stream).unwrap();
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.in_use_bytes, stats.active_buffers), (Bytes::ZERO, 0));
    pool.clear().unwrap();
    assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn many_threads_share_one_pool() {
    for packing in [Packing::Quick, Packing::Tight] {
        for can_map in [true, false] {
            let config = SimConfig::default().with_total(Bytes::mib(128)).with_mapping(can_map);
            let device = Arc::new(Sim::new(config));
            let pool = Pool::new(device.clone(), whole().with_packing(packing)).unwrap();
            let any: Arc<dyn Device> = device.clone();
            hammer(&any, &pool, 6);
            assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
            assert_eq!(device.faults(), Vec::<String>::new());
        }
    }
}

#[test]
fn many_threads_share_one_pool_of_real_memory() {
    let device: Arc<dyn Device> = Arc::new(Host::with_total(Bytes::mib(128)));
    let upstream: Arc<dyn Memory> = device.clone();
    let pool = Pool::new(upstream, whole()).unwrap();
    hammer(&device, &pool, 6);
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn a_refusal_costs_no_memory() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole());
    let live = pool.allocate(Request::new(Bytes::mib(600))).unwrap();
    let held = device.stats().total_allocated_bytes;
    assert!(pool.allocate(Request::new(Bytes::mib(900))).unwrap_err().is_full_now());
    assert_eq!(device.stats().total_allocated_bytes, held);
    pool.release(live, Stream::DEFAULT).unwrap();
}

#[test]
fn captures_come_and_go_without_a_trace() {
    let device = sim(Bytes::mib(256));
    let pool = pool(&device, whole());
    for _ in 0..20 {
        let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(32)).unwrap();
        drop(capture.end());
        assert!(pool.begin_capture(Stream::DEFAULT, Bytes::gib(1)).is_err());
    }
    pool.clear().unwrap();
    assert!(device.stats().peak_bytes <= Bytes::mib(32), "graphs that are gone kept memory");
    let open = device.calls(SimCall::Reserve) - device.calls(SimCall::Unreserve);
    assert_eq!(open, 0, "address ranges were left behind");
}

#[test]
fn a_block_of_a_forged_size_is_not_taken_back() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole());
    let line = Limit::new(pool.clone(), Bytes::mib(100));
    let kept = line.allocate(Request::new(Bytes::mib(90))).unwrap();
    let small = line.allocate(Request::new(Bytes::mib(1))).unwrap();
    let (owner, key, generation) = (small.owner(), small.key(), small.generation());
    let forged = Block::new(owner, key, generation, Bytes::gib(1), small.address());
    assert!(line.release(forged, Stream::DEFAULT).is_err());
    assert_eq!(line.charged(), Bytes::mib(91));
    for block in [kept, small] {
        line.release(block, Stream::DEFAULT).unwrap();
    }
}

#[test]
fn only_one_capture_at_a_time_and_nothing_is_mapped_during_it() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole());
    let open = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (device, pool, open) = (&device, &pool, &open);
            scope.spawn(move || {
                let stream = device.new_stream().unwrap();
                for _ in 0..300 {
                    let Ok(capture) = pool.begin_capture(stream, Bytes::mib(4)) else { continue };
                    assert_eq!(open.fetch_add(1, Ordering::SeqCst), 0, "two captures at once");
                    let calls = driver_calls(device);
                    let block = pool.allocate(Request::new(Bytes::mib(1)).on(stream)).unwrap();
                    std::thread::yield_now();
                    assert_eq!(driver_calls(device), calls, "the driver was asked meanwhile");
                    open.fetch_sub(1, Ordering::SeqCst);
                    pool.release(block, stream).unwrap();
                    drop(capture.end());
                }
            });
        }
        let (device, pool) = (&device, &pool);
        scope.spawn(move || {
            let stream = device.new_stream().unwrap();
            for round in 0..2_000u64 {
                let size = Bytes::kib(64 + round % 5_000);
                if let Ok(block) = pool.allocate(Request::new(size).on(stream)) {
                    pool.release(block, stream).unwrap();
                }
            }
        });
    });
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn the_memory_of_a_graph_waits_for_the_stream_that_it_was_launched_on() {
    let device = sim(Bytes::gib(1));
    let pool = pool(&device, whole());
    let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(64)).unwrap();
    let block = pool.allocate(Request::new(Bytes::mib(60))).unwrap();
    let graph = capture.end();
    pool.release(block, Stream::DEFAULT).unwrap();
    // A stream that never had memory of this pool.
    let other = device.new_stream().unwrap();
    work(&device, other, 1_000, &block);
    graph.launched_on(other);
    drop(graph);
    pool.trim().unwrap();
    assert_eq!(device.faults(), Vec::<String>::new());
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn one_failed_call_at_the_end_leaves_only_what_it_is_about() {
    for victim in [SimCall::Unmap, SimCall::Synchronize, SimCall::Record, SimCall::Destroy] {
        let device = sim(Bytes::gib(1));
        let pool = pool(&device, whole());
        let other = device.new_stream().unwrap();
        for stream in [Stream::DEFAULT, other] {
            let block = pool.allocate(Request::new(Bytes::mib(50)).on(stream)).unwrap();
            work(&device, stream, 1_000, &block);
            pool.release(block, stream).unwrap();
        }
        let mut failed = false;
        device.sabotage(Some(Box::new(move |call| {
            let first = call == victim && !std::mem::replace(&mut failed, call == victim);
            first.then(|| Error::Device { call: "sabotage", why: format!("{call:?}") })
        })));
        drop(pool);
        let left = device.stats().total_allocated_bytes;
        assert!(left <= Bytes::mib(16), "{left} was left behind after a failed {victim:?}");
    }
}

#[test]
fn a_crowd_long_gone_does_not_make_a_pool_refuse_what_lies_free() {
    let config = SimConfig::default().with_total(Bytes::mib(64)).with_mapping(false);
    let device = Arc::new(Sim::new(config));
    let pool = Pool::new(device.clone(), whole()).unwrap();
    // A block that is mostly free but cannot be given back, in the arena of stream 1.
    let (one, nine) = (Stream(1), Stream(9));
    let large = pool.allocate(Request::new(Bytes::mib(60)).on(one)).unwrap();
    pool.release(large, one).unwrap();
    let _pin = pool.allocate(Request::new(Bytes::mib(50)).on(one)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if let Ok(block) = pool.allocate(Request::new(256u64).on(nine)) {
                        pool.release(block, nine).unwrap();
                    }
                }
            });
        }
    });
    pool.allocate(Request::new(Bytes::mib(4)).on(Stream(3))).unwrap();
}

#[test]
fn streams_do_not_begin_again_when_their_numbers_run_out() {
    let host = Host::with_total(Bytes::mib(1));
    let streams: Vec<_> = (0..65_535).map(|_| host.new_stream().unwrap()).collect();
    assert!(streams.iter().all(|stream| *stream != Stream::DEFAULT));
    assert!(matches!(host.new_stream(), Err(Error::Unavailable { .. })));
}

/// A turn of a made-up program whose large blocks do not fit into each other's places.
fn turn(pool: &Pool) {
    let mut blocks = std::collections::VecDeque::new();
    for (number, mib) in [30, 22, 41, 13, 37, 18, 55, 9, 47, 26, 33, 61].into_iter().enumerate() {
        blocks.push_back(pool.allocate(Request::new(Bytes::mib(mib))).unwrap());
        for small in 1..200 {
            let block = pool.allocate(Request::new(Bytes::kib(small * 7))).unwrap();
            pool.release(block, Stream::DEFAULT).unwrap();
        }
        if number >= 3 {
            let middle = blocks.remove(number % 3).unwrap();
            pool.release(middle, Stream::DEFAULT).unwrap();
        }
    }
    for block in blocks {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
}

#[test]
fn a_program_that_repeats_itself_finds_its_memory_mapped() {
    let device = sim(Bytes::gib(4));
    let pool = pool(&device, whole());
    let mut maps = Vec::new();
    for _ in 0..8 {
        let before = device.calls(SimCall::Map) + device.calls(SimCall::Unmap);
        turn(&pool);
        maps.push(device.calls(SimCall::Map) + device.calls(SimCall::Unmap) - before);
    }
    assert!(pool.activity().remapped_handles > 0, "nothing had to move: {maps:?}");
    assert!(pool.activity().found_handles > 0, "nothing was found: {maps:?}");
    assert_eq!(maps[6..], [0, 0], "{maps:?}");
    assert_eq!(device.faults(), Vec::<String>::new());
    // All of it goes back, whatever is mapped where.
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn a_device_without_aliases_moves_memory_as_before() {
    let device =
        Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(4)).with_aliases(false)));
    let pool = pool(&device, whole());
    for _ in 0..4 {
        turn(&pool);
    }
    let activity = pool.activity();
    assert!(activity.remapped_handles > 0, "{activity:?}");
    assert_eq!(activity.found_handles, 0, "{activity:?}");
    assert!(device.calls(SimCall::Unmap) >= activity.remapped_handles);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn what_is_found_is_behind_those_who_used_it_elsewhere() {
    let device = sim(Bytes::mib(64));
    let pool = pool(&device, whole().with_packing(Packing::Tight));
    let other = device.new_stream().unwrap();
    // Back and forth between places, each turn with work of the other stream in flight.
    for round in 0..12u64 {
        let stream = if round % 2 == 0 { Stream::DEFAULT } else { other };
        let sizes: &[u64] = if round % 3 == 0 { &[20, 20, 20] } else { &[30, 30] };
        let blocks: Vec<_> = sizes
            .iter()
            .map(|mib| pool.allocate(Request::new(Bytes::mib(*mib)).on(stream)).unwrap())
            .collect();
        for block in &blocks {
            work(&device, stream, 1_000_000, block);
        }
        for block in blocks {
            pool.release(block, stream).unwrap();
        }
    }
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn a_simulated_handle_has_the_same_bytes_at_all_its_addresses() {
    let device = sim(Bytes::mib(64));
    let mapping = device.mapping().unwrap();
    let page = mapping.page_size();
    let base = mapping.reserve(page * 2).unwrap();
    let [first, second] = [0, page.0].map(|offset| Address { buffer: base, offset });
    let handle = mapping.create(page).unwrap();
    mapping.map(first.pointer(), handle, page).unwrap();
    mapping.map(second.pointer(), handle, page).unwrap();
    assert_eq!(device.stats().total_allocated_bytes, page, "a handle counts once");
    device.write(first, b"through the first").unwrap();
    let mut read = [0; 17];
    device.read(second, &mut read).unwrap();
    assert_eq!(&read, b"through the first");

    // Work through two addresses is work on the same bytes.
    let stream = device.new_stream().unwrap();
    device.launch(Stream::DEFAULT, Duration::from_nanos(100), &[(first, page)]);
    device.launch(stream, Duration::from_nanos(100), &[(second, page)]);
    assert_eq!(device.faults().len(), 1, "{:?}", device.faults());

    assert!(mapping.destroy(handle, page).is_err(), "it is mapped twice");
    mapping.unmap(second.pointer(), page).unwrap();
    assert!(mapping.destroy(handle, page).is_err(), "it is mapped once");
    device.read(first, &mut read).unwrap();
    mapping.unmap(first.pointer(), page).unwrap();
    mapping.destroy(handle, page).unwrap();

    let strict = Sim::new(SimConfig::default().with_total(Bytes::mib(64)).with_aliases(false));
    let mapping = strict.mapping().unwrap();
    let base = mapping.reserve(page * 2).unwrap();
    let handle = mapping.create(page).unwrap();
    mapping.map(base, handle, page).unwrap();
    assert!(mapping.map(base + page.0, handle, page).is_err(), "it cannot");
}

#[test]
fn a_mapping_that_fails_while_memory_moves_loses_nothing() {
    for fails in [SimCall::Map, SimCall::Unmap, SimCall::Create, SimCall::Destroy] {
        for nth in 0..40u32 {
            let device = sim(Bytes::mib(256));
            let pool = pool(&device, whole());
            turn_within(&pool);
            let mut left = nth;
            device.sabotage(Some(Box::new(move |call| {
                if call != fails {
                    return None;
                }
                left = left.wrapping_sub(1);
                (left == u32::MAX)
                    .then(|| Error::Device { call: "sabotage", why: "told to".to_string() })
            })));
            turn_within(&pool);
            device.sabotage(None);
            turn_within(&pool);
            assert_eq!(device.faults(), Vec::<String>::new(), "{fails:?} {nth}");
            pool.clear().unwrap();
            assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO, "{fails:?} {nth}");
        }
    }
}

/// A turn on a small device, in which requests may fail.
fn turn_within(pool: &Pool) {
    let mut blocks = Vec::new();
    for mib in [30, 22, 41, 13, 37, 18, 55, 9, 47] {
        blocks.extend(pool.allocate(Request::new(Bytes::mib(mib))).ok());
        if blocks.len() > 3 {
            pool.release(blocks.remove(1), Stream::DEFAULT).unwrap();
        }
    }
    for block in blocks {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
}

#[test]
fn a_pool_that_could_hold_nothing_names_the_field() {
    let device = |mib| Arc::new(Sim::new(SimConfig::default().with_total(Bytes::mib(mib))));
    let refused = Pool::new(device(64), MemoryConfig::new()).unwrap_err().to_string();
    assert!(
        refused.starts_with("min_free_bytes is 512.00 MiB on a device of 64.00 MiB"),
        "{refused}"
    );
    let pool = Pool::new(device(600), MemoryConfig::new()).unwrap();
    assert_eq!(pool.capacity(), Bytes::mib(88));
    Pool::new(device(64), MemoryConfig::new().with_min_free_bytes(0)).unwrap();
}
