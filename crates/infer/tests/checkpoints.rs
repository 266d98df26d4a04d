//! Checkpoints on every engine: small ones that are always there, against what torch
//! computed from them, and a YOLO11n where there is one.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

use std::path::{Path, PathBuf};

use plimsoll_infer::engine::open;
use plimsoll_infer::{EngineDevice, EngineKind, EngineOptions, InferError, ModelSource, Tensor};
use plimsoll_models::{GraphOptions, pt};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("read");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The largest difference of boxes and of confidences; `None` where the engine is not there.
fn differences(
    kind: EngineKind,
    model: &Path,
    input: &Tensor,
    wanted: &[f32],
) -> Option<(f32, f32)> {
    let mut options = EngineOptions::default();
    options.device = EngineDevice::Cpu;
    options.threads = Some(2);
    options.input_size = Some((input.shape[2], input.shape[3]));
    let mut engine = match open(kind, &ModelSource::path(model), &options) {
        Ok(engine) => engine,
        Err(InferError::Unavailable { what, .. }) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == kind.name()), "{what} is required");
            println!("skipped: {kind}: {what} is not available");
            return None;
        }
        Err(error) => panic!("{kind}: {error}"),
    };
    let outputs = engine.run(input).expect("run");
    let [1, rows, places] = outputs[0].shape[..] else { panic!("{:?}", outputs[0].shape) };
    assert_eq!(rows * places, wanted.len());
    let worst = |range: std::ops::Range<usize>| {
        let pairs = outputs[0].data[range.clone()].iter().zip(&wanted[range]);
        pairs.map(|(got, want)| (got - want).abs()).fold(0.0f32, f32::max)
    };
    Some((worst(0..4 * places), worst(4 * places..wanted.len())))
}

/// What torch was given for the small ones.
fn small_input() -> Tensor {
    let data: Vec<f32> = (0..3 * 64 * 64).map(|n| ((n * 7919) % 1000) as f32 / 1000.0).collect();
    Tensor { shape: vec![1, 3, 64, 64], data }
}

fn agrees_on_small(kind: EngineKind) {
    let input = small_input();
    for (name, folder) in [("small11", ""), ("small8", "../../../../docs/examples/")] {
        let wanted = floats(&fixture(&format!("{name}.f32")));
        let model = fixture(&format!("{folder}{name}.pt"));
        let Some((boxes, sure)) = differences(kind, &model, &input, &wanted) else { return };
        println!("{kind}: {name}: boxes to {boxes:e} px, confidences to {sure:e}");
        assert!(boxes <= 1e-3 && sure <= 1e-5, "{kind}: {name}: {boxes} px, {sure}");
    }
}

#[test]
fn rten_agrees_with_torch_on_small_checkpoints() {
    agrees_on_small(EngineKind::Rten);
}

#[test]
fn ort_agrees_with_torch_on_small_checkpoints() {
    agrees_on_small(EngineKind::Ort);
}

/// The networks of the other families and tasks, all outputs one after the other, against what
/// torch computed: with the head whose boxes are suppressed, and with the one that needs none.
fn agrees_on_families(kind: EngineKind) {
    for name in FAMILIES {
        for (ending, nms_free) in [("f32", false), ("free.f32", true)] {
            let wanted = fixture(&format!("{name}.{ending}"));
            if !wanted.is_file() {
                assert!(nms_free && !name.contains("10") && !name.contains("26"), "{name}");
                continue;
            }
            let mut graph = GraphOptions::sized((64, 64));
            graph.nms_free = nms_free;
            let file = std::fs::read(fixture(&format!("{name}.pt"))).expect("read");
            let bytes = pt::to_onnx(&file, &graph).expect("a graph");
            let mut options = EngineOptions::default();
            (options.device, options.threads) = (EngineDevice::Cpu, Some(2));
            let mut engine = match open(kind, &ModelSource::bytes(name, bytes), &options) {
                Ok(engine) => engine,
                Err(InferError::Unavailable { what, .. }) => {
                    println!("skipped: {kind}: {what} is not available");
                    return;
                }
                Err(error) => panic!("{kind}: {name}: {error}"),
            };
            let found = engine.run(&small_input()).expect("run");
            let found: Vec<f32> = found.iter().flat_map(|out| out.data.iter().copied()).collect();
            let wanted = floats(&wanted);
            assert_eq!(found.len(), wanted.len(), "{kind}: {name}");
            let far = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            println!("{kind}: {name}, nms_free {nms_free}: to {far:e}");
            // RT-DETR's boxes are fractions of the image; the others' are pixels. It was 4e-4 without
            // the anchors that the checkpoint keeps in 16 bits.
            let most = if name == "smallrt" { 1e-5 } else { 2e-3 };
            assert!(far <= most, "{kind}: {name}, nms_free {nms_free}: {far}");
        }
    }
}

