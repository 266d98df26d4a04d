//! Memory that is lent: free parts of handles used together at other addresses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::backend::sim::{Sim, SimCall, SimConfig};
use plimsoll_memory::{
    Block, Bytes, Device, Error, Limit, Memory, MemoryConfig, Packing, Pool, PressureWatch,
    Request, Stream,
};

fn pool_on(config: SimConfig) -> (Arc<Sim>, Arc<Pool>) {
    let device = Arc::new(Sim::new(config));
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    let pool = Arc::new(Pool::new(device.clone(), config).unwrap());
    (device, pool)
}

fn take(pool: &Pool, mib: u64, stream: Stream) -> Block {
    pool.allocate(Request::new(Bytes::mib(mib)).on(stream)).unwrap()
}

fn work(device: &Sim, stream: Stream, block: &Block) {
    device.launch(stream, Duration::from_micros(50), &[(block.address(), block.size())]);
}

/// A pool whose free memory lies in gaps of 12 MiB, with a live block of 1 MiB behind each: hardly a
/// handle is wholly free, and what may be held beyond the peak of 537 MiB is used up.
fn with_gaps(pool: &Pool) -> Vec<Block> {
    let all = take(pool, 512, Stream::DEFAULT);
    pool.release(all, Stream::DEFAULT).unwrap();
    let pairs: Vec<_> =
        (0..39).map(|_| [12, 1].map(|mib| take(pool, mib, Stream::DEFAULT))).collect();
    let mut live: Vec<_> = (0..3).map(|_| take(pool, 10, Stream::DEFAULT)).collect();
    for [large, small] in pairs {
        pool.release(large, Stream::DEFAULT).unwrap();
        live.push(small);
    }
    live.push(take(pool, 15, Stream::DEFAULT));
    live
}

/// A block that fits in no gap, without memory from the device.
fn take_across(device: &Sim, pool: &Pool, stream: Stream) -> Block {
    let taken = device.calls(SimCall::Create);
    let block = take(pool, 15, stream);
    assert_eq!(device.calls(SimCall::Create), taken, "no free parts were lent");
    block
}

/// Writes a pattern to every MiB of a block, and says whether all of it is there.
fn write(device: &Sim, block: &Block, pattern: u8) {
    for at in (0..block.size().get()).step_by(1 << 20) {
        device.write(block.address().plus(at), &[pattern]).unwrap();
    }
    device.write(block.address().plus(block.size().get() - 1), &[pattern]).unwrap();
}

fn has(device: &Sim, block: &Block, pattern: u8) -> bool {
    let last = block.size().get() - 1;
    (0..block.size().get()).step_by(1 << 20).chain([last]).all(|at| {
        let mut byte = [0];
        device.read(block.address().plus(at), &mut byte).unwrap();
        byte == [pattern]
    })
}

/// A device on which a handle has at most 8 pages.
fn device() -> SimConfig {
    SimConfig::default().with_total(Bytes::gib(2))
}

#[test]
fn free_parts_of_two_handles_serve_what_fits_in_neither() {
    let reserved = |aliases: bool| {
        let (device, pool) = pool_on(device().with_aliases(aliases));
        let _live = with_gaps(&pool);
        let blocks: Vec<_> = (0..6).map(|_| take(&pool, 15, Stream::DEFAULT)).collect();
        blocks.iter().for_each(|block| work(&device, Stream::DEFAULT, block));
        assert_eq!(device.faults(), Vec::<String>::new());
        device.stats().peak_bytes
    };
    let (lent, moved) = (reserved(true), reserved(false));
    // Live are 174 MiB at the end, and 537 before.
    let bound = Bytes::mib(537 + 537 / 20 + 8);
    assert!(lent <= bound && moved > bound, "{lent} lent, {moved} without");
}

