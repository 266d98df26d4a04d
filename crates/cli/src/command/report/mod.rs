//! `plimsoll report`: what memory there is, who has it, and what to do about it.
//!
//! On unified memory the system's figures are the ones that count, and everything that a
//! GPU uses is a part of them: nothing is added. On discrete memory each device has its
//! own figures beside the system's, and there is a sum.

mod page;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use plimsoll::backend::{BackendKind, DeviceId, count, open};
use plimsoll::machine::{Machine, with_timeout};
use plimsoll::{
    Bytes, Memory, MemoryConfig, MemoryPressure, MemoryReport, Pool, generate_memory_report,
};
use serde::Serialize;

use crate::driver_timeout::no_answer;
use crate::outcome::{OrBadInput, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  plimsoll report                    every GPU, or the system's memory where there is none
  plimsoll report --device opencl:0  one device
  plimsoll report --json             the same for programs";

/// Report on the memory of this machine's devices
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Report on this device alone: cpu, cuda:N, rocm:N, metal:N, opencl:N
    #[arg(long, value_name = "DEVICE", conflicts_with = "root")]
    device: Option<DeviceId>,
    /// Report on the recorded file tree of another machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Debug, Serialize)]
struct MachineReport {
    /// Whether the GPU shares the system's memory; null where that is not known.
    unified: Option<bool>,
    because: String,
    /// The name of the board, where it has one.
    board: Option<String>,
    system: System,
    devices: Vec<DeviceReport>,
    /// What the system and all devices use together; null on unified memory, where that
    /// would count one thing twice.
    used_in_all_bytes: Option<u64>,
    /// Why other kinds of device are not in the report.
    absent: Vec<Absent>,
    recommendations: Vec<String>,
}

#[derive(Debug, Serialize)]
struct System {
    /// `sampled`, or `recorded` of another machine's files.
    how: &'static str,
    total_bytes: Option<u64>,
    used_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// The most that a single GPU allocation can hope for; on unified memory only.
    largest_single_bytes: Option<u64>,
    /// What the GPU, codecs and cameras use; a part of the used memory.
    gpu_codecs_cameras_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    /// As it is written in `--device`.
    device: String,
    name: String,
    compute_capability: Option<String>,
    unified: Option<bool>,
    /// Two devices on one bus are one card by two drivers.
    pci_bus: Option<u32>,
    total_bytes: u64,
    used_bytes: Option<u64>,
    free_bytes: Option<u64>,
    utilisation: Option<f64>,
    how: String,
    allocator: Allocator,
    pressure: String,
    recommendations: Vec<String>,
}

/// What this process's own pool reserves.
#[derive(Debug, Serialize)]
struct Allocator {
    name: String,
    allocated_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
    may_hold_bytes: u64,
    how: String,
}

#[derive(Debug, Serialize)]
struct Absent {
    backend: &'static str,
    why: String,
}

/// Examines the devices.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let machine = Machine::recorded(&args.root);
    std::fs::read_dir(machine.root())
        .or_bad_input(|| format!("--root {} cannot be read as a folder", args.root.display()))?;
    // Asked first and once: a driver that hangs takes its time here, not from each device.
    tracing::debug!("unified: {:?}", machine.unified());
    let (devices, absent) = match args.device {
        Some(device) => (vec![of_one(device)?], Vec::new()),
        None if machine.is_here() => of_all()?,
        None => (Vec::new(), Vec::new()),
    };
    out.answer(&MachineReport::new(&machine, devices, absent))?;
    Ok(Outcome::Yes)
}

/// Every GPU; the host where there is none.
fn of_all() -> anyhow::Result<(Vec<DeviceReport>, Vec<Absent>)> {
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    for kind in BackendKind::REAL {
        if kind == BackendKind::Host && !devices.is_empty() {
            continue;
        }
        let lacks = |why| Absent { backend: kind.name(), why };
        match with_timeout(move || of_kind(kind)) {
            None => absent.push(lacks(no_answer())),
            Some(Err(error)) => absent.push(lacks(why(error))),
            Some(Ok(found)) => {
                for device in found {
                    match device {
                        Ok(device) => devices.push(device),
                        Err(error) => absent.push(lacks(why(error))),
                    }
                }
            }
        }
    }
    Ok((devices, absent))
}

type FoundDevice = plimsoll::Result<DeviceReport>;

fn of_kind(kind: BackendKind) -> plimsoll::Result<Vec<FoundDevice>> {
    let number = |number| of_device(DeviceId { kind, number });
    Ok((0..count(kind)?).map(number).collect())
}

fn of_one(device: DeviceId) -> anyhow::Result<DeviceReport> {
    let found = with_timeout(move || of_device(device));
    Ok(found.ok_or_else(|| anyhow!("{device}: {}", no_answer()))??)
}

fn why(error: plimsoll::Error) -> String {
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
        pressure: report.pressure.to_string(),
        recommendations: report.recommendations,
        name: report.device,
    })
}

