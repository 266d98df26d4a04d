//! NVML, as far as memory needs it: which GPUs there are, and what they hold.
//!
//! On boards whose GPU uses the system's memory, NVML says *not supported* to questions
//! about memory. That is an answer (the GPU has no memory of its own), and it is reported
//! differently from a failure.

use std::sync::OnceLock;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as raw;

use crate::error::{Error, Result};
use crate::units::Bytes;

/// A GPU as NVML reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlGpu {
    /// "NVIDIA H200".
    pub name: String,
    /// The compute capability: (9, 0).
    pub compute_capability: Option<(i32, i32)>,
    /// All of its own memory, what anyone holds, and what nobody does.
    pub memory: NvmlMemory,
    /// How the GPU reaches the host's memory.
    pub addressing: Option<Addressing>,
    /// The number of its PCI bus.
    pub bus: Option<u32>,
}

/// What NVML says of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvmlMemory {
    /// It has its own.
    Own {
        /// All of it.
        total: Bytes,
        /// What anyone holds, what the driver keeps included.
        used: Bytes,
        /// What nobody holds.
        free: Bytes,
    },
    /// NVML has no figures: the GPU uses the system's memory.
    NotSupported,
    /// NVML failed to say.
    Unknown,
}

/// How a GPU reaches memory that the host's allocator handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addressing {
    /// Not at all.
    None,
    /// By moving pages (heterogeneous memory management).
    Hmm,
    /// By the host's own page tables (Grace, GB10): one memory for both.
    Ats,
}

/// The library, loaded and started once.
pub fn nvml() -> Result<&'static Nvml> {
    static NVML: OnceLock<std::result::Result<Nvml, String>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().map_err(|error| reason(&error)))
        .as_ref()
        .map_err(|why| Error::Unavailable { what: "NVML".to_string(), why: why.clone() })
}

fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!(
            "libnvidia-ml.so.1 could not be loaded ({error}); it comes with the NVIDIA driver, \
             and a Jetson before Thor has none"
        ),
        error => format!("libnvidia-ml.so.1 is there, but {error}"),
    }
}

/// Every GPU that NVML sees.
///
/// # Errors
///
/// [`Error::Unavailable`] that names the library and why it could not be used.
pub fn gpus() -> Result<Vec<NvmlGpu>> {
    let nvml = nvml()?;
    let count = nvml.device_count().map_err(|error| Error::Unavailable {
        what: "NVML".to_string(),
        why: format!("nvmlDeviceGetCount: {error}"),
    })?;
    Ok((0..count).filter_map(|n| nvml.device_by_index(n).ok()).map(|gpu| ask(nvml, &gpu)).collect())
}

/// What is free on the GPU of a PCI bus.
pub fn free_on_bus(bus: u32) -> Option<Bytes> {
    let gpu = gpus().ok()?.into_iter().find(|gpu| gpu.bus == Some(bus))?;
    match gpu.memory {
        NvmlMemory::Own { free, .. } => Some(free),
        NvmlMemory::NotSupported | NvmlMemory::Unknown => None,
    }
}

fn ask(nvml: &Nvml, gpu: &Device<'_>) -> NvmlGpu {
    NvmlGpu {
        name: gpu.name().unwrap_or_else(|_| "an NVIDIA GPU".to_string()),
        compute_capability: gpu.cuda_compute_capability().ok().map(|cc| (cc.major, cc.minor)),
        memory: memory(gpu),
        addressing: addressing(nvml, gpu),
        bus: gpu.pci_info().ok().map(|pci| pci.bus),
    }
}

fn memory(gpu: &Device<'_>) -> NvmlMemory {
    match gpu.memory_info() {
        Ok(memory) => NvmlMemory::Own {
            total: Bytes(memory.total),
            // What NVML calls used leaves out what the driver keeps for itself.
            used: Bytes(memory.total.saturating_sub(memory.free)),
            free: Bytes(memory.free),
        },
        Err(NvmlError::NotSupported) => NvmlMemory::NotSupported,
        Err(_) => NvmlMemory::Unknown,
    }
}

/// The wrapper has no call for it yet.
#[expect(unsafe_code, reason = "a foreign call")]
fn addressing(nvml: &Nvml, gpu: &Device<'_>) -> Option<Addressing> {
    let call = nvml.lib().nvmlDeviceGetAddressingMode.as_ref().ok()?;
    // NVML wants the size of the structure and its version.
    let version = size_of::<raw::nvmlDeviceAddressingMode_v1_t>() as u32 | 1 << 24;
    let mut mode = raw::nvmlDeviceAddressingMode_v1_t { version, value: 0 };
    // SAFETY: the device's handle is live as long as the library is, which is for ever,
    // and the structure is the one that the version names.
    let code = unsafe { call(gpu.handle(), &raw mut mode) };
    match (code, mode.value) {
        (raw::nvmlReturn_enum_NVML_SUCCESS, 0) => Some(Addressing::None),
        (raw::nvmlReturn_enum_NVML_SUCCESS, 1) => Some(Addressing::Hmm),
        (raw::nvmlReturn_enum_NVML_SUCCESS, 2) => Some(Addressing::Ats),
        _ => None,
    }
}
