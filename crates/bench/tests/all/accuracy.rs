//! Accuracy from labels: the demo's scenes as pictures with COCO's and YOLO's labels give the
//! figures that the scenes themselves give.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use plimsoll_accuracy::{AccuracyTask, FoundObject, Judge, LabelSet};
use plimsoll_bench::record::BenchRecord;
use plimsoll_bench::workload::{BenchError, BenchPlan, Silent, SlotMode, run};
use plimsoll_infer::source::synthetic::{CLASSES, SceneKind, SceneOptions, Synthetic, demo};
use plimsoll_infer::{EngineChoice, EngineKind, Frame, Pixels};
use serde_json::{Value, json};

use crate::workload::ran;

const FRAMES: u64 = 12;

/// A frame as a bitmap, which loses nothing.
fn bitmap(frame: &Frame) -> Vec<u8> {
    let Pixels::Rgb8(pixels) = &frame.pixels else { panic!("not in colour") };
    let (width, height) = (frame.width as u32, frame.height as u32);
    let size = 54 + 3 * width * height;
    let mut bytes = b"BM".to_vec();
    for value in [size, 0, 54, 40, width, height] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    for row in pixels.chunks_exact(3 * frame.width).rev() {
        bytes.extend(row.chunks_exact(3).flat_map(|rgb| [rgb[2], rgb[1], rgb[0]]));
    }
    bytes
}

/// The demo's scenes as pictures in `images`, with `coco.json`, `data.yaml` and the model.
fn data_set(folder: &Path) {
    let scenes = Synthetic::new(SceneOptions::new(SceneKind::Rgb));
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    fs::create_dir_all(folder.join("images")).unwrap();
    fs::create_dir_all(folder.join("labels")).unwrap();
    for number in 0..FRAMES {
        let frame = scenes.frame(number);
        let (width, height) = (frame.width as f32, frame.height as f32);
        let name = format!("scene{number}.bmp");
        fs::write(folder.join("images").join(&name), bitmap(&frame)).unwrap();
        images.push(json!({"id": number + 1, "file_name": name, "width": width as u32, "height": height as u32}));
        let mut lines = String::new();
        for truth in frame.truth.unwrap() {
            let [left, top, right, bottom] = truth.bounds;
            let (wide, tall) = (right - left, bottom - top);
            annotations.push(json!({
                "id": annotations.len() + 1, "image_id": number + 1, "iscrowd": 0,
                "category_id": truth.class + 10, "bbox": [left, top, wide, tall],
                "area": wide * tall,
            }));
            let share = [
                (left + right) / 2.0 / width,
                (top + bottom) / 2.0 / height,
                wide / width,
                tall / height,
            ];
            let [x, y, w, h] = share.map(f64::from);
            writeln!(lines, "{} {x} {y} {w} {h}", truth.class).unwrap();
        }
        fs::write(folder.join(format!("labels/scene{number}.txt")), lines).unwrap();
    }
    let categories: Vec<_> =
        CLASSES.iter().zip(10..).map(|(name, id)| json!({"id": id, "name": name})).collect();
    let coco = json!({"images": images, "annotations": annotations, "categories": categories});
    fs::write(folder.join("coco.json"), coco.to_string()).unwrap();
    let yaml = format!("path: .\nval: images\nnames: [{}]\n", CLASSES.join(", "));
    fs::write(folder.join("data.yaml"), yaml).unwrap();
    fs::write(folder.join("demo.onnx"), demo::model(SceneKind::Rgb)).unwrap();
}

fn plan(folder: &Path, labels: Option<&str>) -> BenchPlan {
    let path = |name: &str| -> PathBuf { folder.join(name) };
    BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Rten),
        mode: Some(SlotMode::Rgb),
        models: [Some(path("demo.onnx")), None],
        source: Some(format!("image_dir={}", path("images").display())),
        labels: labels.map(path),
        max_frames: Some(FRAMES),
        warmup: 1,
        output_dir: folder.join("runs"),
        ..BenchPlan::default()
    }
}

/// mAP of a file of results by COCO's labels; images are found by their ids or names.
fn judged_again(labels: &Path, results: &Path) -> f64 {
    let labels = LabelSet::read(labels, None).unwrap();
    let results: Vec<Value> = serde_json::from_slice(&fs::read(results).unwrap()).unwrap();
    let judge = Judge::new(AccuracyTask::Boxes);
    let images = (0..FRAMES).map(|number| {
        let place = labels.find(&format!("scene{number}.bmp")).unwrap().unwrap();
        let there = labels.image(&place, (480, 640)).unwrap();
        let name = format!("scene{number}");
        let of_image = results.iter().filter(|one| {
            one["image_id"] == json!(there.id) || one["image_id"].as_str() == Some(&name)
        });
        let found: Vec<FoundObject> = of_image
            .map(|one| FoundObject {
                class: (one["category_id"].as_u64().unwrap() % 10) as u32,
                score: one["score"].as_f64().unwrap(),
                bounds: serde_json::from_value(one["bbox"].clone()).unwrap(),
                ..FoundObject::default()
            })
            .collect();
        judge.image((480, 640), &there.objects, &found)
    });
    let images: Vec<_> = images.collect();
    judge.total(labels.classes(), &images).map.unwrap()
}

