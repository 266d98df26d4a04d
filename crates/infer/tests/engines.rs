//! Every engine on small models that we know, and on a YOLO11n where there is one.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_infer::engine::{EchoOptions, echo, open};
use plimsoll_infer::{
    EngineChoice, EngineDevice, EngineKind, EngineMemory, EngineOptions, InferError,
    InferenceEngine, ModelSource, Tensor,
};

const OUT: usize = 6;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

fn options(change: impl FnOnce(&mut EngineOptions)) -> EngineOptions {
    let mut options = EngineOptions::default();
    options.device = EngineDevice::Cpu;
    options.threads = Some(2);
    change(&mut options);
    options
}

/// Opens an engine, or says why the test is skipped; `PLIMSOLL_REQUIRE` makes it fail.
fn try_open(
    kind: EngineKind,
    model: &ModelSource,
    how: &EngineOptions,
) -> Option<Box<dyn InferenceEngine>> {
    match open(kind, model, how) {
        Ok(engine) => Some(engine),
        Err(InferError::Unavailable { what, why }) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            let needed = required.split(',').any(|name| name == kind.name());
            assert!(!needed, "{kind} is required: {what}: {why}");
            println!("skipped: {kind}: {what} is not available");
            None
        }
        Err(error) => panic!("{kind}: {error}"),
    }
}

fn input(shape: &[usize]) -> Tensor {
    let mut input = Tensor::zeros(shape);
    for (index, value) in input.data.iter_mut().enumerate() {
        *value = ((index * 7919) % 1000) as f32 / 500.0 - 1.0;
    }
    input
}

/// What scripts/make-models says that the model computes.
fn expected(input: &Tensor) -> Vec<f32> {
    let pixels = input.data.len() / 3;
    let mut out = Vec::with_capacity(OUT * pixels);
    for o in 0..OUT {
        for pixel in 0..pixels {
            let sum: f32 = (0..3)
                .map(|c| {
                    (0.1 * (o as f32 + 1.0) - 0.05 * c as f32) * input.data[c * pixels + pixel]
                })
                .sum();
            out.push(1.0 / (1.0 + (-(sum + 0.5 - 0.25 * o as f32)).exp()));
        }
    }
    out
}

fn near(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance, "{index}: {got} for {want}");
    }
}

/// The promises of every engine that computes.
fn keeps_its_promises(kind: EngineKind) {
    let model = ModelSource::path(fixture("tiny.onnx"));
    let Some(mut engine) = try_open(kind, &model, &options(|_| ())) else { return };
    let info = engine.model().clone();
    assert_eq!((info.input.as_str(), info.input_size), ("images", Some((8, 8))));
    assert_eq!(info.outputs, [("output0".to_string(), vec![1, OUT, 64])]);
    assert_eq!(info.metadata["names"], "{0: 'ship', 1: 'buoy'}");
    assert_eq!(info.metadata["stride"], "8");
    assert!(info.bytes > 0 && info.name.ends_with("tiny.onnx"));
    assert_eq!(engine.info().name, kind.name());
    assert_eq!(engine.info().device, "cpu");
    assert!(engine.info().fallbacks.is_empty());
    assert!(engine.info().chosen.contains("asked for by name"));

    for scale in [1.0, -3.0] {
        let mut input = input(&[1, 3, 8, 8]);
        input.data.iter_mut().for_each(|value| *value *= scale);
        let outputs = engine.run(&input).expect("run");
        assert_eq!(outputs[0].shape, [1, OUT, 64]);
        near(&outputs[0].data, &expected(&input), 1e-6);
    }

    let error = engine.run(&input(&[1, 3, 8, 9])).expect_err("another shape").to_string();
    assert!(error.contains("[1, 3, 8, 9]") && error.contains("[1, 3, 8, 8]"), "{error}");
    let lying = Tensor { shape: vec![1, 3, 8, 8], data: vec![0.0; 3] };
    assert!(engine.run(&lying).is_err());

    let mut odd = input(&[1, 3, 8, 8]);
    odd.data[0] = f32::NAN;
    odd.data[1] = f32::INFINITY;
    odd.data[2] = f32::MAX;
    let outputs = engine.run(&odd).expect("odd numbers are numbers");
    assert!(outputs[0].data[0].is_nan());
    assert!(outputs[0].data[5].is_finite());
}

