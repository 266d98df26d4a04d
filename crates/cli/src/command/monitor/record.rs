//! A sample as it is written and read: one JSON object a line.
//!
//! This is the one form behind everything that leaves the monitor: `--format`, `--log`,
//! `--serve`, the terminal view, and what `--replay` reads back. Sizes are bytes, what is
//! not known is null, and a field that a newer version adds does not disturb an older one.

use std::collections::BTreeMap;
use std::time::SystemTime;

use plimsoll::probe::{MachineSample, TimeLeft, is_placeholder};
use plimsoll::{Bytes, MemoryPressure};
use plimsoll_bench::record::time::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    pub(crate) power_w: BTreeMap<String, Option<f64>>,
    pub(crate) total_power_w: Option<f64>,
    pub(crate) power_mode: Option<String>,
    /// What throttles the clocks; null where that is not known.
    pub(crate) throttled_by: Option<Vec<String>>,
    pub(crate) processes: Vec<MonitorProcess>,
    /// The memory that runs out first at the present growth; null where none does.
    pub(crate) time_left: Option<MonitorTimeLeft>,
    /// What the monitoring itself costs: this program, and those that it runs to read sensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cost: Vec<MonitorCost>,
    /// Alerts that were raised at this sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alerts: Vec<String>,
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
    pub(crate) pressure: Option<String>,
    pub(crate) percent: Option<f64>,
    pub(crate) mhz: Option<f64>,
    pub(crate) max_mhz: Option<f64>,
    pub(crate) memory_mhz: Option<f64>,
    pub(crate) power_w: Option<f64>,
    pub(crate) power_limit_w: Option<f64>,
    pub(crate) temperature_c: Option<f64>,
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

/// A process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorProcess {
    pub(crate) pid: u32,
    pub(crate) name: Option<String>,
    /// The GPU that it uses, by its place in `gpus`.
    pub(crate) gpu: Option<usize>,
    pub(crate) gpu_bytes: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) proportional_bytes: Option<u64>,
    pub(crate) cpu_percent: Option<f64>,
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

/// When a memory runs out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorTimeLeft {
    /// `system`, or `gpu0` and so on.
    pub(crate) memory: String,
    /// The best guess.
    pub(crate) seconds: f64,
    /// It is likely not sooner than this.
    pub(crate) at_least_s: f64,
    /// Nor later than this; null where it may never run out.
    pub(crate) at_most_s: Option<f64>,
    /// The growth it was worked out from.
    pub(crate) bytes_per_s: f64,
}

/// A memory that can run out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MonitorPool {
    /// `None` for the system's.
    pub(crate) gpu: Option<usize>,
    pub(crate) used: u64,
    pub(crate) total: u64,
}

impl MonitorPool {
    pub(crate) fn name(gpu: Option<usize>) -> String {
        gpu.map_or_else(|| "system".to_string(), |at| format!("gpu{at}"))
    }

    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    pub(crate) fn pressure(&self) -> MemoryPressure {
        MemoryPressure::of(Bytes(self.used), Bytes(self.total))
    }
}

impl MonitorTimeLeft {
    pub(super) fn new(gpu: Option<usize>, left: TimeLeft) -> MonitorTimeLeft {
        let tenth = |s: f64| (s * 10.0).round() / 10.0;
        MonitorTimeLeft {
            memory: MonitorPool::name(gpu),
            seconds: tenth(left.seconds),
            at_least_s: tenth(left.at_least),
            at_most_s: left.at_most.map(tenth),
            bytes_per_s: left.bytes_per_second.round(),
        }
    }
}

impl MonitorRecord {
    /// A sample that was taken now.
    pub(super) fn live(at: SystemTime, t: f64, how: &str, sample: &MachineSample) -> MonitorRecord {
        MonitorRecord { time: Some(rfc3339(at)), ..MonitorRecord::new(Some(t), how, sample) }
    }

    /// A sample as it stands.
    pub(super) fn new(t: Option<f64>, how: &str, sample: &MachineSample) -> MonitorRecord {
        let memory = &sample.memory;
        let bytes = |of: Option<Bytes>| of.map(Bytes::get);
        let share = sample.gpus.iter().find(|gpu| gpu.unified).and_then(|gpu| gpu.used);
        let mut record = MonitorRecord {
            t: t.map(|t| (t * 1000.0).round() / 1000.0),
            how: how.to_string(),
            unified: sample.is_unified(),
            memory: MonitorMemory {
                total_bytes: bytes(memory.total),
                used_bytes: bytes(memory.used()),
                available_bytes: bytes(memory.available),
                free_bytes: bytes(memory.free),
                gpu_share_bytes: bytes(share),
                largest_free_bytes: bytes(sample.largest_free),
                pressure: None,
            },
            swap: Swap {
                total_bytes: bytes(memory.swap_total),
                used_bytes: bytes(memory.swap_used()),
            },
            total_power_w: round(sample.total_power_w),
            power_mode: sample.power_mode.clone(),
            throttled_by: sample.throttled_by.clone(),
            ..MonitorRecord::default()
        };
        record.add_parts(sample);
        let pressure = |pool: Option<MonitorPool>| pool.map(|pool| pool.pressure().to_string());
        record.memory.pressure = pressure(record.system());
        for at in 0..record.gpus.len() {
            record.gpus[at].pressure = pressure(record.own(at));
        }
        record
    }

