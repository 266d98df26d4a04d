//! How much of a device may be used, and how.
//!
//! One struct serves every layer. The builder never fails, so that configurations
//! read as sentences; [`MemoryConfig::validate`] checks the whole of it where it is put
//! to use, and names the field and its range.

use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// What a pool does when it could either ask the device for memory or move what it has.
///
/// Mapping physical memory costs about the same for a handle of any size (50 µs on a
/// data-centre GPU), so the size of handles decides between speed and thrift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// The default: large handles, memory that is already mapped is preferred, an arena
    /// for each stream. Low mean cost an event, mapping included.
    #[default]
    Quick,
    /// The smallest pages that the device has and the tightest place in one address
    /// range, even if pages must be moved there. Holds least, costs most.
    Tight,
}

/// How much of a device may be used, and how.
///
/// ```
/// use plimsoll_memory::{Bytes, MemoryConfig};
/// let config = MemoryConfig::new()
///     .with_gpu_memory_fraction(0.8)          // use 80 % of the device
///     .with_cpu_fallback(true)                // go to the CPU when it is full
///     .with_min_free_bytes(1024 * 1024 * 1024) // leave 1 GiB for others
///     .with_tracking(true);                   // keep a list of what is live
/// assert_eq!(config.budget(Bytes::gib(10))?, Bytes::gib(8));
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// Share of the device's memory that may be used; 0.9 by default.
    pub gpu_memory_fraction: f64,
    /// Whether a full device sends work to the CPU; on by default.
    pub cpu_fallback_enabled: bool,
    /// What must stay free on the device; 512 MiB by default. While far more is free, a pool
    /// asks the device about it every 10 ms at most.
    pub min_free_bytes: Bytes,
    /// Whether live allocations are listed; in debug builds by default.
    pub track_allocations: bool,
    /// The most buffers that a size bucket of a [`GenericMemoryPool`] keeps; 8 by default.
    ///
    /// [`GenericMemoryPool`]: crate::GenericMemoryPool
    pub max_pooled_per_bucket: usize,
    /// The limit, in bytes; none by default.
    pub limit: Option<Bytes>,
    /// Speed or thrift; see [`Packing`].
    pub packing: Packing,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            gpu_memory_fraction: 0.9,
            cpu_fallback_enabled: true,
            min_free_bytes: Bytes::mib(512),
            track_allocations: cfg!(debug_assertions),
            max_pooled_per_bucket: 8,
            limit: None,
            packing: Packing::Quick,
        }
    }
}

impl MemoryConfig {
    /// The default configuration, to be changed by the `with_` functions.
    #[must_use]
    pub fn new() -> Self {
        MemoryConfig::default()
    }

    /// For a process that has the device to itself and only infers: 0.95 of it.
    #[must_use]
    pub fn for_inference() -> Self {
        MemoryConfig::new().with_gpu_memory_fraction(0.95)
    }

    /// For training, whose peaks move: 0.8 of it.
    #[must_use]
    pub fn for_training() -> Self {
        MemoryConfig::new().with_gpu_memory_fraction(0.8)
    }

    /// For boards and shared machines: 0.7 of it.
    #[must_use]
    pub fn for_constrained() -> Self {
        MemoryConfig::new().with_gpu_memory_fraction(0.7)
    }

    /// Sets the share of the device that may be used.
    #[must_use]
    pub fn with_gpu_memory_fraction(mut self, fraction: f64) -> Self {
        self.gpu_memory_fraction = fraction;
        self
    }

    /// Sets whether a full device sends work to the CPU.
    #[must_use]
    pub fn with_cpu_fallback(mut self, enabled: bool) -> Self {
        self.cpu_fallback_enabled = enabled;
        self
    }

    /// Sets what must stay free on the device.
    #[must_use]
    pub fn with_min_free_bytes(mut self, bytes: u64) -> Self {
        self.min_free_bytes = Bytes(bytes);
        self
    }

    /// Sets whether live allocations are listed.
    #[must_use]
    pub fn with_tracking(mut self, enabled: bool) -> Self {
        self.track_allocations = enabled;
        self
    }

    /// Sets the most buffers that a size bucket keeps.
    #[must_use]
    pub fn with_max_pooled_per_bucket(mut self, buffers: usize) -> Self {
        self.max_pooled_per_bucket = buffers;
        self
    }

    /// Sets the limit: never hold more than this, whatever the device has.
    #[must_use]
    pub fn with_limit(mut self, limit: impl Into<Bytes>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// Sets the choice between speed and thrift.
    #[must_use]
    pub fn with_packing(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// Checks every value; the error names the field and its range.
    pub fn validate(&self) -> Result<()> {
        let fraction = self.gpu_memory_fraction;
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(Error::Config {
                field: "gpu_memory_fraction",
                value: fraction.to_string(),
                range: "greater than 0 and at most 1",
            });
        }
        if self.limit == Some(Bytes::ZERO) {
            return Err(Error::Config {
                field: "limit",
                value: "0 B".to_string(),
                range: "at least one byte; leave it out for no limit",
            });
        }
        Ok(())
    }

    /// What may be held on a device of this size: the least of the fraction of it, what
    /// is left above `min_free_bytes`, and the limit.
    pub fn budget(&self, total: Bytes) -> Result<Bytes> {
        self.validate()?;
        let line = self.limit.unwrap_or(Bytes::MAX);
        let share = total.fraction(self.gpu_memory_fraction).min(total);
        Ok(share.min(total.saturating_sub(self.min_free_bytes)).min(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_least_of_three() {
        let total = Bytes::gib(10);
        let plain = MemoryConfig::new().with_min_free_bytes(0);
        assert_eq!(plain.clone().budget(total), Ok(Bytes::gib(9)));
        assert_eq!(plain.clone().with_limit(Bytes::gib(2)).budget(total), Ok(Bytes::gib(2)));
        assert_eq!(plain.with_min_free_bytes(4 << 30).budget(total), Ok(Bytes::gib(6)));
        assert_eq!(MemoryConfig::new().budget(Bytes::mib(100)), Ok(Bytes::ZERO));
    }

    #[test]
    fn presets_are_as_documented() {
        let share = |config: MemoryConfig| config.gpu_memory_fraction;
        assert_eq!(share(MemoryConfig::default()), 0.9);
        assert_eq!(share(MemoryConfig::for_inference()), 0.95);
        assert_eq!(share(MemoryConfig::for_training()), 0.8);
        assert_eq!(share(MemoryConfig::for_constrained()), 0.7);
        assert_eq!(MemoryConfig::default().max_pooled_per_bucket, 8);
        assert_eq!(MemoryConfig::default().min_free_bytes, Bytes::mib(512));
    }

    #[test]
    fn values_out_of_range_name_the_field_and_the_range() {
        for bad in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
            let config = MemoryConfig::new().with_gpu_memory_fraction(bad);
            let text = config.budget(Bytes::gib(1)).unwrap_err().to_string();
            assert!(text.contains("gpu_memory_fraction") && text.contains("at most 1"), "{text}");
        }
        let text = MemoryConfig::new().with_limit(0u64).validate().unwrap_err().to_string();
        assert!(text.contains("limit"), "{text}");
    }
}
