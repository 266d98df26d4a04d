//! Decoding against what Ultralytics makes of the same numbers, and of made-up ones.

use std::path::PathBuf;

use super::*;

fn model(metadata: &[(&str, &str)], outputs: &[(&str, &[usize])]) -> ModelInfo {
    ModelInfo {
        name: "made up".to_owned(),
        input_size: Some((640, 640)),
        outputs: outputs.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect(),
        metadata: metadata.iter().map(|&(key, value)| (key.into(), value.into())).collect(),
        ..ModelInfo::default()
    }
}

fn decoder(metadata: &[(&str, &str)], shape: &[usize]) -> InferResult<Decoder> {
    Decoder::new(&model(metadata, &[("output0", shape)]), &[shape.to_vec()])
}

fn tensor(shape: &[usize], data: Vec<f32>) -> Tensor {
    Tensor { shape: shape.to_vec(), data }
}

fn square() -> Letterbox {
    Letterbox::fit((640, 640), (640, 640)).unwrap()
}

fn decoded(decoder: &mut Decoder, output: Tensor) -> Vec<Detection> {
    let mut out = Vec::new();
    decoder.decode(&[output], &square(), &Thresholds::default(), &mut out).unwrap();
    out
}

const TWO: &[(&str, &str)] = &[("names", "{0: 'cat', 1: 'dog'}"), ("stride", "32")];

/// Three places: a cat, the same cat less surely, a dog.
const PLACES: [[f32; 6]; 3] = [
    [100.0, 100.0, 40.0, 20.0, 0.9, 0.2],
    [101.0, 100.0, 40.0, 20.0, 0.6, 0.1],
    [300.0, 200.0, 10.0, 10.0, 0.1, 0.8],
];

fn expected() -> Vec<Detection> {
    vec![
        Detection::boxed([80.0, 90.0, 120.0, 110.0], 0.9, 0),
        Detection::boxed([295.0, 195.0, 305.0, 205.0], 0.8, 1),
    ]
}

fn turned(places: &[[f32; 6]]) -> Vec<f32> {
    (0..6).flat_map(|row| places.iter().map(move |place| place[row])).collect()
}

#[test]
fn all_layouts_give_the_same_boxes() {
    let mut by_class = decoder(TWO, &[1, 6, 3]).unwrap();
    assert_eq!(by_class.names(), ["cat", "dog"]);
    assert_eq!(by_class.stride(), Some(32));
    assert_eq!(decoded(&mut by_class, tensor(&[1, 6, 3], turned(&PLACES))), expected());

    let metadata = [TWO, &[("end2end", "False")]].concat();
    let mut by_place = decoder(&metadata, &[1, 0, 6]).unwrap();
    assert_eq!(by_place.layout(), Some(Layout::ByPlace { classes: 2 }));
    assert_eq!(decoded(&mut by_place, tensor(&[1, 3, 6], PLACES.concat())), expected());

    let rows = PLACES.map(|[x, y, w, h, cat, dog]| [x, y, w, h, 0.5, 2.0 * cat, 2.0 * dog]);
    let mut objectness = decoder(TWO, &[1, 3, 7]).unwrap();
    assert_eq!(decoded(&mut objectness, tensor(&[1, 3, 7], rows.concat())), expected());

    let ready = expected();
    let rows: Vec<f32> = ready
        .iter()
        .flat_map(|found| [&found.bounds[..], &[found.confidence, found.class as f32]].concat())
        .chain([0.0; 6])
        .collect();
    let mut end_to_end = decoder(TWO, &[1, 3, 6]).unwrap();
    assert_eq!(end_to_end.layout(), Some(Layout::EndToEnd));
    assert_eq!(decoded(&mut end_to_end, tensor(&[1, 3, 6], rows)), ready);
}

#[test]
fn open_shapes_are_settled_by_the_first_output_and_may_change() {
    let mut open = decoder(TWO, &[0, 0, 0]).unwrap();
    assert_eq!(open.layout(), None);
    assert_eq!(decoded(&mut open, tensor(&[1, 6, 3], turned(&PLACES))), expected());
    assert_eq!(decoded(&mut open, tensor(&[1, 6, 1], turned(&PLACES[2..]))), expected()[1..]);
    let wrong = tensor(&[1, 6, 3], vec![0.0; 5]);
    let refused = open.decode(&[wrong], &square(), &Thresholds::default(), &mut Vec::new());
    assert!(matches!(refused, Err(InferError::Model { .. })));
}

#[test]
fn what_is_no_number_is_dropped() {
    let mut places = PLACES;
    places[0][5] = f32::NAN;
    places[2][0] = f32::INFINITY;
    let mut by_class = decoder(TWO, &[1, 6, 3]).unwrap();
    let found = decoded(&mut by_class, tensor(&[1, 6, 3], turned(&places)));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].confidence, 0.6);
}

