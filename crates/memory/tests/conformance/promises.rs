//! The promises themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_memory::{Block, Bytes, Error, MemoryStats, Request, Stream};

use crate::hammer;
use crate::subject::Subject;

type Make<'a> = &'a dyn Fn() -> Subject;
type Promise = fn(&Subject, Make<'_>);

/// Every promise, by name.
pub(crate) const ALL: [(&str, Promise); 11] = [
    ("blocks of any size are apart, aligned and hold their contents", apart_and_whole),
    ("each block is returned once", returned_once),
    ("a stale block does not touch the one that took its place", stale_blocks),
    ("strangers are refused", strangers),
    ("the figures agree with each other and with what is out", figures),
    ("what can never fit is told apart, and leaves nothing behind", never_fits),
    ("full is full now, and what is returned fits again", full_and_again),
    ("the largest block fits after all patterns of returns", largest_fits_again),
    ("trimming takes nothing that is live", trimming),
    ("blocks are reused in stream order", stream_order),
    ("eight threads", hammer::eight_threads),
];

/// Nothing, one byte, odd sizes around every step, and some that span pages.
const SIZES: [u64; 16] = [
    0, 1, 3, 255, 256, 257, 4095, 4097, 65_537, 1_048_575, 1_048_577, 2_097_151, 2_097_152,
    2_097_153, 3_333_333, 0,
];

fn apart_and_whole(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let mut blocks: Vec<(Block, u64)> = Vec::new();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let block = subject.take(size);
        assert_eq!(block.size(), Bytes(size));
        assert!(memory.owns(&block));
        subject.fill(&block, seed as u64);
        blocks.push((block, seed as u64));
    }
    assert_apart(subject, &blocks);
    for (block, seed) in &blocks {
        subject.verify(block, *seed);
    }
    // Half of them go, others come: the rest keeps its contents.
    let (gone, mut kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|(_, seed)| seed % 2 == 0);
    for (block, _) in gone {
        memory.release(block, Stream::DEFAULT).unwrap();
    }
    for seed in 100..110 {
        let block = subject.take(1_000 * seed);
        subject.fill(&block, seed);
        kept.push((block, seed));
    }
    assert_apart(subject, &kept);
    for (block, seed) in kept {
        subject.verify(&block, seed);
        memory.release(block, Stream::DEFAULT).unwrap();
    }
    assert_empty(&memory.stats());
}

fn assert_apart(subject: &Subject, blocks: &[(Block, u64)]) {
    let mut ends: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for (block, _) in blocks {
        let info = subject.memory.device_of(block).info();
        let at = block.address().pointer();
        assert_eq!(at % info.alignment, 0, "{block:?} is not aligned");
        // A block of nothing still has a place of its own.
        let end = at + block.size().0.max(1);
        assert!(ends.insert((info.backend, at), end).is_none(), "{block:?} lies on another");
    }
    for (((backend, _), end), ((next, start), _)) in ends.iter().zip(ends.iter().skip(1)) {
        assert!(backend != next || end <= start, "blocks overlap at {start:#x}");
    }
}

fn assert_empty(stats: &MemoryStats) {
    assert_eq!((stats.in_use_bytes, stats.active_buffers), (Bytes::ZERO, 0), "{stats:?}");
}

fn returned_once(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    for size in [0u64, 1, 1000, 5_000_000] {
        let other = subject.take(size);
        let block = subject.take(size);
        memory.release(block, Stream::DEFAULT).unwrap();
        let before = (memory.available(), memory.stats());
        for _ in 0..2 {
            let again = memory.release(block, Stream::DEFAULT);
            assert!(matches!(again, Err(Error::AlreadyFreed { .. })), "{size}: {again:?}");
        }
        assert_eq!((memory.available(), memory.stats()), before, "a second return counted");
        memory.release(other, Stream::DEFAULT).unwrap();
        let again = memory.release(block, Stream::DEFAULT);
        assert!(matches!(again, Err(Error::AlreadyFreed { .. })), "{size}: {again:?}");
    }
    assert_empty(&memory.stats());
}

