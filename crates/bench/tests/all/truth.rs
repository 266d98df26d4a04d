//! Every figure, name and doubt says what happened.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use plimsoll::Bytes;
use plimsoll_bench::doubt::Doubt;
use plimsoll_bench::record::{BenchRecord, MeasuredWhat, ModelRecord, Status};
use plimsoll_bench::workload::{
    BenchError, BenchPlan, BenchProgress, Finished, Level, RowPlan, Silent, SlotProgress, run,
};
use plimsoll_infer::engine::EngineMemory;
use plimsoll_infer::{EngineChoice, EngineKind, ModelSource, Tensor};

use crate::workload::{doubts, echo, plimsoll_bmp, ran};

fn log(finished: &Finished) -> String {
    std::fs::read_to_string(finished.folder.join("run.log")).unwrap()
}

/// The demo's detectors take 256x256 and nothing else.
#[test]
fn a_size_that_the_graph_does_not_have_is_refused_before_anything_starts() {
    let place = tempfile::tempdir().unwrap();
    let plan =
        BenchPlan { imgsz: Some(320), output_dir: place.path().into(), ..BenchPlan::default() };
    let error = run(&plan, &mut Silent, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, BenchError::Plan(_)), "{error:?}");
    let said = error.to_string();
    for part in ["demo_rgb.onnx", "256x256", "320x320", "--imgsz"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_size_is_the_one_that_ran() {
    let place = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let of = |imgsz| {
        let plan = BenchPlan {
            engine: EngineChoice::Kind(EngineKind::Rten),
            models: [Some(fixtures.join("small11.pt")), None],
            imgsz,
            max_frames: Some(2),
            warmup: 0,
            ..echo(place.path())
        };
        let Finished { record, .. } = ran(&plan);
        assert_eq!(record.config.imgsz, imgsz);
        record.models[0].model_info.as_ref().unwrap().input_size
    };
    assert_eq!((of(Some(96)), of(None)), (Some([96, 96]), Some([640, 640])));
}

#[test]
fn a_model_is_named_after_its_file_and_the_slot_is_an_attribute() {
    let place = tempfile::tempdir().unwrap();
    let models = [None, Some(PathBuf::from("/models/night.onnx"))];
    let Finished { record, .. } = ran(&BenchPlan { models, ..echo(place.path()) });
    let name = |m: &ModelRecord| (m.slot, m.slot_name.clone(), m.name.clone());
    let names: Vec<_> = record.models.iter().map(name).collect();
    let want = [(0, "yolo11n_rgb", None), (1, "yolo11n_thermal", Some("night.onnx"))]
        .map(|(slot, own, name)| (slot, Some(own.to_string()), name.map(String::from)));
    assert_eq!(names, want);
}

#[test]
fn a_model_that_gives_no_numbers_is_a_doubt_and_with_strict_a_failure() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    let shape = vec![1, 84, 189];
    plan.echo.answers = vec![Tensor { data: vec![f32::NAN; 84 * 189], shape }];
    let Finished { record, .. } = ran(&plan);
    assert_eq!(record.models[0].status, Status::Completed);
    let doubt = Doubt::NoNumbers { n: 8, frames: 8 };
    assert!(record.doubts.iter().any(|d| d.doubt == doubt), "{:?}", record.doubts);
    let Finished { record, .. } = ran(&BenchPlan { strict: true, ..plan });
    assert_eq!((record.models[0].status, record.exit_code(false)), (Status::Failed, 3));
    assert!(record.models[0].reason.as_ref().unwrap().contains("NaN"));
}

/// Removes a folder of pictures while it is read.
struct Remover(Option<PathBuf>);

