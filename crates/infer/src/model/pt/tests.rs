//! Checkpoints as Ultralytics saves them, as older ones were, and as a stranger might.

use std::time::{Duration, Instant};

use super::zip::tests::{Part, part, write};
use super::*;

const SMALL11: &[u8] = include_bytes!("../../../tests/fixtures/small11.pt");
const SMALL8: &[u8] = include_bytes!("../../../../../docs/examples/small8.pt");

fn options() -> GraphOptions {
    GraphOptions::sized((64, 64))
}

fn why(file: &[u8]) -> String {
    let begun = Instant::now();
    let why = to_onnx(file, &options()).expect_err("refused").to_string();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {why}", begun.elapsed());
    why
}

/// The parts of a checkpoint, its pickle changed.
fn changed(file: &[u8], change: impl Fn(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let source = Source::Memory(file);
    let archive = Archive::open(&source).unwrap();
    let parts: Vec<Part> = archive
        .names()
        .map(|name| {
            let data = archive.read(name).unwrap().unwrap().to_vec();
            part(name, &if name.ends_with("data.pkl") { change(data) } else { data })
        })
        .collect();
    write(&parts)
}

fn replaced(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    changed(file, |pickle| {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let mut out = Vec::new();
        let mut rest = &pickle[..];
        let mut found = false;
        while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(to);
            rest = &rest[at + from.len()..];
            found = true;
        }
        assert!(found, "{from:?} is not there");
        out.extend_from_slice(rest);
        out
    })
}

fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    write(&[part("x/data.pkl", pickle), part("x/data/0", &[0; 64])])
}

