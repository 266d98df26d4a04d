//! Logs in which some samples lack what others have.

use super::*;

const GIB: u64 = 1 << 30;

/// A log of ours, a record a second.
fn written(folder: &Path, records: impl Iterator<Item = Value>) -> Result<PathBuf> {
    let path = folder.join("memory.jsonl");
    let lines: Vec<String> = records.map(|record| record.to_string()).collect();
    fs::write(&path, lines.join("\n"))?;
    Ok(path)
}

/// A machine with 64 GiB, and a GPU of 24 GiB where something of it is used.
fn sample(t: u64, used_of_gpu: Option<u64>) -> Value {
    let gpus: Vec<Value> = used_of_gpu
        .map(|used| json!({"unified": false, "total_bytes": 24 * GIB, "used_bytes": used}))
        .into_iter()
        .collect();
    json!({"t": t, "unified": used_of_gpu.map(|_| false), "gpus": gpus,
        "memory": {"total_bytes": 64 * GIB, "available_bytes": 24 * GIB}})
}

#[test]
fn a_sample_without_the_gpu_does_not_end_its_forecast() -> Result {
    let folder = tempfile::tempdir()?;
    let used = |t: u64| (t % 15 != 14).then_some(2 * GIB + t * (GIB / 5));
    let path = written(folder.path(), (0..105).map(|t| sample(t, used(t))))?;
    let words = ["monitor", "--format", "jsonl", "--alert-within", "30s", "--replay"];
    let run = plimsoll(&words).arg(&path).output()?;
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
    let found = lines(&run.stdout)?;
    let told = found.iter().filter(|record| record["time_left"]["memory"] == json!("gpu0"));
    assert!(told.count() > 60, "{}", text(&run.stdout));
    Ok(())
}

/// 40 GiB of the system's memory are used: more than a limit that is meant for the GPU.
#[test]
fn a_sample_without_the_gpu_does_not_compare_the_system_with_its_limit() -> Result {
    let folder = tempfile::tempdir()?;
    let used = |t: u64| (t != 5).then_some(2 * GIB);
    let path = written(folder.path(), (0..10).map(|t| sample(t, used(t))))?;
    let words = ["monitor", "--format", "jsonl", "--limit", "20GiB", "--alert-free", "1GiB"];
    let run = plimsoll(&words).arg("--replay").arg(&path).output()?;
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    for record in lines(&run.stdout)? {
        assert_eq!(record["memory"]["limit_bytes"], Value::Null, "{record}");
        let limit = record["gpus"].get(0).map(|gpu| gpu["limit_bytes"].clone());
        assert!(limit.is_none_or(|limit| limit == json!(20 * GIB)), "{record}");
    }
    Ok(())
}

/// As long as a driver has not answered, nobody knows whether the limit is about a GPU.
#[test]
fn a_limit_waits_for_a_gpu_that_is_late() -> Result {
    let folder = tempfile::tempdir()?;
    let late = |mut record: Value| {
        record["late"] = json!(["nvml"]);
        record
    };
    let path = written(folder.path(), [late(sample(0, None)), sample(1, None)].into_iter())?;
    let words = ["monitor", "--format", "jsonl", "--limit", "20GiB", "--replay"];
    let found = lines(&plimsoll(&words).arg(&path).output()?.stdout)?;
    let limits = [0, 1].map(|at| found[at]["memory"]["limit_bytes"].clone());
    assert_eq!(limits, [Value::Null, json!(20 * GIB)]);
    Ok(())
}

/// A forecast looks at the last ten minutes, and needs several samples in them.
#[test]
fn samples_that_are_too_far_apart_for_a_forecast_are_no_calm() -> Result {
    let folder = tempfile::tempdir()?;
    let every = |step: u64, more: &[&str]| -> Result<std::process::Output> {
        let record = |at: u64| sample(at * step, Some(2 * GIB + at * (GIB / 5)));
        let path = written(folder.path(), (0..105).map(record))?;
        let words = ["monitor", "--format", "jsonl", "--alert-within", "10m"];
        Ok(plimsoll(&words).args(more).arg("--replay").arg(&path).output()?)
    };
    assert_eq!(every(60, &[])?.status.code(), Some(1));
    for step in [100, 300] {
        let blind = every(step, &[])?;
        assert_eq!(blind.status.code(), Some(2), "{}", text(&blind.stderr));
        assert!(text(&blind.stderr).contains("at most 60 s apart"), "{}", text(&blind.stderr));
    }
    let told = every(300, &["--alert-free", "5GiB"])?;
    assert_eq!(told.status.code(), Some(1), "the other alert was raised: {}", text(&told.stderr));
    let refused = complaint(&["monitor", "--once", "--interval", "61s", "--alert-within", "30s"])?;
    assert!(refused.contains("an --interval of at most 60s"), "{refused}");
    Ok(())
}

/// A watch that ends before a forecast can be made would end with 0, as if all were well.
#[test]
fn a_watch_that_is_too_short_for_a_forecast_is_refused() -> Result {
    let refused =
        |words: &[&str]| complaint(&[&["monitor", "--alert-within", "30s"], words].concat());
    let once = refused(&["--once"])?;
    assert!(once.contains("a --duration of 30s or more in the place of --once"), "{once}");
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/tegrastats.log");
    for words in [&["--duration", "29s"][..], &["--duration", "10s", "--replay", log]] {
        let short = refused(words)?;
        assert!(short.contains("a --duration of 30s or more: a forecast"), "{words:?}: {short}");
    }
    let slow = refused(&["--interval", "10s", "--duration", "1m"])?;
    assert!(slow.contains("a --duration of 80s or more"), "{slow}");
    let words = ["monitor", "--alert-within", "30s", "--duration", "30s", "--format", "csv"];
    let enough = plimsoll(&words).args(["--replay", log]).output()?;
    assert_eq!(enough.status.code(), Some(0), "{}", text(&enough.stderr));
    Ok(())
}

#[test]
fn every_line_for_people_stands_under_its_header() -> Result {
    let folder = tempfile::tempdir()?;
    let used = |t: u64| (![0, 1, 4].contains(&t)).then_some(2 * GIB);
    let path = written(folder.path(), (0..6).map(|t| sample(t, used(t))))?;
    let run = plimsoll(&["monitor", "--format", "table", "--replay"]).arg(&path).output()?;
    let shown = text(&run.stdout);
    let table: Vec<&str> = shown.lines().take_while(|line| !line.contains("samples in")).collect();
    let heads: Vec<usize> = (0..table.len()).filter(|at| table[*at].contains("CPU %")).collect();
    assert_eq!(heads, [0, 3], "a header again where the GPU is first seen: {shown}");
    assert!(!table[0].contains("GPU VRAM") && table[3].contains("GPU VRAM"), "{shown}");
    let width = |line: &&str| line.chars().count();
    assert!(table[1..3].iter().all(|line| width(line) == width(&table[0])), "{shown}");
    assert!(table[4..8].iter().all(|line| width(line) == width(&table[3])), "{shown}");
    Ok(())
}

#[test]
fn one_sample_is_no_samples() -> Result {
    let folder = tempfile::tempdir()?;
    for (many, said) in [(1, "1 sample in 0.0 s"), (2, "2 samples in 1.0 s")] {
        let path = written(folder.path(), (0..many).map(|t| sample(t, None)))?;
        let run = plimsoll(&["monitor", "--format", "table", "--replay"]).arg(&path).output()?;
        assert!(text(&run.stdout).contains(said), "{}", text(&run.stdout));
    }
    Ok(())
}
