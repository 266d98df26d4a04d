//! From detections to figures: classes by their names, the model's task, image by image.

use plimsoll_accuracy::{
    AccuracyTask, FoundObject, ImageVerdict, Judge, LabelClass, LabelledObject, ObjectOutline,
    PixelRuns, TaskAccuracy,
};
use plimsoll_infer::{Detail, Detection, Task};

use super::truth::{FrameTruth, ImageOrder, SlotTruth};

/// For each class of a model its class in the labels, by name; by number where the model has no
/// names. Detections of other classes are not judged.
pub(super) fn class_map(
    names: &[String],
    classes: &[LabelClass],
) -> Result<Vec<Option<u32>>, String> {
    let plain = |name: &str| name.trim().to_lowercase();
    if names.is_empty() {
        return Ok((0..classes.len() as u32).map(Some).collect());
    }
    let find = |name: &String| {
        classes.iter().zip(0..).find(|(class, _)| plain(&class.name) == plain(name))
    };
    let map: Vec<Option<u32>> = names.iter().map(|name| find(name).map(|(_, at)| at)).collect();
    if map.iter().all(Option::is_none) {
        let some = |all: Vec<&str>| all.into_iter().take(3).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "none of the model's classes ({}, …) is in the labels ({}, …)",
            some(names.iter().map(String::as_str).collect()),
            some(classes.iter().map(|class| class.name.as_str()).collect())
        ));
    }
    Ok(map)
}

/// A detection in a picture of so many rows and columns, as it is judged; `None` where the labels
/// do not have its class.
pub(super) fn found(
    one: &Detection,
    classes: &[Option<u32>],
    size: (u32, u32),
) -> Option<FoundObject> {
    let class = classes.get(one.class as usize).copied().flatten()?;
    let [left, top, right, bottom] = one.bounds.map(f64::from);
    let mut object = FoundObject {
        class,
        score: f64::from(one.confidence),
        bounds: [left, top, right - left, bottom - top],
        ..FoundObject::default()
    };
    match &one.detail {
        Detail::Mask(mask) => object.mask = PixelRuns::from_counts(size, mask.run_lengths()).ok(),
        Detail::Keypoints(points) => {
            object.keypoints =
                points.iter().map(|point| [f64::from(point.x), f64::from(point.y)]).collect();
        }
        Detail::Oriented(turned) => {
            let corners: Vec<f64> = turned.corners().iter().flatten().map(|&x| x.into()).collect();
            object.mask = Some(PixelRuns::from_polygon(size, &corners));
        }
        _ => {}
    }
    Some(object)
}

/// The figures of one slot, image by image.
pub(super) struct SlotScores {
    boxes: Judge,
    /// The model's own task, where that is not boxes.
    own: Option<Judge>,
    /// Whether the labels have what the task needs.
    labelled: bool,
    images: Vec<(ImageOrder, ImageVerdict, Option<ImageVerdict>)>,
    turned: bool,
}

impl SlotScores {
    pub(super) fn new(task: Task) -> Result<SlotScores, String> {
        let own = match task {
            Task::Segment | Task::Oriented => Some(AccuracyTask::Masks),
            Task::Pose => Some(AccuracyTask::Keypoints),
            Task::Classify => return Err("classes of whole frames are not judged".to_string()),
            _ => None,
        };
        Ok(SlotScores {
            boxes: Judge::new(AccuracyTask::Boxes),
            own: own.map(Judge::new),
            labelled: false,
            images: Vec::new(),
            turned: task == Task::Oriented,
        })
    }

    /// Takes an image.
    pub(super) fn add(&mut self, size: (u32, u32), there: &FrameTruth, found: &[FoundObject]) {
        let truths = &there.objects;
        let has = |object: &LabelledObject| match self.own.as_ref().map(Judge::task) {
            Some(AccuracyTask::Masks) => object.outline != ObjectOutline::None,
            Some(AccuracyTask::Keypoints) => !object.keypoints.is_empty(),
            _ => false,
        };
        self.labelled |= truths.iter().any(has);
        let own = self.own.as_ref().map(|judge| judge.image(size, truths, found));
        self.images.push((there.order.clone(), self.boxes.image(size, truths, found), own));
    }

    /// The figures at the model's task, and those of its boxes where the task is another.
    pub(super) fn total(
        mut self,
        truth: &SlotTruth,
    ) -> Result<(TaskAccuracy, Option<TaskAccuracy>), String> {
        if self.images.is_empty() {
            return Err("no labelled picture could be read".to_string());
        }
        self.images.sort_by(|a, b| a.0.cmp(&b.0));
        let (mut boxes, mut own) = (Vec::new(), Vec::new());
        for (_, of_boxes, of_task) in self.images {
            boxes.push(of_boxes);
            own.extend(of_task);
        }
        let told = |judge: &Judge, verdicts: &[ImageVerdict], more: &str| {
            let mut total = judge.total(truth.classes(), verdicts);
            total.labels = truth.name();
            total.how.push_str(more);
            match truth.empty_images() {
                0 => {}
                n => total.how.push_str(&format!("; {n} pictures without a text file are empty")),
            }
            total
        };
        Ok(match self.own {
            None => (told(&self.boxes, &boxes, ""), None),
            Some(judge) if !self.labelled => {
                let missing = format!("; the labels have no {}", judge.task());
                (told(&self.boxes, &boxes, &missing), None)
            }
            Some(judge) => {
                let turned = if self.turned { "; oriented boxes as masks" } else { "" };
                (told(&judge, &own, turned), Some(told(&self.boxes, &boxes, "")))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_matched_by_name_and_without_names_by_number() {
        let labels: Vec<LabelClass> = [(1, "person"), (3, "Car")]
            .map(|(id, name)| LabelClass { id, name: name.to_string() })
            .into();
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let map = class_map(&names(&["car ", "dog", "person"]), &labels).unwrap();
        assert_eq!(map, [Some(1), None, Some(0)]);
        assert_eq!(class_map(&[], &labels).unwrap(), [Some(0), Some(1)]);
        let none = class_map(&names(&["dog", "cat"]), &labels).unwrap_err();
        assert!(none.contains("(dog, cat, …) is in the labels (person, Car, …)"), "{none}");
        // A class that the labels do not have is not judged, and neither is one beyond the names.
        let one = Detection::boxed([1.0, 2.0, 4.0, 6.0], 0.5, 1);
        assert_eq!(found(&one, &map, (10, 10)), None);
        let one = found(&Detection { class: 0, ..one }, &map, (10, 10)).unwrap();
        assert_eq!((one.class, one.bounds), (1, [1.0, 2.0, 3.0, 4.0]));
    }
}
