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
//! sizes too.
//!
//! **The first chunk of a size is not counted**: kernels are loaded and chosen for its shape, which
//! takes many times the work itself, and would keep the search from ever coming back. It is counted
//! where it was faster than all before it even so: then nothing is to be learned from a second one.
//!
//! **At the start sizes grow by four** while a chunk of more items takes hardly longer than one of
//! fewer, and are doubled after that: while a call costs more than its items, small chunks are time
//! lost.
//!
//! Most chunks have the best size; a small share of the time goes to its two neighbours, less
//! to one that failed, half as much again with each failure. Memory that becomes free later is
//! found that way, and sizes from one item on are found at the start.

use std::time::Duration;

/// Sizes are 1, 2, 3, 4, 6, 8, 12, 16, …: neighbours differ by a third to a half, so that the
/// best of them is near the best of all.
const SIZES: usize = 2 * 63;

/// How much of what was known counts after one more chunk: about the last 128 chunks matter.
const KEPT: f64 = 1.0 - 1.0 / 128.0;

/// The share of the time that goes to each neighbour of the best size.
const LOOKING: f64 = 1.0 / 32.0;

/// Where a size before had at most this share of the rate, a call costs far more than its items.
const STILL_CHEAP: f64 = 0.4;

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
    retry: Option<Retry>,
}

/// What is known of one size.
#[derive(Debug, Clone, Copy, Default)]
struct TriedSize {
    items: f64,
    seconds: f64,
    failures: u32,
    /// Whether a first chunk has gone through.
    warm: bool,
}

/// Items of a chunk that failed and are not done yet.
#[derive(Debug, Clone, Copy)]
struct Retry {
    left: u64,
    size: u64,
}

impl TriedSize {
    fn add(&mut self, count: u64, took: Duration) {
        self.items += count as f64;
        self.seconds += seconds_of(took);
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
        ChunkSearch { most: most.max(1), tried, chosen: 0, seconds: 0.0, retry: None }
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
        let first = !std::mem::replace(&mut self.tried[self.chosen].warm, true);
        if first && self.retry.is_none() && !self.is_fastest(count, took) {
            return;
        }
        self.charge(count, took);
        match &mut self.retry {
            None => {
                let tried = &mut self.tried[self.chosen];
                tried.failures = tried.failures.saturating_sub(1);
            }
            Some(retry) => {
                // What a smaller chunk took is also known of its own size.
                if let Some(index) = (0..self.chosen).find(|&index| size_at(index) == count) {
                    self.tried[index].add(count, took);
                }
                retry.left = retry.left.saturating_sub(count);
                if retry.left > 0 {
                    return;
                }
                self.retry = None;
            }
        }
        self.choose();
    }

    /// A chunk of `count` items did not fit, which took this time to find out. The next chunks
    /// have half as many, until these items are done.
    pub fn failed(&mut self, count: u64, took: Duration) {
        self.charge(0, took);
        if self.retry.is_none() {
            let tried = &mut self.tried[self.chosen];
            tried.failures = (tried.failures + 1).min(MOST_FAILURES);
        }
        let left = self.retry.map_or(count, |retry| retry.left);
        self.retry = Some(Retry { left, size: (count / 2).max(1) });
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
        self.seconds = self.seconds * KEPT + seconds_of(took);
        self.tried[self.chosen].add(count, took);
    }

    fn fastest(&self) -> usize {
        let rates = self.tried.iter().map(TriedSize::rate).enumerate();
        rates.fold((0, 0.0), |best, now| if now.1 > best.1 { now } else { best }).0
    }

    /// How many sizes further the next one is: four times as many items where the last step cost
    /// hardly any time, twice as many otherwise.
    fn leap(&self, best: usize) -> usize {
        let before = self.tried[..best].iter().rfind(|tried| tried.items > 0.0);
        let is_cheap =
            before.is_some_and(|before| before.rate() < STILL_CHEAP * self.tried[best].rate());
        if is_cheap { 4 } else { 2 }
    }

