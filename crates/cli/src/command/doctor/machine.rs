//! The board, its processors and its memory, from the files that Linux keeps.

use plimsoll::Bytes;
use plimsoll::machine::name;
use plimsoll::platform::{MemInfo, system_memory};
use serde::Serialize;

use super::Fact;
use super::root::Root;

#[derive(Debug, Serialize)]
pub(super) struct DoctorMachine {
    pub(super) os: Fact<String>,
    pub(super) distribution: Fact<String>,
    pub(super) kernel: Fact<String>,
    pub(super) arch: Fact<String>,
    pub(super) board: Fact<String>,
    /// Jetson Linux: `36.4.7`.
    pub(super) l4t: Fact<String>,
    pub(super) jetson: bool,
    /// Whether the GPU shares the system's memory.
    pub(super) unified: Fact<bool>,
    /// Logical processors of the machine.
    pub(super) cpus: Fact<usize>,
    /// Those that this process may use.
    pub(super) cpus_usable: Fact<usize>,
    pub(super) cpu_model: Fact<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DoctorMemory {
    /// Why the system reports nothing.
    pub(super) unreadable: Option<String>,
    pub(super) total_bytes: Fact<u64>,
    pub(super) available_bytes: Fact<u64>,
    pub(super) free_bytes: Fact<u64>,
    pub(super) swap_total_bytes: Fact<u64>,
    pub(super) swap_free_bytes: Fact<u64>,
    /// A part of the total, with what codecs and cameras use.
    pub(super) nvmap_used_bytes: Fact<u64>,
}

const TEGRA_RELEASE: &str = "/etc/nv_tegra_release";
const MODELS: [&str; 2] = ["/sys/firmware/devicetree/base/model", "/proc/device-tree/model"];
const CPUINFO: &str = "/proc/cpuinfo";

pub(super) fn machine(root: &Root) -> DoctorMachine {
    let board = root.name(&MODELS);
    let release = root.machine().read(TEGRA_RELEASE);
    let l4t = release.as_deref().and_then(l4t_version);
    let named = |name: &Fact<String>| name.value.as_deref().is_some_and(|m| m.contains("Jetson"));
    let jetson = root.machine().has_file(TEGRA_RELEASE) || named(&board);
    let cpuinfo = root.machine().read(CPUINFO).unwrap_or_default();
    let usable = root.is_live().then(|| std::thread::available_parallelism().ok()).flatten();
    DoctorMachine {
        os: or_built_for(root, "/proc/sys/kernel/ostype", std::env::consts::OS),
        distribution: distribution(root),
        kernel: root.name(&["/proc/sys/kernel/osrelease"]),
        arch: or_built_for(root, "/proc/sys/kernel/arch", std::env::consts::ARCH),
        board,
        l4t: root.fact(l4t, TEGRA_RELEASE),
        jetson,
        unified: unified(root),
        cpus: root.fact(cpu_count(&cpuinfo), CPUINFO),
        cpus_usable: root.fact(usable.map(usize::from), "affinity and cgroup of this process"),
        cpu_model: root.fact(cpu_model(&cpuinfo), CPUINFO),
    }
}

pub(super) fn memory(root: &Root) -> DoctorMemory {
    let (info, problem) = match system_memory(root.machine().root()) {
        Ok(info) => (info, None),
        Err(error) => (MemInfo::default(), Some(error.to_string())),
    };
    let figure = |value: Option<Bytes>, field: &str| {
        let place = || format!("/proc/meminfo {field}");
        root.fact(value.map(Bytes::get), problem.clone().unwrap_or_else(place))
    };
    DoctorMemory {
        unreadable: problem.clone(),
        total_bytes: figure(info.total, "MemTotal"),
        available_bytes: figure(info.available, "MemAvailable"),
        free_bytes: figure(info.free, "MemFree"),
        swap_total_bytes: figure(info.swap_total, "SwapTotal"),
        swap_free_bytes: figure(info.swap_free, "SwapFree"),
        nvmap_used_bytes: figure(info.nvmap_used, "NvMapMemUsed"),
    }
}

/// What the kernel says; else, of the machine itself, what this program was built for.
fn or_built_for(root: &Root, path: &str, built_for: &str) -> Fact<String> {
    let said = root.name(&[path]);
    if said.value.is_some() || !root.is_live() {
        return said;
    }
    root.fact(Some(built_for.to_string()), "what this program was built for")
}

fn distribution(root: &Root) -> Fact<String> {
    root.name_in(&["/etc/os-release", "/usr/lib/os-release"], |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(line.trim().trim_matches(['"', '\'']))
    })
}

