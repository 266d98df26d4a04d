//! The main job, end to end: with the demo's detectors, and with answers that are known.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll::Bytes;
use plimsoll_bench::doubt::Doubt;
use plimsoll_bench::record::{
    BenchRecord, HowObtained, MeasuredWhat, ModelRecord, ReportLimitType, Status,
};
use plimsoll_bench::workload::{
    BenchError, BenchPlan, BenchProgress, Finished, Silent, SlotMode, SlotProgress, run,
};
use plimsoll_infer::engine::EngineMemory;
use plimsoll_infer::{EngineChoice, EngineKind};

use crate::schema::wrong;

/// Five detections a frame, without a model.
pub(crate) fn echo(place: &Path) -> BenchPlan {
    BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Echo),
        source: Some("synthetic:frames=8,size=96x64".to_string()),
        models: [Some("echo".into()), None],
        imgsz: Some(96),
        warmup: 2,
        output_dir: place.to_path_buf(),
        run_name: Some("a".to_string()),
        ..BenchPlan::default()
    }
}

pub(crate) fn ran(plan: &BenchPlan) -> Finished {
    let finished = run(plan, &mut Silent, &AtomicBool::new(false)).unwrap();
    checked(&finished);
    finished
}

/// The report in the folder is the record, and fits the schema.
fn checked(finished: &Finished) {
    let text = std::fs::read_to_string(finished.folder.join("report.json")).unwrap();
    let value = serde_json::from_str(&text).unwrap();
    assert_eq!(wrong(&value), Vec::<String>::new());
    let back: BenchRecord = serde_json::from_value(value).unwrap();
    assert_eq!(back, finished.record);
}

fn frames(model: &ModelRecord) -> u64 {
    model.performance.as_ref().map_or(0, |performance| performance.frames)
}

fn statuses(record: &BenchRecord) -> [Status; 2] {
    [record.models[0].status, record.models[1].status]
}

pub(crate) fn doubts(record: &BenchRecord) -> Vec<&'static str> {
    record.doubts.iter().map(|doubt| doubt.doubt.kind()).collect()
}

#[test]
fn the_demo_runs_both_slots_and_knows_how_right_it_was() {
    let place = tempfile::tempdir().unwrap();
    let plan = BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Rten),
        max_frames: Some(30),
        warmup: 1,
        output_dir: place.path().into(),
        ..BenchPlan::default()
    };
    let Finished { record, folder, written, .. } = ran(&plan);
    assert!(written && !record.interrupted);
    assert_eq!((record.config.mode.as_str(), record.exit_code(true)), ("dual", 0));
    assert_eq!(record.input_source.unpaired, Some(0));
    assert_eq!(record.memory_safety.all_within_limit, Some(true));
    for model in &record.models {
        assert_eq!((model.status, frames(model)), (Status::Completed, 30), "{}", model.label());
        let info = model.model_info.as_ref().unwrap();
        assert_eq!(info.input_size, Some([256, 256]), "the size that ran");
        let accuracy = model.accuracy.as_ref().unwrap();
        assert!(accuracy.precision.unwrap() >= 0.9, "{accuracy:?}");
        assert!(accuracy.recall.unwrap() >= 0.9, "{accuracy:?}");
        assert_eq!(model.gpu_memory.what, MeasuredWhat::ProcessMemory);
        assert_eq!(model.gpu_memory.obtained, Some(HowObtained::Sampled));
        assert_eq!(model.gpu_memory.samples, 31);
        let found = model.detection_summary.as_ref().unwrap();
        assert_eq!(found.per_class.values().sum::<u64>(), found.total);
        assert!(found.per_class.contains_key("person"), "{found:?}");
    }
    assert!(record.shared.peak_gb.unwrap() > 0.0);
    let html = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(html.contains("data:image/bmp"), "frames are shown");
    let log = std::fs::read_to_string(folder.join("run.log")).unwrap();
    assert!(log.contains("rten on cpu") && log.contains("run finished"), "{log}");
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().filter(|line| line.contains("\"slot\"")).count(), 62);
    assert!(metrics.lines().any(|line| line.contains("\"cpu_percent\"")));
}

