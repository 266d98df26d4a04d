//! `plimsoll bench` and `plimsoll compare` as a user meets them.

mod common;
#[path = "common/driver.rs"]
mod driver;
#[path = "bench/examples.rs"]
mod examples;
#[cfg(unix)]
#[path = "bench/faults.rs"]
mod faults;
#[path = "bench/limits.rs"]
mod limits;
#[path = "bench/rows.rs"]
mod rows;
#[cfg(unix)]
#[path = "bench/truth.rs"]
mod truth;
#[cfg(unix)]
#[expect(dead_code, reason = "no script waits here")]
#[path = "common/waiting.rs"]
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Result, complaint, json, plimsoll, run, shared, text};
use serde_json::Value;

/// Five detections a frame of a small scene, without a model.
const ECHO: [&str; 12] = [
    "bench",
    "--engine",
    "echo",
    "--model0",
    "echo",
    "--source",
    "synthetic:size=64x64",
    "--imgsz",
    "96",
    "--run-name",
    "a",
    "--quiet",
];

fn words<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

/// The report of a run, which must fit the schema.
fn report(folder: &Path) -> Result<Value> {
    let value = serde_json::from_slice(&fs::read(folder.join("report.json"))?)?;
    let schema = include_str!("../../../docs/schema/report.schema.json");
    let schema: Value = serde_json::from_str(schema)?;
    let schema = jsonschema::validator_for(&schema)?;
    let wrong = schema.iter_errors(&value).map(|error| error.to_string());
    let wrong = wrong.collect::<Vec<_>>().join("\n");
    if wrong.is_empty() { Ok(value) } else { Err(wrong.into()) }
}

fn place(folder: &tempfile::TempDir) -> Result<String> {
    Ok(folder.path().to_str().ok_or("a path that is no text")?.to_string())
}

#[test]
fn the_record_is_the_answer_for_programs() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    // Snake case is understood, too; `a` is run twice, so the second is `a-2`.
    let flags = ["--output_dir", &dir, "--max_frames", "5", "--gpu_mem_limit_gb", "8.0"];
    let found = json(&words(&ECHO[..11], &flags), 0)?;
    assert_eq!(found["models"][0]["performance"]["frames"], 5);
    assert_eq!(found["models"][1]["status"], "skipped");
    assert_eq!(found["config"]["gpu_mem_limit_gb"], 8.0);
    assert_eq!(report(&folder.path().join("a"))?, found);
    for file in ["report.md", "report.html", "summary.csv", "metrics.jsonl", "run.log"] {
        assert!(folder.path().join("a").join(file).is_file(), "{file}");
    }
    let again = run(&words(&ECHO[..11], &flags))?;
    assert!(again.status.success());
    assert!(text(&again.stdout).contains("a-2/report.html"), "{}", text(&again.stdout));
    let shown = text(&again.stderr);
    for part in ["Memory Configuration", "Limit Type: unavailable", "echo on cpu", " MEM: "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The same thing twice is no regression.
    let [a, b] = ["a", "a-2"].map(|name| folder.path().join(name).display().to_string());
    let both = json(&["compare", &a, &b, "--tolerance", "1000%"], 0)?;
    assert_eq!(both["regression"], false);
    assert!(complaint(&["compare", &a, &dir])?.contains("is not a run"));
    Ok(())
}

#[test]
fn a_slower_run_is_a_regression() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    run(&words(&ECHO, &["--output-dir", &dir, "--max-frames", "200"]))?;
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    fs::create_dir(&b)?;
    // The same run with every latency tripled.
    for file in ["report.json", "metrics.jsonl"] {
        fs::copy(a.join(file), b.join(file))?;
    }
    let slow = |line: &str| -> Result<String> {
        let mut value: Value = serde_json::from_str(line)?;
        if let Some(ms) = value["whole_ms"].as_f64() {
            value["whole_ms"] = (ms * 3.0).into();
        }
        Ok(value.to_string() + "\n")
    };
    let lines = fs::read_to_string(a.join("metrics.jsonl"))?;
    fs::write(b.join("metrics.jsonl"), lines.lines().map(slow).collect::<Result<String>>()?)?;
    let [a, b] = [a, b].map(|path| path.display().to_string());
    let slower = run(&["compare", &a, &b])?;
    assert_eq!(slower.status.code(), Some(1), "{}", text(&slower.stdout));
    assert!(text(&slower.stdout).contains("REGRESSION"), "{}", text(&slower.stdout));
    assert_eq!(run(&["compare", &b, &a])?.status.code(), Some(0));
    Ok(())
}

