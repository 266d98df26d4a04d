//! What measuring itself costs: the `echo` engine on a prepared tensor, with everything that
//! the loop of a run does around a step. Prints frames a second and the cost beside the
//! stages, for outputs of YOLO11n at 256 and at 640 pixels.

#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::time::{Duration, Instant};

use plimsoll_bench::measure::{FrameSample, SlotMeter};
use plimsoll_infer::engine::echo::pattern;
use plimsoll_infer::engine::{self, EngineKind, EngineOptions};
use plimsoll_infer::{
    Frame, ModelSource, Pipeline, Pixels, Prepare, Stage, Stopwatch, Tensor, Thresholds,
};

const FRAMES: u64 = 100_000;

struct Laps(Instant, [Duration; 3]);

impl Stopwatch for Laps {
    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.1[stage as usize] = now - self.0;
        self.0 = now;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure(256, 80)?;
    measure(640, 80)
}

fn measure(side: usize, classes: usize) -> Result<(), Box<dyn std::error::Error>> {
    let size = (side, side);
    let mut options = EngineOptions::default();
    options.input_size = Some(size);
    options.echo.answers = vec![pattern(size, classes)];
    let engine = engine::open(EngineKind::Echo, &ModelSource::path("echo"), &options)?;
    let mut pipeline = Pipeline::new(engine, size, Thresholds::default())?;
    let pixels = Pixels::Rgb8(vec![0; 640 * 480 * 3]);
    let frame = Frame::new(pixels, (640, 480), Duration::ZERO, "black".to_string());
    let mut input = Tensor::default();
    let letterbox = Prepare::new(size.0, size.1).run(&frame, &mut input)?;
    let mut meter = SlotMeter::new(None);
    let mut found = 0;
    let origin = Instant::now();
    for number in 0..FRAMES {
        let begun = Instant::now();
        let mut laps = Laps(begun, [Duration::ZERO; 3]);
        found += pipeline.step_prepared(&input, &letterbox, &mut laps)?.len();
        let whole = begun.elapsed();
        let [prepare, inference, decode] = laps.1;
        let at = begun - origin;
        let sample = FrameSample {
            frame: number,
            at,
            prepare,
            inference,
            decode,
            whole,
            ..Default::default()
        };
        meter.push(&sample);
    }
    let seconds = origin.elapsed().as_secs_f64();
    let Some(performance) = meter.performance() else { return Ok(()) };
    let stages = performance.inference.p50_ms + performance.decode.p50_ms;
    println!("{side} pixels, {classes} classes:");
    println!("  {:.0} frames a second, {found} detections", FRAMES as f64 / seconds);
    println!(
        "  whole p50 {:.2} µs, of it stages {:.2} µs",
        performance.whole.p50_ms * 1e3,
        stages * 1e3
    );
    Ok(())
}
