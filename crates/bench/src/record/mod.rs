//! The record: everything that a run found out, as plain data.
//!
//! `report.json` is this record, and every other format is rendered from it, so no two
//! formats can disagree. Three rules apply everywhere:
//!
//! - what is unknown is `null`, never 0, and the map `unknown` beside it says why;
//! - there is one model for each row, and exactly two where the run has slots;
//! - fields named `_gb` are GiB, `_ms` milliseconds, `_s` seconds.
//!
//! Fields that follow from others (doubts, the summary, the slots closest to the limit) are
//! derived in one place, [`BenchRecord::settle`].
//!
//! # How to add a field of the report
//!
//! 1. Add it to its struct here, with a doc comment: that is its description in the schema. An
//!    `Option` is null if it is unknown; then give the reason in the `unknown` map beside it.
//! 2. The compiler names every place that builds the struct. Most values come from
//!    `workload/snapshot.rs`; if a sample must carry it, see [`crate::measure`]. A field that
//!    follows from others is filled in `record/settle.rs` instead.
//! 3. To show it in Markdown, HTML and on the terminal, add a row in `report/sheet.rs` (or
//!    `report/memory.rs`): all of them use those words. `report.json` has it already.
//!    `summary.csv` does not use the sheet: its columns are in `report/csv.rs`.
//! 4. Write the schema again, and look at the difference:
//!    `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-bench --lib record`. Without that a test
//!    fails. A narrower rule than the type's goes beside the field, as
//!    `#[cfg_attr(test, schemars(range(max = 1)))]`.
//! 5. If its null means "does not apply" and needs no reason, add its name to `PLAIN` in
//!    `tests/all/schema.rs`; a test there finds nulls without a reason.
//! 6. A field that old reports do not have needs `#[serde(default)]`, so that they can still be
//!    compared. [`SCHEMA_VERSION`] changes when a reader of the old form would go wrong.

pub mod fusion;
pub mod memory;
pub mod model;
pub mod settle;
pub mod system;
pub mod time;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use fusion::{CameraAccuracy, Fusion};
pub use memory::{
    Closest, GpuMemory, HowObtained, MeasuredWhat, MemoryArchitecture, MemorySafety, MemoryUsage,
    ReportLimitType, SharedMemory, Violation,
};
pub use model::{
    Bin, DetectionSummary, EnergyOf, MemoryEstimate, ModelDescription, ModelRecord, Performance,
    PhasePart, PhaseParts, SlotTimeline, Status,
};
pub use system::{Spread, SystemMetrics, SystemTimeline};

pub use plimsoll_accuracy::{
    AccuracyTask, ClassAccuracy, Confusion, PrecisionRecall, TaskAccuracy,
};

use crate::doubt::Doubt;

/// The version of the form of `report.json`. The first number changes when a reader of
/// the old form would go wrong.
pub const SCHEMA_VERSION: &str = "2.1";

/// The names of the two slots. A slot is a place for any model, so its name does not say which
/// model is in it.
pub const SLOTS: [&str; 2] = ["yolo11n_rgb", "yolo11n_thermal"];

/// Why fields are null: the name of the field, and the reason.
pub type Unknown = BTreeMap<String, String>;

/// Everything that a run found out. Fields named `_gb` are GiB, `_ms` milliseconds and `_s`
/// seconds. What is unknown is null, never 0, and a map named `unknown` beside it says why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BenchRecord {
    /// The version of this form.
    #[cfg_attr(test, schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: String,
    /// Who, when, where.
    pub metadata: Metadata,
    /// What the user asked for.
    pub config: BenchConfig,
    /// Where frames came from.
    pub input_source: InputSource,
    /// The two slots, in order; or the rows of a run of several models, engines or precisions.
    #[serde(deserialize_with = "model::rows_or_two_slots")]
    #[cfg_attr(test, schemars(length(min = 1), extend("if" = model::has_slots(), "then" = model::two())))]
    pub models: Vec<ModelRecord>,
    /// What two cameras find together; null where they were not judged together.
    #[serde(default)]
    pub fusion: Option<Fusion>,
    /// The machine during the run.
    pub system_metrics: SystemMetrics,
    /// The limit, and whether memory stayed within it.
    pub memory_safety: MemorySafety,
    /// Memory that belongs to no slot, such as context and libraries. It is never split.
    pub shared: SharedMemory,
    /// Reasons to trust figures less.
    pub doubts: Vec<DoubtRecord>,
    /// The run in a few numbers.
    pub summary: RecordSummary,
    /// Whether the run was stopped early.
    pub interrupted: bool,
    /// What stopped it; null where nothing did.
    pub interruption: Option<String>,
}

