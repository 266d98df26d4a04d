//! A stack, and what the suite must know of it that its trait does not tell.

use std::sync::{Arc, OnceLock};

use plimsoll_memory::backend::cuda::{Cuda, CudaOptions};
use plimsoll_memory::backend::host::Host;
use plimsoll_memory::backend::opencl::OpenCl;
use plimsoll_memory::backend::rocm::{Rocm, RocmOptions};
use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::backend::{BackendKind, count};
use plimsoll_memory::{Block, Bytes, Memory, MemoryConfig, Packing, Pool, Request};

/// A stack under test.
pub(crate) struct Subject {
    pub(crate) memory: Arc<dyn Memory>,
    /// The largest block that an empty stack hands out: all of it, unless it stands on
    /// two memories.
    pub(crate) largest: Bytes,
    /// The simulated device at the bottom, to queue work on and to ask for faults.
    pub(crate) sim: Option<Arc<Sim>>,
}

impl Subject {
    /// The same with a layer over it.
    pub(crate) fn under<M: Memory + 'static>(
        self,
        layer: impl FnOnce(Arc<dyn Memory>) -> M,
    ) -> Subject {
        let memory: Arc<dyn Memory> = Arc::new(layer(self.memory));
        Subject { largest: self.largest.min(memory.capacity()), memory, sim: self.sim }
    }

    pub(crate) fn take(&self, size: impl Into<Bytes>) -> Block {
        self.memory.allocate(Request::new(size)).unwrap()
    }

    /// What hardware would have done wrong in silence.
    pub(crate) fn assert_no_faults(&self) {
        if let Some(sim) = &self.sim {
            assert_eq!(sim.faults(), Vec::<String>::new());
        }
    }

    /// Fills a block with a pattern of its own, all of it or, if it is long, both ends.
    pub(crate) fn fill(&self, block: &Block, seed: u64) {
        let device = self.memory.device_of(block);
        for (offset, bytes) in patches(block, seed) {
            device.write(block.address().plus(offset), &bytes).unwrap();
        }
    }

    /// Fails unless a block still holds its pattern.
    pub(crate) fn verify(&self, block: &Block, seed: u64) {
        let device = self.memory.device_of(block);
        for (offset, expected) in patches(block, seed) {
            let mut bytes = vec![0; expected.len()];
            device.read(block.address().plus(offset), &mut bytes).unwrap();
            assert!(bytes == expected, "{block:?} has lost its contents at {offset}");
        }
    }
}

/// The stretches of a block that are written, each with what is written there.
fn patches(block: &Block, seed: u64) -> Vec<(u64, Vec<u8>)> {
    const END: u64 = 1200;
    let size = block.size().0;
    // Both ends; of a short block, that is all of it.
    let ranges = [0..size.min(END), size.saturating_sub(END).max(size.min(END))..size];
    let byte = |at: u64| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(at * 131) >> 3) as u8;
    ranges.into_iter().map(|range| (range.start, range.map(byte).collect())).collect()
}

pub(crate) fn host(mib: u64) -> Subject {
    let total = Bytes::mib(mib);
    Subject { memory: Arc::new(Host::with_total(total)), largest: total, sim: None }
}

fn simulated(config: SimConfig) -> Subject {
    let (largest, sim) = (config.total, Arc::new(Sim::new(config)));
    Subject { memory: sim.clone(), largest, sim: Some(sim) }
}

pub(crate) fn sim(mib: u64) -> Subject {
    simulated(SimConfig::default().with_total(Bytes::mib(mib)))
}

pub(crate) fn sim_without_mapping(mib: u64) -> Subject {
    simulated(SimConfig::default().with_total(Bytes::mib(mib)).with_mapping(false))
}

pub(crate) fn pool(upstream: Subject, packing: Packing) -> Subject {
    let config = MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_packing(packing);
    upstream.under(|upstream| Pool::new(upstream, config).unwrap())
}

/// A pool whose share of the device is no multiple of anything.
pub(crate) fn odd_pool(upstream: Subject) -> Subject {
    let config = MemoryConfig::new().with_gpu_memory_fraction(0.777).with_min_free_bytes(1_000_001);
    upstream.under(|upstream| Pool::new(upstream, config).unwrap())
}

/// Whether the machine has a device of a kind. Where it has none, the test says so and
/// ends, unless `PLIMSOLL_REQUIRE` names the kind.
pub(crate) fn is_here(kind: BackendKind) -> bool {
    let Err(error) = count(kind) else { return true };
    let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == kind.name()), "required: {error}");
    println!("skipped: {error}");
    false
}

pub(crate) fn opencl(mib: u64) -> Subject {
    let device = OpenCl::with_total(0, Bytes::mib(mib)).unwrap();
    let largest = device.largest_buffer();
    Subject { memory: Arc::new(device), largest, sim: None }
}

/// A part of the first device, as the system's driver has it.
pub(crate) fn cuda(mib: u64) -> Subject {
    // Making a context takes longer than a promise: one is kept for all of them.
    static KEPT: OnceLock<Cuda> = OnceLock::new();
    KEPT.get_or_init(|| Cuda::open(0).unwrap());
    of_cuda(CudaOptions::new(0), mib)
}

pub(crate) fn cuda_without_mapping(mib: u64) -> Subject {
    of_cuda(CudaOptions::new(0).mapping(false), mib)
}

/// The same on a pretend driver.
pub(crate) fn fake_cuda(mib: u64) -> Subject {
    of_cuda(CudaOptions::new(0).library(crate::fake::cuda(&[])), mib)
}

pub(crate) fn fake_cuda_without_mapping(mib: u64) -> Subject {
    of_cuda(CudaOptions::new(0).library(crate::fake::cuda(&[])).mapping(false), mib)
}

fn of_cuda(options: CudaOptions, mib: u64) -> Subject {
    let device = Cuda::open_with(&options.total(Bytes::mib(mib))).unwrap();
    Subject { largest: device.capacity(), memory: Arc::new(device), sim: None }
}

/// A part of the first of AMD's devices.
pub(crate) fn rocm(mib: u64) -> Subject {
    of_rocm(RocmOptions::new(0), mib)
}

/// The same on a pretend library.
pub(crate) fn fake_rocm(mib: u64) -> Subject {
    of_rocm(RocmOptions::new(0).library(crate::fake::hip(&[])), mib)
}

fn of_rocm(options: RocmOptions, mib: u64) -> Subject {
    let device = Rocm::open_with(&options.total(Bytes::mib(mib))).unwrap();
    Subject { largest: device.capacity(), memory: Arc::new(device), sim: None }
}

/// A part of the first of Apple's devices.
#[cfg(target_os = "macos")]
pub(crate) fn metal(mib: u64) -> Subject {
    let device = plimsoll_memory::backend::metal::Metal::with_total(0, Bytes::mib(mib)).unwrap();
    Subject { largest: device.capacity(), memory: Arc::new(device), sim: None }
}
