//! What the images come to: average precision and recall, class by class and together.

use super::confusion::{LEAST_OVERLAP, LEAST_SCORE};
use super::image::{FoundVerdict, ImageVerdict};
use super::{AccuracyTask, OVERLAPS, SIZES};
use crate::object::LabelClass;
use crate::result::{ClassAccuracy, Confusion, PrecisionRecall, TaskAccuracy};

/// The recalls at which precision is read: 0.00 to 1.00.
const RECALLS: usize = 101;
/// Numbers of detections for which recall is given; the third is all.
const FEWEST: [u32; 2] = [1, 10];

/// The figures of one class.
#[derive(Debug, Clone, Default)]
struct ClassTotal {
    /// Objects to be found, by size.
    truths: [u64; SIZES],
    /// Average precision by size and overlap; only where there are objects of the size.
    precision: [[f64; OVERLAPS]; SIZES],
    /// Recall by size and overlap.
    recall: [[f64; OVERLAPS]; SIZES],
    /// Recall with few detections an image, by overlap.
    recall_of_few: [[f64; OVERLAPS]; FEWEST.len()],
    /// Precision at each recall, at the lowest overlap.
    curve: Vec<f64>,
    /// Detections from the least score on, and those of them that are right.
    sure: u64,
    right: u64,
    /// All detections.
    found: u64,
}

/// Adds the images up.
pub(super) fn total(
    task: AccuracyTask,
    classes: &[LabelClass],
    images: &[ImageVerdict],
) -> TaskAccuracy {
    let mut totals = vec![ClassTotal::default(); classes.len()];
    let mut found: Vec<Vec<FoundVerdict>> = vec![Vec::new(); classes.len()];
    for image in images {
        for truth in &image.truths {
            let Some(total) = totals.get_mut(truth.class as usize) else { continue };
            (0..SIZES).for_each(|size| total.truths[size] += u64::from(truth.sizes >> size & 1));
        }
        for one in &image.found {
            found.get_mut(one.class as usize).into_iter().for_each(|all| all.push(*one));
        }
    }
    let totals = crate::threads::map(classes.len(), 1, |class| {
        let mut all: Vec<&FoundVerdict> = found[class].iter().collect();
        // Stable: of two of one score the one of the earlier image is first.
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        totals[class].clone().add(&all)
    });
    result(task, classes, images, &totals)
}

impl ClassTotal {
    /// Takes the detections of all images, the surest first.
    fn add(mut self, found: &[&FoundVerdict]) -> ClassTotal {
        self.found = found.len() as u64;
        for size in (0..SIZES).filter(|&size| self.truths[size] > 0) {
            for step in 0..OVERLAPS {
                let bit = 1_u64 << (size * OVERLAPS + step);
                let truths = self.truths[size];
                let peaks = peaks(found, bit);
                let curve = curve(&peaks, truths);
                self.precision[size][step] = curve.iter().sum::<f64>() / RECALLS as f64;
                self.recall[size][step] = peaks.len() as f64 / truths as f64;
                if size == 0 {
                    for (at, fewest) in FEWEST.into_iter().enumerate() {
                        let few = found.iter().filter(|one| one.rank < fewest);
                        let right = few.filter(|one| one.matched & !one.ignored & bit != 0).count();
                        self.recall_of_few[at][step] = right as f64 / truths as f64;
                    }
                }
                if size == 0 && step == 0 {
                    self.curve = curve;
                }
            }
        }
        let sure = found.iter().take_while(|one| one.score >= LEAST_SCORE);
        let counted = sure.filter(|one| one.ignored & 1 == 0);
        for one in counted {
            self.sure += 1;
            self.right += one.matched & 1;
        }
        self
    }
}

/// The best precision from each right detection on, the surest first.
fn peaks(found: &[&FoundVerdict], bit: u64) -> Vec<f64> {
    let (mut right, mut wrong, mut precision) = (0_u64, 0_u64, Vec::new());
    for one in found.iter().filter(|one| one.ignored & bit == 0) {
        if one.matched & bit == 0 {
            wrong += 1;
        } else {
            right += 1;
            precision.push(right as f64 / ((wrong + right) as f64 + f64::EPSILON));
        }
    }
    let mut best = 0.0;
    for one in precision.iter_mut().rev() {
        best = f64::max(best, *one);
        *one = best;
    }
    precision
}

/// Precision at each of the recalls; 0 where that recall was not reached.
fn curve(peaks: &[f64], truths: u64) -> Vec<f64> {
    let mut at = 0;
    (0..RECALLS)
        .map(|step| {
            let wanted = recall(step);
            while at < peaks.len() && ((at + 1) as f64 / truths as f64) < wanted {
                at += 1;
            }
            peaks.get(at).copied().unwrap_or(0.0)
        })
        .collect()
}

/// The steps as NumPy computes them.
fn recall(step: usize) -> f64 {
    if step == RECALLS - 1 { 1.0 } else { step as f64 * 0.01 }
}

