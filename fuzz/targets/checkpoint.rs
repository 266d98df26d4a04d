//! Any bytes as a PyTorch checkpoint: refused, or a graph that our own reader understands.
//!
//! Two ways in. Bytes as they come must get past the zip file's checksums, which a fuzzer
//! seldom does, so most are taken as the pickle of a checkpoint whose storages are there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_models::onnx::OnnxHeader;
use plimsoll_models::{GraphOptions, pt};

/// A zip file with a pickle and some storages in it, stored as they are.
fn zipped(pickle: &[u8]) -> Vec<u8> {
    // Zeros, the strides of a head, numbers near 0.01, and bytes.
    let floats = |n: usize| 0.01 * n as f32;
    let strides = (0..128).map(|n| 8.0 * f32::from(1u8 << (n % 3)));
    let bytes = |numbers: Vec<f32>| numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    let storages: [Vec<u8>; 4] =
        [vec![0; 512], bytes(strides.collect()), bytes((1..129).map(floats).collect()), vec![3; 512]];
    let names = ["x/data.pkl", "x/data/0", "x/data/1", "x/data/2", "x/data/3"];
    let contents = std::iter::once(pickle).chain(storages.iter().map(Vec::as_slice));
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in names.iter().zip(contents) {
        let offset = file.len() as u32;
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for number in [crc(data), data.len() as u32, data.len() as u32] {
            common.extend_from_slice(&number.to_le_bytes());
        }
        common.extend_from_slice(&(name.len() as u16).to_le_bytes());
        common.extend_from_slice(&[0, 0]);
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\x14\x00", &common[..], &[0; 10]].concat());
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let (start, size) = (file.len() as u32, directory.len() as u32);
    file.extend_from_slice(&directory);
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0\x05\0\x05\0");
    file.extend_from_slice(&size.to_le_bytes());
    file.extend_from_slice(&start.to_le_bytes());
    file.extend_from_slice(&[0, 0]);
    file
}

fn crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

fuzz_target!(|bytes: &[u8]| {
    let mut options = GraphOptions::sized((64, 64));
    let Some((&how, rest)) = bytes.split_first() else { return };
    options.dynamic = how & 1 != 0;
    options.half = how & 2 != 0;
    let made = match how & 4 {
        0 => pt::to_onnx(&zipped(rest), &options),
        _ => pt::to_onnx(rest, &options),
    };
    if let Ok(onnx) = made {
        let header = OnnxHeader::parse(&onnx).expect("what we wrote we can read");
        assert_eq!(header.inputs.len(), 1);
        assert_eq!(header.outputs.len(), 1);
    }
});