fn stale_blocks(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let mut stale = Vec::new();
    for seed in 0..50 {
        let block = subject.take(4096u64);
        subject.fill(&block, seed);
        for old in &stale {
            let again = memory.release(*old, Stream::DEFAULT);
            assert!(matches!(again, Err(Error::AlreadyFreed { .. })), "{again:?}");
        }
        subject.verify(&block, seed);
        assert_eq!(memory.stats().active_buffers, 1);
        memory.release(block, Stream::DEFAULT).unwrap();
        stale.push(block);
    }
}

fn strangers(subject: &Subject, make: Make<'_>) {
    let other = make();
    let foreign = other.take(1000u64);
    let own = subject.take(1000u64);
    let before = (subject.memory.available(), subject.memory.stats());
    assert!(!subject.memory.owns(&foreign));
    let refused = subject.memory.release(foreign, Stream::DEFAULT);
    assert!(matches!(refused, Err(Error::ForeignBlock { .. })), "{refused:?}");
    assert_eq!((subject.memory.available(), subject.memory.stats()), before);
    other.memory.release(foreign, Stream::DEFAULT).unwrap();
    subject.memory.release(own, Stream::DEFAULT).unwrap();
}

pub(crate) fn assert_agree(stats: &MemoryStats) {
    let parts = stats.in_use_bytes + stats.pooled_bytes;
    assert!(parts <= stats.total_allocated_bytes, "{stats:?}");
    assert!(stats.total_allocated_bytes <= stats.peak_bytes, "{stats:?}");
}

fn figures(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    assert_empty(&memory.stats());
    let mut live = Vec::new();
    let mut sum = 0;
    for size in SIZES {
        live.push(subject.take(size));
        sum += size;
        let stats = memory.stats();
        assert_agree(&stats);
        assert_eq!(stats.in_use_bytes, Bytes(sum));
        assert_eq!(stats.active_buffers, live.len() as u64);
        assert!(memory.available() <= memory.capacity());
        assert!(stats.pool_hits + stats.pool_misses >= live.len() as u64);
    }
    let peak = memory.stats().peak_bytes;
    for block in live {
        memory.release(block, Stream::DEFAULT).unwrap();
        sum -= block.size().0;
        let stats = memory.stats();
        assert_agree(&stats);
        assert_eq!(stats.in_use_bytes, Bytes(sum));
    }
    assert_eq!(memory.stats().peak_bytes, peak);
    assert_empty(&memory.stats());
}

fn never_fits(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let before = (memory.available(), memory.stats());
    let sizes = [subject.largest.0 + 1, memory.capacity().0 + 1, u64::MAX - 1, u64::MAX];
    for size in sizes.map(Bytes) {
        match memory.allocate(Request::new(size)) {
            Err(Error::NeverFits { requested, capacity, .. }) => {
                assert_eq!(requested, size);
                assert!(capacity < size);
            }
            other => panic!("{size} must never fit in {}: {other:?}", memory.capacity()),
        }
    }
    assert_eq!((memory.available(), memory.stats()), before);
}

/// Takes blocks of a size until the memory is full.
fn take_all(subject: &Subject, size: u64) -> Vec<Block> {
    let most = subject.memory.capacity().0 / size.max(1) + 1;
    let mut blocks = Vec::new();
    loop {
        match subject.memory.allocate(Request::new(size)) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                assert!(error.is_full_now(), "{error}");
                return blocks;
            }
        }
        assert!(blocks.len() as u64 <= most, "more than there is");
    }
}

fn full_and_again(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let sizes = [1 << 20, 2 << 20, 1_000_000, subject.largest.0 / 3, subject.largest.0];
    for size in sizes {
        let mut blocks = take_all(subject, size);
        let held: u64 = blocks.iter().map(|block| block.size().0).sum();
        assert!(held <= memory.capacity().0);
        assert_eq!(memory.stats().in_use_bytes, Bytes(held));
        assert!(
            blocks.len() as u64 >= subject.largest.0 / size * 3 / 4,
            "{size}: {}",
            blocks.len()
        );
        for _ in 0..3 {
            let block = blocks.remove(blocks.len() / 2);
            memory.release(block, Stream::DEFAULT).unwrap();
            blocks.push(memory.allocate(Request::new(size)).unwrap());
        }
        for block in blocks {
            memory.release(block, Stream::DEFAULT).unwrap();
        }
        assert_empty(&memory.stats());
    }
}

