//! What stands around an engine costs, taken in turns so that load from others hits all alike:
//! `costs MODEL FRAMES ENGINE [ROUNDS]`.
//!
//! - the engine alone, on prepared tensors, beside the whole on frames in memory;
//! - a bare loop over a source, beside a real run of `bench` with all its measuring and
//!   sampling.
//!
//! Prints one JSON object: medians in milliseconds, and the medians of the rounds' ratios.

#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use plimsoll_bench::stats::median;
use plimsoll_bench::workload::{BenchPlan, Silent, run};
use plimsoll_infer::engine::{self, EngineOptions};
use plimsoll_infer::source::{self, SourceOptions};
use plimsoll_infer::{
    EngineChoice, Frame, Letterbox, ModelSource, Pipeline, Prepare, Stage, Stopwatch, Tensor,
    Thresholds,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Frames of a round, of each kind.
const FRAMES: u64 = 40;

/// Takes the time of the engine.
struct Lap {
    last: Instant,
    engine: Duration,
}

impl Stopwatch for Lap {
    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        if stage == Stage::Inference {
            self.engine = now - self.last;
        }
        self.last = now;
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, frames, engine, rest @ ..] = &arguments[..] else {
        return Err("usage: costs MODEL FRAMES ENGINE [ROUNDS]".into());
    };
    let rounds: usize = rest.first().map_or(Ok(7), |text| text.parse())?;
    let choice: EngineChoice = engine.parse()?;
    let mut pipeline = open(model, choice)?;
    let kept: Vec<Frame> = frames_of(frames)?;
    let tensors = prepared(&pipeline, &kept)?;
    let mut found = [const { Vec::new() }; 4];
    let mut ratios = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        let (alone, whole) = in_memory(&mut pipeline, &kept, &tensors)?;
        let bare = bare(&mut pipeline, frames)?;
        let measured = measured(model, frames, choice)?;
        ratios[0].push(whole / alone);
        ratios[1].push(measured / bare);
        for (list, value) in found.iter_mut().zip([alone, whole, bare, measured]) {
            list.push(value);
        }
    }
    let [alone, whole, bare, measured] = found.map(|list| median(&list).unwrap_or(f64::NAN));
    let [around, measuring] = ratios.map(|list| median(&list).unwrap_or(f64::NAN));
    println!(
        "{{\"engine_alone_ms\":{alone:.4},\"whole_in_memory_ms\":{whole:.4},\
         \"whole_over_engine\":{around:.5},\"bare_ms\":{bare:.4},\"measured_ms\":{measured:.4},\
         \"measured_over_bare\":{measuring:.5},\"rounds\":{rounds}}}"
    );
    Ok(())
}

fn open(model: &str, choice: EngineChoice) -> Result<Pipeline> {
    let options = EngineOptions::default();
    let engine = engine::open(choice, &ModelSource::path(model), &options)?;
    Ok(Pipeline::new(engine, options.open_size(), Thresholds::default())?)
}

fn frames_of(spec: &str) -> Result<Vec<Frame>> {
    let mut source = source::open(spec, &SourceOptions::default())?;
    let mut kept = Vec::new();
    while let (Some(frame), true) = (source.next_frame(), kept.len() < 8) {
        kept.push(frame?);
    }
    Ok(kept)
}

fn prepared(pipeline: &Pipeline, frames: &[Frame]) -> Result<Vec<(Tensor, Letterbox)>> {
    let (height, width) = pipeline.size();
    let one = |frame: &Frame| {
        let mut tensor = Tensor::default();
        let letterbox = Prepare::new(height, width).run(frame, &mut tensor)?;
        Ok((tensor, letterbox))
    };
    frames.iter().map(one).collect()
}

/// The engine alone and the whole, frame by frame in turns.
fn in_memory(
    pipeline: &mut Pipeline,
    frames: &[Frame],
    tensors: &[(Tensor, Letterbox)],
) -> Result<(f64, f64)> {
    let (mut alone, mut whole) = (Vec::new(), Vec::new());
    for turn in 0..FRAMES as usize {
        let (tensor, letterbox) = &tensors[turn % tensors.len()];
        let mut lap = Lap { last: Instant::now(), engine: Duration::ZERO };
        pipeline.step_prepared(tensor, letterbox, &mut lap)?;
        alone.push(lap.engine.as_secs_f64() * 1e3);
        let begun = Instant::now();
        pipeline.step(&frames[turn % frames.len()], &mut ())?;
        whole.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok((median(&alone).unwrap_or(f64::NAN), median(&whole).unwrap_or(f64::NAN)))
}

/// A loop over a source that does nothing but its steps.
fn bare(pipeline: &mut Pipeline, spec: &str) -> Result<f64> {
    let mut times = Vec::new();
    let mut source = source::open(spec, &SourceOptions::default())?;
    while (times.len() as u64) < FRAMES {
        let Some(frame) = source.next_frame() else {
            source = source::open(spec, &SourceOptions::default())?;
            continue;
        };
        let frame = frame?;
        let begun = Instant::now();
        pipeline.step(&frame, &mut ())?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times).unwrap_or(f64::NAN))
}

/// A real run, with its reports, its samples and its files.
fn measured(model: &str, spec: &str, engine: EngineChoice) -> Result<f64> {
    let place = std::env::temp_dir().join(format!("plimsoll-costs-{}", std::process::id()));
    let plan = BenchPlan {
        source: Some(spec.to_string()),
        models: [Some(model.into()), None],
        engine,
        max_frames: Some(FRAMES),
        // A source that ends starts over.
        duration: Some(Duration::from_secs(600)),
        output_dir: place.clone(),
        ..BenchPlan::default()
    };
    let finished = run(&plan, &mut Silent, &AtomicBool::new(false));
    drop(std::fs::remove_dir_all(&place));
    let record = finished?.record;
    let performance = record.models[0].performance.as_ref();
    Ok(performance.ok_or("the run measured nothing")?.whole.p50_ms)
}