fn refused(plan: &BenchPlan) -> String {
    match run(plan, &mut Silent, &AtomicBool::new(false)) {
        Err(BenchError::Plan(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn labels_of_both_kinds_give_the_figures_of_the_scenes_themselves() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    data_set(folder);
    let drawn = ran(&BenchPlan {
        models: [None, None],
        source: Some("synthetic".to_string()),
        ..plan(folder, None)
    });
    let truth = drawn.record.models[0].accuracy.clone().unwrap();
    assert_eq!((truth.images, truth.labels.as_str()), (FRAMES, "the synthetic scenes"));
    assert!(truth.map50.unwrap() > 0.9 && truth.map.unwrap() > 0.5, "{truth:?}");
    assert_eq!(truth.precision_recall.len(), 1 + CLASSES.len());
    for labels in ["coco.json", "data.yaml"] {
        let record = ran(&plan(folder, Some(labels))).record;
        let found = record.models[0].accuracy.clone().unwrap();
        assert!(found.labels.ends_with(labels));
        assert_eq!((found.images, found.truths), (truth.images, truth.truths), "{labels}");
        assert!((found.map.unwrap() - truth.map.unwrap()).abs() < 1e-3, "{labels}: {found:?}");
        assert_eq!(found.confusion, truth.confusion, "{labels}");
        // What is listed as found has the user's own confidence, not that of the judge.
        let listed = record.models[0].detection_summary.clone().unwrap().total;
        assert!(listed <= 2 * truth.truths, "{listed}");
        // What was judged, judged again.
        let path = folder.join("found.json");
        ran(&BenchPlan { predictions: Some(path.clone()), ..plan(folder, Some(labels)) });
        let again = judged_again(&folder.join("coco.json"), &path);
        assert!((again - found.map.unwrap()).abs() < 1e-3, "{labels}: {again}");
        let name = found.classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>();
        assert_eq!(name, CLASSES, "{labels}");
    }
}

#[test]
fn two_labelled_cameras_are_judged_alone_and_together() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    data_set(folder);
    let one = plan(folder, Some("coco.json"));
    let both = BenchPlan {
        mode: None,
        source: None,
        sources: [one.source.clone(), one.source.clone()],
        models: [one.models[0].clone(), one.models[0].clone()],
        thermal_labels: Some(folder.join("data.yaml")),
        ..one
    };
    for parallel in [false, true] {
        let record: BenchRecord = ran(&BenchPlan { parallel, ..both.clone() }).record;
        let fusion = record.fusion.clone().unwrap();
        let truths = record.models[0].accuracy.as_ref().unwrap().truths;
        assert_eq!((fusion.images, fusion.truths), (FRAMES, truths), "each object once");
        // Two equal cameras: each is as good as the other, and both together no worse.
        let maps: Vec<f64> = fusion.cameras.iter().map(|camera| camera.map.unwrap()).collect();
        assert!((maps[0] - maps[1]).abs() < 1e-9, "{fusion:?}");
        assert!(fusion.fused.map.unwrap() >= maps[0] - 1e-3, "{fusion:?}");
    }
}

#[test]
fn the_demo_says_what_its_second_camera_is_worth() {
    let place = tempfile::tempdir().unwrap();
    let plan = BenchPlan {
        engine: EngineChoice::Kind(EngineKind::Rten),
        max_frames: Some(40),
        warmup: 1,
        output_dir: place.path().into(),
        ..BenchPlan::default()
    };
    let record = ran(&plan).record;
    let fusion = record.fusion.unwrap();
    assert_eq!(fusion.images, 40);
    let best = fusion.cameras.iter().filter_map(|camera| camera.recall).fold(0.0, f64::max);
    assert!(fusion.fused.recall.unwrap() >= best, "{fusion:?}");
    assert!(fusion.fused.map50.unwrap() > 0.9, "{fusion:?}");
}

#[test]
fn labels_that_cannot_be_used_end_the_run_before_it_begins() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    data_set(folder);
    let drawn = BenchPlan {
        models: [None, None],
        source: Some("synthetic".to_string()),
        ..plan(folder, Some("coco.json"))
    };
    assert!(refused(&drawn).contains("give a folder of pictures"));
    assert!(refused(&plan(folder, Some("missing.json"))).contains("missing.json"));
    let unlabelled = BenchPlan { predictions: Some(folder.join("p.json")), ..plan(folder, None) };
    assert!(refused(&unlabelled).contains("nothing is without --labels"));
    let other = BenchPlan { thermal_labels: Some("x".into()), ..plan(folder, None) };
    assert!(refused(&other).contains("--thermal-labels is for two cameras"));
    fs::write(folder.join("none.json"), r#"{"images":[],"annotations":[],"categories":[]}"#)
        .unwrap();
    let why = refused(&plan(folder, Some("none.json")));
    assert!(why.contains("none of the 12 pictures") && why.contains("same file name"), "{why}");
    assert!(!folder.join("runs").exists(), "nothing was written");
}

#[test]
fn a_model_of_other_classes_runs_and_its_accuracy_is_unknown_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    data_set(folder);
    let text = fs::read_to_string(folder.join("coco.json")).unwrap();
    let text = CLASSES.iter().fold(text, |text, name| text.replace(name, &format!("{name}x")));
    fs::write(folder.join("other.json"), text).unwrap();
    for strict in [false, true] {
        let asked = BenchPlan { strict, ..plan(folder, Some("other.json")) };
        let record = &ran(&asked).record;
        let model = &record.models[0];
        assert_eq!(model.accuracy, None);
        assert!(model.unknown["accuracy"].contains("none of the model's classes (person"));
        // Beside the figure, and not in the log alone: it was asked for.
        assert!(record.doubts.iter().any(|doubt| doubt.doubt.kind() == "not_judged"));
        assert_eq!(record.exit_code(false), if strict { 3 } else { 0 });
    }
}
