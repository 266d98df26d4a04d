//! Going on when a chunk does not fit after all.
//!
//! A plain loop starts the whole job again with half the chunk size; what was done is
//! done twice, and one tight moment makes every later chunk small. Here only the range that
//! failed is tried again, at half its size, and after a run of successes chunks grow back. A
//! growth that fails at once makes the next one wait twice as long, so that a job at the edge
//! of memory does not spend its time on failing attempts.
//!
//! Only *full now* is worth halving for; every other error ends the run at once. Both ends
//! hand back what was done, so that nothing has to be repeated to go on.

use std::fmt;
use std::ops::Range;

use super::ChunkingConfig;
use plimsoll_machine::error::Error;

/// An error that can say whether a smaller chunk may succeed.
pub trait FullNow {
    /// Whether memory was refused, and a smaller request may be granted.
    fn is_full_now(&self) -> bool;
}

impl FullNow for Error {
    fn is_full_now(&self) -> bool {
        Error::is_full_now(self)
    }
}

/// Runs work over items in chunks that shrink when memory is short and grow back.
///
/// ```
/// use plimsoll_memory::{AdaptiveRunner, Bytes, Error};
/// let room = 5; // what the plan did not know
/// let report = AdaptiveRunner::new(16).run(40, |items| {
///     let count = items.end - items.start;
///     if count > room {
///         return Err(Error::OutOfMemory {
///             memory: "cuda:0".into(),
///             requested: Bytes::mib(count),
///             available: Bytes::mib(room),
///         });
///     }
///     Ok(count)
/// })?;
/// assert_eq!(report.results.iter().sum::<u64>(), 40);
/// assert_eq!(report.smallest_chunk, Some(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptiveRunner {
    first: u64,
    most: u64,
    grow_after: u64,
}

impl AdaptiveRunner {
    /// Begins with chunks of this many items (0 counts as 1), never makes larger ones, and
    /// doubles them again after four successes.
    #[must_use]
    pub fn new(chunk: u64) -> Self {
        AdaptiveRunner { first: chunk.max(1), most: chunk.max(1), grow_after: 4 }
    }

    /// Begins with a plan's chunks.
    #[must_use]
    pub fn from_plan(plan: &ChunkingConfig) -> Self {
        AdaptiveRunner::new(plan.chunk_size)
    }

    /// The same, growing to chunks of this many items; less than it begins with counts as that.
    #[must_use]
    pub fn with_max_chunk(self, most: u64) -> Self {
        AdaptiveRunner { most: most.max(self.first), ..self }
    }

    /// The same, doubling chunks after this many successes; 0 means never.
    #[must_use]
    pub fn with_grow_after(self, grow_after: u64) -> Self {
        AdaptiveRunner { grow_after, ..self }
    }

    /// The sizes of chunks alone.
    #[must_use]
    pub fn pace(&self) -> ChunkPace {
        ChunkPace {
            size: self.first,
            most: self.most,
            grow_after: self.grow_after,
            wanted: self.grow_after,
            successes: 0,
            just_grown: false,
        }
    }

    /// Runs `work` over all items, in order, each in exactly one chunk that succeeded.
    ///
    /// # Errors
    ///
    /// [`ChunkFailure`] where one item alone does not fit, or `work` failed otherwise; it says
    /// which range failed and holds what was done before.
    pub fn run<T, E: FullNow>(
        &self,
        total: u64,
        work: impl FnMut(Range<u64>) -> Result<T, E>,
    ) -> Result<AdaptiveReport<T>, Box<ChunkFailure<T, E>>> {
        self.run_by(total, work, E::is_full_now)
    }

    /// The same for errors of another library: `is_full_now` tells which ones to halve on.
    /// With [`Error::is_out_of_memory`] a chunk larger than the whole device is halved too.
    ///
    /// # Errors
    ///
    /// As [`AdaptiveRunner::run`].
    ///
    /// ```
    /// use plimsoll_memory::AdaptiveRunner;
    /// let mut refusals = 2;
    /// let report = AdaptiveRunner::new(8).run_by(
    ///     8,
    ///     |items| match refusals {
    ///         0 => Ok(items),
    ///         _ => {
    ///             refusals -= 1;
    ///             Err("CUDA out of memory")
    ///         }
    ///     },
    ///     |error| error.contains("out of memory"),
    /// )?;
    /// assert_eq!(report.results, [0..2, 2..4, 4..6, 6..8]);
    /// assert_eq!(report.halvings, 2);
    /// # Ok::<(), Box<plimsoll_memory::ChunkFailure<std::ops::Range<u64>, &str>>>(())
    /// ```
    pub fn run_by<T, E>(
        &self,
        total: u64,
        mut work: impl FnMut(Range<u64>) -> Result<T, E>,
        is_full_now: impl Fn(&E) -> bool,
    ) -> Result<AdaptiveReport<T>, Box<ChunkFailure<T, E>>> {
        let mut pace = self.pace();
        let mut report = AdaptiveReport::default();
        while report.items < total {
            let range = report.items..total.min(report.items.saturating_add(pace.size));
            let count = range.end - range.start;
            match work(range.clone()) {
                Ok(result) => {
                    report.record(result, count);
                    report.growths += u64::from(pace.succeeded());
                }
                Err(error) => {
                    let full_now = is_full_now(&error);
                    if !full_now || count == 1 {
                        return Err(Box::new(ChunkFailure { range, full_now, error, report }));
                    }
                    pace.failed(count);
                    report.halvings += 1;
                }
            }
        }
        Ok(report)
    }
}