    fn add_parts(&mut self, sample: &MachineSample) {
        let cores = sample.cores.iter().map(|core| MonitorCore {
            online: core.online,
            percent: round(core.percent),
            mhz: round(core.mhz),
        });
        self.cpu = MonitorCpu { percent: round(sample.cpu_percent), cores: cores.collect() };
        self.gpus = sample.gpus.iter().map(MonitorGpu::new).collect();
        self.engines = sample
            .engines
            .iter()
            .map(|e| {
                let engine = MonitorEngine { off: e.off, percent: e.percent, mhz: round(e.mhz) };
                (e.name.clone(), engine)
            })
            .collect();
        let heat = sample.temperatures.iter();
        self.temperatures_c = heat.map(|t| (t.name.clone(), t.celsius)).collect();
        let rails = sample.rails.iter();
        self.power_w = rails.map(|rail| (rail.name.clone(), round(rail.watts))).collect();
        self.processes = sample.processes.iter().map(MonitorProcess::new).collect();
        self.cost = sample.helpers.iter().map(MonitorCost::new).collect();
    }

    /// The system's memory, where it is known.
    pub(crate) fn system(&self) -> Option<MonitorPool> {
        let total = self.memory.total_bytes?;
        let available = self.memory.available_bytes;
        let used = available.map(|free| total.saturating_sub(free)).or(self.memory.used_bytes)?;
        Some(MonitorPool { gpu: None, used, total })
    }

    /// A discrete GPU's own memory.
    pub(crate) fn own(&self, at: usize) -> Option<MonitorPool> {
        let gpu = self.gpus.get(at).filter(|gpu| !gpu.unified)?;
        Some(MonitorPool { gpu: Some(at), used: gpu.used_bytes?, total: gpu.total_bytes? })
    }

    /// All memories that can run out.
    pub(crate) fn pools(&self) -> impl Iterator<Item = MonitorPool> {
        self.system().into_iter().chain((0..self.gpus.len()).filter_map(|at| self.own(at)))
    }

    /// The hottest sensor that measures; a Jetson's PMIC shows a placeholder.
    pub(crate) fn hottest(&self) -> Option<(&str, f64)> {
        let real = self.temperatures_c.iter().filter(|(name, _)| !is_placeholder(name));
        real.filter_map(|(name, celsius)| Some((name.as_str(), (*celsius)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl MonitorGpu {
    fn new(gpu: &plimsoll::probe::GpuSample) -> MonitorGpu {
        MonitorGpu {
            name: gpu.name.clone(),
            unified: gpu.unified,
            used_bytes: gpu.used.map(Bytes::get),
            total_bytes: gpu.total.map(Bytes::get),
            pressure: None,
            percent: round(gpu.percent),
            mhz: round(gpu.mhz),
            max_mhz: round(gpu.max_mhz),
            memory_mhz: round(gpu.memory_mhz),
            power_w: round(gpu.power_w),
            power_limit_w: round(gpu.power_limit_w),
            temperature_c: gpu.celsius,
            throttled_by: gpu.throttled_by.clone(),
        }
    }
}

impl MonitorCost {
    pub(super) fn new(cost: &plimsoll::probe::HelperCost) -> MonitorCost {
        MonitorCost {
            program: cost.program.clone(),
            pid: cost.pid,
            cpu_s: cost.cpu_s,
            resident_bytes: cost.resident.map(Bytes::get),
        }
    }
}

impl MonitorProcess {
    fn new(process: &plimsoll::probe::ProcessSample) -> MonitorProcess {
        MonitorProcess {
            pid: process.pid,
            name: process.name.clone(),
            gpu: process.gpu,
            gpu_bytes: process.gpu_bytes.map(Bytes::get),
            resident_bytes: process.resident.map(Bytes::get),
            proportional_bytes: process.proportional.map(Bytes::get),
            cpu_percent: round(process.cpu_percent),
        }
    }
}

/// Two decimals are more than any sensor has.
fn round(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite()).map(|value| (value * 100.0).round() / 100.0)
}
