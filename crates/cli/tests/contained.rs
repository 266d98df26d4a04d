//! Models that somebody made to hurt: whatever they do to an engine, their slot fails with the
//! reason and the other one goes on.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
mod onnx;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Result, plimsoll, text};
use onnx::{Graph, detector};
use serde_json::Value;

const IMAGE: (&str, &[u64]) = ("images", &[1, 3, 64, 64]);
const ANSWER: (&str, &[u64]) = ("output0", &[1, 6, 84]);

/// A run with a good model in the second slot; its report, and what it printed.
fn bench(folder: &Path, hostile: &[u8], more: &[&str]) -> Result<(Value, String)> {
    let path = |name: &str| folder.join(name).display().to_string();
    fs::write(path("hostile.onnx"), hostile)?;
    fs::write(path("good.onnx"), detector("{0: 'a', 1: 'b'}"))?;
    let words = ["bench", "--engine=rten", "--max-frames=2", "--warmup=0", "--json"];
    let mut run = plimsoll(&words);
    run.args(["--source=synthetic:size=64x64", "--output-dir", &path("runs")]);
    run.args(["--model0", &path("hostile.onnx"), "--model1", &path("good.onnx")]).args(more);
    let begun = Instant::now();
    let run = run.output()?;
    let said = text(&run.stderr);
    if run.status.code() != Some(0) || begun.elapsed() > Duration::from_secs(60) {
        return Err(format!("{} after {:?}: {said}", run.status, begun.elapsed()).into());
    }
    Ok((serde_json::from_slice(&run.stdout)?, said))
}

/// The reason of the hostile slot, where the other one is complete.
fn reason(hostile: &[u8], more: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let (report, said) = bench(folder.path(), hostile, more)?;
    let models = &report["models"];
    assert_eq!(models[0]["status"], "failed", "{said}");
    assert_eq!(models[1]["status"], "completed", "{said}");
    assert_eq!(models[1]["performance"]["frames"], 2);
    Ok(models[0]["reason"].as_str().unwrap_or_default().to_string())
}

#[test]
fn a_huge_input_is_refused_by_its_declaration() -> Result {
    let huge = Graph::default()
        .node("Identity", &["c"], "output0", None)
        .floats("c", &[1, 6, 84], &[0.0; 504])
        .file(("images", &[1, 3, 1_000_000, 1_000_000]), ANSWER);
    let why = reason(&huge, &[])?;
    assert!(why.contains("1000000 x 1000000 pixels"), "{why}");
    Ok(())
}

/// Memory that nobody has is asked for at once, and the engine aborts.
#[test]
fn a_constant_of_no_end_crashes_nobody_else() -> Result {
    let hostile = Graph::default()
        .node("ConstantOfShape", &["shape"], "output0", None)
        .integers("shape", &[2], &[1 << 40, 1 << 20])
        .file(IMAGE, ANSWER);
    let why = reason(&hostile, &["--load-timeout=20s"])?;
    assert!(why.contains("crashed the process that tried it (signal 6)"), "{why}");
    assert!(why.contains("memory allocation of"), "{why}");
    Ok(())
}

/// Chains are gone through by recursion: this one fits on the stack that is made for it, and
/// one that does not would end the trial.
#[test]
fn a_chain_of_ten_thousand_operators_is_run() -> Result {
    let mut chain = Graph::default();
    let mut last = "images".to_string();
    for number in 0..10_000 {
        let next = format!("t{number}");
        chain = chain.node("Relu", &[&last], &next, None);
        last = next;
    }
    let answer: Vec<f32> = vec![0.0; 6 * 84];
    let chain = chain
        .node("ReduceMax", &[&last], "most", Some(("keepdims", 0)))
        .node("Add", &["answer", "most"], "output0", None)
        .floats("answer", &[1, 6, 84], &answer)
        .metadata("names", "{0: 'a', 1: 'b'}")
        .file(IMAGE, ANSWER);
    let folder = tempfile::tempdir()?;
    let (report, said) = bench(folder.path(), &chain, &[])?;
    assert_eq!(report["models"][0]["status"], "completed", "{said}");
    Ok(())
}

/// Each of these grows or runs for ever; the clock ends it, or memory that is short.
#[test]
fn graphs_without_an_end_are_ended() -> Result {
    let range = Graph::default()
        .node("Range", &["zero", "most", "one"], "r", None)
        .node("Tile", &["images", "r"], "output0", None)
        .integers("zero", &[], &[0])
        .integers("one", &[], &[1])
        .integers("most", &[], &[3_000_000_000])
        .file(IMAGE, ANSWER);
    let mut twice = Graph::default().node("Identity", &["one"], "c0", None);
    for number in 0..40 {
        let (last, next) = (format!("c{number}"), format!("c{}", number + 1));
        twice = twice.node("Concat", &[&last, &last], &next, Some(("axis", 0)));
    }
    let twice = twice
        .node("ConstantOfShape", &["c40"], "output0", None)
        .integers("one", &[1], &[1])
        .file(IMAGE, ANSWER);
    for hostile in [range, twice] {
        let why = reason(&hostile, &["--load-timeout=4s"])?;
        let ended = ["had not ended after 4 s; --load-timeout", "took more than", "crashed"];
        assert!(ended.iter().any(|words| why.contains(words)), "{why}");
    }
    Ok(())
}

/// What an engine panics on is an error of its model, also where it is measured.
#[test]
fn an_engine_that_panics_ends_its_slot_alone() -> Result {
    let mut doubled = Graph::default();
    let mut last = "images".to_string();
    for number in 0..62 {
        let next = format!("c{number}");
        doubled = doubled.node("Concat", &[&last, &last], &next, Some(("axis", 0)));
        last = next;
    }
    let doubled = doubled.node("Identity", &[&last], "output0", None).file(IMAGE, ANSWER);
    let why = reason(&doubled, &["--load-timeout=10s"])?;
    assert!(!why.is_empty());
    Ok(())
}

/// A trial leaves no trace in what is measured, and takes little.
#[test]
fn a_trial_is_in_no_figure() -> Result {
    let folder = tempfile::tempdir()?;
    let good = detector("{0: 'a', 1: 'b'}");
    let (report, said) = bench(folder.path(), &good, &[])?;
    for model in report["models"].as_array().into_iter().flatten() {
        assert_eq!(model["status"], "completed", "{said}");
        let peak = model["gpu_memory"]["peak_gb"].as_f64().unwrap_or(f64::MAX);
        assert!(peak < 0.5, "{peak}");
    }
    let doubts = report["doubts"].to_string();
    assert!(!doubts.contains("trial"), "{doubts}");
    Ok(())
}
