//! rten: pure Rust, on the CPU, always available.
//!
//! The input is passed as a view, so it is not copied. The outputs are moved out: rten allocates
//! them on every run and takes no buffers, so only the copy can be saved, not the allocation.

use std::sync::Arc;

use rten::{ModelOptions, NodeId, RunOptions, ThreadPool, ValueOrView, ValueView};
use rten_tensor::prelude::*;

use super::check::check_input;
use super::shield::shielded;
use super::{EngineDevice, EngineInfo, EngineOptions, InferenceEngine, ModelInfo};
use crate::error::{InferError, InferResult};
use crate::tensor::Tensor;
use plimsoll_models::Model;

const NAME: &str = "rten";
/// The version that this was built and measured with; the crate does not report its own.
const VERSION: &str = "0.27";

/// A model in rten.
#[derive(Debug)]
pub struct Rten {
    graph: rten::Model,
    input: NodeId,
    outputs: Vec<NodeId>,
    run: RunOptions,
    info: EngineInfo,
    model: ModelInfo,
    results: Vec<Tensor>,
}

/// Whether a graph has the operator that drops overlapping boxes: by the field of a node that
/// names its kind. rten divides by the box around both boxes instead of by their union, and takes
/// them in the order in which they come instead of the surest first.
fn suppresses(bytes: &[u8]) -> bool {
    const KIND: &[u8] = b"\x22\x11NonMaxSuppression";
    bytes.windows(KIND.len()).any(|window| window == KIND)
}

impl Rten {
    /// Loads a model.
    ///
    /// # Errors
    /// [`InferError::Unavailable`] when it has an operator that rten computes otherwise, and
    /// [`InferError::Model`] when rten cannot read it or lacks one of its operators.
    pub fn open(model: &Model, options: &EngineOptions, why: &str) -> InferResult<Rten> {
        let info = EngineInfo {
            name: NAME,
            version: Some(VERSION.into()),
            device: EngineDevice::Cpu.to_string(),
            chosen: why.into(),
            threads: options.threads,
            ..EngineInfo::default()
        };
        if suppresses(&model.bytes) {
            return Err(InferError::Unavailable {
                what: "rten's suppression of overlapping boxes inside a model".into(),
                why: format!(
                    "rten {VERSION} measures overlaps otherwise than ONNX says, and would find \
                     other boxes in {}; run it with `--engine ort`, or export it without \
                     `nms=True`: boxes are then suppressed here",
                    model.info.name
                ),
            });
        }
        let refuse = |why: String| InferError::Model { model: model.info.name.clone(), why };
        let graph = shielded(NAME, || {
            ModelOptions::with_all_ops()
                .prepack_weights(true)
                .load(model.bytes.to_vec())
                .map_err(|error| refuse(format!("rten cannot load it: {error}")))
        })?;
        let &[input] = graph.input_ids() else {
            return Err(refuse(format!("rten sees {} inputs in it", graph.input_ids().len())));
        };
        let pool = options.threads.map(|n| Arc::new(ThreadPool::with_num_threads(n.max(1))));
        Ok(Rten {
            input,
            outputs: graph.output_ids().to_vec(),
            graph,
            run: RunOptions::default().with_thread_pool(pool),
            info,
            model: model.info.clone(),
            results: Vec::new(),
        })
    }
}

impl InferenceEngine for Rten {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn run(&mut self, input: &Tensor) -> InferResult<&[Tensor]> {
        check_input(NAME, &self.model, input)?;
        let failed = |why: String| InferError::Engine { engine: NAME.into(), why };
        let view = ValueView::from_shape(&input.shape, &input.data)
            .map_err(|error| failed(error.to_string()))?;
        // The old outputs are freed before the run allocates new ones.
        self.results.clear();
        let values = shielded(NAME, || {
            let inputs = vec![(self.input, ValueOrView::View(view))];
            self.graph
                .run(inputs, &self.outputs, Some(self.run.clone()))
                .map_err(|error| failed(error.to_string()))
        })?;
        for value in values {
            self.results.push(take(value).ok_or_else(|| {
                failed("an output is neither a tensor of numbers nor convertible to one".into())
            })?);
        }
        Ok(&self.results)
    }
}

fn take(value: rten::Value) -> Option<Tensor> {
    fn widen<T: Copy>(tensor: rten_tensor::Tensor<T>, to: impl Fn(T) -> f32) -> Tensor {
        let shape = tensor.shape().to_vec();
        Tensor { shape, data: tensor.into_data().into_iter().map(to).collect() }
    }
    Some(match value {
        rten::Value::FloatTensor(t) => Tensor { shape: t.shape().to_vec(), data: t.into_data() },
        rten::Value::Int32Tensor(t) => widen(t, |n| n as f32),
        rten::Value::Int8Tensor(t) => widen(t, f32::from),
        rten::Value::UInt8Tensor(t) => widen(t, f32::from),
        _ => return None,
    })
}
