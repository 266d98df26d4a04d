//! What `plimsoll bench` says of its limit is what is true, slot by slot.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Result, plimsoll, text};
use crate::driver::fake_cuda;

/// Runs a bench in a folder of its own: its code, its report and what it said on stderr.
fn bench(words: &[&str]) -> Result<(Option<i32>, Value, String, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    let base = ["bench", "--run-name", "a", "--output-dir", &place];
    let ran = plimsoll(&[&base[..], words].concat())
        .env_remove("ORT_DYLIB_PATH")
        .env("LD_LIBRARY_PATH", "")
        .output()?;
    let report = fs::read(folder.path().join("a/report.json"))
        .map_err(|error| format!("{words:?}: {error}: {}", text(&ran.stderr)))?;
    Ok((ran.status.code(), serde_json::from_slice(&report)?, text(&ran.stderr), folder))
}

fn doubts(report: &Value) -> Vec<&str> {
    let doubts = report["doubts"].as_array().map(Vec::as_slice).unwrap_or_default();
    doubts.iter().filter_map(|doubt| doubt["kind"].as_str()).collect()
}

const SHORT: [&str; 6] = ["--engine", "rten", "--max-frames", "3", "--warmup", "1"];

#[test]
fn without_a_gpu_nothing_holds_the_limit_and_it_is_said() -> Result {
    let words = [&SHORT[..], &["--gpu-mem-limit", "10MiB"]].concat();
    let (code, report, said, _folder) = bench(&words)?;
    assert_eq!(code, Some(0), "{said}");
    let safety = &report["memory_safety"];
    assert_eq!(safety["limit_type"], "unavailable", "{safety:#}");
    assert_eq!((&safety["verified"], &safety["methods_applied"][0]), (&false.into(), &Value::Null));
    assert!(said.contains("Limit Type: unavailable") && said.contains("Verified: no"), "{said}");
    for slot in [0, 1] {
        let memory = &report["models"][slot]["gpu_memory"];
        assert_eq!(memory["limit_type"], "unavailable", "{memory:#}");
        assert_eq!(memory["within_limit"], false, "more than 10 MiB are in use: {memory:#}");
    }
    // Weights and activations are below 10 MiB, and the process is not.
    let doubts = doubts(&report);
    assert!(doubts.contains(&"estimate_too_low"), "{doubts:?}");
    assert!(doubts.contains(&"limit_not_hard"), "{doubts:?}");
    assert!(!said.contains("fits below"), "the engine's share is not in it: {said}");
    Ok(())
}

#[test]
fn a_limit_wins_over_the_default_profile_and_a_named_one_clamps_it() -> Result {
    let given = [&SHORT[..], &["--mode", "rgb", "--gpu-mem-limit", "20GiB"]].concat();
    let (_, report, said, _folder) = bench(&given)?;
    let safety = &report["memory_safety"];
    assert_eq!((&safety["limit_gb"], &safety["profile"]), (&20.0.into(), &Value::Null));
    assert_eq!(safety["warnings"], serde_json::json!([]), "{safety:#}");
    assert!(!said.contains("clamped"), "{said}");
    let named = [&given[..], &["--profile", "orin-nano-8gb"]].concat();
    let (_, report, said, _folder) = bench(&named)?;
    let safety = &report["memory_safety"];
    assert_eq!((&safety["limit_gb"], &safety["profile"]), (&8.0.into(), &"orin-nano-8gb".into()));
    assert_eq!(said.matches("clamped").count(), 1, "one warning: {said}");
    Ok(())
}

