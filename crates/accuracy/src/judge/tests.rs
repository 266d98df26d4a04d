use super::*;
use crate::object::{FoundObject, LabelClass, LabelledObject};

fn truth(left: f64, class: u32) -> LabelledObject {
    LabelledObject { class, bounds: [left, 0.0, 10.0, 10.0], area: 100.0, ..Default::default() }
}

fn found(left: f64, class: u32, score: f64) -> FoundObject {
    FoundObject { class, score, bounds: [left, 0.0, 10.0, 10.0], ..Default::default() }
}

fn classes(count: i64) -> Vec<LabelClass> {
    (0..count).map(|id| LabelClass { id: id + 5, name: format!("class {id}") }).collect()
}

#[test]
fn each_object_is_found_once_and_by_its_class() {
    let judge = Judge::new(AccuracyTask::Boxes);
    // Right, the same object again, another class, and below the least score.
    let all = [found(1.0, 0, 0.9), found(0.0, 0, 0.8), found(100.0, 2, 0.7), found(100.0, 1, 0.2)];
    let image = judge.image((100, 200), &[truth(0.0, 0), truth(100.0, 1)], &all);
    let accuracy = judge.total(&classes(3), &[image]);
    assert_eq!((accuracy.matched, accuracy.found, accuracy.present), (1, 3, 2));
    assert_eq!((accuracy.precision, accuracy.recall), (Some(1.0 / 3.0), Some(0.5)));
    assert_eq!(accuracy.classes[1].class, 6);
    assert_eq!(accuracy.classes[1].recall, Some(0.0));
    assert_eq!(accuracy.classes[2].map, None, "a class without objects has no precision");
    // The object of class 1 was taken for class 2; one detection more stands for no object.
    let names = ["class 0", "class 1", "class 2", "background"];
    assert_eq!(accuracy.confusion.names, names);
    assert_eq!(accuracy.confusion.counts[1], [0, 0, 1, 0]);
    assert_eq!(accuracy.confusion.counts[3], [1, 0, 0, 0]);
}

#[test]
fn a_crowd_makes_nothing_right_or_wrong() {
    let judge = Judge::new(AccuracyTask::Boxes);
    let crowd = LabelledObject { crowd: true, bounds: [0.0, 0.0, 200.0, 10.0], ..truth(0.0, 0) };
    let all = [found(20.0, 0, 0.9), found(40.0, 0, 0.8), found(300.0, 0, 0.7)];
    let image = judge.image((10, 400), &[crowd, truth(300.0, 0)], &all);
    let accuracy = judge.total(&classes(1), &[image]);
    assert_eq!((accuracy.truths, accuracy.found, accuracy.matched), (1, 1, 1));
    assert!((accuracy.map.unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(accuracy.confusion.counts, [[1, 0], [0, 0]]);
}

#[test]
fn nothing_at_all_has_no_figures() {
    let judge = Judge::new(AccuracyTask::Masks);
    let accuracy = judge.total(&classes(2), &[]);
    assert_eq!((accuracy.map, accuracy.mar, accuracy.precision), (None, None, None));
    assert!(accuracy.classes.is_empty() && accuracy.precision_recall.is_empty());
}

#[test]
fn the_curve_is_that_of_the_surest_detections() {
    let judge = Judge::new(AccuracyTask::Boxes);
    let truths = [truth(0.0, 0), truth(100.0, 0)];
    // Right, wrong, right: precision 1 up to half of the objects, then 2/3.
    let all = [found(0.0, 0, 0.9), found(50.0, 0, 0.8), found(100.0, 0, 0.7)];
    let accuracy = judge.total(&classes(1), &[judge.image((10, 200), &truths, &all)]);
    let curve = &accuracy.precision_recall[1];
    assert_eq!((curve.class, curve.recall.len()), (Some(5), 101));
    assert!((curve.precision[50] - 1.0).abs() < 1e-12);
    assert!((curve.precision[51] - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(accuracy.precision_recall[0].precision, curve.precision, "one class is the mean");
    let expected = (51.0 + 50.0 * 2.0 / 3.0) / 101.0;
    assert!((accuracy.map50.unwrap() - expected).abs() < 1e-12);
}

#[test]
fn of_other_than_17_keypoints_all_weigh_the_same() {
    let judge = Judge::new(AccuracyTask::Keypoints);
    let object =
        LabelledObject { keypoints: vec![[1.0, 1.0, 2.0], [5.0, 5.0, 0.0]], ..truth(0.0, 0) };
    let one =
        |x: f64| FoundObject { keypoints: vec![[x, 1.0], [50.0, 50.0]], ..found(0.0, 0, 0.9) };
    // Tolerance 1/2: exp(-d² / 1 / 100 / 2) for the one keypoint that is labelled.
    assert!((keypoints::similarity(&one(11.0), &object) - (-0.5_f64).exp()).abs() < 1e-12);
    let accuracy = judge.total(&classes(1), &[judge.image((100, 100), &[object], &[one(1.0)])]);
    assert!((accuracy.map.unwrap() - 1.0).abs() < 1e-12);
}
