//! What a detector and its frames take on a GPU, by every figure that there is:
//!
//! ```text
//! device_memory MODEL [ort|tensorrt] [FRAMES] [LIMIT]
//! ```
//!
//! Frames of 1280x720 pixels run through the whole pipeline on `cuda:0`. The figures are those of
//! the engine (its allocator and our buffers), of this library's pools alone (our buffers), and
//! of the driver (everything, its context included). After the first frame a step must neither
//! allocate on the device nor change an address, so the figures must not rise any more; the
//! example fails where they do.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use plimsoll::backend::cuda::Cuda;
use plimsoll::{Bytes, Device, get_gpu_peaks};
use plimsoll_infer::{
    EngineChoice, EngineDevice, EngineOptions, Frame, ModelSource, Pipeline, Pixels, Thresholds,
    engine,
};

const WIDTH: usize = 1280;
const HEIGHT: usize = 720;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let get = |index: usize| arguments.get(index).map(String::as_str);
    let usage = "usage: device_memory MODEL [ENGINE] [FRAMES] [LIMIT]";
    let model = ModelSource::path(get(0).ok_or(usage)?);
    let choice: EngineChoice = get(1).unwrap_or("ort").parse()?;
    let frames: usize = get(2).unwrap_or("300").parse()?;
    let mut options = EngineOptions::default();
    options.device = EngineDevice::Cuda(0);
    options.memory_limit = get(3).map(str::parse).transpose()?;
    let device = Cuda::open(0)?;
    let before = device.free_memory()?;
    let engine = engine::open(choice, &model, &options)?;
    let size = options.open_size();
    let mut pipeline = Pipeline::new(engine, size, Thresholds::default())?;
    let frame = |number: usize| -> Frame {
        let pixels = (0..3 * WIDTH * HEIGHT).map(|index| (index * 7 + number * 31) as u8).collect();
        Frame::new(Pixels::Rgb8(pixels), (WIDTH, HEIGHT), Duration::ZERO, number.to_string())
    };
    pipeline.step(&frame(0), &mut ())?;
    let first = (pipeline.engine().memory(), get_gpu_peaks());
    let (begun, ready) = (Instant::now(), frame(1));
    for _ in 0..frames {
        pipeline.step(&ready, &mut ())?;
    }
    let elapsed = begun.elapsed();
    let last = (pipeline.engine().memory(), get_gpu_peaks());
    let taken = before.saturating_sub(device.free_memory()?);
    let mut out = std::io::stdout().lock();
    let info = pipeline.engine().info();
    writeln!(out, "engine    {} on {}; fallbacks {:?}", info.name, info.device, info.fallbacks)?;
    writeln!(out, "limit     {:?}, applied: {}", options.memory_limit, info.limit_applied)?;
    writeln!(out, "fps       {:.1}", frames as f64 / elapsed.as_secs_f64())?;
    if let Some(memory) = last.0 {
        let show = |bytes: Option<u64>| bytes.map_or("unknown".into(), |n| Bytes(n).to_string());
        let (in_use, peak) = (show(memory.in_use), show(memory.peak));
        writeln!(
            out,
            "engine    {in_use} in use, {peak} at most, {} reserved",
            show(memory.reserved)
        )?;
    }
    if let Some(peaks) = last.1 {
        writeln!(out, "our pools {} at most, {} reserved", peaks.allocated, peaks.reserved)?;
    }
    writeln!(out, "driver    {taken} less free than before, the context included")?;
    if first.1 != last.1 {
        return Err(format!("steps took memory from the pools: {first:?}, then {last:?}").into());
    }
    Ok(())
}
