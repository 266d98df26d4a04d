//! Detections judged against labels: average precision and recall of boxes, masks and keypoints by
//! COCO's rules, with the figures of pycocotools.
//!
//! ```text
//! labels (COCO JSON, YOLO) ─→ LabelledObject ─┐
//!                                             ├─→ Judge::image ─→ Judge::total ─→ TaskAccuracy
//! detections ─────────────→ FoundObject ──────┘
//! ```
//!
//! Nothing here knows an engine, a camera or a clock. [`fuse`] joins what two cameras found.

pub mod fuse;
pub mod judge;
pub mod labels;
pub mod mask;
pub mod object;
pub mod result;
mod threads;

pub use judge::{AccuracyTask, ImageVerdict, Judge};
pub use labels::{LabelSet, LabelsError};
pub use mask::PixelRuns;
pub use object::{FoundObject, LabelClass, LabelledObject, ObjectOutline};
pub use result::{ClassAccuracy, Confusion, PrecisionRecall, TaskAccuracy};
