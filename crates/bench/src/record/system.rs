//! The machine during a run. What it does not report is null, with a reason.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MemoryArchitecture, MemoryUsage, Unknown};
use crate::stats::TimePoint;

/// Mean and extremes of a sampled quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

/// The machine during the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SystemMetrics {
    /// How GPU memory relates to system memory.
    pub architecture: MemoryArchitecture,
    /// The memory of the whole run against the limit.
    pub gpu_memory: MemoryUsage,
    /// How many samples there were.
    pub samples: u64,
    /// Use of all processors, in percent.
    pub cpu_percent: Option<Spread>,
    /// Clock of the processors.
    pub cpu_clock_mhz: Option<Spread>,
    /// All of the system's memory.
    pub ram_total_gb: Option<f64>,
    /// System memory in use, by all programs.
    pub ram_used_gb: Option<Spread>,
    /// The GPU's part of `ram_used_gb`, never added to it; on unified memory only.
    pub ram_gpu_share_gb: Option<Spread>,
    /// The GPU's own memory in use, by all programs; on a discrete GPU only.
    pub vram_used_gb: Option<Spread>,
    /// Swap in use.
    pub swap_used_gb: Option<Spread>,
    /// Load of the GPU, in percent.
    pub gpu_load_percent: Option<Spread>,
    /// Clock of the GPU.
    pub gpu_clock_mhz: Option<Spread>,
    /// Whether clocks were locked.
    pub clocks_locked: Option<bool>,
    /// The power mode.
    pub power_mode: Option<String>,
    /// By sensor, in degrees Celsius; empty where there is none.
    pub temperatures_c: BTreeMap<String, Spread>,
    /// By rail, in watts; empty where there is none.
    pub power_w: BTreeMap<String, Spread>,
    /// Joules per measured frame.
    pub energy_per_frame_j: Option<f64>,
    /// The machine over time, for plots.
    pub timeline: SystemTimeline,
    /// Why fields are null or empty.
    pub unknown: Unknown,
}

/// The machine over time, for plots.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SystemTimeline {
    /// System memory in use, in GiB.
    pub ram_used_gb: Vec<TimePoint>,
    /// By sensor, in degrees Celsius.
    pub temperatures_c: BTreeMap<String, Vec<TimePoint>>,
    /// By rail, in watts.
    pub power_w: BTreeMap<String, Vec<TimePoint>>,
}