impl MachineReport {
    fn new(machine: &Machine, devices: Vec<DeviceReport>, absent: Vec<Absent>) -> MachineReport {
        let (info, unified) = (machine.memory_info(), machine.unified());
        let bytes = |value: Option<Bytes>| value.map(Bytes::get);
        let system = System {
            how: if machine.is_here() { "sampled" } else { "recorded" },
            total_bytes: bytes(info.system_total),
            used_bytes: bytes(info.system_used),
            available_bytes: bytes(info.system_available),
            largest_single_bytes: bytes(info.largest_single),
            gpu_codecs_cameras_bytes: bytes(info.gpu_codecs_cameras),
        };
        // A device that uses the system's memory is in the system's figure already.
        let mut separate: Vec<_> = devices.iter().filter(|d| d.unified == Some(false)).collect();
        let mut cards = Vec::new();
        separate.retain(|device| match device.pci_bus {
            Some(bus) if cards.contains(&bus) => false,
            bus => {
                cards.extend(bus);
                true
            }
        });
        let held: Option<u64> = separate.iter().map(|device| device.used_bytes).sum();
        let apart = unified.value != Some(true) && !separate.is_empty();
        let in_all = held.zip(system.used_bytes).filter(|_| apart).map(|(gpu, ram)| gpu + ram);
        let recommendations = advice(&system, unified.value);
        MachineReport {
            unified: unified.value,
            because: unified.because,
            board: machine.board(),
            system,
            devices,
            used_in_all_bytes: in_all,
            absent,
            recommendations,
        }
    }
}

/// Advice about the system's memory, which on unified memory is the GPU's too.
fn advice(system: &System, unified: Option<bool>) -> Vec<String> {
    let (Some(used), Some(total)) = (system.used_bytes, system.total_bytes) else {
        return vec![
            "the system does not report how much of its memory is used (MemTotal less \
             MemAvailable in /proc/meminfo): nothing can be advised"
                .to_string(),
        ];
    };
    let available = Bytes(total.saturating_sub(used));
    let mut advice = match MemoryPressure::of(Bytes(used), Bytes(total)) {
        MemoryPressure::Low | MemoryPressure::Medium => Vec::new(),
        MemoryPressure::High => vec![format!(
            "{available} of system memory is left: close what is not needed before a large model"
        )],
        MemoryPressure::Critical => vec![format!(
            "{available} of system memory is left: the kernel may kill a process next"
        )],
    };
    let single = system.largest_single_bytes.map(Bytes).filter(|single| *single < available);
    if let Some(single) = single.filter(|_| unified == Some(true)) {
        advice.push(format!(
            "a single GPU allocation above {single} may fail though {available} is available: \
             the page cache is not given up for it"
        ));
    }
    if advice.is_empty() {
        advice.push("nothing to do: memory use is healthy".to_string());
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str) -> MachineReport {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let root = root.join("../machine/tests/machines").join(name);
        MachineReport::new(&Machine::recorded(root), Vec::new(), Vec::new())
    }

    fn gpu(unified: bool, used: u64) -> DeviceReport {
        let pool = Allocator {
            name: "pool".to_string(),
            allocated_bytes: 0,
            reserved_bytes: 0,
            peak_bytes: 0,
            may_hold_bytes: 1,
            how: "counted".to_string(),
        };
        DeviceReport {
            device: "cuda:0".to_string(),
            name: "GPU".to_string(),
            compute_capability: Some("9.0".to_string()),
            unified: Some(unified),
            pci_bus: None,
            total_bytes: 80 << 30,
            used_bytes: Some(used),
            free_bytes: None,
            utilisation: None,
            how: "sampled".to_string(),
            allocator: pool,
            pressure: "Low".to_string(),
            recommendations: Vec::new(),
        }
    }

    #[test]
    fn a_board_has_one_figure_and_its_parts() {
        let nano = report("orin-nano");
        assert_eq!(nano.unified, Some(true));
        assert_eq!(nano.system.used_bytes, Some((7_802_096 - 4_915_200) << 10));
        assert_eq!(nano.system.gpu_codecs_cameras_bytes, Some(640 << 20));
        assert_eq!(nano.used_in_all_bytes, None);
        assert!(nano.recommendations[0].contains("1.15 GiB"), "{:?}", nano.recommendations);
    }

    #[test]
    fn only_separate_memory_is_added() {
        let desktop = report("desktop");
        assert_eq!(desktop.used_in_all_bytes, None, "no device, no sum");
        let root =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines/desktop");
        let machine = Machine::recorded(root);
        let ram = desktop.system.used_bytes.unwrap();
        let with = |devices| MachineReport::new(&machine, devices, Vec::new()).used_in_all_bytes;
        assert_eq!(with(vec![gpu(false, 1 << 30)]), Some(ram + (1 << 30)));
        assert_eq!(with(vec![gpu(false, 1 << 30), gpu(true, 5 << 30)]), Some(ram + (1 << 30)));
        assert_eq!(with(vec![gpu(true, 5 << 30)]), None);
        let by = |bus| DeviceReport { pci_bus: Some(bus), ..gpu(false, 1 << 30) };
        assert_eq!(with(vec![by(6), by(6)]), Some(ram + (1 << 30)), "one card by two drivers");
        assert_eq!(with(vec![by(6), by(7)]), Some(ram + (2 << 30)));
    }
}