/// A doubt and what it is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoubtRecord {
    /// The slot or row, by its place in `models`; null where it is about the whole run.
    pub slot: Option<usize>,
    /// The doubt itself: its `kind` and numbers.
    #[serde(flatten)]
    pub doubt: Doubt,
    /// The doubt in words.
    pub text: String,
}

impl DoubtRecord {
    /// A doubt about a slot, or about the whole run.
    #[must_use]
    pub fn new(slot: Option<usize>, doubt: Doubt) -> DoubtRecord {
        let text = doubt.to_string();
        DoubtRecord { slot, doubt, text }
    }
}

/// Who, when, where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Metadata {
    /// The program's name.
    pub tool: String,
    /// Its version.
    pub tool_version: String,
    /// The name of the run: its folder.
    pub run_name: String,
    /// When it began, UTC, RFC 3339.
    pub started: String,
    /// When it ended; null while it runs.
    pub finished: Option<String>,
    /// The machine's name; null where that is not known.
    pub host: Option<String>,
    /// The operating system.
    pub os: String,
    /// The processor's architecture.
    pub arch: String,
    /// The board or processor; null where that is not known.
    pub device_name: Option<String>,
    /// The command line, without passwords and tokens.
    pub command_line: Vec<String>,
}

/// What the user asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BenchConfig {
    /// `rgb`, `thermal` or `dual` where the run has two slots; `rows` where it has a row for each
    /// model and engine.
    #[cfg_attr(test, schemars(extend("enum" = ["rgb", "thermal", "dual", "rows"])))]
    pub mode: String,
    /// The engines as asked for, with commas between them.
    pub engine: String,
    /// The device as asked for.
    pub device: String,
    /// Side of the models' input as asked for; null where each runs at its own size. What ran is
    /// in `model_info.input_size`.
    pub imgsz: Option<u32>,
    /// The least confidence of a detection.
    pub conf: f64,
    /// The overlap (IoU) above which the less confident of two boxes is dropped.
    pub iou: f64,
    /// The most detections per frame.
    pub max_det: u32,
    /// The most frames per slot; null for all.
    pub max_frames: Option<u64>,
    /// Frames before measuring begins.
    pub warmup: u64,
    /// Offered frames per second; null for as fast as possible.
    pub rate_fps: Option<f64>,
    /// How long each slot runs, in seconds; null for a number of frames.
    pub duration_s: Option<f64>,
    /// Whether a source that ends starts over until there are enough frames.
    #[serde(default, rename = "loop")]
    pub loop_source: bool,
    /// Whether both slots ran at once.
    pub parallel: bool,
    /// Whether a deviation from the request, such as a fallback, is an error.
    #[serde(default)]
    pub strict: bool,
    /// How often the run was repeated.
    pub repeat: u32,
    /// The limit as asked for.
    pub gpu_mem_limit_gb: f64,
    /// The profile that clamps it.
    pub profile: Option<String>,
    /// What must stay free on unified memory; null where the user did not say.
    pub keep_free_gb: Option<f64>,
    /// How far apart in time frames of a pair may be; null in single-stream modes.
    pub sync_tolerance_ms: Option<f64>,
    /// Seconds between samples of the machine.
    pub metrics_interval_s: f64,
}

/// Where frames came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InputSource {
    /// The streams: one, or RGB and thermal.
    pub streams: Vec<InputStream>,
    /// Frames without a partner; null in single-stream modes.
    pub unpaired: Option<u64>,
}

/// One stream of frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InputStream {
    /// As the user wrote it, without passwords and tokens; several that follow each other with
    /// commas between them.
    pub name: String,
    /// `image_dir`, `video`, `camera`, `rtsp`, `gst` or `synthetic`.
    #[cfg_attr(test, schemars(extend("enum" = ["image_dir", "video", "camera", "rtsp", "gst", "synthetic"])))]
    pub kind: String,
    /// The slots or rows that it feeds.
    pub slots: Vec<usize>,
    /// How many frames it has; null where that is not known.
    pub frames: Option<u64>,
    /// Frames per second as the source reports it; null where it does not.
    pub rate_fps: Option<f64>,
    /// Frames that were read.
    pub read: u64,
    /// Frames that could not be read or prepared, and were skipped.
    pub corrupt: u64,
}

/// The run in a few numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecordSummary {
    /// Slots or rows that ran to their end.
    pub completed: usize,
    /// Slots without weights.
    pub skipped: usize,
    /// Slots that failed.
    pub failed: usize,
    /// Slots that were stopped.
    pub interrupted: usize,
    /// Measured frames of all slots.
    pub frames: u64,
    /// How many doubts there are.
    pub doubts: usize,
    /// One sentence.
    pub text: String,
}
