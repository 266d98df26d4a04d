//! What runs models: the engine that is built in, ONNX Runtime and TensorRT. Looked for as files,
//! the way `bench` looks for them; nothing is loaded.

use std::path::PathBuf;

use plimsoll_infer::engine::{ort, tensorrt};
use serde::Serialize;

use super::files::{find, library_folders};
use super::hardware::GpuHardware;
use super::root::Root;

/// An engine, as `bench --engine` names it.
#[derive(Debug, Serialize)]
pub(super) struct DoctorEngine {
    pub(super) name: &'static str,
    /// What it is good for here.
    pub(super) serves: &'static str,
    pub(super) found: bool,
    pub(super) path: Option<PathBuf>,
    pub(super) remedy: Option<String>,
    /// Whether the remedy is worth following on this machine.
    #[serde(skip)]
    pub(super) matters: bool,
    /// The places that were searched, where it was not found.
    pub(super) looked: Vec<String>,
}

const TENSORRT_NAMES: [&str; 4] =
    ["libnvinfer.so.10", "libnvinfer.so.8", "libnvinfer.so", "libnvinfer.so.11"];
const ORT_NAMES: [&str; 2] = ["libonnxruntime.so", "libonnxruntime.so.1"];

pub(super) fn engines(root: &Root, hardware: GpuHardware) -> Vec<DoctorEngine> {
    let built_in = DoctorEngine {
        name: "rten",
        serves: "models on the processor; built in",
        found: true,
        path: None,
        remedy: None,
        matters: false,
        looked: Vec::new(),
    };
    vec![built_in, onnx_runtime(root, hardware), tensorrt_engine(root, hardware)]
}

fn onnx_runtime(root: &Root, hardware: GpuHardware) -> DoctorEngine {
    let folders = library_folders(root);
    let found = match root.is_live() {
        true => ort::find_library(),
        false => ORT_NAMES
            .iter()
            .find_map(|name| find(root, &folders, name))
            .ok_or_else(|| folders.clone()),
    };
    let package = if hardware.nvidia { "onnxruntime-gpu" } else { "onnxruntime" };
    let remedy = match &found {
        Err(_) => Some(format!("pip install {package}")),
        // The provider lies beside the runtime.
        Ok(file) if hardware.nvidia && root.is_live() => {
            let provider = file.with_file_name("libonnxruntime_providers_cuda.so");
            (!provider.exists())
                .then(|| "it has no CUDA provider: pip install onnxruntime-gpu".to_string())
        }
        Ok(_) => None,
    };
    DoctorEngine {
        name: "ort",
        serves: "ONNX Runtime, for .onnx and .pt on processors and NVIDIA GPUs",
        found: found.is_ok(),
        matters: hardware.nvidia,
        remedy,
        path: found.as_ref().ok().cloned(),
        looked: found.err().unwrap_or_default(),
    }
}

/// TensorRT's own library, and ours that reaches it.
fn tensorrt_engine(root: &Root, hardware: GpuHardware) -> DoctorEngine {
    let folders = library_folders(root);
    let runtime = TENSORRT_NAMES.iter().find_map(|name| find(root, &folders, name));
    let ours = if root.is_live() { tensorrt::find::built() } else { None };
    let remedy = match (&runtime, &ours) {
        (Some(_), Some(_)) => None,
        (Some(_), None) if !root.is_live() => None,
        (Some(_), None) => Some("plimsoll generate --tensorrt".to_string()),
        (None, _) if !hardware.nvidia => Some("not needed: no NVIDIA GPU here".to_string()),
        (None, _) => {
            Some("install TensorRT (libnvinfer), then plimsoll generate --tensorrt".to_string())
        }
    };
    DoctorEngine {
        name: "tensorrt",
        serves: "TensorRT, for .engine files on NVIDIA GPUs",
        found: runtime.is_some(),
        matters: hardware.nvidia && runtime.is_some(),
        looked: if runtime.is_none() { folders } else { Vec::new() },
        remedy,
        path: runtime,
    }
}
