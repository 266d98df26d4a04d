//! What two runs differ in besides their figures, in words.

use plimsoll_infer::source::redact;

use super::PairPlaces;
use crate::record::{BenchConfig, BenchRecord, ModelDescription};

/// What two runs differ in besides their figures, in words.
pub(super) fn differences(a: &BenchRecord, b: &BenchRecord, pairs: &[PairPlaces]) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{what}: {a} in the first run, {b} in the second"));
        }
    };
    let (p, q) = (&a.config, &b.config);
    let option = |value: Option<f64>| value.map_or("none".to_string(), |v| v.to_string());
    check("offered rate", option(p.rate_fps), option(q.rate_fps));
    check("mode", p.mode.clone(), q.mode.clone());
    let turn = |parallel| if parallel { "slots at once" } else { "slots in turn" }.to_string();
    check("order", turn(p.parallel), turn(q.parallel));
    check("thresholds", thresholds(p), thresholds(q));
    check("source", source(a), source(b));
    for pair in pairs {
        let (x, y) = match pair {
            (Some(x), Some(y)) => (&a.models[*x], &b.models[*y]),
            (Some(x), None) => {
                check("rows", a.models[*x].label(), "no such row".to_string());
                continue;
            }
            (None, Some(y)) => {
                check("rows", "no such row".to_string(), b.models[*y].label());
                continue;
            }
            (None, None) => continue,
        };
        let (Some(p), Some(q)) = (&x.model_info, &y.model_info) else { continue };
        let place = if x.slot_name.is_some() { format!("slot {}", x.slot) } else { x.label() };
        let mut check =
            |what: &str, a: String, b: String| check(&format!("{what} of {place}"), a, b);
        check("input size", size(p), size(q));
        // A path may differ where the file does not.
        let file = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or(path).to_string();
        check("model", file(&p.weights), file(&q.weights));
        check("model size in bytes", p.bytes.to_string(), q.bytes.to_string());
        check("engine", p.engine.clone(), q.engine.clone());
        check("device", p.device.clone(), q.device.clone());
    }
    let machine =
        |r: &BenchRecord| r.metadata.host.clone().unwrap_or_else(|| "unknown".to_string());
    check("machine", machine(a), machine(b));
    found
}

fn source(record: &BenchRecord) -> String {
    let streams = record.input_source.streams.iter();
    let names = streams.map(|s| format!("{}={}", s.kind, redact(&s.name)));
    names.collect::<Vec<_>>().join(", ")
}

fn size(info: &ModelDescription) -> String {
    info.input_size.map_or("unknown".into(), |[rows, columns]| format!("{rows}x{columns}"))
}

fn thresholds(config: &BenchConfig) -> String {
    format!("confidence {}, IoU {}, {} at most", config.conf, config.iou, config.max_det)
}
