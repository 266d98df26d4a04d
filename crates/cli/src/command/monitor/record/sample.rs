//! Records of samples.

use std::time::SystemTime;

use plimsoll::Bytes;
use plimsoll::probe::{FanSample, GpuSample, HelperCost, MachineSample, ProcessSample};
use plimsoll_bench::record::time::rfc3339;
use plimsoll_infer::source::redact;

use super::{
    MonitorCore, MonitorCost, MonitorCpu, MonitorEngine, MonitorFan, MonitorGpu, MonitorMemory,
    MonitorProcess, MonitorRecord, Swap,
};

impl MonitorRecord {
    /// A sample that was taken now.
    pub(in super::super) fn live(
        at: SystemTime,
        t: f64,
        how: &str,
        sample: &MachineSample,
    ) -> MonitorRecord {
        MonitorRecord { time: Some(rfc3339(at)), ..MonitorRecord::new(Some(t), how, sample) }
    }

    /// A sample as it stands.
    pub(in super::super) fn new(
        t: Option<f64>,
        how: &str,
        sample: &MachineSample,
    ) -> MonitorRecord {
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
                limit_bytes: None,
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
        record.set_pressure();
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
        let fans = sample.fans.iter();
        let fan = |f: &FanSample| MonitorFan { percent: round(f.percent), rpm: f.rpm };
        self.fans = fans.map(|one| (one.name.clone(), fan(one))).collect();
        let rails = sample.rails.iter();
        self.power_w = rails.map(|rail| (rail.name.clone(), round(rail.watts))).collect();
        self.processes = sample.processes.iter().map(MonitorProcess::new).collect();
        self.cost = sample.helpers.iter().map(MonitorCost::new).collect();
    }
}

impl MonitorGpu {
    fn new(gpu: &GpuSample) -> MonitorGpu {
        MonitorGpu {
            name: gpu.name.clone(),
            unified: gpu.unified,
            used_bytes: gpu.used.map(Bytes::get),
            total_bytes: gpu.total.map(Bytes::get),
            limit_bytes: None,
            pressure: None,
            percent: round(gpu.percent),
            mhz: round(gpu.mhz),
            max_mhz: round(gpu.max_mhz),
            memory_mhz: round(gpu.memory_mhz),
            power_w: round(gpu.power_w),
            power_limit_w: round(gpu.power_limit_w),
            temperature_c: gpu.celsius,
            fan_percent: round(gpu.fan_percent),
            throttled_by: gpu.throttled_by.clone(),
        }
    }
}

impl MonitorCost {
    pub(in super::super) fn new(cost: &HelperCost) -> MonitorCost {
        MonitorCost {
            program: cost.program.clone(),
            pid: cost.pid,
            cpu_s: cost.cpu_s,
            resident_bytes: cost.resident.map(Bytes::get),
        }
    }
}

impl MonitorProcess {
    fn new(process: &ProcessSample) -> MonitorProcess {
        MonitorProcess {
            pid: process.pid,
            name: process.name.clone(),
            user: process.user.clone(),
            // Logs are kept, and the page is for others.
            command: process.command.as_deref().map(|command| redact(command).into_owned()),
            container: process.container.clone(),
            gpu: process.gpu,
            gpu_bytes: process.gpu_bytes.map(Bytes::get),
            resident_bytes: process.resident.map(Bytes::get),
            proportional_bytes: process.proportional.map(Bytes::get),
            cpu_percent: round(process.cpu_percent),
            guarded_bytes: None,
            limit_bytes: None,
        }
    }
}

/// Two decimals are more than any sensor has.
fn round(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite()).map(|value| (value * 100.0).round() / 100.0)
}
