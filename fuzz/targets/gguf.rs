//! Any bytes as a GGUF file: refused, or a model whose weights the file can hold.
//!
//! The reader is included as a file: its crate would bring the engines with it.
#![no_main]

#[path = "../../crates/infer/src/model/gguf/mod.rs"]
#[expect(dead_code, reason = "the target reads and does not write")]
mod gguf;

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = gguf::Header::read(Cursor::new(bytes)) else { return };
    assert!(header.tensors.bytes() <= bytes.len() as u64);
    let Ok(model) = gguf::Model::new(&header) else { return };
    if let Some(shape) = model.shape {
        let _ = shape.with_context(4096).estimate_with(Default::default());
    }
});
