//! Lesson 5: graphs. A captured graph replays addresses, so they must stay.
//!
//! A capture brings memory of its own, set aside before it begins: within it nothing is
//! mapped, moved or asked of the device. The memory lives as long as its guard; keep the
//! guard beside the graph.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use std::sync::Arc;

use plimsoll::backend::sim::{Sim, SimCall, SimConfig};
use plimsoll::{Bytes, Device, Memory, MemoryConfig, Pool, Request, Result, Stream};

fn main() -> Result<()> {
    let device = Arc::new(Sim::new(SimConfig::default()));
    let pool = Arc::new(Pool::new(Arc::clone(&device) as Arc<dyn Memory>, MemoryConfig::new())?);
    let stream = device.new_stream()?;

    // Run the model once without a capture and look at the peak: that is what to ask for.
    let capture = pool.begin_capture(stream, Bytes::mib(96))?;
    let calls = || SimCall::ALL.map(|call| device.calls(call)).iter().sum::<u64>();
    let before = calls();

    // The captured step: blocks are reused within it, as the graph will reuse them.
    let hidden = pool.allocate(Request::new(Bytes::mib(64)).on(stream))?;
    pool.release(hidden, stream)?;
    let output = pool.allocate(Request::new(Bytes::mib(32)).on(stream))?;
    assert_eq!(output.address(), hidden.address());
    // More than was set aside is refused: the device may not be asked now.
    assert!(pool.allocate(Request::new(Bytes::mib(80)).on(stream)).is_err());
    // And so is anything else that would have to ask it.
    assert!(pool.trim().is_err());
    assert_eq!(calls(), before, "nothing was asked of the device");

    let graph_memory = capture.end();
    println!("the graph keeps {}", graph_memory.held());

    // Others use the pool as before, and never get the graph's addresses.
    pool.release(output, stream)?;
    let other = pool.allocate(Request::new(Bytes::mib(64)).on(stream))?;
    assert_ne!(other.address(), hidden.address());
    pool.release(other, Stream::DEFAULT)?;
    println!("trimmed beside it: {}", pool.trim()?);

    // The graph is gone: its memory is anybody's again.
    drop(graph_memory);
    println!("trimmed after it: {}", pool.clear()?);
    assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
    Ok(())
}
