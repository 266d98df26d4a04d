//! Forged networks: small files that ask for more than any machine has.

use super::*;

/// An object of a class with a dict of these fields: text, then what builds the value.
fn object(module: &str, name: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = format!("c{module}\n{name}\n)").into_bytes();
    out.extend_from_slice(b"\x81");
    out.extend(dict(fields));
    out.push(b'b');
    out
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(super) fn dict(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"}(".to_vec();
    for (name, value) in fields {
        out.extend(text(name));
        out.extend_from_slice(value);
    }
    out.push(b'u');
    out
}

const CONTAINER: &str = "torch.nn.modules.container";

fn network(layers: Vec<u8>) -> Vec<u8> {
    let modules = dict(&[("model", layers)]);
    object("ultralytics.nn.tasks", "DetectionModel", &[("_modules", modules)])
}

fn saved(root: &[u8]) -> Vec<u8> {
    with_pickle(&[b"\x80\x02", root, b"."].concat())
}

fn checkpoint(layers: Vec<u8>) -> Vec<u8> {
    saved(&dict(&[("model", network(layers))]))
}

fn layers(first: Vec<u8>) -> Vec<u8> {
    let head = object("ultralytics.nn.modules.head", "Detect", &[("f", b"K\x00".to_vec())]);
    object(CONTAINER, "Sequential", &[("_modules", dict(&[("0", first), ("1", head)]))])
}

/// A route from the layer before.
const BEFORE: (&str, &[u8]) = ("f", b"J\xff\xff\xff\xff");

/// A view of a storage of f32: `0` has sixteen zeros, `1` an eight.
fn tensor(key: &str, offset: &[u8], shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let class = b"ctorch\nFloatStorage\n".to_vec();
    let id = [b"(".to_vec(), text("storage"), class, text(key), text("cpu"), b"K\x10tQ".to_vec()];
    let view = [offset, shape, strides, b"\x89NtR"].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(), id.concat(), view].concat()
}

