//! The embedded detectors on scenes that they have not seen: other seeds, other backgrounds,
//! other numbers of objects. The same nets with their weights shuffled must fail.
//!
//! Preparing and decoding are written out here in their plainest form, so that this test
//! judges the detectors alone.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says what it measured"
)]

use std::time::{Duration, Instant};

use plimsoll_infer::source::synthetic::{CLASSES, SceneKind, SceneOptions, Synthetic, demo::model};
use plimsoll_infer::{Frame, Pixels, Truth};
use rten::{Model, NodeId};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, NdTensorView};

const SIZE: usize = 256;

/// A detection or an object, in frame pixels.
#[derive(Clone, Copy)]
struct Found {
    bounds: [f32; 4],
    class: u32,
    sure: f32,
}

/// Three channels of 8 bits.
fn colours(frame: &Frame) -> Vec<[f32; 3]> {
    match &frame.pixels {
        Pixels::Rgb8(bytes) => {
            bytes.chunks_exact(3).map(|p| [p[0], p[1], p[2]].map(f32::from)).collect()
        }
        Pixels::Grey16(heat) => {
            let mut sorted = heat.clone();
            sorted.sort_unstable();
            let at = |part: f32| f32::from(sorted[(part * (sorted.len() - 1) as f32) as usize]);
            let (low, high) = (at(0.01), at(0.99));
            let grey = |h: u16| ((f32::from(h) - low) / (high - low).max(1.0)).clamp(0.0, 1.0);
            heat.iter().map(|&h| [(grey(h) * 255.0).floor(); 3]).collect()
        }
        other => panic!("no scene has {other:?}"),
    }
}

/// Ultralytics' letterbox: the tensor, the scale and the padding.
fn letterbox(frame: &Frame) -> (NdTensor<f32, 4>, f32, [f32; 2]) {
    let pixels = colours(frame);
    let (width, height) = (frame.width, frame.height);
    let scale = SIZE as f32 / width.max(height) as f32;
    let columns = (width as f32 * scale).round() as usize;
    let rows = (height as f32 * scale).round() as usize;
    let pad = [SIZE - columns, SIZE - rows].map(|p| (p as f32 / 2.0 - 0.1).round());
    let mut tensor = NdTensor::full([1, 3, SIZE, SIZE], 114.0 / 255.0);
    let corner = |place: f32, count: usize| {
        let place = place.clamp(0.0, (count - 1) as f32);
        let low = place as usize;
        (low, (low + 1).min(count - 1), place - low as f32)
    };
    for y in 0..rows {
        let (y0, y1, v) = corner((y as f32 + 0.5) * height as f32 / rows as f32 - 0.5, height);
        for x in 0..columns {
            let (x0, x1, u) = corner((x as f32 + 0.5) * width as f32 / columns as f32 - 0.5, width);
            for c in 0..3 {
                let at = |x: usize, y: usize| pixels[y * width + x][c];
                let top = at(x0, y0) * (1.0 - u) + at(x1, y0) * u;
                let bottom = at(x0, y1) * (1.0 - u) + at(x1, y1) * u;
                let value = (top * (1.0 - v) + bottom * v).round() / 255.0;
                tensor[[0, c, y + pad[1] as usize, x + pad[0] as usize]] = value;
            }
        }
    }
    (tensor, scale, pad)
}

fn iou(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |b: [f32; 4]| (b[2] - b[0]).max(0.0) * (b[3] - b[1]).max(0.0);
    let common = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    common / (area(a) + area(b) - common).max(1e-6)
}

/// Confidence 0.25, then class-aware suppression at 0.45.
fn decode(output: NdTensorView<f32, 3>, scale: f32, pad: [f32; 2]) -> Vec<Found> {
    let mut all: Vec<Found> = (0..output.size(2))
        .map(|cell| {
            let at = |row: usize| output[[0, row, cell]];
            let scores = (0..CLASSES.len()).map(|class| (class as u32, at(4 + class)));
            let (class, sure) = scores.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            let (x, y) = ((at(0) - pad[0]) / scale, (at(1) - pad[1]) / scale);
            let (w, h) = (at(2) / scale / 2.0, at(3) / scale / 2.0);
            Found { bounds: [x - w, y - h, x + w, y + h], class, sure }
        })
        .filter(|found| found.sure > 0.25)
        .collect();
    all.sort_by(|a, b| b.sure.total_cmp(&a.sure));
    let mut kept: Vec<Found> = Vec::new();
    for found in all {
        if kept.iter().all(|k| k.class != found.class || iou(k.bounds, found.bounds) <= 0.45) {
            kept.push(found);
        }
    }
    kept
}

