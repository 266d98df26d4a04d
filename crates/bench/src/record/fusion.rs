//! What two cameras find together.

use serde::{Deserialize, Serialize};

/// Two cameras that look at the same scenes, alone and joined. All three are judged by the same
/// truths: objects that the labels of at least one camera show, in the picture of the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fusion {
    /// How their detections are joined, in words.
    pub rule: String,
    /// Pairs of images that were judged.
    pub images: u64,
    /// Objects that were to be found.
    pub truths: u64,
    /// Each camera alone, in the order of the slots.
    pub cameras: Vec<CameraAccuracy>,
    /// Both together.
    pub fused: CameraAccuracy,
}

/// How accurate the boxes of one camera, or of both, are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CameraAccuracy {
    /// Mean average precision over the overlaps (IoU) 0.50 to 0.95; null without an object.
    pub map: Option<f64>,
    /// The same at an overlap of 0.50.
    pub map50: Option<f64>,
    /// Right detections over all detections, at an overlap of 0.50 and from a score of 0.25 on.
    pub precision: Option<f64>,
    /// Found objects over all objects, at the same.
    pub recall: Option<f64>,
}
