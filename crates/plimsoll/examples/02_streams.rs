//! Lesson 2: streams. A block comes back while the device is still using it.
//!
//! That is no mistake: work is queued, and the host runs ahead. The next user only has to
//! be behind that work. On the same stream it is behind by itself; on another one the pool
//! records an event and lets that stream wait, and it does so only when somebody asks.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use std::sync::Arc;
use std::time::Duration;

use plimsoll::backend::sim::{Sim, SimCall, SimConfig};
use plimsoll::{Bytes, Device, Memory, MemoryConfig, Pool, Request, Result};

fn main() -> Result<()> {
    let device = Arc::new(Sim::new(SimConfig::default()));
    let pool = Pool::new(Arc::clone(&device) as Arc<dyn Memory>, MemoryConfig::new())?;
    let (rgb, thermal) = (device.new_stream()?, device.new_stream()?);
    let size = Bytes::mib(64);
    let kernel = Duration::from_millis(5);

    // Work of 5 ms is queued on the first stream, and its block comes back at once.
    let block = pool.allocate(Request::new(size).on(rgb))?;
    device.launch(rgb, kernel, &[(block.address(), size)]);
    pool.release(block, rgb)?;

    // The same stream gets the same bytes: no event, no wait, no call to the device.
    let again = pool.allocate(Request::new(size).on(rgb))?;
    assert_eq!(again.address(), block.address());
    assert_eq!(device.calls(SimCall::Record), 0);
    device.launch(rgb, kernel, &[(again.address(), size)]);
    pool.release(again, rgb)?;
    println!("same stream: reused with {} events", device.calls(SimCall::Record));

    // Another stream gets them too, behind an event. Nobody waits on the host.
    let other = pool.allocate(Request::new(size).on(thermal))?;
    assert_eq!(other.address(), block.address());
    assert_eq!((device.calls(SimCall::Record), device.calls(SimCall::Wait)), (1, 1));
    assert_eq!(device.calls(SimCall::Synchronize), 0);
    device.launch(thermal, kernel, &[(other.address(), size)]);
    println!("other stream: reused behind {} event", device.calls(SimCall::Record));

    // A block may come back on a stream that did not get it: then the next user is put
    // behind both.
    pool.release(other, rgb)?;
    let third = pool.allocate(Request::new(size).on(rgb))?;
    device.launch(rgb, kernel, &[(third.address(), size)]);
    pool.release(third, rgb)?;

    // The simulated device notices work on the same bytes that nothing orders. A GPU would
    // give wrong numbers, once in a while.
    assert!(device.faults().is_empty(), "{:?}", device.faults());
    println!("faults: none; streams waited {} times", pool.activity().sync_waits);
    Ok(())
}
