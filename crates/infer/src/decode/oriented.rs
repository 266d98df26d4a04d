//! Suppression of turned boxes, equal to Ultralytics'.
//!
//! Two boxes are compared as two normal distributions (ProbIoU). A box is dropped where one that
//! is surer overlaps it, even if that one was dropped itself: this is not the greedy rule of
//! upright boxes. Classes are moved apart as there.

use super::suppress::{Candidate, Suppress};
use super::{Thresholds, suppress};

/// Keeps quotients and roots defined.
const EPSILON: f32 = 1e-7;

/// A box as a normal distribution: its centre, moved by its class, and its covariance.
#[derive(Debug, Clone, Copy)]
struct BoxSpread {
    centre: [f32; 2],
    /// Across, down, and both.
    covariance: [f32; 3],
    /// The determinant, never below zero.
    determinant: f32,
    class: u32,
}

impl BoxSpread {
    /// `bounds` are centre and extents.
    fn new(candidate: &Candidate, angle: f32) -> BoxSpread {
        let by = candidate.class as f32 * suppress::APART;
        let [x, y, width, height] = candidate.bounds;
        let (a, b) = (width * width / 12.0, height * height / 12.0);
        let (cos, sin) = (angle.cos(), angle.sin());
        let (cos2, sin2) = (cos * cos, sin * sin);
        let covariance = [a * cos2 + b * sin2, a * sin2 + b * cos2, (a - b) * cos * sin];
        let [across, down, both] = covariance;
        BoxSpread {
            centre: [x + by, y + by],
            covariance,
            determinant: (across * down - both * both).max(0.0),
            class: candidate.class,
        }
    }

    /// How much two overlap, 0 to 1.
    fn overlap(&self, other: &BoxSpread) -> f32 {
        let [a, b, c] = std::array::from_fn(|at| self.covariance[at] + other.covariance[at]);
        let (dx, dy) = (self.centre[0] - other.centre[0], self.centre[1] - other.centre[1]);
        let whole = a * b - c * c;
        let first = (a * (dy * dy) + b * (dx * dx)) / (whole + EPSILON) * 0.25;
        let second = (c * -dx * dy) / (whole + EPSILON) * 0.5;
        let root = (self.determinant * other.determinant).sqrt();
        let third = (whole / (4.0 * root + EPSILON) + EPSILON).ln() * 0.5;
        let distance = (first + second + third).clamp(EPSILON, 100.0);
        1.0 - (1.0 - (-distance).exp() + EPSILON).sqrt()
    }
}

/// Turned boxes that were looked at, by class.
#[derive(Debug, Default)]
pub(super) struct TurnedBoxes {
    seen: Vec<BoxSpread>,
}

impl TurnedBoxes {
    /// Hands over what remains of the candidates, the surest first. Their bounds are centre and
    /// extents; `angle` says how far each is turned.
    pub(super) fn keep(
        &mut self,
        suppress: &mut Suppress,
        thresholds: &Thresholds,
        angle: impl Fn(&Candidate) -> f32,
        mut found: impl FnMut(&Candidate),
    ) {
        self.seen.clear();
        let mut kept = 0;
        suppress.each(|candidate| {
            if kept >= thresholds.max_detections {
                return false;
            }
            let one = BoxSpread::new(candidate, angle(candidate));
            let hides = |other: &BoxSpread| {
                // Another class lies too far away to overlap.
                other.class == one.class && f64::from(other.overlap(&one)) > thresholds.iou
            };
            if !self.seen.iter().any(hides) {
                kept += 1;
                found(candidate);
            }
            self.seen.push(one);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(bounds: [f32; 4], class: u32) -> Candidate {
        Candidate { bounds, confidence: 0.5, class, place: 0 }
    }

    /// From Ultralytics' `batch_probiou`.
    #[test]
    fn overlaps_are_those_of_ultralytics() {
        for (one, other, wanted) in [
            (([50.0, 50.0, 40.0, 10.0], 0.3), ([52.0, 51.0, 38.0, 12.0], 0.35), WANTED[0]),
            (([50.0, 50.0, 40.0, 10.0], 0.3), ([50.0, 50.0, 10.0, 40.0], 0.3), WANTED[1]),
            (([50.0, 50.0, 40.0, 10.0], 0.0), ([90.0, 50.0, 40.0, 10.0], 1.5), WANTED[2]),
            (([5.0, 5.0, 3.0, 3.0], -0.7), ([5.0, 5.0, 3.0, 3.0], -0.7), WANTED[3]),
        ] {
            let spread = |(bounds, angle)| BoxSpread::new(&candidate(bounds, 0), angle);
            let overlap = spread(one).overlap(&spread(other));
            assert!((overlap - wanted).abs() < 1e-5, "{overlap} for {wanted}");
        }
    }

    const WANTED: [f32; 4] = [0.865_629_8, 0.272_393_05, 0.014_123_082, 0.999_531_8];

    #[test]
    fn a_dropped_box_still_hides_another() {
        let mut suppress = Suppress::default();
        suppress.start(2);
        for (x, confidence, class) in
            [(0.0, 0.9, 0), (6.0, 0.8, 0), (12.0, 0.7, 0), (12.0, 0.6, 1), (90.0, 0.5, 0)]
        {
            let bounds = [x, 0.0, 20.0, 20.0];
            suppress.offer(Candidate { bounds, confidence, class, place: 0 });
        }
        let (mut turned, mut found) = (TurnedBoxes::default(), Vec::new());
        let keep = |one: &Candidate| found.push(one.confidence);
        turned.keep(&mut suppress, &Thresholds::default(), |_| 0.0, keep);
        assert_eq!(found, [0.9, 0.6, 0.5]);
    }
}
