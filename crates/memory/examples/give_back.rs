//! How long a pool takes to give memory back to a GPU when another process needs it.
//!
//! The pool fills the GPU but for 2 GiB, in blocks of 1 MiB to 1 GiB, and its owner returns them.
//! Then a second process wants 8 GiB, which the GPU cannot give it while the pool holds them. It
//! asks again and again; the pool is told to trim, and both note when they were done.
//!
//!   cargo run --release -p plimsoll-memory --example give_back
//!
//! It prints one line of JSON, and exits 1 where there is no GPU.

#![expect(clippy::print_stdout, reason = "what it prints is its answer")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_memory::backend::cuda::Cuda;
use plimsoll_memory::{Bytes, Device, Memory, MemoryConfig, Pool, Request, Stream};

const WANTED: Bytes = Bytes::gib(8);
const LEFT: Bytes = Bytes::gib(2);

/// Both processes read the same clock.
fn now() -> Result<Duration, Box<dyn Error>> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

/// The second process: says that it is ready, and when it had its memory.
fn want() -> Result<(), Box<dyn Error>> {
    let device = Cuda::open(0)?;
    let refused = device.allocate(Request::new(WANTED)).is_err();
    println!("{refused}");
    std::io::stdout().flush()?;
    let block = loop {
        match device.allocate(Request::new(WANTED)) {
            Ok(block) => break block,
            Err(error) if error.is_out_of_memory() => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    };
    println!("{}", now()?.as_nanos());
    Ok(device.release(block, Stream::DEFAULT)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("want") {
        return want();
    }
    let device = Arc::new(Cuda::open(0)?);
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(LEFT.get());
    let pool = Pool::new(device.clone(), config)?;
    let mut blocks = Vec::new();
    for size in (0..=10).cycle().map(|shift| Bytes::mib(1 << shift)) {
        match pool.allocate(Request::new(size)) {
            Ok(block) => blocks.push(block),
            Err(_) => break,
        }
    }
    for block in blocks {
        pool.release(block, Stream::DEFAULT)?;
    }
    let (held, handles) = (pool.stats().total_allocated_bytes, pool.activity().taken_from_device);
    let mut other =
        Command::new(std::env::current_exe()?).arg("want").stdout(Stdio::piped()).spawn()?;
    let mut told = BufReader::new(other.stdout.take().ok_or("no pipe")?).lines();
    let refused = told.next().ok_or("the second process ended")??;
    let (begun, clock) = (now()?, Instant::now());
    let returned = pool.trim()?;
    let trimmed = clock.elapsed();
    let had: u128 = told.next().ok_or("the second process ended")??.parse()?;
    println!(
        "{{\"device\": \"{}\", \"held_bytes\": {}, \"handles\": {handles}, \"refused_before\": \
         {refused}, \"returned_bytes\": {}, \"trim_us\": {}, \"other_process_had_it_us\": {}}}",
        device.info().name,
        held.get(),
        returned.get(),
        trimmed.as_micros(),
        had.saturating_sub(begun.as_nanos()) / 1000,
    );
    other.wait()?;
    Ok(())
}
