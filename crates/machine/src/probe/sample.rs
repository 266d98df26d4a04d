//! What a machine looks like at one moment.
//!
//! Every field may be missing, because every machine tells something else: unknown is
//! `None` or an empty list, never 0. A probe fills in what it can see; [`MachineSample::merge`]
//! lays what several probes saw over each other, the earlier one first.

use crate::platform::MemInfo;
use crate::units::Bytes;

/// A machine at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MachineSample {
    /// The system's memory.
    pub memory: MemInfo,
    /// The largest piece of free memory that is in one piece.
    pub largest_free: Option<Bytes>,
    /// Load of all processors that are on, in percent.
    pub cpu_percent: Option<f64>,
    /// The processors, one by one.
    pub cores: Vec<CoreSample>,
    /// The GPUs.
    pub gpus: Vec<GpuSample>,
    /// Other engines: codecs, accelerators, memory controllers.
    pub engines: Vec<EngineSample>,
    /// Temperatures.
    pub temperatures: Vec<Temperature>,
    /// Fans of the board or machine.
    pub fans: Vec<FanSample>,
    /// Power by rail.
    pub rails: Vec<Rail>,
    /// Power of the whole machine or board, in watts.
    pub total_power_w: Option<f64>,
    /// The power mode that is set.
    pub power_mode: Option<String>,
    /// What holds clocks down just now, in words; `None` where nobody tells.
    pub throttled_by: Option<Vec<String>>,
    /// Processes, those with the most GPU memory first.
    pub processes: Vec<ProcessSample>,
    /// What the programs cost that probes run in order to see.
    pub helpers: Vec<HelperCost>,
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CoreSample {
    /// Whether it is on.
    pub online: bool,
    /// Its load in percent.
    pub percent: Option<f64>,
    /// Its clock.
    pub mhz: Option<f64>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuSample {
    /// Its name, as its driver has it.
    pub name: Option<String>,
    /// Its UUID, as NVML writes it.
    pub uuid: Option<String>,
    /// Whether it uses the system's memory.
    pub unified: bool,
    /// Its memory in use: of its own on a discrete one, of the system's on a unified one
    /// (with what codecs and cameras hold, where the driver counts them together).
    pub used: Option<Bytes>,
    /// Its own memory; `None` on a unified one.
    pub total: Option<Bytes>,
    /// Load in percent.
    pub percent: Option<f64>,
    /// Clock.
    pub mhz: Option<f64>,
    /// The lowest clock that it may go down to.
    pub min_mhz: Option<f64>,
    /// The highest clock.
    pub max_mhz: Option<f64>,
    /// Clock of its memory.
    pub memory_mhz: Option<f64>,
    /// Power in watts.
    pub power_w: Option<f64>,
    /// The power that it is held to, in watts.
    pub power_limit_w: Option<f64>,
    /// Temperature.
    pub celsius: Option<f64>,
    /// How far its fan is driven, in percent.
    pub fan_percent: Option<f64>,
    /// What holds its clocks down just now; `None` where nobody tells.
    pub throttled_by: Option<Vec<String>>,
}

/// An engine beside the GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineSample {
    /// Its name, as printed.
    pub name: String,
    /// Whether it is switched off.
    pub off: bool,
    /// Load in percent.
    pub percent: Option<f64>,
    /// Clock.
    pub mhz: Option<f64>,
}

/// A temperature.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Temperature {
    /// The sensor's name.
    pub name: String,
    /// `None` where the sensor is off.
    pub celsius: Option<f64>,
}

/// Whether a sensor of this name shows a fixed number instead of measuring: the power
/// controller of Jetsons shows 50 or 100 whatever it is.
#[must_use]
pub fn is_placeholder(sensor: &str) -> bool {
    sensor.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("PMIC"))
}

/// A fan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FanSample {
    /// The name of its controller, with a number where that has several.
    pub name: String,
    /// How far it is driven, in percent.
    pub percent: Option<f64>,
    /// Turns a minute.
    pub rpm: Option<f64>,
}

