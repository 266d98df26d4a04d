//! What ONNX Runtime's arena takes for a graph on the CPU, as JSON:
//!
//! ```text
//! arena MODEL.onnx [INPUT:AXIS=EXTENT …] [--optimized FILE] [--trace FILE]
//! arena --segments TRACE.csv
//! ```
//!
//! With `--trace` nothing is run: the allocations of the plain walk are written for
//! `plimsoll replay`. `--segments` says what PyTorch's allocator would hold for a recording.
//!
//! An extent that the graph leaves open is 1 unless said; `*:AXIS=EXTENT` is for all inputs.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use plimsoll::trace::{Trace, TraceOp};
use plimsoll_infer::engine::ort::measure::measure;
use plimsoll_infer::{EngineDevice, EngineMemory, EngineOptions};
use plimsoll_models::walk::torch::Caching;
use plimsoll_models::walk::{InputExtents, OnnxGraph, ort};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if first.as_deref() == Some("--segments") {
        return segments(&words.next().ok_or("usage: arena --segments TRACE.csv")?);
    }
    let model = PathBuf::from(first.ok_or("usage: arena MODEL.onnx [INPUT:AXIS=EXTENT …]")?);
    let mut extents = HashMap::new();
    let (mut optimized, mut trace) = (None, None);
    while let Some(word) = words.next() {
        if word == "--optimized" {
            optimized = words.next().map(PathBuf::from);
        } else if word == "--trace" {
            trace = words.next().map(PathBuf::from);
        } else if let Some((place, extent)) = word.split_once('=') {
            extents.insert(place.to_string(), extent.parse::<usize>()?);
        }
    }
    let mut given = InputExtents::default();
    given.image = (1, 1);
    given.tokens = 1;
    given.by_place = extents.iter().map(|(place, &n)| (place.clone(), n as u64)).collect();
    let shaped = OnnxGraph::open(&model)?.shape(&given)?;
    if let Some(path) = trace {
        let mut text = "op,id,size,stream,t_us\n".to_string();
        for (time, (taken, id, bytes)) in shaped.trace().into_iter().enumerate() {
            text += &format!("{},{id},{bytes},0,{time}\n", if taken { 'a' } else { 'f' });
        }
        return Ok(std::fs::write(path, text)?);
    }
    let extent = |input: &str, axis: usize| {
        let at = |name: &str| extents.get(&format!("{name}:{axis}")).copied();
        at(input).or_else(|| at("*")).unwrap_or(1)
    };
    let mut options = EngineOptions::default();
    options.device = EngineDevice::Cpu;
    let measured = measure(&model, &options, 3, &extent, optimized.as_deref())?;
    let figures = |memory: &EngineMemory| {
        serde_json::json!({
            "in_use_bytes": memory.in_use, "peak_bytes": memory.peak, "reserved_bytes": memory.reserved,
        })
    };
    let peak = shaped.peak();
    let (estimate, operator) = ort::arena(&shaped, ort::OrtSettings::cpu());
    let (cuda, _) = ort::arena(&shaped, ort::OrtSettings::cuda());
    let answer = serde_json::json!({
        "cuda": { "loaded_bytes": cuda.loaded, "peak_bytes": cuda.peak, "reserved_bytes": cuda.reserved, "pattern_bytes": cuda.pattern, "live_bytes": cuda.live },
        "estimated": {
            "loaded_bytes": estimate.loaded, "peak_bytes": estimate.peak, "reserved_bytes": estimate.reserved,
            "live_bytes": estimate.live, "pattern_bytes": estimate.pattern, "operator": operator,
            "plain_peak_bytes": peak.bytes, "plain_operator": peak.operator,
        },
        "unknown": shaped.unknown, "notes": shaped.notes,
        "version": measured.version,
        "loaded": figures(&measured.loaded),
        "runs": measured.runs.iter().map(figures).collect::<Vec<_>>(),
    });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(())
}

fn segments(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let trace = Trace::parse(&std::fs::read(path)?)?;
    let mut torch = Caching::default();
    let mut places = vec![None; trace.slots()];
    for event in trace.events() {
        match event.op {
            TraceOp::Allocate => places[event.id as usize] = torch.take(event.size),
            TraceOp::Free => torch.free(places[event.id as usize].take()),
        }
    }
    let answer = serde_json::json!({ "allocated": torch.peak(), "reserved": torch.reserved() });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(())
}
