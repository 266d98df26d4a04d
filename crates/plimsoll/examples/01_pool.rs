//! Lesson 1: a pool. Take memory once, hand it out many times.
//!
//! The device here is a simulated one, so that this runs anywhere; a real one is opened
//! the same way and used through the same two traits.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use plimsoll::backend::{BackendKind, open};
use plimsoll::{Bytes, Error, Memory, MemoryConfig, Pool, Request, Result, Stream};

fn main() -> Result<()> {
    let device = open(BackendKind::Sim)?;
    // 95 % of the device, and 512 MiB stay free for others.
    let pool = Pool::new(device, MemoryConfig::for_inference())?;
    println!("{}: may hold {}", pool.name(), pool.capacity());

    // A block is a token: a size, an address, and the memory that it must go back to.
    let weights = pool.allocate(Request::new(Bytes::mib(600)).tagged("weights"))?;
    let logits = pool.allocate(Request::new(Bytes::mib(40)).tagged("logits"))?;

    // Bytes are reached through the device.
    pool.device().write(logits.address(), b"0.1 0.7 0.2")?;
    let mut first = [0; 3];
    pool.device().read(logits.address(), &mut first)?;
    assert_eq!(&first, b"0.1");

    // What comes back is kept. The second round asks the device for nothing.
    pool.release(logits, Stream::DEFAULT)?;
    let asked = pool.activity().taken_from_device;
    for _ in 0..1000 {
        let logits = pool.allocate(Request::new(Bytes::mib(40)))?;
        pool.release(logits, Stream::DEFAULT)?;
    }
    assert_eq!(pool.activity().taken_from_device, asked);
    let stats = pool.stats();
    println!("1000 rounds: hit rate {:.1} %", stats.hit_rate().unwrap_or(0.0) * 100.0);
    println!("live {}, held {}", stats.in_use_bytes, stats.total_allocated_bytes);

    // A second return is an error, not a corruption.
    let twice = pool.release(logits, Stream::DEFAULT);
    assert!(matches!(twice, Err(Error::AlreadyFreed { .. })));

    // What is not in use goes back to the device when you say so, and only then.
    println!("trimmed {}", pool.trim()?);

    // Full now and never fits are different errors, because only one is worth a retry.
    let now = pool.allocate(Request::new(Bytes::gib(7)));
    let never = pool.allocate(Request::new(Bytes::gib(70)));
    assert!(now.is_err_and(|error| error.is_full_now()));
    assert!(never.is_err_and(|error| !error.is_full_now()));
    pool.release(weights, Stream::DEFAULT)?;
    Ok(())
}
