//! Two runs in their folders: the same, a slower one, different things, broken files.

use std::path::Path;
use std::time::UNIX_EPOCH;

use plimsoll_bench::compare::{
    CompareEvidence, CompareOptions, CompareTone, Comparison, RecordedRun, compare,
};
use plimsoll_bench::doubt::Doubt;
use plimsoll_bench::measure::FrameLine;
use plimsoll_bench::record::{BenchRecord, DoubtRecord, Status};
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
fn what_would_help_is_said_where_one_cannot_say() {
    let loaded = |record: &mut BenchRecord| {
        record.doubts.push(DoubtRecord::new(None, Doubt::OtherLoad { percent: 58.0 }));
    };
    let found = against(1.0, true, loaded, &CompareOptions::default());
    let advice = found.slots[0].advice.as_deref().unwrap();
    assert_eq!(advice, "other programs used 58 % of the processors; try --repeat 5");
    assert!(found.text().contains(advice) && !found.verdicts().contains(advice));
    let quiet = against(1.0, true, |_| {}, &CompareOptions::default());
    let advice = quiet.slots[0].advice.as_deref().unwrap();
    assert!(advice.contains("cannot be seen here; try --repeat 5"), "{advice}");
    assert_eq!(against(1.5, true, loaded, &CompareOptions::default()).slots[0].advice, None);
}

#[test]
fn every_figure_of_both_runs_is_shown() {
    let place = tempfile::tempdir().unwrap();
    let a = save(place.path(), &Wish::default(), true, |_| {});
    let slower = Wish { slowdown: 1.5, seed: 99, ..Wish::default() };
    let b = save(place.path(), &slower, true, |record| {
        record.models[0].energy_per_frame_j = Some(0.5);
    });
    let found = compare(&a, &b, &CompareOptions::default());
    let names: Vec<&str> = found.slots[0].figures.iter().map(|figure| figure.name).collect();
    assert_eq!(names, ["fps", "p50", "p95", "p99", "mAP", "peak memory", "energy a frame"]);
    let tone = |name: &str| {
        found.slots[0].figures.iter().find(|figure| figure.name == name).map(|f| f.tone)
    };
    assert_eq!(tone("fps"), Some(CompareTone::Worse));
    assert_eq!(tone("p95"), Some(CompareTone::Worse));
    assert_eq!(tone("peak memory"), Some(CompareTone::Same));
    let html = found.html(&a, &b);
    assert!(html.contains("REGRESSION") && html.contains("energy a frame J"), "{html}");
}

#[test]
fn rows_are_compared_by_their_names() {
    let place = tempfile::tempdir().unwrap();
    let write = |record: &BenchRecord| {
        let mut folder = RunFolder::create(place.path(), Some("run"), UNIX_EPOCH).unwrap();
        let _ = folder.write(&Rendered::new(record, &[]).unwrap()).unwrap();
        RecordedRun::read(folder.path()).unwrap()
    };
    let mut record = made_up::rows(&Wish::default());
    record.settle();
    let a = write(&record);
    record.models.swap(0, 2);
    let b = write(&record);
    let found = compare(&a, &b, &CompareOptions::default());
    assert!(found.comparable, "{:?}", found.differences);
    let names: Vec<&str> = found.slots.iter().map(|slot| slot.label.as_str()).collect();
    assert_eq!(names, ["street.onnx, ort", "night.engine, ort", "night.engine, tensorrt"]);
    // A row that the second run has not is a difference, and said where that is forced.
    record.models.remove(0);
    let c = write(&record);
    let apart = compare(&a, &c, &CompareOptions::default());
    assert!(!apart.comparable && apart.differences[0].contains("no such row"));
    let forced = CompareOptions { force: true, ..CompareOptions::default() };
    assert!(compare(&a, &c, &forced).text().contains("it is only in the first run"));
}

/// A report of version 2.0, before there were rows, is still read.
#[test]
fn reports_of_this_form_are_read_and_others_refused_by_their_version() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("report.json");
    let mut value = serde_json::to_value(made_up::record(&Wish::default())).unwrap();
    value["schema_version"] = "2.0".into();
    value["config"].as_object_mut().unwrap().remove("loop");
    for model in value["models"].as_array_mut().unwrap() {
        let fields = model.as_object_mut().unwrap();
        for field in ["row", "energy_per_frame_j", "energy_of", "weights_type"] {
            assert!(fields.remove(field).is_some());
        }
    }
    let mut write = |version: &str| {
        value["schema_version"] = version.into();
        std::fs::write(&path, value.to_string()).unwrap();
        RecordedRun::read(place.path())
    };
    assert_eq!(write("2.0").unwrap().record.models.len(), 2);
    for (version, says) in [("1.3", "older: measure again"), ("3.0", "newer")] {
        let error = write(version).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(version), "{error}");
    }
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
