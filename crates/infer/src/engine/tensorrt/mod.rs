//! tensorrt: engines of TensorRT, run directly.
//!
//! TensorRT's interface is C++ alone, so a small shim of ours stands between (`shim.cpp`):
//! compiled in by the feature `tensorrt`, or built on the target and loaded ([`find`]).
//! Its flat interface is all that is foreign here (`sys`), and a few lines of C stand in
//! for it in tests.
//!
//! Inputs and outputs stay bound to buffers on the device; one stream, and a CUDA graph
//! of the whole run (copies included) where the engine can be recorded. All memory that
//! TensorRT takes for an engine is asked of a ledger (`ledger`), so a slot's memory is
//! counted to the byte and held to the line.
//!
//! An engine is bound to the version of TensorRT and the GPU that it was built on. One
//! that does not fit is refused by TensorRT, and its own reason is shown.

pub mod build;
pub mod find;
mod ledger;
mod plan;
mod sys;

use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};

use self::ledger::Ledger;
use self::plan::Plan;
use self::sys::{Buffer, Session};
use super::{
    Device, Engine, EngineInfo, EngineMemory, EngineOptions, ModelInfo, check_input, settle,
};
use crate::error::{Error, Result};
use crate::model::onnx;
use crate::tensor::Tensor;

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
    session: Session,
    ledger: Arc<Ledger>,
    tensors: Vec<sys::Tensor>,
    /// For those that are not f32: their bytes.
    raw: Vec<Vec<u8>>,
    results: Vec<Tensor>,
    info: EngineInfo,
    model: ModelInfo,
}

impl Tensorrt {
    /// Opens an engine's file.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where TensorRT or our library for it is not there,
    /// [`Error::Model`] with TensorRT's own reason where it refuses the file or the limit
    /// has no room for it.
    pub fn open(name: &str, file: &[u8], options: &EngineOptions, why: &str) -> Result<Tensorrt> {
        let device = match options.device {
            Device::Auto => 0,
            Device::Cuda(number) => number,
            Device::Cpu => {
                let why = "it runs on a CUDA device only; leave --device out, or give a .onnx file";
                return Err(Error::Unavailable {
                    what: "TensorRT on the CPU".into(),
                    why: why.into(),
                });
            }
        };
        let shim = find::shim(options.library.as_deref().filter(|path| is_shim(path)))?;
        let refuse = |why: String| Error::Model { model: name.to_string(), why };
        let Plan { plan, metadata } = Plan::split(file);
        let ledger = Arc::new(Ledger::new(options.memory_limit.map(|limit| limit.get())));
        let full = |why: String| match ledger.refused() {
            Some(bytes) => format!("{why} (the limit refused {})", plimsoll::Bytes(bytes)),
            None => why,
        };
        let session = shim.open(plan, device, options.cuda_graph, &ledger);
        let mut session = session.map_err(|why| {
            refuse(format!("{}; TensorRT here is {}", full(why), shim.version_text()))
        })?;
        settle_shapes(&mut session, options.input_size).map_err(&refuse)?;
        session.prepare().map_err(|why| refuse(full(why)))?;
        let tensors = session.tensors().map_err(&refuse)?;
        let model = describe(name, file.len() as u64, &tensors, metadata).map_err(&refuse)?;
        let mut info = EngineInfo {
            name: NAME,
            version: Some(shim.version_text()),
            device: Device::Cuda(device).to_string(),
            chosen: format!("{why}; scratch memory {}", plimsoll::Bytes(session.scratch())),
            limit_applied: options.memory_limit.is_some(),
            ..EngineInfo::default()
        };
        if options.cuda_graph && !session.has_graph() {
            info.fallbacks
                .push("a CUDA graph was asked for; this engine cannot be recorded".into());
        }
        let results = tensors.iter().filter(|tensor| !tensor.is_input).map(result).collect();
        let raw = tensors.iter().map(|tensor| vec![0; raw_bytes(tensor)]).collect();
        Ok(Tensorrt { session, ledger, tensors, raw, results, info: settle(info, options)?, model })
    }

    fn run_raw(&mut self, input: &Tensor) -> Result<(), String> {
        for (tensor, raw) in self.tensors.iter().zip(&mut self.raw) {
            if tensor.is_input && tensor.element != F32 {
                narrow(tensor.element, &input.data, raw)?;
            }
        }
        let mut results = self.results.iter_mut();
        let mut buffers = Vec::with_capacity(self.tensors.len());
        for (tensor, raw) in self.tensors.iter().zip(&mut self.raw) {
            let result = if tensor.is_input { None } else { results.next() };
            buffers.push(match (tensor.element, result) {
                (F32, None) => Buffer::In(&input.data),
                (F32, Some(result)) => Buffer::Out(&mut result.data),
                _ => Buffer::Raw(raw),
            });
        }
        self.session.run(&mut buffers)?;
        let outputs = self.tensors.iter().zip(&self.raw).filter(|(tensor, _)| !tensor.is_input);
        for ((tensor, raw), result) in outputs.zip(&mut self.results) {
            if tensor.element != F32 {
                widen(tensor.element, raw, &mut result.data);
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

    fn run(&mut self, input: &Tensor) -> Result<&[Tensor]> {
        check_input(NAME, &self.model, input)?;
        self.run_raw(input).map_err(|why| Error::Engine { engine: NAME.into(), why })?;
        Ok(&self.results)
    }

    fn memory(&self) -> Option<EngineMemory> {
        Some(self.ledger.memory())
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

fn result(tensor: &sys::Tensor) -> Tensor {
    Tensor::zeros(&shape(tensor))
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
