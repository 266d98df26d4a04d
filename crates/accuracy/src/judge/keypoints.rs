//! Object keypoint similarity.

use crate::object::{FoundObject, LabelledObject};

/// How far people's labels of each of COCO's 17 keypoints of a person differ, times 1,000.
const PERSON: [u32; 17] = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89];

/// The tolerance of a keypoint: COCO's where there are 17, else the same for all, 1 / their
/// number, as Ultralytics has it.
fn tolerance(at: usize, count: usize) -> f64 {
    if count == PERSON.len() { f64::from(PERSON[at]) / 1000.0 } else { 1.0 / count as f64 }
}

/// How near the keypoints of a detection are to those of an object, 0 to 1. An object without a
/// labelled keypoint is near to all that lies in a box of three times its size.
pub(super) fn similarity(found: &FoundObject, truth: &LabelledObject) -> f64 {
    let count = truth.keypoints.len();
    if count == 0 || found.keypoints.len() != count {
        return 0.0;
    }
    let any = truth.keypoints.iter().any(|point| point[2] > 0.0);
    let (mut sum, mut judged) = (0.0, 0);
    for (at, (one, other)) in found.keypoints.iter().zip(&truth.keypoints).enumerate() {
        if any && other[2] <= 0.0 {
            continue;
        }
        let away = |axis: usize| {
            if any {
                return one[axis] - other[axis];
            }
            let (start, length) = (truth.bounds[axis], truth.bounds[axis + 2]);
            let (low, high) = (start - length, start + length * 2.0);
            (low - one[axis]).max(0.0) + (one[axis] - high).max(0.0)
        };
        let (across, down) = (away(0), away(1));
        let spread = (2.0 * tolerance(at, count)).powi(2);
        let far = (across * across + down * down) / spread / (truth.area + f64::EPSILON) / 2.0;
        sum += (-far).exp();
        judged += 1;
    }
    sum / f64::from(judged)
}

/// The area of the box around keypoints.
pub(super) fn area(points: &[[f64; 2]]) -> f64 {
    let extent = |axis: usize| {
        let all = || points.iter().map(|point| point[axis]);
        all().fold(f64::NEG_INFINITY, f64::max) - all().fold(f64::INFINITY, f64::min)
    };
    if points.is_empty() { 0.0 } else { extent(0) * extent(1) }
}
