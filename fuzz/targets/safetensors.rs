//! Any bytes as a safetensors file, and any text as a config.json: refused, or sums that the
//! file can hold.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use plimsoll_models::safetensors;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensors) = safetensors::SafetensorsTensors::read(Cursor::new(bytes)) {
        assert!(tensors.bytes() <= bytes.len() as u64);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(safetensors::HfConfig { shape: Some(shape), .. }) = safetensors::HfConfig::parse(text) {
        let _ = shape.with_context(4096).estimate_with(Default::default());
    }
});
