//! The devices that drivers report, each asked with a timeout.

use std::sync::Arc;

use anyhow::anyhow;
use plimsoll::backend::{BackendKind, DeviceId, count, open};
use plimsoll::machine::with_timeout;
use plimsoll::{Bytes, Memory, MemoryConfig, MemoryReport, Pool, generate_memory_report};
use serde::Serialize;

use crate::driver_timeout::no_answer;

#[derive(Debug, Serialize)]
pub(super) struct DeviceReport {
    /// As it is written in `--device`.
    pub(super) device: String,
    pub(super) name: String,
    pub(super) compute_capability: Option<String>,
    pub(super) unified: Option<bool>,
    /// Two devices on one bus are one card by two drivers.
    pub(super) pci_bus: Option<u32>,
    pub(super) total_bytes: u64,
    pub(super) used_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    pub(super) utilisation: Option<f64>,
    pub(super) how: String,
    pub(super) allocator: Allocator,
    /// Null where what is used is.
    pub(super) pressure: Option<String>,
    pub(super) recommendations: Vec<String>,
}

/// What this process's own pool reserves.
#[derive(Debug, Serialize)]
pub(super) struct Allocator {
    pub(super) name: String,
    pub(super) allocated_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) may_hold_bytes: u64,
    pub(super) how: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Absent {
    /// The kind of device, or the probe.
    pub(super) backend: &'static str,
    pub(super) why: String,
    /// Whether it is a probe, which is read for every report.
    #[serde(skip)]
    pub(super) is_probe: bool,
}

/// The devices, and why other kinds, and probes, are missing.
#[derive(Debug, Default)]
pub(super) struct FoundDevices {
    pub(super) devices: Vec<DeviceReport>,
    pub(super) absent: Vec<Absent>,
}

impl DeviceReport {
    /// What still holds later. What is used does not: a driver tells it within a context, which
    /// takes GPU memory itself, so that it is not asked again. Probes tell it without one.
    pub(super) fn later(self) -> DeviceReport {
        DeviceReport {
            used_bytes: None,
            free_bytes: None,
            utilisation: None,
            pressure: None,
            recommendations: Vec::new(),
            ..self
        }
    }
}

/// Every GPU; the host where there is none.
pub(super) fn of_all() -> FoundDevices {
    let mut found = FoundDevices::default();
    for kind in BackendKind::REAL {
        if kind == BackendKind::Host && !found.devices.is_empty() {
            continue;
        }
        let lacks = |why| Absent { backend: kind.name(), why, is_probe: false };
        match with_timeout(move || of_kind(kind)) {
            None => found.absent.push(lacks(no_answer())),
            Some(Err(error)) => found.absent.push(lacks(why(error))),
            Some(Ok(all)) => {
                for device in all {
                    match device {
                        Ok(device) => found.devices.push(device),
                        Err(error) => found.absent.push(lacks(why(error))),
                    }
                }
            }
        }
    }
    found
}

type FoundDevice = plimsoll::Result<DeviceReport>;

fn of_kind(kind: BackendKind) -> plimsoll::Result<Vec<FoundDevice>> {
    let number = |number| of_device(DeviceId { kind, number });
    Ok((0..count(kind)?).map(number).collect())
}

/// The device that was named.
pub(super) fn of_one(device: DeviceId) -> anyhow::Result<DeviceReport> {
    let found = with_timeout(move || of_device(device));
    Ok(found.ok_or_else(|| anyhow!("{device}: {}", no_answer()))??)
}

/// Why something is missing.
pub(super) fn why(error: plimsoll::Error) -> String {
    match error {
        plimsoll::Error::Unavailable { why, .. } => why,
        error => error.to_string(),
    }
}

fn of_device(id: DeviceId) -> plimsoll::Result<DeviceReport> {
    let device = open(id)?;
    let pci_bus = device.info().pci_bus;
    let pool = Pool::new(device as Arc<dyn Memory>, MemoryConfig::default())?;
    let report: MemoryReport = generate_memory_report(&pool);
    Ok(DeviceReport {
        device: id.to_string(),
        compute_capability: report
            .compute_capability
            .map(|(major, minor)| format!("{major}.{minor}")),
        unified: report.is_unified,
        pci_bus,
        total_bytes: report.total.get(),
        used_bytes: report.used().map(Bytes::get),
        free_bytes: report.free.map(Bytes::get),
        utilisation: report.utilisation(),
        how: report.device_obtained.to_string(),
        allocator: Allocator {
            name: report.memory,
            allocated_bytes: report.allocated.get(),
            reserved_bytes: report.reserved.get(),
            peak_bytes: report.peak.get(),
            may_hold_bytes: report.capacity.get(),
            how: report.memory_obtained.to_string(),
        },
        pressure: Some(report.pressure.to_string()),
        recommendations: report.recommendations,
        name: report.device,
    })
}
