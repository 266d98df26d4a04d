//! tensorrt: engines of TensorRT, run directly.
//!
//! TensorRT's interface is C++ alone, so a small shim of ours stands between (`shim.cpp`):
//! compiled in by the feature `tensorrt`, or built on the target and loaded ([`find`]).
//! Its flat interface is all that is foreign here (`sys`), and a few lines of C stand in
//! for it in tests.
//!
//! Inputs and outputs stay bound to buffers on the device; one stream of ours, and a CUDA
//! graph of what TensorRT computes where the engine can be recorded. Around that go copies
//! from and to pinned memory of ours or, where NVRTC is, our own kernels: frames are prepared
//! and outputs searched on the device (`cuda::Aboard`). All memory that TensorRT or we take
//! for an engine is asked of a ledger, so a slot's memory is counted to the byte and held to
//! the line.
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

use self::plan::Plan;
use self::sys::{Buffer, Session};
use super::cuda::sys::driver::Stream;
use super::cuda::sys::pinned::{self, Pinned, Place};
use super::cuda::{Aboard, Ledger};
use super::{
    Engine, EngineDevice, EngineInfo, EngineMemory, EngineOptions, ModelInfo, check_input, settle,
};
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
    // First: they wait for what is in flight.
    aboard: Option<Aboard>,
    search: Option<Search>,
    session: Session,
    stream: Option<Arc<Stream>>,
    ledger: Arc<Ledger>,
    tensors: Vec<sys::Tensor>,
    /// For those that are not f32: their bytes.
    raw: Vec<Vec<u8>>,
    input: Pinned,
    /// Whether the input is filled already, on the device.
    loaded: bool,
    results: Pinned,
    info: EngineInfo,
    model: ModelInfo,
}

