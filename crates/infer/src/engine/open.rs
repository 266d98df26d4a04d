//! From a request to an engine: which engine opens which file, and what runs where it cannot.

use plimsoll::backend::{BackendKind, count};
use plimsoll_models::{Model, ModelSource, onnx};

use super::check::{check_sides, settle};
use super::{
    Echo, EngineChoice, EngineDevice, EngineInfo, EngineKind, EngineMemory, EngineOptions,
    InferenceEngine, ModelInfo, ort, rten, tensorrt,
};
use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;

/// Opens a model with an engine, or with the fastest that works. Where a named device cannot run
/// the model, that is an error: there is no fallback from it.
///
/// # Errors
/// [`InferError::Unavailable`] when the engine or device is not there, [`InferError::Model`] when
/// the model cannot be used, [`InferError::Engine`] when the engine refuses it or, with
/// `strict`, does less than it was asked for.
pub fn open(
    choice: impl Into<EngineChoice>,
    source: &ModelSource,
    options: &EngineOptions,
) -> InferResult<Box<dyn InferenceEngine>> {
    let choice = choice.into();
    refuse_gpu_for_host_only(choice, options.device)?;
    open_choice(choice, source, options).map_err(|error| match error {
        // If the named GPU does not exist, that is the error to report.
        InferError::Unavailable { .. } => no_such_gpu(options.device).unwrap_or(error),
        other => other,
    })
}

/// Why the named GPU is not available; `None` where it is, or where none was named.
fn no_such_gpu(device: EngineDevice) -> Option<InferError> {
    let EngineDevice::Cuda(number) = device else { return None };
    let why = match count(BackendKind::Cuda) {
        Ok(gpus) if number < gpus => return None,
        Ok(gpus) => format!("there are {gpus} GPUs here, numbered from 0"),
        Err(error) => error.to_string(),
    };
    let remedy = "or take --device cpu, or leave it out to fall back";
    Some(InferError::Unavailable { what: device.to_string(), why: format!("{why}; {remedy}") })
}

fn open_choice(
    choice: EngineChoice,
    source: &ModelSource,
    options: &EngineOptions,
) -> InferResult<Box<dyn InferenceEngine>> {
    if choice == EngineChoice::Kind(EngineKind::Echo) {
        return Ok(Box::new(Echo::open(source, options)?));
    }
    let candidates = source.candidates()?;
    let engine = candidates.iter().find(|candidate| candidate.is_engine());
    let graph = candidates.iter().find(|candidate| !candidate.is_engine());
    match (choice, engine, graph) {
        (EngineChoice::Auto, Some(engine), graph) => open_preferred(engine, graph, options),
        (EngineChoice::Kind(EngineKind::Tensorrt), Some(engine), _) => {
            open_engine(engine, options, "asked for by name")
        }
        (EngineChoice::Auto, None, Some(graph)) => open_best(&open_model(graph, options)?, options),
        (EngineChoice::Kind(kind), _, Some(graph)) => {
            open_kind(kind, &open_model(graph, options)?, options, "asked for by name")
        }
        // Only a TensorRT engine, and another engine was named: reading it gives the error.
        (EngineChoice::Kind(kind), Some(engine), None) => {
            open_kind(kind, &open_model(engine, options)?, options, "asked for by name")
        }
        (_, None, None) => {
            Err(InferError::Model { model: source.name(), why: "no such file".into() })
        }
    }
}

/// Refuses a GPU for engines that run on the CPU only.
fn refuse_gpu_for_host_only(choice: EngineChoice, device: EngineDevice) -> InferResult<()> {
    match (choice, device) {
        (EngineChoice::Kind(kind), EngineDevice::Cuda(_)) if kind.is_host_only() => {
            Err(InferError::Unavailable {
                what: device.to_string(),
                why: format!("{kind} runs on the CPU only; name another engine, or --device cpu"),
            })
        }
        _ => Ok(()),
    }
}

fn open_engine(
    source: &ModelSource,
    options: &EngineOptions,
    why: &str,
) -> InferResult<Box<dyn InferenceEngine>> {
    let file = source.read_raw()?;
    let engine = tensorrt::Tensorrt::open(&source.name(), &file, options, why)?;
    engine.model().check_size(options.input_size)?;
    Ok(Box::new(engine))
}

