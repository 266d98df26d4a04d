//! Our own pool: the plain walk, replayed through it on a simulated device.
//!
//! The pool holds whole pages, and takes larger ones as it grows, so it holds more than lives.
//! How much it is can be had exactly: the pool is here, and asks a simulated device for the
//! same pages as a real one.

use std::sync::Arc;

use crate::trace::Trace;
use crate::trace::replay::TraceReplay;
use plimsoll_machine::Bytes;
use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::{MemoryConfig, Pool};

use super::super::walk::LifetimeEvent;

/// More than any device has: the question here is what is asked for.
const ROOM: Bytes = Bytes::gib(1 << 20);

/// The most that the pool reserves for these allocations and frees.
pub(super) fn peak_reserved(events: &[LifetimeEvent]) -> plimsoll_machine::Result<u64> {
    let mut trace = Trace::builder();
    for (time, &(taken, id, bytes)) in (0..).zip(events) {
        if taken {
            trace.allocate(id as u64, Bytes(bytes), 0, time)?;
        } else {
            trace.free(id as u64, 0, time)?;
        }
    }
    let trace = trace.finish();
    let device = Arc::new(Sim::new(SimConfig::default().with_total(ROOM)));
    let config = MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_tracking(false);
    let pool = Pool::new(device, config)?;
    let mut replay = TraceReplay::new(&pool, &trace)?;
    replay.pass()?;
    Ok(replay.pass()?.peak_reserved.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_holds_whole_pages() {
        const MIB: u64 = 1 << 20;
        let reserved = |events: &[LifetimeEvent]| peak_reserved(events).expect("within bounds");
        assert_eq!(reserved(&[]), 0);
        assert_eq!(reserved(&[(true, 0, 1)]), 2 * MIB);
        assert_eq!(reserved(&[(true, 0, 5 * MIB)]), 6 * MIB);
        let one_after_the_other = [(true, 0, 5 * MIB), (false, 0, 5 * MIB), (true, 1, 5 * MIB)];
        assert_eq!(reserved(&one_after_the_other), 6 * MIB);
        assert!(super::peak_reserved(&[(true, 0, u64::MAX)]).is_err());
    }
}
