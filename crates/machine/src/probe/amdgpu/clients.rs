//! GPU memory by process, from what the kernel writes beside each open file of a driver.
//!
//! `/proc/PID/fdinfo/N` of a file under `/dev/dri` names the GPU, the client, and what that
//! client holds of each kind of memory. Duplicates of a file are the same client, which is
//! counted once. A normal user sees his own processes, root sees all.

use std::time::{Duration, Instant};

use crate::machine::Machine;
use crate::probe::sample::ProcessSample;
use crate::units::Bytes;

/// This many open files are looked at in all; a machine with more has its rest left out.
const MOST_FILES: usize = 1 << 16;

/// What a client of the driver holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Client {
    /// The GPU, by its place on the PCI bus.
    bus: String,
    number: u64,
    vram: Option<Bytes>,
    gtt: Option<Bytes>,
}

/// A GPU that processes are looked for on.
pub(super) struct ClientGpu {
    /// Its place on the PCI bus: `0000:03:00.0`.
    pub(super) bus: Option<String>,
    /// What it maps of the system's memory counts too.
    pub(super) unified: bool,
}

/// The processes, looked for now and then.
pub(super) struct Clients {
    machine: Machine,
    every: Option<Duration>,
    last: Option<Instant>,
    found: Vec<ProcessSample>,
}

impl Clients {
    pub(super) fn new(machine: &Machine, every: Option<Duration>) -> Clients {
        Clients { machine: machine.clone(), every, last: None, found: Vec::new() }
    }

    /// Who holds memory of these GPUs.
    pub(super) fn look(&mut self, places: &[ClientGpu]) -> Vec<ProcessSample> {
        let Some(every) = self.every else { return Vec::new() };
        // A little early is better than a whole sample late.
        if self.last.is_none_or(|last| last.elapsed() + Duration::from_millis(20) >= every) {
            self.last = Some(Instant::now());
            self.found = all(&self.machine, places);
        }
        self.found.clone()
    }
}

fn all(machine: &Machine, places: &[ClientGpu]) -> Vec<ProcessSample> {
    let mut processes = Vec::new();
    let mut room = MOST_FILES;
    for folder in machine.list("/proc") {
        let Some(pid) = folder.rsplit('/').next().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let clients = clients(machine, &folder, &mut room);
        if clients.is_empty() {
            continue;
        }
        let name = machine.read(&format!("{folder}/comm"));
        for (at, place) in places.iter().enumerate() {
            let here = clients.iter().filter(|client| place.bus.as_ref() == Some(&client.bus));
            let held: Vec<Option<Bytes>> = here.map(|client| place.held(client)).collect();
            if held.is_empty() {
                continue;
            }
            // What one of them does not tell is not known of the sum.
            let gpu_bytes =
                held.into_iter().try_fold(Bytes::ZERO, |sum, one| Some(sum.saturating_add(one?)));
            let name = name.clone();
            processes.push(ProcessSample {
                pid,
                name,
                gpu: Some(at),
                gpu_bytes,
                ..ProcessSample::default()
            });
        }
    }
    processes
}

impl ClientGpu {
    fn held(&self, client: &Client) -> Option<Bytes> {
        match self.unified {
            true => Some(client.vram?.saturating_add(client.gtt?)),
            false => client.vram,
        }
    }
}

/// The clients that a process has open, each once.
fn clients(machine: &Machine, folder: &str, room: &mut usize) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    let files = std::fs::read_dir(machine.on_disk(&format!("{folder}/fd")));
    for file in files.into_iter().flatten().flatten() {
        if *room == 0 {
            break;
        }
        *room -= 1;
        if !std::fs::read_link(file.path()).is_ok_and(|to| to.starts_with("/dev/dri")) {
            continue;
        }
        let path = format!("{folder}/fdinfo/{}", file.file_name().display());
        let Some(client) = machine.read(&path).and_then(|text| parse(&text)) else { continue };
        if !clients.iter().any(|c| (&c.bus, c.number) == (&client.bus, client.number)) {
            clients.push(client);
        }
    }
    clients
}

/// A client of AMD's driver; `None` for another driver's, and for kernels before 5.19,
/// which did not number them.
fn parse(text: &str) -> Option<Client> {
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        found.map(str::trim)
    };
    if value("drm-driver")? != "amdgpu" {
        return None;
    }
    // The first is what is in place now, under its old name and its new one; the last
    // counts what was moved out as well.
    let held = |region: &str| {
        let keys = ["memory", "resident", "total"].map(|kind| format!("drm-{kind}-{region}"));
        keys.iter().find_map(|key| size(value(key)?))
    };
    Some(Client {
        bus: value("drm-pdev")?.to_string(),
        number: value("drm-client-id")?.parse().ok()?,
        vram: held("vram"),
        gtt: held("gtt"),
    })
}

/// `1024 KiB`, `3 MiB`, or bytes.
fn size(text: &str) -> Option<Bytes> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let scale = match unit.trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_read_as_kernels_old_and_new_write_it() {
        let old = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t9\ndrm-pdev:\t0000:03:00.0\n\
                   drm-memory-vram:\t2048 KiB\ndrm-memory-gtt: \t4 MiB\n";
        let client = parse(old).unwrap();
        assert_eq!((client.bus.as_str(), client.number), ("0000:03:00.0", 9));
        assert_eq!((client.vram, client.gtt), (Some(Bytes::mib(2)), Some(Bytes::mib(4))));
        let new = old.replace(
            "drm-memory-vram:\t2048 KiB",
            "drm-total-vram:\t9 MiB\n\
                   drm-resident-vram:\t3 MiB",
        );
        assert_eq!(parse(&new).and_then(|client| client.vram), Some(Bytes::mib(3)));
        assert_eq!(parse(&old.replace("amdgpu", "i915")), None);
        assert_eq!(parse(&old.replace("2048 KiB", "much")).and_then(|c| c.vram), None);
        assert_eq!(parse("pdev:\t0000:03:00.0\nvram mem:\t9 kB\n"), None);
        assert_eq!(size("18446744073709551615 MiB"), None);
    }

    #[test]
    fn a_sum_with_a_part_unknown_is_unknown() {
        let client = |vram, gtt| Client { bus: String::new(), number: 1, vram, gtt };
        let apu = ClientGpu { bus: None, unified: true };
        assert_eq!(apu.held(&client(Some(Bytes(1)), None)), None);
        assert_eq!(apu.held(&client(Some(Bytes(1)), Some(Bytes(2)))), Some(Bytes(3)));
        let card = ClientGpu { bus: None, unified: false };
        assert_eq!(card.held(&client(Some(Bytes(1)), None)), Some(Bytes(1)));
    }
}
