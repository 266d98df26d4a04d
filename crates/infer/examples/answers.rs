//! Runs models on frames from beginning to end, for `scripts/check-checkpoints`, which lays the
//! answers beside Ultralytics'. Each line of stdin is one job:
//!
//! ```text
//! graph CHECKPOINT OUT ROWSxCOLUMNS nms|nms-free
//! answer MODEL rten|ort ROWSxCOLUMNS CONF IOU MAX_DET OUT FRAME WIDTHxHEIGHT …
//! ```
//!
//! Frames are files of bytes, blue first, as OpenCV has them. Answers come out as JSON: for each
//! frame a list of detections; masks as run lengths over the model's input, row by row.

use std::error::Error;
use std::io::BufRead;
use std::time::Duration;

use plimsoll_infer::engine::open;
use plimsoll_infer::{
    Detail, Detection, EngineDevice, EngineKind, EngineOptions, Frame, Mask, ModelSource, Pipeline,
    Pixels, Thresholds,
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
            _ => return Err(format!("not a job: {line}").into()),
        }
    }
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
