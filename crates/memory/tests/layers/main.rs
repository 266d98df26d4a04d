//! What each layer promises beside what every memory does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fallback;
mod fallback_buffer;
mod limit;
mod pool;
mod pressure;
mod track;

use std::sync::Arc;

use plimsoll_memory::backend::host::Host;
use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::{Bytes, MemoryConfig};

fn host(mib: u64) -> Arc<Host> {
    Arc::new(Host::with_total(Bytes::mib(mib)))
}

fn sim(mib: u64) -> Arc<Sim> {
    Arc::new(Sim::new(SimConfig::default().with_total(Bytes::mib(mib))))
}

/// All of the device, to the last byte.
fn everything() -> MemoryConfig {
    MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0)
}

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (self.0 >> 33) % end
    }
}
