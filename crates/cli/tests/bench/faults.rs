//! `plimsoll bench` when things go wrong around it: cameras that vanish or fall silent, disks
//! that are full. Children that decode are stood in for by scripts, found first on the path.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Result, plimsoll, text};
use crate::waiting::until;
use serde_json::Value;

/// Frames of 32x32 pixels, black, as ffmpeg writes them.
const FFMPEG: &str = r#"#!/bin/sh
[ "$1" = -version ] && { echo "ffmpeg version 7.0 fake"; exit 0; }
echo x >>"$(dirname "$0")/starts"
for n in $(seq 1 6); do
    echo "[Parsed_showinfo_0 @ 0x5] n: $n pts: $n pts_time:0.0$n duration: 1" >&2
    printf 'P7\nWIDTH 32\nHEIGHT 32\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n'
    head -c 3072 /dev/zero
done
"#;

/// The same as a pipeline of GStreamer, which writes frames to descriptor 3.
const GST: &str = r#"#!/bin/sh
sink=/GstPipeline:pipeline0/GstFdSink:fdsink0.GstPad:sink
echo "$sink: caps = video/x-raw, width=(int)32, height=(int)32, format=(string)RGB" >&2
for n in $(seq 1 6); do
    echo "/GstPipeline:pipeline0/GstIdentity:plimsoll-times: last-message = chain pts: 0:00:00.0$n, " >&2
    head -c 3072 /dev/zero >&3
done
"#;

/// A folder with programs of ours, and one for runs.
pub(crate) struct Stage {
    pub(crate) folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new(program: &str, script: &str) -> Result<Stage> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(program);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Stage { folder })
    }

    pub(crate) fn bench(&self, more: &[&str]) -> Command {
        let runs = self.folder.path().join("runs").display().to_string();
        let base = ["bench", "--engine=echo", "--model0=echo", "--imgsz=96", "--warmup=0"];
        let place = ["--output-dir", &runs, "--run-name", "a", "--quiet"];
        let mut command = plimsoll(&[&base[..], &place[..], more].concat());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.path().display()));
        command
    }

    fn run(&self, more: &[&str]) -> Result<Output> {
        Ok(self.bench(more).output()?)
    }

    fn report(&self) -> Result<Value> {
        report(&self.folder.path().join("runs/a"))
    }

    fn starts(&self) -> usize {
        let lines = fs::read_to_string(self.folder.path().join("starts")).unwrap_or_default();
        lines.lines().count()
    }
}

fn report(run: &Path) -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(run.join("report.json"))?)?)
}

#[test]
fn a_camera_that_vanishes_fails_its_slot_and_keeps_what_was_measured() -> Result {
    let script = format!("{FFMPEG}echo 'v4l2: No such device' >&2\nexit 1\n");
    for source in ["--source=camera=/dev/null", "--source=rtsp://nowhere/stream"] {
        let stage = Stage::new("ffmpeg", &script)?;
        let ran = stage.run(&[source, "--max-frames=100"])?;
        assert_eq!(ran.status.code(), Some(3), "{}", text(&ran.stderr));
        let slot = &stage.report()?["models"][0];
        assert_eq!(slot["status"], "failed");
        assert!(
            slot["reason"].as_str().is_some_and(|why| why.contains("No such device")),
            "{slot}"
        );
        assert_eq!(slot["performance"]["frames"], 6);
    }
    Ok(())
}

