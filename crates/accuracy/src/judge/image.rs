//! One image: which detections are right, at each overlap and for each size of object.

use super::{AREAS, AccuracyTask, Judge, OVERLAPS, SIZES, confusion, keypoints};
use crate::mask::PixelRuns;
use crate::object::{FoundObject, LabelledObject, box_overlap};

/// What a detection was worth. Bit `size * OVERLAPS + overlap` stands for a size of object and an
/// overlap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FoundVerdict {
    pub(super) class: u32,
    /// Its place among the detections of its class in its image, the surest first.
    pub(super) rank: u32,
    pub(super) score: f64,
    /// It is right.
    pub(super) matched: u64,
    /// It counts neither as right nor as wrong.
    pub(super) ignored: u64,
}

/// A labelled object that is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TruthVerdict {
    pub(super) class: u32,
    /// A bit for each size that it belongs to; 0 for a crowd.
    pub(super) sizes: u8,
}

/// What the detections of an image were worth.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImageVerdict {
    pub(super) found: Vec<FoundVerdict>,
    pub(super) truths: Vec<TruthVerdict>,
    /// Class of the truth and class of the detection; `None` is background.
    pub(super) confused: Vec<(Option<u32>, Option<u32>)>,
}

/// The objects of one class in one image.
struct ClassObjects<'a> {
    truths: Vec<&'a LabelledObject>,
    /// The surest first.
    found: Vec<&'a FoundObject>,
    /// Area of each detection.
    areas: Vec<f64>,
    /// For each detection the truths that overlap enough for the lowest step, in their order.
    near: Vec<Vec<(usize, f64)>>,
}

impl Judge {
    /// Judges an image of so many rows and columns.
    #[must_use]
    pub fn image(
        &self,
        size: (u32, u32),
        truths: &[LabelledObject],
        found: &[FoundObject],
    ) -> ImageVerdict {
        let mut verdict = ImageVerdict {
            found: Vec::with_capacity(found.len()),
            truths: truths.iter().map(|truth| self.truth(truth)).collect(),
            confused: confusion::pairs(truths, found),
        };
        let mut order: Vec<&FoundObject> = found.iter().collect();
        // Stable, so that of two of one score the first stays first.
        order.sort_by(|a, b| a.class.cmp(&b.class).then(b.score.total_cmp(&a.score)));
        for group in order.chunk_by(|a, b| a.class == b.class) {
            let group = &group[..group.len().min(self.task.most())];
            let class = group[0].class;
            let of_class = truths.iter().filter(|truth| truth.class == class).collect();
            let objects = self.objects(size, of_class, group.to_vec());
            self.matches(&objects, &mut verdict.found);
        }
        verdict
    }

    fn truth(&self, truth: &LabelledObject) -> TruthVerdict {
        let sizes = (0..SIZES).filter(|&size| !self.set_aside(truth, size));
        TruthVerdict { class: truth.class, sizes: sizes.map(|size| 1 << size).sum() }
    }

    /// Whether nobody has to find an object among those of a size.
    fn set_aside(&self, truth: &LabelledObject, size: usize) -> bool {
        let no_points = self.task == AccuracyTask::Keypoints && truth.without_keypoints;
        truth.crowd || no_points || outside(truth.area, size)
    }

    fn objects<'a>(
        &self,
        size: (u32, u32),
        truths: Vec<&'a LabelledObject>,
        found: Vec<&'a FoundObject>,
    ) -> ClassObjects<'a> {
        let masks: Vec<Option<PixelRuns>> = match self.task {
            AccuracyTask::Masks => truths.iter().map(|truth| truth.outline.pixels(size)).collect(),
            _ => Vec::new(),
        };
        let overlap = |one: &FoundObject, at: usize| {
            let truth = truths[at];
            match self.task {
                AccuracyTask::Boxes => box_overlap(one.bounds, truth.bounds, truth.crowd),
                AccuracyTask::Masks => match (&one.mask, &masks[at]) {
                    (Some(mask), Some(other)) => mask.overlap(other, truth.crowd),
                    _ => 0.0,
                },
                AccuracyTask::Keypoints => keypoints::similarity(one, truth),
            }
        };
        let near = found
            .iter()
            .map(|one| {
                let all = (0..truths.len()).map(|at| (at, overlap(one, at)));
                all.filter(|(_, overlap)| *overlap >= self.overlaps[0]).collect()
            })
            .collect();
        let areas = found.iter().map(|one| self.area(one)).collect();
        ClassObjects { truths, found, areas, near }
    }

    /// The area of a detection, which decides whether it is small or large.
    fn area(&self, found: &FoundObject) -> f64 {
        match self.task {
            AccuracyTask::Boxes => found.bounds[2] * found.bounds[3],
            AccuracyTask::Masks => found.mask.as_ref().map_or(0.0, |mask| mask.area() as f64),
            AccuracyTask::Keypoints => keypoints::area(&found.keypoints),
        }
    }

    /// Matches detections with truths, the surest first, for each size and overlap.
    fn matches(&self, objects: &ClassObjects<'_>, into: &mut Vec<FoundVerdict>) {
        let first = into.len();
        into.extend(objects.found.iter().enumerate().map(|(rank, one)| FoundVerdict {
            class: one.class,
            rank: rank as u32,
            score: one.score,
            matched: 0,
            ignored: 0,
        }));
        let verdicts = &mut into[first..];
        for size in 0..SIZES {
            let aside: Vec<bool> =
                objects.truths.iter().map(|truth| self.set_aside(truth, size)).collect();
            for (step, &least) in self.overlaps.iter().enumerate() {
                let bit = 1 << (size * OVERLAPS + step);
                objects.match_at(least, &aside, |at, matched, ignored| {
                    let out = !matched && outside(objects.areas[at], size);
                    verdicts[at].matched |= if matched { bit } else { 0 };
                    verdicts[at].ignored |= if ignored || out { bit } else { 0 };
                });
            }
        }
    }
}

impl ClassObjects<'_> {
    /// Matches at one overlap. Says for each detection whether it has an object, and whether that
    /// is one which nobody has to find.
    fn match_at(&self, least: f64, aside: &[bool], mut say: impl FnMut(usize, bool, bool)) {
        let mut taken = vec![false; self.truths.len()];
        for (at, near) in self.near.iter().enumerate() {
            let free = |truth: usize| !taken[truth] || self.truths[truth].crowd;
            // An object that must be found comes before one that need not be; of several, the one
            // that overlaps most, and of equals the last.
            let best = |wanted: bool| {
                let mut best = (least.min(1.0 - 1e-10), None);
                for &(truth, overlap) in near {
                    if aside[truth] != wanted && free(truth) && overlap >= best.0 {
                        best = (overlap, Some(truth));
                    }
                }
                best.1
            };
            match best(true).or_else(|| best(false)) {
                None => say(at, false, false),
                Some(truth) => {
                    taken[truth] = true;
                    say(at, !self.truths[truth].id_zero, aside[truth]);
                }
            }
        }
    }
}

fn outside(area: f64, size: usize) -> bool {
    let (least, most) = AREAS[size];
    area < least || area > most
}
