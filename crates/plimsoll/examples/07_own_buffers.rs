//! Lesson 7: a pool for buffers of your own.
//!
//! An engine with a buffer type of its own needs no blocks, only somewhere to put a buffer
//! until the next request of about that size. The pool never makes one and never looks
//! into one: it keeps, counts and hands out.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use plimsoll::{Bytes, GenericMemoryPool, GpuMemoryPool, MemoryConfig, Result};

/// Whatever you have: a `wgpu::Buffer`, a pinned page, a texture.
struct Texture {
    pixels: Vec<u8>,
}

/// The one function that an engine writes around the pool.
fn texture(pool: &GenericMemoryPool<Texture>, bytes: u64) -> (Texture, u64) {
    pool.try_get(bytes).unwrap_or_else(|| {
        // Rounded up to its bucket, it serves every later request of the bucket.
        let size = bytes.next_power_of_two();
        pool.record_allocation(size);
        (Texture { pixels: vec![0; size as usize] }, size)
    })
}

fn main() -> Result<()> {
    let config = MemoryConfig::new().with_max_pooled_per_bucket(2);
    let pool = GenericMemoryPool::new(config).on_device("vulkan", Bytes::gib(1));

    // Frames of slightly different sizes, two in flight at any time.
    let mut before = None;
    for frame in 0u64..100 {
        let (mut now, size) = texture(&pool, 900_000 + frame * 1000);
        now.pixels[0] = frame as u8;
        if let Some((texture, size)) = before.replace((now, size)) {
            // Returned with the size that it came with.
            pool.return_buffer(texture, size);
        }
    }
    let stats = pool.stats();
    let hit_rate = stats.hit_rate().unwrap_or(0.0);
    println!("hit rate {:.1} %, {} made", hit_rate * 100.0, stats.pool_misses);
    assert!(hit_rate > 0.9);

    // The same trait as every other pool, for those who watch and clean up.
    let watched: &dyn GpuMemoryPool = &pool;
    let unknown = || "unknown".to_string();
    println!(
        "{}: {} in use, {} pooled, pressure {}",
        watched.backend_name(),
        watched.stats().in_use_bytes,
        watched.stats().pooled_bytes,
        watched.pressure().map_or_else(unknown, |pressure| pressure.to_string()),
    );
    println!("shrunk by {}", watched.shrink()?);
    Ok(())
}
