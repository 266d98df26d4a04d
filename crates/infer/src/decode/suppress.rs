//! Greedy suppression of overlapping boxes, class by class, equal to Ultralytics'.
//!
//! There, boxes of class `c` are moved by `7680 · c` and one suppression runs over all of
//! them: boxes of two classes then lie apart. The moved numbers are larger and so rounded
//! more coarsely, and that decides close cases, so the same sums are made here. But boxes
//! are compared with those of their own class only, unless the boxes of a frame spread
//! over more than 7680 pixels, where the trick leaks and classes do meet.
//!
//! A box is compared with those already kept, not each kept one with all that follow:
//! the answer is the same, and once enough are kept nothing more is looked at. For that
//! reason, too, the candidates are put in order a portion at a time.

use super::Thresholds;

/// How far classes are moved apart.
pub(super) const APART: f32 = 7680.0;

/// The most candidates that are looked at.
const MOST: usize = 30_000;

/// How many are put in order at a time.
const PORTION: usize = 512;

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// A box that may be a detection, in tensor pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) bounds: [f32; 4],
    pub(super) confidence: f32,
    pub(super) class: u32,
    /// Which of the output's places or rows it is.
    pub(super) place: u32,
}

/// A box that was kept, moved by its class.
#[derive(Debug, Clone, Copy)]
struct Kept {
    bounds: [f32; 4],
    area: f32,
    /// The one kept before it that it must be compared with.
    before: u32,
}

/// The candidates of a frame, and room to choose among them.
#[derive(Debug, Default)]
pub(super) struct Suppress {
    candidates: Vec<Candidate>,
    /// Confidence, falling, and then position, in one number.
    order: Vec<u64>,
    kept: Vec<Kept>,
    /// The last one kept of each class.
    last: Vec<u32>,
    least: f32,
    greatest: f32,
    /// How many had a number that is none.
    refused: usize,
}

impl Suppress {
    /// Forgets the last frame.
    pub(super) fn start(&mut self, classes: usize) {
        self.refused = 0;
        self.candidates.clear();
        self.order.clear();
        self.kept.clear();
        self.last.clear();
        self.last.resize(classes.max(1), NONE);
        (self.least, self.greatest) = (f32::INFINITY, f32::NEG_INFINITY);
    }

    /// Counts a candidate of which a number is none.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Takes a candidate, unless one of its numbers is none.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        let finite = candidate.bounds.iter().all(|bound| bound.is_finite());
        if !finite || !candidate.confidence.is_finite() {
            return self.refuse();
        }
        for bound in candidate.bounds {
            self.least = self.least.min(bound);
            self.greatest = self.greatest.max(bound);
        }
        let Ok(position) = u32::try_from(self.candidates.len()) else { return };
        self.order.push(u64::from(!rising(candidate.confidence)) << 32 | u64::from(position));
        self.candidates.push(candidate);
    }

    /// Hands over all candidates, the surest first.
    pub(super) fn each(&mut self, mut found: impl FnMut(&Candidate) -> bool) {
        self.order.sort_unstable();
        for &key in self.order.iter().take(MOST) {
            if !found(&self.candidates[key as u32 as usize]) {
                return;
            }
        }
    }

    /// Whether there were candidates, and none had only numbers.
    pub(super) fn only_refused(&self) -> bool {
        self.refused > 0 && self.candidates.is_empty()
    }

    /// Hands over what remains, the surest first.
    pub(super) fn keep(&mut self, thresholds: &Thresholds, mut found: impl FnMut(&Candidate)) {
        let meet = self.greatest - self.least > APART || thresholds.iou < 0.0;
        let mut start = 0;
        let end = self.order.len().min(MOST);
        while start < end {
            let portion = portion(&mut self.order[start..]);
            start += portion.len();
            let beyond = start.saturating_sub(end);
            for &key in &portion[..portion.len() - beyond] {
                if self.kept.len() >= thresholds.max_detections {
                    return;
                }
                let candidate = &self.candidates[key as u32 as usize];
                let chain = if meet { 0 } else { candidate.class as usize };
                let Some(last) = self.last.get_mut(chain) else { continue };
                let mut box_ = moved(candidate);
                if overlaps(&box_, &self.kept, *last, thresholds.iou) {
                    continue;
                }
                box_.before = *last;
                *last = self.kept.len() as u32;
                self.kept.push(box_);
                found(candidate);
            }
        }
    }
}

