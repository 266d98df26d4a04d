use proptest::prelude::*;

use super::*;

fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = body.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(body);
    out
}

fn value(name: &str, extents: &[u8]) -> Vec<u8> {
    let extents: Vec<u8> = extents
        .iter()
        .flat_map(|&n| if n == 0 { field(1, &field(2, b"any")) } else { field(1, &[0x08, n]) })
        .collect();
    let tensor = [vec![0x08, 1], field(2, &extents)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn model(graph: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[0x08, 8][..], &field(2, b"maker"), &field(7, graph), rest].concat()
}

#[test]
fn reads_names_shapes_and_metadata() {
    let graph = [
        field(5, &field(8, b"weight")),
        field(11, &value("images", &[1, 3, 64, 96])),
        field(11, &value("weight", &[7])),
        field(12, &value("output0", &[1, 84, 0])),
    ]
    .concat();
    let entry = field(14, &[field(1, b"stride"), field(2, b"32")].concat());
    let header = OnnxHeader::parse(&model(&graph, &entry)).expect("read");
    assert_eq!(header.producer, "maker");
    assert_eq!(header.metadata["stride"], "32");
    assert_eq!(header.inputs.len(), 1, "a weight is no input");
    assert_eq!((header.inputs[0].name.as_str(), header.inputs[0].element), ("images", F32));
    assert_eq!(header.inputs[0].shape, Some(vec![Some(1), Some(3), Some(64), Some(96)]));
    assert_eq!(header.outputs[0].shape, Some(vec![Some(1), Some(84), None]));
}

/// A file with a weight of four numbers that lie in another file.
fn outside(entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().map(|(key, text)| {
        field(13, &[field(1, key.as_bytes()), field(2, text.as_bytes())].concat())
    });
    let weight = [&[0x08, 4, 0x10, 1][..], &field(8, b"w"), &entries.collect::<Vec<_>>().concat()];
    let version = field(8, &[0x10, 17]);
    model(&field(5, &weight.concat()), &version)
}

#[test]
fn weights_in_other_files_are_files_of_their_length() {
    let folder = tempfile::tempdir().expect("made");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("w.bin"), [0; 16]).expect("written");
    std::fs::create_dir(at("sub")).expect("made");
    let pipe = std::process::Command::new("mkfifo").arg(at("pipe")).status();
    assert!(pipe.expect("started").success());
    let open = |entries: &[(&str, &str)]| {
        std::fs::write(at("a.onnx"), outside(entries)).expect("written");
        OnnxGraph::open(&at("a.onnx")).map(|graph| graph.values.len())
    };
    for entries in [
        &[("location", "w.bin")][..],
        &[("location", "w.bin"), ("length", "16")],
        &[("location", "w.bin"), ("offset", "0"), ("length", "16")],
    ] {
        assert_eq!(open(entries).expect("read"), 1, "{entries:?}");
    }
    for (entries, words) in [
        (&[("location", "sub")][..], "no regular file"),
        (&[("location", "pipe")], "no regular file"),
        (&[("location", "none.bin")], "none.bin"),
        (&[("location", "")], "without a name"),
        (&[("location", "w.bin"), ("length", "-5")], "a length that is no number"),
        (&[("location", "w.bin"), ("length", "4")], "less data than its extents say"),
        (&[("location", "w.bin"), ("length", "17")], "17 bytes"),
        (&[("location", "w.bin"), ("offset", "4")], "20 bytes"),
    ] {
        let error = open(entries).expect_err("refused").to_string();
        assert!(error.contains(words), "{entries:?}: {error}");
    }
}

#[test]
fn what_is_no_model_is_refused_with_the_place() {
    assert!(matches!(OnnxHeader::parse(b""), Err(OnnxError::NoGraph)));
    let error = OnnxHeader::parse(&[0x3a, 0x7f, 1]).expect_err("refused");
    assert!(matches!(error, OnnxError::Truncated { have: 3, need: 129, .. }), "{error}");
    // Inside of a message it is no longer the file that ends.
    let error = OnnxHeader::parse(&[0x3a, 2, 0x0a, 0x7f, 0x08, 1]).expect_err("refused");
    assert!(matches!(error, OnnxError::Damaged { what: "an early end", at: 4 }), "{error}");
    let endless = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let error = OnnxHeader::parse(&endless).expect_err("refused");
    assert!(
        matches!(error, OnnxError::Damaged { what: "a number without an end", at: 1 }),
        "{error}"
    );
    let huge = [0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert!(OnnxHeader::parse(&huge).is_err());
}

#[test]
fn too_much_metadata_is_refused() {
    let entries: Vec<u8> = (0..=parse::MOST_METADATA_ENTRIES)
        .flat_map(|n| field(14, &field(1, format!("key{n}").as_bytes())))
        .collect();
    let error = OnnxHeader::parse(&model(b"", &entries)).expect_err("refused");
    assert!(matches!(error, OnnxError::TooMuch { what: "metadata entries", .. }), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = OnnxHeader::parse(&bytes);
    }

    #[test]
    fn a_damaged_model_is_read_or_refused(at in 0usize..200, byte in any::<u8>(), cut in 0usize..200) {
        let graph = [field(11, &value("x", &[1, 2])), field(12, &value("y", &[0]))].concat();
        let mut bytes = model(&graph, &field(14, &field(1, b"k")));
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len().saturating_sub(cut % 8));
        let _ = OnnxHeader::parse(&bytes);
    }
}
