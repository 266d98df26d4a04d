//! `plimsoll monitor` as a user meets it.

mod common;
#[path = "monitor/gaps.rs"]
mod gaps;
#[cfg(target_os = "linux")]
#[path = "monitor/guarded.rs"]
mod guarded;
#[path = "monitor/serve.rs"]
mod serve;
#[cfg(target_os = "linux")]
#[path = "monitor/sources.rs"]
mod sources;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "its answers of `run` are not asked for here")]
#[path = "common/stage.rs"]
mod stage;
#[path = "common/waiting.rs"]
mod waiting;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Result, complaint, json, plimsoll, run, shared, text};
use serde_json::{Value, json};
use waiting::{WAIT_FOR, until};

/// An interval that leaves probes time to answer on a busy machine: what one tells that is late is
/// missing in the sample.
const PATIENT: &str = "1s";

fn machine(name: &str) -> String {
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines");
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
    let once = ["monitor", "--once", "--interval", PATIENT, "--root", &root];
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
    let words = until("a word", || fs::read_to_string(&told).ok().filter(|told| !told.is_empty()))?;
    assert!(words.contains("system memory runs out in"), "{words}");
    Ok(())
}

/// The forecast goes to the limit, and an alert is about what is left below it.
#[test]
fn a_limit_is_what_memory_is_compared_with() -> Result {
    let folder = tempfile::tempdir()?;
    let path = log(folder.path(), 100, |t| 4000.0 + 20.0 * t)?;
    let words = ["monitor", "--format", "jsonl", "--alert-free", "1GiB", "--replay"];
    let run = plimsoll(&words).arg(&path).args(["--limit", "6.5GiB"]).output()?;
    let found = lines(&run.stdout)?;
    let last = found.last().ok_or("no record")?;
    assert_eq!(last["memory"]["limit_bytes"], json!(13u64 << 29));
    assert_eq!(last["time_left"]["limit_bytes"], json!(13u64 << 29));
    let left = last["time_left"]["seconds"].as_f64().ok_or("no forecast")?;
    // 6656 MiB less the 5980 of now, at 20 MiB a second.
    assert!((30.0..=37.0).contains(&left), "{left}");
    assert!(
        text(&run.stderr).contains("of 6.50 GiB left, less than 1.00 GiB"),
        "{}",
        text(&run.stderr)
    );
    let said = last["missing"][0].as_str().unwrap_or_default();
    assert!(said.contains("not recorded") && said.contains("processes"), "{last}");
    let metrics = plimsoll(&["monitor", "--format", "prometheus", "--limit", "6GiB", "--replay"])
        .arg(&path)
        .output()?;
    assert!(text(&metrics.stdout).contains("plimsoll_memory_limit_bytes 6442450944\n"));
    assert!(complaint(&["monitor", "--once", "--limit", "8"])?.contains("8GiB"));
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn processes_say_who_they_are_and_can_be_left_out() -> Result {
    let holds = "import time; held = b'x' * (200 << 20); print(flush=True); time.sleep(60)";
    let mut sleep = Command::new("python3")
        .args(["-c", holds, "--token", "abc", "a word"])
        .stdout(Stdio::piped())
        .spawn()?;
    sleep.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 1])?;
    let record = json(&["monitor", "--once", "--interval", PATIENT], 0);
    let without = json(&["monitor", "--once", "--interval", PATIENT, "--no-processes"], 0);
    sleep.kill()?;
    sleep.wait()?;
    let record = record?;
    let all = record["processes"].as_array().ok_or("no processes")?;
    let found = all.iter().find(|process| process["pid"] == json!(sleep.id()));
    let command = found.and_then(|process| process["command"].as_str()).unwrap_or_default();
    assert!(command.ends_with(" --token *** a word"), "no secrets: {found:?}");
    assert!(command.contains(" -c import time"), "{found:?}");
    assert!(found.is_some_and(|process| process["user"].is_string()), "{found:?}");
    assert!(all.len() <= 32, "what is written is bounded");
    assert_eq!(without?["processes"], json!([]));
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

