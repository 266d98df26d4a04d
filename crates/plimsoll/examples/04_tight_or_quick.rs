//! Lesson 4: quick or tight. Hold a little more, or map a little more often.
//!
//! Where a device can map physical memory, the pool moves free pages to where they are
//! needed. Mapping costs about the same for a handle of any size, so large handles are quick
//! and small ones are tight. The same requests, both ways:
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use std::sync::Arc;

use plimsoll::backend::sim::{Latencies, Sim, SimConfig};
use plimsoll::{Bytes, Memory, MemoryConfig, Packing, Pool, Request, Result, Stream};

/// Sizes as they come in training: they grow and shrink, and do not come back in the order
/// in which they went.
fn run(pool: &Pool) -> Result<Bytes> {
    let (mut live, mut peak) = (Vec::new(), Bytes::ZERO);
    for step in 0u64..400 {
        let size = Bytes::kib(200 + step * step * 37 % 30_000);
        live.push(pool.allocate(Request::new(size))?);
        peak = peak.max(pool.stats().in_use_bytes);
        if live.len() > 40 {
            let oldest = live.swap_remove((step as usize * 7) % 40);
            pool.release(oldest, Stream::DEFAULT)?;
        }
    }
    live.into_iter().try_for_each(|block| pool.release(block, Stream::DEFAULT))?;
    Ok(peak)
}

fn main() -> Result<()> {
    let mut held = Vec::new();
    for (packing, can_map) in
        [(Packing::Quick, true), (Packing::Tight, true), (Packing::Quick, false)]
    {
        // The calls of this device cost what they were measured to cost on a real one.
        let config = SimConfig::default().with_mapping(can_map);
        let device = Arc::new(Sim::new(config.with_latencies(Latencies::measured())));
        let config = MemoryConfig::new().with_packing(packing);
        let pool = Pool::new(Arc::clone(&device) as Arc<dyn Memory>, config)?;
        let live = run(&pool)?;
        let (peak, activity) = (pool.stats().peak_bytes, pool.activity());
        println!(
            "{packing:?}{}: held {peak} for {live} live ({:.3}), {} pages moved, {:?} in calls",
            if can_map { "" } else { " on a board that cannot map" },
            peak.get() as f64 / live.get() as f64,
            activity.remapped_handles,
            device.charged(),
        );
        held.push(peak);
    }
    assert!(held[1] <= held[0], "tight holds no more than quick");
    // With your own requests instead of these: record a trace and run `plimsoll replay`.
    Ok(())
}
