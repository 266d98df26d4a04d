//! From a detector's output to boxes in frame pixels.

/// One thing that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection {
    /// Left, top, right, bottom, in frame pixels.
    pub bounds: [f32; 4],
    /// How sure the detector is, 0 to 1.
    pub confidence: f32,
    /// The class, an index into the model's names.
    pub class: u32,
}

/// What counts as found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// The least confidence.
    pub confidence: f32,
    /// The overlap (intersection over union) above which the lesser of two boxes of one
    /// class is dropped.
    pub iou: f32,
    /// The most detections a frame.
    pub max_detections: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { confidence: 0.25, iou: 0.45, max_detections: 300 }
    }
}