fn takes_any_size(kind: EngineKind) {
    let model = ModelSource::path(fixture("dynamic.onnx"));
    let how = options(|options| options.input_size = Some((16, 16)));
    let Some(mut engine) = try_open(kind, &model, &how) else { return };
    assert_eq!(engine.model().input_size, None);
    for side in [4, 16, 5] {
        let input = input(&[1, 3, side, side]);
        let outputs = engine.run(&input).expect("run");
        assert_eq!(outputs[0].shape, [1, OUT, side * side]);
        near(&outputs[0].data, &expected(&input), 1e-6);
    }
}

fn refuses_garbage(kind: EngineKind) {
    if try_open(kind, &ModelSource::path(fixture("tiny.onnx")), &options(|_| ())).is_none() {
        return;
    }
    let good = std::fs::read(fixture("tiny.onnx")).expect("read");
    let open_bytes =
        |bytes: Vec<u8>| open(kind, &ModelSource::bytes("bytes", bytes), &options(|_| ()));
    assert!(matches!(open_bytes(b"not a model".to_vec()), Err(InferError::Model { .. })));
    assert!(open_bytes(Vec::new()).is_err());
    for cut in [1, 10, good.len() / 2, good.len() - 1] {
        // What is cut off may be what nobody needs: an answer or an error, no panic.
        if let Ok(mut engine) = open_bytes(good[..cut].to_vec()) {
            let _ = engine.run(&input(&[1, 3, 8, 8]));
        }
    }
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        if let Ok(mut engine) = open_bytes(bytes) {
            let _ = engine.run(&input(&[1, 3, 8, 8]));
        }
    }
}

/// A folder of files to check against, made by Ultralytics and ONNX Runtime.
fn yolo() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/yolo");
    let folder = std::env::var_os("PLIMSOLL_YOLO").map_or(root, PathBuf::from);
    folder.join("yolo11n.onnx").is_file().then_some(folder)
}

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("read");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Boxes within `pixels`, confidences within `sure`.
fn agrees_on_yolo(kind: EngineKind, pixels: f32, sure: f32) {
    let Some(folder) = yolo() else {
        println!("skipped: no YOLO11n to check {kind} against");
        return;
    };
    let model = ModelSource::path(folder.join("yolo11n"));
    let Some(mut engine) = try_open(kind, &model, &options(|_| ())) else { return };
    assert!(engine.model().metadata["names"].starts_with("{0: "));
    let data = floats(&folder.join("input.f32"));
    let input = Tensor { shape: vec![1, 3, 640, 640], data };
    let want = floats(&folder.join("output.f32"));
    let begun = Instant::now();
    let outputs = engine.run(&input).expect("run");
    let took = begun.elapsed();
    assert_eq!(outputs[0].shape, [1, 84, 8400]);
    let worst = |from: usize, to: usize| {
        let pairs = outputs[0].data[from..to].iter().zip(&want[from..to]);
        pairs.map(|(got, want)| (got - want).abs()).fold(0.0f32, f32::max)
    };
    let (boxes, classes) = (worst(0, 4 * 8400), worst(4 * 8400, want.len()));
    println!("{kind}: boxes to {boxes:e} px, confidences to {classes:e}, {took:?}");
    println!("{:?} {:?}", engine.info(), engine.memory());
    assert!(boxes <= pixels && classes <= sure, "{boxes} px, {classes}");
}

#[test]
fn rten_keeps_its_promises() {
    keeps_its_promises(EngineKind::Rten);
}

#[test]
fn rten_takes_any_size() {
    takes_any_size(EngineKind::Rten);
}

#[test]
fn rten_refuses_garbage() {
    refuses_garbage(EngineKind::Rten);
}

#[test]
fn rten_agrees_on_yolo() {
    agrees_on_yolo(EngineKind::Rten, 7e-3, 4e-5);
}

