use super::*;
use plimsoll_machine::units::Bytes;
use proptest::prelude::*;

fn full() -> Error {
    Error::OutOfMemory { memory: "sim".into(), requested: Bytes(2), available: Bytes(1) }
}

/// Work that takes at most this many items at once.
fn up_to(capacity: u64) -> impl FnMut(Range<u64>) -> Result<Range<u64>, Error> {
    move |range| if range.end - range.start > capacity { Err(full()) } else { Ok(range) }
}

fn assert_in_order(ranges: &[Range<u64>], items: u64) {
    let mut next = 0;
    for range in ranges {
        assert_eq!(range.start, next);
        assert!(range.start < range.end);
        next = range.end;
    }
    assert_eq!(next, items);
}

#[test]
fn what_fits_is_not_touched() {
    let report = run_adaptive(64, 16, up_to(16)).unwrap();
    assert_eq!(report.results, [0..16, 16..32, 32..48, 48..64]);
    assert_eq!((report.chunks, report.halvings, report.growths), (4, 0, 0));
    assert_eq!(run_adaptive(0, 16, up_to(0)).unwrap(), AdaptiveReport::default());
}

#[test]
fn only_the_chunk_that_failed_is_tried_again() {
    let mut refusals = 1;
    let mut tried = Vec::new();
    let report = run_adaptive(12, 4, |range: Range<u64>| {
        tried.push(range.clone());
        if range.start == 4 && refusals > 0 {
            refusals -= 1;
            return Err(full());
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(tried, [0..4, 4..8, 4..6, 6..8, 8..10, 10..12]);
    assert_eq!((report.items, report.halvings), (12, 1));
}

#[test]
fn chunks_grow_back_when_there_is_room_again() {
    let mut calls = 0;
    let report = AdaptiveRunner::new(8)
        .with_grow_after(2)
        .run(64, |range: Range<u64>| {
            calls += 1;
            if calls < 3 && range.end - range.start > 2 { Err(full()) } else { Ok(range) }
        })
        .unwrap();
    assert_in_order(&report.results, 64);
    assert_eq!((report.halvings, report.growths), (2, 2));
    assert_eq!((report.smallest_chunk, report.largest_chunk), (Some(2), Some(8)));
}

#[test]
fn growth_may_pass_the_first_size_and_may_be_forbidden() {
    let larger = AdaptiveRunner::new(2).with_max_chunk(10).with_grow_after(1);
    let report = larger.run(100, up_to(100)).unwrap();
    assert_eq!(report.largest_chunk, Some(10));
    let never = AdaptiveRunner::new(8).with_grow_after(0).run(100, up_to(5)).unwrap();
    assert_eq!((never.growths, never.largest_chunk), (0, Some(4)));
}

#[test]
fn growth_that_keeps_failing_becomes_rare() {
    let report = AdaptiveRunner::new(8).with_grow_after(1).run(4000, up_to(4)).unwrap();
    assert_in_order(&report.results, 4000);
    assert!(report.halvings <= 12, "{} halvings in 1,000 chunks", report.halvings);
}

#[test]
fn one_item_that_does_not_fit_ends_the_run_with_what_was_done() {
    let failure = run_adaptive(
        10,
        4,
        |range: Range<u64>| {
            if range.contains(&5) { Err(full()) } else { Ok(range) }
        },
    )
    .unwrap_err();
    assert_eq!((failure.range.clone(), failure.full_now), (5..6, true));
    assert_in_order(&failure.report.results, 5);
    assert!(failure.to_string().starts_with("item 5 does not fit even alone: out of memory"));
    assert!(failure.to_string().ends_with("items 0..5 were done before"));
    assert!(failure.into_error().is_full_now());
}

#[test]
fn other_errors_end_the_run_at_once() {
    let mut calls = 0;
    let failure = run_adaptive(10, 4, |range: Range<u64>| {
        calls += 1;
        match range.start {
            0 => Ok(range),
            _ => Err(Error::Device { call: "launch", why: "illegal address".into() }),
        }
    })
    .unwrap_err();
    assert_eq!((failure.range.clone(), failure.full_now), (4..8, false));
    assert_in_order(&failure.report.results, 4);
    assert_eq!(calls, 2);
    assert!(failure.to_string().starts_with("items 4..8 failed: launch failed"), "{failure}");
}

#[test]
fn what_can_never_fit_is_not_halved_unless_asked() {
    let never = |range: Range<u64>| match range.end - range.start {
        0..=2 => Ok(range),
        _ => {
            Err(Error::NeverFits { memory: "sim".into(), requested: Bytes(4), capacity: Bytes(2) })
        }
    };
    assert!(run_adaptive(8, 4, never).is_err());
    let report = AdaptiveRunner::new(4).run_by(8, never, Error::is_out_of_memory).unwrap();
    assert_in_order(&report.results, 8);
}

#[test]
fn the_largest_numbers_do_not_wrap() {
    let report = run_adaptive(u64::MAX, u64::MAX, up_to(u64::MAX / 2 + 1)).unwrap();
    assert_in_order(&report.results, u64::MAX);
}

proptest! {
    #[test]
    fn any_refusals_lose_and_repeat_nothing(
        total in 0u64..300,
        chunk in 0u64..64,
        grow_after in 0u64..5,
        refused in prop::collection::vec(any::<bool>(), 0..200),
    ) {
        let mut refused = refused.into_iter();
        let run = AdaptiveRunner::new(chunk).with_grow_after(grow_after).run(
            total,
            |range: Range<u64>| match refused.next() {
                Some(true) => Err(full()),
                _ => Ok(range),
            },
        );
        match run {
            Ok(report) => {
                assert_in_order(&report.results, total);
                prop_assert_eq!((report.items, report.chunks), (total, report.results.len() as u64));
            }
            Err(failure) => {
                prop_assert_eq!(failure.range.end - failure.range.start, 1);
                assert_in_order(&failure.report.results, failure.range.start);
            }
        }
    }

    #[test]
    fn a_capacity_that_varies_is_followed(
        total in 0u64..2000,
        chunk in 1u64..256,
        most in 1u64..256,
        capacities in prop::collection::vec(1u64..200, 1..40),
    ) {
        let mut attempts = 0usize;
        let report = AdaptiveRunner::new(chunk)
            .with_max_chunk(most)
            .run(total, |range: Range<u64>| {
                let capacity = capacities[attempts % capacities.len()];
                attempts += 1;
                up_to(capacity)(range)
            })
            .unwrap();
        assert_in_order(&report.results, total);
        prop_assert!(report.largest_chunk.unwrap_or(0) <= chunk.max(most));
        prop_assert_eq!(attempts as u64, report.chunks + report.halvings);
    }
}
