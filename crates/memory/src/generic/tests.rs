//! The promises of the pool for one's own buffers.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn pool() -> GenericMemoryPool<u64> {
    GenericMemoryPool::new(MemoryConfig::new())
}

#[test]
fn a_request_gets_the_smallest_that_holds_it_from_its_own_bucket() {
    let pool = pool();
    for size in [600, 1024, 700, 2048, 512] {
        pool.record_allocation(size);
        pool.return_buffer(size, size);
    }
    assert_eq!(pool.try_get(650), Some((700, 700)));
    assert_eq!(pool.try_get(650), Some((1024, 1024)));
    assert_eq!(pool.try_get(650), None, "600 is too small, 2048 is another bucket");
    assert_eq!(pool.try_get(513), Some((600, 600)));
    assert_eq!(pool.try_get(257), Some((512, 512)));
    assert_eq!(pool.try_get(1025), Some((2048, 2048)));
    assert_eq!(pool.stats().pooled_bytes, Bytes::ZERO);
    assert_eq!((pool.stats().pool_hits, pool.stats().pool_misses), (5, 1));
}

#[test]
fn a_bucket_keeps_so_many_and_drops_the_rest() {
    let config = MemoryConfig::new().with_max_pooled_per_bucket(2);
    let pool = GenericMemoryPool::new(config);
    let token = Arc::new(());
    for _ in 0..3 {
        pool.record_allocation(100);
    }
    for _ in 0..3 {
        pool.return_buffer(Arc::clone(&token), 100);
    }
    assert_eq!(Arc::strong_count(&token), 3, "two are kept");
    let stats = pool.stats();
    assert_eq!((stats.total_allocated_bytes, stats.pooled_bytes), (Bytes(200), Bytes(200)));
    assert_eq!((stats.peak_bytes, stats.active_buffers), (Bytes(300), 0));
    assert_eq!(GpuMemoryPool::shrink(&pool), Ok(Bytes(200)));
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn what_was_never_recorded_is_adopted() {
    let pool = pool();
    pool.return_buffer(7, 4096);
    let stats = pool.stats();
    assert_eq!((stats.total_allocated_bytes, stats.in_use_bytes), (Bytes(4096), Bytes::ZERO));
    assert_eq!((stats.pooled_bytes, stats.active_buffers), (Bytes(4096), 0));
    assert_eq!(pool.try_get(4096), Some((7, 4096)));
    assert_eq!(pool.stats().in_use_bytes, Bytes(4096));
}

#[test]
fn the_ends_of_the_range_are_buckets_too() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(bucket), [0, 0, 1, 2, 2, 3]);
    assert_eq!((bucket(u64::MAX), bucket(1 << 63), top(64), top(0)), (64, 63, u64::MAX, 1));
    let pool = pool();
    pool.return_buffer(0, 0);
    pool.return_buffer(1, u64::MAX);
    pool.return_buffer(2, u64::MAX);
    pool.record_allocation(u64::MAX);
    assert_eq!(pool.stats().total_allocated_bytes, Bytes::MAX);
    assert_eq!(pool.try_get(0), Some((0, 0)));
    assert_eq!(pool.try_get((1 << 63) + 1), Some((1, u64::MAX)));
}

#[test]
fn a_buffer_may_use_the_pool_while_it_is_dropped() {
    struct Nested(Arc<GenericMemoryPool<Nested>>, u32);
    impl Drop for Nested {
        fn drop(&mut self) {
            if self.1 > 0 {
                self.0.return_buffer(Nested(Arc::clone(&self.0), self.1 - 1), 8);
            }
        }
    }
    let config = MemoryConfig::new().with_max_pooled_per_bucket(0);
    let pool = Arc::new(GenericMemoryPool::new(config));
    pool.return_buffer(Nested(Arc::clone(&pool), 3), 8);
    assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn without_a_device_or_a_limit_the_pressure_is_unknown() {
    assert_eq!(pool().pressure(), None);
    assert_eq!(pool().total_memory(), None);
    assert_eq!(pool().backend_name(), "generic");
    let limited = GenericMemoryPool::<u8>::new(MemoryConfig::new().with_limit(100u64));
    limited.record_allocation(95);
    assert_eq!(limited.pressure(), Some(MemoryPressure::Critical));
}

proptest! {
    #[test]
    fn the_figures_add_up_whatever_is_done(
        steps in prop::collection::vec((0u8..3, prop_oneof![0u64..5000, Just(u64::MAX)]), 0..80),
    ) {
        let pool = pool();
        for (what, size) in steps {
            match what {
                0 => pool.record_allocation(size),
                1 => pool.return_buffer(size, size),
                _ => {
                    if let Some((buffer, got)) = pool.try_get(size) {
                        prop_assert_eq!(buffer, got);
                        prop_assert!(got >= size && bucket(got) == bucket(size));
                    }
                }
            }
            let stats = pool.stats();
            let sum = stats.in_use_bytes.saturating_add(stats.pooled_bytes);
            prop_assert_eq!(sum, stats.total_allocated_bytes);
            prop_assert!(stats.peak_bytes >= stats.total_allocated_bytes);
        }
    }
}