/// How many detections are right, each object found once.
fn right(found: &[Found], truth: &[Truth]) -> usize {
    let mut left = truth.to_vec();
    let mut right = 0;
    for found in found {
        let same = left.iter().enumerate().filter(|(_, t)| t.class == found.class);
        let best =
            same.map(|(i, t)| (i, iou(t.bounds, found.bounds))).max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((i, share)) = best
            && share >= 0.5
        {
            left.remove(i);
            right += 1;
        }
    }
    right
}

/// Precision and recall on scenes that were not trained on.
fn judge(kind: SceneKind, file: Vec<u8>, seed: u64, frames: u64) -> (f64, f64) {
    let model = Model::load(file).unwrap();
    let input: NodeId = model.node_id("images").unwrap();
    let output: NodeId = model.node_id("output0").unwrap();
    let mut options = SceneOptions::new(kind);
    options.seed = seed;
    let scenes = Synthetic::new(options);
    let (mut hits, mut said, mut real) = (0, 0, 0);
    let mut spent = Duration::ZERO;
    for number in 0..frames {
        let frame = scenes.frame(number);
        let (tensor, scale, pad) = letterbox(&frame);
        let began = Instant::now();
        let [made] = model.run_n(vec![(input, tensor.into())], [output], None).unwrap();
        spent += began.elapsed();
        let made: NdTensor<f32, 3> = made.try_into().unwrap();
        assert_eq!(made.size(1), 4 + CLASSES.len());
        let found = decode(made.view(), scale, pad);
        let truth = frame.truth.unwrap();
        hits += right(&found, &truth);
        said += found.len();
        real += truth.len();
    }
    println!("{kind:?}: {:.2} ms a frame in the engine", spent.as_secs_f64() * 1e3 / frames as f64);
    (hits as f64 / (said as f64).max(1.0), hits as f64 / (real as f64).max(1.0))
}

#[test]
fn both_detectors_find_nine_tenths_of_what_they_never_saw() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        let (precision, recall) = judge(kind, model(kind).to_vec(), 4711, 100);
        println!("{kind:?}: precision {precision:.4}, recall {recall:.4}");
        assert!(precision >= 0.9 && recall >= 0.9, "{kind:?}: {precision} {recall}");
    }
}

#[test]
fn the_same_nets_with_shuffled_weights_fail() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        let mut file = model(kind).to_vec();
        let mut shuffled = 0;
        for range in weights(&file) {
            shuffle(&mut file[range]);
            shuffled += 1;
        }
        assert!(shuffled > 10, "only {shuffled} tensors");
        let (precision, recall) = judge(kind, file, 4711, 15);
        assert!(precision < 0.5 || recall < 0.5, "{kind:?}: {precision} {recall}");
    }
}

#[test]
fn the_files_are_small_and_say_what_they_are() {
    for kind in [SceneKind::Rgb, SceneKind::Thermal] {
        let file = model(kind);
        assert!(file.len() <= 2_000_000, "{} bytes", file.len());
        let text = String::from_utf8_lossy(file);
        for class in CLASSES {
            assert!(text.contains(&format!("'{class}'")), "{class}");
        }
        assert!(text.contains("detect") && text.contains("stride"));
    }
}

/// Swaps the numbers of a tensor about, always in the same way.
fn shuffle(bytes: &mut [u8]) {
    let mut state = 1_u64;
    let count = bytes.len() / 4;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let j = (state >> 33) as usize % (i + 1);
        for byte in 0..4 {
            bytes.swap(i * 4 + byte, j * 4 + byte);
        }
    }
}

/// Where the large tensors of an ONNX file lie: model → graph (7) → initializer (5) → raw
/// data (9), in protobuf's wire format.
fn weights(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let graphs = fields(file, 0..file.len(), 7);
    let tensors = graphs.into_iter().flat_map(|graph| fields(file, graph, 5));
    let raw = tensors.flat_map(|tensor| fields(file, tensor, 9));
    raw.filter(|range| range.len() > 1000).collect()
}

fn fields(file: &[u8], within: std::ops::Range<usize>, wanted: u64) -> Vec<std::ops::Range<usize>> {
    let mut at = within.start;
    let mut found = Vec::new();
    let varint = |at: &mut usize| {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = file[*at];
            *at += 1;
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    };
    while at < within.end {
        let key = varint(&mut at);
        match key & 7 {
            0 => drop(varint(&mut at)),
            1 => at += 8,
            5 => at += 4,
            _ => {
                let length = varint(&mut at) as usize;
                if key >> 3 == wanted {
                    found.push(at..at + length);
                }
                at += length;
            }
        }
    }
    found
}