#[test]
fn rten_says_that_it_has_no_gpu() {
    let model = ModelSource::path(fixture("tiny.onnx"));
    let how = options(|options| options.device = EngineDevice::Cuda(0));
    for kind in [EngineKind::Rten, EngineKind::Echo] {
        let error = open(kind, &model, &how).err().expect("a device that is named is kept to");
        assert!(matches!(error, InferError::Unavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("cuda:0 is not available") && text.contains("--device cpu"),
            "{text}"
        );
    }
}

#[test]
fn ort_keeps_its_promises() {
    keeps_its_promises(EngineKind::Ort);
}

#[test]
fn ort_takes_any_size() {
    takes_any_size(EngineKind::Ort);
}

#[test]
fn ort_refuses_garbage() {
    refuses_garbage(EngineKind::Ort);
}

#[test]
fn ort_agrees_on_yolo() {
    agrees_on_yolo(EngineKind::Ort, 1e-3, 1e-5);
}

#[test]
fn ort_tells_nodes_memory_and_library() {
    let model = ModelSource::path(fixture("tiny.onnx"));
    let Some(engine) = try_open(EngineKind::Ort, &model, &options(|_| ())) else { return };
    let info = engine.info();
    assert!(info.nodes_by_provider["CPUExecutionProvider"] >= 1, "{info:?}");
    assert!(info.version.as_deref().is_some_and(|version| version.starts_with("1.")));
    assert!(info.library.as_deref().is_some_and(Path::exists));
    assert!(!info.limit_applied, "a line for a GPU holds nothing on the CPU");
    let memory = engine.memory().expect("an arena");
    assert!(memory.peak >= memory.in_use && memory.peak > Some(0), "{memory:?}");

    // A second library in one process cannot be had.
    let other = options(|options| options.library = Some("/nowhere/libonnxruntime.so".into()));
    let error = open(EngineKind::Ort, &model, &other).err().expect("refused");
    assert!(error.to_string().contains("/nowhere/libonnxruntime.so"), "{error}");
}

/// Neither ort nor auto goes to the CPU where a GPU was named; strict or not.
#[test]
fn a_gpu_that_is_named_and_not_there_is_an_error() {
    let model = ModelSource::path(fixture("tiny.onnx"));
    let how = options(|options| options.device = EngineDevice::Cuda(77));
    for choice in [EngineChoice::Auto, EngineKind::Ort.into()] {
        let error = open(choice, &model, &how).err().expect("no such GPU");
        assert!(matches!(error, InferError::Unavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("cuda:77 is not available"), "{text}");
        assert!(text.ends_with("or take --device cpu, or leave it out to fall back"), "{text}");
        assert!(error.brief().len() < 400, "{}", error.brief());
    }
}

#[test]
fn auto_opens_something_and_says_why() {
    let model = ModelSource::path(fixture("tiny.onnx"));
    let mut engine = open(EngineChoice::Auto, &model, &options(|_| ())).expect("rten at least");
    assert!(engine.info().chosen.starts_with("auto: "), "{:?}", engine.info());
    let input = input(&[1, 3, 8, 8]);
    near(&engine.run(&input).expect("run")[0].data, &expected(&input), 1e-6);
}

#[test]
fn a_missing_model_is_named_with_the_files_looked_for() {
    let error = open(EngineChoice::Auto, &ModelSource::path("no/such"), &options(|_| ()));
    let error = error.err().expect("missing").to_string();
    assert!(error.contains("no/such.onnx") && error.contains("no/such.engine"), "{error}");
}

#[test]
fn echo_answers_what_it_was_given_after_the_time_it_was_given() {
    let answer = Tensor { shape: vec![1, 2], data: vec![3.0, 4.0] };
    let mut how = options(|_| ());
    how.echo = EchoOptions::default();
    how.echo.answers = vec![answer.clone()];
    how.echo.time = Some(Duration::from_millis(3));
    how.echo.memory = Some(EngineMemory::new(5, 9));
    let mut engine = open(EngineKind::Echo, &ModelSource::path("none"), &how).expect("echo");
    let begun = Instant::now();
    assert_eq!(engine.run(&Tensor::default()).expect("run"), [answer]);
    assert!(begun.elapsed() >= Duration::from_millis(3));
    assert_eq!(engine.memory(), Some(EngineMemory::new(5, 9)));
    assert_eq!(engine.model().outputs[0].1, [1, 2]);
}

#[test]
fn echo_stands_in_for_a_yolo() {
    let how = options(|_| ());
    let mut engine = open(EngineKind::Echo, &ModelSource::path("none"), &how).expect("echo");
    assert_eq!(engine.model().input_size, Some((640, 640)));
    let outputs = engine.run(&Tensor::default()).expect("run");
    assert_eq!(outputs[0].shape, [1, 84, 8400]);
    assert_eq!(outputs[0], echo::pattern((640, 640), 80));
    let sure = outputs[0].data[4 * 8400..].iter().filter(|&&value| value > 0.25).count();
    assert_eq!(sure, 5);
}
