//! What two cameras find together, by the rule of [`plimsoll_accuracy::fuse`].

use std::collections::HashMap;
use std::time::Duration;

use plimsoll_accuracy::fuse::{RULE, detections, scaled, truths};
use plimsoll_accuracy::{AccuracyTask, ImageVerdict, Judge, LabelClass, TaskAccuracy};

use super::{SceneView, SlotJudged, score::class_map};
use crate::record::{CameraAccuracy, Fusion};

/// Judges two cameras alone and joined, by the same truths. Pictures of one time are a pair.
///
/// # Errors
/// Why they cannot be joined, in words.
pub(in super::super) fn fuse(first: &SlotJudged, second: &SlotJudged) -> Result<Fusion, String> {
    let names: Vec<String> = second.classes.iter().map(|class| class.name.clone()).collect();
    class_map(&names, &first.classes)
        .map_err(|_| "their labels have no class of the same name".to_string())?;
    let (classes, places) = together(&first.classes, &names);
    let others: HashMap<Duration, &SceneView> =
        second.views.iter().map(|view| (view.time, view)).collect();
    let pairs: Vec<(&SceneView, SceneView)> = first
        .views
        .iter()
        .filter_map(|view| Some((view, fitted(others.get(&view.time)?, &places, view.size))))
        .collect();
    if pairs.is_empty() {
        return Err("no picture of one was taken when one of the other was".to_string());
    }
    let judge = Judge::new(AccuracyTask::Boxes);
    let mut verdicts: [Vec<ImageVerdict>; 3] = Default::default();
    for (one, two) in &pairs {
        let there = truths(&one.truths, &two.truths);
        let size = (one.size.1, one.size.0);
        verdicts[0].push(judge.image(size, &there, &one.found));
        verdicts[1].push(judge.image(size, &there, &two.found));
        verdicts[2].push(judge.image(size, &there, &detections(&one.found, &two.found)));
    }
    let [one, two, both] = verdicts.map(|verdicts| judge.total(&classes, &verdicts));
    Ok(Fusion {
        rule: RULE.to_string(),
        images: pairs.len() as u64,
        truths: both.truths,
        cameras: vec![camera(&one), camera(&two)],
        fused: camera(&both),
    })
}

/// The classes of both labels, and the place of each class of the second among them.
fn together(first: &[LabelClass], second: &[String]) -> (Vec<LabelClass>, Vec<u32>) {
    let mut all = first.to_vec();
    let places = second.iter().map(|name| {
        let same = |class: &LabelClass| class.name.trim().eq_ignore_ascii_case(name.trim());
        all.iter().position(same).unwrap_or_else(|| {
            all.push(LabelClass { id: all.len() as i64, name: name.clone() });
            all.len() - 1
        }) as u32
    });
    let places = places.collect();
    (all, places)
}

/// A view of the second camera in the picture of the first.
fn fitted(view: &SceneView, places: &[u32], to: (u32, u32)) -> SceneView {
    let class = |class: u32| places.get(class as usize).copied().unwrap_or(u32::MAX);
    let (mut truths, mut found) = (view.truths.clone(), view.found.clone());
    let (wide, tall) = (f64::from(to.0), f64::from(to.1));
    let growth = wide / f64::from(view.size.0.max(1)) * tall / f64::from(view.size.1.max(1));
    for truth in &mut truths {
        truth.class = class(truth.class);
        truth.bounds = scaled(truth.bounds, view.size, to);
        truth.area *= growth;
    }
    for one in &mut found {
        one.class = class(one.class);
        one.bounds = scaled(one.bounds, view.size, to);
    }
    SceneView { time: view.time, size: to, truths, found }
}

fn camera(total: &TaskAccuracy) -> CameraAccuracy {
    let TaskAccuracy { map, map50, precision, recall, .. } = *total;
    CameraAccuracy { map, map50, precision, recall }
}

#[cfg(test)]
mod tests {
    use plimsoll_accuracy::{FoundObject, LabelledObject};

    use super::*;

    fn judged(class: &str, size: (u32, u32), seen: &[bool]) -> SlotJudged {
        let scale = f64::from(size.0) / 100.0;
        let views = seen.iter().enumerate().map(|(at, &seen)| {
            let bounds = [10.0, 10.0, 30.0, 40.0].map(|edge: f64| edge * scale);
            let truth =
                LabelledObject { bounds, area: bounds[2] * bounds[3], ..Default::default() };
            let one = FoundObject { bounds, score: 0.5, ..Default::default() };
            SceneView {
                time: Duration::from_secs(at as u64),
                size,
                truths: vec![truth],
                found: seen.then_some(one).into_iter().collect(),
            }
        });
        let classes = vec![LabelClass { id: 7, name: class.to_string() }];
        let accuracy = TaskAccuracy::default();
        SlotJudged { accuracy, boxes: None, classes, views: views.collect(), unwritten: None }
    }

    #[test]
    fn the_second_camera_is_worth_what_it_alone_sees() {
        // Each sees what the other misses, one in a picture of half the size.
        let first = judged("person", (100, 100), &[true, false, true, false]);
        let second = judged("Person", (50, 50), &[false, true, true, false]);
        let fusion = fuse(&first, &second).unwrap();
        assert_eq!((fusion.images, fusion.truths), (4, 4), "an object in both labels is one");
        let recalls: Vec<_> = fusion.cameras.iter().map(|camera| camera.recall).collect();
        assert_eq!((recalls, fusion.fused.recall), (vec![Some(0.5); 2], Some(0.75)));
        assert_eq!(fusion.fused.precision, Some(1.0), "two views of one object are one detection");
        assert!(fusion.fused.map > fusion.cameras[0].map);
    }

    #[test]
    fn cameras_that_share_nothing_are_not_joined() {
        let first = judged("person", (100, 100), &[true]);
        let other = fuse(&first, &judged("car", (100, 100), &[true])).unwrap_err();
        assert!(other.contains("no class of the same name"), "{other}");
        let mut late = judged("person", (100, 100), &[true]);
        late.views[0].time = Duration::from_secs(9);
        assert!(fuse(&first, &late).unwrap_err().contains("no picture"));
    }
}
