//! Every name of the library's public interface, used by its `plimsoll::` path.
//!
//! Whoever renames or moves one of these breaks programs of users: then this file does not
//! compile.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::backend::sim::{Sim, SimConfig};
use plimsoll::{Bytes, Request, Stream};

fn sim() -> Arc<Sim> {
    Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(8))))
}

#[test]
fn configuration_and_statistics() {
    for config in [
        plimsoll::MemoryConfig::default(),
        plimsoll::MemoryConfig::for_inference(),
        plimsoll::MemoryConfig::for_training(),
        plimsoll::MemoryConfig::for_constrained(),
    ] {
        assert!(config.budget(Bytes::gib(8)).is_ok());
    }
    let config = plimsoll::MemoryConfig::new()
        .with_gpu_memory_fraction(0.5)
        .with_cpu_fallback(true)
        .with_min_free_bytes(0)
        .with_tracking(false)
        .with_max_pooled_per_bucket(4)
        .with_limit(Bytes::gib(1));
    assert_eq!(config.budget(Bytes::gib(8)).unwrap(), Bytes::gib(1));
    let plimsoll::MemoryStats {
        total_allocated_bytes: _,
        in_use_bytes: _,
        pooled_bytes: _,
        peak_bytes: _,
        pool_hits: _,
        pool_misses: _,
        cpu_fallbacks: _,
        active_buffers: _,
        ..
    } = plimsoll::MemoryStats::default();
    assert_eq!(plimsoll::MemoryStats::default().hit_rate(), None);
    assert!(plimsoll::MemoryPressure::Low < plimsoll::MemoryPressure::Critical);
}

#[test]
fn pools_and_their_manager() {
    use plimsoll::GpuMemoryPool;
    let pool = plimsoll::Pool::new(sim(), plimsoll::MemoryConfig::new()).unwrap();
    let watched: &dyn GpuMemoryPool = &pool;
    let _ = (watched.backend_name(), watched.stats(), watched.pressure());
    let _ = (watched.total_memory(), watched.free_memory());
    watched.clear_pool().unwrap();
    watched.shrink().unwrap();

    let buffers: plimsoll::GenericMemoryPool<Vec<u8>> =
        plimsoll::GenericMemoryPool::new(plimsoll::MemoryConfig::new());
    buffers.record_allocation(64);
    buffers.return_buffer(vec![0; 64], 64);
    assert!(buffers.try_get(64).is_some());
    assert_eq!(buffers.stats().pool_hits, 1);

    let manager = plimsoll::GpuMemoryManager::new(plimsoll::MemoryConfig::new()).unwrap();
    manager.add_device(sim());
    let _ = (manager.config(), manager.stats(), manager.pressure());
    let limit = plimsoll::LimitRequest::new().with_limit(Bytes::gib(2)).with_unified(false);
    let report: plimsoll::LimitReport = manager.apply_limits(&limit).unwrap();
    let _: (plimsoll::LimitType, bool) = (report.limit_type, report.verified);
    assert!(!report.methods_applied.is_empty());
    assert!(manager.get_tensorrt_workspace_size() <= Bytes::gib(1));
    let _ = manager.get_current_gpu_memory_usage();
    let _ = manager.validate_memory_within_limit();
}

#[test]
fn devices_streams_and_captures() {
    let _ = (plimsoll::backend::cuda::Cuda::open, plimsoll::backend::rocm::Rocm::open);
    let _ = (plimsoll::backend::metal::open, plimsoll::backend::opencl::OpenCl::open);
    let host = plimsoll::backend::host::Host::with_total(Bytes::mib(1));
    let device: &dyn plimsoll::Device = &host;
    assert_eq!(device.info().backend, "cpu");
    let pool = Arc::new(plimsoll::Pool::new(sim(), plimsoll::MemoryConfig::new()).unwrap());
    let capture: plimsoll::Capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(2)).unwrap();
    let graph: plimsoll::GraphMemory = capture.end();
    assert!(graph.held() >= Bytes::mib(2));
    let chosen = plimsoll::select_backend_for_model(Bytes(1));
    let _: plimsoll::Result<(plimsoll::BackendKind, u32)> = chosen;
}

