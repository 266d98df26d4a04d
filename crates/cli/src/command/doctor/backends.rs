//! Queries the drivers: which devices there are, or why there is none.
//!
//! A driver that does not answer must not hang the doctor, so each kind is queried on a thread of
//! its own, with a timeout. A recorded machine has no driver to query; there only the libraries
//! among its files are known.

use std::sync::Arc;

use clap::ValueEnum;
use plimsoll::Device;
use plimsoll::backend::{BackendKind, DeviceId, count, open};
use plimsoll::machine::{Addressing, NvmlGpu, NvmlMemory, nvml_gpus, with_timeout};
use serde::Serialize;

use crate::driver_timeout::no_answer;

use super::files::DoctorLibrary;
use super::root::Root;

/// The backends, by the names that `doctor` uses: the host is `host` here and `cpu` in
/// [`BackendKind::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum BackendName {
    #[value(alias = "cpu")]
    Host,
    Sim,
    Cuda,
    Rocm,
    Metal,
    Opencl,
}

impl BackendName {
    /// As it is written in flags and in JSON.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    pub(super) fn kind(self) -> BackendKind {
        match self {
            BackendName::Host => BackendKind::Host,
            BackendName::Sim => BackendKind::Sim,
            BackendName::Cuda => BackendKind::Cuda,
            BackendName::Rocm => BackendKind::Rocm,
            BackendName::Metal => BackendKind::Metal,
            BackendName::Opencl => BackendKind::OpenCl,
        }
    }

    /// The file that is the door to it.
    fn library(self) -> Option<&'static str> {
        match self {
            BackendName::Cuda => Some("libcuda.so.1"),
            BackendName::Rocm => Some("libamdhip64.so"),
            BackendName::Opencl => Some("libOpenCL.so.1"),
            BackendName::Host | BackendName::Sim | BackendName::Metal => None,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct DoctorBackend {
    pub(super) name: BackendName,
    pub(super) available: bool,
    /// What it is, or why it cannot be had.
    pub(super) why: String,
    pub(super) devices: Vec<DoctorDevice>,
    /// The devices themselves, for the self-test.
    #[serde(skip)]
    pub(super) opened: Vec<Arc<dyn Device>>,
}

/// A device that answered, or failed to.
#[derive(Debug, Serialize)]
pub(super) struct DoctorDevice {
    /// As it is written in `--device`.
    pub(super) device: String,
    pub(super) name: Option<String>,
    pub(super) compute_capability: Option<String>,
    pub(super) unified: Option<bool>,
    pub(super) total_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    /// Why it cannot be used, or why it does not report what is free.
    pub(super) problem: Option<String>,
}

/// A GPU as NVML reports it.
#[derive(Debug, Serialize)]
pub(super) struct DoctorGpu {
    pub(super) name: String,
    pub(super) compute_capability: Option<String>,
    /// Null where it has no memory of its own, or NVML does not say.
    pub(super) total_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) memory: &'static str,
    pub(super) addressing: Option<&'static str>,
}

pub(super) fn backends(root: &Root, libraries: &[DoctorLibrary]) -> Vec<DoctorBackend> {
    let all = BackendName::value_variants();
    match root.is_live() {
        true => all.iter().map(|name| ask(*name)).collect(),
        false => all.iter().map(|name| recorded(*name, libraries)).collect(),
    }
}

/// NVML's word on every GPU, or why it has none. A recorded machine's cannot be asked.
pub(super) fn gpus(root: &Root) -> Result<Vec<DoctorGpu>, String> {
    if !root.is_live() {
        return Err("a recorded machine has no driver to query".to_string());
    }
    let told = |error: plimsoll::Error| match error {
        plimsoll::Error::Unavailable { why, .. } => why,
        error => error.to_string(),
    };
    let answer = with_timeout(nvml_gpus).ok_or_else(no_answer)?;
    Ok(answer.map_err(told)?.iter().map(gpu).collect())
}

