//! Samples the machine during a run, with the probes of the monitor.
//!
//! The probes run on threads of their own, so that a driver that hangs costs a run only some
//! figures. The recording thread takes the newest sample that there is.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use plimsoll::Bytes;
use plimsoll::platform::{MemInfo, system_memory};
use plimsoll::probe::{MachineSample, ProbeSettings, Sampler, Ticks, usual};

use crate::measure::{SystemFacts, SystemSample};
use crate::record::{EnergyOf, Unknown};

/// Fewer ticks (hundredths of a second, of each processor) give no useful share.
const FEW_TICKS: u64 = 50;
/// Timeout of the first sample: loading a driver takes long.
const FIRST_LOOK: Duration = Duration::from_millis(1500);
/// The name of the whole board's power among the rails.
const BOARD: &str = "board";

/// Why fields are null where no probe reports them.
const REASONS: [(&str, &str); 6] = [
    ("cpu_clock_mhz", "the kernel shows no clock of the processors (cpufreq)"),
    ("clocks_locked", "nothing here reports the range of the clocks"),
    ("power_mode", "there is no power mode here, or it cannot be read"),
    ("temperatures_c", "no temperature sensor can be read"),
    ("power_w", "no power sensor can be read"),
    ("gpu_load_percent", "neither NVML, nor the board's files, nor AMD's driver report it"),
];

/// Samples the machine at an interval.
pub(super) struct MachineSampler {
    sampler: Option<Sampler>,
    newest: MachineSample,
    first: Option<(Ticks, u64)>,
    throttled: bool,
    throttled_by: Vec<String>,
}

impl MachineSampler {
    /// Starts sampling.
    pub(super) fn new(interval: Duration) -> MachineSampler {
        let root = Path::new("/").to_path_buf();
        let kinds = usual(&root);
        let interval = interval.clamp(Duration::from_millis(50), Duration::from_secs(10));
        let settings = ProbeSettings { root, interval, processes: None };
        let sampler = Sampler::start(&kinds, &[], &settings);
        let first = Ticks::now().zip(Ticks::own());
        let mut machine = MachineSampler {
            sampler: sampler.ok(),
            newest: MachineSample::default(),
            first,
            throttled: false,
            throttled_by: Vec::new(),
        };
        machine.look(FIRST_LOOK);
        machine
    }

    /// Takes the newest sample, and waits for one where there is none.
    fn look(&mut self, mut timeout: Duration) {
        while let Some(taken) = self.sampler.as_ref().and_then(|sampler| sampler.next(timeout)) {
            timeout = Duration::ZERO;
            let gpus = taken.sample.gpus.iter().flat_map(|gpu| &gpu.throttled_by);
            self.throttled = false;
            for why in taken.sample.throttled_by.iter().chain(gpus).flatten() {
                self.throttled = true;
                if !self.throttled_by.contains(why) {
                    self.throttled_by.push(why.clone());
                }
            }
            self.newest = taken.sample;
        }
    }

    /// The machine now, `t` seconds into the run.
    pub(super) fn sample(&mut self, t: f64) -> SystemSample {
        self.look(Duration::ZERO);
        let MachineSample { memory, gpus, cores, .. } = &self.newest;
        let clocks: Vec<f64> = cores.iter().filter_map(|core| core.mhz).collect();
        let gpu = gpus.first();
        let own = gpus.iter().filter(|gpu| !gpu.unified).filter_map(|gpu| gpu.used);
        let own: Option<Bytes> = own.reduce(Bytes::saturating_add);
        SystemSample {
            t,
            cpu_percent: self.newest.cpu_percent,
            cpu_clock_mhz: (!clocks.is_empty())
                .then(|| clocks.iter().sum::<f64>() / clocks.len() as f64),
            ram_used_gb: memory.used().map(Bytes::as_gib),
            ram_gpu_share_gb: memory.nvmap_used.map(Bytes::as_gib),
            vram_used_gb: own.map(Bytes::as_gib),
            swap_used_gb: memory.swap_used().map(Bytes::as_gib),
            gpu_load_percent: gpu.and_then(|gpu| gpu.percent),
            gpu_clock_mhz: gpu.and_then(|gpu| gpu.mhz),
            temperatures_c: temperatures(&self.newest),
            power_w: power(&self.newest),
        }
    }