#[test]
fn tracking_and_fallback() {
    let location = plimsoll::BufferLocation::Cpu;
    let id = plimsoll::BufferId::new();
    let buffer = plimsoll::BufferMetadata::new(id, 64, 16, location).with_tag("weights");
    let tracker = plimsoll::AllocationTracker::new().with_backtraces(true);
    tracker.track(buffer);
    assert_eq!((tracker.count(), tracker.total_bytes()), (1, Bytes(64)));
    assert!(tracker.find_old_allocations(Duration::from_secs(3600)).is_empty());

    let counter = plimsoll::FallbackCounter::new();
    let full: plimsoll::FallbackBuffer<plimsoll::MemoryBuffer> =
        plimsoll::FallbackBuffer::allocate(
            16,
            || {
                Err(plimsoll::Error::OutOfMemory {
                    memory: "sim".to_string(),
                    requested: Bytes(16),
                    available: Bytes::ZERO,
                })
            },
            &counter,
        )
        .unwrap();
    drop(full);
    assert_eq!(counter.get(), 1);
}

#[test]
fn profiles_and_reports() {
    use plimsoll::Memory;
    let memory = plimsoll::MemoryProfiler::new(sim());
    let block = memory.allocate(Request::new(Bytes::mib(1))).unwrap();
    let picture: plimsoll::MemorySnapshot = memory.capture("one");
    let _ = (picture.allocated, picture.reserved, picture.free, picture.total);
    assert!(picture.utilisation().is_some());
    assert!(plimsoll::MemoryProfiler::print_summary(&[picture]).contains("one"));
    memory.release(block, Stream::DEFAULT).unwrap();
    memory.reset_peak_memory();
    assert_eq!(memory.get_peak_memory(), Bytes::ZERO);
    let _ = plimsoll::generate_memory_report;
    assert_eq!(plimsoll::format_bytes(1024_u64), "1.00 KiB");
    assert!(plimsoll::get_free_memory(&*sim()).is_ok());
}

#[test]
fn estimates_and_chunks() {
    let _ = plimsoll::estimate_inference_memory;
    let size = |estimate: &plimsoll::InferenceMemoryEstimate| {
        (estimate.total_gb(), estimate.model_mb(), estimate.kv_cache_mb(), estimate.activation_mb())
    };
    let _ = size;
    let chunks: plimsoll::ChunkingConfig =
        plimsoll::calculate_chunking(64, Bytes::mib(1), Bytes::mib(16), 1.0).unwrap();
    let plimsoll::ChunkingConfig {
        num_chunks, chunk_size, last_chunk_size, memory_per_chunk, ..
    } = chunks;
    assert_eq!((num_chunks, chunk_size, last_chunk_size), (4, 16, 16));
    assert_eq!(memory_per_chunk, Bytes::mib(16));
    assert!(chunks.to_string().starts_with("4 chunks of 16 items"));
    assert!(plimsoll::auto_chunk(64, Bytes::mib(1), Bytes::mib(32)).is_ok());
    assert!(plimsoll::will_oom(Bytes::gib(8), Bytes::gib(8)));
    let _ = plimsoll::AdaptiveRunner::new(16);
    assert!((plimsoll::SAFETY_MARGIN - 0.7).abs() < 1e-9);
}

#[test]
fn platforms() {
    let _: Option<bool> = plimsoll::is_unified();
    let plimsoll::MemoryInfo {
        is_unified: _,
        gpu_alloc: _,
        gpu_reserved: _,
        system_total: _,
        system_used: _,
        system_available: _,
        note: _,
        ..
    } = plimsoll::memory_info();
}
