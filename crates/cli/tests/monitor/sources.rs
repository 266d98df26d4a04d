//! Programs and libraries that the monitor asks, played by stand-ins.

use super::*;

/// A stand-in that prints a line and dies, and one that would live for ever.
fn tegrastats(folder: &Path, body: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("tegrastats");
    fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(format!("{}:{}", folder.display(), std::env::var("PATH")?))
}

#[test]
fn tegrastats_is_started_again_when_it_dies() -> Result {
    let folder = tempfile::tempdir()?;
    let count = folder.path().join("count");
    let body =
        format!("echo x >> {}; echo 'RAM 1000/2000MB CPU [7%@100]'; sleep 0.2", count.display());
    let path = tegrastats(folder.path(), &body)?;
    let run = plimsoll(&[
        "monitor",
        "--source",
        "tegrastats",
        "--interval",
        "200ms",
        "--duration",
        "4s",
        "--format",
        "jsonl",
    ])
    .env("PATH", path)
    .output()?;
    let found = lines(&run.stdout)?;
    let seen = found.iter().filter(|line| line["memory"]["used_bytes"] == json!(1000u64 << 20));
    assert!(seen.count() > 3, "{}", text(&run.stdout));
    assert!(fs::read_to_string(&count)?.lines().count() >= 2, "it was started once");
    Ok(())
}

#[test]
fn a_source_that_was_named_and_is_not_there_is_an_error() -> Result {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log").display().to_string();
    let root = machine("amd");
    for (words, reason) in [
        (&["--source", "tegrastats", "--once"][..], "tegrastats"),
        (&["--source", "tegrastats", "--duration", "1s", "--format", "csv"], "tegrastats"),
        (&["--source", "proc,jetson", "--once", "--root", &root], "a Jetson"),
    ] {
        let mut command = plimsoll(&["monitor", "--log", &log]);
        let run = command.args(words).env("PATH", "/usr/bin:/bin").output()?;
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(3), "{words:?}: {said}");
        assert!(run.stdout.is_empty(), "{words:?}: {}", text(&run.stdout));
        assert!(said.contains("--source") && said.contains(reason), "{words:?}: {said}");
        assert!(!Path::new(&log).exists(), "{words:?}: it left a log");
    }
    Ok(())
}

/// An alert about memory that nobody told anything of is no "no".
#[test]
fn an_alert_that_cannot_be_judged_is_an_error() -> Result {
    let folder = tempfile::tempdir()?;
    let blind = tegrastats(folder.path(), "while :; do echo 'CPU [7%@100]'; sleep 0.1; done")?;
    let words = ["monitor", "--source", "tegrastats", "--once", "--alert-free", "20%"];
    let run = |path: &str| plimsoll(&words).env("PATH", path).output();
    let unseen = run(&blind)?;
    assert_eq!(unseen.status.code(), Some(3), "{}", text(&unseen.stderr));
    assert!(text(&unseen.stderr).contains("no alert could be judged"), "{}", text(&unseen.stderr));
    let seen = "while :; do echo 'RAM 1000/2000MB CPU [7%@100]'; sleep 0.1; done";
    assert_eq!(run(&tegrastats(folder.path(), seen)?)?.status.code(), Some(0));
    Ok(())
}

/// What the stand-in costs is told beside what the monitor does: in each sample, in the sum
/// at the end and to Prometheus.
#[test]
fn the_cost_of_tegrastats_is_told_beside_our_own() -> Result {
    let folder = tempfile::tempdir()?;
    let pid = folder.path().join("pid");
    let body = format!(
        "echo $$ > {}; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done\n\
         while :; do echo 'RAM 1/2MB'; sleep 0.1; done",
        pid.display()
    );
    let path = tegrastats(folder.path(), &body)?;
    let words = ["monitor", "--source", "tegrastats", "--interval", "200ms"];
    let timed = |more: &[&str]| -> Result<std::process::Output> {
        let words = [&words[..], &["--duration", "5s"], more].concat();
        Ok(plimsoll(&words).env("PATH", &path).output()?)
    };
    let run = timed(&["--json"])?;
    let found = lines(&run.stdout)?;
    let last = found.last().ok_or("no sample")?;
    assert_eq!(last["cost"][0]["program"], "plimsoll");
    let child = &last["cost"][1];
    assert_eq!(child["program"], "tegrastats", "{last}");
    assert_eq!(child["pid"].to_string(), fs::read_to_string(&pid)?.trim());
    assert!(child["cpu_s"].as_f64() > Some(0.0), "{child}");
    assert!(child["resident_bytes"].as_u64() > Some(0), "{child}");
    for word in ["What the watching cost", "plimsoll", "tegrastats", "of a core"] {
        assert!(text(&run.stderr).contains(word), "{word}: {}", text(&run.stderr));
    }
    let metrics = text(&timed(&["--format", "prometheus"])?.stdout);
    for name in ["cpu_seconds_total", "resident_memory_bytes"] {
        let line = format!("plimsoll_monitor_{name}{{program=\"tegrastats\"}}");
        assert!(metrics.contains(&line), "{line}");
    }
    Ok(())
}

fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[test]
fn tegrastats_is_never_left_behind() -> Result {
    for kill in [true, false] {
        let folder = tempfile::tempdir()?;
        let pid = folder.path().join("pid");
        let body = format!("echo $$ > {}; echo 'RAM 1/2MB'; exec sleep 600", pid.display());
        let path = tegrastats(folder.path(), &body)?;
        let mut child = plimsoll(&["monitor", "--source", "tegrastats", "--format", "jsonl"])
            .env("PATH", path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let until = Instant::now() + Duration::from_secs(20);
        while !fs::read_to_string(&pid).unwrap_or_default().ends_with('\n') {
            assert!(Instant::now() < until, "it was not started");
            std::thread::sleep(Duration::from_millis(20));
        }
        let grandchild = fs::read_to_string(&pid)?;
        assert!(alive(&grandchild));
        match kill {
            true => child.kill()?,
            false => {
                Command::new("kill").arg(child.id().to_string()).status()?;
            }
        }
        child.wait()?;
        while alive(&grandchild) {
            assert!(Instant::now() < until, "it was left behind (kill -9: {kill})");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// NVIDIA's library, played by one of our own, that knows this process.
struct Nvml {
    folder: tempfile::TempDir,
}

impl Nvml {
    fn build() -> Result<Nvml> {
        let folder = tempfile::tempdir()?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/monitor/nvml.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .arg(folder.path().join("libnvidia-ml.so.1"))
            .arg(source)
            .status()?;
        assert!(built.success());
        Ok(Nvml { folder })
    }

    fn look(&self, form: &str) -> Result<String> {
        let run = plimsoll(&["monitor", "--once", "--interval", PATIENT, "--format", form])
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("FAKE_NVML_PID", std::process::id().to_string())
            .output()?;
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        Ok(text(&run.stdout))
    }

    /// Samples of a driver that takes so long to answer.
    fn delayed(&self, millis: u32, interval: &str) -> Result<std::process::Output> {
        let words = ["monitor", "--format", "jsonl", "--interval", interval, "--duration", "6s"];
        let mut command = plimsoll(&words);
        command.env("LD_LIBRARY_PATH", self.folder.path());
        Ok(command.env("FAKE_NVML_DELAY_MS", millis.to_string()).output()?)
    }

    fn record(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.look("jsonl")?)?)
    }
}

#[test]
fn nvml_tells_of_each_gpu_what_it_can() -> Result {
    let record = Nvml::build()?.record()?;
    let (first, second, third) = (&record["gpus"][0], &record["gpus"][1], &record["gpus"][2]);
    let gib = 1u64 << 30;
    for (name, value) in [
        ("name", json!("NVIDIA Pretend 80GB")),
        ("unified", json!(false)),
        ("total_bytes", json!(80 * gib)),
        ("used_bytes", json!(20 * gib + gib / 2)),
        ("percent", json!(97.0)),
        ("mhz", json!(1755.0)),
        ("max_mhz", json!(1980.0)),
        ("memory_mhz", json!(2619.0)),
        ("power_w", json!(412.35)),
        ("power_limit_w", json!(700.0)),
        ("temperature_c", json!(64.0)),
        ("throttled_by", json!(["power cap", "heat (hardware)"])),
    ] {
        assert_eq!(first[name], value, "{name}: {first}");
    }
    assert_eq!((&second["unified"], &second["mhz"]), (&json!(true), &json!(1575.0)));
    for unknown in ["used_bytes", "total_bytes", "percent", "power_w", "throttled_by"] {
        assert_eq!(second[unknown], Value::Null, "{unknown}: {second}");
    }
    assert_eq!((&third["unified"], &third["percent"]), (&json!(false), &Value::Null));
    Ok(())
}

#[test]
fn nvml_tells_who_holds_what_on_each_gpu() -> Result {
    let nvml = Nvml::build()?;
    let record = nvml.record()?;
    let (own, gib) = (std::process::id(), 1u64 << 30);
    let holders: Vec<&Value> = record["processes"]
        .as_array()
        .ok_or("no processes")?
        .iter()
        .filter(|process| !process["gpu"].is_null())
        .collect();
    let of = |pid: u32, gpu: u32| {
        holders.iter().find(|p| p["pid"] == json!(pid) && p["gpu"] == json!(gpu))
    };
    let ours = of(own, 0).ok_or("not told of the first GPU")?;
    assert_eq!(ours["gpu_bytes"], json!(19 * gib));
    assert!(ours["name"].is_string() && ours["resident_bytes"].is_u64(), "{ours}");
    assert!(of(own, 1).is_some(), "one that is on two GPUs is told for each: {holders:?}");
    assert_eq!(of(4_194_000, 0).map(|p| p["gpu_bytes"].clone()), Some(Value::Null));
    assert_eq!(holders.len(), 3, "who computes and draws is there once: {holders:?}");
    let metrics = nvml.look("prometheus")?;
    let held = metrics.lines().filter(|line| line.starts_with("plimsoll_process_gpu_memory_bytes"));
    assert_eq!(held.count(), 2, "{metrics}");
    assert!(nvml.look("csv")?.contains("gpu2_used_bytes"));
    assert!(nvml.look("table")?.contains("19.00 GiB on GPU0"));
    Ok(())
}

/// No GPU is something else than one whose driver takes its time.
#[test]
fn a_driver_that_is_always_late_is_told_with_the_remedy() -> Result {
    let run = Nvml::build()?.delayed(600, "100ms")?;
    let found = lines(&run.stdout)?;
    let without: Vec<&Value> = found.iter().filter(|record| record["gpus"] == json!([])).collect();
    assert!(without.len() > 5, "{}", text(&run.stdout));
    for record in without {
        assert_eq!(record["late"], json!(["nvml"]), "{record}");
        let said = record["missing"].to_string();
        assert!(said.contains("nvml did not answer in time"), "{said}");
        assert!(!said.contains("no GPU found"), "{said}");
    }
    let said = text(&run.stderr);
    assert_eq!(said.matches("warning: nvml: it answers too late, after ").count(), 1, "{said}");
    Ok(())
}
