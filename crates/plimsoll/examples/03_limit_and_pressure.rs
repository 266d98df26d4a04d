//! Lesson 3: a line, and how close to it you are.
//!
//! The budget is the least of three: a share of the device, what must stay free for
//! others, and a limit in bytes. Pressure is the share of the budget that is in use, as a
//! level to act on. A manager does both for all devices, and says what a limit is worth.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use plimsoll::backend::{BackendKind, open};
use plimsoll::{
    Bytes, GpuMemoryManager, LimitRequest, LimitType, Memory, MemoryConfig, MemoryPressure,
    MemoryProfiler, Pool, Request, Result, Stream, generate_memory_report,
};

fn main() -> Result<()> {
    // An 8 GiB device of which this program may have 4.
    let config = MemoryConfig::new().with_limit(Bytes::gib(4));
    let pool = Pool::new(open(BackendKind::Sim)?, config)?;
    let memory = MemoryProfiler::new(std::sync::Arc::new(pool));

    let mut blocks = Vec::new();
    while memory.pressure() < MemoryPressure::High {
        blocks.push(memory.allocate(Request::new(Bytes::mib(256)))?);
        println!("{} live: pressure {}", memory.stats().in_use_bytes, memory.pressure());
    }
    // High is the time to act: skip the cache, halve the batch, return what is old.
    let before = memory.capture("before");
    for block in blocks.drain(..8) {
        memory.release(block, Stream::DEFAULT)?;
    }
    memory.trim()?;
    let after = memory.capture("after");
    println!("\n{}", MemoryProfiler::print_summary(&[before, after]));
    println!("{}", generate_memory_report(&memory));

    // A manager takes devices over, draws the line on all of them, and tries it.
    let manager = GpuMemoryManager::new(MemoryConfig::for_inference())?;
    let sim = manager.add_device(open(BackendKind::Sim)?);
    let report = manager.apply_limits(&LimitRequest::new().with_limit(Bytes::gib(2)))?;
    println!("{report}");
    // Nobody else can reach the simulated device. On the host this would be soft.
    assert_eq!((report.limit_type, report.verified), (LimitType::Hard, true));

    // Past the line the device is not even asked.
    let pool = manager.pool(&sim)?;
    assert!(pool.allocate(Request::new(Bytes::gib(3))).is_err());
    assert!(pool.device().allocate(Request::new(Bytes::gib(3))).is_err());
    assert_eq!(manager.get_current_gpu_memory_usage(), Some(Bytes::ZERO));
    assert_eq!(manager.validate_memory_within_limit().within_limit, Some(true));
    println!("TensorRT may build with {}", manager.get_tensorrt_workspace_size());
    Ok(())
}
