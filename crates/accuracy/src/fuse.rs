//! Late fusion: what two cameras found in one scene, as one list of boxes.
//!
//! The rule, which reports repeat ([`RULE`]): boxes of the second camera are scaled to the picture
//! of the first. The surest box of either camera is taken first; it is joined with the box of the
//! other camera that has the same class, is not joined yet and overlaps it most, at least by
//! [`LEAST_OVERLAP`]. The joined box is the mean of the two, weighted by their scores, and its
//! score is 1 - (1 - a)(1 - b): the chance that at least one is right, if they err independently. A
//! box without a partner stays as it is, so that an object that only one camera sees is not lost.

use crate::object::{FoundObject, LabelledObject, box_overlap};

/// The overlap from which boxes of two cameras are the same object.
pub const LEAST_OVERLAP: f64 = 0.5;

/// The rule in a sentence.
pub const RULE: &str = "late fusion: boxes of one class with IoU 0.5 or more are joined, one of \
    each camera, weighted by their scores; joined score 1 - (1 - a)(1 - b); others stay";

/// Boxes for a picture of `to` columns and rows, from one of `from`: both cameras look at the
/// same field.
#[must_use]
pub fn scaled(bounds: [f64; 4], from: (u32, u32), to: (u32, u32)) -> [f64; 4] {
    let across = f64::from(to.0) / f64::from(from.0.max(1));
    let down = f64::from(to.1) / f64::from(from.1.max(1));
    [bounds[0] * across, bounds[1] * down, bounds[2] * across, bounds[3] * down]
}

/// What two cameras found, joined by the rule of this [module](self). Masks and keypoints are
/// left out.
#[must_use]
pub fn detections(first: &[FoundObject], second: &[FoundObject]) -> Vec<FoundObject> {
    let sides = [first, second];
    let mut order: Vec<(usize, usize)> =
        (0..2).flat_map(|side| (0..sides[side].len()).map(move |at| (side, at))).collect();
    let of = |(side, at): (usize, usize)| &sides[side][at];
    order.sort_by(|&a, &b| of(b).score.total_cmp(&of(a).score));
    let mut used = [vec![false; first.len()], vec![false; second.len()]];
    let mut fused = Vec::with_capacity(order.len());
    for (side, at) in order {
        if std::mem::replace(&mut used[side][at], true) {
            continue;
        }
        let (one, other) = (&sides[side][at], 1 - side);
        let near = sides[other]
            .iter()
            .enumerate()
            .filter(|(at, candidate)| !used[other][*at] && candidate.class == one.class);
        let partner = near
            .map(|(at, candidate)| (box_overlap(one.bounds, candidate.bounds, false), at))
            .filter(|(overlap, _)| *overlap >= LEAST_OVERLAP)
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        fused.push(match partner {
            Some((_, at)) => {
                used[other][at] = true;
                join(one, &sides[other][at])
            }
            None => boxed(one.class, one.score, one.bounds),
        });
    }
    fused
}

fn boxed(class: u32, score: f64, bounds: [f64; 4]) -> FoundObject {
    FoundObject { class, score, bounds, ..FoundObject::default() }
}

fn join(a: &FoundObject, b: &FoundObject) -> FoundObject {
    let all = a.score + b.score;
    let share = if all > 0.0 { a.score / all } else { 0.5 };
    let mean = |at: usize| a.bounds[at] * share + b.bounds[at] * (1.0 - share);
    let score = 1.0 - (1.0 - a.score) * (1.0 - b.score);
    boxed(a.class, score, std::array::from_fn(mean))
}

/// The objects of a scene that two cameras' labels show: those of the first, and those of the second
/// (already scaled) that no object of the first stands for, by class and overlap.
#[must_use]
pub fn truths(first: &[LabelledObject], second: &[LabelledObject]) -> Vec<LabelledObject> {
    let mut used = vec![false; first.len()];
    let mut all = first.to_vec();
    for object in second {
        let near = first.iter().enumerate().filter(|(at, other)| {
            !used[*at] && other.class == object.class && other.crowd == object.crowd
        });
        let partner = near
            .map(|(at, other)| (box_overlap(object.bounds, other.bounds, false), at))
            .filter(|(overlap, _)| *overlap >= LEAST_OVERLAP)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        match partner {
            Some((_, at)) => used[at] = true,
            None => all.push(object.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> impl Strategy<Value = Vec<FoundObject>> {
        let one = (0_u32..2, 0.01_f64..0.99, 0.0_f64..40.0, 0.0_f64..40.0, 1.0_f64..30.0);
        let one = one.prop_map(|(class, score, left, top, side)| {
            boxed(class, score, [left, top, side, side])
        });
        proptest::collection::vec(one, 0..12)
    }

    fn sorted(mut all: Vec<FoundObject>) -> Vec<FoundObject> {
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all
    }

    proptest! {
        #[test]
        fn a_camera_that_sees_nothing_changes_nothing(found in some()) {
            prop_assert_eq!(detections(&found, &[]), sorted(found.clone()));
            prop_assert_eq!(detections(&[], &found), sorted(found));
        }

        #[test]
        fn the_order_of_the_cameras_does_not_matter(a in some(), b in some()) {
            let (one, two) = (sorted(detections(&a, &b)), sorted(detections(&b, &a)));
            prop_assert_eq!(one.len(), two.len());
            for (one, two) in one.iter().zip(&two) {
                prop_assert!((one.score - two.score).abs() < 1e-12);
                let near = one.bounds.iter().zip(two.bounds).all(|(a, b)| (a - b).abs() < 1e-9);
                prop_assert!(near, "{one:?} {two:?}");
            }
        }

        #[test]
        fn nothing_is_lost_and_agreement_only_helps(a in some(), b in some()) {
            let fused = detections(&a, &b);
            prop_assert!(fused.len() <= a.len() + b.len());
            prop_assert!(fused.len() >= a.len().max(b.len()));
            let best = |all: &[FoundObject]| all.iter().map(|one| one.score).fold(0.0, f64::max);
            prop_assert!(best(&fused) >= best(&a).max(best(&b)));
        }
    }

    #[test]
    fn two_views_of_one_object_become_one() {
        let a = boxed(0, 0.6, [0.0, 0.0, 10.0, 10.0]);
        let b = boxed(0, 0.3, scaled([1.5, 0.0, 5.0, 5.0], (50, 50), (100, 100)));
        let other = boxed(1, 0.3, [0.0, 0.0, 10.0, 10.0]);
        let fused = detections(&[a], &[b, other.clone()]);
        assert_eq!(fused.len(), 2);
        assert!((fused[0].score - 0.72).abs() < 1e-12, "{fused:?}");
        assert!((fused[0].bounds[0] - 1.0).abs() < 1e-12, "{fused:?}");
        assert_eq!(fused[1], other);
    }

    #[test]
    fn objects_of_both_labels_count_once() {
        let object = |left: f64, class| LabelledObject {
            class,
            bounds: [left, 0.0, 10.0, 10.0],
            ..LabelledObject::default()
        };
        let all = truths(&[object(0.0, 0), object(50.0, 0)], &[object(1.0, 0), object(51.0, 1)]);
        assert_eq!(all, [object(0.0, 0), object(50.0, 0), object(51.0, 1)]);
    }
}
