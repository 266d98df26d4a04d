//! Runs prepare and decode on files of plain numbers, for `scripts/check-decode`, which lays
//! what comes out beside Ultralytics'. Each line of stdin is one case:
//!
//! ```text
//! prepare PIXELS rgb|bgr|grey WIDTHxHEIGHT SIDExSIDE OUT
//! decode RAW 1x84x8400 NAMES CONF IOU MAX_DET WIDTHxHEIGHT SIDExSIDE OUT
//! ```
//!
//! Files hold bytes or little-endian 32-bit floats; detections come out as six floats each.

use std::error::Error;
use std::io::BufRead;
use std::time::Duration;

use plimsoll_infer::{Decoder, Frame, Letterbox, ModelInfo, Pixels, Prepare, Tensor, Thresholds};

fn main() -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["prepare", pixels, kind, frame, side, out] => {
                prepare([pixels, kind, frame, side, out])?
            }
            ["decode", raw, shape, names, conf, iou, most, frame, side, out] => {
                let thresholds = Thresholds {
                    confidence: conf.parse()?,
                    iou: iou.parse()?,
                    max_detections: most.parse()?,
                };
                decode([raw, shape, names, frame, side, out], &thresholds)?;
            }
            _ => return Err(format!("not a case: {line}").into()),
        }
    }
    Ok(())
}

fn prepare([pixels, kind, frame, side, out]: [&str; 5]) -> Result<(), Box<dyn Error>> {
    let pixels = std::fs::read(pixels)?;
    let pixels = match kind {
        "rgb" => Pixels::Rgb8(pixels),
        "bgr" => Pixels::Bgr8(pixels),
        _ => Pixels::Grey8(pixels),
    };
    let ([width, height], [columns, rows]) = (extents(frame)?, extents(side)?);
    let (timestamp, name) = (Duration::ZERO, String::new());
    let frame = Frame::new(pixels, (width, height), timestamp, name);
    let mut tensor = Tensor::default();
    Prepare::new(rows, columns).run(&frame, &mut tensor)?;
    write(out, tensor.data.into_iter())
}

fn decode(
    [raw, shape, names, frame, side, out]: [&str; 6],
    thresholds: &Thresholds,
) -> Result<(), Box<dyn Error>> {
    let ([width, height], [columns, rows]) = (extents(frame)?, extents(side)?);
    let shape: Vec<usize> = shape.split('x').map(str::parse).collect::<Result<_, _>>()?;
    let bytes = std::fs::read(raw)?;
    let data = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let mut model = ModelInfo { input_size: Some((rows, columns)), ..ModelInfo::default() };
    let names: usize = names.parse()?;
    if names > 0 {
        let list: Vec<String> = (0..names).map(|class| format!("{class}: 'c{class}'")).collect();
        model.metadata.insert("names".to_owned(), format!("{{{}}}", list.join(", ")));
    }
    let letterbox = Letterbox::fit((height, width), (rows, columns)).ok_or("nothing is left")?;
    let mut found = Vec::new();
    let outputs = [Tensor { shape, data }];
    let mut decoder = Decoder::new(&model, &[outputs[0].shape.clone()])?;
    decoder.decode(&outputs, &letterbox, thresholds, &mut found)?;
    let six = found.iter().flat_map(|one| {
        let [left, top, right, bottom] = one.bounds;
        [left, top, right, bottom, one.confidence, one.class as f32]
    });
    write(out, six)
}

fn extents(text: &str) -> Result<[usize; 2], Box<dyn Error>> {
    let (first, second) = text.split_once('x').ok_or("WIDTHxHEIGHT is missing")?;
    Ok([first.parse()?, second.parse()?])
}

fn write(path: &str, numbers: impl Iterator<Item = f32>) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(path, numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())?)
}
