//! One slot or row of the record: what ran, how fast, how much memory, what it found.

use std::collections::BTreeMap;

use plimsoll_accuracy::TaskAccuracy;
use plimsoll_infer::{EngineInfo, ModelInfo};
use serde::{Deserialize, Serialize};

use super::{GpuMemory, SLOTS, Unknown};
use crate::stats::{Interval, LatencySummary, TimePoint};

/// How a slot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It ran all frames.
    Completed,
    /// It had no weights, or the mode excludes it.
    Skipped,
    /// It could not start or continue.
    Failed,
    /// It was stopped; what was measured until then is kept.
    Interrupted,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Status::Completed => "completed",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
            Status::Interrupted => "interrupted",
        })
    }
}

/// What the energy of a frame is the energy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnergyOf {
    /// The whole board.
    Machine,
    /// The GPUs alone, without processors and memory.
    Gpus,
}

impl std::fmt::Display for EnergyOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            EnergyOf::Machine => "whole machine",
            EnergyOf::Gpus => "GPUs alone",
        })
    }
}

/// The memory that a model was expected to take, from its file alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemoryEstimate {
    /// The weights.
    pub weights_bytes: u64,
    /// The most memory of intermediate tensors at once, as the engine allocates it.
    pub activation_bytes: u64,
    /// What the engine and the driver take for themselves; 0 where that is not known.
    pub overhead_bytes: u64,
    /// All of them.
    pub total_bytes: u64,
}

/// One slot or row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelRecord {
    /// Its place in `models`.
    pub slot: usize,
    /// The slot's own name: `yolo11n_rgb` or `yolo11n_thermal`, whatever model is in it; null in a
    /// run of rows.
    #[cfg_attr(test, schemars(extend("enum" = serde_json::json!([SLOTS[0], SLOTS[1], null]))))]
    pub slot_name: Option<String>,
    /// What the row is called: the model, and the engine where there are several; null where the
    /// run has slots.
    #[serde(default)]
    pub row: Option<String>,
    /// The model, after its file; null where the slot has none.
    pub name: Option<String>,
    /// How it ended.
    pub status: Status,
    /// Why, where it is not `completed`; null where it is.
    pub reason: Option<String>,
    /// What ran; null where nothing did.
    pub model_info: Option<ModelDescription>,
    /// What most of its weights are stored as, such as `f32`, `f16` or `i8`; null where the file
    /// does not tell. An engine may compute in another type.
    #[serde(default)]
    pub weights_type: Option<String>,
    /// How fast; null where nothing was measured.
    pub performance: Option<Performance>,
    /// The memory it was expected to take, before it was loaded; null where there is no estimate.
    #[serde(default)]
    pub estimate: Option<MemoryEstimate>,
    /// Its memory.
    pub gpu_memory: GpuMemory,
    /// What it found; null where nothing ran.
    pub detection_summary: Option<DetectionSummary>,
    /// How accurate it was at its task; null where the truth is not known.
    pub accuracy: Option<TaskAccuracy>,
    /// How accurate the boxes of a model are that has masks or keypoints; null for others.
    #[serde(default)]
    pub box_accuracy: Option<TaskAccuracy>,
    /// Joules per measured frame, while it ran; null where no sensor reports them.
    #[serde(default)]
    pub energy_per_frame_j: Option<f64>,
    /// What these are the joules of; null where they are not known.
    #[serde(default)]
    pub energy_of: Option<EnergyOf>,
    /// The run over time, for plots.
    pub timeline: SlotTimeline,
    /// Why fields are null.
    pub unknown: Unknown,
}

impl ModelRecord {
    /// The name for people, which no other of the run has: the row, or the model and its slot,
    /// because two slots may have the same model.
    #[must_use]
    pub fn label(&self) -> String {
        self.row.clone().unwrap_or_else(|| label(self.slot, self.name.as_deref()))
    }

    /// The slot with its own name, or the row by its number from 1.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.slot_name {
            Some(name) => format!("slot {} ({name})", self.slot),
            None => format!("row {}", self.slot + 1),
        }
    }

    /// Removes the reasons of fields that are known by now.
    pub fn forget_reasons_of_known(&mut self) {
        let known = [
            ("model_info", self.model_info.is_some()),
            ("performance", self.performance.is_some()),
            ("estimate", self.estimate.is_some()),
            ("detection_summary", self.detection_summary.is_some()),
            ("accuracy", self.accuracy.is_some()),
            ("energy_per_frame_j", self.energy_per_frame_j.is_some()),
            ("energy_of", self.energy_of.is_some()),
        ];
        for (field, _) in known.into_iter().filter(|(_, known)| *known) {
            self.unknown.remove(field);
        }
    }

    /// A slot in which nothing ran.
    #[must_use]
    pub fn idle(slot: usize, status: Status, reason: &str, gpu_memory: GpuMemory) -> ModelRecord {
        let unknown = [
            "model_info",
            "performance",
            "estimate",
            "detection_summary",
            "accuracy",
            "energy_per_frame_j",
            "energy_of",
        ]
        .map(|field| (field.to_string(), reason.to_string()));
        ModelRecord {
            slot,
            slot_name: SLOTS.get(slot).map(ToString::to_string),
            row: None,
            name: None,
            status,
            reason: Some(reason.to_string()),
            model_info: None,
            weights_type: None,
            performance: None,
            estimate: None,
            gpu_memory,
            detection_summary: None,
            accuracy: None,
            box_accuracy: None,
            energy_per_frame_j: None,
            energy_of: None,
            timeline: SlotTimeline::default(),
            unknown: unknown.into_iter().collect(),
        }
    }
}

