//! What is promised of every device, tried on a part of one.
//!
//! Only a part of the memory is used, so that other users of the device are not disturbed. Every
//! promise opens the device again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use plimsoll::{
    Block, Bytes, Device, Error, Fallback, GpuMemoryManager, Limit, LimitRequest, LimitType,
    Memory, MemoryConfig, Pool, Request, Stream,
};

use super::Check;

/// The most that a test uses, and the share of what is free.
const SLICE: Bytes = Bytes::mib(16);
const SHARE: u64 = 8;

/// Opens the device again.
type OpenDevice<'a> = &'a dyn Fn() -> plimsoll::Result<Arc<dyn Device>>;
type Promise = fn(OpenDevice<'_>) -> anyhow::Result<String>;

const PROMISES: [(&str, Promise); 8] = [
    ("blocks of any size do not overlap and keep their contents", contents),
    ("each block is returned once, and strangers are refused", returned_once),
    ("the figures agree with what is out", figures),
    ("full now and can never fit are different errors, and what is freed fits again", full),
    ("blocks pass between streams behind events", streams),
    ("four threads take, fill and return without a mix-up", threads),
    ("what the device has no room for goes to the host and back, nothing lost", fallback),
    ("a limit refuses by our counter, and the device is not asked", limit),
];

pub(super) fn checks(name: &str, open: OpenDevice<'_>) -> Vec<Check> {
    PROMISES.into_iter().map(|(promise, keep)| Check::of(name, promise, || keep(open))).collect()
}

fn slice(device: &dyn Device) -> Bytes {
    let room = device.free_memory().unwrap_or(device.info().total) / SHARE;
    SLICE.min(room).max(Bytes::mib(1))
}

/// A pool over a line over the device.
fn pool(open: OpenDevice<'_>) -> anyhow::Result<(Pool, Bytes)> {
    let device = open()?;
    let slice = slice(&*device);
    let limit = Arc::new(Limit::new(device, slice));
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    Ok((Pool::new(limit, config)?, slice))
}

fn bytes(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(131).wrapping_add(seed * 97) >> 1) as u8).collect()
}

fn fill(memory: &dyn Memory, block: &Block, seed: usize) -> anyhow::Result<()> {
    let bytes = bytes(block.size().get() as usize, seed);
    Ok(memory.device_of(block).write(block.address(), &bytes)?)
}

fn verify(memory: &dyn Memory, block: &Block, seed: usize) -> anyhow::Result<()> {
    let expected = bytes(block.size().get() as usize, seed);
    let mut found = vec![0; expected.len()];
    memory.device_of(block).read(block.address(), &mut found)?;
    ensure!(found == expected, "a block of {} has lost its contents", block.size());
    Ok(())
}

fn contents(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let sizes = [1, 255, 257, 4097, 65_537, slice.get() / 8 + 3];
    let mut blocks = Vec::new();
    for (seed, size) in sizes.into_iter().enumerate() {
        let block = pool.allocate(Request::new(size))?;
        fill(&pool, &block, seed)?;
        blocks.push((block, seed));
    }
    for (block, seed) in &blocks {
        verify(&pool, block, *seed)?;
    }
    blocks.sort_by_key(|(block, _)| block.address().pointer());
    for pair in blocks.windows(2) {
        let (first, second) = (&pair[0].0, &pair[1].0);
        let end = first.address().pointer() + first.size().get();
        ensure!(end <= second.address().pointer(), "two blocks overlap");
    }
    for (block, _) in blocks {
        pool.release(block, Stream::DEFAULT)?;
    }
    Ok(format!("{} sizes up to {}", sizes.len(), Bytes(sizes[sizes.len() - 1])))
}

fn returned_once(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let ((ours, _), (other, _)) = (pool(open)?, pool(open)?);
    let block = ours.allocate(Request::new(1000u64))?;
    ensure!(
        matches!(other.release(block, Stream::DEFAULT), Err(Error::ForeignBlock { .. })),
        "a block of another pool was accepted"
    );
    ours.release(block, Stream::DEFAULT)?;
    ensure!(
        matches!(ours.release(block, Stream::DEFAULT), Err(Error::AlreadyFreed { .. })),
        "a block was taken twice"
    );
    Ok("both were refused".to_string())
}

fn figures(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let mut blocks = Vec::new();
    for step in 1..=8 {
        blocks.push(pool.allocate(Request::new(slice / 64 * step))?);
        let (stats, out) = (pool.stats(), blocks.iter().map(Block::size).sum::<Bytes>());
        ensure!(stats.in_use_bytes == out, "{} in use, {out} out", stats.in_use_bytes);
        ensure!(
            stats.in_use_bytes + stats.pooled_bytes <= stats.total_allocated_bytes
                && stats.total_allocated_bytes <= stats.peak_bytes,
            "{stats:?}"
        );
    }
    for block in blocks {
        pool.release(block, Stream::DEFAULT)?;
    }
    // A device that works beside the host may need a moment to pass the last event.
    let deadline = Instant::now() + Duration::from_secs(10);
    while pool.stats().total_allocated_bytes > Bytes::ZERO && Instant::now() < deadline {
        pool.trim()?;
        std::thread::yield_now();
    }
    let (held, peak) = (pool.stats().total_allocated_bytes, pool.stats().peak_bytes);
    ensure!(held == Bytes::ZERO, "{held} is reserved after everything was freed and trimmed");
    Ok(format!("peak {peak}, and nothing reserved at the end"))
}

