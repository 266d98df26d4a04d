//! Samples of the machine, and their figures.

use std::collections::BTreeMap;

use plimsoll::Bytes;
use serde::{Deserialize, Serialize};

use super::MemorySource;
use crate::record::{
    MemoryArchitecture, MemoryUsage, Spread, SystemMetrics, SystemTimeline, Unknown,
};
use crate::stats::TimeSeries;

/// The machine at one moment. What it does not report is `None`, never 0. A line of
/// `metrics.jsonl` without a `slot` is one of these; with a `slot` it is a frame.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SystemSample {
    /// Seconds since the start of the run.
    pub t: f64,
    /// Use of all processors, in percent.
    pub cpu_percent: Option<f64>,
    /// Mean clock of the processors.
    pub cpu_clock_mhz: Option<f64>,
    /// System memory in use, by all programs.
    pub ram_used_gb: Option<f64>,
    /// The GPU's share of it, on unified memory.
    pub ram_gpu_share_gb: Option<f64>,
    /// A discrete GPU's memory in use, by all programs.
    pub vram_used_gb: Option<f64>,
    /// Swap in use.
    pub swap_used_gb: Option<f64>,
    /// Load of the GPU, in percent.
    pub gpu_load_percent: Option<f64>,
    /// Clock of the GPU.
    pub gpu_clock_mhz: Option<f64>,
    /// By sensor, in degrees Celsius.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub temperatures_c: BTreeMap<String, f64>,
    /// By rail, in watts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub power_w: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, Default)]
struct RunningStats {
    n: u64,
    sum: f64,
    min: f64,
    max: f64,
    trace: TimeSeries,
}

impl RunningStats {
    fn push(&mut self, t: f64, value: f64) {
        self.min = if self.n == 0 { value } else { self.min.min(value) };
        self.max = if self.n == 0 { value } else { self.max.max(value) };
        self.n += 1;
        self.sum += value;
        self.trace.push(t, value);
    }

    fn spread(&self) -> Option<Spread> {
        let RunningStats { n, sum, min, max, .. } = *self;
        (n > 0).then(|| Spread { mean: sum / n as f64, min, max })
    }
}

/// Takes the samples of the machine.
#[derive(Debug, Clone, Default)]
pub struct SystemMeter {
    samples: u64,
    gauges: BTreeMap<&'static str, RunningStats>,
    temperatures: BTreeMap<String, RunningStats>,
    power: BTreeMap<String, RunningStats>,
    /// The memory of all slots together, in GiB.
    memory: RunningStats,
}

/// What the machine reports once, at the start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SystemFacts {
    /// All of the system's memory, in GiB.
    pub ram_total_gb: Option<f64>,
    /// Whether clocks are locked.
    pub clocks_locked: Option<bool>,
    /// The power mode.
    pub power_mode: Option<String>,
    /// The rail whose power is the whole machine's, for energy per frame.
    pub whole_rail: Option<String>,
    /// Why fields are not known, by their names in the record.
    pub unknown: Unknown,
}

impl SystemMeter {
    /// Takes a sample.
    pub fn push(&mut self, sample: &SystemSample) {
        self.samples += 1;
        let gauges = [
            ("cpu_percent", sample.cpu_percent),
            ("cpu_clock_mhz", sample.cpu_clock_mhz),
            ("ram_used_gb", sample.ram_used_gb),
            ("ram_gpu_share_gb", sample.ram_gpu_share_gb),
            ("vram_used_gb", sample.vram_used_gb),
            ("swap_used_gb", sample.swap_used_gb),
            ("gpu_load_percent", sample.gpu_load_percent),
            ("gpu_clock_mhz", sample.gpu_clock_mhz),
        ];
        for (name, value) in gauges {
            if let Some(value) = value {
                self.gauges.entry(name).or_default().push(sample.t, value);
            }
        }
        for (map, values) in
            [(&mut self.temperatures, &sample.temperatures_c), (&mut self.power, &sample.power_w)]
        {
            for (name, value) in values {
                map.entry(name.clone()).or_default().push(sample.t, *value);
            }
        }
    }

    /// Takes what all slots use together.
    pub fn push_memory(&mut self, t: f64, held: Bytes) {
        self.memory.push(t, held.as_gib());
    }

    /// Forgets what all slots used together: from now on another memory is measured.
    pub fn forget_memory(&mut self) {
        self.memory = RunningStats::default();
    }

    /// What all slots used together so far. Without a sample it is unknown, whatever the source.
    #[must_use]
    pub fn usage(&self, source: &MemorySource) -> MemoryUsage {
        let mut usage = MemoryUsage::unmeasured(source.what, source.limit, "no sample was taken");
        let Some(Spread { mean, min, max }) = self.memory.spread() else { return usage };
        let counted = source.counted_peak.map_or(max, Bytes::as_gib);
        usage.samples = self.memory.n;
        (usage.min_gb, usage.mean_gb) = (Some(min), Some(mean));
        usage.peak_gb = Some(max.max(counted));
        (usage.source, usage.obtained) = (Some(source.name.clone()), Some(source.obtained));
        usage.unknown.retain(|field, _| field == "limit_gb" && source.limit.is_none());
        usage
    }

