//! Runs models on frames from beginning to end, for `scripts/check-checkpoints`, which lays the
//! answers beside Ultralytics'. Each line of stdin is one job:
//!
//! ```text
//! graph CHECKPOINT OUT ROWSxCOLUMNS nms|nms-free
//! answer MODEL rten|ort ROWSxCOLUMNS CONF IOU MAX_DET OUT FRAME WIDTHxHEIGHT …
//! time segment|pose NAMES KPT_SHAPE CONF IOU MAX_DET TURNS RAW SHAPE …
//! ```
//!
//! `time` decodes raw outputs again and again and prints the count of detections and the
//! milliseconds of each turn.
//!
//! Frames are files of bytes, blue first, as OpenCV has them. Answers come out as JSON: for each
//! frame a list of detections; masks as run lengths over the model's input, row by row.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Duration;

use plimsoll_infer::engine::open;
use plimsoll_infer::{
    Decoder, Detail, Detection, EngineDevice, EngineKind, EngineOptions, Frame, Letterbox, Mask,
    ModelInfo, ModelSource, Pipeline, Pixels, Tensor, Thresholds,
};
use plimsoll_models::{GraphOptions, pt};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["graph", checkpoint, out, size, how] => {
                let mut options = GraphOptions::sized(extents(size)?.into());
                options.nms_free = *how == "nms-free";
                std::fs::write(out, pt::to_onnx(&std::fs::read(checkpoint)?, &options)?)?;
            }
            ["answer", model, engine, size, conf, iou, most, out, frames @ ..] => {
                let thresholds = Thresholds {
                    confidence: conf.parse()?,
                    iou: iou.parse()?,
                    max_detections: most.parse()?,
                };
                let answers = answer(model, engine, extents(size)?.into(), thresholds, frames)?;
                std::fs::write(out, serde_json::to_vec(&answers)?)?;
            }
            ["time", task, names, shape, conf, iou, most, turns, outputs @ ..] => {
                let thresholds = Thresholds {
                    confidence: conf.parse()?,
                    iou: iou.parse()?,
                    max_detections: most.parse()?,
                };
                time([task, names, shape], thresholds, turns.parse()?, outputs)?;
            }
            _ => return Err(format!("not a job: {line}").into()),
        }
    }
    Ok(())
}

/// Decodes outputs that lie in files of floats.
fn time(
    [task, names, keypoints]: [&str; 3],
    thresholds: Thresholds,
    turns: usize,
    outputs: &[&str],
) -> Result<(), Box<dyn Error>> {
    let mut tensors = Vec::new();
    for pair in outputs.chunks_exact(2) {
        let shape: Vec<usize> = pair[1].split('x').map(str::parse).collect::<Result<_, _>>()?;
        let bytes = std::fs::read(pair[0])?;
        let data = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        tensors.push(Tensor { shape, data });
    }
    let list: Vec<String> =
        (0..names.parse()?).map(|class: usize| format!("{class}: 'c{class}'")).collect();
    let mut model = ModelInfo { input_size: Some((640, 640)), ..ModelInfo::default() };
    for (key, value) in [
        ("task", task.to_string()),
        ("names", format!("{{{}}}", list.join(", "))),
        ("kpt_shape", format!("[{}]", keypoints.replace('x', ", "))),
    ] {
        model.metadata.insert(key.to_string(), value);
    }
    let shapes: Vec<Vec<usize>> = tensors.iter().map(|tensor| tensor.shape.clone()).collect();
    let mut decoder = Decoder::new(&model, &shapes)?;
    let letterbox = Letterbox::fit((720, 1280), (640, 640)).ok_or("nothing is left")?;
    let (mut found, mut times) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let begun = std::time::Instant::now();
        decoder.decode(&tensors, &letterbox, &thresholds, &mut found)?;
        times.push(1e3 * begun.elapsed().as_secs_f64());
    }
    writeln!(std::io::stdout(), "{}", json!({ "found": found.len(), "times": times }))?;
    Ok(())
}

fn answer(
    model: &str,
    engine: &str,
    size: (usize, usize),
    thresholds: Thresholds,
    frames: &[&str],
) -> Result<Vec<Value>, Box<dyn Error>> {
    let kind = if engine == "ort" { EngineKind::Ort } else { EngineKind::Rten };
    let mut options = EngineOptions::default();
    (options.device, options.threads) = (EngineDevice::Cpu, Some(2));
    options.input_size = Some(size);
    let engine = open(kind, &ModelSource::path(model), &options)?;
    let mut pipeline = Pipeline::new(engine, size, thresholds)?;
    let mut answers = Vec::new();
    for pair in frames.chunks_exact(2) {
        let [width, height] = extents(pair[1])?;
        let pixels = Pixels::Bgr8(std::fs::read(pair[0])?);
        let frame = Frame::new(pixels, (width, height), Duration::ZERO, pair[0].to_string());
        let found = pipeline.step(&frame, &mut ())?;
        answers.push(found.iter().map(described).collect());
    }
    Ok(answers)
}

fn described(found: &Detection) -> Value {
    let mut one = json!({
        "box": found.bounds, "confidence": found.confidence, "class": found.class,
    });
    match &found.detail {
        Detail::Mask(mask) => one["mask"] = runs(mask),
        Detail::Keypoints(points) => {
            let number = |point: &plimsoll_infer::Keypoint| {
                json!([point.x, point.y, point.confidence.unwrap_or(1.0)])
            };
            one["keypoints"] = points.iter().map(number).collect();
        }
        Detail::Oriented(turned) => {
            let [x, y] = turned.centre;
            let [width, height] = turned.size;
            one["turned"] = json!([x, y, width, height, turned.angle]);
        }
        _ => {}
    }
    one
}

/// Where the mask lies in the model's input, and the runs of its rows, zeros first.
fn runs(mask: &Mask) -> Value {
    let ([left, top], [width, height]) = (mask.origin(), mask.size());
    let (mut runs, mut ones, mut run) = (Vec::new(), false, 0_u32);
    for y in 0..height {
        for x in 0..width {
            if mask.has(left + x, top + y) != ones {
                runs.push(run);
                (ones, run) = (!ones, 0);
            }
            run += 1;
        }
    }
    runs.push(run);
    json!({ "left": left, "top": top, "width": width, "height": height, "runs": runs })
}

fn extents(text: &str) -> Result<[usize; 2], Box<dyn Error>> {
    let (first, second) = text.split_once('x').ok_or("AxB is missing")?;
    Ok([first.parse()?, second.parse()?])
}
