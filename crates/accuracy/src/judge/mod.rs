//! Detections against labels, by COCO's rules.
//!
//! An image is judged alone ([`Judge::image`]), so that images can be judged as they come or on
//! several threads, and masks need not be kept. [`Judge::total`] adds the images up, in the order
//! in which they are given; among detections of one score the order decides.

mod confusion;
mod image;
mod keypoints;
mod total;

use crate::result::TaskAccuracy;

pub use image::ImageVerdict;

/// Overlaps from which a detection is right: 0.50 to 0.95.
const OVERLAPS: usize = 10;
/// All sizes, small, medium, large.
const SIZES: usize = 4;
/// The areas of the sizes, in pixels; both ends belong to them.
const AREAS: [(f64, f64); SIZES] = [(0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10)];

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccuracyTask {
    /// Boxes, by intersection over union.
    #[default]
    Boxes,
    /// Masks, by intersection over union.
    Masks,
    /// Keypoints, by object keypoint similarity.
    Keypoints,
}

impl AccuracyTask {
    /// The most detections of a class in an image that count.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            AccuracyTask::Boxes | AccuracyTask::Masks => 100,
            AccuracyTask::Keypoints => 20,
        }
    }

    /// Its name, as reports have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AccuracyTask::Boxes => "boxes",
            AccuracyTask::Masks => "masks",
            AccuracyTask::Keypoints => "keypoints",
        }
    }
}

impl std::fmt::Display for AccuracyTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Judges the detections of one detector.
#[derive(Debug, Clone)]
pub struct Judge {
    task: AccuracyTask,
    overlaps: [f64; OVERLAPS],
}

impl Judge {
    /// For a task.
    #[must_use]
    pub fn new(task: AccuracyTask) -> Judge {
        Judge { task, overlaps: overlaps() }
    }

    /// The task.
    #[must_use]
    pub fn task(&self) -> AccuracyTask {
        self.task
    }

    /// Judges images on all processors; `judge` is called with the number of an image.
    pub fn images<F>(count: usize, judge: F) -> Vec<ImageVerdict>
    where
        F: Fn(usize) -> ImageVerdict + Sync,
    {
        crate::threads::map(count, 16, judge)
    }

    /// What the images come to. `classes` are those of the labels, in the order of their ids.
    #[must_use]
    pub fn total(&self, classes: &[crate::LabelClass], images: &[ImageVerdict]) -> TaskAccuracy {
        total::total(self.task, classes, images)
    }
}

/// The steps as NumPy computes them: 0.6 is not 0.6 there, and an overlap may lie between.
fn overlaps() -> [f64; OVERLAPS] {
    let step = (0.95 - 0.5) / (OVERLAPS - 1) as f64;
    let mut all = std::array::from_fn(|at| at as f64 * step + 0.5);
    all[OVERLAPS - 1] = 0.95;
    all
}

#[cfg(test)]
mod tests;
