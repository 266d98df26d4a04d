//! What the report has found, for programs.

use plimsoll::Bytes;
use plimsoll::machine::Machine;
use plimsoll::probe::MachineSample;
use serde::Serialize;

use super::advice::{AdviceFacts, ReportAction, advice, end_command};
use super::devices::{Absent, DeviceReport, FoundDevices};
use super::holders::{GpuHolders, MemoryHolder, of_gpus, of_system};

#[derive(Debug, Serialize)]
pub(super) struct MachineReport {
    /// Who holds the most, and how to end it; null where no process can be seen.
    pub(super) most: Option<MostHeld>,
    /// Whether the GPU shares the system's memory; null where that is not known.
    pub(super) unified: Option<bool>,
    pub(super) because: String,
    /// The name of the board, where it has one.
    pub(super) board: Option<String>,
    /// The GPUs that a probe sees, and who holds their memory.
    pub(super) gpus: Vec<GpuHolders>,
    pub(super) system: SystemReport,
    pub(super) devices: Vec<DeviceReport>,
    /// What the system and all devices use together; null on unified memory, where that
    /// would count one thing twice.
    pub(super) used_in_all_bytes: Option<u64>,
    /// Why other kinds of device are not in the report, and what a probe would tell.
    pub(super) absent: Vec<Absent>,
    /// The reasons of the actions.
    pub(super) recommendations: Vec<String>,
    /// What to do, each with a command.
    pub(super) actions: Vec<ReportAction>,
}

#[derive(Debug, Serialize)]
pub(super) struct SystemReport {
    /// `sampled`, or `recorded` of another machine's files.
    pub(super) how: &'static str,
    pub(super) total_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) available_bytes: Option<u64>,
    /// Files that the kernel keeps in memory; not part of the used memory.
    pub(super) page_cache_bytes: Option<u64>,
    /// Unused now, page cache not counted.
    pub(super) free_bytes: Option<u64>,
    /// The most that a single GPU allocation can hope for; on unified memory only.
    pub(super) largest_single_bytes: Option<u64>,
    /// The largest piece of free memory that is in one piece.
    pub(super) largest_contiguous_bytes: Option<u64>,
    /// What the GPU, codecs and cameras use; a part of the used memory.
    pub(super) gpu_codecs_cameras_bytes: Option<u64>,
    /// By resident memory; pages that several share count for each of them.
    pub(super) processes: Vec<MemoryHolder>,
}

/// The process that holds the most.
#[derive(Debug, Serialize)]
pub(super) struct MostHeld {
    /// `GPU 0` or `system`.
    pub(super) memory: String,
    pub(super) pid: u32,
    pub(super) title: String,
    pub(super) user: Option<String>,
    pub(super) container: Option<String>,
    pub(super) bytes: u64,
    /// Of what is in use of this memory.
    pub(super) share: Option<f64>,
    /// What ends it; null where it is the desktop.
    pub(super) end_command: Option<String>,
}

impl MostHeld {
    /// Whose memory it is, in words.
    pub(super) fn place(&self) -> &str {
        if self.memory == "system" { "the system's memory" } else { &self.memory }
    }
}

impl MachineReport {
    pub(super) fn new(
        machine: &Machine,
        sample: &MachineSample,
        found: FoundDevices,
    ) -> MachineReport {
        let unified = machine.unified();
        let system = system(machine, sample);
        let gpus = of_gpus(sample, machine);
        let FoundDevices { devices, absent } = found;
        let actions = advice(&AdviceFacts {
            gpus: &gpus,
            system: &system,
            unified: unified.value,
            absent: &absent,
            other_devices: devices.iter().any(|device| device.device != "cpu"),
            is_here: machine.is_here(),
        });
        MachineReport {
            most: most(&gpus, &system, machine.is_here()),
            unified: unified.value,
            because: unified.because,
            board: machine.board(),
            used_in_all_bytes: used_in_all(unified.value, &system, &devices, &gpus),
            gpus,
            system,
            devices,
            absent,
            recommendations: actions.iter().map(|action| action.why.clone()).collect(),
            actions,
        }
    }

