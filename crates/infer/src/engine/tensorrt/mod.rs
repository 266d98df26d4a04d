//! tensorrt: engines of TensorRT, run directly.
//!
//! TensorRT has a C++ interface only, so a small shim of ours wraps it (`shim.cpp`): compiled
//! in by the feature `tensorrt`, or built on the target and loaded ([`find`]). All unsafe calls
//! are calls of its flat interface (`sys`). The tests have a fake shim in C.
//!
//! Inputs and outputs stay bound to buffers on the device. TensorRT computes on a stream of
//! ours, and replays a CUDA graph where the engine can be captured. Around that go copies from
//! and to page-locked memory of ours or, where NVRTC is installed, our own kernels: frames are
//! prepared and outputs searched on the device (`cuda::DevicePipeline`).
//!
//! The shim is compiled without this crate, so it calls the CUDA driver by itself: it
//! allocates, copies and captures for TensorRT. Before it allocates it reserves the bytes from
//! the engine's [`Budget`]; our own buffers come from a pool whose limit shares that budget. So
//! a slot's memory is counted to the byte and kept below its limit.
//!
//! An engine is bound to the version of TensorRT and the GPU that it was built on. One
//! that does not fit is refused by TensorRT, and its own reason is shown.

pub mod build;
pub mod find;
mod plan;
mod sys;

use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use plimsoll::{Budget, Bytes};

