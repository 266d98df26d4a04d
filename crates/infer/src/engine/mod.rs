//! Who runs a model: one file for each engine, named as users name it.
//!
//! [`open`] is the one door. It reads the model's header itself, so that every engine
//! tells the same of the same file, and it refuses what no engine here can run before one
//! is asked. What it returns says in [`EngineInfo`] what was chosen and why, where it
//! really runs, and what of the request it does not keep: a fallback is data, and with
//! [`EngineOptions::strict`] an error. It is never silence.

mod cuda;
pub mod echo;
pub mod options;
pub mod ort;
pub mod rten;
pub mod said;
pub mod tensorrt;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll::backend::{BackendKind, count};

pub use echo::{Echo, EchoOptions};
pub use options::{EngineChoice, EngineDevice, EngineKind, EngineOptions};
pub use trial::{STACK, trial};

use crate::error::{InferError, InferResult};
use crate::prepare::Prepare;
use crate::source::{Frame, Stager};
use crate::tensor::Tensor;
pub use plimsoll_models::ModelInfo;
use plimsoll_models::{Model, ModelSource, onnx};

/// The longest side of an input: four times what detectors are run at. A file may declare any.
const LONGEST_SIDE: usize = 16_384;

/// What an engine is and how it was set up.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct EngineInfo {
    /// As users name it: `rten`, `ort`, `tensorrt`, `echo`.
    pub name: &'static str,
    /// Its version, by its own account.
    pub version: Option<String>,
    /// The library that it was loaded from, where it was loaded at run time.
    pub library: Option<PathBuf>,
    /// Where it runs: `cpu`, `cuda:0`.
    pub device: String,
    /// Why this engine and this device, in words for the report.
    pub chosen: String,
    /// Threads that it computes with, where it was told.
    pub threads: Option<usize>,
    /// How many nodes of the model each provider ran, where the engine tells.
    pub nodes_by_provider: BTreeMap<String, u64>,
    /// What it does not do as it was asked, in words for the report.
    pub fallbacks: Vec<String>,
    /// What was said in full where the words above are cut to a cause; for a log.
    pub said: Vec<String>,
    /// Whether the memory limit was handed to it.
    pub limit_applied: bool,
}

/// What an engine's own allocator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EngineMemory {
    /// Bytes in use now.
    pub in_use: Option<u64>,
    /// The most that was in use.
    pub peak: Option<u64>,
    /// Bytes that the allocator holds from the device, in use or not.
    pub reserved: Option<u64>,
    /// The line that it was told to keep to.
    pub limit: Option<u64>,
}

impl EngineMemory {
    /// What is in use and the most that was.
    #[must_use]
    pub fn new(in_use: u64, peak: u64) -> EngineMemory {
        EngineMemory { in_use: Some(in_use), peak: Some(peak), ..EngineMemory::default() }
    }
}

/// A model, loaded and ready.
pub trait Engine: Send {
    /// What it is.
    fn info(&self) -> &EngineInfo;
    /// What the model says of itself.
    fn model(&self) -> &ModelInfo;
    /// Runs the model. The outputs stay valid until the next run.
    ///
    /// # Errors
    /// [`InferError::Engine`] when the input does not fit the model or the engine fails.
    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]>;
    /// The engine's own input, where preparing a frame into it saves a copy:
    /// [`Engine::run_input`] then runs what was written there. It is as long as the model's
    /// input, and keeps its numbers until [`Engine::run`] writes others.
    fn input(&mut self) -> Option<&mut [f32]> {
        None
    }
    /// Fits a frame into the model's input, the way that [`Prepare`] says, on the engine's own
    /// device, for [`Engine::run_input`]; `false` where that is for the caller to do.
    ///
    /// # Errors
    /// [`InferError::Engine`] when the device fails.
    fn load(&mut self, _frame: &Frame, _prepare: &mut Prepare) -> InferResult<bool> {
        Ok(false)
    }
    /// What brings frames to where [`Engine::load`] reads them most quickly, on the thread that
    /// decodes them; nothing where they are best left where they are.
    fn stager(&self) -> Option<Stager> {
        None
    }
    /// Asks for the best class of each place alone: an output of the layout
    /// [`Layout::ByClass`](crate::Layout::ByClass) is then searched on the engine's own device,
    /// and runs give one tensor of the layout [`Layout::Best`](crate::Layout::Best). `false`
    /// where runs go on as they were.
    ///
    /// # Errors
    /// [`InferError::Engine`] when the device fails.
    fn search(&mut self, _output: usize, _classes: usize) -> InferResult<bool> {
        Ok(false)
    }
    /// Runs the model on what was loaded, or on what is in [`Engine::input`].
    ///
    /// # Errors
    /// [`InferError::Engine`] when there is no such input or the engine fails.
    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        Err(no_input(self.info().name))
    }
    /// What its allocator says, where it tells.
    fn memory(&self) -> Option<EngineMemory> {
        None
    }
}