    /// The devices, for the next report.
    pub(super) fn into_devices(self) -> FoundDevices {
        let devices = self.devices.into_iter().map(DeviceReport::later).collect();
        let absent = self.absent.into_iter().filter(|absent| !absent.is_probe).collect();
        FoundDevices { devices, absent }
    }
}

fn system(machine: &Machine, sample: &MachineSample) -> SystemReport {
    let info = machine.memory_info();
    let bytes = |value: Option<Bytes>| value.map(Bytes::get);
    SystemReport {
        how: if machine.is_here() { "sampled" } else { "recorded" },
        total_bytes: bytes(info.system_total),
        used_bytes: bytes(info.system_used),
        available_bytes: bytes(info.system_available),
        page_cache_bytes: bytes(sample.memory.page_cache),
        free_bytes: bytes(sample.memory.free),
        largest_single_bytes: bytes(info.largest_single),
        largest_contiguous_bytes: bytes(sample.largest_free),
        gpu_codecs_cameras_bytes: bytes(info.gpu_codecs_cameras),
        processes: of_system(sample, machine),
    }
}

/// A device that uses the system's memory is in the system's figure already.
fn used_in_all(
    unified: Option<bool>,
    system: &SystemReport,
    devices: &[DeviceReport],
    gpus: &[GpuHolders],
) -> Option<u64> {
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
    let held = held.or_else(|| used_by_probes(gpus, separate.len()));
    let apart = unified != Some(true) && !separate.is_empty();
    held.zip(system.used_bytes).filter(|_| apart).map(|(gpu, ram)| gpu + ram)
}

/// What these many cards use, where the probes see each of them.
fn used_by_probes(gpus: &[GpuHolders], cards: usize) -> Option<u64> {
    let separate: Vec<_> = gpus.iter().filter(|gpu| !gpu.unified).collect();
    (separate.len() == cards).then(|| separate.iter().map(|gpu| gpu.used_bytes).sum())?
}