    /// The share of all processors that other programs used since the start, in percent. Each
    /// tick counts for one program as a whole, so a few of them give no useful share.
    pub(super) fn others(&self) -> Option<f64> {
        let ((first, first_own), (last, own)) = (self.first?, Ticks::now().zip(Ticks::own())?);
        let all = last.all.checked_sub(first.all).filter(|all| *all >= FEW_TICKS)?;
        let busy = last.busy.saturating_sub(first.busy);
        let own = own.saturating_sub(first_own);
        Some(busy.saturating_sub(own) as f64 / all as f64 * 100.0)
    }

    /// Whether the machine throttled at the last sample.
    pub(super) fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// Why the machine throttled at any time, in words; `None` where it did not.
    pub(super) fn throttled_by(&self) -> Option<String> {
        (!self.throttled_by.is_empty()).then(|| self.throttled_by.join(", "))
    }

    /// The power of the machine at a sample, and whether it is that of the GPUs alone.
    pub(super) fn watts(&self, sample: &SystemSample) -> Option<(f64, EnergyOf)> {
        let board = sample.power_w.get(BOARD).map(|watts| (*watts, EnergyOf::Machine));
        let gpus = self.newest.gpus.iter().filter_map(|gpu| gpu.power_w);
        board.or_else(|| gpus.reduce(|a, b| a + b).map(|watts| (watts, EnergyOf::Gpus)))
    }

    /// What does not change during a run, and why fields are unknown.
    pub(super) fn facts(&self) -> SystemFacts {
        let reasons = REASONS.map(|(field, why)| (field.to_string(), why.to_string()));
        let unknown: Unknown = reasons.into_iter().collect();
        SystemFacts {
            ram_total_gb: memory().total.map(Bytes::as_gib),
            clocks_locked: self.newest.gpus.iter().find_map(|gpu| {
                let (least, most) = gpu.min_mhz.zip(gpu.max_mhz)?;
                Some(least >= most)
            }),
            power_mode: self.newest.power_mode.clone(),
            whole_rail: self.newest.total_power_w.map(|_| BOARD.to_string()),
            unknown,
        }
    }
}

/// By sensor. A GPU that is not among the board's sensors has its own name.
fn temperatures(sample: &MachineSample) -> BTreeMap<String, f64> {
    let sensors = sample.temperatures.iter();
    let mut all: BTreeMap<String, f64> =
        sensors.filter_map(|t| Some((t.name.clone(), t.celsius?))).collect();
    for (at, gpu) in sample.gpus.iter().enumerate().filter(|(_, gpu)| !gpu.unified) {
        all.extend(gpu.celsius.map(|celsius| (format!("gpu{at}"), celsius)));
    }
    all
}

fn power(sample: &MachineSample) -> BTreeMap<String, f64> {
    let rails = sample.rails.iter();
    let mut all: BTreeMap<String, f64> =
        rails.filter_map(|rail| Some((rail.name.clone(), rail.watts?))).collect();
    all.extend(sample.total_power_w.map(|watts| (BOARD.to_string(), watts)));
    for (at, gpu) in sample.gpus.iter().enumerate() {
        all.extend(gpu.power_w.map(|watts| (format!("gpu{at}"), watts)));
    }
    all
}

/// The system's memory; all fields are unknown where the system does not report it.
pub(super) fn memory() -> MemInfo {
    system_memory(Path::new("/")).unwrap_or_default()
}

/// The machine's name, and its board or processor.
pub(super) fn names() -> (Option<String>, Option<String>) {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_string();
        (!text.is_empty()).then_some(text)
    };
    let cpu = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    (read("/proc/sys/kernel/hostname"), plimsoll::machine::Machine::here().board().or_else(cpu))
}
