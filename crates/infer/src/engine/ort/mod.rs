//! ort: ONNX Runtime, loaded at run time.
//!
//! A model runs in one of three modes, chosen when it is opened:
//! - *in place*, where all shapes are fixed: the runtime reads the caller's input and
//!   writes into our outputs; on the CPU nothing is copied or allocated, on a GPU the
//!   runtime copies to and from the device;
//! - *bound*, on a GPU with a CUDA graph: buffers stay on the device (`bound`), and where
//!   kernels can be compiled frames are prepared and outputs searched there
//!   (`cuda::DevicePipeline`);
//! - *copied*, where a shape is only known after the run: the runtime allocates, we copy.
//!
//! A provider that fails hands its work to the CPU without a message. So the first run is
//! profiled when the model is opened: [`EngineInfo::nodes_by_provider`] has how many nodes each
//! provider ran, and the fallbacks list what differs from the request.

mod bound;
mod find;
pub mod measure;
mod nodes;
mod providers;
mod runtime;
mod sys;

use std::sync::Arc;

use ort::memory::Allocator;
use ort::session::Session;
use ort::value::{TensorElementType, TensorRef, ValueType};
use plimsoll::{Budget, Bytes};

use self::bound::Bound;
use self::providers::ProviderPlan;
use self::runtime::{Runtime, unavailable};
use self::sys::session_memory::SessionMemory;
use super::check::{check_input, no_input, settle};
use super::cuda::sys::gpu::EngineGpu;
use super::messages::cause;
use super::shield::shielded;
use super::{EngineDevice, EngineInfo, EngineMemory, EngineOptions, InferenceEngine, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;
use plimsoll_models::Model;

const NAME: &str = "ort";
/// The provider that runs what no other provider does.
const CPU_PROVIDER: &str = "CPUExecutionProvider";

/// The file of ONNX Runtime's library that would be tried first, without loading it.
///
/// # Errors
/// The places that were searched, where there is none.
pub fn find_library() -> Result<std::path::PathBuf, Vec<String>> {
    let found = find::LibraryPlaces::of_this_process(None).search();
    found.files.into_iter().find(|file| file.exists()).ok_or(found.looked)
}

/// A model in ONNX Runtime.
#[derive(Debug)]
pub struct Ort {
    // Before the session: its tensors are freed first.
    mode: RunMode,
    arena: Option<Allocator>,
    session: Session,
    info: EngineInfo,
    model: ModelInfo,
    results: Vec<Tensor>,
    /// Our own buffers on the device.
    budget: Arc<Budget>,
    // After the session, which computes on its stream.
    _memory: SessionMemory,
}

#[derive(Debug)]
enum RunMode {
    InPlace(sys::SessionNames),
    Bound(Box<Bound>),
    Copied,
}

impl Ort {
    /// Loads the library where it is not loaded yet, and a model into it. The model is
    /// run once, on zeros, to see where it runs.
    ///
    /// # Errors
    /// [`InferError::Unavailable`] when there is no library, [`InferError::Model`] when it refuses
    /// the model, [`InferError::Engine`] with `strict` when it does less than was asked for.
    pub fn open(model: &Model, options: &EngineOptions, why: &str) -> InferResult<Ort> {
        shielded(NAME, || {
            let runtime = Runtime::get(options.library.as_deref())?;
            let fixed = fixed_outputs(&model.info).is_some();
            let plans = ProviderPlan::all(options, fixed, providers::has_cuda());
            if plans.len() > 1 {
                // The CUDA provider finds its libraries only if they are loaded already.
                for file in find::cuda_companions(&runtime.library) {
                    if let Err(error) = ort::util::preload_dylib(&file) {
                        tracing::debug!(%error, file = %file.display(), "not preloaded");
                    }
                }
            }
            let mut failures = Vec::new();
            for plan in plans {
                match Ort::try_plan(plan, &runtime, model, options) {
                    Ok(engine) => return engine.explain(plan, options, why, failures),
                    Err(error) => failures.push(format!("{plan}: {error}")),
                }
            }
            Err(no_plan(model, options.device, &failures))
        })
    }

    fn try_plan(
        plan: ProviderPlan,
        runtime: &Runtime,
        model: &Model,
        options: &EngineOptions,
    ) -> ort::Result<Ort> {
        let folder = tempfile::tempdir().map_err(ort::Error::wrap)?;
        let profile = folder.path().join("profile");
        // The runtime keeps its own arena below the limit; this is for our buffers beside it.
        let budget = Arc::new(Budget::new(options.memory_limit.unwrap_or(Bytes::MAX)));
        let memory = match plan {
            ProviderPlan::Cuda { device, graph: true, .. } => {
                let gpu = EngineGpu::open(device, &budget).map_err(ort::Error::wrap)?;
                SessionMemory::Cuda(gpu)
            }
            _ => SessionMemory::Host,
        };
        let session = plan.build(runtime, &model.bytes, options, &profile, &memory)?;
        let mut results =
            fixed_outputs(&model.info).filter(|_| all_f32(&session)).unwrap_or_default();
        let mode = match plan {
            _ if results.is_empty() => RunMode::Copied,
            // Without a graph the runtime's own copies, from and to our buffers, are enough.
            ProviderPlan::Cpu | ProviderPlan::Cuda { graph: false, .. } => {
                sys::SessionNames::new(&session).map_or(RunMode::Copied, RunMode::InPlace)
            }
            ProviderPlan::Cuda { graph: true, .. } => {
                let place = (memory.clone(), plan.memory()?);
                let outputs = std::mem::take(&mut results);
                let shape = &model.info.input_shape;
                RunMode::Bound(Box::new(Bound::new(&session, place, shape, outputs)?))
            }
        };
        let arena = Allocator::new(&session, plan.memory()?).ok();
        let info = EngineInfo {
            name: NAME,
            version: Some(runtime.version.clone()),
            library: Some(runtime.library.clone()),
            device: plan.device().to_string(),
            threads: options.threads,
            limit_applied: matches!(plan, ProviderPlan::Cuda { .. })
                && options.memory_limit.is_some(),
            ..EngineInfo::default()
        };
        let model_info = model.info.clone();
        let mut engine =
            Ort { mode, arena, session, info, model: model_info, results, budget, _memory: memory };
        engine.run_raw(&Tensor::zeros(&probe_shape(&model.info, options)))?;
        engine.use_device_pipeline();
        let file = engine.session.end_profiling()?;
        if let Some(nodes) = nodes::count_in(file.as_ref()) {
            engine.info.nodes_by_provider = nodes;
        }
        Ok(engine)
    }

    /// Prepares frames and searches outputs on the device from now on, where that is possible.
    fn use_device_pipeline(&mut self) {
        if let RunMode::Bound(bound) = &mut self.mode
            && let Err(error) = bound.use_device_pipeline()
        {
            self.info.fallbacks.push(format!("frames are prepared on the CPU: {error}"));
        }
    }

    /// Puts what was chosen, and what differs from the request, into words.
    fn explain(
        mut self,
        plan: ProviderPlan,
        options: &EngineOptions,
        why: &str,
        failures: Vec<String>,
    ) -> InferResult<Ort> {
        let info = &mut self.info;
        let failed = (!failures.is_empty()).then(|| cause(&failures.join("\n")));
        info.chosen = format!("{why}; runs with {plan}");
        if let Some(cause) = &failed {
            info.chosen += &format!(" (did not work before: {cause})");
        }
        if let (Some(cause), ProviderPlan::Cpu) = (&failed, plan) {
            info.fallbacks.push(format!("the GPU cannot run it, so the CPU does: {cause}"));
        }
        info.messages = failures;
        if let (true, ProviderPlan::Cpu | ProviderPlan::Cuda { tensorrt: false, .. }) =
            (options.tensorrt, plan)
        {
            info.fallbacks.push(format!("TensorRT was asked for; runs with {plan}"));
        }
        let nodes = &info.nodes_by_provider;
        let (all, on_cpu) = (nodes.values().sum::<u64>(), nodes.get(CPU_PROVIDER));
        if let (ProviderPlan::Cuda { .. }, Some(on_cpu)) = (plan, on_cpu) {
            info.fallbacks.push(format!("{on_cpu} of {all} nodes ran on the CPU"));
        }
        if all == 0 && plan != ProviderPlan::Cpu {
            info.fallbacks.push("which provider ran which node is not known".into());
        }
        self.info = match settle(self.info, options) {
            Ok(info) => info,
            // A device that was named and does not exist is unavailable, not broken.
            Err(_) if plan == ProviderPlan::Cpu && failed.is_some() => {
                return Err(unavailable(format!("strict: {}", failed.unwrap_or_default())));
            }
            Err(error) => return Err(error),
        };
        Ok(self)
    }

    fn run_raw(&mut self, input: &Tensor) -> ort::Result<&[Tensor]> {
        match &mut self.mode {
            RunMode::InPlace(names) => {
                sys::run_in_place(&mut self.session, names, input, &mut self.results)?;
            }
            RunMode::Bound(bound) => {
                bound.input().copy_from_slice(&input.data);
                return bound.run(&mut self.session);
            }
            RunMode::Copied => run_copied(&mut self.session, input, &mut self.results)?,
        }
        Ok(&self.results)
    }
}

impl InferenceEngine for Ort {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]> {
        check_input(NAME, &self.model, input)?;
        shielded(NAME, || self.run_raw(input).map_err(failed))
    }

    fn input(&mut self) -> Option<&mut [f32]> {
        match &mut self.mode {
            RunMode::Bound(bound) => Some(bound.input()),
            RunMode::InPlace(_) | RunMode::Copied => None,
        }
    }

    fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> InferResult<bool> {
        let RunMode::Bound(bound) = &mut self.mode else { return Ok(false) };
        shielded(NAME, || bound.load(frame, prepare).map_err(failed))
    }

    fn stager(&self) -> Option<Stager> {
        match &self.mode {
            RunMode::Bound(bound) => bound.stager(),
            RunMode::InPlace(_) | RunMode::Copied => None,
        }
    }

    fn search(&mut self, output: usize, classes: usize) -> InferResult<bool> {
        let RunMode::Bound(bound) = &mut self.mode else { return Ok(false) };
        shielded(NAME, || bound.search(output, classes).map_err(failed))
    }

    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        let RunMode::Bound(bound) = &mut self.mode else { return Err(no_input(NAME)) };
        shielded(NAME, || bound.run(&mut self.session).map_err(failed))
    }

    fn memory(&self) -> Option<EngineMemory> {
        let mut memory = self.arena.as_ref().and_then(sys::arena)?;
        let ours = EngineMemory::of(&self.budget);
        let sum = |arena: Option<u64>, ours: Option<u64>| arena.map(|sum| sum + ours.unwrap_or(0));
        memory.in_use = sum(memory.in_use, ours.in_use);
        memory.peak = sum(memory.peak, ours.peak);
        memory.reserved = sum(memory.reserved, ours.reserved);
        Some(memory)
    }
}