/// An output that is searched on the device.
#[derive(Debug)]
struct Search {
    raw: Place,
    classes: usize,
    /// What is copied out in its stead.
    found: pinned::Buffer,
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
        let Plan { plan, metadata } = Plan::split(file);
        let ledger = Arc::new(Ledger::new(options.memory_limit.map(|limit| limit.get())));
        let full = |why: String| match ledger.refused() {
            Some(bytes) => format!("{why} (the limit refused {})", plimsoll::Bytes(bytes)),
            None => why,
        };
        let stream = Stream::new(device, &ledger);
        let place = (device, stream.as_ref().ok());
        let session = shim.open(plan, place, options.cuda_graph, &ledger);
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
            chosen: format!("{why}; scratch memory {}", plimsoll::Bytes(session.scratch())),
            limit_applied: options.memory_limit.is_some(),
            ..EngineInfo::default()
        };
        if options.cuda_graph && !session.has_graph() {
            info.fallbacks
                .push("a CUDA graph was asked for; this engine cannot be recorded".into());
        }
        let aboard = stream.as_ref().map_err(Clone::clone).and_then(Aboard::new);
        if let Err(why) = &aboard {
            info.chosen += &format!("; frames are prepared on the CPU: {why}");
        }
        let stream = stream.ok();
        let raw = tensors.iter().map(|tensor| vec![0; raw_bytes(tensor)]).collect();
        Ok(Tensorrt {
            aboard: aboard.ok(),
            search: None,
            session,
            ledger,
            raw,
            input: pin(stream.as_ref(), || zeros(&tensors, true)),
            loaded: false,
            results: pin(stream.as_ref(), || zeros(&tensors, false)),
            stream,
            tensors,
            info: settle(info, options)?,
            model,
        })
    }

    /// Copies in what is not there yet, runs, searches where that was asked for, copies out.
    fn run_bound(&mut self) -> Result<(), String> {
        let Tensorrt { aboard, search, session, tensors, raw, input, results, .. } = self;
        let loaded = std::mem::take(&mut self.loaded);
        let input = &input.tensors()[0].data;
        for (tensor, raw) in tensors.iter().zip(&mut *raw) {
            if tensor.is_input && tensor.element != F32 {
                narrow(tensor.element, input, raw)?;
            }
        }
        let (outs, sought) = match (aboard, search) {
            (Some(aboard), Some(search)) => (None, Some((aboard, search, results))),
            _ => (Some(results), None),
        };
        let mut outs = outs.into_iter().flat_map(Pinned::all_mut);
        let mut buffers = Vec::with_capacity(tensors.len());
        for (tensor, raw) in tensors.iter().zip(&mut *raw) {
            let out = if tensor.is_input { None } else { outs.next() };
            buffers.push(match (tensor.is_input, tensor.element, out) {
                (true, F32, _) if !loaded => Buffer::In(input),
                (true, F32, _) | (false, _, None) => Buffer::There,
                (false, F32, Some(out)) => Buffer::Out(out),
                _ => Buffer::Raw(raw),
            });
        }
        session.run(&mut buffers, || {
            let Some((aboard, search, results)) = sought else { return Ok(()) };
            aboard.best(&search.raw, search.classes, &search.found)?;
            Ok(search.found.fetch(results.data_mut(0))?)
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

impl Engine for Tensorrt {
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
        let (Some(aboard), Some(size), true) = (&mut self.aboard, self.model.input_size, wide)
        else {
            return Ok(false);
        };
        let Some(place) = self.session.place(index) else { return Ok(false) };
        self.loaded = aboard.load(frame, prepare, (&place, size)).map_err(failed)?;
        Ok(self.loaded)
    }

    fn stager(&self) -> Option<Stager> {
        self.aboard.as_ref()?.stager()
    }

    fn search(&mut self, output: usize, classes: usize) -> InferResult<bool> {
        let mut outputs = self.tensors.iter().enumerate().filter(|(_, tensor)| !tensor.is_input);
        let output = outputs.nth(output).filter(|(_, tensor)| tensor.element == F32);
        let place = output.and_then(|(index, _)| self.session.place(index));
        let (Some(aboard), Some(raw)) = (&self.aboard, place) else { return Ok(false) };
        let places = raw.numbers() / (4 + classes);
        let found = aboard.found(places).map_err(failed)?;
        self.results = pin(self.stream.as_ref(), || vec![Tensor::zeros(&[1, 6, places])]);
        self.search = Some(Search { raw, classes, found });
        Ok(true)
    }

    fn run_input(&mut self) -> InferResult<&[Tensor]> {
        self.run_bound().map_err(failed)?;
        Ok(self.results.tensors())
    }

    fn memory(&self) -> Option<EngineMemory> {
        Some(self.ledger.memory())
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

/// `--library` names the library of whichever engine runs; this is how ours is known.
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

fn shape(tensor: &sys::Tensor) -> Vec<usize> {
    tensor.shape.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect()
}

/// Room for all inputs, or all outputs.
fn zeros(tensors: &[sys::Tensor], inputs: bool) -> Vec<Tensor> {
    let wanted = tensors.iter().filter(|tensor| tensor.is_input == inputs);
    wanted.map(|tensor| Tensor::zeros(&shape(tensor))).collect()
}

/// Pinned where the driver does that; copies are only slower where it does not.
fn pin(stream: Option<&Arc<Stream>>, tensors: impl Fn() -> Vec<Tensor>) -> Pinned {
    let pinned = stream.map(|stream| Pinned::new(stream, tensors()));
    if let Some(Err(why)) = &pinned {
        tracing::debug!(%why, "copies go through pinned memory of the driver's own");
    }
    pinned.and_then(Result::ok).unwrap_or_else(|| Pinned::unpinned(tensors()))
}

fn failed(why: impl Into<String>) -> InferError {
    InferError::Engine { engine: NAME.into(), why: why.into() }
}

fn raw_bytes(tensor: &sys::Tensor) -> usize {
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
    tensors: &[sys::Tensor],
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