#[test]
fn exit_codes_say_what_became_of_the_slots() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let code = |more: &[&str]| -> Result<Option<i32>> {
        let flags = words(&["bench", "--quiet", "--max-frames", "2", "--output-dir", &dir], more);
        Ok(run(&flags)?.status.code())
    };
    let scenes = "--source=synthetic:size=64x64";
    let echo = ["--engine=echo", "--model0=echo", "--imgsz=96", scenes];
    assert_eq!(code(&echo)?, Some(0));
    assert_eq!(code(&words(&echo, &["--limit", "1MiB"]))?, Some(0));
    assert_eq!(code(&words(&echo, &["--limit", "1MiB", "--fail-on-violation"]))?, Some(1));
    // All skipped; one failed and none completed; one failed and one completed.
    assert_eq!(code(&["--mode=thermal", "--model0=x.onnx", scenes])?, Some(2));
    let none = folder.path().join("none.onnx");
    // A graph of no nodes: its header can be read, and it cannot be loaded.
    fs::write(&none, [&[0x3a, 5, 0x5a, 3][..], b"\x0a\x01x\x42\x02\x10\x11"].concat())?;
    let none = format!("--model0={}", none.display());
    assert_eq!(code(&["--engine=rten", &none, scenes])?, Some(3));
    assert_eq!(code(&["--mode=rgb", &none, scenes])?, Some(3));
    for (flags, word) in [
        (&["--mode", "both"][..], "dual"),
        (&["--engine", "onnx"], "rten"),
        (&["--conf", "2"], "--conf"),
        (&["--duration", "soon"], "10m"),
        (&["--profile", "toaster"], "orin-nano-8gb"),
        (&["--run-name", "../x"], "run name"),
        (&["--source", "nowhere", "--model0", "x"], "nowhere"),
        (&["--model0=x.onnx", scenes], "x.onnx"),
        (&["--mode=rgb", "--model0=yolo11n.pt", scenes], "yolo11n.pt"),
    ] {
        let dir = format!("--output-dir={dir}");
        let said = complaint(&words(&["bench", "--max-frames", "1", &dir], flags))?;
        assert!(said.contains(word), "{flags:?}: {said}");
    }
    Ok(())
}

/// A run that goes on until it is ended, after it has measured something.
fn endless(folder: &Path, dir: &str) -> Result<(Child, PathBuf)> {
    let child = plimsoll(&words(&ECHO, &["--output-dir", dir, "--duration", "1m"]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let folder = folder.join("a");
    let started = Instant::now();
    // The second report is the first that has frames.
    while report(&folder).map_or(true, |r| r["models"][0]["performance"].is_null()) {
        if started.elapsed() > Duration::from_secs(30) {
            return Err("no report came".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok((child, folder))
}

#[test]
fn ctrl_c_ends_with_a_report_of_what_was_measured() -> Result {
    let folder = tempfile::tempdir()?;
    let (mut child, run) = endless(folder.path(), &place(&folder)?)?;
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent?.success());
    assert_eq!(child.wait()?.code(), Some(130));
    let report = report(&run)?;
    assert_eq!(report["interruption"], "stopped by the user");
    assert_eq!(report["models"][0]["status"], "interrupted");
    assert!(report["models"][0]["performance"]["frames"].as_u64() > Some(0));
    let lines = fs::read_to_string(run.join("metrics.jsonl"))?;
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    Ok(())
}

#[test]
fn a_kill_leaves_the_last_report() -> Result {
    let folder = tempfile::tempdir()?;
    let (mut child, run) = endless(folder.path(), &place(&folder)?)?;
    child.kill()?;
    child.wait()?;
    let report = report(&run)?;
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["metadata"]["finished"], Value::Null);
    assert_eq!(report["models"][0]["status"], "interrupted");
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_doubt_and_not_the_end() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let flags = ["--output-dir", &dir, "--max-frames", "5", "--detections", "/dev/full"];
    let ran = run(&words(&ECHO, &flags))?;
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains("/dev/full") && said.contains("place with --detections"), "{said}");
    let report = report(&folder.path().join("a"))?;
    let doubts = report["doubts"].as_array().ok_or("no doubts")?;
    assert!(doubts.iter().any(|doubt| doubt["kind"] == "output_incomplete"), "{doubts:?}");
    Ok(())
}

/// The demo's detections are judged, whether they can be written or not; where not, an older file stays.
#[test]
#[cfg(target_os = "linux")]
fn predictions_that_cannot_be_written_are_a_doubt() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let old = folder.path().join("old.json");
    fs::write(&old, "old")?;
    let limited = "ulimit -f 0; trap '' XFSZ; exec \"$0\" \"$@\"";
    for (path, shell) in
        [("/dev/full", "exec \"$0\" \"$@\""), (&old.display().to_string(), limited)]
    {
        let flags =
            ["--engine=rten", "--mode=rgb", "--max-frames=3", "--warmup=0", "--predictions"];
        // A limit on files keeps the report from being written, too; its message is what counts then.
        let mut ran = std::process::Command::new("sh");
        ran.args(["-c", shell, env!("CARGO_BIN_EXE_plimsoll"), "bench"]).args(flags);
        let ran = ran.args([path, "--output-dir", &dir, "--run-name=p"]).output()?;
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("--predictions {path} cannot be written")), "{said}");
        if path == "/dev/full" {
            let report = report(&folder.path().join("p"))?;
            let doubts = report["doubts"].as_array().ok_or("no doubts")?;
            assert!(doubts.iter().any(|doubt| doubt["kind"] == "output_incomplete"), "{doubts:?}");
            assert!(
                report["models"][0]["accuracy"]["precision"].is_number(),
                "{}",
                report["models"][0]
            );
        }
    }
    assert_eq!(fs::read_to_string(&old)?, "old");
    // Two are judged by default: one pipe or device is no place for both, and no file is made beside it.
    let said = complaint(&["bench", "--max-frames=3", "--predictions=/dev/full"])?;
    assert!(said.contains("each needs a file of its own"), "{said}");
    Ok(())
}

