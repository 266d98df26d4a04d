//! From what items take and what is available to a number of chunks.

use super::{ChunkingConfig, SAFETY_MARGIN, usable};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// What is to be cut, and into what it must fit.
///
/// ```
/// use plimsoll_memory::{Bytes, ChunkPlan};
/// // A model of 3 GiB stays loaded beside every chunk.
/// let plan = ChunkPlan::new(1000, Bytes::mib(64), Bytes::gib(8)).with_fixed(Bytes::gib(3));
/// let config = plan.config()?;
/// assert_eq!(config.chunk_size, 41);
/// assert_eq!(config.memory_per_chunk, Bytes::gib(3) + Bytes::mib(64) * 41);
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChunkPlan {
    /// Items in all.
    pub items: u64,
    /// What each item takes: inputs, outputs and what is needed between.
    pub bytes_per_item: Bytes,
    /// What a chunk takes whatever its size: a model, a context, a table.
    pub fixed_bytes: Bytes,
    /// What can be had.
    pub available: Bytes,
    /// The share of it to use, above 0 and at most 1.
    pub safety: f64,
}

impl ChunkPlan {
    /// This many items of this many bytes into what is available, with the safety margin.
    #[must_use]
    pub fn new(items: u64, bytes_per_item: Bytes, available: Bytes) -> Self {
        let fixed_bytes = Bytes::ZERO;
        ChunkPlan { items, bytes_per_item, fixed_bytes, available, safety: SAFETY_MARGIN }
    }

    /// The same with what a chunk takes whatever its size.
    #[must_use]
    pub fn with_fixed(self, fixed_bytes: Bytes) -> Self {
        ChunkPlan { fixed_bytes, ..self }
    }

    /// The same with another share of what is available.
    #[must_use]
    pub fn with_safety(self, safety: f64) -> Self {
        ChunkPlan { safety, ..self }
    }

    /// The largest chunks that fit.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where `safety` is out of its range, [`Error::NeverFits`] where not even
    /// one item fits beside what a chunk takes anyway.
    pub fn config(&self) -> Result<ChunkingConfig> {
        if !(self.safety > 0.0 && self.safety <= 1.0) {
            return Err(Error::Config {
                field: "safety",
                value: self.safety.to_string(),
                range: "above 0 and at most 1, a share of what is available",
            });
        }
        if self.items == 0 {
            return Ok(ChunkingConfig::default());
        }
        let chunk_size = self.most_items()?.min(self.items);
        let num_chunks = self.items.div_ceil(chunk_size);
        Ok(ChunkingConfig {
            num_chunks,
            chunk_size,
            last_chunk_size: self.items - (num_chunks - 1) * chunk_size,
            memory_per_chunk: self
                .bytes_per_item
                .saturating_mul(chunk_size)
                .saturating_add(self.fixed_bytes),
        })
    }

    /// The most items that fit at once: at least one.
    fn most_items(&self) -> Result<u64> {
        let budget = usable(self.available, self.safety);
        let one = self.fixed_bytes.saturating_add(self.bytes_per_item);
        if one > budget {
            return Err(Error::NeverFits {
                memory: format!(
                    "{} % of the {} available",
                    (self.safety * 100.0).round(),
                    self.available
                ),
                requested: one,
                capacity: budget,
            });
        }
        let room = budget.saturating_sub(self.fixed_bytes).get();
        Ok(room.checked_div(self.bytes_per_item.get()).unwrap_or(u64::MAX))
    }
}

/// This many items of this many bytes into `safety` (a share above 0 and at most 1) of what is
/// available.
///
/// # Errors
///
/// As [`ChunkPlan::config`].
///
/// ```
/// use plimsoll_memory::{Bytes, calculate_chunking};
/// let plan = calculate_chunking(64, Bytes::mib(134), Bytes::gib(3), 0.7)?;
/// assert_eq!(plan.to_string(), "4 chunks of 16 items, 2.09 GiB a chunk");
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
pub fn calculate_chunking(
    total_items: u64,
    bytes_per_item: Bytes,
    available: Bytes,
    safety: f64,
) -> Result<ChunkingConfig> {
    ChunkPlan::new(total_items, bytes_per_item, available).with_safety(safety).config()
}

