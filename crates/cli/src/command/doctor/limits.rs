//! What a limit on GPU memory would be worth here: applied, tried and told.

use plimsoll::{Bytes, GpuMemoryManager, LimitReport, LimitRequest, MemoryConfig};
use serde::Serialize;

use super::backends::{Backend, BackendName};
use super::root::Root;

#[derive(Debug, Serialize)]
pub(super) struct Limits {
    /// hard, soft or unavailable.
    pub(super) limit_type: String,
    pub(super) verified: bool,
    pub(super) methods_applied: Vec<String>,
    pub(super) limit_bytes: Option<u64>,
    /// What would bind: on unified memory never more than the system can give.
    pub(super) effective_limit_bytes: Option<u64>,
    pub(super) devices: Vec<DeviceLimit>,
    /// Why it is not harder, and what would make it so.
    pub(super) remedy: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceLimit {
    pub(super) device: String,
    pub(super) limit_type: String,
    pub(super) why: String,
}

/// Draws the default line on every device of the machine, and sees whether it holds.
pub(super) fn limits(root: &Root, backends: &mut [Backend]) -> anyhow::Result<Limits> {
    let manager = GpuMemoryManager::on(root.machine().clone(), MemoryConfig::default())?;
    for backend in backends.iter_mut() {
        if !matches!(backend.name, BackendName::Host | BackendName::Sim) {
            // Moved, not copied: a limit on a device that others hold is not one.
            backend.opened.drain(..).for_each(|device| drop(manager.add_device(device)));
        }
    }
    let report = manager.apply_limits(&LimitRequest::new())?;
    Ok(Limits::new(&report, root.is_live()))
}

impl Limits {
    fn new(report: &LimitReport, live: bool) -> Limits {
        let device = |limit: &plimsoll::DeviceLimit| DeviceLimit {
            device: limit.device.clone(),
            limit_type: limit.limit_type.to_string(),
            why: limit.why.to_string(),
        };
        let bytes = |bytes: Bytes| Some(bytes.get());
        Limits {
            limit_type: report.limit_type.to_string(),
            verified: report.verified,
            methods_applied: report.methods_applied.clone(),
            limit_bytes: bytes(report.limit),
            effective_limit_bytes: bytes(report.effective_limit),
            devices: report.devices.iter().map(device).collect(),
            remedy: remedy(report, live),
        }
    }
}

fn remedy(report: &LimitReport, live: bool) -> Option<String> {
    if !live {
        return Some("a recorded machine's devices cannot be tried".to_string());
    }
    let text = match report.limit_type {
        plimsoll::LimitType::Hard => return None,
        plimsoll::LimitType::Soft => {
            "for a hard limit on CUDA run NVIDIA's MPS daemon (nvidia-cuda-mps-control -d): \
             its clients are held by the driver"
        }
        plimsoll::LimitType::Unavailable => "there is no GPU whose memory could be limited",
    };
    Some(text.to_string())
}