#[test]
fn numbers_are_exact_where_the_answers_are_known() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    plan.echo.time = Some(Duration::from_millis(3));
    plan.echo.memory = Some(EngineMemory::new(600 << 20, 700 << 20));
    plan.limit = Some(Bytes::mib(650));
    plan.detections = Some(place.path().join("found.jsonl"));
    let Finished { record, .. } = ran(&plan);
    assert_eq!(statuses(&record), [Status::Completed, Status::Skipped]);
    let model = &record.models[0];
    let performance = model.performance.as_ref().unwrap();
    assert_eq!((performance.frames, performance.warmup_frames), (8, 2));
    assert!(performance.inference.min_ms >= 3.0, "{performance:?}");
    let stages =
        performance.prepare.mean_ms + performance.inference.mean_ms + performance.decode.mean_ms;
    assert!(performance.whole.mean_ms >= stages);
    assert!(performance.decode_ahead.is_some());
    assert_eq!(model.detection_summary.as_ref().unwrap().total, 40);
    // The engine's own account: held 600 MiB at every frame, 700 MiB at its peak.
    let memory = &model.gpu_memory;
    assert_eq!(memory.peak_gb, Some(700.0 / 1024.0));
    assert_eq!((memory.mean_gb, memory.within_limit), (Some(600.0 / 1024.0), Some(false)));
    assert_eq!(memory.source.as_deref(), Some("echo allocator"));
    assert_eq!((record.exit_code(true), record.exit_code(false)), (1, 0));
    let text = std::fs::read_to_string(place.path().join("found.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 8);
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["width"], &first["height"]), (&96.into(), &64.into()));
    assert_eq!(first["detections"].as_array().unwrap().len(), 5);
    assert_eq!(first["detections"][0].as_array().unwrap().len(), 6);
    assert!(first.get("slot").is_none());
}

#[test]
fn a_violation_is_recorded_and_stops_nothing() {
    let place = tempfile::tempdir().unwrap();
    let plan = BenchPlan { limit: Some(Bytes::mib(1)), ..echo(place.path()) };
    let Finished { record, folder, .. } = ran(&plan);
    assert_eq!((record.models[0].status, frames(&record.models[0])), (Status::Completed, 8));
    let safety = &record.memory_safety;
    assert_eq!((safety.all_within_limit, safety.total_violations), (Some(false), 1));
    // No engine here allocates through us: nothing holds the limit, and it is said.
    assert_eq!((safety.limit_type, safety.verified), (ReportLimitType::Unavailable, false));
    assert!(safety.methods_applied.is_empty(), "{:?}", safety.methods_applied);
    assert_eq!(record.models[0].gpu_memory.limit_type, ReportLimitType::Unavailable);
    assert_eq!(safety.violation_details[0].slot, Some(0));
    assert!(safety.violation_details[0].bytes > 1 << 20);
    let markdown = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(markdown.contains("limit"), "{markdown}");
}

