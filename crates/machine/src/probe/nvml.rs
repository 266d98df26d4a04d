//! NVIDIA's management library, loaded at run time.
//!
//! A device that does not tell its memory (Thor, and others that share the system's) is
//! taken for unified: that is how the library says so. Each figure may be refused alone,
//! and then it alone is unknown. The lists of processes cost more than all the rest, so
//! they are asked for less often.

use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::Nvml as Library;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::Probe;
use super::sample::{GpuSample, MachineSample, ProcessSample};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::units::Bytes;

/// What never changes, by device.
struct Fixed {
    name: Option<String>,
    uuid: Option<String>,
    max_mhz: Option<f64>,
    power_limit_w: Option<f64>,
}

/// The probe.
pub(super) struct Nvml {
    library: &'static Library,
    fixed: Vec<Fixed>,
    every: Option<Duration>,
    last: Option<Instant>,
    processes: Vec<ProcessSample>,
}

impl Nvml {
    pub(super) fn open(machine: &Machine, processes: Option<Duration>) -> Result<Nvml> {
        let unavailable = |why: String| Error::Unavailable { what: "NVML".to_string(), why };
        if !machine.is_here() {
            return Err(unavailable("a recorded machine has no driver to ask".to_string()));
        }
        let library = crate::sys::nvml::nvml()?;
        let count = library.device_count().map_err(|error| unavailable(error.to_string()))?;
        let fixed = (0..count).map(|at| fixed(library, at)).collect();
        Ok(Nvml { library, fixed, every: processes, last: None, processes: Vec::new() })
    }

    fn look_at_processes(&mut self) {
        let Some(every) = self.every else { return };
        if self.last.is_some_and(|last| last.elapsed() + Duration::from_millis(20) < every) {
            return;
        }
        self.last = Some(Instant::now());
        self.processes.clear();
        for at in 0..self.fixed.len() {
            let Ok(device) = self.library.device_by_index(at as u32) else { continue };
            let lists = [device.running_compute_processes(), device.running_graphics_processes()];
            for info in lists.into_iter().flatten().flatten() {
                add(&mut self.processes, at, &info);
            }
        }
    }
}

fn fixed(library: &Library, at: u32) -> Fixed {
    let device = library.device_by_index(at).ok();
    let device = device.as_ref();
    Fixed {
        name: device.and_then(|d| d.name().ok()),
        uuid: device.and_then(|d| d.uuid().ok()),
        max_mhz: device.and_then(|d| d.max_clock_info(Clock::SM).ok()).map(f64::from),
        power_limit_w: device.and_then(|d| d.enforced_power_limit().ok()).map(watts),
    }
}

/// A process that computes and draws is in both lists with the same figure.
fn add(processes: &mut Vec<ProcessSample>, gpu: usize, info: &ProcessInfo) {
    let gpu_bytes = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    };
    if !processes.iter().any(|p| p.pid == info.pid && p.gpu == Some(gpu)) {
        let process =
            ProcessSample { pid: info.pid, gpu: Some(gpu), gpu_bytes, ..ProcessSample::default() };
        processes.push(process);
    }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

impl Fixed {
    fn look(&self, device: &Device<'_>) -> GpuSample {
        let memory = device.memory_info();
        let unified = matches!(memory, Err(NvmlError::NotSupported));
        let memory = memory.ok();
        GpuSample {
            name: self.name.clone(),
            uuid: self.uuid.clone(),
            unified,
            used: memory.as_ref().map(|m| Bytes(m.total.saturating_sub(m.free))),
            total: memory.as_ref().map(|m| Bytes(m.total)),
            percent: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu)),
            mhz: device.clock_info(Clock::SM).ok().map(f64::from),
            min_mhz: None,
            max_mhz: self.max_mhz,
            memory_mhz: device.clock_info(Clock::Memory).ok().map(f64::from),
            power_w: device.power_usage().ok().map(watts),
            power_limit_w: self.power_limit_w,
            celsius: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            fan_percent: device.fan_speed(0).ok().map(f64::from),
            throttled_by: device.current_throttle_reasons().ok().map(reasons),
        }
    }
}

/// In words, those that slow work down; idling and clocks that were set are none.
fn reasons(set: ThrottleReasons) -> Vec<String> {
    let words = [
        (ThrottleReasons::SW_POWER_CAP, "power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat (software)"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat (hardware)"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    ];
    let held = words.into_iter().filter(|(reason, _)| set.contains(*reason));
    held.map(|(_, word)| word.to_string()).collect()
}

impl Probe for Nvml {
    fn read(&mut self, sample: &mut MachineSample) -> Result<()> {
        self.look_at_processes();
        let mut lost = Vec::new();
        for (at, fixed) in self.fixed.iter().enumerate() {
            sample.gpus.push(match self.library.device_by_index(at as u32) {
                Ok(device) => fixed.look(&device),
                // One that fell off its bus keeps its place, so that the others keep theirs.
                Err(error) => {
                    lost.push(error.to_string());
                    GpuSample { name: fixed.name.clone(), ..GpuSample::default() }
                }
            });
        }
        if !lost.is_empty() && lost.len() == self.fixed.len() {
            return Err(Error::Device { call: "NVML", why: lost.join("; ") });
        }
        sample.processes.extend(self.processes.iter().cloned());
        Ok(())
    }
}
