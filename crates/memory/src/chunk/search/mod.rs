//! The chunk size that gets through the most items a second, found while the work runs.
//!
//! The largest chunk that fits is rarely the fastest: past some size a GPU is busy and larger
//! chunks gain nothing, chunks of unequal items waste more on padding, and at the edge of memory
//! attempts fail. So the search does not grow until it fails. It times what it does, and keeps
//! for each size the items that it got through and the time that they took, recent ones
//! counting more.
//!
//! **What a failure costs is charged to the size that was chosen**: the attempt, and the smaller
//! chunks that the same items are repeated in. A size that fails now and then is so weighed
//! against a smaller one that never does. What those smaller chunks took counts for their own
//! sizes too. A size that has never gone through whole is not the best, however fast its halves
//! are: where a failure costs next to nothing, sizes would otherwise grow without bound.
//!
//! **The first chunk of a size is not counted**: kernels are loaded and chosen for its shape, which
//! takes many times the work itself, and would keep the search from ever coming back. It is counted
//! where it was faster than all before it even so: then nothing is to be learned from a second one.
//! Nor is the first chunk after a failure, for its own size: a framework that ran out of memory
//! has returned what it kept, and asks the driver for it again.
//!
//! **At the start sizes grow fourfold while chunks are short**, whatever they took: a short chunk is
//! mostly the call, and what is paid for once, and says little. It is counted, as there is no second
//! one. Growth ends with a long chunk, with a failure, or where no more fit.
//!
//! **A chunk that is slow counts as a quarter slower than the best size**, and no more: memory that is
//! taken from the driver, or kernels that are loaded for a new shape, are paid for once. A larger size
//! has a few chunks before it is judged.
//!
//! **What would not fit is not tried**, where the caller knows ([`ChunkSearch::set_room`]), until a
//! failure would cost next to nothing of the time that all took.
//!
//! Most chunks have the best size; a small share of the time goes to its two neighbours, less
//! to one that failed, half as much again with each failure, and none while more than a still smaller
//! share was lost with it. Memory that becomes free later is found that way, and sizes from one item
//! on are found at the start.

use std::time::Duration;

/// Sizes are 1, 2, 3, 4, 6, 8, 12, 16, …: neighbours differ by a third to a half, so that the
/// best of them is near the best of all.
const SIZES: usize = 2 * 63;

/// How much of what was known counts after one more chunk: about the last 128 chunks matter.
const KEPT: f64 = 1.0 - 1.0 / 128.0;

/// The share of the time that goes to each neighbour of the best size.
const LOOKING: f64 = 1.0 / 16.0;

/// The share of all time that may be lost by looking at one size: what its chunks took beyond what
/// the best size takes for their items.
const LOST: f64 = 1.0 / 128.0;

/// A chunk counts as this many times slower than the best size at most.
const SLOWEST: f64 = 1.25;

/// Chunks that a larger size has before it is judged.
const JUDGED: u32 = 8;

/// What a failure is taken to cost before one was seen, in chunks of the best size.
const FAILURE: f64 = 8.0;

/// Sizes grow while chunks are shorter than this.
const SHORT: Duration = Duration::from_millis(100);

/// Calls that take less than the clock can tell are as fast as each other.
const LEAST_SECONDS: f64 = 1e-6;

/// Failures beyond this many do not make looking again still rarer.
const MOST_FAILURES: u32 = 20;

/// Finds the fastest chunk size for work that is timed by the caller.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_memory::ChunkSearch;
/// let mut search = ChunkSearch::new(1000);
/// for _ in 0..200 {
///     let count = search.size();
///     match count {
///         101.. => search.failed(count, Duration::from_millis(1)), // out of memory
///         _ => search.succeeded(count, Duration::from_millis(5) + Duration::from_micros(count)),
///     }
/// }
/// assert_eq!(search.best(), 96);
/// ```
#[derive(Debug, Clone)]
pub struct ChunkSearch {
    most: u64,
    tried: Vec<TriedSize>,
    /// The index of the size that chunks are charged to.
    chosen: usize,
    /// All time, fading as that of each size does.
    seconds: f64,
    /// All time.
    elapsed: f64,
    /// Items that fit, as far as the caller knows.
    room: u64,
    /// Whether sizes still grow fourfold.
    is_growing: bool,
    retry: Option<Retry>,
}