fn full(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let never = pool.allocate(Request::new(Bytes(pool.capacity().get() + 1)));
    ensure!(matches!(never, Err(Error::NeverFits { .. })), "more than all: {never:?}");
    let mut blocks = Vec::new();
    let refused = loop {
        match pool.allocate(Request::new(slice / 16)) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        ensure!(blocks.len() <= 16, "more was allocated than the limit allows");
    };
    ensure!(refused.is_full_now(), "full, and said: {refused}");
    let count = blocks.len();
    ensure!(count >= 12, "full after {count} of 16 pieces");
    let block = blocks.swap_remove(count / 2);
    pool.release(block, Stream::DEFAULT)?;
    blocks.push(pool.allocate(Request::new(slice / 16)).context("what was returned must fit")?);
    for block in blocks {
        pool.release(block, Stream::DEFAULT)?;
    }
    Ok(format!("{count} pieces of {} below {slice}", slice / 16))
}

fn streams(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let streams = [pool.device().new_stream()?, pool.device().new_stream()?];
    for round in 0..40 {
        let stream = streams[round % 2];
        let block = pool.allocate(Request::new(slice / 4).on(stream))?;
        pool.device().write(block.address(), &bytes(4096, round))?;
        let mut found = vec![0; 4096];
        pool.device().read(block.address(), &mut found)?;
        ensure!(found == bytes(4096, round), "round {round}: contents were lost");
        pool.release(block, stream)?;
    }
    let device = pool.device();
    let event = device.record(streams[0])?;
    device.wait(streams[1], event)?;
    device.synchronize(event)?;
    ensure!(device.is_done(event)?, "an event that was waited for is not done");
    device.forget(event)?;
    Ok("40 blocks on two streams".to_string())
}

fn threads(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let work = |thread: usize| -> anyhow::Result<usize> {
        let stream = pool.device().new_stream()?;
        let mut done = 0;
        for round in 0..50 {
            let size = slice.get() / 64 / (1 + (thread * 7 + round) as u64 % 9);
            match pool.allocate(Request::new(size).on(stream)) {
                Ok(block) => {
                    fill(&pool, &block, thread * 1000 + round)?;
                    verify(&pool, &block, thread * 1000 + round)?;
                    pool.release(block, stream)?;
                    done += 1;
                }
                Err(error) => ensure!(error.is_full_now(), "{error}"),
            }
        }
        Ok(done)
    };
    let done = std::thread::scope(|scope| -> anyhow::Result<usize> {
        let running: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut done = 0;
        for thread in running {
            done += thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(done)
    })?;
    ensure!(pool.stats().active_buffers == 0, "{} blocks are left", pool.stats().active_buffers);
    Ok(format!("{done} blocks"))
}

fn fallback(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let (pool, slice) = pool(open)?;
    let host = Arc::new(plimsoll::backend::host::Host::with_total(slice));
    let memory = Fallback::new(Arc::new(pool), host);
    let mut blocks = Vec::new();
    for seed in 0..12 {
        let block = memory.allocate(Request::new(slice / 8))?;
        fill(&memory, &block, seed)?;
        blocks.push((block, seed));
    }
    let fell = memory.stats().cpu_fallbacks;
    ensure!(fell > 0, "12 eighths fitted into one whole");
    for (block, seed) in &blocks {
        verify(&memory, block, *seed)?;
    }
    for (block, _) in blocks {
        memory.release(block, Stream::DEFAULT)?;
    }
    let back = memory.allocate(Request::new(slice / 8))?;
    ensure!(memory.stats().cpu_fallbacks == fell, "with room again, it still went to the host");
    memory.release(back, Stream::DEFAULT)?;
    Ok(format!("{fell} of 12 on the host"))
}

fn limit(open: OpenDevice<'_>) -> anyhow::Result<String> {
    let device = open()?;
    let slice = slice(&*device);
    let manager = GpuMemoryManager::new(MemoryConfig::new())?;
    manager.add_device(device);
    let report = manager.apply_limits(&LimitRequest::new().with_limit(slice))?;
    ensure!(report.verified, "a request past {slice} was not refused: {report}");
    ensure!(report.limit_type != LimitType::Unavailable, "{report}");
    let usage = manager.usage();
    let (asked, refused) = usage.first().map_or((0, 0), |usage| (usage.asked, usage.refused));
    ensure!(asked == 0 && refused > 0, "asked {asked} times, refused {refused}");
    let counted = if refused == 1 { "1 refusal" } else { &format!("{refused} refusals") };
    Ok(format!("{}, {counted} counted, 0 calls to the device", report.limit_type))
}
