//! A sample as it is written and read: one JSON object a line.
//!
//! This is the one form behind everything that leaves the monitor: `--format`, `--log`,
//! `--serve`, the terminal view, and what `--replay` reads back. Sizes are bytes, what is
//! not known is null, and a field that a newer version adds does not disturb an older one.

mod pool;
mod sample;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

pub(crate) use pool::{MonitorPool, PoolOwner};

/// This many processes are written and served, those that hold the most; the view has all.
pub(crate) const MOST_WRITTEN: usize = 32;

/// A machine at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorRecord {
    /// By the calendar of the machine: RFC 3339, or what a log had.
    pub(crate) time: Option<String>,
    /// Seconds since the start.
    pub(crate) t: Option<f64>,
    /// How it was obtained: `sampled`, or `recorded` for a replay.
    pub(crate) how: String,
    /// Whether a GPU uses the system's memory; null where no GPU is seen.
    pub(crate) unified: Option<bool>,
    pub(crate) memory: MonitorMemory,
    pub(crate) swap: Swap,
    pub(crate) cpu: MonitorCpu,
    pub(crate) gpus: Vec<MonitorGpu>,
    pub(crate) engines: BTreeMap<String, MonitorEngine>,
    pub(crate) temperatures_c: BTreeMap<String, Option<f64>>,
    /// Fans of the board or machine; those of GPUs are with them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) fans: BTreeMap<String, MonitorFan>,
    pub(crate) power_w: BTreeMap<String, Option<f64>>,
    pub(crate) total_power_w: Option<f64>,
    pub(crate) power_mode: Option<String>,
    /// What throttles the clocks; null where that is not known.
    pub(crate) throttled_by: Option<Vec<String>>,
    /// Those that hold the most memory first.
    #[serde(serialize_with = "first_of")]
    pub(crate) processes: Vec<MonitorProcess>,
    /// Runs whose GPU memory the guard holds to a limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<MonitorRun>,
    /// The memory that runs out first at the present growth; null where none does.
    pub(crate) time_left: Option<MonitorTimeLeft>,
    /// What the monitoring itself costs: this program, and those that it runs to read sensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cost: Vec<MonitorCost>,
    /// Alerts that were raised at this sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alerts: Vec<String>,
    /// The sources that did not answer in time, so that what they tell is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) late: Vec<String>,
    /// What this machine or log does not tell, in words, with what to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<String>,
    /// What could not be read, reported once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// The line of a tegrastats log, field by field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tegrastats: Option<Value>,
}

/// The system's memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorMemory {
    pub(crate) total_bytes: Option<u64>,
    /// What cannot be had without swapping: total less available.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) available_bytes: Option<u64>,
    /// Unused now, page cache not counted.
    pub(crate) free_bytes: Option<u64>,
    /// On unified memory, of what is used: the GPU's, codecs' and cameras' share.
    pub(crate) gpu_share_bytes: Option<u64>,
    pub(crate) largest_free_bytes: Option<u64>,
    /// What use is compared with (`--limit`), where that is less than all of it.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) pressure: Option<String>,
}

/// Swap.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Swap {
    pub(crate) total_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
}

/// The processors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorCpu {
    pub(crate) percent: Option<f64>,
    pub(crate) cores: Vec<MonitorCore>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorCore {
    pub(crate) online: bool,
    pub(crate) percent: Option<f64>,
    pub(crate) mhz: Option<f64>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorGpu {
    pub(crate) name: Option<String>,
    pub(crate) unified: bool,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) total_bytes: Option<u64>,
    /// What use of a GPU's own memory is compared with (`--limit`).
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) pressure: Option<String>,
    pub(crate) percent: Option<f64>,
    pub(crate) mhz: Option<f64>,
    pub(crate) max_mhz: Option<f64>,
    pub(crate) memory_mhz: Option<f64>,
    pub(crate) power_w: Option<f64>,
    pub(crate) power_limit_w: Option<f64>,
    pub(crate) temperature_c: Option<f64>,
    pub(crate) fan_percent: Option<f64>,
    pub(crate) throttled_by: Option<Vec<String>>,
}

/// An engine beside the GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorEngine {
    pub(crate) off: bool,
    pub(crate) percent: Option<f64>,
    pub(crate) mhz: Option<f64>,
}

/// A fan.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorFan {
    pub(crate) percent: Option<f64>,
    pub(crate) rpm: Option<f64>,
}

/// GPU memory that the guard holds to a limit: a run of `plimsoll run`, or a program with a limit
/// in its environment, with its children.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorRun {
    /// The lowest number of its processes that hold GPU memory, as its name.
    pub(crate) pid: u32,
    /// The GPU, by its number on this machine; where that is not known, by the program's own.
    pub(crate) gpu: usize,
    /// What the guard has counted.
    pub(crate) used_bytes: u64,
    /// Null where it only counts.
    pub(crate) limit_bytes: Option<u64>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorProcess {
    pub(crate) pid: u32,
    pub(crate) name: Option<String>,
    pub(crate) user: Option<String>,
    /// Its command line, as far as it is kept.
    pub(crate) command: Option<String>,
    /// Its container, from its control group; null outside of one.
    pub(crate) container: Option<String>,
    /// The GPU that it uses, by its place in `gpus`.
    pub(crate) gpu: Option<usize>,
    pub(crate) gpu_bytes: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) proportional_bytes: Option<u64>,
    pub(crate) cpu_percent: Option<f64>,
    /// GPU memory that the guard has counted for it; null where the guard does not hold it.
    pub(crate) guarded_bytes: Option<u64>,
    /// The limit of its run.
    pub(crate) limit_bytes: Option<u64>,
}

/// What a program that watches costs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorCost {
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// Processor time since it was started.
    pub(crate) cpu_s: f64,
    pub(crate) resident_bytes: Option<u64>,
}

/// When a memory runs out, or reaches its limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorTimeLeft {
    /// `system`, `gpu0` and so on, or `run 4711`.
    pub(crate) memory: String,
    /// The limit that it reaches; null where it runs out.
    pub(crate) limit_bytes: Option<u64>,
    /// The best guess.
    pub(crate) seconds: f64,
    /// It is likely not sooner than this.
    pub(crate) at_least_s: f64,
    /// Nor later than this; null where it may never run out.
    pub(crate) at_most_s: Option<f64>,
    /// The growth it was worked out from.
    pub(crate) bytes_per_s: f64,
}

fn first_of<S: Serializer>(all: &[MonitorProcess], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().take(MOST_WRITTEN))
}
