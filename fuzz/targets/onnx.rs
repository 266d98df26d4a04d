//! Any bytes as an ONNX file: refused, or a header no larger than the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_models::onnx;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = onnx::OnnxHeader::parse(bytes) else { return };
    let values = || header.inputs.iter().chain(&header.outputs);
    let texts: usize = header.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let names: usize = values().map(|value| value.name.len()).sum();
    let extents: usize = values().filter_map(|value| value.shape.as_ref()).map(Vec::len).sum();
    assert!(header.producer.len() + texts + names + extents <= bytes.len());
});
