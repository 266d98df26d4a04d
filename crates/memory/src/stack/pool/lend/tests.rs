#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::backend::sim::{Sim, SimConfig};
use crate::config::MemoryConfig;
use crate::memory::{Block, Device};

/// A pool whose free memory lies in gaps between blocks of 1 MiB.
fn with_gaps() -> (Arc<Sim>, Pool, Vec<Block>) {
    let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(2))));
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    let pool = Pool::new(device.clone(), config).unwrap();
    let take = |mib| take(&pool, mib);
    let all = take(512);
    pool.release(all, Stream::DEFAULT).unwrap();
    let gaps: Vec<_> = (0..39).map(|_| [12, 1].map(take)).collect();
    let mut live: Vec<_> = (0..3).map(|_| take(10)).collect();
    for [large, small] in gaps {
        pool.release(large, Stream::DEFAULT).unwrap();
        live.push(small);
    }
    (device, pool, live)
}

fn take(pool: &Pool, mib: u64) -> Block {
    pool.allocate(Request::new(Bytes::mib(mib))).unwrap()
}

/// A thread that grows the pool waits for work; the work may be what returns a block.
#[test]
fn a_block_in_lent_memory_is_returned_while_another_thread_grows() {
    let (_device, pool, mut live) = with_gaps();
    let across: Vec<_> = (0..4).map(|_| take(&pool, 15)).collect();
    let lent = || pool.growth.lock().unwrap().spans.loans.len();
    assert!(lent() > 0, "nothing was lent");
    let growing = pool.growth();
    across.into_iter().for_each(|block| pool.release(block, Stream::DEFAULT).unwrap());
    assert!(!growing.spans.loans.is_empty() && !pool.returned().is_empty());
    drop(growing);
    live.push(take(&pool, 1));
    drop(pool.growth());
    assert_eq!((lent(), pool.returned().len()), (0, 0));
    assert_eq!(pool.stats().in_use_bytes, Bytes::mib(39 + 30 + 1), "{}", live.len());
}

/// A handle that goes back waits for nobody who uses other parts of its spans.
#[test]
fn a_handle_leaves_its_spans_at_once() {
    let (device, pool, mut live) = with_gaps();
    // The first ones use up what may be new.
    live.extend((0..3).map(|_| take(&pool, 15)));
    let across = take(&pool, 15);
    let stream = device.new_stream().unwrap();
    device.launch(stream, Duration::from_secs(9), &[(across.address(), across.size())]);
    pool.release(across, stream).unwrap();
    let waits = pool.activity().sync_waits;
    let mut growth = pool.growth();
    let parts = growth.spans.spans.values().last().unwrap().parts.clone();
    assert!(parts.len() > 1 && parts.iter().all(|(_, there)| *there));
    let gone = parts[0].0.handle;
    pool.leave_spans(&mut growth, gone).unwrap();
    let left = &growth.spans.spans.values().last().unwrap().parts;
    assert!(left.iter().all(|(extent, there)| *there == (extent.handle != gone)));
    drop(growth);
    assert_eq!(pool.activity().sync_waits, waits, "it waited for the work");
    assert_eq!(live.len(), 45);
}