/// Each line that is written would be read, and written again, until the disk is full.
#[cfg(target_os = "linux")]
#[test]
fn a_replay_does_not_grow_its_own_log() -> Result {
    let folder = tempfile::tempdir()?;
    let path = log(folder.path(), 20, |t| 4000.0 + t)?;
    let linked = folder.path().join("linked");
    fs::hard_link(&path, &linked)?;
    let before = fs::read(&path)?;
    let end = fs::File::options().append(true).open(&linked)?;
    let replay = |to: fs::File| {
        let words =
            ["20", env!("CARGO_BIN_EXE_plimsoll"), "monitor", "--format", "csv", "--replay"];
        Command::new("timeout").args(words).arg(&path).stdout(to).output()
    };
    let run = replay(end)?;
    assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("which is the file of --replay"), "{}", text(&run.stderr));
    assert_eq!(fs::read(&path)?, before);
    let elsewhere = replay(fs::File::create(folder.path().join("else"))?)?;
    assert_eq!(elsewhere.status.code(), Some(0), "{}", text(&elsewhere.stderr));
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
    let five = || fs::read_to_string(&path).ok().filter(|log| log.lines().count() >= 5);
    let log = until("the fifth line", five);
    child.kill()?;
    child.wait()?;
    log?;
    let log = fs::read_to_string(&path)?;
    assert!(log.ends_with('\n') && lines(log.as_bytes())?.len() >= 5, "{log}");
    let words = ["monitor", "--interval", "50ms", "--format", "jsonl", "--log", "/dev/full"];
    let mut full = plimsoll(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut out, mut shown) =
        (BufReader::new(full.stdout.take().ok_or("no stdout")?), String::new());
    for _ in 0..3 {
        out.read_line(&mut shown)?;
    }
    Command::new("kill").arg(full.id().to_string()).status()?;
    out.read_to_string(&mut shown)?;
    let full = full.wait_with_output()?;
    assert_eq!(full.status.code(), Some(0));
    assert_eq!(text(&full.stderr).matches("No space left").count(), 1, "{}", text(&full.stderr));
    assert!(lines(shown.as_bytes())?.len() > 2, "it goes on showing");
    assert!(text(&full.stderr).contains("peak"), "and sums up at the end");
    Ok(())
}

/// A disk that is full and then is not: only where a small file system can be mounted.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_log_and_not_the_monitor() -> Result {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("disk");
    fs::create_dir(&disk)?;
    // The log fills the disk, a file in its way is taken away, and the log goes on.
    let script = "mount -t tmpfs -o size=8m none disk || exit 77
        head -c 8300000 /dev/zero > disk/ballast
        \"$1\" monitor --interval 50ms --format jsonl --log disk/log >out 2>err & pid=$!
        wait_for grep -q 'No space' err || exit 1
        rm disk/ballast
        wait_for grep -q 'goes on' err || exit 1
        sleep 0.3; kill $pid; wait $pid; code=$?; cp disk/log log; exit $code";
    let script = [WAIT_FOR, script].concat();
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .current_dir(folder.path())
        .output();
    let Ok(run) = run.map_err(|_| ()) else {
        println!("skipped: unshare is missing");
        return Ok(());
    };
    if !folder.path().join("err").exists() {
        println!("skipped: nothing can be mounted here: {}", text(&run.stderr).trim());
        return Ok(());
    }
    let told = fs::read_to_string(folder.path().join("err"))?;
    assert_eq!(run.status.code(), Some(0), "{told}");
    assert_eq!(told.matches("No space left").count(), 1, "{told}");
    let shown = lines(&fs::read(folder.path().join("out"))?)?.len();
    let kept = lines(&fs::read(folder.path().join("log"))?)?.len();
    assert!(kept > 0 && shown > kept, "{shown} were shown, {kept} whole lines kept");
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

#[test]
fn a_file_that_is_no_log_is_refused_in_a_few_lines() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("novel.txt");
    fs::write(&path, "It was a dark and stormy night.\n".repeat(400))?;
    let output = plimsoll(&["monitor", "--replay"]).arg(&path).output()?;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("novel.txt has no line of tegrastats"), "{said}");
    assert!(said.contains("395 more lines") && said.lines().count() < 10, "{said}");
    Ok(())
}
