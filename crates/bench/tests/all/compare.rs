//! Two runs in their folders: the same, a slower one, different things, broken files.

use std::path::Path;
use std::time::UNIX_EPOCH;

use plimsoll_bench::compare::{CompareEvidence, CompareOptions, Comparison, RecordedRun, compare};
use plimsoll_bench::measure::FrameLine;
use plimsoll_bench::record::{BenchRecord, Status};
use plimsoll_bench::report::Rendered;
use plimsoll_bench::report::files::RunFolder;
use plimsoll_bench::stats::SpeedVerdict;

use crate::made_up::{self, Wish};

fn save(place: &Path, wish: &Wish, metrics: bool, change: fn(&mut BenchRecord)) -> RecordedRun {
    let mut record = made_up::record(wish);
    change(&mut record);
    let mut folder = RunFolder::create(place, Some("run"), UNIX_EPOCH).unwrap();
    let _ = folder.write(&Rendered::new(&record, &[]).unwrap()).unwrap();
    if metrics {
        let mut journal = folder.metrics().unwrap();
        journal.line("{\"t\": 0.0, \"cpu_percent\": 3.0}").unwrap();
        for frame in (0..2).flat_map(|slot| made_up::frames(wish, slot)) {
            journal.json(&FrameLine::from(&frame)).unwrap();
        }
        journal.line("{\"t\": 9.0, \"slot\": 0, \"fra").unwrap();
    }
    RecordedRun::read(folder.path()).unwrap()
}

fn against(
    slowdown: f64,
    metrics: bool,
    change: fn(&mut BenchRecord),
    options: &CompareOptions,
) -> Comparison {
    let place = tempfile::tempdir().unwrap();
    let a = save(place.path(), &Wish::default(), metrics, |_| {});
    let b = save(place.path(), &Wish { seed: 99, slowdown, ..Wish::default() }, metrics, change);
    assert_eq!(a.frames[0].len(), if metrics { 300 } else { 0 }, "no warm-up, no torn line");
    compare(&a, &b, options)
}

#[test]
fn the_same_thing_cannot_be_told_apart() {
    for metrics in [true, false] {
        let found = against(1.0, metrics, |_| {}, &CompareOptions::default());
        assert!(found.comparable && !found.regression(), "{}", found.text());
        for slot in &found.slots {
            assert_eq!(slot.judgement.map(|j| j.verdict), Some(SpeedVerdict::CannotSay));
            let evidence = if metrics { CompareEvidence::Frames } else { CompareEvidence::Summary };
            assert_eq!(slot.evidence, Some(evidence));
        }
    }
}

#[test]
fn a_tenth_slower_is_a_regression_and_less_is_tolerated() {
    let found = against(1.1, true, |_| {}, &CompareOptions::default());
    assert!(found.regression(), "{}", found.text());
    assert!(found.text().contains("slower: REGRESSION"), "{}", found.text());
    let tolerant = CompareOptions { tolerance: 0.2, ..CompareOptions::default() };
    let found = against(1.1, true, |_| {}, &tolerant);
    assert!(!found.regression());
    assert_eq!(found.slots[0].judgement.map(|j| j.verdict), Some(SpeedVerdict::Slower));
    let found = against(0.8, true, |_| {}, &CompareOptions::default());
    assert_eq!(found.slots[1].judgement.map(|j| j.verdict), Some(SpeedVerdict::Faster));
}

#[test]
fn summaries_give_wider_intervals() {
    let width = |metrics| {
        let found = against(1.0, metrics, |_| {}, &CompareOptions::default());
        let interval = found.slots[0].judgement.unwrap().interval;
        interval.high - interval.low
    };
    assert!(width(false) > width(true));
}

#[test]
fn different_things_are_named_and_not_compared() {
    let change = |record: &mut BenchRecord| {
        if let Some(info) = &mut record.models[0].model_info {
            info.input_size = Some([320, 416]);
            info.device = "cpu".into();
        }
    };
    let found = against(2.0, true, change, &CompareOptions::default());
    assert_eq!(
        found.differences,
        [
            "input size of slot 0: 640x640 in the first run, 320x416 in the second",
            "device of slot 0: cuda:0 in the first run, cpu in the second"
        ]
    );
    assert!(!found.comparable && !found.regression());
    assert!(found.slots.iter().all(|slot| slot.judgement.is_none()));
    let forced = CompareOptions { force: true, ..CompareOptions::default() };
    assert!(against(2.0, true, change, &forced).regression());
}

#[test]
fn a_slot_that_did_not_run_has_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    let idle = |record: &mut BenchRecord| record.models[1].performance = None;
    let a = save(place.path(), &Wish::default(), true, idle);
    let b = save(place.path(), &Wish::default(), true, idle);
    let found = compare(&a, &b, &CompareOptions::default());
    assert_eq!(found.slots[1].judgement, None);
    assert!(!found.broken() && !found.regression());
    assert!(found.text().contains("night.engine (slot 1): cannot say (first run: completed)"));
}

#[test]
fn a_second_run_that_failed_is_no_good_and_says_so() {
    let failed = |record: &mut BenchRecord| {
        record.models[0].status = Status::Failed;
        record.models[0].reason = Some("the camera is gone".into());
    };
    let found = against(1.0, true, failed, &CompareOptions::default());
    assert!(found.broken() && !found.regression());
    let said = "street.onnx (slot 0): BROKEN in the second run: failed: the camera is gone";
    assert!(found.text().contains(said), "{}", found.text());
    // It never began, or was stopped before it did.
    let idle = |record: &mut BenchRecord| {
        record.models[1].performance = None;
        record.models[1].status = Status::Interrupted;
    };
    assert!(against(1.0, true, idle, &CompareOptions::default()).broken());
    // That the first failed is no fault of the second.
    let place = tempfile::tempdir().unwrap();
    let a = save(place.path(), &Wish::default(), true, failed);
    let b = save(place.path(), &Wish::default(), true, |_| {});
    assert!(!compare(&a, &b, &CompareOptions::default()).broken());
}

#[test]
fn what_is_no_report_is_said() {
    let place = tempfile::tempdir().unwrap();
    let missing = RecordedRun::read(place.path()).unwrap_err().to_string();
    assert!(missing.contains("report.json") && missing.contains("folder of a run"), "{missing}");
    std::fs::write(place.path().join("report.json"), "{\"schema_version\": 3}").unwrap();
    let wrong = RecordedRun::read(place.path()).unwrap_err().to_string();
    assert!(wrong.contains("not a report"), "{wrong}");
}