fn unified(root: &Root) -> Fact<bool> {
    let unified = root.machine().unified();
    root.fact(unified.value, unified.because)
}

/// `# R36 (release), REVISION: 4.7, …` is Jetson Linux 36.4.7.
fn l4t_version(text: &str) -> Option<String> {
    let (release, revision) = text.lines().find_map(|line| line.split_once("REVISION:"))?;
    let release = release.trim_start_matches(['\u{feff}', '#', ' ']).strip_prefix('R')?;
    let (major, minor) = (number(release)?, number(revision.trim_start())?);
    Some(format!("{major}.{minor}"))
}

/// The digits that a text begins with, and the dots between them.
fn number(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    number.starts_with(|c: char| c.is_ascii_digit()).then_some(number)
}

fn cpu_count(cpuinfo: &str) -> Option<usize> {
    let processors = cpuinfo.lines().filter(|line| field(line, "processor").is_some()).count();
    (processors > 0).then_some(processors)
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |name| cpuinfo.lines().find_map(|line| field(line, name));
    let arm = || arm_core(value("CPU implementer")?, value("CPU part")?);
    value("model name").and_then(name).or_else(arm).map(str::to_string)
}

/// `name   : value`, by exactly that name.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name).then_some(value.trim())
}

/// 64-bit Arm kernels give numbers, not names. These are the cores of Jetson boards and
/// of NVIDIA's servers; others stay unknown.
fn arm_core(implementer: &str, part: &str) -> Option<&'static str> {
    Some(match (implementer, part) {
        ("0x41", "0xd07") => "Cortex-A57",
        ("0x41", "0xd42") => "Cortex-A78AE",
        ("0x41", "0xd4f") => "Neoverse-V2",
        ("0x41", "0xd83") => "Neoverse-V3AE",
        ("0x4e", "0x003") => "NVIDIA Denver 2",
        ("0x4e", "0x004") => "NVIDIA Carmel",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jetson_releases_are_read() {
        let line = "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64";
        assert_eq!(l4t_version(line).as_deref(), Some("36.4.7"));
        assert_eq!(l4t_version("# R32 (release), REVISION: 7.1, GCID: 1"), Some("32.7.1".into()));
        for (text, version) in [
            ("# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref\r\n", "35.4.1"),
            ("# R38 (release), REVISION: 2.1, GCID: 1\n# KERNEL_VARIANT: oot\n", "38.2.1"),
            ("# R38 (release), REVISION: 2, GCID: 1", "38.2"),
            ("\u{feff}#R36,REVISION:4.7", "36.4.7"),
            ("\n\n# R36 (release), REVISION: 5.0 GCID: 1", "36.5.0"),
        ] {
            assert_eq!(l4t_version(text).as_deref(), Some(version), "{text:?}");
        }
        for nonsense in [
            "",
            "R36",
            "# R",
            "# R36 (release)",
            "# R36 (release), REVISION: , GCID",
            "# Rabc (release), REVISION: xyz",
            "# R (release), REVISION: .7",
        ] {
            assert_eq!(l4t_version(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn processors_are_counted_and_named() {
        let intel =
            "processor\t: 0\nmodel name\t: Core i7\n\nprocessor\t: 1\nmodel name\t: Core i7\n";
        assert_eq!((cpu_count(intel), cpu_model(intel)), (Some(2), Some("Core i7".into())));
        let orin = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n";
        assert_eq!((cpu_count(orin), cpu_model(orin)), (Some(1), Some("Cortex-A78AE".into())));
        assert_eq!((cpu_count(""), cpu_model("")), (None, None));
    }
}