use self::plan::EnginePlan;
use self::sys::{EngineTensor, Session, ShimBudget, TensorBuffer};
use super::check::{check_input, settle};
use super::cuda::DevicePipeline;
use super::cuda::sys::buffer::{DeviceFloats, EngineBuffer};
use super::cuda::sys::gpu::EngineGpu;
use super::cuda::sys::pinned::PinnedTensors;
use super::{EngineDevice, EngineInfo, EngineMemory, EngineOptions, InferenceEngine, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;
use plimsoll_models::onnx;

const NAME: &str = "tensorrt";

/// TensorRT's numbers for types of elements.
const F32: i32 = 0;
const F16: i32 = 1;
const I32: i32 = 3;
const BF16: i32 = 7;
const I64: i32 = 8;

/// An engine of TensorRT.
#[derive(Debug)]
pub struct Tensorrt {
    // First: they wait for queued work.
    on_device: Option<DevicePipeline>,
    search: Option<TensorrtSearch>,
    session: Session,
    gpu: Option<Arc<EngineGpu>>,
    budget: Arc<Budget>,
    tensors: Vec<EngineTensor>,
    /// For those that are not f32: their bytes.
    raw: Vec<Vec<u8>>,
    input: PinnedTensors,
    /// Whether a frame was prepared in the input on the device.
    loaded: bool,
    results: PinnedTensors,
    info: EngineInfo,
    model: ModelInfo,
}

/// An output that is searched on the device.
#[derive(Debug)]
struct TensorrtSearch {
    raw: DeviceFloats,
    classes: usize,
    /// Copied out in its place.
    found: EngineBuffer,
}

impl Tensorrt {
    /// Opens an engine's file.
    ///
    /// # Errors
    /// [`InferError::Unavailable`] where TensorRT or our library for it is not there,
    /// [`InferError::Model`] with TensorRT's own reason where it refuses the file or the limit
    /// has no room for it.
    pub fn open(
        name: &str,
        file: &[u8],
        options: &EngineOptions,
        why: &str,
    ) -> InferResult<Tensorrt> {
        let device = device(options)?;
        let shim = find::shim(options.library.as_deref().filter(|path| is_shim(path)))?;
        let refuse = |why: String| InferError::Model { model: name.to_string(), why };
        let EnginePlan { plan, metadata } = EnginePlan::split(file);
        let budget = Arc::new(Budget::new(options.memory_limit.unwrap_or(Bytes::MAX)));
        let shim_budget = ShimBudget::new(&budget);
        let full = |why: String| match shim_budget.refused() {
            Some(bytes) => format!("{why} (the limit refused {bytes})"),
            None => why,
        };
        let gpu = EngineGpu::open(device, &budget);
        let place = (device, gpu.as_ref().ok());
        let session = shim.open(plan, place, options.cuda_graph, &shim_budget);
        let mut session = session.map_err(|why| {
            refuse(format!("{}; TensorRT here is {}", full(why), shim.version_text()))
        })?;
        settle_shapes(&mut session, options.open_size()).map_err(&refuse)?;
        session.prepare().map_err(|why| refuse(full(why)))?;
        let tensors = session.tensors().map_err(&refuse)?;
        let model = describe(name, file.len() as u64, &tensors, metadata).map_err(&refuse)?;
        let mut info = EngineInfo {
            name: NAME,
            version: Some(shim.version_text()),
            device: EngineDevice::Cuda(device).to_string(),
            chosen: format!("{why}; scratch memory {}", Bytes(session.scratch())),
            limit_applied: options.memory_limit.is_some(),
            ..EngineInfo::default()
        };
        if options.cuda_graph && !session.has_graph() {
            info.fallbacks
                .push("a CUDA graph was asked for; this engine cannot be recorded".into());
        }
        let on_device = gpu.as_ref().map_err(Clone::clone).and_then(DevicePipeline::new);
        if let Err(why) = &on_device {
            info.chosen += &format!("; frames are prepared on the CPU: {why}");
        }
        let gpu = gpu.ok();
        let raw = tensors.iter().map(|tensor| vec![0; raw_bytes(tensor)]).collect();
        Ok(Tensorrt {
            on_device: on_device.ok(),
            search: None,
            session,
            budget,
            raw,
            input: pin(gpu.as_ref(), || zeros(&tensors, true)),
            loaded: false,
            results: pin(gpu.as_ref(), || zeros(&tensors, false)),
            gpu,
            tensors,
            info: settle(info, options)?,
            model,
        })
    }

    /// Copies the input in unless it is on the device, runs, searches the output where that was
    /// asked for, copies the results out.
    fn run_bound(&mut self) -> Result<(), String> {
        let Tensorrt { on_device, search, session, tensors, raw, input, results, .. } = self;
        let loaded = std::mem::take(&mut self.loaded);
        let input = &input.tensors()[0].data;
        for (tensor, raw) in tensors.iter().zip(&mut *raw) {
            if tensor.is_input && tensor.element != F32 {
                narrow(tensor.element, input, raw)?;
            }
        }
        let (outs, searched) = match (on_device, search) {
            (Some(on_device), Some(search)) => (None, Some((on_device, search, results))),
            _ => (Some(results), None),
        };
        let mut outs = outs.into_iter().flat_map(PinnedTensors::all_mut);
        let mut buffers = Vec::with_capacity(tensors.len());
        for (tensor, raw) in tensors.iter().zip(&mut *raw) {
            let out = if tensor.is_input { None } else { outs.next() };
            buffers.push(match (tensor.is_input, tensor.element, out) {
                (true, F32, _) if !loaded => TensorBuffer::In(input),
                (true, F32, _) | (false, _, None) => TensorBuffer::OnDevice,
                (false, F32, Some(out)) => TensorBuffer::Out(out),
                _ => TensorBuffer::Raw(raw),
            });
        }
        session.run(&mut buffers, || {
            let Some((on_device, search, results)) = searched else { return Ok(()) };
            let queued = on_device.best(&search.raw, search.classes, &search.found);
            let fetched = queued.and_then(|()| search.found.fetch(results.data_mut(0)));
            fetched.map_err(|error| error.to_string())
        })?;
        drop((buffers, outs));
        if self.search.is_some() {
            return Ok(());
        }
        let outputs = tensors.iter().zip(raw).filter(|(tensor, _)| !tensor.is_input);
        for ((tensor, raw), result) in outputs.zip(self.results.all_mut()) {
            if tensor.element != F32 {
                widen(tensor.element, raw, result);
            }
        }
        Ok(())
    }
}

impl InferenceEngine for Tensorrt {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]> {
        check_input(NAME, &self.model, input)?;
        self.loaded = false;
        self.input.data_mut(0).copy_from_slice(&input.data);
        self.run_input()
    }

    fn input(&mut self) -> Option<&mut [f32]> {
        Some(self.input.data_mut(0))
    }

    fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> InferResult<bool> {
        let Some(index) = self.tensors.iter().position(|tensor| tensor.is_input) else {
            return Ok(false);
        };
        let wide = self.tensors[index].element == F32;
        let size = self.model.input_size;
        let (Some(on_device), Some(size), true) = (&mut self.on_device, size, wide) else {
            return Ok(false);
        };
        let Some(input) = self.session.floats(index) else { return Ok(false) };
        self.loaded = on_device.load(frame, prepare, (&input, size)).map_err(failed)?;
        Ok(self.loaded)
    }

    fn stager(&self) -> Option<Stager> {
        self.on_device.as_ref()?.stager()
    }

    fn search(&mut self, output: usize, classes: usize) -> InferResult<bool> {
        let mut outputs = self.tensors.iter().enumerate().filter(|(_, tensor)| !tensor.is_input);
        let output = outputs.nth(output).filter(|(_, tensor)| tensor.element == F32);
        let raw = output.and_then(|(index, _)| self.session.floats(index));
        let (Some(on_device), Some(raw)) = (&self.on_device, raw) else { return Ok(false) };
        let places = raw.numbers() / (4 + classes);
        let found = on_device.found(places).map_err(failed)?;
        self.results = pin(self.gpu.as_ref(), || vec![Tensor::zeros(&[1, 6, places])]);
        self.search = Some(TensorrtSearch { raw, classes, found });
        Ok(true)
    }

    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        self.run_bound().map_err(failed)?;
        Ok(self.results.tensors())
    }

    fn memory(&self) -> Option<EngineMemory> {
        Some(EngineMemory::of(&self.budget))
    }
}

fn device(options: &EngineOptions) -> InferResult<u32> {
    match options.device {
        EngineDevice::Auto => Ok(0),
        EngineDevice::Cuda(number) => Ok(number),
        EngineDevice::Cpu => Err(InferError::Unavailable {
            what: "TensorRT on the CPU".into(),
            why: "it runs on a CUDA device only; leave --device out, or give a .onnx file".into(),
        }),
    }
}

