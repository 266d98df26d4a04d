//! echo: fixed answers after fixed times, for tests of everything around an engine.
//!
//! It is chosen like the other engines and makes reports with exact numbers, so that
//! scheduling, statistics and memory accounting can be tested without a model.

use std::time::{Duration, Instant};

use super::check::check_sides;
use super::{EngineInfo, EngineMemory, EngineOptions, InferenceEngine, ModelInfo};
use crate::error::InferResult;
use crate::tensor::Tensor;
use plimsoll_models::ModelSource;

/// What the engine answers.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct EchoOptions {
    /// How long a run takes; `None` returns at once. It spins, to use the CPU as an engine
    /// would.
    pub time: Option<Duration>,
    /// The memory figures that it reports.
    pub memory: Option<EngineMemory>,
    /// What it answers; empty for [`pattern`].
    pub answers: Vec<Tensor>,
}

/// An engine that computes nothing.
#[derive(Debug, Clone)]
pub struct Echo {
    info: EngineInfo,
    model: ModelInfo,
    options: EchoOptions,
    answers: Vec<Tensor>,
    runs: u64,
}

impl Echo {
    /// An engine that gives these answers to any input.
    #[must_use]
    pub fn new(answers: Vec<Tensor>) -> Echo {
        let options = EngineOptions {
            echo: EchoOptions { answers, ..EchoOptions::default() },
            ..EngineOptions::default()
        };
        Echo::for_model(pretend(&options), &options)
    }

    /// The same, each run taking this long.
    #[must_use]
    pub fn with_time(mut self, time: Duration) -> Echo {
        self.options.time = Some(time);
        self
    }

    /// The same, reporting this much memory.
    #[must_use]
    pub fn with_memory(mut self, memory: EngineMemory) -> Echo {
        self.options.memory = Some(memory);
        self
    }

    /// How many runs there were.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Pretends to be a model, with the input's name, the size and the metadata of its file;
    /// with defaults where the file cannot be read or does not exist.
    pub(super) fn open(source: &ModelSource, options: &EngineOptions) -> InferResult<Echo> {
        let mut model = match source.read_for(options.open_size()) {
            Ok(model) => model.info,
            Err(_) => pretend(options),
        };
        model.check_size(options.input_size)?;
        model.name = source.name();
        check_sides(&model)?;
        Ok(Echo::for_model(model, options))
    }

    pub(super) fn for_model(mut model: ModelInfo, options: &EngineOptions) -> Echo {
        let mut answers = options.echo.answers.clone();
        if answers.is_empty() {
            answers = vec![pattern(model.input_size.unwrap_or(options.open_size()), 80)];
        }
        model.outputs = answers
            .iter()
            .enumerate()
            .map(|(index, answer)| (format!("output{index}"), answer.shape.clone()))
            .collect();
        let info = EngineInfo {
            name: "echo",
            device: "cpu".into(),
            chosen: "asked for by name".into(),
            ..EngineInfo::default()
        };
        Echo { info, model, options: options.echo.clone(), answers, runs: 0 }
    }
}

/// The model that echo pretends to be when there is none.
fn pretend(options: &EngineOptions) -> ModelInfo {
    let (rows, columns) = options.open_size();
    ModelInfo {
        name: "echo".into(),
        input: "images".into(),
        input_shape: vec![1, 3, rows, columns],
        input_size: Some((rows, columns)),
        inputs: 1,
        input_element: plimsoll_models::onnx::F32,
        ..ModelInfo::default()
    }
}

impl InferenceEngine for Echo {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn run(&mut self, _input: &Tensor) -> InferResult<&[Tensor]> {
        if let Some(time) = self.options.time {
            let begun = Instant::now();
            while begun.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        self.runs += 1;
        Ok(&self.answers)
    }

    fn memory(&self) -> Option<EngineMemory> {
        self.options.memory
    }
}

/// An answer in YOLO11's layout, `[1, 4 + classes, boxes]`, with five detections on the
/// diagonal of the image: an eighth of it wide and high, of the classes 0 to 4 (as far as
/// there are so many), sure to 0.9, 0.8, 0.7, 0.6 and 0.5. All else is zero.
#[must_use]
pub fn pattern((rows, columns): (usize, usize), classes: usize) -> Tensor {
    let boxes: usize = [8, 16, 32].iter().map(|stride| (rows / stride) * (columns / stride)).sum();
    let mut answer = Tensor::zeros(&[1, 4 + classes, boxes]);
    let (height, width) = (rows as f32, columns as f32);
    for found in 0..boxes.min(5) {
        let place = (found as f32 + 0.5) / 5.0;
        let column = found * (boxes / 5).max(1);
        let values = [width * place, height * place, width / 8.0, height / 8.0];
        for (row, value) in values.into_iter().enumerate() {
            answer.data[row * boxes + column] = value;
        }
        if classes > 0 {
            let row = 4 + found % classes;
            answer.data[row * boxes + column] = 0.9 - 0.1 * found as f32;
        }
    }
    answer
}