/// What is between a pool and a device changes nothing of what the pool does.
#[test]
fn a_pool_over_a_limit_lends_as_one_over_the_device() {
    let taken = |layers: bool| {
        let device = Arc::new(Sim::new(device()));
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        let upstream: Arc<dyn Memory> = match layers {
            false => device.clone(),
            true => {
                let limit = Arc::new(Limit::new(device.clone(), Bytes::gib(2)));
                Arc::new(PressureWatch::new(limit, |_| {}))
            }
        };
        let pool = Pool::new(upstream, config).unwrap();
        let live = with_gaps(&pool);
        let across: Vec<_> = (0..6).map(|_| take_across(&device, &pool, Stream::DEFAULT)).collect();
        let calls = SimCall::ALL.map(|call| device.calls(call));
        (pool.stats(), calls, live.len() + across.len())
    };
    assert_eq!(taken(true), taken(false));
}

#[test]
fn the_same_request_finds_its_span_mapped() {
    let (device, pool) = pool_on(device());
    let live = with_gaps(&pool);
    let first = take_across(&device, &pool, Stream::DEFAULT);
    let calls = || SimCall::ALL.iter().map(|call| device.calls(*call)).sum::<u64>();
    let before = calls();
    pool.release(first, Stream::DEFAULT).unwrap();
    let second = take_across(&device, &pool, Stream::DEFAULT);
    assert_eq!((second.address(), calls()), (first.address(), before));
    assert!(pool.release(first, Stream::DEFAULT).is_err(), "it was returned before");
    pool.release(second, Stream::DEFAULT).unwrap();
    assert!(pool.release(second, Stream::DEFAULT).is_err());
    let stats = pool.stats();
    assert_eq!((stats.in_use_bytes, stats.active_buffers), (Bytes::mib(84), live.len() as u64));
    assert_eq!(stats.in_use_bytes + stats.pooled_bytes, stats.total_allocated_bytes);
}

#[test]
fn what_was_lent_is_free_at_home_again_and_never_in_two_blocks() {
    let (device, pool) = pool_on(device());
    let live = with_gaps(&pool);
    live.iter().for_each(|block| write(&device, block, 1));
    for _ in 0..3 {
        let across: Vec<_> = (0..4).map(|_| take_across(&device, &pool, Stream::DEFAULT)).collect();
        across.iter().for_each(|block| write(&device, block, 2));
        let home: Vec<_> = (0..20).map(|_| take(&pool, 12, Stream::DEFAULT)).collect();
        home.iter().for_each(|block| write(&device, block, 3));
        assert!(across.iter().all(|block| has(&device, block, 2)), "it is in use twice");
        let taken = device.calls(SimCall::Create);
        across.into_iter().for_each(|block| pool.release(block, Stream::DEFAULT).unwrap());
        let more: Vec<_> = (0..8).map(|_| take(&pool, 10, Stream::DEFAULT)).collect();
        assert_eq!(device.calls(SimCall::Create), taken, "parts did not come home");
        assert!(home.iter().all(|block| has(&device, block, 3)));
        for block in home.into_iter().chain(more) {
            pool.release(block, Stream::DEFAULT).unwrap();
        }
    }
    assert!(live.iter().all(|block| has(&device, block, 1)));
    live.into_iter().for_each(|block| pool.release(block, Stream::DEFAULT).unwrap());
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO, "spans keep no memory");
}

