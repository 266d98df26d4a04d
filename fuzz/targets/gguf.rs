//! Any bytes as a GGUF file: refused, or a model whose weights the file can hold.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use plimsoll_models::gguf;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = gguf::GgufHeader::read(Cursor::new(bytes)) else { return };
    assert!(header.tensors.bytes() <= bytes.len() as u64);
    let Ok(model) = gguf::GgufModel::new(&header) else { return };
    if let Some(shape) = model.shape {
        let _ = shape.with_context(4096).estimate_with(Default::default());
    }
});