/// The error where no plan works: a device that was named is unavailable; otherwise it is the
/// model that cannot be run.
fn no_plan(model: &Model, device: EngineDevice, failures: &[String]) -> InferError {
    let why = failures.join("\n");
    match device {
        EngineDevice::Cuda(_) => {
            InferError::Unavailable { what: format!("{device} in ONNX Runtime"), why }
        }
        _ => InferError::Model {
            model: model.info.name.clone(),
            why: format!("ONNX Runtime cannot run it: {why}"),
        },
    }
}

fn failed(error: impl std::error::Error) -> InferError {
    InferError::Engine { engine: NAME.into(), why: error.to_string() }
}

/// Buffers for the outputs, where all shapes of the model are fixed.
fn fixed_outputs(model: &ModelInfo) -> Option<Vec<Tensor>> {
    let fixed = |shape: &[usize]| {
        let elements = shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
        !shape.is_empty() && elements.is_some_and(|n| n > 0 && n <= isize::MAX as usize / 4)
    };
    let all = fixed(&model.input_shape) && model.outputs.iter().all(|(_, shape)| fixed(shape));
    all.then(|| model.outputs.iter().map(|(_, shape)| Tensor::zeros(shape)).collect())
}

fn all_f32(session: &Session) -> bool {
    session.outputs().iter().all(|output| {
        matches!(output.dtype(), ValueType::Tensor { ty: TensorElementType::Float32, .. })
    })
}

