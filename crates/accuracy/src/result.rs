//! The figures, as reports keep them.

use serde::{Deserialize, Serialize};

use crate::judge::AccuracyTask;

/// How accurate detections were for one task. A figure for which there is no truth is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TaskAccuracy {
    /// Where the truth comes from: the file of the labels, or the scenes that were drawn.
    pub labels: String,
    /// What was judged.
    pub task: AccuracyTask,
    /// Images that were judged.
    pub images: u64,
    /// Objects that were to be found.
    pub truths: u64,
    /// Mean average precision over the overlaps (IoU) 0.50 to 0.95 and over the classes.
    pub map: Option<f64>,
    /// The same at an overlap of 0.50.
    pub map50: Option<f64>,
    /// The same at an overlap of 0.75.
    pub map75: Option<f64>,
    /// `map` of objects of at most 32 x 32 pixels; null for keypoints.
    pub map_small: Option<f64>,
    /// `map` of objects between small and large.
    pub map_medium: Option<f64>,
    /// `map` of objects of at least 96 x 96 pixels.
    pub map_large: Option<f64>,
    /// Mean recall over the overlaps and the classes, with at most 100 detections of a class in an
    /// image (20 for keypoints).
    pub mar: Option<f64>,
    /// The same with at most one detection; null for keypoints.
    pub mar1: Option<f64>,
    /// The same with at most ten; null for keypoints.
    pub mar10: Option<f64>,
    /// `mar` at an overlap of 0.50.
    pub mar50: Option<f64>,
    /// `mar` at an overlap of 0.75.
    pub mar75: Option<f64>,
    /// `mar` of small objects; null for keypoints.
    pub mar_small: Option<f64>,
    /// `mar` of medium objects.
    pub mar_medium: Option<f64>,
    /// `mar` of large objects.
    pub mar_large: Option<f64>,
    /// Right detections over all detections, at the overlap `iou` and from the score `conf` on; null
    /// where nothing was found.
    pub precision: Option<f64>,
    /// Found objects over all objects, at the same.
    pub recall: Option<f64>,
    /// The overlap for precision and recall.
    pub iou: f64,
    /// The least score for precision and recall.
    pub conf: f64,
    /// Right detections at these.
    pub matched: u64,
    /// All detections at these, without those in crowds.
    pub found: u64,
    /// All objects.
    pub present: u64,
    /// Class by class, those with objects or detections.
    pub classes: Vec<ClassAccuracy>,
    /// Precision over recall at an overlap of 0.50: the mean of the classes, then class by class.
    pub precision_recall: Vec<PrecisionRecall>,
    /// Which class was taken for which, by boxes.
    pub confusion: Confusion,
    /// The rules, in words.
    pub how: String,
}

/// How accurate the detections of one class were.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClassAccuracy {
    /// The number of the class in the labels.
    pub class: i64,
    /// Its name.
    pub name: String,
    /// Its objects that were to be found.
    pub truths: u64,
    /// Mean average precision over the overlaps 0.50 to 0.95; null without an object.
    pub map: Option<f64>,
    /// Average precision at an overlap of 0.50.
    pub map50: Option<f64>,
    /// Right detections over all detections, at the overlap and score of the whole; null where
    /// nothing was found.
    pub precision: Option<f64>,
    /// Found objects over all objects, at the same.
    pub recall: Option<f64>,
}

/// A curve of precision over recall.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrecisionRecall {
    /// The number of the class; null for the mean of all classes.
    pub class: Option<i64>,
    /// 0.00 to 1.00.
    pub recall: Vec<f64>,
    /// The best precision at that recall or a higher one.
    pub precision: Vec<f64>,
}

/// A confusion matrix.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Confusion {
    /// The classes, those with objects or detections; the last is `background`.
    pub names: Vec<String>,
    /// A row for each class of a truth, in it a column for each class of a detection. In the last
    /// column are objects that were not found, in the last row detections where there is no object.
    pub counts: Vec<Vec<u64>>,
    /// The overlap from which a detection stands for an object.
    pub iou: f64,
    /// The least score of a detection that counts.
    pub score: f64,
}