#[test]
fn ctrl_c_ends_a_silent_camera_at_once() -> Result {
    let stage = Stage::new("ffmpeg", &format!("{FFMPEG}exec sleep 100\n"))?;
    let mut child = stage
        .bench(&["--source=rtsp://nowhere/stream", "--max-frames=100"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // Silence begins after six frames.
    let frames = || Some(stage.report().ok()?["models"][0]["performance"]["frames"] == 6);
    let came = until("the sixth frame", || frames().filter(|all| *all));
    let asked = Instant::now();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
    let code = child.wait()?.code();
    came?;
    assert_eq!(code, Some(130));
    // Before the source is given up, which is after 15 s of silence.
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    let report = stage.report()?;
    assert_eq!(report["models"][0]["status"], "interrupted");
    assert_eq!(report["models"][0]["performance"]["frames"], 6);
    Ok(())
}

#[test]
fn one_live_source_feeds_both_slots_from_one_reader() -> Result {
    let stage = Stage::new("ffmpeg", FFMPEG)?;
    let source = "--source=rtsp://nowhere/stream";
    stage.run(&[source, "--model1=echo", "--parallel", "--max-frames=6"])?;
    let report = stage.report()?;
    for slot in [0, 1] {
        assert_eq!(report["models"][slot]["status"], "completed", "{report}");
        assert_eq!(report["models"][slot]["performance"]["frames"], 6);
    }
    assert_eq!(stage.starts(), 1);
    Ok(())
}

#[test]
fn a_pipeline_feeds_a_slot() -> Result {
    let stage = Stage::new("gst-launch-1.0", GST)?;
    let ran = stage.run(&["--source=gst=nvarguscamerasrc ! nvvidconv"])?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let report = stage.report()?;
    assert_eq!(report["input_source"]["streams"][0]["kind"], "gst");
    assert_eq!(report["models"][0]["performance"]["frames"], 6);
    Ok(())
}

/// What is true of a run whose folder filled up while it ran: the last whole report stands,
/// the summary is on stderr, and the exit code says that something failed.
fn assert_full(run: &Path, ran: &Output) -> Result {
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains("the report could not be written"), "{said}");
    assert!(said.contains("yolo11n_rgb") && said.contains("2000"), "{said}");
    let report = report(run)?;
    assert_eq!(report["models"].as_array().map(Vec::len), Some(2));
    let lines = fs::read_to_string(run.join("metrics.jsonl"))?;
    let whole = lines.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    assert!(whole + 1 >= lines.lines().count() && whole > 10, "whole lines, but for the last");
    Ok(())
}

const LONG: [&str; 2] = ["--source=synthetic:size=64x64", "--max-frames=2000"];

/// A bound on the size of files: what a quota does.
#[test]
fn a_quota_leaves_the_last_whole_report() -> Result {
    let stage = Stage::new("none", "")?;
    let command = stage.bench(&LONG);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap '' XFSZ; ulimit -f 128; exec "$0" "$@""#]);
    shell.arg(command.get_program()).args(command.get_args());
    assert_full(&stage.folder.path().join("runs/a"), &shell.output()?)
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// A file system that is really full. Needs the right to mount.
#[test]
#[cfg(target_os = "linux")]
fn a_full_file_system_leaves_the_last_whole_report() -> Result {
    let stage = Stage::new("none", "")?;
    let runs = stage.folder.path().join("runs");
    fs::create_dir(&runs)?;
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(&runs)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: a file system cannot be mounted here");
        return Ok(());
    }
    let mounted = Mounted(runs);
    let ran = stage.run(&LONG)?;
    let said = text(&ran.stderr);
    assert!(!said.contains(".new"), "a hidden file is named: {said}");
    assert_full(&mounted.0.join("a"), &ran)
}

/// Two slots at once: each has its own memory, and what is common is apart.
#[test]
#[cfg(target_os = "linux")]
fn slots_at_once_have_each_their_own_memory() -> Result {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    let flags = ["bench", "--parallel", "--engine=rten", "--max-frames=4", "--warmup=1"];
    let flags = [&flags[..], &["--run-name=a", "--output-dir", &place]].concat();
    let ran = common::run(&flags)?;
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let report = report(&folder.path().join("a"))?;
    let shared = report["shared"]["peak_gb"].as_f64().ok_or("no shared memory")?;
    let mut own = 0.0;
    for slot in [0, 1] {
        let memory = &report["models"][slot]["gpu_memory"];
        assert_eq!(memory["what"], "slot_memory");
        let peak = memory["peak_gb"].as_f64().ok_or("no memory")?;
        assert!(peak > 0.001 && peak < 1.0, "{memory}");
        own += peak;
    }
    assert!(shared > 0.001 && own + shared < 4.0, "{own} and {shared}");
    let whole = text(&ran.stdout);
    assert!(whole.contains("├─ Models") && whole.contains("└─ Shared"), "{whole}");
    Ok(())
}

/// Nothing grows with the frames: what a long run keeps of them is bounded.
#[test]
#[cfg(target_os = "linux")]
fn memory_stays_flat_over_many_frames() -> Result {
    let stage = Stage::new("none", "")?;
    let ran = stage.run(&["--source=synthetic:size=64x64", "--max-frames=20000"])?;
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let lines = fs::read_to_string(stage.folder.path().join("runs/a/metrics.jsonl"))?;
    let held = |line: &str| serde_json::from_str::<Value>(line).ok()?["memory_bytes"].as_u64();
    let held: Vec<u64> = lines.lines().filter_map(held).collect();
    let middle = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    assert_eq!(held.len(), 20_000);
    let (early, late) = (middle(&held[5000..7000]), middle(&held[18_000..]));
    assert!(late < early + (3 << 20), "{early} and {late}");
    Ok(())
}