/// The shape of the first run: what is not fixed is one image of the size to come.
fn probe_shape(model: &ModelInfo, options: &EngineOptions) -> Vec<usize> {
    let (rows, columns) = options.open_size();
    let any = [1, 3, rows, columns];
    if model.input_shape.is_empty() {
        return any.to_vec();
    }
    let images = model.input_shape.len() == any.len();
    let fill = |index: usize| if images { any[index] } else { 1 };
    let extents = model.input_shape.iter().enumerate();
    extents.map(|(index, &n)| if n == 0 { fill(index) } else { n }).collect()
}

fn run_copied(session: &mut Session, input: &Tensor, results: &mut Vec<Tensor>) -> ort::Result<()> {
    let input = TensorRef::from_array_view((&input.shape[..], &input.data[..]))?;
    let outputs = session.run(ort::inputs![input])?;
    results.resize(outputs.len(), Tensor::default());
    for (index, result) in results.iter_mut().enumerate() {
        let output = &outputs[index];
        if let Ok((shape, data)) = output.try_extract_tensor::<f32>() {
            fill(result, shape, data.iter().copied());
        } else if let Ok((shape, data)) = output.try_extract_tensor::<i64>() {
            fill(result, shape, data.iter().map(|&n| n as f32));
        } else {
            let (shape, data) = output.try_extract_tensor::<i32>()?;
            fill(result, shape, data.iter().map(|&n| n as f32));
        }
    }
    Ok(())
}

fn fill(result: &mut Tensor, shape: &[i64], data: impl Iterator<Item = f32>) {
    result.shape.clear();
    result.shape.extend(shape.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)));
    result.data.clear();
    result.data.extend(data);
}

#[cfg(test)]
mod tests;