fn gpu(gpu: &NvmlGpu) -> DoctorGpu {
    let (total, used, memory) = match gpu.memory {
        NvmlMemory::Own { total, used, .. } => (Some(total.get()), Some(used.get()), "its own"),
        NvmlMemory::NotSupported => (None, None, "the system's (NVML: not supported)"),
        _ => (None, None, "not reported"),
    };
    DoctorGpu {
        name: gpu.name.clone(),
        compute_capability: gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        total_bytes: total,
        used_bytes: used,
        memory,
        addressing: gpu.addressing.map(|mode| match mode {
            Addressing::Hmm => "HMM: pages are moved",
            Addressing::Ats => "ATS: the host's page tables",
            _ => "none: its own addresses",
        }),
    }
}

fn recorded(name: BackendName, libraries: &[DoctorLibrary]) -> DoctorBackend {
    let file = |library: &str| libraries.iter().find(|l| l.name == library)?.path.as_ref();
    let (available, why) = match (name, name.library()) {
        (BackendName::Host, _) => (true, "system memory".to_string()),
        (BackendName::Sim, _) => (true, "a simulated device, for tests and plans".to_string()),
        (_, Some(library)) => match file(library) {
            Some(path) => (false, format!("{} is there; not asked: recorded", path.display())),
            None => (false, format!("no {library} among the recorded files")),
        },
        (_, None) => (false, "exists on macOS only".to_string()),
    };
    DoctorBackend { name, available, why, devices: Vec::new(), opened: Vec::new() }
}

/// Asks one kind, on a thread that may be left behind.
fn ask(name: BackendName) -> DoctorBackend {
    with_timeout(move || ask_driver(name)).unwrap_or_else(|| absent(name, no_answer()))
}

fn ask_driver(name: BackendName) -> DoctorBackend {
    let kind = name.kind();
    let count = match count(kind) {
        Ok(count) => count,
        Err(error) => return none(name, &error),
    };
    let mut backend = DoctorBackend {
        name,
        available: false,
        why: String::new(),
        devices: vec![],
        opened: vec![],
    };
    for number in 0..count {
        let device = DeviceId { kind, number };
        match open(device) {
            Ok(opened) => {
                backend.devices.push(found(device, &*opened));
                backend.opened.push(opened);
            }
            Err(error) => backend.devices.push(DoctorDevice::failed(device, &error)),
        }
    }
    backend.available = !backend.opened.is_empty();
    backend.why = match (name, backend.opened.first()) {
        (BackendName::Host, Some(_)) => "system memory".to_string(),
        (BackendName::Sim, Some(_)) => "a simulated device, for tests and plans".to_string(),
        (_, Some(first)) if count == 1 => first.info().name.clone(),
        (_, Some(first)) => format!("{count} devices, the first {}", first.info().name),
        (_, None) => backend.devices.first().and_then(|d| d.problem.clone()).unwrap_or_default(),
    };
    backend
}

fn none(name: BackendName, error: &plimsoll::Error) -> DoctorBackend {
    let why = match error {
        plimsoll::Error::Unavailable { why, .. } => why.clone(),
        error => error.to_string(),
    };
    absent(name, why)
}

fn absent(name: BackendName, why: String) -> DoctorBackend {
    DoctorBackend { name, available: false, why, devices: Vec::new(), opened: Vec::new() }
}

fn found(device: DeviceId, opened: &dyn Device) -> DoctorDevice {
    let (info, free) = (opened.info(), opened.free_memory());
    DoctorDevice {
        device: device.to_string(),
        name: Some(info.name.clone()),
        compute_capability: info
            .compute_capability
            .map(|(major, minor)| format!("{major}.{minor}")),
        unified: info.is_unified,
        total_bytes: Some(info.total.get()),
        free_bytes: free.as_ref().ok().map(|free| free.get()),
        problem: free.err().map(|error| error.to_string()),
    }
}

impl DoctorDevice {
    fn failed(device: DeviceId, error: &plimsoll::Error) -> DoctorDevice {
        DoctorDevice {
            device: device.to_string(),
            name: None,
            compute_capability: None,
            unified: None,
            total_bytes: None,
            free_bytes: None,
            problem: Some(error.to_string()),
        }
    }
}