/// Reads the models of a run. Where they have slots there are exactly two.
pub(super) fn rows_or_two_slots<'de, D>(reader: D) -> Result<Vec<ModelRecord>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let models = Vec::<ModelRecord>::deserialize(reader)?;
    let slots = models.iter().any(|model| model.slot_name.is_some());
    match models.len() {
        0 => Err(serde::de::Error::custom("a run has at least one model")),
        n if slots && n != SLOTS.len() => {
            Err(serde::de::Error::custom(format!("a run with slots has two models, not {n}")))
        }
        _ => Ok(models),
    }
}

/// The rule of the schema for models with slots, and what then holds.
#[cfg(test)]
pub(super) fn has_slots() -> serde_json::Value {
    let named = serde_json::json!({ "slot_name": { "type": "string" } });
    serde_json::json!({ "contains": { "required": ["slot_name"], "properties": named } })
}

#[cfg(test)]
pub(super) fn two() -> serde_json::Value {
    serde_json::json!({ "minItems": SLOTS.len(), "maxItems": SLOTS.len() })
}

/// A model and its slot, in words.
pub(crate) fn label(slot: usize, name: Option<&str>) -> String {
    name.map_or_else(|| format!("slot {slot}"), |name| format!("{name} (slot {slot})"))
}

/// What ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelDescription {
    /// The file, or the name of an embedded model.
    pub weights: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Rows and columns of the input as it ran; null where it did not run.
    pub input_size: Option<[usize; 2]>,
    /// The number of classes; null where the model does not report it.
    pub classes: Option<usize>,
    /// The engine that ran it.
    pub engine: String,
    /// The engine's version; null where it does not report it.
    pub engine_version: Option<String>,
    /// Where it ran.
    pub device: String,
    /// Why this engine and this device.
    #[serde(default)]
    pub chosen: String,
    /// How many nodes each provider ran; empty where the engine does not report it.
    pub nodes_by_provider: BTreeMap<String, u64>,
    /// Where the engine deviated from what was asked.
    pub fallbacks: Vec<String>,
    /// Whether the engine received the memory limit.
    pub limit_applied: bool,
    /// Bytes of workspace that the engine may use; null where it has none.
    pub workspace_bytes: Option<u64>,
}

impl ModelDescription {
    /// Whether it ran on a GPU.
    #[must_use]
    pub fn on_gpu(&self) -> bool {
        !self.device.starts_with("cpu")
    }

    /// From what the model and the engine report.
    #[must_use]
    pub fn new(model: &ModelInfo, engine: &EngineInfo) -> ModelDescription {
        ModelDescription {
            weights: model.name.clone(),
            bytes: model.bytes,
            input_size: model.input_size.map(|(rows, columns)| [rows, columns]),
            classes: None,
            engine: engine.name.to_string(),
            engine_version: engine.version.clone(),
            device: engine.device.clone(),
            chosen: engine.chosen.clone(),
            nodes_by_provider: engine.nodes_by_provider.clone(),
            fallbacks: engine.fallbacks.clone(),
            limit_applied: engine.limit_applied,
            workspace_bytes: None,
        }
    }
}

/// How fast a slot was. Warm-up frames are in none of the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Performance {
    /// Measured frames.
    pub frames: u64,
    /// Frames before measuring began.
    pub warmup_frames: u64,
    /// Seconds by the wall clock, from the start of the first measured frame to the end of
    /// the last.
    pub wall_s: f64,
    /// Frames per second by the wall clock; null where no time passed.
    pub fps: Option<f64>,
    /// From a frame to a tensor.
    pub prepare: LatencySummary,
    /// The engine.
    pub inference: LatencySummary,
    /// From the engine's output to boxes.
    pub decode: LatencySummary,
    /// A frame from its start (under an offered load: from its scheduled time) to its end.
    pub whole: LatencySummary,
    /// Reading and decoding frames, which runs ahead on its own thread and is in no other
    /// figure; null where the source does none.
    pub decode_ahead: Option<LatencySummary>,
    /// Offered frames per second; null without an offered load.
    pub offered_fps: Option<f64>,
    /// Frames that began after their scheduled time; null without an offered load.
    pub late: Option<u64>,
    /// Frames that nobody took; null without an offered load.
    pub dropped: Option<u64>,
    /// Cold, steady and throttled frames separately.
    pub parts: PhaseParts,
    /// Median of the whole in each repeat, in milliseconds; empty without repeats.
    pub repeats_p50_ms: Vec<f64>,
    /// The confidence interval of their mean (95 %); null without repeats.
    pub repeats_interval_ms: Option<Interval>,
}

/// A run by the state of the machine. A part without frames is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhaseParts {
    /// Before the machine was warm.
    pub cold: Option<PhasePart>,
    /// The normal state.
    pub steady: Option<PhasePart>,
    /// While the machine throttled.
    pub throttled: Option<PhasePart>,
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhasePart {
    /// Its frames.
    pub frames: u64,
    /// Their latency.
    pub whole: LatencySummary,
}

/// What a slot found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DetectionSummary {
    /// All detections.
    pub total: u64,
    /// By the name of the class.
    pub per_class: BTreeMap<String, u64>,
    /// The mean per frame; null without a frame.
    pub per_frame_mean: Option<f64>,
}

/// A run over time, in a bounded number of points.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlotTimeline {
    /// The whole latency in milliseconds.
    pub whole_ms: Vec<TimePoint>,
    /// The slot's memory in GiB.
    pub memory_gb: Vec<TimePoint>,
    /// How the whole latency is distributed.
    pub distribution: Vec<Bin>,
}

/// How many frames took that long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bin {
    /// From.
    pub from_ms: f64,
    /// To.
    pub to_ms: f64,
    /// How many.
    pub frames: u64,
}
