//! A Jetson's own files: what `tegrastats` shows, without a child process and without root.
//!
//! Where a file lies differs by board and release, so each is looked for once, when the
//! probe is opened, and then kept open. What a normal user may not read (the memory of
//! each process, which the kernel keeps for root) is left out and said once in the log.

mod power;
pub(super) mod thermal;

use super::Probe;
use super::open_file::OpenFile;
use super::sample::{EngineSample, GpuSample, MachineSample, ProcessSample};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::units::Bytes;
use power::JetsonPower;
use thermal::JetsonThermal;

/// What the device tree calls the GPU, from Nano to Thor.
const GPUS: [&str; 5] = ["gpu", "gp10b", "gv11b", "ga10b", "gb10b"];
/// The load in thousandths, where it does not lie beside the clock.
const LOADS: [&str; 3] = [
    "/sys/devices/gpu.0/load",
    "/sys/devices/platform/gpu.0/load",
    "/sys/devices/platform/bus@0/17000000.gpu/load",
];
/// The memory of each process; for root alone.
const CLIENTS: &str = "/sys/kernel/debug/nvmap/iovmm/clients";

/// The probe.
pub(super) struct Jetson {
    name: Option<String>,
    load: Option<OpenFile>,
    clock: Option<OpenFile>,
    /// They meet when clocks are locked.
    min: Option<OpenFile>,
    max: Option<OpenFile>,
    engines: Vec<(String, OpenFile)>,
    power: JetsonPower,
    thermal: JetsonThermal,
    clients: Option<OpenFile>,
    power_mode: Option<String>,
    buffer: Vec<u8>,
}

/// Whether the files tell the GPU's load and the power; `None` where this is no Jetson.
pub(super) fn tells_enough(machine: &Machine) -> Option<bool> {
    let probe = Jetson::open(machine).ok()?;
    let thor = machine.on_disk("/proc/driver/nvidia/version").is_file();
    Some((probe.load.is_some() || thor) && !probe.power.is_empty())
}

impl Jetson {
    pub(super) fn open(machine: &Machine) -> Result<Jetson> {
        if !is_jetson(machine) {
            return Err(Error::Unavailable {
                what: "a Jetson".to_string(),
                why: "neither /etc/nv_tegra_release nor the device tree speaks of one".to_string(),
            });
        }
        let clocks = machine.list("/sys/class/devfreq");
        let gpu = clocks.iter().filter(|path| is_gpu(machine, path)).min_by_key(|path| {
            // Thor has a clock for its video engines under the GPU's name too.
            !path.contains("gpc") && path.contains("gpu-")
        });
        let beside = |name: &str| OpenFile::open(machine, &format!("{}/{name}", gpu?));
        let clients = OpenFile::open(machine, CLIENTS);
        if clients.is_none() && machine.is_here() {
            tracing::info!("{CLIENTS} cannot be read: GPU memory by process needs root");
        }
        Ok(Jetson {
            name: machine.read("/sys/firmware/devicetree/base/model"),
            load: beside("device/load")
                .or_else(|| LOADS.iter().find_map(|path| OpenFile::open(machine, path))),
            clock: beside("cur_freq"),
            min: beside("min_freq"),
            max: beside("max_freq"),
            engines: engines(machine, &clocks),
            power: JetsonPower::open(machine),
            thermal: JetsonThermal::open(machine),
            clients,
            power_mode: power_mode(machine),
            buffer: Vec::new(),
        })
    }
}

/// Whether the files are those of a Jetson.
pub(super) fn is_jetson(machine: &Machine) -> bool {
    let compatible = machine.read("/sys/firmware/devicetree/base/compatible");
    compatible.is_some_and(|text| text.contains("nvidia,tegra"))
        || machine.read("/etc/nv_tegra_release").is_some()
}

fn is_gpu(machine: &Machine, path: &str) -> bool {
    of_node(machine, path).is_some_and(|name| GPUS.contains(&name.as_str()))
}

fn of_node(machine: &Machine, path: &str) -> Option<String> {
    machine.read(&format!("{path}/device/of_node/name"))
}

