//! Who holds memory: the processes of a sample, sorted by the GPU that they use, with what nobody
//! in sight holds.

use plimsoll::Bytes;
use plimsoll::machine::Machine;
use plimsoll::probe::{GpuSample, MachineSample, ProcessIdentity, ProcessSample};
use plimsoll_infer::source::redact;
use serde::Serialize;

/// Programs that draw the desktop: to end them ends the session, so nobody is advised to.
const DESKTOP: [&str; 10] = [
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "kwin_wayland",
    "kwin_x11",
    "mutter",
    "plasmashell",
    "sway",
    "weston",
    "X",
];

/// How many processes of a memory are listed.
const LISTED: usize = 16;

/// A process that holds memory.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MemoryHolder {
    pub(super) pid: u32,
    pub(super) name: Option<String>,
    pub(super) command: Option<String>,
    pub(super) user: Option<String>,
    #[serde(skip)]
    pub(super) uid: Option<u32>,
    /// The container that it runs in, such as `docker 3f2a91b0c7d4`.
    pub(super) container: Option<String>,
    pub(super) bytes: u64,
    /// Of what is in use of this memory.
    pub(super) share: Option<f64>,
}

impl MemoryHolder {
    fn new(
        process: &ProcessSample,
        bytes: Bytes,
        used: Option<Bytes>,
        machine: &Machine,
    ) -> MemoryHolder {
        let identity = ProcessIdentity::of(machine, process.pid);
        MemoryHolder {
            pid: process.pid,
            name: process.name.clone(),
            // Reports are passed on, and passwords stand on command lines.
            command: identity.command.map(|command| redact(&command).into_owned()),
            user: identity.user.or_else(|| identity.uid.map(|uid| uid.to_string())),
            uid: identity.uid,
            container: identity.container,
            bytes: bytes.get(),
            share: share(bytes.get(), used.map(Bytes::get)),
        }
    }

    /// Its command line, or its name where it has none.
    pub(super) fn title(&self) -> &str {
        self.command.as_deref().or(self.name.as_deref()).unwrap_or("a process that has ended")
    }

    /// Whether somebody may want to end it to get memory: not the desktop, nor the first process.
    pub(super) fn can_be_ended(&self) -> bool {
        let name = self.name.as_deref().unwrap_or_default();
        self.pid > 1 && !DESKTOP.contains(&name)
    }
}

/// A GPU, and who holds its memory.
#[derive(Debug, Serialize)]
pub(super) struct GpuHolders {
    /// Its place in the order of its driver's own tool, such as nvidia-smi.
    pub(super) index: usize,
    pub(super) name: Option<String>,
    pub(super) unified: bool,
    pub(super) used_bytes: Option<u64>,
    /// Null where it shares the system's memory.
    pub(super) total_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    /// Those with the most first.
    pub(super) processes: Vec<MemoryHolder>,
    /// What is in use and no process in sight holds: the driver itself, and processes that the
    /// driver does not show here. Null where either is not known.
    pub(super) driver_bytes: Option<u64>,
}

impl GpuHolders {
    /// Whether memory is in use and no process can be seen to hold it.
    pub(super) fn hides_its_processes(&self) -> bool {
        self.processes.is_empty() && self.used_bytes.is_some_and(|used| used > 0)
    }
}

fn share(part: u64, whole: Option<u64>) -> Option<f64> {
    whole.filter(|whole| *whole > 0).map(|whole| part as f64 / whole as f64)
}

/// The GPUs of a sample, with the processes that hold their memory.
pub(super) fn of_gpus(sample: &MachineSample, machine: &Machine) -> Vec<GpuHolders> {
    let gpu = |(index, gpu): (usize, &GpuSample)| {
        let on_it = sample.processes.iter().filter(|process| process.gpu == Some(index));
        let held: Vec<(&ProcessSample, Bytes)> =
            on_it.filter_map(|process| Some((process, process.gpu_bytes?))).collect();
        let sum = held.iter().map(|(_, bytes)| *bytes).sum::<Bytes>();
        let mut processes: Vec<MemoryHolder> = held
            .into_iter()
            .map(|(process, bytes)| MemoryHolder::new(process, bytes, gpu.used, machine))
            .collect();
        processes.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        processes.truncate(LISTED);
        let of_driver = gpu.used.and_then(|used| used.checked_sub(sum));
        GpuHolders {
            index,
            name: gpu.name.clone(),
            unified: gpu.unified,
            used_bytes: gpu.used.map(Bytes::get),
            total_bytes: gpu.total.map(Bytes::get),
            free_bytes: gpu.total.zip(gpu.used).and_then(|(t, u)| t.checked_sub(u)).map(Bytes::get),
            driver_bytes: of_driver.filter(|_| !processes.is_empty()).map(Bytes::get),
            processes,
        }
    };
    sample.gpus.iter().enumerate().map(gpu).collect()
}

/// The processes with the most resident memory.
pub(super) fn of_system(sample: &MachineSample, machine: &Machine) -> Vec<MemoryHolder> {
    let mut processes: Vec<(&ProcessSample, Bytes)> = Vec::new();
    for process in &sample.processes {
        let Some(resident) = process.resident.filter(|resident| *resident > Bytes::ZERO) else {
            continue;
        };
        // One that uses several GPUs is in the sample once for each.
        if !processes.iter().any(|(other, _)| other.pid == process.pid) {
            processes.push((process, resident));
        }
    }
    processes.sort_by_key(|(_, resident)| std::cmp::Reverse(*resident));
    processes.truncate(LISTED);
    let used = sample.memory.used();
    processes
        .into_iter()
        .map(|(process, bytes)| MemoryHolder::new(process, bytes, used, machine))
        .collect()
}