const FAMILIES: [&str; 10] = [
    "small9",
    "small10",
    "smallseg",
    "smallpose",
    "smallobb",
    "smallcls",
    "small26seg",
    "small26pose",
    "small26obb",
    "smallrt",
];

#[test]
fn rten_agrees_with_torch_on_every_family_and_task() {
    agrees_on_families(EngineKind::Rten);
}

#[test]
fn ort_agrees_with_torch_on_every_family_and_task() {
    agrees_on_families(EngineKind::Ort);
}

/// In sixteen bits, which rten widens: the guide says that it runs.
fn runs_half(kind: EngineKind) {
    let file = std::fs::read(fixture("small11.pt")).expect("read");
    let mut graph = GraphOptions::sized((64, 64));
    graph.half = true;
    let folder = tempfile::tempdir().expect("a directory");
    let model = folder.path().join("half.onnx");
    std::fs::write(&model, pt::to_onnx(&file, &graph).expect("a graph")).expect("written");
    let wanted = floats(&fixture("small11.f32"));
    let Some((boxes, sure)) = differences(kind, &model, &small_input(), &wanted) else { return };
    println!("{kind}: small11 in sixteen bits: boxes to {boxes:e} px, confidences to {sure:e}");
    assert!(boxes <= 0.1 && sure <= 1e-3, "{kind}: {boxes} px, {sure}");
}

#[test]
fn rten_runs_sixteen_bits() {
    runs_half(EngineKind::Rten);
}

#[test]
fn ort_runs_sixteen_bits() {
    runs_half(EngineKind::Ort);
}

fn agrees_on_yolo(kind: EngineKind, pixels: f32, sure: f32) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/yolo");
    let folder = std::env::var_os("PLIMSOLL_YOLO").map_or(root, PathBuf::from);
    let model = folder.join("yolo11n.pt");
    if !model.is_file() {
        println!("skipped: no YOLO11n checkpoint to check {kind} against");
        return;
    }
    let data = floats(&folder.join("input.f32"));
    let input = Tensor { shape: vec![1, 3, 640, 640], data };
    let wanted = floats(&folder.join("output.f32"));
    let Some((boxes, far)) = differences(kind, &model, &input, &wanted) else { return };
    println!("{kind}: yolo11n.pt: boxes to {boxes:e} px, confidences to {far:e}");
    assert!(boxes <= pixels && far <= sure, "{boxes} px, {far}");
}

#[test]
fn rten_agrees_on_a_yolo_checkpoint() {
    agrees_on_yolo(EngineKind::Rten, 7e-3, 4e-5);
}

#[test]
fn ort_agrees_on_a_yolo_checkpoint() {
    agrees_on_yolo(EngineKind::Ort, 1e-3, 1e-5);
}

#[test]
fn a_stem_finds_a_checkpoint_last() {
    let folder = tempfile::tempdir().expect("a directory");
    let stem = folder.path().join("small");
    std::fs::copy(fixture("small11.pt"), folder.path().join("small.pt")).expect("copied");
    let model = ModelSource::path(&stem).read_for((64, 64)).expect("the checkpoint");
    assert!(model.info.name.ends_with("small.pt"));
    assert_eq!(model.info.outputs, [("output0".to_string(), vec![1, 7, 80])]);
    std::fs::copy(fixture("tiny.onnx"), folder.path().join("small.onnx")).expect("copied");
    let model = ModelSource::path(&stem).read_for((64, 64)).expect("the graph");
    assert!(model.info.name.ends_with("small.onnx"), "ONNX is preferred");
}