/// Opens a model with an engine, or with the fastest that works. A device that is named is kept
/// to: where it cannot run the model, that is an error and no fallback.
///
/// # Errors
/// [`InferError::Unavailable`] when the engine or device is not there, [`InferError::Model`] when
/// the model cannot be used, [`InferError::Engine`] when the engine refuses it or, with
/// `strict`, does less than it was asked for.
pub fn open(
    choice: impl Into<EngineChoice>,
    source: &ModelSource,
    options: &EngineOptions,
) -> InferResult<Box<dyn Engine>> {
    let choice = choice.into();
    on_the_host_only(choice, options.device)?;
    open_choice(choice, source, options).map_err(|error| match error {
        // Without the GPU that was named, what else is missing does not help.
        InferError::Unavailable { .. } => no_such_gpu(options.device).unwrap_or(error),
        other => other,
    })
}

/// Why the GPU that was named is not here; nothing where it is, or none was named.
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
) -> InferResult<Box<dyn Engine>> {
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
        // An engine alone, for who cannot run it: reading it says so.
        (EngineChoice::Kind(kind), Some(engine), None) => {
            open_kind(kind, &open_model(engine, options)?, options, "asked for by name")
        }
        (_, None, None) => {
            Err(InferError::Model { model: source.name(), why: "no such file".into() })
        }
    }
}

/// Some engines have no GPU to run on.
fn on_the_host_only(choice: EngineChoice, device: EngineDevice) -> InferResult<()> {
    match (choice, device) {
        (
            EngineChoice::Kind(kind @ (EngineKind::Rten | EngineKind::Echo)),
            EngineDevice::Cuda(_),
        ) => Err(InferError::Unavailable {
            what: device.to_string(),
            why: format!("{kind} runs on the CPU only; name another engine, or --device cpu"),
        }),
        _ => Ok(()),
    }
}

fn open_engine(
    source: &ModelSource,
    options: &EngineOptions,
    why: &str,
) -> InferResult<Box<dyn Engine>> {
    let file = source.read_raw()?;
    let engine = tensorrt::Tensorrt::open(&source.name(), &file, options, why)?;
    engine.model().check_size(options.input_size)?;
    Ok(Box::new(engine))
}

/// An engine is preferred. Where this machine has no TensorRT and the stem has a graph as
/// well, that runs in its place, and it is said.
fn open_preferred(
    engine: &ModelSource,
    graph: Option<&ModelSource>,
    options: &EngineOptions,
) -> InferResult<Box<dyn Engine>> {
    let refusal = match open_engine(engine, options, "auto: an engine runs on TensorRT alone") {
        Err(refusal @ InferError::Unavailable { .. }) if !options.strict => refusal,
        other => return other,
    };
    let Some(graph) = graph else { return Err(refusal) };
    let instead = open_best(&open_model(graph, options)?, options)?;
    let mut info = instead.info().clone();
    let name = engine.name();
    info.fallbacks.push(format!("{name} was preferred, and cannot run: {}", refusal.brief()));
    info.said.push(refusal.to_string());
    Ok(Box::new(Instead { info: settle(info, options)?, engine: instead }))
}

/// An engine that runs in the place of a preferred one, and says so.
struct Instead {
    info: EngineInfo,
    engine: Box<dyn Engine>,
}

