//! Any numbers in any shape as a detector's output: refused, or detections that keep every
//! promise. The first bytes choose the shape, the metadata and the thresholds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_infer::{Decoder, Letterbox, Tensor, Thresholds};
use plimsoll_models::ModelInfo;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, numbers)) = bytes.split_first_chunk::<8>() else { return };
    let &[rank, middle, inner, names, flags, confidence, iou, most] = head;
    let mut model = ModelInfo::default();
    model.input_size = (flags & 1 != 0).then_some((64, 64));
    if flags & 2 != 0 {
        let list: Vec<String> = (0..names % 8).map(|at| format!("{at}: 'a'")).collect();
        model.metadata.insert("names".into(), format!("{{{}}}", list.join(", ")));
    }
    if flags & 4 != 0 {
        model.metadata.insert("end2end".into(), if flags & 8 != 0 { "True" } else { "False" }.into());
    }
    let data: Vec<f32> =
        numbers.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    // A shape that fits the numbers, unless a flag asks for one that lies.
    let (middle, inner) = match (usize::from(middle), usize::from(inner)) {
        (0, inner) if flags & 16 == 0 && inner > 0 => (data.len() / inner, inner),
        (middle, _) if flags & 16 == 0 && middle > 0 => (middle, data.len() / middle),
        extents => extents,
    };
    let shape = match rank % 8 {
        0 => vec![],
        1 => vec![1, middle],
        2 => vec![1, middle, inner, 1],
        3 => vec![2, middle, inner],
        _ => vec![1, middle, inner],
    };
    let mut data = data;
    if flags & 32 == 0 {
        data.truncate(middle.saturating_mul(inner));
    }
    let asked = if flags & 64 != 0 { vec![vec![0, 0, 0]] } else { vec![shape.clone()] };
    let Ok(mut decoder) = Decoder::new(&model, &asked) else { return };
    let letterbox = Letterbox::fit((36, 64), (64, 64)).expect("a frame with pixels");
    let thresholds = Thresholds {
        confidence: f32::from(confidence) / 255.0,
        iou: f64::from(iou) / 255.0,
        max_detections: usize::from(most),
    };
    let mut found = Vec::new();
    let outputs = [Tensor { shape, data }];
    for _ in 0..2 {
        if decoder.decode(&outputs, &letterbox, &thresholds, &mut found).is_err() {
            return;
        }
        assert!(found.len() <= thresholds.max_detections);
        for one in &found {
            assert!(one.confidence.is_finite() && one.confidence > thresholds.confidence);
            let [left, top, right, bottom] = one.bounds;
            for (bound, extent) in [(left, 64.0), (right, 64.0), (top, 36.0), (bottom, 36.0)] {
                assert!((0.0..=extent).contains(&bound), "{one:?}");
            }
        }
    }
});
