//! One step of the main job: a frame in, detections out.
//!
//! The pipeline never reads a clock. It calls [`Stopwatch::lap`] at the end of each stage; the
//! caller implements [`Stopwatch`]. Buffers are reused between steps, so a step does not pay for
//! allocation.

use crate::decode::{Decoder, Detection, Thresholds};
use crate::engine::InferenceEngine;
use crate::error::InferResult;
use crate::prepare::{Letterbox, Prepare};
use crate::source::Frame;
use crate::tensor::Tensor;

/// A stage of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// From frame to tensor.
    Prepare,
    /// The model.
    Inference,
    /// From output to boxes.
    Decode,
}

/// Measures the time of each stage: [`Pipeline::step`] calls [`lap`](Stopwatch::lap) at the end
/// of each. The first stage begins when the step is called.
pub trait Stopwatch {
    /// This stage is over.
    fn lap(&mut self, stage: Stage);
}

/// A stopwatch that measures nothing.
impl Stopwatch for () {
    fn lap(&mut self, _: Stage) {}
}

/// A model with all that stands before and behind it.
pub struct Pipeline {
    prepare: Prepare,
    engine: Box<dyn InferenceEngine>,
    decoder: Decoder,
    thresholds: Thresholds,
    input: Tensor,
    /// Which border the input has.
    painted: Option<Letterbox>,
    detections: Vec<Detection>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Pipeline")
            .field("engine", self.engine.info())
            .field("model", self.engine.model())
            .field("thresholds", &self.thresholds)
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Puts an engine between prepare and decode. `size` (rows, columns) is what frames
    /// are fitted into where the model takes any; a model that asks for a size gets it.
    ///
    /// # Errors
    ///
    /// [`crate::InferError::Model`] where the model is no detector.
    pub fn new(
        mut engine: Box<dyn InferenceEngine>,
        size: (usize, usize),
        thresholds: Thresholds,
    ) -> InferResult<Pipeline> {
        let model = engine.model();
        let (height, width) = model.input_size.unwrap_or(size);
        let shapes: Vec<Vec<usize>> =
            model.outputs.iter().map(|(_, shape)| shape.clone()).collect();
        let mut decoder = Decoder::new(model, &shapes)?;
        decoder.delegate(&mut *engine)?;
        Ok(Pipeline {
            prepare: Prepare::framed(height, width, decoder.framing()),
            engine,
            decoder,
            thresholds,
            input: Tensor::default(),
            painted: None,
            detections: Vec::new(),
        })
    }

    /// From one frame to its detections, which stay until the next step.
    ///
    /// # Errors
    ///
    /// What the stages say. After [`crate::InferError::Frame`] the next frame may be good.
    pub fn step(&mut self, frame: &Frame, watch: &mut dyn Stopwatch) -> InferResult<&[Detection]> {
        let Pipeline { prepare, engine, input, painted, .. } = self;
        let letterbox;
        let fitted = prepare.fit(frame)?.letterbox;
        let outputs = if prepare.is_by_tables() && engine.load(frame, prepare)? {
            letterbox = fitted;
            *painted = None;
            watch.lap(Stage::Prepare);
            engine.run_input()?
        } else if let Some(input) = engine.input() {
            letterbox = prepare.run_into(frame, input, painted)?;
            watch.lap(Stage::Prepare);
            engine.run_input()?
        } else {
            prepare.shape(input);
            letterbox = prepare.run_into(frame, &mut input.data, painted)?;
            watch.lap(Stage::Prepare);
            engine.run(input)?
        };
        watch.lap(Stage::Inference);
        self.decoder.decode(outputs, &letterbox, &self.thresholds, &mut self.detections)?;
        watch.lap(Stage::Decode);
        Ok(&self.detections)
    }

    /// The same from a tensor that was prepared before.
    ///
    /// # Errors
    ///
    /// What the engine and the decoder say.
    pub fn step_prepared(
        &mut self,
        input: &Tensor,
        letterbox: &Letterbox,
        watch: &mut dyn Stopwatch,
    ) -> InferResult<&[Detection]> {
        self.painted = None;
        let outputs = self.engine.run(input)?;
        watch.lap(Stage::Inference);
        self.decoder.decode(outputs, letterbox, &self.thresholds, &mut self.detections)?;
        watch.lap(Stage::Decode);
        Ok(&self.detections)
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &dyn InferenceEngine {
        &*self.engine
    }

    /// The decoder, which knows the names of classes.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// What frames are fitted into: rows and columns.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        self.prepare.size()
    }

    /// Changes what counts as found, from the next step on.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
    }

    /// What counts as found.
    #[must_use]
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }
}

#[cfg(test)]
mod tests;