fn engines(machine: &Machine, clocks: &[String]) -> Vec<(String, OpenFile)> {
    let others = clocks.iter().filter(|path| !is_gpu(machine, path));
    let engine = |path: &String| {
        let name = of_node(machine, path)?.to_ascii_uppercase();
        Some((name, OpenFile::open(machine, &format!("{path}/cur_freq"))?))
    };
    others.filter_map(engine).collect()
}

/// What `nvpmodel -q` would say, from the files that it says it from.
fn power_mode(machine: &Machine) -> Option<String> {
    let status = machine.read("/var/lib/nvpmodel/status")?;
    let id: u32 = status.split_whitespace().find_map(|w| w.strip_prefix("pmode:"))?.parse().ok()?;
    let conf = machine.read("/etc/nvpmodel.conf").unwrap_or_default();
    let model = conf.lines().filter(|line| line.contains("POWER_MODEL")).find(|line| {
        let mut words = line.split_whitespace().filter_map(|word| word.strip_prefix("ID="));
        words.next().and_then(|text| text.parse::<u32>().ok()) == Some(id)
    });
    let name = model.and_then(|line| line.split("NAME=").nth(1)?.split_whitespace().next());
    Some(name.map_or_else(|| format!("mode {id}"), String::from))
}

impl Probe for Jetson {
    fn read(&mut self, sample: &mut MachineSample) -> Result<()> {
        self.power.read(sample);
        self.thermal.read(sample);
        let heat = sample.temperatures.iter().find(|t| t.name.eq_ignore_ascii_case("gpu"));
        let number = |held: &Option<OpenFile>| held.as_ref()?.number().map(|n| n as f64);
        sample.gpus.push(GpuSample {
            name: self.name.clone(),
            unified: true,
            percent: number(&self.load).map(|thousandths| thousandths / 10.0),
            mhz: number(&self.clock).map(|hz| hz / 1e6),
            min_mhz: number(&self.min).map(|hz| hz / 1e6),
            max_mhz: number(&self.max).map(|hz| hz / 1e6),
            celsius: heat.and_then(|t| t.celsius),
            ..GpuSample::default()
        });
        sample.engines.extend(self.engines.iter().map(|(name, clock)| EngineSample {
            name: name.clone(),
            mhz: clock.number().map(|hz| hz as f64 / 1e6),
            ..EngineSample::default()
        }));
        sample.power_mode.clone_from(&self.power_mode);
        if let Some(text) = self.clients.as_ref().and_then(|f| f.read(&mut self.buffer).ok()) {
            sample.processes.extend(parse_clients(text));
        }
        Ok(())
    }
}

/// `user  python3  1234  524288K`; the size in bytes, or with a unit behind it.
fn parse_clients(text: &str) -> impl Iterator<Item = ProcessSample> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (client, size) = (words.next()?, words.next_back()?);
        let pid = words.next_back()?.parse().ok()?;
        let name: Vec<&str> = words.collect();
        let unit = size.len() - size.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (number, unit) = size.split_at(size.len() - unit);
        let scale = match unit {
            "" => 1,
            "K" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            _ => return None,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(scale)?;
        // The kernel's own are clients without a program.
        let name = if name.is_empty() { client.to_string() } else { name.join(" ") };
        let gpu_bytes = Some(Bytes(bytes));
        Some(ProcessSample {
            pid,
            name: Some(name),
            gpu: Some(0),
            gpu_bytes,
            ..ProcessSample::default()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_the_memory_are_read_as_the_kernel_writes_them() {
        let text = "CLIENT                        PROCESS      PID        SIZE\n\
                    user                     gnome-shell     2213     98304K\n\
                    user                        my app 2     4711    524288K\n\
                    vpr                                         1       4096\n\
                    total                                            626692K\n";
        let found: Vec<ProcessSample> = parse_clients(text).collect();
        let told: Vec<_> = found.iter().map(|p| (p.pid, p.name.as_deref(), p.gpu_bytes)).collect();
        let expected = [
            (2213, Some("gnome-shell"), Some(Bytes::kib(98_304))),
            (4711, Some("my app 2"), Some(Bytes::mib(512))),
            (1, Some("vpr"), Some(Bytes(4096))),
        ];
        assert_eq!(told, expected);
    }
}
