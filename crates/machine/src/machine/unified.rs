//! What speaks for unified memory, and what against it.

use std::fmt;
use std::sync::OnceLock;

use plimsoll_cuda::raw::CUdevice_attribute as Attribute;

use super::{DRIVER_TIMEOUT, Machine, name, with_timeout};
use crate::sys::hip::{Hip, HipGpu};
use crate::sys::nvml::{Addressing, NvmlGpu, NvmlMemory, gpus};
use plimsoll_cuda::Driver;

/// The release file of Jetson Linux.
const TEGRA_RELEASE: &str = "/etc/nv_tegra_release";
const COMPATIBLE: &str = "/sys/firmware/devicetree/base/compatible";
pub(super) const MODELS: [&str; 2] =
    ["/sys/firmware/devicetree/base/model", "/proc/device-tree/model"];
/// Where NVIDIA's driver keeps a folder for each GPU on a bus.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";

/// Parts of the names of GPUs that use the system's memory. GH200 and its kin have memory
/// of their own that the kernel counts as the system's: for whoever adds figures up, it is
/// the same.
const SHARING: [&str; 9] =
    ["Orin", "Thor", "Xavier", "Tegra", "nvgpu", "GB10", "GH200", "GB200", "GB300"];

/// Something that speaks for or against unified memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// What it says.
    pub is_unified: bool,
    /// Where it was found, and what was found there.
    pub found: String,
}

impl Evidence {
    fn new(is_unified: bool, found: impl Into<String>) -> Evidence {
        Evidence { is_unified, found: found.into() }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.found)
    }
}

/// Whether memory is unified, and why that is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unified {
    /// The answer; `None` where nothing tells.
    pub value: Option<bool>,
    /// The evidence that decided, or why there is none.
    pub because: String,
}

/// The surest evidence decides.
pub(super) fn decide(evidence: &[Evidence]) -> Unified {
    match evidence.first() {
        Some(first) => Unified { value: Some(first.is_unified), because: first.found.clone() },
        None => Unified {
            value: None,
            because: "no board file and no driver says whether a GPU shares this memory"
                .to_string(),
        },
    }
}

/// What the files of a board say of it.
pub(super) fn from_board(machine: &Machine) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    if machine.has_file(TEGRA_RELEASE) {
        evidence.push(Evidence::new(true, format!("{TEGRA_RELEASE}: the board is a Jetson")));
    }
    evidence.extend(from_device_tree(machine));
    evidence
}

/// What the names say that NVIDIA's kernel module keeps.
pub(super) fn from_names(machine: &Machine) -> Vec<Evidence> {
    let gpu = |folder: String| {
        let file = format!("{folder}/information");
        let text = machine.read(&file)?;
        Some(by_name(model(&text)?, &file))
    };
    machine.list(NVIDIA_GPUS).into_iter().filter_map(gpu).collect()
}

fn from_device_tree(machine: &Machine) -> Option<Evidence> {
    let tegra = machine.read(COMPATIBLE).and_then(|text| {
        let soc =
            text.split('\0').filter_map(name).find(|part| part.starts_with("nvidia,tegra"))?;
        Some(format!("{COMPATIBLE}: {soc}"))
    });
    let jetson = || {
        MODELS.iter().find_map(|path| {
            let text = machine.read(path)?;
            let model = name(&text).filter(|model| model.contains("Jetson"))?;
            Some(format!("{path}: {model}"))
        })
    };
    tegra.or_else(jetson).map(|found| Evidence::new(true, found))
}

/// `Model:   NVIDIA H200` of the driver's own file.
fn model(information: &str) -> Option<&str> {
    let model = information.lines().find_map(|line| line.strip_prefix("Model:"))?;
    name(model).filter(|model| *model != "Unknown")
}

fn by_name(name: &str, place: &str) -> Evidence {
    let shares = SHARING.iter().any(|part| name.contains(part));
    let what = if shares { "uses the system's memory" } else { "has memory of its own" };
    Evidence::new(shares, format!("{place}: {name} {what}"))
}

/// What the drivers of this machine say, asked once: it does not change while they run.
pub(super) fn drivers() -> &'static [Evidence] {
    static SAID: OnceLock<Vec<Evidence>> = OnceLock::new();
    SAID.get_or_init(|| {
        with_timeout(from_drivers).unwrap_or_else(|| {
            let seconds = DRIVER_TIMEOUT.as_secs();
            tracing::warn!("the drivers did not answer within {seconds} s: files alone tell");
            Vec::new()
        })
    })
}