/// A convolution by one pixel, as far as its weights say so.
fn conv(weight: Vec<u8>, more: &[(&'static str, &[u8])]) -> Vec<u8> {
    let parameters = dict(&[("weight", weight)]);
    let mut fields = vec![("_parameters", parameters), ("groups", b"K\x01".to_vec())];
    fields.extend(["kernel_size", "stride", "dilation"].map(|name| (name, b"K\x01".to_vec())));
    fields.push(("padding", b"K\x00".to_vec()));
    fields.extend(more.iter().map(|(name, value)| (*name, value.to_vec())));
    object("torch.nn.modules.conv", "Conv2d", &fields)
}

/// A whole detector: these layers, and a head of stride 8 on the last of them for three
/// channels, with weights of this shape for its classes.
fn detector(before: &[Vec<u8>], classes: &[u8], weight: &[u8]) -> Vec<u8> {
    checkpoint(with_head(before, classes, weight))
}

fn with_head(before: &[Vec<u8>], classes: &[u8], weight: &[u8]) -> Vec<u8> {
    let flat = b"(K\x00K\x00K\x00K\x00t";
    let branch = |shape: &[u8]| {
        let conv = conv(tensor("0", b"K\x00", shape, flat), &[]);
        object(CONTAINER, "ModuleList", &[("_modules", dict(&[("0", conv)]))])
    };
    let branches = dict(&[("cv2", branch(b"(K\x04K\x03K\x01K\x01t")), ("cv3", branch(weight))]);
    let fields = [
        ("f", BEFORE.1.to_vec()),
        ("nc", classes.to_vec()),
        ("reg_max", b"K\x01".to_vec()),
        ("stride", tensor("1", b"K\x00", b"K\x01\x85", b"K\x01\x85")),
        ("_modules", branches),
    ];
    let head = object("ultralytics.nn.modules.head", "Detect", &fields);
    let names: Vec<String> = (0..=before.len()).map(|n| n.to_string()).collect();
    let all = names.iter().map(String::as_str).zip(before.iter().cloned().chain([head]));
    let modules = dict(&all.collect::<Vec<_>>());
    object(CONTAINER, "Sequential", &[("_modules", modules)])
}

/// Every eighth pixel.
fn pool() -> Vec<u8> {
    let mut fields = vec![("f", BEFORE.1.to_vec())];
    fields.extend(["kernel_size", "stride"].map(|name| (name, b"K\x08".to_vec())));
    fields.extend([("padding", b"K\x00".to_vec()), ("dilation", b"K\x01".to_vec())]);
    object("torch.nn.modules.pooling", "MaxPool2d", &fields)
}

const TWO: &[u8] = b"K\x02";
const FOR_TWO: &[u8] = b"(K\x02K\x03K\x01K\x01t";

#[test]
fn a_forged_detector_is_one() {
    let file = to_onnx(&detector(&[pool()], TWO, FOR_TWO), &options()).unwrap();
    let header = super::super::super::onnx::OnnxHeader::parse(&file).unwrap();
    assert_eq!(header.outputs[0].shape, Some(vec![Some(1), Some(6), Some(64)]));
    // Saved bare, without the dict around it, it is the same.
    let bare = saved(&network(with_head(&[pool()], TWO, FOR_TWO)));
    assert_eq!(to_onnx(&bare, &options()), Ok(file));
}

#[test]
fn no_more_places_are_made_than_the_image_has() {
    let grown = object(
        "torch.nn.modules.upsampling",
        "Upsample",
        &[("f", BEFORE.1.to_vec()), ("mode", text("nearest")), ("scale_factor", b"K\x40".to_vec())],
    );
    let all = why(&detector(&[], TWO, FOR_TWO));
    assert!(all.contains("(64, 64) places for a stride of 8 on 64x64"), "{all}");
    let grid = why(&detector(std::slice::from_ref(&grown), TWO, FOR_TWO));
    assert!(grid.contains("(4096, 4096) places for a stride of 8"), "{grid}");
    // Past the end of what can be counted, were it not held.
    let past = why(&detector(&vec![grown; 20], TWO, FOR_TWO));
    assert!(past.contains("model.1: an image with a side over 16384"), "{past}");
}

#[test]
fn channels_and_classes_are_held_to_weights_that_are_there() {
    let join = object(
        "ultralytics.nn.modules.conv",
        "Concat",
        &[("f", [&b"]("[..], BEFORE.1, BEFORE.1, b"e"].concat()), ("d", b"K\x01".to_vec())],
    );
    let doubled = [vec![pool()], vec![join; 80]].concat();
    let why = self::why(&detector(&doubled, TWO, FOR_TWO));
    assert!(why.contains("model.19: more than 1048576 channels to join"), "{why}");
    // Billions of classes by weights for no channels, which take no bytes.
    let billions = b"J\xff\xff\xff\x7f";
    let none = [b"(", &billions[..], b"K\x00K\x01K\x01t"].concat();
    let none = self::why(&detector(&[pool()], billions, &none));
    assert!(none.contains("2147483647 classes"), "{none}");
    let empty = tensor("0", b"K\x00", b"(K\x04K\x00K\x01K\x01t", FOR_TWO);
    let empty = self::why(&detector(&[pool(), conv(empty, &[BEFORE])], TWO, FOR_TWO));
    assert!(empty.contains("weights of shape [4, 0, 1, 1]"), "{empty}");
}

#[test]
fn loops_and_trees_of_billions_end() {
    // A Sequential (memo 7) that holds itself.
    let own = dict(&[("0", b"h\x07".to_vec())]);
    let looped = [
        format!("c{CONTAINER}\nSequential\n)").as_bytes(),
        b"\x81q\x07",
        &dict(&[("f", b"J\xff\xff\xff\xff".to_vec()), ("_modules", own)]),
        b"b",
    ]
    .concat();
    let why = why(&checkpoint(layers(looped)));
    assert!(why.contains("nested deeper"), "{why}");
    // Twenty-five levels, each the one below it ten times over.
    let mut tower = object("torch.nn.modules.linear", "Identity", &[("_modules", dict(&[]))]);
    for level in 0..25u8 {
        tower.extend([b'q', level + 10]);
        let again: Vec<(String, Vec<u8>)> =
            (1..10).map(|n| (n.to_string(), vec![b'h', level + 10])).collect();
        let mut all = vec![("0", tower)];
        all.extend(again.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let fields = [("f", b"J\xff\xff\xff\xff".to_vec()), ("_modules", dict(&all))];
        tower = object(CONTAINER, "Sequential", &fields);
    }
    let why = self::why(&checkpoint(layers(tower)));
    assert!(why.contains("far more"), "{why}");
}

#[test]
fn views_cannot_ask_for_more_than_the_file_has() {
    let conv = |weight| checkpoint(layers(conv(weight, &[BEFORE])));
    let tensor = |offset: &[u8], shape: &[u8], strides: &[u8]| tensor("0", offset, shape, strides);
    let huge = b"(J\xff\xff\xff\x7fK\x03K\x01K\x01t";
    let flat = b"(K\x00K\x00K\x01K\x01t";
    assert!(why(&conv(tensor(b"K\x00", huge, flat))).contains("far more"));
    let past = b"(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7fK\x01t";
    assert!(why(&conv(tensor(b"K\x00", past, flat))).contains("past everything"));
    let small = b"(K\x02K\x03K\x01K\x01t";
    let steps = b"(K\x09K\x01K\x01K\x01t";
    let beyond = why(&conv(tensor(b"K\x09", small, steps)));
    assert!(beyond.contains("model.0.weight") && beyond.contains("past the end"), "{beyond}");
    // As it should be, it is the head that fails.
    let fine = why(&conv(tensor(b"K\x00", small, steps)));
    assert!(fine.contains("model.1"), "{fine}");
}
