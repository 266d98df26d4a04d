//! What `bench` and `compare` say is what happened: names, exit codes, passwords, files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::faults::Stage;
use super::{ECHO, endless, place, report, words};
use crate::common::{Result, json as answer, plimsoll, run, text};
use crate::waiting::until;

fn signal(name: &str, pid: u32) -> Result {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("no {name} to {pid}").into()) }
}

#[test]
fn a_closed_terminal_ends_a_run_as_a_polite_kill_does() -> Result {
    let folder = tempfile::tempdir()?;
    for signal_name in ["-HUP", "-TERM"] {
        let (mut child, run) = endless(folder.path(), &place(&folder)?)?;
        signal(signal_name, child.id())?;
        assert_eq!(child.wait()?.code(), Some(130), "{signal_name}");
        let report = report(&run)?;
        assert_eq!(report["interruption"], "stopped by the user");
        assert_eq!(report["models"][0]["status"], "interrupted");
        fs::remove_dir_all(run)?;
    }
    Ok(())
}

/// `nohup` asks for a signal to be ignored.
#[test]
#[cfg(target_os = "linux")]
fn a_run_that_was_started_to_ignore_a_signal_ignores_it() -> Result {
    let folder = tempfile::tempdir()?;
    let place = place(&folder)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap '' HUP; exec "$0" "$@""#, env!("CARGO_BIN_EXE_plimsoll")]);
    shell.args(words(&ECHO, &["--output-dir", &place, "--duration", "1m"]));
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let metrics = folder.path().join("a/report.json");
    until("a report", || metrics.is_file().then_some(()))?;
    signal("-HUP", child.id())?;
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait()?.is_none(), "it went on");
    signal("-TERM", child.id())?;
    assert_eq!(child.wait()?.code(), Some(130));
    Ok(())
}

/// Frames without an end, from a decoder that leaves its number behind.
const ENDLESS: &str = r#"#!/bin/sh
[ "$1" = -version ] && { echo "ffmpeg version 7.0 fake"; exit 0; }
printf 'P7\nWIDTH 32\nHEIGHT 32\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n'
head -c 3072 /dev/zero
echo $$ >"$(dirname "$0")/pid.new"
mv "$(dirname "$0")/pid.new" "$(dirname "$0")/pid"
exec sleep 1000
"#;

