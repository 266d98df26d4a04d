//! Checkpoints as Ultralytics saves them, as older ones were, and as a stranger might.

use std::time::{Duration, Instant};

use super::archive::tests::{Part, part, write};
use super::*;

mod forged;

use forged::dict;

macro_rules! family {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/fixtures/", $name, ".pt"))
    };
}

const SMALL11: &[u8] = include_bytes!("../../../tests/fixtures/small11.pt");
const SMALL8: &[u8] = include_bytes!("../../../../../docs/examples/small8.pt");

const SEGMENT: &[u8] = family!("smallseg");

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
    let source = CheckpointFile::Memory(file);
    let archive = CheckpointArchive::open(&source).unwrap();
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
    let eight = 8.0f32.to_le_bytes();
    write(&[part("x/data.pkl", pickle), part("x/data/0", &[0; 64]), part("x/data/1", &eight)])
}

#[test]
fn a_checkpoint_becomes_a_graph_with_its_names_and_stride() {
    let header =
        super::super::onnx::OnnxHeader::parse(&to_onnx(SMALL11, &options()).unwrap()).unwrap();
    assert_eq!(header.metadata["names"], r#"{0: 'ship', 1: "it's", 2: 'buoy'}"#);
    assert_eq!((&*header.metadata["stride"], &*header.metadata["task"]), ("16", "detect"));
    assert_eq!(header.metadata["imgsz"], "[64, 64]");
    assert_eq!(header.metadata["version"], "8.4.0");
    assert_eq!(header.inputs[0].shape, Some(vec![Some(1), Some(3), Some(64), Some(64)]));
    assert_eq!(header.outputs[0].shape, Some(vec![Some(1), Some(7), Some(80)]));
    let any = GraphOptions { dynamic: true, ..options() };
    let header = super::super::onnx::OnnxHeader::parse(&to_onnx(SMALL8, &any).unwrap()).unwrap();
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
    let other = replaced(SEGMENT, "tasks\nSegmentationModel\n", "tasks\nStereoModel\n");
    let why = why(&replaced(&other, "segment", "stereos"));
    assert!(why.contains("`stereos`") && why.contains("classify"), "{why}");
    for (from, to, told) in [
        ("tasks\nDetectionModel\n", "tasks\nStereoModel\n", "StereoModel at the root"),
        ("head\nDetect\n", "head\nStereo\n", "head.Stereo at model."),
        ("head\nDetect\n", "head\nOBB\n", "no count \"ne\""),
        ("head\nDetect\n", "head\nSegment\n", "no count \"nm\""),
        ("head\nDetect\n", "head\nPose\n", "no pair of counts \"kpt_shape\""),
        ("head\nDetect\n", "head\nRTDETRDecoder\n", "no module \"input_proj\""),
    ] {
        let why = self::why(&replaced(SMALL11, from, to));
        assert!(why.contains(told), "{why}");
    }
}

/// Every small network, with and without the head that needs no suppression.
#[test]
fn every_family_and_task_becomes_a_graph_whose_header_says_so() {
    for (name, file, task, shapes) in FAMILIES {
        let header = |options: &GraphOptions| {
            let graph = to_onnx(file, options).unwrap_or_else(|why| panic!("{name}: {why}"));
            super::super::onnx::OnnxHeader::parse(&graph).unwrap()
        };
        let read = header(&options());
        assert_eq!(read.metadata["task"], task, "{name}");
        let shape = |output: &super::super::onnx::ValueInfo| -> Vec<usize> {
            output.shape.iter().flatten().map(|extent| extent.unwrap_or(0)).collect()
        };
        let found: Vec<Vec<usize>> = read.outputs.iter().map(shape).collect();
        assert_eq!(found, shapes, "{name}");
        let free = header(&GraphOptions { nms_free: true, ..options() });
        let both = name.ends_with("10") || name.contains("26");
        assert_eq!(free.metadata["end2end"], if both { "True" } else { "False" }, "{name}");
        let any = GraphOptions { dynamic: true, ..options() };
        match to_onnx(file, &any) {
            Ok(_) => assert_ne!(name, "smallrt"),
            Err(why) => assert!(name == "smallrt" && why.to_string().contains("one size")),
        }
        // Without what is in the weights, as sizes are told from.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pt");
        std::fs::write(&path, file).unwrap();
        let outlined = outline(File::open(&path).unwrap(), &options()).unwrap();
        assert!(matches!(outlined, Outline::Graph(_)), "{name}");
    }
}

type Family = (&'static str, &'static [u8], &'static str, &'static [&'static [usize]]);

const FAMILIES: [Family; 10] = [
    ("small9", family!("small9"), "detect", &[&[1, 7, 32]]),
    ("small10", family!("small10"), "detect", &[&[1, 7, 32]]),
    ("smallseg", SEGMENT, "segment", &[&[1, 15, 80], &[1, 8, 16, 16]]),
    ("smallpose", family!("smallpose"), "pose", &[&[1, 16, 80]]),
    ("smallobb", family!("smallobb"), "obb", &[&[1, 8, 80]]),
    ("smallcls", family!("smallcls"), "classify", &[&[1, 3]]),
    ("small26seg", family!("small26seg"), "segment", &[&[1, 15, 80], &[1, 8, 16, 16]]),
    ("small26pose", family!("small26pose"), "pose", &[&[1, 16, 80]]),
    ("small26obb", family!("small26obb"), "obb", &[&[1, 8, 80]]),
    ("smallrt", family!("smallrt"), "detect", &[&[1, 20, 6]]),
];

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
    assert!(why(b"no").contains("not a zip file"));
    // In the file a change is found by the checksum; within it, by what is read.
    let mut broken = SMALL11.to_vec();
    broken[SMALL11.len() / 2] ^= 1;
    assert!(why(&broken).contains("checksum"));
    let source = CheckpointFile::Memory(SMALL11);
    let archive = CheckpointArchive::open(&source).unwrap();
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

#[test]
fn numbers_are_read_in_the_order_that_the_file_says() {
    let said = |order: &[u8], swap: bool| {
        let source = CheckpointFile::Memory(SMALL8);
        let archive = CheckpointArchive::open(&source).unwrap();
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
    let state = || dict(&[("model.0.conv.weight", b"N".to_vec())]);
    let saved = |root: &[u8]| why(&with_pickle(&[b"\x80\x02", root, b"."].concat()));
    // As torch has it: an OrderedDict, with fields of its own.
    let ordered = [b"ccollections\nOrderedDict\n)R".to_vec(), state()[1..].to_vec(), state()];
    let ordered = [ordered.concat(), b"b".to_vec()].concat();
    for root in [
        state(),
        ordered.clone(),
        dict(&[("model", ordered.clone())]),
        dict(&[("model", b"K\x01".to_vec()), ("state_dict", ordered)]),
    ] {
        assert!(saved(&root).contains("state_dict"), "{}", saved(&root));
    }
    assert!(saved(b"N").contains("None where"), "{}", saved(b"N"));
    let other = saved(&dict(&[("epoch", b"K\x07".to_vec())]));
    assert!(other.contains("no network") && other.contains("epoch"), "{other}");
    let size = saved(b"ctorch\nSize\n)R");
    assert!(size.contains("torch.Size where a checkpoint"), "{size}");
}

#[test]
fn other_forms_of_pytorch_are_told() {
    assert!(why(b"\x80\x02.").starts_with("it is in PyTorch's format from before 1.6"));
    let parts = [part("x/data.pkl", b"c__torch__\nW\n)\x81."), part("x/constants.pkl", b").")];
    let why = why(&write(&parts));
    assert!(why.starts_with("it is TorchScript"), "{why}");
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
