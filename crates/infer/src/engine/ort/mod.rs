//! ort: ONNX Runtime, loaded at run time.
//!
//! Three ways to run, chosen when a model is opened:
//! - *in place*, where all shapes are fixed: the runtime reads the caller's input and
//!   writes into our outputs; on the CPU nothing is copied or allocated, on a GPU the
//!   runtime copies to and from the device;
//! - *bound*, on a GPU with a CUDA graph: buffers stay on the device (`bound`), and where
//!   kernels can be compiled frames are prepared and outputs searched there (`cuda::Aboard`);
//! - *copied*, where a shape is only known after the run: the runtime allocates, we copy.
//!
//! A provider that fails hands its work to the CPU without a word. So the first run is
//! profiled when the model is opened: which provider really ran how many nodes is in
//! [`EngineInfo::nodes_by_provider`], and what was not kept is in the fallbacks.

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

use self::bound::Bound;
use self::providers::Plan;
use self::runtime::{Runtime, unavailable};
use self::sys::lane::Lane;
use super::cuda::Ledger;
use super::cuda::sys::driver::Stream;
use super::said::cause;
use super::{
    Engine, EngineDevice, EngineInfo, EngineMemory, EngineOptions, ModelInfo, check_input,
    no_input, settle, shielded,
};
use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;
use plimsoll_models::Model;

const NAME: &str = "ort";
/// The provider that everything ends up with that no other one takes.
const CPU_PROVIDER: &str = "CPUExecutionProvider";

/// A model in ONNX Runtime.
#[derive(Debug)]
pub struct Ort {
    // Before the session: what belongs to it goes first.
    way: Way,
    arena: Option<Allocator>,
    session: Session,
    info: EngineInfo,
    model: ModelInfo,
    results: Vec<Tensor>,
    // After the session, which works on its stream.
    _lane: Lane,
}

