//! A pool for buffers of the author's own type.
//!
//! [`Pool`](crate::Pool) cuts blocks from a device's memory. An engine that has buffers
//! of its own (a `wgpu::Buffer`, a `Vec<f32>`, a pinned page) needs less: somewhere to
//! put them until the next request of about that size. [`GenericMemoryPool`] is that and
//! no more. It never makes a buffer and never looks into one.
//!
//! # Which buffer a request gets
//!
//! Sizes share a bucket if they round up to the same power of two. A request looks in its
//! own bucket only, and there takes the smallest buffer that holds it: never one that is
//! too small, never one of twice its size or more. A bucket keeps at most
//! [`MemoryConfig::max_pooled_per_bucket`] buffers; what comes back beyond that is dropped.
//!
//! # Sizes are taken at their word
//!
//! The pool cannot measure a `B`, so a buffer must be returned with the size that it was
//! recorded or handed out with. A buffer that was never recorded is *adopted*: in use
//! goes down by no more than there is, and the total goes up by the rest. So a pool can be
//! filled beforehand, and whatever the caller does, `total = in use + pooled`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::MemoryConfig;
use crate::pool_trait::GpuMemoryPool;
use crate::pressure::MemoryPressure;
use crate::stats::{Counters, MemoryStats, StatFigures};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// A pool for buffers of the author's own type.
///
/// ```
/// use plimsoll_memory::{GenericMemoryPool, MemoryConfig};
///
/// // Create a pool for any backend
/// let config = MemoryConfig::for_inference();
/// let pool: GenericMemoryPool<Vec<u8>> = GenericMemoryPool::new(config);
///
/// // Try to get from the pool
/// let (buffer, size) = match pool.try_get(512 * 1024) {
///     Some(reused) => reused,
///     None => {
///         // Need to allocate a new one: record it
///         pool.record_allocation(512 * 1024);
///         (vec![0; 512 * 1024], 512 * 1024)
///     }
/// };
///
/// // Return to the pool
/// pool.return_buffer(buffer, size);
/// assert!(pool.try_get(300 * 1024).is_some(), "300 KiB and 512 KiB share a bucket");
///
/// let stats = pool.stats();
/// assert_eq!(stats.hit_rate(), Some(0.5));
/// ```
pub struct GenericMemoryPool<B> {
    config: MemoryConfig,
    device: Option<(&'static str, Bytes)>,
    shelf: Mutex<BufferShelf<B>>,
    counters: Counters,
    peak: AtomicU64,
}

struct BufferShelf<B> {
    /// Pooled buffers by their exact size; the last returned is the first out.
    by_size: BTreeMap<u64, Vec<B>>,
    /// How many there are in each bucket.
    in_bucket: [usize; 65],
    pooled: u64,
    in_use: u64,
    hits: u64,
    misses: u64,
    buffers: u64,
}

/// The exponent of the power of two that a size rounds up to.
fn bucket(bytes: u64) -> usize {
    (u64::BITS - bytes.saturating_sub(1).leading_zeros()) as usize
}

/// The largest size of a bucket.
fn top(bucket: usize) -> u64 {
    1u64.checked_shl(bucket as u32).unwrap_or(u64::MAX)
}

impl<B> GenericMemoryPool<B> {
    /// An empty pool.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        let shelf = BufferShelf {
            by_size: BTreeMap::new(),
            in_bucket: [0; 65],
            pooled: 0,
            in_use: 0,
            hits: 0,
            misses: 0,
            buffers: 0,
        };
        GenericMemoryPool {
            config,
            device: None,
            shelf: Mutex::new(shelf),
            counters: Counters::default(),
            peak: AtomicU64::new(0),
        }
    }

    /// Says which device the buffers are on, so that the pool has a total and a pressure.
    ///
    /// ```
    /// use plimsoll_memory::{Bytes, GenericMemoryPool, GpuMemoryPool, MemoryConfig, MemoryPressure};
    /// let config = MemoryConfig::new().with_limit(Bytes::gib(2));
    /// let pool: GenericMemoryPool<Vec<u8>> =
    ///     GenericMemoryPool::new(config).on_device("vulkan", Bytes::gib(8));
    /// pool.record_allocation(Bytes::mib(1700).get());
    /// assert_eq!(pool.pressure(), Some(MemoryPressure::High));
    /// ```
    #[must_use]
    pub fn on_device(mut self, backend: &'static str, total: Bytes) -> Self {
        self.device = Some((backend, total));
        self
    }

    /// Counts a buffer that the caller has made: it is in use from now on.
    pub fn record_allocation(&self, bytes: u64) {
        let mut shelf = self.shelf();
        shelf.in_use = shelf.in_use.saturating_add(bytes);
        shelf.buffers += 1;
        self.publish(&shelf);
    }

    /// A pooled buffer of the request's bucket that holds this many bytes, with its size.
    /// Without one it is a miss: make a buffer and record it.
    #[must_use]
    pub fn try_get(&self, bytes: u64) -> Option<(B, u64)> {
        let mut guard = self.shelf();
        let shelf = &mut *guard;
        let found = shelf.take(bytes);
        match &found {
            Some((_, size)) => {
                shelf.in_use = shelf.in_use.saturating_add(*size);
                shelf.buffers += 1;
                shelf.hits += 1;
            }
            None => shelf.misses += 1,
        }
        self.publish(shelf);
        found
    }

    /// Takes a buffer back, with the size that it was recorded or handed out with. It is
    /// kept if its bucket has room, and dropped if not.
    pub fn return_buffer(&self, buffer: B, size: u64) {
        let mut guard = self.shelf();
        let shelf = &mut *guard;
        shelf.in_use -= size.min(shelf.in_use);
        shelf.buffers = shelf.buffers.saturating_sub(1);
        let full = shelf.in_bucket[bucket(size)] >= self.config.max_pooled_per_bucket;
        let rejected = if full { Some(buffer) } else { shelf.put(buffer, size) };
        self.publish(shelf);
        drop(guard);
        // Outside the lock: a buffer's own drop may well return others to this pool.
        drop(rejected);
    }

    /// What it holds and has handed out. A buffer is counted with all of its bytes,
    /// asked for or not. No lock is taken, and the picture is consistent.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let figures = self.counters.snapshot();
        // Read after the figures, and raised before they are published: never below them.
        figures.stats(Bytes(self.peak.load(Ordering::Acquire)))
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &MemoryConfig {
        &self.config
    }

    /// Drops every pooled buffer; returns how many bytes they were.
    pub fn clear(&self) -> Bytes {
        let mut shelf = self.shelf();
        let dropped = std::mem::take(&mut shelf.by_size);
        shelf.in_bucket = [0; 65];
        let bytes = std::mem::take(&mut shelf.pooled);
        self.publish(&shelf);
        drop(shelf);
        drop(dropped);
        Bytes(bytes)
    }

    fn shelf(&self) -> MutexGuard<'_, BufferShelf<B>> {
        // Nothing in here panics between two changes that belong together.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, shelf: &BufferShelf<B>) {
        let held = shelf.in_use.saturating_add(shelf.pooled);
        self.peak.fetch_max(held, Ordering::Release);
        self.counters.publish(&StatFigures {
            held,
            live: shelf.in_use,
            taken: shelf.in_use,
            hits: shelf.hits,
            misses: shelf.misses,
            blocks: shelf.buffers,
        });
    }

    fn budget(&self) -> Option<Bytes> {
        match self.device {
            Some((_, total)) => self.config.budget(total).ok(),
            None => self.config.limit,
        }
    }
}

