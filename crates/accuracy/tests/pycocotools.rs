//! The figures equal those of pycocotools 2.0.11, which `scripts/check-accuracy --fixture` wrote
//! down: crowds, equal scores, no detections, no truths, overlaps that meet a step exactly, an
//! annotation with the id 0; boxes, masks and keypoints. And what must not matter does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use plimsoll_accuracy::labels::ImagePlace;
use plimsoll_accuracy::{
    AccuracyTask, FoundObject, Judge, LabelSet, LabelledObject, PixelRuns, TaskAccuracy,
};
use proptest::prelude::*;
use serde_json::Value;

struct Image {
    size: (u32, u32),
    truths: Vec<LabelledObject>,
    found: Vec<FoundObject>,
}

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("data/pycocotools.json")).unwrap()
}

fn task(case: &Value) -> AccuracyTask {
    serde_json::from_value(case["task"].clone()).unwrap()
}

fn found(one: &Value, classes: &HashMap<i64, u32>) -> FoundObject {
    let numbers = |key: &str| -> Vec<f64> {
        one[key].as_array().into_iter().flatten().map(|n| n.as_f64().unwrap()).collect()
    };
    let mask = one.get("segmentation").map(|mask| {
        let size: (u32, u32) = serde_json::from_value(mask["size"].clone()).unwrap();
        PixelRuns::from_text(size, mask["counts"].as_str().unwrap().as_bytes()).unwrap()
    });
    FoundObject {
        class: classes[&one["category_id"].as_i64().unwrap()],
        score: one["score"].as_f64().unwrap(),
        bounds: numbers("bbox").try_into().unwrap_or_default(),
        mask,
        keypoints: numbers("keypoints").chunks_exact(3).map(|p| [p[0], p[1]]).collect(),
    }
}

fn images(case: &Value) -> (LabelSet, Vec<Image>) {
    let labels = LabelSet::from_coco(case["labels"].to_string().as_bytes()).unwrap();
    let classes: HashMap<i64, u32> =
        labels.classes().iter().zip(0..).map(|(class, at)| (class.id, at)).collect();
    let mut all: Vec<&Value> = case["labels"]["images"].as_array().unwrap().iter().collect();
    all.sort_by_key(|image| image["id"].as_i64());
    let images = all.iter().enumerate().map(|(at, image)| {
        let side = |key: &str| image[key].as_u64().unwrap() as u32;
        let size = (side("height"), side("width"));
        let of_image = case["found"].as_array().unwrap().iter();
        let of_image = of_image.filter(|one| one["image_id"] == image["id"]);
        let place = labels.find(image["file_name"].as_str().unwrap()).unwrap().unwrap();
        assert_eq!(place, ImagePlace::Coco(at));
        Image {
            size,
            truths: labels.image(&place, size).unwrap().objects,
            found: of_image.map(|one| found(one, &classes)).collect(),
        }
    });
    let images = images.collect();
    (labels, images)
}

fn judged(task: AccuracyTask, labels: &LabelSet, images: &[Image]) -> TaskAccuracy {
    let judge = Judge::new(task);
    let verdicts = Judge::images(images.len(), |at| {
        judge.image(images[at].size, &images[at].truths, &images[at].found)
    });
    judge.total(labels.classes(), &verdicts)
}

#[test]
fn every_figure_is_that_of_pycocotools() {
    let mut compared = 0;
    for case in cases() {
        let (labels, images) = images(&case);
        let accuracy = judged(task(&case), &labels, &images);
        let ours = serde_json::to_value(&accuracy).unwrap();
        for (name, theirs) in case["expected"].as_object().unwrap() {
            let (ours, theirs) = (ours[name].as_f64(), theirs.as_f64());
            let same = match (ours, theirs) {
                (Some(ours), Some(theirs)) => (ours - theirs).abs() < 1e-9,
                (ours, theirs) => ours == theirs,
            };
            assert!(same, "{} {name}: {ours:?} {theirs:?}", case["seed"]);
            compared += 1;
        }
    }
    assert_eq!(compared, 70);
}

/// Moves an element of a list to another place.
fn moved<T>(list: &mut Vec<T>, seed: u64) {
    if !list.is_empty() {
        let one = list.remove(seed as usize % list.len());
        list.insert((seed >> 8) as usize % (list.len() + 1), one);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_order_of_images_and_objects_does_not_matter(seed in any::<u64>()) {
        for case in cases() {
            let (labels, mut images) = images(&case);
            // Of equal scores the order decides; so there are none here.
            let mut at = 0.0;
            for one in images.iter_mut().flat_map(|image| &mut image.found) {
                one.score = (one.score + at) / 2.0;
                at += 1e-6;
            }
            let before = judged(task(&case), &labels, &images);
            moved(&mut images, seed);
            for image in &mut images {
                moved(&mut image.found, seed.rotate_left(17));
                moved(&mut image.truths, seed.rotate_left(29));
            }
            let after = judged(task(&case), &labels, &images);
            prop_assert!((before.map.unwrap_or(-1.0) - after.map.unwrap_or(-1.0)).abs() < 1e-12);
            prop_assert_eq!(before.confusion, after.confusion);
        }
    }

    #[test]
    fn scores_matter_only_by_their_order(power in 0.2_f64..5.0) {
        for case in cases() {
            let (labels, mut images) = images(&case);
            let before = judged(task(&case), &labels, &images);
            let all = images.iter_mut().flat_map(|image| &mut image.found);
            all.for_each(|one| one.score = one.score.powf(power));
            let after = judged(task(&case), &labels, &images);
            prop_assert_eq!((before.map, before.map_small, before.mar), (after.map, after.map_small, after.mar));
        }
    }
}

#[test]
fn the_truth_itself_is_perfect_and_its_confusion_a_diagonal() {
    for case in cases() {
        let (labels, mut images) = images(&case);
        for image in &mut images {
            let posed = task(&case) == AccuracyTask::Keypoints;
            image.truths.retain(|truth| {
                !(truth.crowd || truth.id_zero || posed && truth.without_keypoints)
            });
            let size = image.size;
            let as_found = |truth: &LabelledObject| FoundObject {
                class: truth.class,
                score: 0.9,
                bounds: truth.bounds,
                mask: truth.outline.pixels(size),
                keypoints: truth.keypoints.iter().map(|point| [point[0], point[1]]).collect(),
            };
            image.found = image.truths.iter().map(as_found).collect();
        }
        let accuracy = judged(task(&case), &labels, &images);
        let empty = images.iter().all(|image| image.truths.is_empty());
        if empty {
            assert_eq!((accuracy.map, accuracy.precision, accuracy.recall), (None, None, None));
            continue;
        }
        assert!(accuracy.map.unwrap() > 0.99, "{} {accuracy:?}", case["seed"]);
        assert_eq!((accuracy.precision, accuracy.recall), (Some(1.0), Some(1.0)));
        for (row, counts) in accuracy.confusion.counts.iter().enumerate() {
            for (column, &count) in counts.iter().enumerate() {
                assert!(count == 0 || row == column, "{:?}", accuracy.confusion);
            }
        }
    }
}