/// `--library` names the library of whichever engine runs; the file's name shows whether it is
/// this one's.
fn is_shim(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("tensorrt"))
}

/// One image of the size to come where the engine takes any.
fn settle_shapes(session: &mut Session, (rows, columns): (usize, usize)) -> Result<(), String> {
    let tensors = session.tensors()?;
    for (index, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.is_input) {
        if tensor.elements().is_some() {
            continue;
        }
        let any = [1, 3, rows as i64, columns as i64];
        let images = tensor.shape.len() == any.len();
        let fill = |axis: usize| if images { any[axis] } else { 1 };
        let extents = tensor.shape.iter().enumerate();
        let shape: Vec<i64> =
            extents.map(|(axis, &extent)| if extent > 0 { extent } else { fill(axis) }).collect();
        session.set_shape(index, &shape)?;
    }
    Ok(())
}

fn shape(tensor: &EngineTensor) -> Vec<usize> {
    tensor.shape.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect()
}

/// Tensors of zeros for all inputs, or for all outputs.
fn zeros(tensors: &[EngineTensor], inputs: bool) -> Vec<Tensor> {
    let wanted = tensors.iter().filter(|tensor| tensor.is_input == inputs);
    wanted.map(|tensor| Tensor::zeros(&shape(tensor))).collect()
}

/// Page-locks tensors; where the driver refuses that, copies are only slower.
fn pin(gpu: Option<&Arc<EngineGpu>>, tensors: impl Fn() -> Vec<Tensor>) -> PinnedTensors {
    let pinned = gpu.map(|gpu| PinnedTensors::new(gpu, tensors()));
    if let Some(Err(why)) = &pinned {
        tracing::debug!(%why, "copies go through pinned memory of the driver's own");
    }
    pinned.and_then(Result::ok).unwrap_or_else(|| PinnedTensors::unpinned(tensors()))
}

fn failed(why: impl std::fmt::Display) -> InferError {
    InferError::Engine { engine: NAME.into(), why: why.to_string() }
}

fn raw_bytes(tensor: &EngineTensor) -> usize {
    let elements = tensor.elements().unwrap_or(0);
    match tensor.element {
        F32 => 0,
        F16 | BF16 => 2 * elements,
        I32 => 4 * elements,
        I64 => 8 * elements,
        _ => elements,
    }
}

fn describe(
    name: &str,
    bytes: u64,
    tensors: &[EngineTensor],
    metadata: std::collections::BTreeMap<String, String>,
) -> Result<ModelInfo, String> {
    let mut inputs = tensors.iter().filter(|tensor| tensor.is_input);
    let (Some(input), None) = (inputs.next(), inputs.next()) else {
        return Err("a detector has one input, the image; this engine has another number".into());
    };
    if !matches!(input.element, F32 | F16 | BF16) {
        return Err(format!(
            "its input has TensorRT's type {}; images are fed here",
            input.element
        ));
    }
    let input_shape = shape(input);
    let input_size = match input_shape[..] {
        [_, _, rows, columns] => Some((rows, columns)),
        _ => None,
    };
    let outputs = tensors.iter().filter(|tensor| !tensor.is_input);
    Ok(ModelInfo {
        name: name.to_string(),
        input: input.name.clone(),
        input_shape,
        input_size,
        inputs: 1,
        // What is fed is f32, whatever it becomes on its way.
        input_element: onnx::F32,
        outputs: outputs.map(|tensor| (tensor.name.clone(), shape(tensor))).collect(),
        metadata,
        bytes,
    })
}

fn narrow(element: i32, from: &[f32], to: &mut [u8]) -> Result<(), String> {
    let pairs = from.iter().zip(to.chunks_exact_mut(2));
    match element {
        F16 => pairs.for_each(|(&x, raw)| raw.copy_from_slice(&f16::from_f32(x).to_le_bytes())),
        BF16 => pairs.for_each(|(&x, raw)| raw.copy_from_slice(&bf16::from_f32(x).to_le_bytes())),
        other => return Err(format!("inputs of TensorRT's type {other} are not fed here")),
    }
    Ok(())
}

fn widen(element: i32, from: &[u8], to: &mut [f32]) {
    fn all<const N: usize>(from: &[u8], to: &mut [f32], one: impl Fn([u8; N]) -> f32) {
        let (numbers, _) = from.as_chunks::<N>();
        to.iter_mut().zip(numbers).for_each(|(to, &raw)| *to = one(raw));
    }
    match element {
        F16 => all(from, to, |raw| f16::from_le_bytes(raw).to_f32()),
        BF16 => all(from, to, |raw| bf16::from_le_bytes(raw).to_f32()),
        I32 => all(from, to, |raw| i32::from_le_bytes(raw) as f32),
        I64 => all(from, to, |raw| i64::from_le_bytes(raw) as f32),
        _ => all(from, to, |[raw]: [u8; 1]| f32::from(raw)),
    }
}

#[cfg(test)]
mod tests;
