//! Lists of several processes become one history and one trace.

use super::super::gather::tests::{figures, note};
use super::*;
use crate::watch::GuardSettings;

type Noted<'a> = (u32, Option<u64>, &'a [(u64, GuardOp, u64, u64)]);

/// The history of lists, each with its process and when that was found dead; and the trace.
fn merged(lists: &[Noted<'_>]) -> (LaunchHistory, Vec<(u64, usize, bool)>, String) {
    let folder = tempfile::tempdir().unwrap();
    let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
    for (pid, _, events) in lists {
        note(&watch, (*pid, u64::from(*pid)), events);
    }
    let gathered = Gathered::default();
    let known: Vec<_> =
        lists.iter().map(|(pid, end, _)| figures((*pid, u64::from(*pid)), *end)).collect();
    let found = gathered.lists(&watch, &known);
    let mut reader = EventsInOrder::new(&found, &gathered, &[]);
    let steps = std::iter::from_fn(|| reader.next());
    let steps = steps.map(|(at, who, event)| (at, who, event.is_some())).collect();
    let mut text = Vec::new();
    let mut trace = AllocationTrace::new(Some(&mut text));
    let times = (LedgerClock::start(), Duration::from_secs(1));
    let history = merge(&found, &gathered, &watch.unified(), times, &mut trace);
    trace.finish().unwrap();
    (history, steps, String::from_utf8(text).unwrap())
}

#[test]
fn within_a_tick_lists_keep_their_order_and_what_is_given_back_comes_first() {
    use GuardOp::{Allocate, Free};
    // One takes what the other gave back, and is itself found dead in the tick of its last
    // event; its clock was once read late.
    let one = [(1000, Allocate, 1, 512), (4000, Allocate, 2, 512)];
    let two = [(2000, Allocate, 1, 512), (4000, Free, 1, 512), (3000, Allocate, 1, 512)];
    let (history, steps, _) = merged(&[(1, Some(4000), &one), (2, None, &two)]);
    let expected = [
        (1000, 0, true),
        (2000, 1, true),
        (4000, 1, true),
        (4000, 0, true),
        (4000, 0, false),
        (4000, 1, true),
    ];
    assert_eq!(steps, expected);
    assert_eq!((history.peaks[&(1, 1)], history.peaks[&(2, 2)]), (1024, 512));
    assert_eq!((history.never_freed.blocks, history.never_freed.bytes), (3, 1536));
    assert_eq!(history.never_freed.by_process[&(1, 1)], (1024, 2));
    let most = history.courses[&0].points.iter().map(|point| point.max).fold(0.0, f64::max);
    assert!((most * f64::from(1 << 30) - 1024.0).abs() < 1e-3, "{most}");
}

#[test]
fn what_a_process_left_is_there_for_the_next() {
    use GuardOp::Allocate;
    let one = [(1000, Allocate, 1, 512), (1000, Allocate, 2, 512)];
    let two = [(9000, Allocate, 1, 512)];
    let (history, _, trace) = merged(&[(1, Some(4000), &one), (2, Some(9500), &two)]);
    let ops: Vec<String> = trace.lines().skip(1).map(|l| l[..3].to_string()).collect();
    assert_eq!(ops, ["a,1", "a,2", "f,1", "f,2", "a,3"], "the last one's stays, as a leak");
    assert_eq!(history.never_freed.blocks, 3, "nobody freed them");
}

#[test]
fn of_many_blocks_the_largest_are_kept_with_their_ends() {
    use GuardOp::{Allocate, Free, Refuse};
    let mut events: Vec<(u64, GuardOp, u64, u64)> = Vec::new();
    for key in 0..50 {
        events.push((key, Allocate, key, (key % 25 + 1) << 10));
    }
    // Half of them is freed; one address comes again without having been freed.
    events.extend((0..50).step_by(2).map(|key| (60 + key, Free, key, 0)));
    events.push((200, Allocate, 1, 99 << 10));
    events.extend((0..30).map(|at| (300 + at, Refuse, 0, 1 << 40)));
    let (history, ..) = merged(&[(1, Some(900), &events)]);
    let sizes: Vec<u64> = history.largest.iter().map(|block| block.bytes >> 10).collect();
    let expected: Vec<u64> = [99].into_iter().chain((7..=25).rev().flat_map(|n| [n, n])).collect();
    assert_eq!(sizes, expected[..20]);
    // Of two that are as large, the first is the earlier: one of an even number was freed.
    let freed: Vec<bool> = history.largest.iter().map(|block| block.to.is_some()).collect();
    assert_eq!(freed[..5], [false, true, false, false, true]);
    assert_eq!((history.never_freed.blocks, history.never_freed.largest.len()), (26, 20));
    assert_eq!(history.refused.len(), 20);
    assert_eq!(history.lost, 0);
}

#[test]
fn what_was_live_at_the_peak_is_known_by_its_place() {
    use GuardOp::{Allocate, Free};
    // 3 and 4 are live at the peak; 1 was freed before, 5 came after.
    let one = [
        (100, Allocate, 1, 2048),
        (200, Free, 1, 2048),
        (300, Allocate, 3, 1536),
        (500, Free, 3, 1536),
        (600, Allocate, 5, 512),
    ];
    let two = [(400, Allocate, 4, 1024)];
    let (history, ..) = merged(&[(1, None, &one), (2, Some(550), &two)]);
    let peak = &history.at_peak[&0];
    assert_eq!((peak.bytes, peak.elsewhere), (2560, 0));
    let places: Vec<_> = peak.places.iter().map(|p| (p.who.0, p.bytes, p.blocks)).collect();
    assert_eq!(places, [(1, 1536, 1), (2, 1024, 1)]);
}

/// Compared with looking at everything at every event.
#[test]
fn the_places_at_the_peak_are_those_of_a_full_look() {
    let mut state = 11u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..200 {
        let (mut builder, mut now) = (PeakBuilder::default(), BTreeMap::<u16, u64>::new());
        let (mut peak, mut kept) = (0, BTreeMap::new());
        for _ in 0..80 {
            let (stack, bytes) = (random(5) as u16, random(9) + 1);
            let held = now.entry(stack).or_default();
            if random(3) == 0 && *held >= bytes {
                *held -= bytes;
                builder.give_back(0, PlaceKey::Stack(stack), bytes, 1);
            } else {
                *held += bytes;
                builder.take(0, PlaceKey::Stack(stack), bytes, 1);
            }
            let charge = now.values().sum::<u64>();
            builder.charged(charge, 0.0);
            if charge > peak {
                peak = charge;
                kept = now.clone();
            }
        }
        let found = builder.finish(|_| (1, 1));
        kept.retain(|_, bytes| *bytes > 0);
        let places: BTreeMap<u16, u64> =
            found.places.iter().map(|place| (place.stack_number, place.bytes)).collect();
        assert_eq!((found.bytes, places), (peak, kept));
    }
}
