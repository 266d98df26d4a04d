//! Sizes, failures and noise as work on a GPU has them, by a clock of the tests.

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
    let (search, items, failures) = run(7, 4096, 0.06, 1e-5);
    assert_eq!((search.best(), failures), (4096, 0));
    // Growing to it by doubling, each size twice, would be 24 chunks.
    assert_eq!(items, 1 + 4 + 16 + 64 + 256 + 1024 + 4096);
}

#[test]
fn a_first_chunk_that_was_slow_is_not_held_against_its_size() {
    let mut search = ChunkSearch::new(4);
    for (count, millis) in [(1, 500), (1, 2), (4, 500)] {
        assert_eq!(search.size(), count);
        search.succeeded(count, Duration::from_millis(millis));
    }
    assert_eq!(search.size(), 4, "it is tried once more");
    search.succeeded(4, Duration::from_millis(3));
    assert_eq!(search.best(), 4);
}

#[test]
fn a_size_that_never_fits_is_not_the_best_where_failures_cost_nothing() {
    let mut search = ChunkSearch::new(65_536);
    let mut largest = 0;
    for call in 0u32..2000 {
        let count = search.size();
        largest = largest.max(count);
        if count > 15 {
            search.failed(count, Duration::ZERO);
        } else {
            // The halves of a size that failed come by luck to a better rate than the rest.
            let noise = [1.0, 1.2, 0.9, 0.8, 1.1][call as usize % 5];
            search.succeeded(count, Duration::from_secs_f64(0.01 * noise));
        }
    }
    assert_eq!(search.best(), 12);
    assert!(largest <= 64, "batches of {largest} were tried where 15 fit");
}

#[test]
fn a_half_that_is_slow_because_it_is_the_first_of_its_size_is_not_held_against_it() {
    let (mut search, mut seen, mut at) = (ChunkSearch::new(4096), Vec::new(), Vec::new());
    for _ in 0..40 {
        let count = search.size();
        if count > 8 {
            search.failed(count, Duration::from_millis(1));
            continue;
        }
        let first = !seen.contains(&count);
        seen.push(count);
        at.push(count);
        search.succeeded(count, Duration::from_millis(if first { 210 } else { 10 }));
    }
    assert_eq!(search.best(), 8, "{at:?}");
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
fn what_would_not_fit_is_tried_seldom_and_not_never() {
    let (mut search, mut failures, mut first) = (ChunkSearch::new(4096), 0, None);
    search.set_room(70);
    for call in 0..20_000 {
        let count = search.size();
        let took = Duration::from_secs_f64(0.01 + 1e-4 * count as f64);
        if count > 70 {
            first.get_or_insert(call);
            failures += 1;
            search.failed(count, took);
        } else {
            search.succeeded(count, took);
        }
    }
    assert_eq!(search.best(), 64);
    let first = first.expect("it looks whether more fits than was said");
    assert!(first > 500 && failures < 40, "{failures} failures, the first in call {first}");
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

/// What a framework keeps of memory, and how long it takes it from the driver: a chunk that needs more
/// than those before it asks for it.
#[derive(Debug, Default)]
struct Kept(f64);

impl Kept {
    fn seconds(&mut self, bytes: f64, driver: f64) -> f64 {
        let asks = bytes > self.0;
        self.0 = self.0.max(bytes);
        if asks { driver } else { 0.0 }
    }
}

/// Seconds with one size throughout; nothing where it does not fit once.
fn fixed(items: &[f64], size: usize, costs: Costs, driver: f64) -> Option<f64> {
    let mut kept = Kept::default();
    items.chunks(size).map(costs).try_fold(0.0, |sum, (seconds, bytes)| {
        (bytes <= CAPACITY).then(|| sum + seconds + kept.seconds(bytes, driver))
    })
}

/// Seconds with the search, failures included; where it `knows` what chunks need, it is told how many
/// items fit.
fn searched(items: &[f64], costs: Costs, driver: f64, knows: bool) -> f64 {
    let (mut search, mut done, mut sum) = (ChunkSearch::new(4096), 0, 0.0);
    let (mut kept, mut most) = (Kept::default(), 0.0);
    while done < items.len() {
        let size = usize::try_from(search.size()).unwrap().min(items.len() - done);
        let (seconds, bytes) = costs(&items[done..done + size]);
        let fits = bytes <= CAPACITY;
        // An attempt that fails has done most of its work, and has returned all that was kept.
        let took = if fits {
            seconds + kept.seconds(bytes, driver)
        } else {
            0.6 * seconds + 0.01 + 2.0 * driver
        };
        let (count, time) = (size as u64, Duration::from_secs_f64(took));
        sum += took;
        if fits {
            if knows && bytes > most {
                most = bytes;
                search.set_room((size as f64 * CAPACITY / bytes) as u64);
            }
            search.succeeded(count, time);
            done += size;
        } else {
            kept = Kept::default();
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
    let models: [(&str, usize, Costs); 6] = [
        ("padded, far from the limit", 60_000, |c| (0.003 + padded(c) * 1e-6, padded(c) * 4e4)),
        ("padded, at the limit", 60_000, |c| (0.003 + padded(c) * 1e-6, padded(c) * 4e5)),
        ("put together, at the limit", 60_000, |c| {
            let sum = c.iter().sum::<f64>();
            (0.01 + sum * 1e-6, sum * 4e5)
        }),
        ("equal items", 60_000, |c| {
            let count = c.len() as f64;
            (0.004 + count * 1e-3, count * 5e7)
        }),
        // As an H200 has them under 8 GiB: ten seconds of BERT, half a minute of GPT-2.
        ("an encoder, a short job", 32_000, |c| (0.012 + padded(c) * 6e-7, padded(c) * 2.3e4)),
        ("logits, at the limit", 15_000, |c| (0.006 + padded(c) * 3.6e-6, padded(c) * 1.0e6)),
    ];
    for (name, count, costs) in models {
        let items = &lengths[..count];
        // Where the driver takes long, one failure in ten seconds is a twentieth of the time.
        for (driver, knows, least) in [(0.0, false, 0.95), (0.03, true, 0.92), (0.03, false, 0.91)]
        {
            let best = (1..=600).step_by(3).filter_map(|size| fixed(items, size, costs, driver));
            let share = best.fold(f64::INFINITY, f64::min) / searched(items, costs, driver, knows);
            assert!(
                share > least,
                "{name}, driver {driver} s, memory known {knows}: {share:.3} of the best fixed size"
            );
        }
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
