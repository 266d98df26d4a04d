//! The record: everything that a run found out, as plain data.
//!
//! `report.json` is this record, and every other format is rendered from it, so no two
//! formats can disagree. Three rules hold everywhere:
//!
//! - what is unknown is `null`, never 0, and the map `unknown` beside it says why;
//! - there are exactly two models, by type: an array of two;
//! - fields named `_gb` are GiB, `_ms` milliseconds, `_s` seconds.
//!
//! What follows from other fields (doubts, the summary, who came closest to the limit) is
//! worked out in [`BenchRecord::settle`], in one place.

pub mod memory;
pub mod model;
pub mod settle;
pub mod system;
pub mod time;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use memory::{
    Closest, GpuMemory, HowObtained, MeasuredWhat, MemoryArchitecture, MemorySafety, MemoryUsage,
    ReportLimitType, SharedMemory, Violation,
};
pub use model::{
    Accuracy, Bin, DetectionSummary, MemoryEstimate, ModelDescription, ModelRecord, Performance,
    PhasePart, PhaseParts, SlotTimeline, Status,
};
pub use system::{Spread, SystemMetrics, SystemTimeline};

use crate::doubt::Doubt;

/// The version of the form of `report.json`. The first number changes when a reader of
/// the old form would go wrong.
pub const SCHEMA_VERSION: &str = "2.0";

/// The names of the two slots; there is never a third. A slot is a place for a model, and says
/// nothing of which model is in it.
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
    /// How it was asked for.
    pub config: BenchConfig,
    /// Where frames came from.
    pub input_source: InputSource,
    /// The two slots, in order.
    pub models: [ModelRecord; 2],
    /// The machine while it ran.
    pub system_metrics: SystemMetrics,
    /// The limit and whether it was kept.
    pub memory_safety: MemorySafety,
    /// Memory that belongs to no slot: context and libraries. Never split.
    pub shared: SharedMemory,
    /// Why figures may say less than they seem to.
    pub doubts: Vec<DoubtRecord>,
    /// The whole in a few numbers.
    pub summary: RecordSummary,
    /// Whether the run ended before its end.
    pub interrupted: bool,
    /// By what; null where it was not.
    pub interruption: Option<String>,
}

/// A doubt and what it is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoubtRecord {
    /// The slot; null where it is about the whole run.
    #[cfg_attr(test, schemars(range(max = 1)))]
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
    /// The machine's name; null where it does not tell.
    pub host: Option<String>,
    /// The operating system.
    pub os: String,
    /// The processor's architecture.
    pub arch: String,
    /// The board or device, where it tells.
    pub device_name: Option<String>,
    /// The command as it was given, without passwords and tokens.
    pub command_line: Vec<String>,
}

/// How the run was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BenchConfig {
    /// `rgb`, `thermal` or `dual`.
    #[cfg_attr(test, schemars(extend("enum" = ["rgb", "thermal", "dual"])))]
    pub mode: String,
    /// The engine as asked for.
    pub engine: String,
    /// The device as asked for.
    pub device: String,
    /// Side of the models' input as asked for; null where each runs at its own size. What ran is
    /// in `model_info.input_size`.
    pub imgsz: Option<u32>,
    /// The least confidence of a detection.
    pub conf: f64,
    /// The overlap above which the lesser box is dropped.
    pub iou: f64,
    /// The most detections a frame.
    pub max_det: u32,
    /// The most frames a slot; null for all.
    pub max_frames: Option<u64>,
    /// Frames before measuring begins.
    pub warmup: u64,
    /// Offered frames a second; null for as fast as it goes.
    pub rate_fps: Option<f64>,
    /// For how long; null for as many frames as there are.
    pub duration_s: Option<f64>,
    /// Whether both slots ran at once.
    pub parallel: bool,
    /// Whether what was not done as asked is an error.
    #[serde(default)]
    pub strict: bool,
    /// How often the run was repeated.
    pub repeat: u32,
    /// The limit as asked for.
    pub gpu_mem_limit_gb: f64,
    /// The profile that clamps it.
    pub profile: Option<String>,
    /// What is kept free on unified memory; null where nothing was asked for.
    pub keep_free_gb: Option<f64>,
    /// How far apart frames of a pair may be; null in single-stream modes.
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
    /// As the user wrote it, without passwords and tokens.
    pub name: String,
    /// `image_dir`, `video`, `camera`, `rtsp`, `gst` or `synthetic`.
    #[cfg_attr(test, schemars(extend("enum" = ["image_dir", "video", "camera", "rtsp", "gst", "synthetic"])))]
    pub kind: String,
    /// The slots that it feeds.
    #[cfg_attr(test, schemars(inner(range(max = 1))))]
    pub slots: Vec<usize>,
    /// How many frames it has; null where that is not known.
    pub frames: Option<u64>,
    /// Frames a second by its own account; null where it does not tell.
    pub rate_fps: Option<f64>,
    /// How many were read.
    pub read: u64,
    /// How many could not be, and were skipped.
    pub corrupt: u64,
}

/// The whole in a few numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecordSummary {
    /// Slots that ran to their end.
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