#[test]
fn an_output_of_no_numbers_is_told_from_an_empty_frame() {
    let metadata = [TWO, &[("end2end", "False")]].concat();
    let layouts =
        [(TWO, [1, 6, 3]), (&metadata[..], [1, 3, 6]), (TWO, [1, 3, 7]), (TWO, [1, 4, 6])];
    for (metadata, shape) in layouts {
        let mut decoder = decoder(metadata, &shape).unwrap();
        let numbers: usize = shape.iter().product();
        for (value, none) in [(f32::NAN, true), (f32::INFINITY, true), (0.0, false)] {
            assert!(decoded(&mut decoder, tensor(&shape, vec![value; numbers])).is_empty());
            assert_eq!(decoder.gave_no_number(), none, "{shape:?} of {value}");
        }
    }
    // Sure of everything, and no box is one.
    let boxless = PLACES.map(|[_, _, w, h, cat, dog]| [f32::NAN, f32::NAN, w, h, cat, dog]);
    let mut by_class = decoder(TWO, &[1, 6, 3]).unwrap();
    assert!(decoded(&mut by_class, tensor(&[1, 6, 3], turned(&boxless))).is_empty());
    assert!(by_class.gave_no_number());
    assert_eq!(decoded(&mut by_class, tensor(&[1, 6, 3], turned(&PLACES))), expected());
    assert!(!by_class.gave_no_number());
}

#[test]
fn another_task_and_no_detector_are_named() {
    for task in ["segment", "pose", "classify", "obb"] {
        let said = decoder(&[("task", task)], &[1, 84, 8400]).unwrap_err().to_string();
        assert!(said.contains(task), "{said}");
    }
    let said = decoder(&[], &[1, 1000]).unwrap_err().to_string();
    assert!(said.contains("output0 [1, 1000]"), "{said}");
    let outputs: [(&str, &[usize]); 2] =
        [("output0", &[1, 116, 8400]), ("output1", &[1, 32, 160, 160])];
    let shapes: Vec<_> = outputs.iter().map(|(_, shape)| shape.to_vec()).collect();
    let said = Decoder::new(&model(&[], &outputs), &shapes).unwrap_err().to_string();
    assert!(said.contains("output1 [1, 32, 160, 160]"), "{said}");
}

/// The reference numbers, where the checkout has them beside it.
fn reference(name: &str) -> Option<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/yolo");
    let file = std::fs::read(root.join(name)).ok();
    if file.is_none() {
        println!("skipped: no shared/yolo/{name} beside the repository");
    }
    file
}

fn raw() -> Option<Tensor> {
    let numbers = reference("raw_0.f32")?;
    let data = numbers.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    Some(tensor(&[1, 84, 8400], data.collect()))
}

/// Bounds, confidence and class of each box.
fn boxes(list: &serde_json::Value) -> Vec<[f64; 6]> {
    let numbers = |one: &serde_json::Value| {
        let one = one.as_array().unwrap();
        std::array::from_fn(|at| one[at].as_f64().unwrap())
    };
    list.as_array().unwrap().iter().map(numbers).collect()
}

fn assert_same(found: &[Detection], expected: &[[f64; 6]]) {
    assert_eq!(found.len(), expected.len());
    let mut worst = (0.0_f64, 0.0_f64);
    for (one, other) in found.iter().zip(expected) {
        for (bound, other) in one.bounds.iter().zip(other) {
            worst.0 = worst.0.max((f64::from(*bound) - other).abs());
        }
        worst.1 = worst.1.max((f64::from(one.confidence) - other[4]).abs());
        assert_eq!(f64::from(one.class), other[5]);
    }
    println!("{} boxes, off by at most {} px and {}", found.len(), worst.0, worst.1);
    assert!(worst.0 < 0.01 && worst.1 < 1e-4);
}

const LIKE_THE_REFERENCE: Thresholds =
    Thresholds { confidence: 0.6, iou: 0.45, max_detections: 3000 };

#[test]
fn equals_ultralytics_in_tensor_pixels() {
    let (Some(output), Some(text)) = (raw(), reference("nms_0.json")) else { return };
    let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let mut decoder = decoder(&[], &[1, 84, 8400]).unwrap();
    let mut found = Vec::new();
    let keep = |one: &Candidate| {
        let Candidate { bounds, confidence, class, .. } = *one;
        found.push(Detection::boxed(bounds, confidence, class));
    };
    decoder.find(&[output], &LIKE_THE_REFERENCE, keep).unwrap();
    assert_same(&found, &boxes(&record["letterboxed_detections"]));
}

#[test]
fn equals_ultralytics_in_frame_pixels() {
    let (Some(output), Some(text)) = (raw(), reference("predict.jsonl")) else { return };
    let first = text.split(|&byte| byte == b'\n').next().unwrap();
    let record: serde_json::Value = serde_json::from_slice(first).unwrap();
    let mut decoder = decoder(&[], &[1, 84, 8400]).unwrap();
    let letterbox = Letterbox::fit((720, 1280), (640, 640)).unwrap();
    let mut found = Vec::new();
    decoder.decode(&[output], &letterbox, &LIKE_THE_REFERENCE, &mut found).unwrap();
    assert_same(&found, &boxes(&record["detections"]));
}
