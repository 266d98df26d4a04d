//! How long preparing and decoding take, beside nothing else: `cargo bench -p
//! plimsoll-infer`. Raw outputs of a real detector are used where they lie beside the
//! repository; made-up ones otherwise.

#![expect(clippy::print_stdout, reason = "a table on the terminal is its purpose")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use plimsoll_infer::{
    Decoder, Frame, InferResult, Letterbox, ModelInfo, Pixels, Prepare, Tensor, Thresholds,
};

const TURNS: usize = 500;

fn main() -> InferResult<()> {
    println!("{:<44} {:>9} {:>9} {:>9}", "", "min ms", "p50 ms", "p99 ms");
    for (width, height) in [(1280, 720), (1920, 1080), (1000, 700), (640, 480)] {
        let count = width * height;
        prepare("rgb8", width, height, Pixels::Rgb8(noise(3 * count)))?;
    }
    prepare("grey8", 640, 512, Pixels::Grey8(noise(640 * 512)))?;
    let deep = noise(640 * 512).iter().map(|&byte| 7000 + u16::from(byte)).collect();
    prepare("grey16", 640, 512, Pixels::Grey16(deep))?;
    let outputs = [outputs()];
    for confidence in [0.6, 0.25, 0.01] {
        decode(&outputs, Thresholds { confidence, ..Thresholds::default() })?;
    }
    Ok(())
}

fn prepare(kind: &str, width: usize, height: usize, pixels: Pixels) -> InferResult<()> {
    let (timestamp, name) = (Duration::ZERO, String::new());
    let frame = Frame::new(pixels, (width, height), timestamp, name);
    let mut prepare = Prepare::new(640, 640);
    let mut out = Tensor::default();
    measure(&format!("prepare {kind} {width}x{height} to 640x640"), || {
        prepare.run(black_box(&frame), &mut out).map(|_| ())
    })
}

fn decode(outputs: &[Tensor], thresholds: Thresholds) -> InferResult<()> {
    let mut decoder = Decoder::new(&ModelInfo::default(), &[vec![1, 84, 8400]])?;
    let Some(letterbox) = Letterbox::fit((720, 1280), (640, 640)) else { return Ok(()) };
    let mut found = Vec::new();
    decoder.decode(outputs, &letterbox, &thresholds, &mut found)?;
    let name = format!("decode 84x8400 conf {} ({} found)", thresholds.confidence, found.len());
    measure(&name, || decoder.decode(black_box(outputs), &letterbox, &thresholds, &mut found))
}

/// Prints the least, the middle and the all but greatest of many times.
fn measure(name: &str, mut what: impl FnMut() -> InferResult<()>) -> InferResult<()> {
    let mut times = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let start = Instant::now();
        what()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let [min, p50, p99] =
        [0, TURNS / 2, TURNS * 99 / 100].map(|rank| times[rank].as_secs_f64() * 1e3);
    println!("{name:<44} {min:>9.3} {p50:>9.3} {p99:>9.3}");
    Ok(())
}

/// Bytes without a pattern.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A detector's raw output: a real one, or one sure of a place in a hundred.
fn outputs() -> Tensor {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/yolo/raw_0.f32");
    let shape = vec![1, 84, 8400];
    if let Ok(bytes) = std::fs::read(file) {
        let data = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
        return Tensor { shape, data: data.collect() };
    }
    let scores = noise(80 * 8400).into_iter().enumerate().map(|(at, byte)| {
        let sure = if at % 8400 % 100 == 0 { 255.0 } else { 2550.0 };
        f32::from(byte) / sure
    });
    let boxes = noise(4 * 8400).into_iter().map(|byte| f32::from(byte) * 2.0);
    Tensor { shape, data: boxes.chain(scores).collect() }
}