#[test]
fn a_block_in_lent_memory_outlives_a_trim() {
    let (device, pool) = pool_on(device());
    let live = with_gaps(&pool);
    let across = take_across(&device, &pool, Stream::DEFAULT);
    write(&device, &across, 9);
    pool.clear().unwrap();
    assert!(has(&device, &across, 9));
    work(&device, Stream::DEFAULT, &across);
    pool.release(across, Stream::DEFAULT).unwrap();
    live.into_iter().for_each(|block| pool.release(block, Stream::DEFAULT).unwrap());
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn streams_are_ordered_whichever_address_they_use() {
    let (device, pool) = pool_on(device());
    let other = device.new_stream().unwrap();
    let _live = with_gaps(&pool);
    for round in 0..8 {
        let (one, two) =
            if round % 2 == 0 { (Stream::DEFAULT, other) } else { (other, Stream::DEFAULT) };
        let across = take_across(&device, &pool, one);
        work(&device, one, &across);
        // Taken on one stream and returned on another: both may still use it.
        pool.release(across, if round % 3 == 0 { two } else { one }).unwrap();
        let at_home: Vec<_> = (0..30).map(|_| take(&pool, 12, two)).collect();
        at_home.iter().for_each(|block| work(&device, two, block));
        at_home.into_iter().for_each(|block| pool.release(block, two).unwrap());
    }
    assert!(pool.activity().sync_waits > 0);
    assert_eq!(device.faults(), Vec::<String>::new());
}

#[test]
fn memory_of_graphs_is_not_lent() {
    let (device, pool) = pool_on(device());
    let live = with_gaps(&pool);
    let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(20)).unwrap();
    let captured = take(&pool, 20, Stream::DEFAULT);
    let graph = capture.end();
    pool.release(captured, Stream::DEFAULT).unwrap();
    let across: Vec<_> = (0..12).map(|_| take(&pool, 15, Stream::DEFAULT)).collect();
    across.iter().for_each(|block| write(&device, block, 1));
    // The graph writes at its addresses, whoever else has memory.
    write(&device, &captured, 2);
    assert!(across.iter().all(|block| has(&device, block, 1)), "a block lies in its memory");
    drop(graph);
    for block in across.into_iter().chain(live) {
        pool.release(block, Stream::DEFAULT).unwrap();
    }
    pool.clear().unwrap();
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn a_call_that_fails_while_memory_is_lent_loses_nothing() {
    for nth in 0..6u32 {
        let (device, pool) = pool_on(device());
        let live = with_gaps(&pool);
        let mut left = nth;
        device.sabotage(Some(Box::new(move |call| {
            left = left.wrapping_sub(u32::from(call == SimCall::Map));
            (left == u32::MAX).then(|| {
                left = u32::MAX - 1;
                Error::Device { call: "sabotage", why: "told to".to_string() }
            })
        })));
        let across: Vec<_> =
            (0..4).filter_map(|_| pool.allocate(Request::new(Bytes::mib(15))).ok()).collect();
        assert!(across.len() >= 3, "{} of 4 with one failure", across.len());
        device.sabotage(None);
        let stats = pool.stats();
        assert_eq!(stats.in_use_bytes, Bytes::mib(84 + 15 * across.len() as u64));
        for block in across.into_iter().chain(live) {
            pool.release(block, Stream::DEFAULT).unwrap();
        }
        pool.clear().unwrap();
        assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
        assert_eq!(device.faults(), Vec::<String>::new());
    }
}

/// Where parts are not quite enough for a block, only what they lack is new.
#[test]
fn what_lies_free_where_the_block_would_go_is_not_counted_twice() {
    let (device, pool) = pool_on(SimConfig::default().with_total(Bytes::gib(64)));
    let take = |mib| take(&pool, mib, Stream::DEFAULT);
    let give = |block| pool.release(block, Stream::DEFAULT).unwrap();
    // Five handles, with a live block behind each but the last: a block could begin there and go on.
    let handles = [60, 60, 60, 60].map(|mib| [take(mib), take(2)]);
    let last = take(100);
    // Of each a part becomes free: an end, a front, two middles.
    let cuts = [(&[20, 40][..], 1), (&[40, 20], 0), (&[20, 20, 20], 1), (&[20, 20, 20], 1)];
    let (mut live, mut free) = (Vec::new(), vec![last]);
    for ((parts, part), [all, behind]) in cuts.into_iter().zip(handles) {
        give(all);
        let mut blocks: Vec<_> = parts.iter().map(|mib| take(*mib)).collect();
        free.push(blocks.remove(part));
        live.extend(blocks);
        live.push(behind);
    }
    free.into_iter().for_each(give);
    let before = device.stats().total_allocated_bytes;
    // An end of 40 MiB, a front of 40 and 100 between them are free: 30 are lacking.
    let block = take(210);
    let more = device.stats().total_allocated_bytes - before;
    assert_eq!(more, Bytes::mib(30), "of {before}, with {} live blocks", live.len());
    give(block);
    live.into_iter().for_each(give);
}

/// Tight packing lends where pages that move would leave it holding more than it may.
#[test]
fn tight_packing_lends_before_it_holds_much_more_than_is_live() {
    let device = Arc::new(Sim::new(device()));
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    let pool = Pool::new(device.clone(), config.with_packing(Packing::Tight)).unwrap();
    let mut halves: Vec<_> = (0..48).map(|_| Some(take(&pool, 1, Stream::DEFAULT))).collect();
    // The second half of a page, the first half of another, and so on; none is wholly free.
    for free in (1..48).step_by(8).chain((4..48).step_by(8)) {
        pool.release(halves[free].take().unwrap(), Stream::DEFAULT).unwrap();
    }
    let blocks: Vec<_> = (0..6).map(|_| take(&pool, 2, Stream::DEFAULT)).collect();
    blocks.iter().for_each(|block| write(&device, block, 7));
    assert!(blocks.iter().all(|block| has(&device, block, 7)), "memory is in use twice");
    let held = device.stats().total_allocated_bytes;
    assert!(held <= Bytes::mib(48 + 4), "{held} for 48 MiB");
}

/// Tight packing that has once held too much goes on moving pages where that takes no new memory: lending for
/// each request would keep ever more blocks away from home.
#[test]
fn tight_packing_moves_what_it_can() {
    let device = Arc::new(Sim::new(device()));
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    let pool = Arc::new(Pool::new(device.clone(), config.with_packing(Packing::Tight)).unwrap());
    let take = |mib| take(&pool, mib, Stream::DEFAULT);
    let give = |block| pool.release(block, Stream::DEFAULT).unwrap();
    // Memory of graphs counts for nothing here.
    let graph = pool.begin_capture(Stream(9), Bytes::mib(64)).unwrap().end();
    // The middle of each page is free, which joins nothing: blocks of a page are new, and too much is held.
    let quarter = || pool.allocate(Request::new(Bytes::kib(512))).unwrap();
    let quarters: Vec<_> = (0..96).map(|_| quarter()).collect();
    let (middle, live): (Vec<_>, Vec<_>) =
        quarters.into_iter().enumerate().partition(|(number, _)| [1, 2].contains(&(number % 4)));
    middle.into_iter().for_each(|(_, block)| give(block));
    let mut pages: Vec<_> = (0..6).map(|_| Some(take(2))).collect();
    assert!(device.stats().total_allocated_bytes >= Bytes::mib(48 + 12 + 64));
    pages.iter_mut().step_by(2).for_each(|page| give(page.take().unwrap()));
    let calls = || (device.calls(SimCall::Create), pool.activity().found_handles);
    let before = calls();
    for _ in 0..8 {
        give(take(4));
    }
    assert_eq!(calls(), before, "three pages lie free: two need neither be new nor lent");
    drop((graph, live));
}

/// A span serves a stream that has no addresses of its own yet.
#[test]
fn a_span_needs_no_new_addresses() {
    let (device, pool) = pool_on(device());
    let _live = with_gaps(&pool);
    let across = take_across(&device, &pool, Stream::DEFAULT);
    pool.release(across, Stream::DEFAULT).unwrap();
    device.sabotage(Some(Box::new(|call| {
        (call == SimCall::Reserve)
            .then(|| Error::Device { call: "reserve", why: "out of addresses".to_string() })
    })));
    take_across(&device, &pool, Stream(3));
    device.sabotage(None);
}