/// A supply rail.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rail {
    /// Its name.
    pub name: String,
    /// Power in watts.
    pub watts: Option<f64>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessSample {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: Option<String>,
    /// Its user: a name, or a number where that has none.
    pub user: Option<String>,
    /// Its command line, as far as it is kept.
    pub command: Option<String>,
    /// The container that it is in, as its tools name it.
    pub container: Option<String>,
    /// The GPU that it uses, by its place in [`MachineSample::gpus`].
    pub gpu: Option<usize>,
    /// GPU memory that it holds.
    pub gpu_bytes: Option<Bytes>,
    /// Memory of the system that it has resident.
    pub resident: Option<Bytes>,
    /// Its share of the resident memory, where pages that several map are divided among
    /// them; only of those that hold the most GPU memory.
    pub proportional: Option<Bytes>,
    /// Its load in percent of one processor.
    pub cpu_percent: Option<f64>,
}

/// What a program costs that watches.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HelperCost {
    /// Its name.
    pub program: String,
    /// Its number.
    pub pid: u32,
    /// Processor time since it was started, in seconds.
    pub cpu_s: f64,
    /// Memory of the system that it has resident.
    pub resident: Option<Bytes>,
}

impl MachineSample {
    /// Whether a GPU here uses the system's memory; `None` where no GPU is seen.
    #[must_use]
    pub fn is_unified(&self) -> Option<bool> {
        self.gpus.first().map(|_| self.gpus.iter().any(|gpu| gpu.unified))
    }

    /// Lays what another probe saw under this: only what is missing here is taken.
    pub fn merge(&mut self, other: MachineSample) {
        self.memory = self.memory.or(other.memory);
        self.largest_free = self.largest_free.or(other.largest_free);
        self.cpu_percent = self.cpu_percent.or(other.cpu_percent);
        self.total_power_w = self.total_power_w.or(other.total_power_w);
        self.power_mode = self.power_mode.take().or(other.power_mode);
        self.throttled_by = self.throttled_by.take().or(other.throttled_by);
        self.merge_cores(other.cores);
        let places = self.merge_gpus(other.gpus);
        if self.engines.is_empty() {
            self.engines = other.engines;
        }
        if self.temperatures.is_empty() {
            self.temperatures = other.temperatures;
        }
        if self.fans.is_empty() {
            self.fans = other.fans;
        }
        if self.rails.is_empty() {
            self.rails = other.rails;
        }
        self.merge_processes(other.processes, &places);
        self.helpers.extend(other.helpers);
    }

    /// Clocks may come from elsewhere than loads.
    fn merge_cores(&mut self, others: Vec<CoreSample>) {
        if self.cores.is_empty() {
            self.cores = others;
            return;
        }
        for (core, other) in self.cores.iter_mut().zip(others) {
            core.percent = core.percent.or(other.percent);
            core.mhz = core.mhz.or(other.mhz);
        }
    }

    /// A board has one unified GPU, whichever probe reports it; others are added. Returns where
    /// each of the others stands now.
    fn merge_gpus(&mut self, others: Vec<GpuSample>) -> Vec<usize> {
        let mut places = Vec::with_capacity(others.len());
        for other in others {
            let same = self.gpus.iter().position(|gpu| gpu.unified && other.unified);
            match same {
                Some(at) => self.gpus[at].fill(other),
                None => self.gpus.push(other),
            }
            places.push(same.unwrap_or(self.gpus.len() - 1));
        }
        places
    }

    fn merge_processes(&mut self, others: Vec<ProcessSample>, places: &[usize]) {
        for mut other in others {
            other.gpu = other.gpu.and_then(|gpu| places.get(gpu).copied());
            let own = |process: &ProcessSample| process.pid == other.pid;
            let same = |process: &ProcessSample| {
                own(process) && (process.gpu.is_none() || [None, process.gpu].contains(&other.gpu))
            };
            if let Some(at) = self.processes.iter().position(same) {
                self.processes[at].fill(other);
                continue;
            }
            // One that uses another GPU too stands here once for each.
            if let Some(first) = self.processes.iter().find(|process| own(process)).cloned() {
                other.fill(ProcessSample { gpu_bytes: None, ..first });
            }
            self.processes.push(other);
        }
    }
}