#[test]
#[cfg(target_os = "linux")]
fn a_kill_leaves_no_decoder_behind() -> Result {
    let stage = Stage::new("ffmpeg", ENDLESS)?;
    let mut child = stage
        .bench(&["--source=rtsp://nowhere/stream", "--max-frames=100"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = stage.folder.path().join("pid");
    // The script writes its number before it becomes `sleep`.
    let comm = || Some(format!("/proc/{}/comm", fs::read_to_string(&pid).ok()?.trim()));
    let name = || fs::read_to_string(comm()?).ok();
    until("the decoder", || name().filter(|name| name.trim() == "sleep"))?;
    let decoder = comm().ok_or("no number of the decoder")?;
    child.kill()?;
    child.wait()?;
    until("the end of the decoder", || (!Path::new(&decoder).exists()).then_some(()))
}

/// A decoder that repeats what it was asked for, as ffmpeg does, and fails.
const LOUD: &str = r#"#!/bin/sh
[ "$1" = -version ] && { echo "ffmpeg version 7.0 fake"; exit 0; }
for word in "$@"; do echo "$word: Connection refused" >&2; done
exit 1
"#;

#[test]
fn no_report_log_or_message_shows_a_password() -> Result {
    for (program, source) in [
        ("ffmpeg", "--source=rtsp://me:sesame@host/live?token=sesame"),
        ("gst-launch-1.0", "--source=gst=rtspsrc location=rtsp://me:sesame@host user-pw=sesame"),
        ("none", "--source=https://me:sesame@host/a.mp4?key=sesame"),
    ] {
        let stage = Stage::new(program, LOUD)?;
        let command = stage.bench(&[source, "--max-frames=3"]);
        let quiet = ["--quiet"].map(std::ffi::OsStr::new);
        let words: Vec<_> = command.get_args().filter(|w| !quiet.contains(w)).collect();
        let mut loud = Command::new(command.get_program());
        loud.args(words).arg("-vv").env_remove("RUST_LOG");
        loud.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = loud.output()?;
        let mut said = text(&ran.stdout) + &text(&ran.stderr);
        assert!(said.contains("***"), "{source}: {said}");
        let folder = stage.folder.path().join("runs/a");
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            said += &String::from_utf8_lossy(&fs::read(entry?.path())?);
        }
        assert!(!said.contains("sesame"), "{source}: {said}");
    }
    // Also where the flags cannot be understood.
    for json in [&["--json"][..], &[]] {
        let ran = run(&words(&["bench", "rtsp://me:sesame@host"], json))?;
        let said = text(&ran.stderr);
        assert!(said.contains("rtsp://***@host") && !said.contains("sesame"), "{said}");
    }
    Ok(())
}

/// Not one byte can be written to a file.
#[test]
fn no_report_is_named_that_does_not_exist() -> Result {
    let stage = Stage::new("none", "")?;
    let command = stage.bench(&["--source=synthetic:size=64x64", "--max-frames=5"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap '' XFSZ; ulimit -f 0; exec "$0" "$@""#]);
    shell.arg(command.get_program()).args(command.get_args());
    let ran = shell.output()?;
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(!stage.folder.path().join("runs/a/report.md").exists());
    assert!(said.contains("there is none in"), "{said}");
    let shown = text(&ran.stdout);
    assert!(!shown.contains("report.md") && shown.contains("completed"), "{shown}");
    Ok(())
}

/// A copy of a run in which the first slot failed.
fn failed_copy(run: &Path, copy: &Path) -> Result {
    fs::create_dir(copy)?;
    let mut record: Value = serde_json::from_slice(&fs::read(run.join("report.json"))?)?;
    record["models"][0]["status"] = json!("failed");
    record["models"][0]["reason"] = json!("the camera is gone");
    Ok(fs::write(copy.join("report.json"), record.to_string())?)
}

#[test]
fn a_second_run_that_failed_is_the_answer_no() -> Result {
    let folder = tempfile::tempdir()?;
    let ran = run(&words(&ECHO, &["--output-dir", &place(&folder)?, "--max-frames", "30"]))?;
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    failed_copy(&a, &b)?;
    let [a, b] = [a, b].map(|path| path.display().to_string());
    let ran = run(&["compare", &a, &b])?;
    assert_eq!(ran.status.code(), Some(1));
    let said = text(&ran.stdout);
    assert!(said.contains("BROKEN in the second run: failed: the camera is gone"), "{said}");
    assert_eq!(answer(&["compare", &a, &b], 1)?["broken"], true);
    assert_eq!(run(&["compare", &b, &a])?.status.code(), Some(0), "the first is the past");
    Ok(())
}

#[test]
fn sizes_of_two_runs_are_named_the_right_way_round() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    for (name, side) in [("a", "96"), ("b", "128")] {
        let base = ["bench", "--engine=echo", "--model0=echo", "--source=synthetic:size=64x64"];
        let more = ["-q", "--max-frames=3", "--output-dir", &dir, "--run-name", name];
        assert!(run(&[&base[..], &more[..], &["--imgsz", side]].concat())?.status.success());
    }
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let said = text(&run(&["compare", &a, &b])?.stderr);
    let sizes = "input size of slot 0: 96x96 in the first run, 128x128 in the second";
    assert!(said.contains(sizes), "{said}");
    let forced = text(&run(&["compare", &a, &b, "--force"])?.stdout);
    assert!(forced.contains(sizes), "{forced}");
    Ok(())
}

/// The demo's graphs are of 256x256, whatever is asked for.
#[test]
fn a_size_that_the_graph_does_not_have_is_an_error() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let said = crate::common::complaint(&["bench", "--imgsz", "320", "--output-dir", &dir])?;
    assert!(said.contains("256x256") && said.contains("320x320"), "{said}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0, "nothing is written");
    let flags = ["bench", "--engine=rten", "--max-frames=2", "--warmup=0", "--output-dir", &dir];
    let found = answer(&flags, 0)?;
    assert_eq!(found["models"][0]["model_info"]["input_size"], json!([256, 256]));
    assert_eq!(found["config"]["imgsz"], Value::Null);
    assert_eq!(found["models"][0]["name"], "demo_rgb.onnx");
    assert_eq!(found["models"][1]["slot_name"], "yolo11n_thermal");
    Ok(())
}

#[test]
fn no_gpu_is_named_where_none_is_used() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let flags = words(&ECHO[..11], &["--output-dir", &dir, "--max-frames", "5", "--device=cpu"]);
    let ran = run(&flags)?;
    let mut said = text(&ran.stdout) + &text(&ran.stderr);
    assert!(said.contains("Memory Configuration") && said.contains(" MEM: "), "{said}");
    for file in ["report.md", "report.html", "summary.csv"] {
        said += &fs::read_to_string(folder.path().join("a").join(file))?;
    }
    assert!(!said.contains("GPU_MEM") && !said.contains("GPU Memory"), "{said}");
    let csv = fs::read_to_string(folder.path().join("a/summary.csv"))?;
    assert!(csv.starts_with("model,process_memory_mb,engine,device,"), "{csv}");
    Ok(())
}

#[test]
fn the_log_of_a_run_holds_warnings_once_and_more_with_v() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let log = |name: &str, more: &[&str]| -> Result<String> {
        let flags = ["bench", "--engine=echo", "--model0=echo", "--source=synthetic:size=64x64"];
        let place = ["--output-dir", &dir, "--run-name", name, "--max-frames=5"];
        let limit = ["--gpu-mem-limit=20GiB", "--profile=orin-nano-8gb"];
        let ran = plimsoll(&[&flags[..], &place[..], &limit[..], more].concat()).output()?;
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        Ok(fs::read_to_string(folder.path().join(name).join("run.log"))?)
    };
    let plain = log("a", &["--quiet"])?;
    let clamped = |line: &&str| line.contains(" WARN ") && line.contains("20.00 GiB");
    assert_eq!(plain.lines().filter(clamped).count(), 1, "{plain}");
    assert!(plain.contains(" INFO  config: {"), "{plain}");
    assert!(!plain.contains(" DEBUG "), "{plain}");
    assert!(log("b", &["-v"])?.contains(" DEBUG "));
    Ok(())
}