/// A device that is named is kept to: no engine goes to the CPU instead.
#[test]
fn a_gpu_that_is_named_and_not_there_fails_its_slot() -> Result {
    for engine in ["auto", "ort", "rten"] {
        let words = ["--mode", "rgb", "--engine", engine, "--device", "cuda:77"];
        let (code, report, said, folder) = bench(&words)?;
        assert_eq!(code, Some(3), "{engine}: {said}");
        let model = &report["models"][0];
        assert_eq!(model["status"], "failed", "{engine}: {model:#}");
        let reason = model["reason"].as_str().ok_or("no reason")?;
        assert!(reason.starts_with("cuda:77 is not available: "), "{reason}");
        assert!(reason.contains("--device cpu") && reason.chars().count() < 400, "{reason}");
        assert_eq!(model["gpu_memory"]["within_limit"], Value::Null);
        assert_eq!(report["memory_safety"]["all_within_limit"], Value::Null);
        assert_eq!(report["memory_safety"]["total_violations"], 0);
        let log = fs::read_to_string(folder.path().join("a/run.log"))?;
        assert!(log.contains("failed: "), "{log}");
    }
    Ok(())
}

/// Nobody named a device and no engine here reaches the GPU: the CPU does it, and a limit of GPU
/// memory is compared with nothing.
#[test]
#[cfg(target_os = "linux")]
fn a_bench_that_falls_back_to_the_cpu_is_compared_with_no_limit() -> Result {
    let (folder, driver) = (tempfile::tempdir()?, fake_cuda()?);
    let place = folder.path().display().to_string();
    let words = ["bench", "--json", "--max-frames", "3", "--gpu-mem-limit", "10MiB", "--no-guard"];
    let mut command = plimsoll(&[&words[..], &["--output-dir", &place]].concat());
    command.env("LD_LIBRARY_PATH", driver.path()).env_remove("ORT_DYLIB_PATH");
    let output = command.output()?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    for model in report["models"].as_array().ok_or("no models")? {
        assert_eq!(model["model_info"]["device"], "cpu", "{model:#}");
        let memory = &model["gpu_memory"];
        assert_eq!((&memory["limit_gb"], &memory["within_limit"]), (&Value::Null, &Value::Null));
        assert_eq!(memory["limit_type"], "unavailable");
        assert!(memory["peak_gb"].as_f64() > Some(0.0), "{memory:#}");
    }
    let safety = &report["memory_safety"];
    assert_eq!(
        (&safety["limit_type"], &safety["verified"]),
        (&"unavailable".into(), &false.into())
    );
    assert_eq!(
        (&safety["all_within_limit"], &safety["total_violations"]),
        (&Value::Null, &0.into())
    );
    let why = safety["reason"].as_str().ok_or("no reason")?;
    assert!(why.contains("ran on the CPU"), "{why}");
    assert!(!report["doubts"].to_string().contains("estimate_too_low"), "{}", report["doubts"]);
    Ok(())
}

/// What slots before it left in the process is not a slot's.
#[test]
#[cfg(target_os = "linux")]
fn equal_models_in_turn_show_equal_memory() -> Result {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/small11.pt");
    let model = model.display().to_string();
    let words = ["--engine", "rten", "--max-frames", "6", "--source", "synthetic:size=64x64"];
    let models = ["--model0", &model, "--model1", &model, "--warmup", "2"];
    let (code, report, said, _folder) = bench(&[&words[..], &models].concat())?;
    assert_eq!(code, Some(0), "{said}");
    let peak = |slot: usize| report["models"][slot]["gpu_memory"]["peak_gb"].as_f64();
    let (first, second) = peak(0).zip(peak(1)).ok_or("no memory")?;
    let apart = (first / second - 1.0).abs();
    assert!(apart < 0.1, "{:.1} and {:.1} MiB", first * 1024.0, second * 1024.0);
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn slots_at_once_have_memory_in_every_repeat() -> Result {
    let (code, report, said, _folder) =
        bench(&[&SHORT[..], &["--parallel", "--repeat", "3"]].concat())?;
    assert_eq!(code, Some(0), "{said}");
    for slot in [0, 1] {
        let memory = &report["models"][slot]["gpu_memory"];
        let [mean, peak] = ["mean_gb", "peak_gb"].map(|name| memory[name].as_f64());
        let (mean, peak) = mean.zip(peak).ok_or("no memory")?;
        // The weights alone are 1.1 MiB.
        assert!(mean > 0.001 && mean <= peak, "{memory:#}");
    }
    Ok(())
}
