//! How long an engine takes for a model: `latency MODEL [auto|rten|ort|echo] [RUNS] [THREADS]`.
//!
//! For a first look; `plimsoll bench` measures with the rules that a report needs.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use plimsoll_infer::{EngineChoice, EngineOptions, ModelSource, Tensor, engine};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let get = |index: usize| arguments.get(index).map(String::as_str);
    let model = ModelSource::path(get(0).ok_or("usage: latency MODEL [ENGINE] [RUNS] [THREADS]")?);
    let choice: EngineChoice = get(1).unwrap_or("auto").parse()?;
    let runs: usize = get(2).unwrap_or("20").parse()?;
    let mut options = EngineOptions::default();
    options.threads = get(3).map(str::parse).transpose()?;
    let mut engine = engine::open(choice, &model, &options)?;
    let (rows, columns) = engine.model().input_size.unwrap_or(options.open_size());
    let mut input = Tensor::zeros(&[1, 3, rows, columns]);
    for (index, value) in input.data.iter_mut().enumerate() {
        *value = (index % 255) as f32 / 255.0;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs.max(1) {
        let begun = Instant::now();
        engine.run(&input)?;
        times.push(begun.elapsed());
    }
    times.sort();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:?}\n{:?}", engine.info(), engine.memory())?;
    writeln!(out, "least {:?}, median {:?}", times[0], times[times.len() / 2])?;
    Ok(())
}
