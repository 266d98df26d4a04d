//! How a limit on GPU memory can be enforced here: it is applied, tried and reported.

use plimsoll::machine::Machine;
use plimsoll::{Bytes, GpuMemoryManager, LimitReport, LimitRequest, LimitType, MemoryConfig};
use serde::Serialize;
use tracing::subscriber::{self, NoSubscriber};

use super::backends::{BackendName, DoctorBackend};
use super::root::Root;

#[derive(Debug, Serialize)]
pub(super) struct DoctorLimits {
    /// hard, soft or unavailable.
    pub(super) limit_type: String,
    pub(super) verified: bool,
    pub(super) methods_applied: Vec<String>,
    pub(super) limit_bytes: Option<u64>,
    /// What would bind: on unified memory never more than the system can give.
    pub(super) effective_limit_bytes: Option<u64>,
    pub(super) devices: Vec<DoctorDeviceLimit>,
    /// What may make it worth less.
    pub(super) warnings: Vec<String>,
    /// Why it is not harder, and what would make it so.
    pub(super) remedy: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DoctorDeviceLimit {
    pub(super) device: String,
    pub(super) limit_type: String,
    pub(super) why: String,
}

/// Sets the default limit on every device of the machine, and tries whether it is enforced.
pub(super) fn limits(root: &Root, backends: &mut [DoctorBackend]) -> anyhow::Result<DoctorLimits> {
    // The warnings are in the answer, so they are not logged.
    subscriber::with_default(NoSubscriber::default(), || draw(root, backends))
}

fn draw(root: &Root, backends: &mut [DoctorBackend]) -> anyhow::Result<DoctorLimits> {
    let manager = GpuMemoryManager::on(root.machine().clone(), MemoryConfig::default())?;
    for backend in backends.iter_mut() {
        if !matches!(backend.name, BackendName::Host | BackendName::Sim) {
            // Moved, not copied: a limit does not hold where others can still use the device.
            backend.opened.drain(..).for_each(|device| drop(manager.add_device(device)));
        }
    }
    Ok(match manager.apply_limits(&LimitRequest::new()) {
        Ok(report) => DoctorLimits::new(&report, root.machine()),
        Err(error) => DoctorLimits::none(&error),
    })
}

impl DoctorLimits {
    fn new(report: &LimitReport, machine: &Machine) -> DoctorLimits {
        let device = |limit: &plimsoll::DeviceLimit| DoctorDeviceLimit {
            device: limit.device.clone(),
            limit_type: limit.limit_type.to_string(),
            why: limit.why.to_string(),
        };
        let bytes = |bytes: Bytes| Some(bytes.get());
        DoctorLimits {
            limit_type: report.limit_type.to_string(),
            verified: report.verified,
            methods_applied: report.methods_applied.clone(),
            limit_bytes: bytes(report.limit),
            effective_limit_bytes: bytes(report.effective_limit),
            devices: report.devices.iter().map(device).collect(),
            warnings: report.warnings.clone(),
            remedy: remedy(report, machine),
        }
    }

    /// Where no line can be drawn.
    fn none(error: &plimsoll::Error) -> DoctorLimits {
        DoctorLimits {
            limit_type: LimitType::Unavailable.to_string(),
            verified: false,
            methods_applied: Vec::new(),
            limit_bytes: None,
            effective_limit_bytes: None,
            devices: Vec::new(),
            warnings: vec![error.to_string()],
            remedy: None,
        }
    }
}

const RUN: &str = "start programs with plimsoll run: its guard limits them and their children";

fn remedy(report: &LimitReport, machine: &Machine) -> Option<String> {
    if !machine.is_here() {
        return Some("a recorded machine's devices cannot be tried".to_string());
    }
    let has_cuda = report.devices.iter().any(|device| device.device.starts_with("cuda"));
    Some(match (report.limit_type, machine.mps()) {
        (LimitType::Hard, _) => return None,
        (LimitType::Unavailable, _) => "there is no GPU whose memory could be limited".to_string(),
        (LimitType::Soft, Ok(mps)) if has_cuda => format!(
            "{RUN}; an MPS daemon runs here (process {}), so the driver's own limit is set too",
            mps.pid
        ),
        (LimitType::Soft, Err(_)) if has_cuda => RUN.to_string(),
        (LimitType::Soft, _) => {
            "no driver here limits a process: only memory that is allocated through Plimsoll is limited".into()
        }
    })
}
