//! Work that is larger than memory, cut into chunks that fit.
//!
//! A plan is made from every term that a chunk takes: what each item takes and what a chunk
//! takes whatever its size ([`ChunkPlan`]). It uses [`SAFETY_MARGIN`] of what is available and
//! no more, because what is free now is not all free a moment later, and allocators round and
//! fragment. There is one margin: a check and a plan that disagree about it warn of chunks
//! that would have fitted, or plan chunks that they warn of.
//!
//! A plan is made before the work; memory changes during it. [`AdaptiveRunner`] goes on when a
//! chunk fails for want of memory: it halves that chunk, repeats nothing that was done, and
//! grows back. Where nobody knows a good size, [`ChunkSearch`] looks for the fastest.
//!
//! ```
//! use plimsoll_memory::{Bytes, auto_chunk, will_oom};
//! // 64 point clouds of 100,000 points, each into a grid of 128³ floats.
//! let item = Bytes(100_000 * 3 * 4 + 128 * 128 * 128 * 4);
//! let available = Bytes::mib(210);
//! assert!(will_oom(item * 64, available));
//! let plan = auto_chunk(64, item, available)?;
//! assert!(plan.to_string().starts_with("4 chunks of 16 items"));
//! for range in plan.ranges() {
//!     assert!(!will_oom(item * (range.end - range.start), available));
//! }
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```

mod adaptive;
mod plan;
mod search;

pub use adaptive::{
    AdaptiveReport, AdaptiveRunner, ChunkFailure, ChunkPace, FullNow, run_adaptive,
};
pub use plan::{ChunkPlan, auto_chunk, calculate_chunking};
pub use search::ChunkSearch;

use std::fmt;
use std::ops::Range;

use plimsoll_machine::units::Bytes;

/// The share of what is available that plans and checks use.
pub const SAFETY_MARGIN: f64 = 0.7;

/// Whether `required` is more than the safety margin leaves of `available`.
///
/// ```
/// use plimsoll_memory::{Bytes, will_oom};
/// assert!(!will_oom(Bytes::gib(5), Bytes::gib(8)));
/// assert!(will_oom(Bytes::gib(6), Bytes::gib(8)));
/// ```
#[must_use]
pub fn will_oom(required: Bytes, available: Bytes) -> bool {
    required > usable(available, SAFETY_MARGIN)
}

/// This much of `available` as a plan may use; never more than all of it.
fn usable(available: Bytes, safety: f64) -> Bytes {
    available.fraction(safety).min(available)
}

/// How many chunks, how large, and what one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ChunkingConfig {
    /// How many chunks; 0 where there is nothing to do.
    pub num_chunks: u64,
    /// Items in every chunk but the last.
    pub chunk_size: u64,
    /// Items in the last.
    pub last_chunk_size: u64,
    /// What a full chunk takes, with what it takes whatever its size.
    pub memory_per_chunk: Bytes,
}

impl ChunkingConfig {
    /// The items of each chunk, in order: each item once.
    ///
    /// ```
    /// use plimsoll_memory::{Bytes, calculate_chunking};
    /// let plan = calculate_chunking(10, Bytes(100), Bytes(400), 1.0)?;
    /// assert_eq!(plan.ranges().collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
    /// # Ok::<(), plimsoll_memory::Error>(())
    /// ```
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let ChunkingConfig { num_chunks, chunk_size, last_chunk_size, .. } = *self;
        (0..num_chunks).map(move |chunk| {
            let start = chunk.saturating_mul(chunk_size);
            let size = if chunk + 1 == num_chunks { last_chunk_size } else { chunk_size };
            start..start.saturating_add(size)
        })
    }

    /// All items.
    #[must_use]
    pub fn total_items(&self) -> u64 {
        let full = self.num_chunks.saturating_sub(1).saturating_mul(self.chunk_size);
        full.saturating_add(self.last_chunk_size)
    }
}

impl fmt::Display for ChunkingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunks = if self.num_chunks == 1 { "chunk" } else { "chunks" };
        let items = if self.chunk_size == 1 { "item" } else { "items" };
        write!(f, "{} {chunks} of {} {items}", self.num_chunks, self.chunk_size)?;
        if self.num_chunks == 0 {
            return Ok(());
        }
        if self.last_chunk_size != self.chunk_size {
            write!(f, " (the last of {})", self.last_chunk_size)?;
        }
        write!(f, ", {} a chunk", self.memory_per_chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_the_documents() {
        let config = ChunkingConfig {
            num_chunks: 4,
            chunk_size: 16,
            last_chunk_size: 16,
            memory_per_chunk: Bytes::mib(2150),
        };
        assert_eq!(config.to_string(), "4 chunks of 16 items, 2.10 GiB a chunk");
        let short = ChunkingConfig { last_chunk_size: 9, ..config };
        assert_eq!(short.to_string(), "4 chunks of 16 items (the last of 9), 2.10 GiB a chunk");
        let one = ChunkingConfig { num_chunks: 1, chunk_size: 1, last_chunk_size: 1, ..config };
        assert!(one.to_string().starts_with("1 chunk of 1 item,"));
        assert_eq!(ChunkingConfig::default().to_string(), "0 chunks of 0 items");
    }

    #[test]
    fn a_check_and_a_plan_agree_about_the_margin() {
        for available in [0, 1, 9, 10, 1 << 30, 1 << 53, u64::MAX - 1, u64::MAX].map(Bytes) {
            let most = usable(available, SAFETY_MARGIN);
            assert!(!will_oom(most, available));
            assert!(will_oom(most.saturating_add(Bytes(1)), available) || most == available);
            if most > Bytes::ZERO {
                assert_eq!(auto_chunk(1, most, available).unwrap().num_chunks, 1);
            }
        }
    }
}