impl<B> BufferShelf<B> {
    fn take(&mut self, bytes: u64) -> Option<(B, u64)> {
        let bucket = bucket(bytes);
        // An empty list is taken out at once, so the first entry has a buffer.
        let mut entry = self.by_size.range_mut(bytes..=top(bucket));
        let (&size, buffers) = entry.next()?;
        let buffer = buffers.pop()?;
        if buffers.is_empty() {
            self.by_size.remove(&size);
        }
        self.in_bucket[bucket] -= 1;
        self.pooled -= size;
        Some((buffer, size))
    }

    /// Keeps a buffer; gives it back if the sum of sizes could not be counted any more.
    fn put(&mut self, buffer: B, size: u64) -> Option<B> {
        let Some(pooled) = self.pooled.checked_add(size) else { return Some(buffer) };
        self.pooled = pooled;
        self.in_bucket[bucket(size)] += 1;
        self.by_size.entry(size).or_default().push(buffer);
        None
    }
}

impl<B: Send> GpuMemoryPool for GenericMemoryPool<B> {
    fn backend_name(&self) -> &str {
        self.device.map_or("generic", |(backend, _)| backend)
    }

    fn stats(&self) -> MemoryStats {
        GenericMemoryPool::stats(self)
    }

    fn total_memory(&self) -> Option<Bytes> {
        self.device.map(|(_, total)| total)
    }

    /// Always unknown: the pool cannot see what others hold.
    fn free_memory(&self) -> Option<Bytes> {
        None
    }

    fn pressure(&self) -> Option<MemoryPressure> {
        Some(MemoryPressure::of(GenericMemoryPool::stats(self).in_use_bytes, self.budget()?))
    }

    fn shrink(&self) -> Result<Bytes> {
        Ok(self.clear())
    }
}

impl<B> fmt::Debug for GenericMemoryPool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenericMemoryPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