    /// The machine so far, with the memory of the run. The energy of a frame comes from `frames`
    /// and `wall_s`, the seconds that they took.
    #[must_use]
    pub fn metrics(
        &self,
        architecture: MemoryArchitecture,
        facts: &SystemFacts,
        gpu_memory: MemoryUsage,
        frames: u64,
        wall_s: f64,
    ) -> SystemMetrics {
        let gauge = |name| self.gauges.get(name).and_then(RunningStats::spread);
        let spreads = |map: &BTreeMap<String, RunningStats>| {
            map.iter().filter_map(|(name, all)| Some((name.clone(), all.spread()?))).collect()
        };
        let power_w: BTreeMap<String, Spread> = spreads(&self.power);
        let watts = facts.whole_rail.as_ref().and_then(|rail| power_w.get(rail));
        let energy = watts.filter(|_| frames > 0).map(|w| w.mean * wall_s / frames as f64);
        let mut metrics = SystemMetrics {
            architecture,
            gpu_memory,
            samples: self.samples,
            cpu_percent: gauge("cpu_percent"),
            cpu_clock_mhz: gauge("cpu_clock_mhz"),
            ram_total_gb: facts.ram_total_gb,
            ram_used_gb: gauge("ram_used_gb"),
            ram_gpu_share_gb: gauge("ram_gpu_share_gb"),
            vram_used_gb: gauge("vram_used_gb"),
            swap_used_gb: gauge("swap_used_gb"),
            gpu_load_percent: gauge("gpu_load_percent"),
            gpu_clock_mhz: gauge("gpu_clock_mhz"),
            clocks_locked: facts.clocks_locked,
            power_mode: facts.power_mode.clone(),
            temperatures_c: spreads(&self.temperatures),
            power_w,
            energy_per_frame_j: energy,
            timeline: self.timeline(),
            unknown: Unknown::new(),
        };
        metrics.unknown = metrics.reasons(&facts.unknown);
        metrics
    }

    fn timeline(&self) -> SystemTimeline {
        let traces = |map: &BTreeMap<String, RunningStats>| {
            map.iter().map(|(name, all)| (name.clone(), all.trace.points())).collect()
        };
        let ram = self.gauges.get("ram_used_gb");
        SystemTimeline {
            ram_used_gb: ram.map(|all| all.trace.points()).unwrap_or_default(),
            temperatures_c: traces(&self.temperatures),
            power_w: traces(&self.power),
        }
    }
}

impl SystemMetrics {
    /// A reason for every field that is null or empty: the one that was given, or one from the
    /// architecture, or that the machine does not report it.
    fn reasons(&self, given: &Unknown) -> Unknown {
        let empty = [
            ("cpu_percent", self.cpu_percent.is_none()),
            ("cpu_clock_mhz", self.cpu_clock_mhz.is_none()),
            ("ram_total_gb", self.ram_total_gb.is_none()),
            ("ram_used_gb", self.ram_used_gb.is_none()),
            ("ram_gpu_share_gb", self.ram_gpu_share_gb.is_none()),
            ("vram_used_gb", self.vram_used_gb.is_none()),
            ("swap_used_gb", self.swap_used_gb.is_none()),
            ("gpu_load_percent", self.gpu_load_percent.is_none()),
            ("gpu_clock_mhz", self.gpu_clock_mhz.is_none()),
            ("clocks_locked", self.clocks_locked.is_none()),
            ("power_mode", self.power_mode.is_none()),
            ("temperatures_c", self.temperatures_c.is_empty()),
            ("power_w", self.power_w.is_empty()),
            ("energy_per_frame_j", self.energy_per_frame_j.is_none()),
        ];
        let fallback = |field: &str| match (self.architecture, field) {
            (MemoryArchitecture::NoGpu, gpu) if gpu.contains("gpu") || gpu.contains("vram") => {
                "no GPU was used"
            }
            (MemoryArchitecture::Unified, "vram_used_gb") => "the GPU uses the system's memory",
            (MemoryArchitecture::Discrete, "ram_gpu_share_gb") => "the GPU has its own memory",
            (_, "energy_per_frame_j") => "no sensor reports the power of the whole machine",
            _ => "this machine does not report it",
        };
        let reason =
            |field: &str| given.get(field).cloned().unwrap_or_else(|| fallback(field).to_string());
        empty
            .into_iter()
            .filter(|(_, empty)| *empty)
            .map(|(field, _)| (field.to_string(), reason(field)))
            .collect()
    }
}
