//! The folder of a run: names, kills and full disks.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use plimsoll_bench::record::BenchRecord;
use plimsoll_bench::report::Rendered;
use plimsoll_bench::report::files::{FilesError, Journal, ReportWritten, RunFolder};

use crate::made_up;

fn rendered(seed: u64) -> Rendered {
    let record = made_up::record(&made_up::Wish { seed, frames: 60, ..Default::default() });
    Rendered::new(&record, &[]).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn no_run_is_written_over_another() {
    let place = tempfile::tempdir().unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(1_794_735_000);
    let name = |given| {
        let folder = RunFolder::create(&place.path().join("outputs"), given, now).unwrap();
        assert!(folder.path().is_dir());
        folder.name().to_string()
    };
    assert_eq!(name(None), "20261115-093000");
    assert_eq!(name(None), "20261115-093000-2");
    assert_eq!(name(Some("night-1")), "night-1");
    assert_eq!(name(Some("night-1")), "night-1-2");
    assert_eq!(name(Some("night-1")), "night-1-3");
}

#[test]
fn names_cannot_leave_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let long = "x".repeat(101);
    for bad in
        ["", ".", "..", "../x", "a/b", "a\\b", "/etc", ".hidden", "-rf", "a\0b", "a\nb", &long]
    {
        let made = RunFolder::create(place.path(), Some(bad), UNIX_EPOCH);
        assert!(matches!(made, Err(FilesError::Name { .. })), "{bad:?}");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn reports_are_replaced_whole() {
    let place = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::create(place.path(), Some("a"), UNIX_EPOCH).unwrap();
    for seed in 0..3 {
        assert_eq!(folder.write(&rendered(seed)).unwrap(), ReportWritten::Whole);
    }
    let mut names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json", "report.md", "summary.csv"]);
    let json = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    assert_eq!(json, rendered(2).json);
}

#[test]
fn a_failure_is_told_once_and_reports_come_back() {
    let place = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::create(place.path(), Some("a"), UNIX_EPOCH).unwrap();
    assert_eq!(folder.write(&rendered(0)).unwrap(), ReportWritten::Whole);
    // In the way of the file beside the report: no user, not even root, writes over it.
    let block = folder.path().join(".report.md.new");
    std::fs::create_dir(&block).unwrap();
    let error = folder.write(&rendered(1)).unwrap_err();
    assert!(error.to_string().contains(".report.md.new"), "{error}");
    assert_eq!(folder.write(&rendered(1)).unwrap(), ReportWritten::Not);
    let read = |path: &Path| std::fs::read_to_string(path.join("report.json")).unwrap();
    assert_eq!(read(folder.path()), rendered(0).json, "the last whole report stands");
    std::fs::remove_dir(&block).unwrap();
    assert_eq!(folder.write(&rendered(1)).unwrap(), ReportWritten::Whole);
    assert_eq!(read(folder.path()), rendered(1).json);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_told_once() {
    let mut journal = Journal::open(Path::new("/dev/full")).unwrap();
    journal.line("{}").unwrap();
    let error = journal.flush().unwrap_err();
    assert!(error.to_string().contains("make room"), "{error}");
    assert!(journal.is_broken());
    journal.line("{}").unwrap();
    journal.flush().unwrap();
}

/// A file system of 256 KiB, where this user may mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_whole_lines_and_the_last_report() {
    let place = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(place.path())
        .output();
    if !mount.is_ok_and(|done| done.status.success()) {
        println!("skipped: this user may not mount a file system");
        return;
    }
    let outcome = std::panic::catch_unwind(|| fill(place.path()));
    let unmounted = Command::new("umount").arg(place.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    outcome.unwrap();
}

#[cfg(target_os = "linux")]
fn fill(place: &Path) {
    let mut folder = RunFolder::create(place, Some("a"), UNIX_EPOCH).unwrap();
    assert_eq!(folder.write(&rendered(0)).unwrap(), ReportWritten::Whole);
    let mut journal = folder.metrics().unwrap();
    let line = format!("{{\"t\": 1.0, \"pad\": \"{}\"}}", "x".repeat(1000));
    let failures = (0..1000).filter(|_| journal.line(&line).is_err()).count();
    assert_eq!(failures, 1, "told once");
    let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    assert!(text.ends_with('\n') && text.lines().all(|one| one == line), "whole lines");
    assert!(text.lines().count() > 10);
    std::fs::write(folder.path().join("filler"), vec![0; 1 << 20]).unwrap_err();
    assert!(folder.write(&rendered(1)).is_err());
    assert_eq!(folder.write(&rendered(1)).unwrap(), ReportWritten::Not);
    let json = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    assert_eq!(json, rendered(0).json, "the last whole report stands");
}

const WRITER: &str = "PLIMSOLL_TEST_WRITER";

/// Writes until it is killed, when the test below starts it in a process of its own.
#[test]
fn writer_for_the_kill_test() {
    let Some(place) = std::env::var_os(WRITER) else { return };
    let mut folder = RunFolder::create(Path::new(&place), Some("a"), UNIX_EPOCH).unwrap();
    let mut journal = folder.metrics().unwrap();
    let (one, other) = (rendered(1), rendered(2));
    let end = Instant::now() + Duration::from_secs(20);
    for frame in (0u64..).take_while(|_| Instant::now() < end) {
        for _ in 0..500 {
            journal.json(&serde_json::json!({"t": 0.5, "frame": frame})).unwrap();
        }
        let _ = folder.write(if frame % 2 == 0 { &one } else { &other }).unwrap();
    }
}

#[test]
fn a_kill_leaves_valid_files() {
    for round in 0..5u64 {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::writer_for_the_kill_test"])
            .env(WRITER, place.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let report = place.path().join("a/report.json");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !report.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let json = std::fs::read_to_string(&report).unwrap();
        assert!(serde_json::from_str::<BenchRecord>(&json).is_ok());
        let metrics = std::fs::read_to_string(place.path().join("a/metrics.jsonl")).unwrap();
        assert!(metrics.is_empty() || metrics.ends_with('\n'));
        assert!(
            metrics.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
        );
    }
}