impl GpuSample {
    fn fill(&mut self, other: GpuSample) {
        self.name = self.name.take().or(other.name);
        self.uuid = self.uuid.take().or(other.uuid);
        self.used = self.used.or(other.used);
        self.total = self.total.or(other.total);
        self.percent = self.percent.or(other.percent);
        self.mhz = self.mhz.or(other.mhz);
        self.min_mhz = self.min_mhz.or(other.min_mhz);
        self.max_mhz = self.max_mhz.or(other.max_mhz);
        self.memory_mhz = self.memory_mhz.or(other.memory_mhz);
        self.power_w = self.power_w.or(other.power_w);
        self.power_limit_w = self.power_limit_w.or(other.power_limit_w);
        self.celsius = self.celsius.or(other.celsius);
        self.fan_percent = self.fan_percent.or(other.fan_percent);
        self.throttled_by = self.throttled_by.take().or(other.throttled_by);
    }
}

impl ProcessSample {
    fn fill(&mut self, other: ProcessSample) {
        self.name = self.name.take().or(other.name);
        self.user = self.user.take().or(other.user);
        self.command = self.command.take().or(other.command);
        self.container = self.container.take().or(other.container);
        self.gpu = self.gpu.or(other.gpu);
        self.gpu_bytes = self.gpu_bytes.or(other.gpu_bytes);
        self.resident = self.resident.or(other.resident);
        self.proportional = self.proportional.or(other.proportional);
        self.cpu_percent = self.cpu_percent.or(other.cpu_percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_taken_and_what_is_there_stays() {
        let mut first = MachineSample {
            cpu_percent: Some(10.0),
            gpus: vec![GpuSample { unified: true, mhz: Some(306.0), ..GpuSample::default() }],
            processes: vec![ProcessSample {
                pid: 7,
                gpu_bytes: Some(Bytes(5)),
                ..ProcessSample::default()
            }],
            ..MachineSample::default()
        };
        let second = MachineSample {
            cpu_percent: Some(99.0),
            total_power_w: Some(4.5),
            gpus: vec![
                GpuSample {
                    unified: true,
                    mhz: Some(1.0),
                    percent: Some(7.0),
                    ..GpuSample::default()
                },
                GpuSample {
                    total: Some(Bytes::gib(8)),
                    used: Some(Bytes::gib(1)),
                    ..GpuSample::default()
                },
            ],
            processes: vec![
                ProcessSample { pid: 7, resident: Some(Bytes(9)), ..ProcessSample::default() },
                ProcessSample { pid: 8, gpu: Some(1), ..ProcessSample::default() },
            ],
            ..MachineSample::default()
        };
        first.merge(second);
        assert_eq!((first.cpu_percent, first.total_power_w), (Some(10.0), Some(4.5)));
        assert_eq!((first.gpus[0].mhz, first.gpus[0].percent), (Some(306.0), Some(7.0)));
        assert_eq!(first.gpus.len(), 2);
        assert_eq!(first.processes[0].gpu_bytes, Some(Bytes(5)));
        assert_eq!(first.processes[0].resident, Some(Bytes(9)));
        assert_eq!(first.processes[1].gpu, Some(1));
    }

    #[test]
    fn a_process_on_two_gpus_is_told_for_each() {
        let on = |gpu, bytes| ProcessSample {
            pid: 7,
            gpu: Some(gpu),
            gpu_bytes: Some(Bytes(bytes)),
            ..ProcessSample::default()
        };
        let name = Some("train".to_string());
        let seen =
            ProcessSample { pid: 7, name, resident: Some(Bytes(9)), ..ProcessSample::default() };
        let mut sample = MachineSample { processes: vec![seen], ..MachineSample::default() };
        let gpus = vec![GpuSample::default(), GpuSample::default()];
        sample.merge(MachineSample {
            gpus,
            processes: vec![on(0, 5), on(1, 6)],
            ..MachineSample::default()
        });
        let told: Vec<_> = sample.processes.iter().map(|p| (p.gpu, p.gpu_bytes)).collect();
        assert_eq!(told, [(Some(0), Some(Bytes(5))), (Some(1), Some(Bytes(6)))]);
        assert!(sample.processes.iter().all(|p| p.name.as_deref() == Some("train")));
        assert!(sample.processes.iter().all(|p| p.resident == Some(Bytes(9))));
    }

    #[test]
    fn a_placeholder_is_known_by_its_name() {
        assert!(is_placeholder("PMIC") && is_placeholder("pmic-die"));
        assert!(!is_placeholder("cpu") && !is_placeholder("pé"));
    }
}