/// Opens a TensorRT engine. Where this machine has no TensorRT and there is a graph of the same
/// name, the graph runs in its place, and the fallbacks say so.
fn open_preferred(
    engine: &ModelSource,
    graph: Option<&ModelSource>,
    options: &EngineOptions,
) -> InferResult<Box<dyn InferenceEngine>> {
    let refusal = match open_engine(engine, options, "auto: an engine runs on TensorRT alone") {
        Err(refusal @ InferError::Unavailable { .. }) if !options.strict => refusal,
        other => return other,
    };
    let Some(graph) = graph else { return Err(refusal) };
    let other = open_best(&open_model(graph, options)?, options)?;
    let mut info = other.info().clone();
    let name = engine.name();
    info.fallbacks.push(format!("{name} was preferred, and cannot run: {}", refusal.brief()));
    info.messages.push(refusal.to_string());
    Ok(Box::new(FallbackEngine { info: settle(info, options)?, engine: other }))
}

/// An engine that runs in the place of a preferred one, with that in its fallbacks.
struct FallbackEngine {
    info: EngineInfo,
    engine: Box<dyn InferenceEngine>,
}

impl InferenceEngine for FallbackEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn model(&self) -> &ModelInfo {
        self.engine.model()
    }

    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]> {
        self.engine.run(input)
    }

    fn input(&mut self) -> Option<&mut [f32]> {
        self.engine.input()
    }

    fn load(&mut self, frame: &Frame, prepare: &mut Prepare) -> InferResult<bool> {
        self.engine.load(frame, prepare)
    }

    fn stager(&self) -> Option<Stager> {
        self.engine.stager()
    }

    fn search(&mut self, output: usize, classes: usize) -> InferResult<bool> {
        self.engine.search(output, classes)
    }

    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        self.engine.run_input()
    }

    fn memory(&self) -> Option<EngineMemory> {
        self.engine.memory()
    }
}

fn open_model(source: &ModelSource, options: &EngineOptions) -> InferResult<Model> {
    let model = source.read_for(options.open_size())?;
    model.info.check_size(options.input_size)?;
    let refuse = |why: String| Err(InferError::Model { model: model.info.name.clone(), why });
    let ModelInfo { inputs, input_element, outputs, .. } = &model.info;
    if *inputs != 1 {
        return refuse(format!("it has {inputs} inputs; a detector has one, the image"));
    }
    if *input_element != onnx::F32 {
        return refuse(format!(
            "its input has ONNX element type {input_element}; 32-bit floats (1) are fed here: \
             export the model without half precision"
        ));
    }
    if outputs.is_empty() {
        return refuse("it has no outputs".into());
    }
    check_sides(&model.info)?;
    Ok(model)
}

fn open_kind(
    kind: EngineKind,
    model: &Model,
    options: &EngineOptions,
    why: &str,
) -> InferResult<Box<dyn InferenceEngine>> {
    Ok(match kind {
        EngineKind::Rten => Box::new(rten::Rten::open(model, options, why)?),
        EngineKind::Ort => Box::new(ort::Ort::open(model, options, why)?),
        EngineKind::Tensorrt => {
            return Err(InferError::Model {
                model: model.info.name.clone(),
                why: "no engine of TensorRT; build one first: `plimsoll export MODEL --to \
                      MODEL.engine`"
                    .into(),
            });
        }
        EngineKind::Echo => Box::new(Echo::for_model(model.info.clone(), options)),
    })
}

/// Tries engines in a fixed order, taken from recorded runs: only ONNX Runtime reaches a GPU, and
/// it takes about half as long as rten on a CPU; rten is always available. The order is not
/// measured at each start: runs of one command must choose alike, or they could not be compared.
fn open_best(model: &Model, options: &EngineOptions) -> InferResult<Box<dyn InferenceEngine>> {
    let why = "auto: ONNX Runtime was found; it alone reaches a GPU, and on CPUs it took half of \
               rten's time where both were recorded; the two were not timed here";
    let refusal = match open_kind(EngineKind::Ort, model, options, why) {
        Ok(engine) => return Ok(engine),
        Err(refusal) => refusal,
    };
    tracing::debug!(%refusal, "ort was skipped");
    if matches!(options.device, EngineDevice::Cuda(_)) {
        return Err(refusal);
    }
    let brief = refusal.brief();
    let why = format!("auto: rten, which is always there; ort was skipped: {brief}");
    open_kind(EngineKind::Rten, model, options, &why).map_err(|error| match error {
        // Both engines failed, and the first one's error may be the more helpful.
        InferError::Engine { engine, why } => {
            InferError::Engine { engine, why: format!("{why} (and before it: {brief})") }
        }
        other => other,
    })
}