/// What is known of one size.
#[derive(Debug, Clone, Copy, Default)]
struct TriedSize {
    items: f64,
    seconds: f64,
    failures: u32,
    /// Chunks that were counted.
    chunks: u32,
    /// Whether a chunk of this size has gone through.
    warm: bool,
    /// Seconds that were lost by looking at it.
    lost: f64,
}

/// Items of a chunk that failed and are not done yet.
#[derive(Debug, Clone, Copy)]
struct Retry {
    left: u64,
    size: u64,
    /// Whether nothing has gone through since the failure.
    is_first: bool,
}

impl TriedSize {
    fn add(&mut self, count: u64, seconds: f64) {
        self.items += count as f64;
        self.seconds += seconds;
    }

    fn rate(&self) -> f64 {
        if self.items > 0.0 { self.items / self.seconds } else { 0.0 }
    }
}

impl ChunkSearch {
    /// Begins with one item, and never makes chunks of more than `most` (0 counts as 1).
    #[must_use]
    pub fn new(most: u64) -> Self {
        let tried = vec![TriedSize::default()];
        ChunkSearch {
            most: most.max(1),
            tried,
            chosen: 0,
            seconds: 0.0,
            elapsed: 0.0,
            room: u64::MAX,
            is_growing: true,
            retry: None,
        }
    }

    /// Says how many items fit, by what is known of memory. It need not be exact: larger chunks are
    /// tried seldom, not never.
    pub fn set_room(&mut self, items: u64) {
        self.room = items;
    }