    /// The best size, or a neighbour of it that has not had its share of the time.
    fn choose(&mut self) {
        let best = self.fastest();
        // Among sizes that nobody has tried it leaps; those between are looked at later.
        let next = if best + 1 == self.tried.len() { best + self.leap(best) } else { best + 1 };
        let larger = (next < SIZES && size_at(best) < self.most).then_some(next);
        let mut neighbours = [larger, best.checked_sub(1)];
        if self.tried[best].failures > 0 {
            // It may be the best only of those that were not leapt over.
            neighbours.reverse();
        }
        let wanting = neighbours.into_iter().flatten().find(|&index| {
            let tried = self.tried.get(index).copied().unwrap_or_default();
            tried.seconds < self.seconds * LOOKING * 0.5f64.powi(tried.failures as i32)
        });
        self.chosen = wanting.unwrap_or(best);
        let known = self.tried.len().max(self.chosen + 1);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs chunks of up to `capacity` items that take this long for a call and for each item;
    /// says what was done.
    fn run(chunks: usize, capacity: u64, call: f64, item: f64) -> (ChunkSearch, u64, u64) {
        let mut search = ChunkSearch::new(4096);
        let (mut items, mut failures) = (0, 0);
        for _ in 0..chunks {
            let count = search.size();
            let took = Duration::from_secs_f64(call + item * count as f64);
            if count > capacity {
                search.failed(count, took);
                failures += 1;
            } else {
                search.succeeded(count, took);
                items += count;
            }
        }
        (search, items, failures)
    }

    #[test]
    fn sizes_grow_by_a_third_or_a_half() {
        let sizes: Vec<_> = (0..10).map(size_at).collect();
        assert_eq!(sizes, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(size_at(SIZES - 1), 2 << 62);
    }

    #[test]
    fn it_grows_up_to_what_fits_and_seldom_beyond() {
        let (search, items, failures) = run(2000, 70, 0.01, 0.0);
        assert_eq!(search.best(), 64);
        assert!(failures < 40, "{failures} failures in 2,000 chunks");
        assert!(items > 2000 * 60, "{items} items");
    }

    #[test]
    fn it_is_at_its_size_after_few_chunks_where_a_call_costs_most() {
        let (search, items, failures) = run(8, 4096, 0.06, 1e-5);
        assert_eq!((search.best(), failures), (3072, 0));
        // Growing to it by doubling, each size twice, would be 24 chunks.
        assert_eq!(items, 1 + 1 + 3 + 12 + 48 + 192 + 768 + 3072);
    }

    #[test]
    fn a_first_chunk_that_was_slow_is_not_held_against_its_size() {
        let mut search = ChunkSearch::new(4);
        for (count, millis) in [(1, 50), (1, 2), (3, 500)] {
            assert_eq!(search.size(), count);
            search.succeeded(count, Duration::from_millis(millis));
        }
        assert_eq!(search.size(), 3, "it is tried once more");
        search.succeeded(3, Duration::from_millis(3));
        assert_eq!(search.best(), 3);
    }

    #[test]
    fn it_stays_small_where_larger_chunks_are_slower() {
        let mut search = ChunkSearch::new(4096);
        for _ in 0..500 {
            let count = search.size();
            let padding = if count > 8 { 2.0 } else { 1.0 };
            let took = 0.002 + 0.001 * padding * count as f64;
            search.succeeded(count, Duration::from_secs_f64(took));
        }
        assert_eq!(search.best(), 8);
    }

    #[test]
    fn a_chunk_that_failed_is_done_in_halves_before_anything_else() {
        let mut search = ChunkSearch::new(64);
        while search.size() < 16 {
            search.succeeded(search.size(), Duration::ZERO);
        }
        search.failed(16, Duration::ZERO);
        assert_eq!(search.size(), 8);
        search.failed(8, Duration::ZERO);
        let mut retried = Vec::new();
        for _ in 0..4 {
            retried.push(search.size());
            search.succeeded(search.size(), Duration::ZERO);
        }
        assert_eq!(retried, [4, 4, 4, 4]);
        assert!(search.size() > 4, "what was known before counts again");
    }

    #[test]
    fn memory_that_becomes_free_is_used() {
        let (mut search, ..) = run(500, 10, 0.01, 0.0);
        assert_eq!(search.best(), 8);
        for _ in 0..1500 {
            search.succeeded(search.size(), Duration::from_millis(10));
        }
        assert!(search.best() > 1000, "{}", search.best());
    }

    /// What chunks of items of unequal length take: seconds and bytes.
    type Costs = fn(&[f64]) -> (f64, f64);

    const CAPACITY: f64 = 7e9;

    fn padded(chunk: &[f64]) -> f64 {
        chunk.iter().copied().fold(0.0, f64::max) * chunk.len() as f64
    }

    /// Seconds with one size throughout; nothing where it does not fit once.
    fn fixed(items: &[f64], size: usize, costs: Costs) -> Option<f64> {
        items
            .chunks(size)
            .map(costs)
            .try_fold(0.0, |sum, (seconds, bytes)| (bytes <= CAPACITY).then_some(sum + seconds))
    }

    /// Seconds with the search, failures included.
    fn searched(items: &[f64], costs: Costs) -> f64 {
        let (mut search, mut done, mut sum) = (ChunkSearch::new(4096), 0, 0.0);
        while done < items.len() {
            let size = usize::try_from(search.size()).unwrap().min(items.len() - done);
            let (seconds, bytes) = costs(&items[done..done + size]);
            let fits = bytes <= CAPACITY;
            // An attempt that fails has done most of its work, and has freed what it had.
            let took = if fits { seconds } else { 0.6 * seconds + 0.01 };
            let (count, time) = (size as u64, Duration::from_secs_f64(took));
            sum += took;
            if fits {
                search.succeeded(count, time);
                done += size;
            } else {
                search.failed(count, time);
            }
        }
        sum
    }

    #[test]
    fn it_loses_little_to_the_best_fixed_size() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let lengths: Vec<f64> = (0..60_000).map(|_| 16.0 * 32f64.powf(random())).collect();
        let models: [(&str, Costs); 4] = [
            ("padded, far from the limit", |c| (0.003 + padded(c) * 1e-6, padded(c) * 4e4)),
            ("padded, at the limit", |c| (0.003 + padded(c) * 1e-6, padded(c) * 4e5)),
            ("put together, at the limit", |c| {
                let sum = c.iter().sum::<f64>();
                (0.01 + sum * 1e-6, sum * 4e5)
            }),
            ("equal items", |c| {
                let count = c.len() as f64;
                (0.004 + count * 1e-3, count * 5e7)
            }),
        ];
        for (name, costs) in models {
            let best = (1..=600).step_by(3).filter_map(|size| fixed(&lengths, size, costs));
            let share = best.fold(f64::INFINITY, f64::min) / searched(&lengths, costs);
            assert!(share > 0.95, "{name}: {share:.3} of the best fixed size");
        }
    }

    proptest! {
        #[test]
        fn sizes_stay_in_bounds(
            most in 0u64..5000,
            answers in prop::collection::vec((any::<bool>(), 0u64..1_000_000), 0..300),
        ) {
            let mut search = ChunkSearch::new(most);
            for (fits, nanos) in answers {
                let count = search.size();
                prop_assert!(count >= 1 && count <= most.max(1));
                let took = Duration::from_nanos(nanos);
                if fits { search.succeeded(count, took) } else { search.failed(count, took) }
            }
        }
    }
}