impl Engine for Instead {
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

fn check_sides(model: &ModelInfo) -> InferResult<()> {
    match model.input_size {
        Some((rows, columns)) if rows.max(columns) > LONGEST_SIDE => Err(InferError::Model {
            model: model.name.clone(),
            why: format!(
                "it declares an input of {rows} x {columns} pixels; sides of at most \
                 {LONGEST_SIDE} are run"
            ),
        }),
        _ => Ok(()),
    }
}

fn open_kind(
    kind: EngineKind,
    model: &Model,
    options: &EngineOptions,
    why: &str,
) -> InferResult<Box<dyn Engine>> {
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

/// A fixed order, from records: ONNX Runtime alone reaches a GPU and takes about half as long
/// as rten on a CPU; rten is always there. It is not measured anew at each start: runs of one
/// command must choose alike, or they could not be compared. What is said says so.
fn open_best(model: &Model, options: &EngineOptions) -> InferResult<Box<dyn Engine>> {
    let why = "auto: ONNX Runtime was found; it alone reaches a GPU, and on CPUs it took half of \
               rten's time where both were recorded; the two were not timed here";
    let refusal = match open_kind(EngineKind::Ort, model, options, why) {
        Ok(engine) => return Ok(engine),
        Err(refusal) => refusal,
    };
    tracing::debug!(%refusal, "ort was passed over");
    if matches!(options.device, EngineDevice::Cuda(_)) {
        return Err(refusal);
    }
    let brief = refusal.brief();
    let why = format!("auto: rten, which is always there; ort was passed over: {brief}");
    open_kind(EngineKind::Rten, model, options, &why).map_err(|error| match error {
        // Two engines failed: the first one's reason may be the one that helps.
        InferError::Engine { engine, why } => {
            InferError::Engine { engine, why: format!("{why} (and before it: {brief})") }
        }
        other => other,
    })
}

/// With `strict`, what was not kept is an error.
fn settle(info: EngineInfo, options: &EngineOptions) -> InferResult<EngineInfo> {
    if options.strict && !info.fallbacks.is_empty() {
        let why = format!("strict: {}", info.fallbacks.join("; "));
        return Err(InferError::Engine { engine: info.name.into(), why });
    }
    for fallback in &info.fallbacks {
        tracing::warn!(engine = info.name, fallback, "does less than it was asked for");
    }
    Ok(info)
}

/// Whether a tensor may be fed to a model: an engine's own message for a wrong shape is
/// long and late.
fn check_input(engine: &'static str, model: &ModelInfo, input: &Tensor) -> InferResult<()> {
    let wanted = &model.input_shape;
    let fits = wanted.is_empty()
        || (wanted.len() == input.shape.len()
            && wanted.iter().zip(&input.shape).all(|(&want, &have)| want == 0 || want == have));
    let elements = input.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
    if fits && elements == Some(input.data.len()) {
        return Ok(());
    }
    Err(InferError::Engine {
        engine: engine.into(),
        why: format!(
            "input {:?} with {} numbers was given to a model that wants {wanted:?}",
            input.shape,
            input.data.len()
        ),
    })
}

fn no_input(engine: &'static str) -> InferError {
    InferError::Engine { engine: engine.into(), why: "it has no input of its own".into() }
}

/// How many calls of foreign code are shielded now.
static SHIELDS: AtomicUsize = AtomicUsize::new(0);

/// Whether a panic on some thread may be one of an engine's, which becomes an error of its
/// model: a panic hook that ends the process must not do so then. Engines work on threads of
/// their own, so that it cannot be told of one thread.
#[must_use]
pub fn is_shielded() -> bool {
    SHIELDS.load(Ordering::Relaxed) > 0
}

struct Shield;

impl Shield {
    fn raise() -> Shield {
        SHIELDS.fetch_add(1, Ordering::Relaxed);
        Shield
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        SHIELDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs foreign code that may panic on a model it did not expect, and turns the panic
/// into an error: no panic reaches a user because of a file.
fn shielded<T>(engine: &'static str, work: impl FnOnce() -> InferResult<T>) -> InferResult<T> {
    let _shield = Shield::raise();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Err(InferError::Engine { engine: engine.into(), why: format!("it panicked: {text}") })
    })
}