/// Runs `work` over `total` items in chunks that begin with `chunk`: [`AdaptiveRunner`] as it
/// comes.
///
/// # Errors
///
/// As [`AdaptiveRunner::run`].
pub fn run_adaptive<T, E: FullNow>(
    total: u64,
    chunk: u64,
    work: impl FnMut(Range<u64>) -> Result<T, E>,
) -> Result<AdaptiveReport<T>, Box<ChunkFailure<T, E>>> {
    AdaptiveRunner::new(chunk).run(total, work)
}

/// The size of the next chunk, and when to try a larger one: [`AdaptiveRunner`] for loops that
/// cannot be turned inside out.
///
/// ```
/// use plimsoll_memory::AdaptiveRunner;
/// let mut pace = AdaptiveRunner::new(16).with_grow_after(2).pace();
/// pace.failed(16);
/// assert_eq!(pace.size(), 8);
/// assert!(!pace.succeeded());
/// assert!(pace.succeeded());
/// assert_eq!(pace.size(), 16);
/// ```
#[derive(Debug, Clone)]
pub struct ChunkPace {
    size: u64,
    most: u64,
    grow_after: u64,
    /// Successes wanted before the next growth: more than `grow_after` when growing failed.
    wanted: u64,
    successes: u64,
    just_grown: bool,
}

impl ChunkPace {
    /// How many items the next chunk takes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A chunk succeeded; says whether the next will be larger.
    pub fn succeeded(&mut self) -> bool {
        if self.just_grown {
            self.wanted = self.grow_after;
            self.just_grown = false;
        }
        self.successes = self.successes.saturating_add(1);
        if self.grow_after == 0 || self.size >= self.most || self.successes < self.wanted {
            return false;
        }
        self.size = self.size.saturating_mul(2).min(self.most);
        self.successes = 0;
        self.just_grown = true;
        true
    }

    /// A chunk of `count` items did not fit. The last chunk may be shorter than the size, so
    /// what was really tried is halved.
    pub fn failed(&mut self, count: u64) {
        if self.just_grown {
            self.wanted = self.wanted.saturating_mul(2);
            self.just_grown = false;
        }
        self.size = (count / 2).max(1);
        self.successes = 0;
    }
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveReport<T> {
    /// What `work` gave back for each chunk, in the order of items.
    pub results: Vec<T>,
    /// How many items are done, from the first on.
    pub items: u64,
    /// Chunks that succeeded.
    pub chunks: u64,
    /// Times that a chunk did not fit and was halved.
    pub halvings: u64,
    /// Times that chunks grew back.
    pub growths: u64,
    /// The fewest items of a chunk that succeeded; none where none did.
    pub smallest_chunk: Option<u64>,
    /// The most items of a chunk that succeeded; none where none did.
    pub largest_chunk: Option<u64>,
}

impl<T> Default for AdaptiveReport<T> {
    fn default() -> Self {
        AdaptiveReport {
            results: Vec::new(),
            items: 0,
            chunks: 0,
            halvings: 0,
            growths: 0,
            smallest_chunk: None,
            largest_chunk: None,
        }
    }
}

impl<T> AdaptiveReport<T> {
    fn record(&mut self, result: T, count: u64) {
        self.results.push(result);
        self.items += count;
        self.chunks += 1;
        self.smallest_chunk = Some(self.smallest_chunk.map_or(count, |least| least.min(count)));
        self.largest_chunk = Some(self.largest_chunk.map_or(count, |most| most.max(count)));
    }
}

/// Why a run ended early, where, and what was done before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkFailure<T, E = Error> {
    /// The items that failed.
    pub range: Range<u64>,
    /// Whether memory was refused to a single item; otherwise the work failed for another reason.
    pub full_now: bool,
    /// What the work said.
    pub error: E,
    /// What was done before: items up to the start of `range`.
    pub report: AdaptiveReport<T>,
}

impl<T, E> ChunkFailure<T, E> {
    /// What the work said, alone.
    #[must_use]
    pub fn into_error(self) -> E {
        self.error
    }
}

impl<T, E: fmt::Display> fmt::Display for ChunkFailure<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        if self.full_now {
            write!(f, "item {start} does not fit even alone: {}", self.error)?;
        } else {
            write!(f, "items {start}..{end} failed: {}", self.error)?;
        }
        match self.report.items {
            0 => f.write_str("; nothing was done before"),
            done => write!(f, "; items 0..{done} were done before"),
        }
    }
}

impl<T: fmt::Debug, E: std::error::Error + 'static> std::error::Error for ChunkFailure<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests;
