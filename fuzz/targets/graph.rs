//! Any bytes as an ONNX graph: refused, or walked to its end, by itself and as ONNX Runtime
//! would.
//!
//! The reader is included as a file: its crate would bring the engines with it.
#![no_main]

mod model {
    #[path = "../../../crates/infer/src/model/walk/mod.rs"]
    #[expect(dead_code, reason = "the target opens no files")]
    pub mod walk;
}

use libfuzzer_sys::fuzz_target;
use model::walk::{Extents, Graph, ort};

fuzz_target!(|bytes: &[u8]| {
    let Ok(graph) = Graph::parse(bytes) else { return };
    let mut extents = Extents::default();
    extents.image = (64, 64);
    let Ok(shaped) = graph.shape(&extents) else { return };
    let peak = shaped.peak();
    assert!(peak.step <= peak.steps);
    let (arena, _) = ort::arena(&shaped, ort::Settings::cpu());
    assert!(arena.peak <= arena.reserved);
});