/// The same with [`SAFETY_MARGIN`].
///
/// # Errors
///
/// [`Error::NeverFits`] where not even one item fits.
pub fn auto_chunk(
    total_items: u64,
    bytes_per_item: Bytes,
    available: Bytes,
) -> Result<ChunkingConfig> {
    ChunkPlan::new(total_items, bytes_per_item, available).config()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_to_do_is_no_chunks() {
        let config = auto_chunk(0, Bytes::gib(1), Bytes::ZERO).unwrap();
        assert_eq!(config, ChunkingConfig::default());
        assert_eq!(config.ranges().count(), 0);
    }

    #[test]
    fn an_item_that_never_fits_is_told_apart() {
        let error = auto_chunk(5, Bytes::gib(6), Bytes::gib(8)).unwrap_err();
        assert!(matches!(error, Error::NeverFits { requested: Bytes(6_442_450_944), .. }));
        assert!(error.to_string().contains("70 % of the 8.00 GiB available"), "{error}");
        let plan = ChunkPlan::new(5, Bytes::mib(1), Bytes::gib(8)).with_fixed(Bytes::gib(7));
        assert!(!plan.config().unwrap_err().is_full_now());
    }

    #[test]
    fn a_safety_out_of_range_is_named() {
        for safety in [0.0, -0.5, 1.1, f64::NAN, f64::INFINITY] {
            let error = calculate_chunking(5, Bytes(1), Bytes(10), safety).unwrap_err();
            assert!(error.to_string().starts_with("safety is "), "{error}");
        }
    }

    #[test]
    fn items_that_take_nothing_go_in_one_chunk() {
        let config = auto_chunk(u64::MAX, Bytes::ZERO, Bytes::ZERO).unwrap();
        assert_eq!((config.num_chunks, config.chunk_size), (1, u64::MAX));
    }

    #[test]
    fn the_largest_numbers_do_not_wrap() {
        let config = calculate_chunking(u64::MAX, Bytes(1), Bytes::MAX, 1.0).unwrap();
        assert_eq!((config.num_chunks, config.total_items()), (1, u64::MAX));
        let config = calculate_chunking(u64::MAX, Bytes(2), Bytes::MAX, 1.0).unwrap();
        assert_eq!((config.num_chunks, config.last_chunk_size), (3, 1));
        assert_eq!(config.ranges().last(), Some(u64::MAX - 1..u64::MAX));
        assert!(auto_chunk(u64::MAX, Bytes::MAX, Bytes::MAX).is_err());
    }

    proptest! {
        #[test]
        fn chunks_cover_every_item_once_and_fit(
            items in 0u64..2000,
            item in 0u64..1000,
            fixed in 0u64..5000,
            available in 0u64..100_000,
            safety in 0.01f64..=1.0,
        ) {
            let plan = ChunkPlan::new(items, Bytes(item), Bytes(available))
                .with_fixed(Bytes(fixed))
                .with_safety(safety);
            match plan.config() {
                Ok(config) => {
                    let budget = usable(Bytes(available), safety);
                    prop_assert!(items == 0 || config.memory_per_chunk <= budget);
                    let mut next = 0;
                    for range in config.ranges() {
                        prop_assert_eq!(range.start, next);
                        prop_assert!(range.start < range.end);
                        prop_assert!(range.end - range.start <= config.chunk_size);
                        next = range.end;
                    }
                    prop_assert_eq!(next, items);
                    prop_assert_eq!(config.total_items(), items);
                }
                Err(Error::NeverFits { requested, capacity, .. }) => {
                    prop_assert!(requested > capacity);
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }
}
