//! Any bytes as an ONNX graph: refused, or walked to its end, by itself and as ONNX Runtime
//! would.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_models::walk::{InputExtents, OnnxGraph, ort};

fuzz_target!(|bytes: &[u8]| {
    let Ok(graph) = OnnxGraph::parse(bytes) else { return };
    let mut extents = InputExtents::default();
    extents.image = (64, 64);
    let Ok(shaped) = graph.shape(&extents) else { return };
    let peak = shaped.peak();
    assert!(peak.step <= peak.steps);
    let (arena, _) = ort::arena(&shaped, ort::OrtSettings::cpu());
    assert!(arena.peak <= arena.reserved);
});