/// Nothing is created on a device for it.
fn from_drivers() -> Vec<Evidence> {
    let mut evidence = Vec::new();
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        evidence.push(Evidence::new(true, "Apple silicon"));
    }
    evidence.extend(from_cuda());
    evidence.extend(from_hip());
    evidence.extend(gpus().unwrap_or_default().iter().map(from_nvml));
    evidence
}

/// The driver's INTEGRATED attribute, which takes no context.
fn from_cuda() -> Vec<Evidence> {
    let Ok(driver) = Driver::load(None) else { return Vec::new() };
    let device = |number| {
        let device = driver.device(number).ok()?;
        let integrated = driver.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let name = driver.name(device).unwrap_or_else(|_| format!("cuda:{number}"));
        let what = if integrated { "is integrated" } else { "is not integrated" };
        // GH200 and its kin are not, and share all the same.
        let shares = integrated || by_name(&name, "").is_unified;
        Some(Evidence::new(shares, format!("the CUDA driver: {name} {what}")))
    };
    (0..driver.devices().unwrap_or(0)).filter_map(device).collect()
}

/// The same attribute of AMD's runtime.
fn from_hip() -> Vec<Evidence> {
    let Ok(hip) = Hip::load(None) else { return Vec::new() };
    let device = |number| {
        let gpu = HipGpu::new(hip, number).ok()?;
        let (integrated, name) = (gpu.is_integrated()?, gpu.name().ok()?);
        let what = if integrated { "is integrated" } else { "is not integrated" };
        Some(Evidence::new(integrated, format!("HIP: {name} {what}")))
    };
    (0..hip.devices().unwrap_or(0)).filter_map(device).collect()
}

/// NVML's word. That it has no figures for memory is one.
fn from_nvml(gpu: &NvmlGpu) -> Evidence {
    let name = &gpu.name;
    match (gpu.memory, gpu.addressing) {
        (NvmlMemory::NotSupported, _) => {
            Evidence::new(true, format!("NVML: {name} has no memory of its own (not supported)"))
        }
        (_, Some(Addressing::Ats)) => {
            Evidence::new(true, format!("NVML: {name} uses the host's page tables (ATS)"))
        }
        (NvmlMemory::Own { total, .. }, _) => {
            let name_says = by_name(name, "NVML");
            match name_says.is_unified {
                true => name_says,
                false => Evidence::new(false, format!("NVML: {name} has {total} of its own")),
            }
        }
        (NvmlMemory::Unknown, _) => by_name(name, "NVML"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn gpu(name: &str, memory: NvmlMemory, addressing: Option<Addressing>) -> Evidence {
        let name = name.to_string();
        from_nvml(&NvmlGpu { name, compute_capability: None, memory, addressing, bus: None })
    }

    #[test]
    fn nvml_that_does_not_support_the_question_has_answered_it() {
        let own =
            NvmlMemory::Own { total: Bytes::gib(141), used: Bytes::gib(1), free: Bytes::gib(140) };
        for (name, memory, addressing, unified) in [
            ("NVIDIA H200", own, Some(Addressing::None), false),
            ("NVIDIA H200", own, Some(Addressing::Hmm), false),
            ("NVIDIA H200", own, None, false),
            ("NVIDIA Thor", NvmlMemory::NotSupported, None, true),
            ("NVIDIA GB10", NvmlMemory::NotSupported, Some(Addressing::Ats), true),
            ("NVIDIA GH200 480GB", own, Some(Addressing::Ats), true),
            ("NVIDIA GH200 480GB", own, None, true),
            ("Orin (nvgpu)", NvmlMemory::Unknown, None, true),
            ("NVIDIA T4", NvmlMemory::Unknown, None, false),
        ] {
            let evidence = gpu(name, memory, addressing);
            assert_eq!(evidence.is_unified, unified, "{evidence}");
            assert!(evidence.found.contains(name), "{evidence}");
        }
    }

    #[test]
    fn the_drivers_file_is_read_as_it_is_written() {
        assert_eq!(model("Model: \t\t NVIDIA H200\nIRQ: 1\n"), Some("NVIDIA H200"));
        for nothing in ["", "Model:", "Model: \t Unknown\n", "IRQ: 3"] {
            assert_eq!(model(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn without_evidence_nothing_is_claimed() {
        let unknown = decide(&[]);
        assert_eq!(unknown.value, None);
        assert!(unknown.because.contains("no driver"), "{}", unknown.because);
    }
}
