//! Which classes are taken for which: pairs of one image, without regard to the class.

use crate::object::{FoundObject, LabelledObject, box_overlap};

/// The overlap from which a detection stands for an object.
pub(super) const LEAST_OVERLAP: f64 = 0.45;
/// The least score of a detection that counts.
pub(super) const LEAST_SCORE: f64 = 0.25;

/// Truth and detection, the pairs that overlap most first, each once; then what stays alone.
/// Detections in crowds are left out.
pub(super) fn pairs(
    truths: &[LabelledObject],
    found: &[FoundObject],
) -> Vec<(Option<u32>, Option<u32>)> {
    let sure: Vec<&FoundObject> = found.iter().filter(|one| one.score >= LEAST_SCORE).collect();
    let mut near: Vec<(f64, usize, usize)> = Vec::new();
    let mut in_crowd = vec![false; sure.len()];
    for (at, truth) in truths.iter().enumerate() {
        for (one, found) in sure.iter().enumerate() {
            let overlap = box_overlap(found.bounds, truth.bounds, truth.crowd);
            if truth.crowd {
                in_crowd[one] |= overlap >= LEAST_OVERLAP;
            } else if overlap >= LEAST_OVERLAP {
                near.push((overlap, at, one));
            }
        }
    }
    // Of equal overlaps the detection of the object's own class, then the surer one.
    let own = |&(_, at, one): &(f64, usize, usize)| truths[at].class == sure[one].class;
    near.sort_by(|a, b| {
        let overlap = b.0.total_cmp(&a.0).then(own(b).cmp(&own(a)));
        overlap.then(sure[b.2].score.total_cmp(&sure[a.2].score))
    });
    let (mut seen, mut used) = (vec![false; truths.len()], vec![false; sure.len()]);
    let mut pairs = Vec::new();
    for (_, at, one) in near {
        if !seen[at] && !used[one] {
            (seen[at], used[one]) = (true, true);
            pairs.push((Some(truths[at].class), Some(sure[one].class)));
        }
    }
    let missed = truths.iter().zip(seen).filter(|(truth, seen)| !seen && !truth.crowd);
    pairs.extend(missed.map(|(truth, _)| (Some(truth.class), None)));
    let alone = sure.iter().zip(used.iter().zip(in_crowd));
    let alone = alone.filter(|(_, (used, in_crowd))| !**used && !in_crowd);
    pairs.extend(alone.map(|(one, _)| (None, Some(one.class))));
    pairs
}