/// Puts the first portion in order, before all that follow it.
fn portion(order: &mut [u64]) -> &[u64] {
    if order.len() > PORTION {
        order.select_nth_unstable(PORTION - 1);
    }
    let length = order.len().min(PORTION);
    let portion = &mut order[..length];
    portion.sort_unstable();
    portion
}

/// A number whose order as an integer is that of the float; both zeros are one.
fn rising(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

fn moved(candidate: &Candidate) -> Kept {
    let by = candidate.class as f32 * APART;
    let bounds @ [left, top, right, bottom] = candidate.bounds.map(|bound| bound + by);
    Kept { bounds, area: (right - left) * (bottom - top), before: NONE }
}

/// Whether a box overlaps one of a chain by more than `limit`.
fn overlaps(one: &Kept, kept: &[Kept], last: u32, limit: f64) -> bool {
    let mut next = last;
    while let Some(other) = kept.get(next as usize) {
        let width = other.bounds[2].min(one.bounds[2]) - other.bounds[0].max(one.bounds[0]);
        let height = other.bounds[3].min(one.bounds[3]) - other.bounds[1].max(one.bounds[1]);
        let both = width.max(0.0) * height.max(0.0);
        if f64::from(both / (other.area + one.area - both)) > limit {
            return true;
        }
        next = other.before;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(boxes: &[([f32; 4], f32, u32)], thresholds: &Thresholds) -> Vec<f32> {
        let mut suppress = Suppress::default();
        suppress.start(80);
        for &(bounds, confidence, class) in boxes {
            suppress.offer(Candidate { bounds, confidence, class, place: 0 });
        }
        let mut found = Vec::new();
        suppress.keep(thresholds, |candidate| found.push(candidate.confidence));
        found
    }

    #[test]
    fn the_lesser_of_two_of_one_class_is_dropped_and_of_two_classes_is_not() {
        let boxes = [
            ([0.0, 0.0, 10.0, 10.0], 0.5, 3),
            ([1.0, 0.0, 11.0, 10.0], 0.9, 3),
            ([1.0, 0.0, 11.0, 10.0], 0.7, 4),
            ([50.0, 0.0, 60.0, 10.0], 0.3, 3),
        ];
        assert_eq!(kept(&boxes, &Thresholds::default()), [0.9, 0.7, 0.3]);
    }

    #[test]
    fn an_overlap_equal_to_the_limit_stays() {
        // One box is half of the other.
        let boxes = [([0.0, 0.0, 10.0, 10.0], 0.9, 0), ([0.0, 0.0, 10.0, 5.0], 0.8, 0)];
        let at = |iou| kept(&boxes, &Thresholds { iou, ..Thresholds::default() }).len();
        assert_eq!((at(0.5), at(0.499)), (2, 1));
    }

    #[test]
    fn the_limit_is_not_rounded() {
        // Six tenths in 32 bits are a little more than six tenths.
        let boxes = [([0.0, 0.0, 10.0, 10.0], 0.9, 0), ([0.0, 0.0, 10.0, 6.0], 0.8, 0)];
        let at = |iou| kept(&boxes, &Thresholds { iou, ..Thresholds::default() }).len();
        assert_eq!((at(0.6), at(f64::from(0.6_f32))), (1, 2));
    }

    #[test]
    fn equal_confidence_keeps_the_order_and_more_than_a_portion_is_sorted() {
        let boxes: Vec<_> = (0..2000_u32)
            .map(|at| {
                let x = 3.0 * at as f32;
                ([x, 0.0, x + 2.0, 2.0], ((at * 7919) % 1000) as f32 / 1000.0, 0)
            })
            .collect();
        let thresholds = Thresholds { max_detections: 5000, ..Thresholds::default() };
        let found = kept(&boxes, &thresholds);
        assert_eq!(found.len(), 2000);
        assert!(found.is_sorted_by(|one, next| one >= next));
    }

    #[test]
    fn classes_meet_where_boxes_spread_too_far() {
        // The first lies where class 1 is moved to.
        let boxes = [([7680.0, 7680.0, 7690.0, 7690.0], 0.9, 0), ([0.0, 0.0, 10.0, 10.0], 0.8, 1)];
        assert_eq!(kept(&boxes, &Thresholds::default()), [0.9]);
    }

    #[test]
    fn what_is_no_number_is_dropped() {
        let boxes = [
            ([f32::NAN, 0.0, 1.0, 1.0], 0.9, 0),
            ([0.0, 0.0, f32::INFINITY, 1.0], 0.9, 0),
            ([0.0, 0.0, 1.0, 1.0], f32::NAN, 0),
        ];
        assert!(kept(&boxes, &Thresholds::default()).is_empty());
    }
}