#[derive(Debug)]
enum Way {
    InPlace(sys::Names),
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
            let plans = Plan::all(options, fixed, providers::has_cuda());
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
        plan: Plan,
        runtime: &Runtime,
        model: &Model,
        options: &EngineOptions,
    ) -> ort::Result<Ort> {
        let folder = tempfile::tempdir().map_err(ort::Error::wrap)?;
        let profile = folder.path().join("profile");
        let lane = match plan {
            Plan::Cuda { device, graph: true, .. } => {
                Lane::Cuda(Stream::new(device, &Arc::new(Ledger::default()))?)
            }
            _ => Lane::Host,
        };
        let session = plan.build(runtime, &model.bytes, options, &profile, &lane)?;
        let mut results =
            fixed_outputs(&model.info).filter(|_| all_f32(&session)).unwrap_or_default();
        let way = match plan {
            _ if results.is_empty() => Way::Copied,
            // Without a graph the runtime's own copies will do: from and to our buffers.
            Plan::Cpu | Plan::Cuda { graph: false, .. } => {
                sys::Names::new(&session).map_or(Way::Copied, Way::InPlace)
            }
            Plan::Cuda { graph: true, .. } => {
                let place = (lane.clone(), plan.memory()?);
                let outputs = std::mem::take(&mut results);
                let shape = &model.info.input_shape;
                Way::Bound(Box::new(Bound::new(&session, place, shape, outputs)?))
            }
        };
        let arena = Allocator::new(&session, plan.memory()?).ok();
        let info = EngineInfo {
            name: NAME,
            version: Some(runtime.version.clone()),
            library: Some(runtime.library.clone()),
            device: plan.device().to_string(),
            threads: options.threads,
            limit_applied: matches!(plan, Plan::Cuda { .. }) && options.memory_limit.is_some(),
            ..EngineInfo::default()
        };
        let model_info = model.info.clone();
        let mut engine = Ort { way, arena, session, info, model: model_info, results, _lane: lane };
        engine.run_raw(&Tensor::zeros(&probe_shape(&model.info, options)))?;
        engine.go_aboard();
        let file = engine.session.end_profiling()?;
        if let Some(nodes) = nodes::count_in(file.as_ref()) {
            engine.info.nodes_by_provider = nodes;
        }
        Ok(engine)
    }

    /// Prepares and searches on the device from now on, where that can be done.
    fn go_aboard(&mut self) {
        if let Way::Bound(bound) = &mut self.way
            && let Err(error) = bound.go_aboard()
        {
            self.info.fallbacks.push(format!("frames are prepared on the CPU: {error}"));
        }
    }

    /// Says what was chosen and what was not kept.
    fn explain(
        mut self,
        plan: Plan,
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
        if let (Some(cause), Plan::Cpu) = (&failed, plan) {
            info.fallbacks.push(format!("the GPU cannot run it, so the CPU does: {cause}"));
        }
        info.said = failures;
        if let (true, Plan::Cpu | Plan::Cuda { tensorrt: false, .. }) = (options.tensorrt, plan) {
            info.fallbacks.push(format!("TensorRT was asked for; runs with {plan}"));
        }
        let nodes = &info.nodes_by_provider;
        let (all, on_cpu) = (nodes.values().sum::<u64>(), nodes.get(CPU_PROVIDER));
        if let (Plan::Cuda { .. }, Some(on_cpu)) = (plan, on_cpu) {
            info.fallbacks.push(format!("{on_cpu} of {all} nodes ran on the CPU"));
        }
        if all == 0 && plan != Plan::Cpu {
            info.fallbacks.push("which provider ran which node could not be told".into());
        }
        self.info = match settle(self.info, options) {
            Ok(info) => info,
            // What was asked for by name and is not there is unavailable, not broken.
            Err(_) if plan == Plan::Cpu && failed.is_some() => {
                return Err(unavailable(format!("strict: {}", failed.unwrap_or_default())));
            }
            Err(error) => return Err(error),
        };
        Ok(self)
    }

    fn run_raw(&mut self, input: &Tensor) -> ort::Result<&[Tensor]> {
        match &mut self.way {
            Way::InPlace(names) => {
                sys::run_in_place(&mut self.session, names, input, &mut self.results)?;
            }
            Way::Bound(bound) => {
                bound.input().copy_from_slice(&input.data);
                return bound.run(&mut self.session);
            }
            Way::Copied => run_copied(&mut self.session, input, &mut self.results)?,
        }
        Ok(&self.results)
    }
}

impl Engine for Ort {
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
        match &mut self.way {
            Way::Bound(bound) => Some(bound.input()),
            Way::InPlace(_) | Way::Copied => None,
        }
    }

    fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> InferResult<bool> {
        let Way::Bound(bound) = &mut self.way else { return Ok(false) };
        shielded(NAME, || bound.load(frame, prepare).map_err(failed))
    }

    fn stager(&self) -> Option<Stager> {
        match &self.way {
            Way::Bound(bound) => bound.stager(),
            Way::InPlace(_) | Way::Copied => None,
        }
    }

    fn search(&mut self, output: usize, classes: usize) -> InferResult<bool> {
        let Way::Bound(bound) = &mut self.way else { return Ok(false) };
        shielded(NAME, || bound.search(output, classes).map_err(failed))
    }

    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        let Way::Bound(bound) = &mut self.way else { return Err(no_input(NAME)) };
        shielded(NAME, || bound.run(&mut self.session).map_err(failed))
    }

    fn memory(&self) -> Option<EngineMemory> {
        let mut memory = self.arena.as_ref().and_then(sys::arena)?;
        if let Way::Bound(bound) = &self.way {
            let ours = |held: u64| held + bound.bytes();
            memory.in_use = memory.in_use.map(ours);
            memory.peak = memory.peak.map(ours);
            memory.reserved = memory.reserved.map(ours);
        }
        Some(memory)
    }
}

/// Nothing works. A device that was named is what is missing; otherwise it is the model.
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

fn failed(error: ort::Error) -> InferError {
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
#[path = "tests.rs"]
mod tests;