#[test]
fn modes_sources_and_weights_say_what_runs() {
    use Status::{Completed, Failed, Skipped};
    let scenes = || Some("synthetic:frames=3,size=64x64".to_string());
    let some = || Some("echo".into());
    type Case = (Option<SlotMode>, [bool; 3], [bool; 2], [Status; 2], &'static str);
    let cases: [Case; 8] = [
        (Some(SlotMode::Rgb), [true, false, false], [true, true], [Completed, Skipped], "rgb"),
        (
            Some(SlotMode::Thermal),
            [true, false, false],
            [true, true],
            [Skipped, Completed],
            "thermal",
        ),
        (None, [true, false, false], [true, true], [Completed, Completed], "dual"),
        (None, [true, false, false], [false, true], [Skipped, Completed], "thermal"),
        (None, [false, true, true], [true, true], [Completed, Completed], "dual"),
        (Some(SlotMode::Dual), [false, true, true], [true, false], [Completed, Skipped], "dual"),
        (None, [false, false, true], [false, true], [Skipped, Completed], "thermal"),
        (Some(SlotMode::Rgb), [true, false, false], [false, true], [Skipped, Skipped], "rgb"),
    ];
    let place = tempfile::tempdir().unwrap();
    for (mode, [one, rgb, thermal], [model0, model1], wanted, name) in cases {
        let plan = BenchPlan {
            mode,
            source: one.then(scenes).flatten(),
            sources: [rgb.then(scenes).flatten(), thermal.then(scenes).flatten()],
            models: [model0.then(some).flatten(), model1.then(some).flatten()],
            ..echo(place.path())
        };
        let Finished { record, .. } = ran(&plan);
        assert_eq!(statuses(&record), wanted, "{plan:?}");
        assert_eq!(record.config.mode, name, "{plan:?}");
        let all_skipped = wanted == [Skipped, Skipped];
        assert_eq!(record.exit_code(false), if all_skipped { 2 } else { 0 });
    }
    // Weights that cannot be loaded fail: a graph of an input and nothing else.
    let bare = place.path().join("bare.onnx");
    std::fs::write(&bare, b"\x3a\x05\x5a\x03\x0a\x01x\x42\x02\x10\x11").unwrap();
    let plan = BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Rten),
        models: [Some(bare), None],
        ..echo(place.path())
    };
    let Finished { record, .. } = ran(&plan);
    assert_eq!((statuses(&record), record.exit_code(false)), ([Failed, Skipped], 3));
    assert!(record.models[0].reason.as_ref().unwrap().contains("bare.onnx"));
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let place = tempfile::tempdir().unwrap();
    let refused = |plan: BenchPlan, word: &str| {
        let error = run(&plan, &mut Silent, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(matches!(error, BenchError::Plan(_)), "{error:?}");
    };
    let base = || echo(place.path());
    refused(BenchPlan { conf: 1.5, ..base() }, "--conf");
    refused(BenchPlan { imgsz: Some(100), ..base() }, "--imgsz");
    refused(BenchPlan { rate: Some(f64::NAN), ..base() }, "--rate");
    refused(BenchPlan { rate: Some(1e-20), ..base() }, "--rate");
    refused(BenchPlan { mode: Some(SlotMode::Dual), ..base() }, "--thermal-source");
    refused(BenchPlan { source: None, ..base() }, "--source");
    refused(BenchPlan { source: Some("nowhere".into()), ..base() }, "nowhere");
    let engine = EngineChoice::Kind(EngineKind::Rten);
    let models = [Some("no/such.onnx".into()), None];
    refused(BenchPlan { engine, models, ..base() }, "no/such.onnx");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn bad_pictures_are_counted_and_skipped() {
    let place = tempfile::tempdir().unwrap();
    let pictures = place.path().join("in");
    std::fs::create_dir(&pictures).unwrap();
    for name in ["a.png", "b.jpg"] {
        std::fs::write(pictures.join(name), b"not a picture").unwrap();
    }
    let bmp = plimsoll_bmp();
    std::fs::write(pictures.join("c.bmp"), &bmp).unwrap();
    std::fs::write(pictures.join("d.bmp"), &bmp[..60]).unwrap();
    let source = Some(format!("image_dir={}", pictures.display()));
    let Finished { record, .. } = ran(&BenchPlan { source, ..echo(place.path()) });
    assert_eq!((record.models[0].status, frames(&record.models[0])), (Status::Completed, 1));
    assert_eq!(record.input_source.streams[0].corrupt, 3);
    assert!(doubts(&record).contains(&"corrupt_frames"));
    // Nothing but bad ones: the slot fails and says so.
    std::fs::remove_file(pictures.join("c.bmp")).unwrap();
    let source = Some(format!("image_dir={}", pictures.display()));
    let Finished { record, .. } = ran(&BenchPlan { source, ..echo(place.path()) });
    assert_eq!(record.models[0].status, Status::Failed);
}

/// A bitmap of 32 by 32, black.
pub(crate) fn plimsoll_bmp() -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    for value in [54u32 + 32 * 96, 0, 54, 40, 32, 32] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0u8; 24]);
    bytes.resize(54 + 32 * 96, 0);
    bytes
}

#[test]
fn two_streams_are_paired_by_time_also_when_both_run_at_once() {
    let place = tempfile::tempdir().unwrap();
    // 10 and 20 frames a second: every second one of the faster stays alone.
    let plan = BenchPlan {
        source: None,
        sources: [
            Some("synthetic:frames=6,rate=10,size=64x64".into()),
            Some("synthetic:thermal,frames=12,rate=20,size=64x64".into()),
        ],
        models: [Some("echo".into()), Some("echo".into())],
        sync_tolerance: Duration::from_millis(10),
        ..echo(place.path())
    };
    for parallel in [false, true] {
        let Finished { record, .. } = ran(&BenchPlan { parallel, ..plan.clone() });
        assert_eq!(statuses(&record), [Status::Completed; 2]);
        assert_eq!((frames(&record.models[0]), frames(&record.models[1])), (6, 6));
        assert!(record.input_source.unpaired.unwrap() >= 5, "{:?}", record.input_source);
        assert!(doubts(&record).contains(&"unpaired_frames"));
        assert_eq!(record.config.parallel, parallel);
    }
}

#[test]
fn an_offered_load_counts_late_and_dropped_frames() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    plan.source = Some("synthetic:size=64x64".into());
    plan.echo.time = Some(Duration::from_millis(25));
    plan.rate = Some(100.0);
    plan.max_frames = Some(120);
    let Finished { record, .. } = ran(&plan);
    let performance = record.models[0].performance.as_ref().unwrap();
    assert_eq!(performance.offered_fps, Some(100.0));
    let dropped = performance.dropped.unwrap();
    assert_eq!(performance.frames + dropped, 120, "every offered frame is one or the other");
    assert!(dropped >= 60 && performance.late.unwrap() > 0, "{performance:?}");
    assert!(performance.parts.cold.is_some() && performance.parts.steady.is_some());
    assert!(performance.whole.max_ms > 25.0 && doubts(&record).contains(&"dropped_frames"));
    // A short source starts over for as long as it is told to.
    let mut plan = echo(place.path());
    plan.source = Some("synthetic:frames=3,size=64x64".into());
    plan.duration = Some(Duration::from_millis(600));
    plan.rate = Some(50.0);
    let Finished { record, .. } = ran(&plan);
    let n = frames(&record.models[0]);
    assert!((4..=31).contains(&n), "{n}");
    assert_eq!(record.config.max_frames, None);
}