#[test]
fn a_checkpoint_becomes_a_graph_with_its_names_and_stride() {
    let header = super::super::onnx::Header::parse(&to_onnx(SMALL11, &options()).unwrap()).unwrap();
    assert_eq!(header.metadata["names"], r#"{0: 'ship', 1: "it's", 2: 'buoy'}"#);
    assert_eq!((&*header.metadata["stride"], &*header.metadata["task"]), ("16", "detect"));
    assert_eq!(header.metadata["imgsz"], "[64, 64]");
    assert_eq!(header.metadata["version"], "8.4.0");
    assert_eq!(header.inputs[0].shape, Some(vec![Some(1), Some(3), Some(64), Some(64)]));
    assert_eq!(header.outputs[0].shape, Some(vec![Some(1), Some(7), Some(80)]));
    let any = GraphOptions { dynamic: true, ..options() };
    let header = super::super::onnx::Header::parse(&to_onnx(SMALL8, &any).unwrap()).unwrap();
    assert_eq!(header.inputs[0].shape, Some(vec![None, Some(3), None, None]));
}

#[test]
fn older_files_name_the_same_modules_elsewhere() {
    let new = to_onnx(SMALL8, &options()).unwrap();
    let mut old = replaced(SMALL8, "ultralytics.nn.modules.block\n", "ultralytics.nn.modules\n");
    for place in ["conv", "head"] {
        let from = format!("ultralytics.nn.modules.{place}\n");
        old = replaced(&old, &from, "ultralytics.nn.modules\n");
    }
    assert_eq!(to_onnx(&old, &options()).unwrap(), new);
}

#[test]
fn what_is_not_supported_is_named_with_its_place() {
    let why = why(&replaced(SMALL11, "block\nC3k2\n", "block\nC9k9\n"));
    assert!(why.contains("ultralytics.nn.modules.block.C9k9 at model.2"), "{why}");
    let why = self::why(&replaced(SMALL11, "block\nBottleneck\n", "block\nX.y\n"));
    assert!(why.contains("X.y at model.2.m.0"), "{why}");
    let own = self::why(&replaced(SMALL11, "ultralytics.nn.modules.block\nSPPF\n", "mine\nSPPF\n"));
    assert!(own.contains("mine.SPPF at model.8"), "{own}");
    let v10 = replaced(SMALL11, "tasks\nDetectionModel\n", "tasks\nYOLOv10DetectionModel\n");
    assert!(self::why(&v10).contains("YOLOv10DetectionModel at the root"), "{}", self::why(&v10));
}

#[test]
fn other_tasks_are_told() {
    for (from, to, task) in [
        ("tasks\nDetectionModel\n", "tasks\nSegmentationModel\n", "segment"),
        ("tasks\nDetectionModel\n", "tasks\nClassificationModel\n", "classify"),
        ("tasks\nDetectionModel\n", "tasks\nPoseModel\n", "pose"),
        ("head\nDetect\n", "head\nOBB\n", "obb"),
        ("head\nDetect\n", "head\nSegment\n", "segment"),
    ] {
        let why = why(&replaced(SMALL11, from, to));
        assert!(why.contains(&format!("`{task}`")), "{why}");
    }
}

#[test]
fn code_in_a_file_is_named_and_not_run() {
    let called = b"cposix\nsystem\nX\x04\x00\x00\x00true\x85R";
    let root = why(&with_pickle(&[b"\x80\x02", &called[..], b"."].concat()));
    assert!(root.contains("posix.system") && root.contains("nothing of it was run"), "{root}");
    // Called and thrown away, before a good checkpoint is built.
    let thrown =
        why(&changed(SMALL11, |pickle| [&pickle[..2], &called[..], b"0", &pickle[2..]].concat()));
    assert!(thrown.contains("posix.system"), "{thrown}");
    let getattr = b"c__builtin__\ngetattr\nNX\x08\x00\x00\x00__init__\x86R0";
    let reached = changed(SMALL11, |p| [&p[..2], &getattr[..], &p[2..]].concat());
    assert!(why(&reached).contains("getattr of \"__init__\""), "{}", why(&reached));
    let through = replaced(SMALL11, "activation\nSiLU\n", "activation\nSiLU.__init__\n");
    assert!(why(&through).contains("SiLU.__init__"), "{}", why(&through));
}

#[test]
fn cut_and_changed_files_are_refused_in_time() {
    for cut in (0..SMALL11.len()).step_by(SMALL11.len() / 40) {
        why(&SMALL11[..cut]);
    }
    assert!(why(b"").contains("empty"));
    assert!(why(b"\x80\x02.").contains("before 1.6"));
    assert!(why(b"no").contains("not a zip file"));
    // In the file a change is found by the checksum; within it, by what is read.
    let mut broken = SMALL11.to_vec();
    broken[SMALL11.len() / 2] ^= 1;
    assert!(why(&broken).contains("checksum"));
    let source = Source::Memory(SMALL11);
    let archive = Archive::open(&source).unwrap();
    let name = archive.names().find(|name| name.ends_with("data.pkl")).unwrap();
    let length = archive.read(name).unwrap().unwrap().len();
    for at in (0..length).step_by(length / 150) {
        let begun = Instant::now();
        let _ = to_onnx(
            &changed(SMALL11, |mut pickle| {
                pickle[at] ^= 0x15;
                pickle
            }),
            &options(),
        );
        assert!(begun.elapsed() < Duration::from_secs(20), "byte {at}");
    }
}

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

fn dict(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"}(".to_vec();
    for (name, value) in fields {
        out.extend(text(name));
        out.extend_from_slice(value);
    }
    out.push(b'u');
    out
}

const CONTAINER: &str = "torch.nn.modules.container";

fn checkpoint(layers: Vec<u8>) -> Vec<u8> {
    let modules = dict(&[("model", layers)]);
    let model = object("ultralytics.nn.tasks", "DetectionModel", &[("_modules", modules)]);
    with_pickle(&[b"\x80\x02".to_vec(), dict(&[("model", model)]), b".".to_vec()].concat())
}

fn layers(first: Vec<u8>) -> Vec<u8> {
    let head = object("ultralytics.nn.modules.head", "Detect", &[("f", b"K\x00".to_vec())]);
    object(CONTAINER, "Sequential", &[("_modules", dict(&[("0", first), ("1", head)]))])
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
    // Thirty storeys, each the one below it ten times over.
    let mut tower = object("torch.nn.modules.linear", "Identity", &[("_modules", dict(&[]))]);
    for storey in 0..25u8 {
        tower.extend([b'q', storey + 10]);
        let again: Vec<(String, Vec<u8>)> =
            (1..10).map(|n| (n.to_string(), vec![b'h', storey + 10])).collect();
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
    let tensor = |offset: &[u8], shape: &[u8], strides: &[u8]| {
        let id = [
            b"(".to_vec(),
            text("storage"),
            b"ctorch\nFloatStorage\n".to_vec(),
            text("0"),
            text("cpu"),
            b"K\x10tQ".to_vec(),
        ]
        .concat();
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(),
            id,
            offset.to_vec(),
            shape.to_vec(),
            strides.to_vec(),
            b"\x89NtR".to_vec(),
        ]
        .concat()
    };
    let conv = |weight: Vec<u8>| {
        let one = b"K\x01K\x01\x86".to_vec();
        let mut fields = vec![
            ("f", b"J\xff\xff\xff\xff".to_vec()),
            ("_parameters", dict(&[("weight", weight)])),
        ];
        for name in ["kernel_size", "stride", "dilation", "padding"] {
            fields.push((name, one.clone()));
        }
        fields.push(("groups", b"K\x01".to_vec()));
        checkpoint(layers(object("torch.nn.modules.conv", "Conv2d", &fields)))
    };
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

#[test]
fn numbers_are_read_in_the_order_that_the_file_says() {
    let said = |order: &[u8], swap: bool| {
        let source = Source::Memory(SMALL8);
        let archive = Archive::open(&source).unwrap();
        let parts = archive.names().map(|name| {
            let mut data = archive.read(name).unwrap().unwrap().to_vec();
            // The last storage holds the strides in f32, the others bf16, save counters of
            // batches, which nothing reads.
            if swap && name.contains("/data/") {
                let width = if name.ends_with("/258") { 4 } else { 2 };
                data.chunks_exact_mut(width).for_each(<[u8]>::reverse);
            }
            part(name, if name.ends_with("/byteorder") { order } else { &data })
        });
        write(&parts.collect::<Vec<_>>())
    };
    let little = to_onnx(SMALL8, &options()).unwrap();
    assert_eq!(to_onnx(&said(b"little", false), &options()).unwrap(), little);
    assert_eq!(to_onnx(&said(b"big", true), &options()).unwrap(), little);
    assert_ne!(to_onnx(&said(b"big", false), &options()).ok(), Some(little));
    for order in ["middle", "", "bigger", "Little"] {
        let why = why(&said(order.as_bytes(), false));
        assert!(why.contains(&format!("byteorder is {order:?}")), "{why}");
    }
}

#[test]
fn weights_without_a_network_are_told() {
    let state = dict(&[("model.0.conv.weight", b"N".to_vec())]);
    let why = why(&with_pickle(&[b"\x80\x02".to_vec(), state, b".".to_vec()].concat()));
    assert!(why.contains("state_dict"), "{why}");
    let none = self::why(&with_pickle(b"\x80\x02N."));
    assert!(none.contains("None where"), "{none}");
}

#[test]
fn weights_without_a_network_are_counted_by_type() {
    let text =
        |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let tensor = |kind: &str, key: &str| {
        let class = format!("ctorch\n{kind}Storage\n").into_bytes();
        let named = [text("storage"), class, text(key), text("cpu"), b"K\x04tQ".to_vec()].concat();
        let view = b"K\0(K\x02t(K\x01t\x89ccollections\nOrderedDict\n)RtR".to_vec();
        [b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(), named, view].concat()
    };
    let state = dict(&[
        ("a.weight", tensor("Float", "0")),
        ("b.weight", tensor("Float", "0")),
        ("c.weight", tensor("Half", "1")),
        ("epoch", b"K\x07".to_vec()),
    ]);
    let outlined = |state: Vec<u8>| {
        let pickle = [b"\x80\x02".to_vec(), state, b".".to_vec()].concat();
        let parts =
            [part("x/data.pkl", &pickle), part("x/data/0", &[0; 16]), part("x/data/1", &[0; 6])];
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &write(&parts)).unwrap();
        outline(file, &GraphOptions::default())
    };
    let sums = BTreeMap::from([("f32", (16, 4)), ("f16", (6, 3))]);
    assert_eq!(outlined(state.clone()), Ok(Outline::Weights(sums.clone())), "a storage once");
    assert_eq!(outlined(dict(&[("state_dict", state)])), Ok(Outline::Weights(sums)));
    assert!(outlined(dict(&[("epoch", b"K\x07".to_vec())])).is_err());
}

#[test]
fn sizes_must_fit_the_stride() {
    let odd = GraphOptions::sized((64, 72));
    let why = to_onnx(SMALL11, &odd).expect_err("72 is no multiple of 32").to_string();
    assert!(why.contains("multiples of 32"), "{why}");
    assert!(to_onnx(SMALL11, &GraphOptions::sized((96, 64))).is_ok());
    assert!(to_onnx(SMALL11, &GraphOptions::sized((0, 64))).is_err());
    assert!(to_onnx(SMALL11, &GraphOptions::sized((1 << 20, 64))).is_err());
}