/// Against what Ultralytics found with the same weights in the same frames. Needs the
/// reference files and ONNX Runtime.
#[test]
fn detections_are_those_of_ultralytics() -> Result {
    let (Some(yolo), Some(_)) = (shared("yolo"), std::env::var_os("ORT_DYLIB_PATH")) else {
        println!("skipped: needs the reference files and ORT_DYLIB_PATH");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let (dir, found) = (place(&folder)?, folder.path().join("found.jsonl"));
    let [source, model, out] =
        [yolo.clone(), yolo.join("yolo11n.onnx"), found.clone()].map(|p| p.display().to_string());
    let flags = [
        "bench",
        "--mode",
        "rgb",
        "--engine",
        "ort",
        "--source",
        &source,
        "--model0",
        &model,
        "--conf",
        "0.6",
        "--iou",
        "0.45",
        "--max-det",
        "3000",
        "--imgsz",
        "640",
        "--warmup",
        "0",
        "--detections",
        &out,
        "--output-dir",
        &dir,
        "--quiet",
    ];
    let ran = run(&flags)?;
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let read = |path: &Path| -> Result<Vec<Value>> {
        let lines = fs::read_to_string(path)?;
        Ok(lines.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
    };
    let (ours, theirs) = (read(&found)?, read(&yolo.join("predict.jsonl"))?);
    let (mut matched, mut all) = (0, 0);
    for frame in &theirs {
        let same = ours.iter().find(|one| one["frame"] == frame["frame"]);
        let ours = boxes(same.ok_or("a frame is missing")?);
        for wanted in boxes(frame) {
            all += 1;
            let near = |one: &[f64; 6]| one[5] == wanted[5] && overlap(one, &wanted) >= 0.95;
            matched += usize::from(ours.iter().any(near));
        }
    }
    assert!(all > 100 && matched * 100 >= all * 99, "{matched} of {all}");
    Ok(())
}

fn boxes(frame: &Value) -> Vec<[f64; 6]> {
    let number = |one: &Value, at: usize| one[at].as_f64().unwrap_or_default();
    let all = frame["detections"].as_array().into_iter().flatten();
    all.map(|one| std::array::from_fn(|at| number(one, at))).collect()
}

/// Intersection over union. Boxes that lie beyond the frame are cut to a line on its edge:
/// theirs is nothing over nothing, and they are the same where they are equal.
fn overlap(a: &[f64; 6], b: &[f64; 6]) -> f64 {
    let flat = |one: &[f64; 6]| one[0] == one[2] || one[1] == one[3];
    if flat(a) && flat(b) {
        let same = (0..4).all(|at| (a[at] - b[at]).abs() < 0.01);
        return f64::from(u8::from(same));
    }
    let area = |l: f64, t: f64, r: f64, b: f64| (r - l).max(0.0) * (b - t).max(0.0);
    let both = area(a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3]));
    let all = area(a[0], a[1], a[2], a[3]) + area(b[0], b[1], b[2], b[3]) - both;
    if all > 0.0 { both / all } else { 0.0 }
}