impl BenchProgress for Remover {
    fn frames(&mut self, _: &SlotProgress<'_>) {
        if let Some(folder) = self.0.take() {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

fn vanishing(strict: bool) -> BenchRecord {
    let place = tempfile::tempdir().unwrap();
    let pictures = place.path().join("in");
    std::fs::create_dir(&pictures).unwrap();
    for n in 0..300 {
        std::fs::write(pictures.join(format!("{n}.bmp")), plimsoll_bmp()).unwrap();
    }
    let mut plan = BenchPlan { strict, ..echo(place.path()) };
    plan.source = Some(format!("image_dir={}", pictures.display()));
    plan.echo.time = Some(std::time::Duration::from_millis(5));
    run(&plan, &mut Remover(Some(pictures)), &AtomicBool::new(false)).unwrap().record
}

#[test]
fn a_source_that_vanishes_is_not_so_many_bad_frames() {
    let record = vanishing(false);
    assert_eq!(record.models[0].status, Status::Completed);
    assert!(record.input_source.streams[0].corrupt < 10, "{:?}", record.input_source);
    let text = record.doubts.iter().find(|d| d.doubt.kind() == "source_vanished");
    let text = &text.expect("a doubt").text;
    assert!(text.contains("of its 300 pictures are not there any more"), "{text}");
    let record = vanishing(true);
    assert_eq!((record.models[0].status, record.exit_code(false)), (Status::Failed, 3));
}

#[test]
#[cfg(target_os = "linux")]
fn detections_that_cannot_be_written_are_a_doubt_and_with_strict_an_error() {
    let place = tempfile::tempdir().unwrap();
    let plan = BenchPlan { detections: Some("/dev/full".into()), ..echo(place.path()) };
    let Finished { record, .. } = ran(&plan);
    assert!(doubts(&record).contains(&"output_incomplete"));
    assert_eq!((record.models[0].status, record.exit_code(false)), (Status::Completed, 0));
    let Finished { record, .. } = ran(&BenchPlan { strict: true, ..plan });
    assert_eq!((record.models[0].status, record.exit_code(false)), (Status::Completed, 3));
}

#[test]
fn the_log_holds_the_configuration_warnings_and_violations_with_their_levels() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    plan.command_line = vec!["plimsoll".into(), "bench".into()];
    plan.echo.memory = Some(EngineMemory::new(600 << 20, 700 << 20));
    plan.limit = Some(Bytes::mib(500));
    let finished = ran(&plan);
    let text = log(&finished);
    for part in
        ["INFO  command: plimsoll bench", "INFO  config: {", "\"gpu_mem_limit_gb\":0.48828125"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["INFO  source: synthetic", "INFO  limit: ", "WARN  doubt: ", "INFO  run finished"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let violation =
        "ERROR VIOLATION: echo (slot 0) holds 600.00 MiB, more than the limit of 500.00 MiB";
    assert!(text.contains(violation), "{text}");
    assert_eq!(
        text.matches("VIOLATION").count() as u64,
        finished.record.memory_safety.total_violations
    );
    assert!(!text.contains("DEBUG"), "{text}");
    let more = log(&ran(&BenchPlan { log_level: Level::Debug, ..plan }));
    assert!(more.contains("DEBUG") && more.lines().count() > text.lines().count(), "{more}");
}

#[test]
fn the_memory_of_the_whole_run_is_of_all_slots_together() {
    let place = tempfile::tempdir().unwrap();
    let mut plan = echo(place.path());
    plan.echo.memory = Some(EngineMemory::new(600 << 20, 700 << 20));
    plan.models = [Some("a.onnx".into()), Some("b.onnx".into())];
    let usage = |plan: &BenchPlan| ran(plan).record.system_metrics.gpu_memory;
    let gib = |mib: f64| Some(mib / 1024.0);
    let turn = usage(&plan);
    assert_eq!((turn.min_gb, turn.mean_gb, turn.peak_gb), (gib(600.0), gib(600.0), gib(700.0)));
    assert_eq!((turn.samples, turn.what), (20, MeasuredWhat::ProcessMemory));
    assert_eq!(turn.source.as_deref(), Some("echo allocator"));
    let both = usage(&BenchPlan { parallel: true, ..plan });
    assert!(both.peak_gb >= gib(700.0) && both.peak_gb <= gib(1200.0), "{both:?}");
}

/// Nothing that a run leaves shows the password of its camera.
#[test]
fn passwords_and_tokens_are_in_no_file() {
    let place = tempfile::tempdir().unwrap();
    let address = "rtsp://me:sesame@127.0.0.1:1/live?token=sesame";
    let mut plan = echo(place.path());
    plan.source = Some(address.to_string());
    plan.command_line = vec!["plimsoll".into(), "--source".into(), address.into()];
    plan.log_level = Level::Debug;
    let finished = run(&plan, &mut Silent, &AtomicBool::new(false)).unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(&finished.folder).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        assert!(!text.contains("sesame"), "{}: {text}", path.display());
        files += usize::from(text.contains("@127.0.0.1:1/live?token="));
    }
    assert!(files >= 4, "report.json, report.md, report.html and run.log show the address");
}

/// Files of the same name are told apart by their folders, engines by their names, and what is the
/// same twice by a number.
#[test]
fn rows_have_names_of_their_own_and_share_the_frames() {
    let place = tempfile::tempdir().unwrap();
    let row = |path: &str| RowPlan {
        weights: ModelSource::path(path),
        engine: EngineChoice::Kind(EngineKind::Echo),
    };
    let paths = ["runs/one/best.onnx", "runs/two/best.onnx", "other.onnx", "other.onnx"];
    let plan = BenchPlan {
        rows: paths.map(row).to_vec(),
        row_sources: vec!["synthetic:frames=3,size=96x64".to_string()],
        models: [None, None],
        source: None,
        ..echo(place.path())
    };
    let Finished { record, folder, .. } = ran(&plan);
    let names: Vec<String> = record.models.iter().map(ModelRecord::label).collect();
    assert_eq!(names, ["one/best.onnx", "two/best.onnx", "other.onnx", "other.onnx #2"]);
    assert_eq!(record.summary.text.split(';').next(), Some("4 of 4 rows completed, 12 frames"));
    assert_eq!(record.exit_code(true), 0);
    for model in &record.models {
        assert_eq!(model.performance.as_ref().map(|p| p.frames), Some(3), "{}", model.label());
        assert_eq!((&model.slot_name, model.accuracy.is_none()), (&None, true));
    }
    let log = std::fs::read_to_string(folder.join("run.log")).unwrap();
    assert!(log.contains("two/best.onnx: echo on cpu"), "{log}");
}
