//! The order of the stages, and what a step hands over.

use std::time::Duration;

use super::*;
use crate::engine::{EngineInfo, ModelInfo};
use crate::source::Pixels;

/// Answers one box, whatever it is asked.
struct Fixed {
    info: EngineInfo,
    model: ModelInfo,
    outputs: Vec<Tensor>,
}

impl InferenceEngine for Fixed {
    fn info(&self) -> &EngineInfo {
        &self.info
    }
    fn model(&self) -> &ModelInfo {
        &self.model
    }
    fn run(&mut self, _: &Tensor) -> InferResult<&[Tensor]> {
        Ok(&self.outputs)
    }
}

fn pipeline() -> Pipeline {
    let answer = Tensor { shape: vec![1, 1, 6], data: vec![0.0, 16.0, 64.0, 48.0, 0.9, 2.0] };
    let engine = Fixed {
        info: EngineInfo::default(),
        model: ModelInfo { input_size: Some((64, 64)), ..ModelInfo::default() },
        outputs: vec![answer],
    };
    Pipeline::new(Box::new(engine), (640, 640), Thresholds::default()).unwrap()
}

#[derive(Default)]
struct Laps(Vec<Stage>);

impl Stopwatch for Laps {
    fn lap(&mut self, stage: Stage) {
        self.0.push(stage);
    }
}

#[test]
fn a_step_laps_every_stage_and_answers_in_frame_pixels() {
    let mut pipeline = pipeline();
    assert_eq!(pipeline.size(), (64, 64));
    let pixels = Pixels::Grey8(vec![0; 128 * 64]);
    let frame = Frame::new(pixels, (128, 64), Duration::ZERO, "0".to_owned());
    let mut laps = Laps::default();
    let found = pipeline.step(&frame, &mut laps).unwrap();
    let expected = Detection::boxed([0.0, 0.0, 128.0, 64.0], 0.9, 2);
    assert_eq!(found, [expected]);
    assert_eq!(laps.0, [Stage::Prepare, Stage::Inference, Stage::Decode]);
}

#[test]
fn a_prepared_step_has_no_prepare() {
    let mut laps = Laps::default();
    let letterbox = Letterbox::fit((64, 64), (64, 64)).unwrap();
    let input = Tensor::zeros(&[1, 3, 64, 64]);
    let mut pipeline = pipeline();
    assert_eq!(pipeline.step_prepared(&input, &letterbox, &mut laps).unwrap().len(), 1);
    assert_eq!(laps.0, [Stage::Inference, Stage::Decode]);
}