/// The mean over the classes that have objects of a size.
fn mean(totals: &[ClassTotal], size: usize, of: impl Fn(&ClassTotal) -> f64) -> Option<f64> {
    let known = totals.iter().filter(|total| total.truths[size] > 0);
    let (sum, count) = known.fold((0.0, 0), |(sum, count), total| (sum + of(total), count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn over_steps(steps: &[f64; OVERLAPS]) -> f64 {
    steps.iter().sum::<f64>() / OVERLAPS as f64
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

fn result(
    task: AccuracyTask,
    classes: &[LabelClass],
    images: &[ImageVerdict],
    totals: &[ClassTotal],
) -> TaskAccuracy {
    let sum = |of: fn(&ClassTotal) -> u64| totals.iter().map(of).sum::<u64>();
    let (truths, matched, found) = (sum(|t| t.truths[0]), sum(|t| t.right), sum(|t| t.sure));
    let precision = |size: usize| mean(totals, size, |t| over_steps(&t.precision[size]));
    let recall = |size: usize| mean(totals, size, |t| over_steps(&t.recall[size]));
    let keypoints = task == AccuracyTask::Keypoints;
    let boxes = |figure: Option<f64>| figure.filter(|_| !keypoints);
    let few = |at: usize| boxes(mean(totals, 0, |t| over_steps(&t.recall_of_few[at])));
    TaskAccuracy {
        labels: String::new(),
        task,
        images: images.len() as u64,
        truths,
        map: precision(0),
        map50: mean(totals, 0, |t| t.precision[0][0]),
        map75: mean(totals, 0, |t| t.precision[0][5]),
        map_small: boxes(precision(1)),
        map_medium: precision(2),
        map_large: precision(3),
        mar: recall(0),
        mar1: few(0),
        mar10: few(1),
        mar50: mean(totals, 0, |t| t.recall[0][0]),
        mar75: mean(totals, 0, |t| t.recall[0][5]),
        mar_small: boxes(recall(1)),
        mar_medium: recall(2),
        mar_large: recall(3),
        precision: share(matched, found),
        recall: share(matched, truths),
        iou: 0.5,
        conf: LEAST_SCORE,
        matched,
        found,
        present: truths,
        classes: by_class(classes, totals),
        precision_recall: curves(classes, totals),
        confusion: confusion(classes, images, totals),
        how: how(task),
    }
}

fn how(task: AccuracyTask) -> String {
    let overlap = match task {
        AccuracyTask::Boxes | AccuracyTask::Masks => "IoU",
        AccuracyTask::Keypoints => "OKS",
    };
    format!(
        "COCO's rules, 101 points, {overlap} 0.50:0.05:0.95, at most {} detections of a class in \
         an image",
        task.most()
    )
}

/// Classes that occur.
fn occurring<'a>(
    classes: &'a [LabelClass],
    totals: &'a [ClassTotal],
) -> impl Iterator<Item = (usize, &'a LabelClass, &'a ClassTotal)> {
    let all = classes.iter().zip(totals).enumerate();
    all.map(|(at, (class, total))| (at, class, total))
        .filter(|(_, _, total)| total.truths[0] > 0 || total.found > 0)
}

fn by_class(classes: &[LabelClass], totals: &[ClassTotal]) -> Vec<ClassAccuracy> {
    occurring(classes, totals)
        .map(|(_, class, total)| {
            let known = total.truths[0] > 0;
            ClassAccuracy {
                class: class.id,
                name: class.name.clone(),
                truths: total.truths[0],
                map: known.then(|| over_steps(&total.precision[0])),
                map50: known.then_some(total.precision[0][0]),
                precision: share(total.right, total.sure),
                recall: share(total.right, total.truths[0]),
            }
        })
        .collect()
}

fn curves(classes: &[LabelClass], totals: &[ClassTotal]) -> Vec<PrecisionRecall> {
    let recalls: Vec<f64> = (0..RECALLS).map(recall).collect();
    let curve = |class: Option<i64>, precision: Vec<f64>| PrecisionRecall {
        class,
        recall: recalls.clone(),
        precision,
    };
    let known: Vec<_> =
        occurring(classes, totals).filter(|(_, _, total)| total.truths[0] > 0).collect();
    let at = |step: usize| {
        known.iter().map(|(_, _, total)| total.curve[step]).sum::<f64>() / known.len() as f64
    };
    let mean = (!known.is_empty()).then(|| curve(None, (0..RECALLS).map(at).collect()));
    let single = known.iter().map(|(_, class, total)| curve(Some(class.id), total.curve.clone()));
    mean.into_iter().chain(single).collect()
}

fn confusion(classes: &[LabelClass], images: &[ImageVerdict], totals: &[ClassTotal]) -> Confusion {
    let mut place: Vec<Option<usize>> = vec![None; classes.len()];
    let mut names = Vec::new();
    for (at, class, _) in occurring(classes, totals) {
        place[at] = Some(names.len());
        names.push(class.name.clone());
    }
    let background = names.len();
    names.push("background".to_owned());
    let mut counts = vec![vec![0; names.len()]; names.len()];
    let at = |class: Option<u32>| match class {
        None => Some(background),
        Some(class) => place.get(class as usize).copied().flatten(),
    };
    for &(truth, found) in images.iter().flat_map(|image| &image.confused) {
        if let (Some(row), Some(column)) = (at(truth), at(found)) {
            counts[row][column] += 1;
        }
    }
    Confusion { names, counts, iou: LEAST_OVERLAP, score: LEAST_SCORE }
}