    /// How many items the next chunk takes. Fewer may be tried where there are no more.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self.retry {
            Some(retry) => retry.size.min(retry.left),
            None => size_at(self.chosen).min(self.most),
        }
    }

    /// The size that has been the fastest.
    #[must_use]
    pub fn best(&self) -> u64 {
        size_at(self.fastest()).min(self.most)
    }

    /// A chunk of `count` items was done in this time.
    pub fn succeeded(&mut self, count: u64, took: Duration) {
        let own = match self.retry {
            None => Some(self.chosen),
            Some(retry) if retry.is_first => None,
            Some(_) => (0..self.chosen).find(|&index| size_at(index) == count),
        };
        let counts = self.is_fastest(count, took) || self.is_growing && took < SHORT;
        let is_warm = |tried: &mut TriedSize| std::mem::replace(&mut tried.warm, true);
        let own = own.filter(|&index| is_warm(&mut self.tried[index]) || counts);
        if own.is_none() && self.retry.is_none() {
            self.elapsed += seconds_of(took);
            return;
        }
        self.charge(count, took);
        match &mut self.retry {
            None => {
                let tried = &mut self.tried[self.chosen];
                tried.failures = tried.failures.saturating_sub(1);
                tried.chunks = tried.chunks.saturating_add(1);
            }
            Some(retry) => {
                // What a smaller chunk took is also known of its own size.
                if let Some(index) = own {
                    self.tried[index].add(count, seconds_of(took));
                }
                retry.is_first = false;
                retry.left = retry.left.saturating_sub(count);
                if retry.left > 0 {
                    return;
                }
                self.retry = None;
            }
        }
        self.is_growing &= took < SHORT;
        match self.is_growing.then(|| self.grown()).flatten() {
            Some(larger) => self.take(larger),
            None => self.choose(),
        }
    }

    /// A chunk of `count` items did not fit, which took this time to find out. The next chunks
    /// have half as many, until these items are done.
    pub fn failed(&mut self, count: u64, took: Duration) {
        self.is_growing = false;
        self.charge(0, took);
        if self.retry.is_none() {
            let tried = &mut self.tried[self.chosen];
            tried.failures = (tried.failures + 1).min(MOST_FAILURES);
        }
        let left = self.retry.map_or(count, |retry| retry.left);
        self.retry = Some(Retry { left, size: (count / 2).max(1), is_first: true });
    }

    /// Whether a chunk was faster than every size has been. Nothing is, before one was counted.
    fn is_fastest(&self, count: u64, took: Duration) -> bool {
        let best = self.tried[self.fastest()].rate();
        best > 0.0 && count as f64 / seconds_of(took) > best
    }

    fn charge(&mut self, count: u64, took: Duration) {
        for tried in &mut self.tried {
            tried.items *= KEPT;
            tried.seconds *= KEPT;
        }
        let seconds = seconds_of(took);
        (self.seconds, self.elapsed) = (self.seconds * KEPT + seconds, self.elapsed + seconds);
        let (fastest, chosen) = (self.fastest(), self.chosen);
        let best = self.tried[fastest].rate();
        let usual = if best > 0.0 { count as f64 / best } else { seconds };
        let is_whole = count > 0 && self.retry.is_none();
        let is_judged = is_whole && !self.is_growing;
        let tried = &mut self.tried[chosen];
        tried.add(count, if is_judged { seconds.min(SLOWEST * usual) } else { seconds });
        if chosen != fastest && !self.is_growing {
            tried.lost += seconds - usual;
        }
    }

    fn fastest(&self) -> usize {
        let whole = self.tried.iter().enumerate().filter(|(_, tried)| tried.warm);
        let rates = whole.map(|(index, tried)| (index, tried.rate()));
        rates.fold((0, 0.0), |best, now| if now.1 > best.1 { now } else { best }).0
    }

    /// A size of four times as many items, or as many as fit; none where that is no more.
    fn grown(&self) -> Option<usize> {
        let four = if self.chosen == 0 { 3 } else { self.chosen + 4 };
        let is_room = |index: &usize| size_at(*index) <= self.room;
        let larger = (self.chosen + 1..=four.min(SIZES - 1)).rev().find(is_room)?;
        (size_at(self.chosen) < self.most).then_some(larger)
    }

    /// Whether a neighbour of the best size has not had its share of the time.
    fn is_wanting(&self, best: usize, index: usize) -> bool {
        let tried = self.tried.get(index).copied().unwrap_or_default();
        let (is_larger, rate) = (index > best, self.tried[best].rate());
        let would_fail = is_larger && size_at(index) > self.room && rate > 0.0;
        let failure = if would_fail { FAILURE * size_at(best) as f64 / rate } else { 0.0 };
        let is_judged = !is_larger || tried.failures > 0 || tried.chunks >= JUDGED;
        let share = self.seconds * LOOKING * 0.5f64.powi(tried.failures as i32);
        tried.lost + failure <= self.elapsed * LOST && (!is_judged || tried.seconds < share)
    }

    /// The best size, or a neighbour of it that has not had its share of the time.
    fn choose(&mut self) {
        let best = self.fastest();
        // Sizes that nobody has tried are doubled; those between are looked at later.
        let is_largest = best + 1 == self.tried.len() && size_at(best + 2) <= self.room;
        let next = if is_largest { best + 2 } else { best + 1 };
        let larger = (next < SIZES && size_at(best) < self.most).then_some(next);
        let neighbours = [larger, best.checked_sub(1)];
        let wanting = neighbours.into_iter().flatten().find(|&index| self.is_wanting(best, index));
        self.take(wanting.unwrap_or(best));
    }

    fn take(&mut self, index: usize) {
        self.chosen = index;
        let known = self.tried.len().max(index + 1);
        self.tried.resize(known, TriedSize::default());
    }
}

fn seconds_of(took: Duration) -> f64 {
    took.as_secs_f64().max(LEAST_SECONDS)
}

/// 1, 2, 3, 4, 6, 8, 12, …
fn size_at(index: usize) -> u64 {
    match index {
        0 => 1,
        _ => [3, 2][index % 2] << ((index - 1) / 2),
    }
}

#[cfg(test)]
mod tests;
