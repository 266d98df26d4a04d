//! `plimsoll monitor` as a user meets it.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Result, complaint, json, plimsoll, run, shared, text};
use serde_json::{Value, json};

fn machine(name: &str) -> String {
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memory/tests/machines");
    trees.join(name).display().to_string()
}

/// A log of tegrastats: a line a second, memory as the function says.
fn log(folder: &Path, seconds: u32, used: impl Fn(f64) -> f64) -> Result<PathBuf> {
    let path = folder.join("tegrastats.log");
    let mut text = String::new();
    for t in 0..seconds {
        let (h, m, s) = (t / 3600, t / 60 % 60, t % 60);
        let used = used(f64::from(t)).round();
        text += &format!(
            "11-15-2026 {h:02}:{m:02}:{s:02} RAM {used}/7607MB (lfb 12x4MB) CPU [1%@729]\n"
        );
    }
    fs::write(&path, text)?;
    Ok(path)
}

fn lines(output: &[u8]) -> Result<Vec<Value>> {
    Ok(text(output).lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

fn without_nulls(value: &Value) -> Value {
    let known = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(known.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Numbers are the same whether they are written 3 or 3.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn real_tegrastats_lines_give_every_field() -> Result {
    let Some(path) = shared("tegrastats/lines.jsonl") else {
        println!("skipped: no recorded lines beside the repository");
        return Ok(());
    };
    let expected: Vec<Value> = fs::read_to_string(path)?
        .lines()
        .map(serde_json::from_str)
        .collect::<std::result::Result<_, _>>()?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let all: Vec<&str> = expected.iter().filter_map(|line| line["line"].as_str()).collect();
    fs::write(&log, all.join("\n") + "\n")?;
    let run = plimsoll(&["monitor", "--format", "jsonl", "--replay"]).arg(&log).output()?;
    let found = lines(&run.stdout)?;
    assert_eq!(found.len(), expected.len());
    for (expected, found) in expected.iter().zip(&found) {
        let line = &expected["line"];
        if expected["is_record"] == json!(false) {
            assert!(found["error"].is_string(), "{line}: {found}");
            continue;
        }
        let (want, got) =
            (without_nulls(&expected["expected"]), without_nulls(&found["tegrastats"]));
        assert!(same(&want, &got), "{line}\nwant {want}\ngot  {got}");
    }
    Ok(())
}

#[test]
fn one_look_comes_in_every_form() -> Result {
    let root = machine("agx-xavier");
    let once = ["monitor", "--once", "--interval", "50ms", "--root", &root];
    let record = json(&once, 0)?;
    assert_eq!(record["how"], "recorded");
    assert_eq!(record["gpus"][0]["percent"], 64.0);
    assert_eq!(record["power_mode"], "MODE_15W");
    assert_eq!(record["time_left"], Value::Null);
    let form = |form: &str| -> Result<String> {
        let run = run(&[&once[..], &["--format", form]].concat())?;
        assert_eq!(run.status.code(), Some(0), "{form}: {}", text(&run.stderr));
        Ok(text(&run.stdout))
    };
    assert_eq!(lines(form("jsonl")?.as_bytes())?.len(), 1);
    let csv = form("csv")?;
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.len() == 2 && columns[0] == columns[1], "{csv}");
    assert!(form("prometheus")?.contains("plimsoll_board_power_watts 6.93\n"));
    let table = form("table")?;
    for word in ["of it GPU", "MODE_15W", "deepstream", "768.00 MiB", "gpu-balanced"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    Ok(())
}

#[test]
fn the_orin_nanos_way_to_the_end_raises_an_alert_in_time() -> Result {
    let folder = tempfile::tempdir()?;
    let used = |t: f64| (4822.0 + 245.0 * ((t - 60.0) / 6.125).floor().max(0.0)).min(7422.0);
    let path = log(folder.path(), 126, used)?;
    let told = folder.path().join("told");
    let command = format!("echo \"$PLIMSOLL_T $PLIMSOLL_ALERT\" >> {}", told.display());
    let words = ["monitor", "--format", "jsonl", "--alert-within", "30s", "--alert-exec", &command];
    let run = plimsoll(&words).arg("--replay").arg(&path).output()?;
    assert_eq!(run.status.code(), Some(1), "an alert is the answer no");
    let found = lines(&run.stdout)?;
    let alerts: Vec<&Value> = found.iter().filter(|line| line["alerts"].is_array()).collect();
    let t = alerts.first().and_then(|line| line["t"].as_f64()).ok_or("no alert")?;
    assert!((75.0..=105.0).contains(&t), "the end is at 125 s, the alert came at {t} s");
    assert!(text(&run.stderr).contains("alert at t="), "{}", text(&run.stderr));
    let until = Instant::now() + Duration::from_secs(5);
    while fs::read_to_string(&told).unwrap_or_default().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = fs::read_to_string(&told)?;
    assert!(words.contains("system memory runs out in"), "{words}");
    Ok(())
}

#[test]
fn calm_memory_raises_none_and_little_room_does() -> Result {
    let folder = tempfile::tempdir()?;
    let path = log(folder.path(), 600, |t| 6000.0 + 30.0 * (t / 7.0).sin())?;
    let quiet = plimsoll(&["monitor", "--format", "csv", "--alert-within", "30s", "--replay"])
        .arg(&path)
        .output()?;
    assert_eq!(quiet.status.code(), Some(0), "{}", text(&quiet.stderr));
    let room = plimsoll(&["monitor", "--format", "csv", "--alert-free", "25%", "--replay"])
        .arg(&path)
        .output()?;
    assert_eq!(room.status.code(), Some(1));
    assert_eq!(text(&room.stderr).matches("alert at").count(), 1, "{}", text(&room.stderr));
    Ok(())
}

#[test]
fn our_own_log_is_replayed_with_its_times() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("memory.jsonl");
    let gib = 1u64 << 30;
    let mut text_of_log = String::new();
    for t in 0..100u64 {
        // A page cache that fills: free falls, available does not.
        let memory = json!({"total_bytes": 8 * gib, "available_bytes": 4 * gib,
            "free_bytes": 4 * gib - t * (gib / 30)});
        text_of_log += &format!("{}\n", json!({"t": t as f64 * 0.5, "memory": memory}));
    }
    fs::write(&path, &text_of_log)?;
    let words = ["monitor", "--format", "jsonl", "--alert-within", "60s", "--replay"];
    let calm = plimsoll(&words).arg(&path).output()?;
    assert_eq!(calm.status.code(), Some(0), "{}", text(&calm.stderr));
    assert_eq!(lines(&calm.stdout)?.last().map(|last| last["t"].clone()), Some(json!(49.5)));
    let leak = text_of_log.replace("free_bytes", "spare").replace("available_bytes", "x");
    let leak = leak.replace("spare", "available_bytes");
    fs::write(&path, leak)?;
    assert_eq!(plimsoll(&words).arg(&path).output()?.status.code(), Some(1));
    Ok(())
}

#[test]
fn garbage_is_said_to_be_garbage() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    let mut bytes = vec![b'x'; 3 << 20];
    bytes.extend(b"\n\xff\xfe\0RAM\n{\"broken\n{}\nRAM 1/2MB\n");
    fs::write(&path, bytes)?;
    let run = plimsoll(&["monitor", "--format", "jsonl", "--replay"]).arg(&path).output()?;
    let found = lines(&run.stdout)?;
    assert_eq!(found.iter().filter(|line| line["error"].is_string()).count(), 4);
    assert_eq!(found[4]["memory"]["used_bytes"], 1 << 20);
    for words in [
        &["monitor", "--replay", "/no/such/log"][..],
        &["monitor", "--replay", "/"],
        &["monitor", "--once", "--interval", "1ms"],
        &["monitor", "--once", "--alert-free", "much"],
        &["monitor", "--once", "--source", "crystal-ball"],
        &["monitor", "--once", "--root", "/no/such/folder"],
        &["monitor", "--once", "--log", "/no/such/folder/log"],
        &["monitor", "--once", "--serve", "0.0.0.0:0"],
        &["monitor", "--once", "--serve", "not an address"],
    ] {
        assert!(complaint(words)?.starts_with("error: "), "{words:?}");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_has_whole_lines_after_a_kill_and_a_full_disk_is_told() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log.jsonl");
    let mut child = plimsoll(&["monitor", "--interval", "50ms", "--format", "jsonl", "--log"])
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let until = Instant::now() + Duration::from_secs(20);
    while fs::read_to_string(&path).unwrap_or_default().lines().count() < 5
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    let log = fs::read_to_string(&path)?;
    assert!(log.ends_with('\n') && lines(log.as_bytes())?.len() >= 5, "{log}");
    let full = run(&[
        "monitor",
        "--interval",
        "50ms",
        "--duration",
        "600ms",
        "--format",
        "jsonl",
        "--log",
        "/dev/full",
    ])?;
    assert_eq!(full.status.code(), Some(0));
    assert_eq!(text(&full.stderr).matches("No space left").count(), 1, "{}", text(&full.stderr));
    assert!(lines(&full.stdout)?.len() > 2, "it goes on showing");
    assert!(text(&full.stderr).contains("peak"), "and sums up at the end");
    Ok(())
}

/// A stand-in that prints a line and dies, and one that would live for ever.
#[cfg(target_os = "linux")]
fn tegrastats(folder: &Path, body: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("tegrastats");
    fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(format!("{}:{}", folder.display(), std::env::var("PATH")?))
}

#[cfg(target_os = "linux")]
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

/// What the stand-in costs is told beside what the monitor does: in each sample, in the sum
/// at the end and to Prometheus.
#[cfg(target_os = "linux")]
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

#[cfg(target_os = "linux")]
fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[cfg(target_os = "linux")]
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

/// The server of a child, and where it listens.
fn serving(words: &[&str]) -> Result<(Child, String)> {
    let mut child = plimsoll(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().ok_or("no stderr")?;
    let mut first = String::new();
    BufReader::new(stderr).read_line(&mut first)?;
    let address = first.trim().trim_start_matches("serving http://").trim_end_matches('/');
    Ok((child, address.to_string()))
}

fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn the_page_the_metrics_and_the_sample_are_served() -> Result {
    let root = machine("orin-nano");
    let (mut child, address) =
        serving(&["monitor", "--serve", "0", "--interval", "50ms", "--root", &root])?;
    let until = Instant::now() + Duration::from_secs(20);
    while !get(&address, "/api/sample")?.contains("Orin Nano") {
        assert!(Instant::now() < until, "no sample came");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(get(&address, "/metrics")?.contains("plimsoll_memory_gpu_share_bytes 671088640\n"));
    let page = get(&address, "/")?;
    assert!(page.contains("Plimsoll monitor"));
    let body = page.split("\r\n\r\n").nth(1).unwrap_or_default();
    assert!(!body.contains("http://") && !body.contains("https://"), "it needs no other host");
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Memory of a process, in KiB.
#[cfg(target_os = "linux")]
fn peak(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Six hours first, then a day: what is kept does not depend on how long it watched.
#[cfg(target_os = "linux")]
#[test]
fn a_day_of_samples_takes_no_more_memory_than_an_hour() -> Result {
    let folder = tempfile::tempdir()?;
    let replay = |seconds: u32| -> Result<u64> {
        let path = log(folder.path(), seconds, |t| 4000.0 + 1000.0 * (t / 97.0).sin())?;
        let mut child =
            plimsoll(&["monitor", "--format", "csv", "--alert-within", "30s", "--replay"])
                .arg(&path)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
        let (mut most, mut part) = (0, vec![0u8; 1 << 16]);
        let mut stdout = child.stdout.take().ok_or("no stdout")?;
        while stdout.read(&mut part)? > 0 {
            most = most.max(peak(&child));
        }
        child.wait()?;
        Ok(most)
    };
    let (hour, day) = (replay(3600)?, replay(86_400)?);
    assert!(hour > 0 && day <= hour + 2048, "an hour {hour} KiB, a day {day} KiB");
    Ok(())
}
