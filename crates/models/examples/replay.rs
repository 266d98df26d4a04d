//! A trace through a pool on a GPU, as `plimsoll replay` runs it, in a program that needs nothing
//! but the two crates it is about. `scripts/replay-peers` takes it as `PLIMSOLL` where the
//! command-line tool is not built.
//!
//!   replay FILE.csv [--tight] [--kernels] [--passes N] [--threads N] [--sim]
//!
//! It prints one object of JSON with the names that `plimsoll replay --json` uses.

#![expect(clippy::print_stdout, reason = "what it prints is its answer")]

use std::error::Error;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use plimsoll_memory::backend::cuda::{Cuda, Toucher};
use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::memory::Stream;
use plimsoll_memory::{Bytes, Device, MemoryConfig, Packing, Pool};
use plimsoll_models::trace::Trace;
use plimsoll_models::trace::replay::TraceReplay;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--version") {
        println!("plimsoll {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1);
    let number =
        |flag: &str, default: u32| after(flag).map_or(Ok(default), |word| word.parse::<u32>());
    let is_file = |word: &&String| word.ends_with(".csv");
    let file = words.iter().find(is_file).ok_or("name a FILE.csv")?;
    let trace = Trace::parse(&std::fs::read(file)?)?;
    let packing = if has("--tight") { Packing::Tight } else { Packing::Quick };
    let config = whole(packing);
    let cuda = if has("--sim") { None } else { Some(Arc::new(Cuda::open(0)?)) };
    let device: Arc<dyn Device> = match &cuda {
        Some(cuda) => cuda.clone(),
        None => Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(141)))),
    };
    let pool = Pool::new(device, config)?;
    let threads = number("--threads", 1)?;
    if threads > 1 {
        return many(&pool, &trace, threads, number("--passes", 5)?);
    }
    let touch = has("--kernels");
    let toucher = cuda.filter(|_| touch).map(|cuda| Toucher::new(&cuda)).transpose()?;
    let mut replay = TraceReplay::new(&pool, &trace)?;
    if let Some(toucher) = &toucher {
        replay = replay.with_work(Box::new(|block, stream| {
            toucher.touch(stream, block.address(), block.size())
        }));
    }
    let events = trace.events().len() as f64;
    let nanos = |time: Duration| time.as_nanos() as f64 / events;
    let mut passes = Vec::new();
    for _ in 0..=number("--passes", 5)? {
        let before = pool.activity();
        let wall = replay.pass()?.wall;
        let now = pool.activity();
        let moved = now.remapped_handles - before.remapped_handles;
        let quiet = wall.saturating_sub(now.slow_time - before.slow_time);
        passes.push((nanos(wall), moved, nanos(quiet)));
    }
    let fastest = passes[1..].iter().min_by(|a, b| a.0.total_cmp(&b.0)).ok_or("no warm pass")?;
    let name = if packing == Packing::Tight { "tight" } else { "quick" };
    println!(
        "{{\"trace\": \"{file}\", \"packing\": \"{}\", \"kernels\": {touch}, \"peak_live_bytes\": {}, \
         \"peak_reserved_bytes\": {}, \"cold_ns_per_event\": {:.1}, \"cold_remapped_handles\": {}, \
         \"warm_ns_per_event\": {:.1}, \"remapped_handles\": {}, \
         \"warm_unmapped_ns_per_event\": {:.1}, \"taken\": {}}}",
        name,
        trace.peak_live().get(),
        pool.stats().peak_bytes.get(),
        passes[0].0,
        passes[0].1,
        fastest.0,
        fastest.1,
        fastest.2,
        pool.activity().taken_from_device,
    );
    Ok(())
}

/// All of the device, and nothing but the pool.
fn whole(packing: Packing) -> MemoryConfig {
    MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_tracking(false)
        .with_packing(packing)
}

/// The whole trace on each of 1 and of so many threads at once, each on a stream of its own.
fn many(pool: &Pool, trace: &Trace, threads: u32, passes: u32) -> Result<(), Box<dyn Error>> {
    use plimsoll_memory::Memory;
    let mut streams = vec![Stream::DEFAULT];
    while (streams.len() as u32) < threads {
        streams.push(pool.device().new_stream()?);
    }
    let mut rates = Vec::new();
    for count in [1, threads as usize] {
        let mut fastest = Duration::MAX;
        for _ in 0..=passes {
            let barrier = Barrier::new(count + 1);
            let spent = std::thread::scope(|scope| {
                let replay = |stream: Stream| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let mut replay = TraceReplay::on_stream(pool, trace, stream);
                        barrier.wait();
                        replay.pass().map(|_| ())
                    })
                };
                let running: Vec<_> = streams[..count].iter().map(|s| replay(*s)).collect();
                barrier.wait();
                let start = Instant::now();
                for thread in running {
                    thread.join().map_err(|_| "a thread panicked")??;
                }
                Ok::<Duration, Box<dyn Error>>(start.elapsed())
            })?;
            fastest = fastest.min(spent);
        }
        rates.push(trace.events().len() as f64 * count as f64 / fastest.as_secs_f64() / 1e6);
    }
    println!(
        "{{\"threads\": {threads}, \"million_events_per_s\": [{:.1}, {:.1}], \"peak_reserved_bytes\": {}}}",
        rates[0],
        rates[1],
        pool.stats().peak_bytes.get()
    );
    Ok(())
}
