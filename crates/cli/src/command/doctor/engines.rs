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
    /// The command of the remedy, where one does it.
    #[serde(skip)]
    pub(super) command: Option<&'static str>,
    /// Whether the remedy is worth following on this machine.
    #[serde(skip)]
    pub(super) matters: bool,
    /// The places that were searched, where it was not found.
    pub(super) looked: Vec<String>,
}

const TENSORRT_NAMES: [&str; 4] =
    ["libnvinfer.so.10", "libnvinfer.so.8", "libnvinfer.so", "libnvinfer.so.11"];
const ORT_NAMES: [&str; 2] = ["libonnxruntime.so", "libonnxruntime.so.1"];

/// PyPI's wheels of ONNX Runtime for CUDA are for other machines than a Jetson.
const JETSON_ORT: &str = "NVIDIA's wheel of onnxruntime-gpu for this JetPack (Jetson Zoo, Jetson AI Lab; \
                          PyPI has none), or TensorRT, which JetPack has";
const ORT_FOR_CUDA: &str = "pip install onnxruntime-gpu";
const BUILD_SHIM: &str = "plimsoll generate --tensorrt";

pub(super) fn engines(root: &Root, hardware: GpuHardware, jetson: bool) -> Vec<DoctorEngine> {
    let built_in = DoctorEngine {
        name: "rten",
        serves: "models on the processor; built in",
        found: true,
        path: None,
        remedy: None,
        command: None,
        matters: false,
        looked: Vec::new(),
    };
    let ort = onnx_runtime(root, hardware, jetson);
    vec![built_in, ort, tensorrt_engine(root, hardware, jetson)]
}

fn onnx_runtime(root: &Root, hardware: GpuHardware, jetson: bool) -> DoctorEngine {
    let folders = library_folders(root);
    let found = match root.is_live() {
        true => ort::find_library(),
        false => ORT_NAMES
            .iter()
            .find_map(|name| find(root, &folders, name))
            .ok_or_else(|| folders.clone()),
    };
    // The provider lies beside the runtime.
    let provider =
        |file: &PathBuf| file.with_file_name("libonnxruntime_providers_cuda.so").exists();
    let lacks = match &found {
        Err(_) => Some(""),
        Ok(file) if hardware.nvidia && root.is_live() && !provider(file) => {
            Some("it has no CUDA provider: ")
        }
        Ok(_) => None,
    };
    let command = match (jetson, hardware.nvidia) {
        (true, _) => None,
        (false, true) => Some(ORT_FOR_CUDA),
        (false, false) => Some("pip install onnxruntime"),
    };
    let remedy = lacks.map(|lacks| format!("{lacks}{}", command.unwrap_or(JETSON_ORT)));
    DoctorEngine {
        name: "ort",
        serves: "ONNX Runtime, for .onnx and .pt on processors and NVIDIA GPUs",
        found: found.is_ok(),
        matters: hardware.nvidia,
        command: command.filter(|_| remedy.is_some()),
        remedy,
        path: found.as_ref().ok().cloned(),
        looked: found.err().unwrap_or_default(),
    }
}

/// TensorRT's own library, and ours that reaches it.
fn tensorrt_engine(root: &Root, hardware: GpuHardware, jetson: bool) -> DoctorEngine {
    let folders = library_folders(root);
    let runtime = TENSORRT_NAMES.iter().find_map(|name| find(root, &folders, name));
    let ours = if root.is_live() { tensorrt::find::built() } else { None };
    let remedy = match (&runtime, &ours) {
        (Some(_), Some(_)) => None,
        (Some(_), None) if !root.is_live() => None,
        (Some(_), None) => Some(BUILD_SHIM.to_string()),
        (None, _) if !hardware.nvidia => Some("not needed: no NVIDIA GPU here".to_string()),
        (None, _) => {
            let from = if jetson { "from JetPack (nvidia-jetpack)" } else { "(libnvinfer)" };
            Some(format!("install TensorRT {from}, then {BUILD_SHIM}"))
        }
    };
    DoctorEngine {
        name: "tensorrt",
        serves: "TensorRT, for .engine files on NVIDIA GPUs",
        found: runtime.is_some(),
        matters: hardware.nvidia && runtime.is_some(),
        command: (runtime.is_some() && remedy.is_some()).then_some(BUILD_SHIM),
        looked: if runtime.is_none() { folders } else { Vec::new() },
        remedy,
        path: runtime,
    }
}