fn largest_fits_again(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    for step in [1, 2, 3, 7] {
        let mut blocks = take_all(subject, 700_001);
        for skip in 0..step {
            let kept: Vec<_> = (0..)
                .zip(blocks)
                .filter_map(|(number, block)| {
                    if number % step == skip {
                        memory.release(block, Stream::DEFAULT).unwrap();
                        return None;
                    }
                    Some(block)
                })
                .collect();
            blocks = kept;
        }
        for block in blocks {
            memory.release(block, Stream::DEFAULT).unwrap();
        }
        let all = subject.take(subject.largest);
        subject.fill(&all, step);
        subject.verify(&all, step);
        memory.release(all, Stream::DEFAULT).unwrap();
    }
}

fn trimming(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let blocks: Vec<_> =
        (0..12).map(|seed| (subject.take(300_000 + seed * 99_999), seed)).collect();
    for (block, seed) in &blocks {
        subject.fill(block, *seed);
    }
    let (gone, kept): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(_, seed)| seed % 3 > 0);
    for (block, _) in gone {
        memory.release(block, Stream::DEFAULT).unwrap();
    }
    let before = memory.stats();
    let trimmed = memory.trim().unwrap();
    let after = memory.stats();
    assert_agree(&after);
    assert_eq!(after.total_allocated_bytes + trimmed, before.total_allocated_bytes);
    assert_eq!(after.in_use_bytes, before.in_use_bytes);
    for (block, seed) in kept {
        subject.verify(&block, seed);
        memory.release(block, Stream::DEFAULT).unwrap();
    }
    // A device that works beside the host may need a moment to pass the last event.
    let deadline = Instant::now() + Duration::from_secs(10);
    while memory.stats().total_allocated_bytes > Bytes::ZERO && Instant::now() < deadline {
        memory.trim().unwrap();
        std::thread::yield_now();
    }
    assert_eq!(memory.stats().total_allocated_bytes, Bytes::ZERO);
}

/// Work of known length on every block, on three streams; the simulated device records
/// what nothing orders. Without one, that contents survive is all that can be seen.
fn stream_order(subject: &Subject, _: Make<'_>) {
    let memory = &subject.memory;
    let streams: Vec<_> = (0..3).map(|_| memory.device().new_stream().unwrap()).collect();
    let sizes = [100_000, 1 << 20, 3 << 20, 64];
    let mut live: Vec<(Block, Stream)> = Vec::new();
    for round in 0..120usize {
        let stream = streams[round % streams.len()];
        let request = Request::new(sizes[round % sizes.len()] as u64).on(stream);
        match memory.allocate(request) {
            Ok(block) => live.push((block, stream)),
            Err(error) => assert!(error.is_full_now(), "{error}"),
        }
        if let Some((block, stream)) = live.last() {
            work(subject, block, *stream, 1 + round as u64 % 5);
        }
        if live.len() > 6 {
            let (block, stream) = live.remove(round % 5);
            memory.release(block, stream).unwrap();
        }
        if let Some(sim) = &subject.sim {
            sim.advance(Duration::from_micros(round as u64 % 3));
        }
    }
    for (block, stream) in live {
        memory.release(block, stream).unwrap();
    }
    let all = subject.take(subject.largest);
    work(subject, &all, Stream::DEFAULT, 1);
    memory.release(all, Stream::DEFAULT).unwrap();
}

fn work(subject: &Subject, block: &Block, stream: Stream, micros: u64) {
    let Some(sim) = &subject.sim else { return };
    if subject.memory.device_of(block).info().backend == "sim" {
        sim.launch(stream, Duration::from_micros(micros), &[(block.address(), block.size())]);
    }
}