#[test]
fn repeats_have_an_interval() {
    let place = tempfile::tempdir().unwrap();
    let Finished { record, .. } = ran(&BenchPlan { repeat: 3, ..echo(place.path()) });
    let performance = record.models[0].performance.as_ref().unwrap();
    assert_eq!((performance.frames, performance.repeats_p50_ms.len()), (8, 3));
    assert!(performance.repeats_interval_ms.is_some());
}

#[test]
fn a_repeat_keeps_the_estimate() {
    let place = tempfile::tempdir().unwrap();
    let plan = BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Rten),
        max_frames: Some(2),
        warmup: 0,
        repeat: 2,
        output_dir: place.path().into(),
        ..BenchPlan::default()
    };
    let Finished { record, .. } = ran(&plan);
    for model in &record.models {
        assert!(model.estimate.is_some_and(|estimate| estimate.weights_bytes > 0), "{model:?}");
        assert_eq!(model.unknown.get("estimate"), None);
    }
    // Where there is none, the reason stays too.
    let Finished { record, .. } =
        ran(&BenchPlan { repeat: 2, run_name: Some("b".into()), ..echo(place.path()) });
    assert_eq!(record.models[0].unknown["estimate"], "echo runs no model");
}

#[test]
fn a_source_with_fewer_frames_than_are_taken_is_a_doubt() {
    let place = tempfile::tempdir().unwrap();
    let early = |max_frames| {
        let Finished { record, .. } = ran(&BenchPlan { max_frames, ..echo(place.path()) });
        record.doubts.into_iter().find_map(|doubt| match doubt.doubt {
            Doubt::SourceEndedEarly { frames, wanted } => Some((frames, wanted)),
            _ => None,
        })
    };
    assert_eq!(early(Some(20)), Some((8, 20)));
    assert_eq!(early(None), Some((8, BenchPlan::FRAMES)), "the default counts as well");
    assert_eq!(early(Some(8)), None);
}

/// Stops the run, or stands in the way of its files, at the first frames.
struct Meddler<'a> {
    stop: Option<&'a AtomicBool>,
    block: Option<std::path::PathBuf>,
    warnings: Vec<String>,
}

impl BenchProgress for Meddler<'_> {
    fn frames(&mut self, _: &SlotProgress<'_>) {
        if let Some(stop) = self.stop {
            stop.store(true, Ordering::Relaxed);
        }
        if let Some(block) = self.block.take() {
            std::fs::create_dir(block).unwrap();
        }
    }

    fn warning(&mut self, text: &str) {
        self.warnings.push(text.to_string());
    }
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    (plan.source, plan.max_frames) = (Some("synthetic:size=64x64".into()), Some(1_000_000));
    plan.models = [Some("echo".into()), Some("echo".into())];
    plan.echo.time = Some(Duration::from_millis(2));
    let stop = AtomicBool::new(false);
    let mut meddler = Meddler { stop: Some(&stop), block: None, warnings: Vec::new() };
    let finished = run(&plan, &mut meddler, &stop).unwrap();
    checked(&finished);
    let record = finished.record;
    assert_eq!(statuses(&record), [Status::Interrupted; 2]);
    assert!(record.interrupted && record.interruption.is_some());
}

#[test]
fn a_place_that_cannot_be_written_to_is_told_and_the_last_report_stands() {
    let place = tempfile::tempdir().unwrap();
    let plan = echo(place.path());
    let block = Some(place.path().join("a/.report.md.new"));
    let mut meddler = Meddler { stop: None, block, warnings: Vec::new() };
    let finished = run(&plan, &mut meddler, &AtomicBool::new(false)).unwrap();
    assert!(!finished.written);
    assert_eq!(meddler.warnings.len(), 1, "{:?}", meddler.warnings);
    let text = std::fs::read_to_string(finished.folder.join("report.json")).unwrap();
    assert_eq!(wrong(&serde_json::from_str(&text).unwrap()), Vec::<String>::new());
    assert_eq!(finished.record.models[0].status, Status::Completed);
}