/// Of GPU memory where somebody holds some, otherwise of the system's. Whoever can be ended comes
/// before the desktop.
fn most(gpus: &[GpuHolders], system: &SystemReport, is_here: bool) -> Option<MostHeld> {
    let of_gpus =
        gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |p| (Some(gpu.index), p)));
    let rank = |(_, holder): &(Option<usize>, &MemoryHolder)| (holder.can_be_ended(), holder.bytes);
    let holder = of_gpus.filter(|(_, holder)| holder.bytes > 0).max_by_key(rank);
    let of_system = || system.processes.iter().map(|holder| (None, holder)).max_by_key(rank);
    let (gpu, holder) = holder.or_else(of_system)?;
    Some(MostHeld {
        memory: gpu.map_or_else(|| "system".to_string(), |index| format!("GPU {index}")),
        pid: holder.pid,
        title: holder.title().to_string(),
        user: holder.user.clone(),
        container: holder.container.clone(),
        bytes: holder.bytes,
        share: holder.share,
        end_command: holder.can_be_ended().then(|| end_command(holder, is_here)),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use plimsoll::probe::{GpuSample, ProbeKind, ProcessSample, look};

    use super::super::devices::Allocator;
    use super::*;

    fn tree(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines").join(name)
    }

    fn report_with(name: &str, devices: Vec<DeviceReport>) -> MachineReport {
        let sample = look(tree(name), &ProbeKind::ALL).unwrap();
        let found = FoundDevices { devices, absent: Vec::new() };
        MachineReport::new(&Machine::recorded(tree(name)), &sample, found)
    }

    fn report(name: &str) -> MachineReport {
        report_with(name, Vec::new())
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
            pressure: Some("Low".to_string()),
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
        assert_eq!(nano.actions[0].command, "sudo sysctl vm.drop_caches=1");
    }

    #[test]
    fn only_separate_memory_is_added() {
        let with = |devices| report_with("desktop", devices).used_in_all_bytes;
        assert_eq!(with(Vec::new()), None, "no device, no sum");
        let ram = report("desktop").system.used_bytes.unwrap();
        assert_eq!(with(vec![gpu(false, 1 << 30)]), Some(ram + (1 << 30)));
        assert_eq!(with(vec![gpu(false, 1 << 30), gpu(true, 5 << 30)]), Some(ram + (1 << 30)));
        assert_eq!(with(vec![gpu(true, 5 << 30)]), None);
        let by = |bus| DeviceReport { pci_bus: Some(bus), ..gpu(false, 1 << 30) };
        assert_eq!(with(vec![by(6), by(6)]), Some(ram + (1 << 30)), "one card by two drivers");
        assert_eq!(with(vec![by(6), by(7)]), Some(ram + (2 << 30)));
    }

    #[test]
    fn whoever_holds_the_most_is_named_with_what_ends_it() {
        let most = report("amd").most.unwrap();
        assert_eq!((most.memory.as_str(), most.pid), ("GPU 1", 1234));
        assert_eq!(most.title, "python3 train.py --batch 64");
        assert_eq!(most.container.as_deref(), Some("docker 3f2a91b0c7d4"));
        assert_eq!(most.user.as_deref(), Some("anna"));
        assert_eq!(most.end_command.as_deref(), Some("kill 1234"));
    }

    /// A GPU that a probe sees.
    fn seen(used: u64, of: &[(u32, &str, u64)]) -> MachineSample {
        let gib = |n: u64| Some(Bytes::gib(n));
        let process = |(pid, name, bytes): &(u32, &str, u64)| ProcessSample {
            pid: *pid,
            name: Some((*name).to_string()),
            gpu: Some(0),
            gpu_bytes: gib(*bytes),
            ..ProcessSample::default()
        };
        MachineSample {
            gpus: vec![GpuSample { used: gib(used), total: gib(80), ..GpuSample::default() }],
            processes: of.iter().map(process).collect(),
            ..MachineSample::default()
        }
    }

    fn held(used: u64, of: &[(u32, &str, u64)]) -> MachineReport {
        let machine = Machine::recorded(tree("desktop"));
        MachineReport::new(&machine, &seen(used, of), FoundDevices::default())
    }

    #[test]
    fn a_later_report_has_the_gpus_of_the_probes() {
        let machine = Machine::recorded(tree("desktop"));
        let later = |gib, report: MachineReport| {
            MachineReport::new(&machine, &seen(gib, &[]), report.into_devices())
        };
        let first = report_with("desktop", vec![gpu(false, 1 << 30)]);
        let ram = first.system.used_bytes.unwrap();
        let second = later(3, first);
        let device = &second.devices[0];
        assert_eq!((device.used_bytes, &device.pressure), (None, &None));
        assert_eq!(second.used_in_all_bytes, Some(ram + (3 << 30)));
        assert_eq!(later(4, second).used_in_all_bytes, Some(ram + (4 << 30)));
        let two = vec![gpu(false, 1 << 30), gpu(false, 1 << 30)];
        let hidden = later(3, report_with("desktop", two));
        assert_eq!(hidden.used_in_all_bytes, None, "of one card nothing is known");
    }

    #[test]
    fn a_full_gpu_has_somebody_to_end_and_it_is_not_the_desktop() {
        let report = held(76, &[(7, "Xorg", 40), (4321, "python3", 30), (8, "python3", 5)]);
        let gpu = &report.gpus[0];
        assert_eq!(gpu.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [7, 4321, 8]);
        assert_eq!(gpu.driver_bytes, Some(1 << 30), "what no process holds");
        assert_eq!(report.most.as_ref().map(|most| most.pid), Some(4321));
        assert_eq!(report.actions[0].command, "kill 4321");
        assert!(report.actions[0].why.starts_with("4.00 GiB of GPU 0 is left"));
        assert_eq!(report.actions[1].command, "plimsoll run --gpu-mem-limit 40GiB -- PROGRAM");
        assert_eq!(report.actions.len(), report.recommendations.len());
    }

    #[test]
    fn what_nobody_shows_is_unknown_and_says_how_to_see_it() {
        let report = held(20, &[]);
        assert_eq!(report.gpus[0].driver_bytes, None);
        assert!(report.most.is_none());
        assert!(report.actions.iter().any(|action| action.command == "sudo plimsoll report"));
        let healthy = held(1, &[(5, "python3", 1)]);
        assert_eq!(healthy.actions.last().unwrap().command, "plimsoll monitor");
        assert!(healthy.recommendations[0].starts_with("nothing needs to be done"));
    }
}
