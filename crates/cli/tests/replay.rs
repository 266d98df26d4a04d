//! `plimsoll replay` as a user meets it. Times are looked for, never judged.

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Result, complaint, json, plimsoll, run, shared, text};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures");

/// A loop on two streams that leaves one block behind: 8 MiB that stay, 1 to 6 MiB that
/// come and go.
fn csv() -> String {
    let mut text = "op,id,size,stream,t_us\na,1,8388608,0,0\n".to_string();
    for step in 0..200u64 {
        let (id, size, stream) = (step + 2, (1 + step % 6) << 20, step % 2);
        text += &format!("a,{id},{size},{stream},{}\n", step * 4 + 1);
        text += &format!("f,{id},{size},{stream},{}\n", step * 4 + 3);
    }
    text
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Result<Files> {
        Ok(Files(tempfile::tempdir()?))
    }

    fn add(&self, name: &str, bytes: &[u8]) -> Result<String> {
        let path = self.0.path().join(name);
        fs::write(&path, bytes)?;
        Ok(path.to_str().ok_or("the path is not UTF-8")?.to_string())
    }
}

fn above_zero(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

/// As where a user may have only so many processes. The system binds everybody but root.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_are_one_error() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    for (path, mode) in [(files.0.path(), 0o755), (Path::new(&trace), 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let as_nobody = ["--nproc=3", "setpriv", "--reuid=65531", "--regid=65531", "--clear-groups"];
    let mut tried = std::process::Command::new("prlimit");
    if !tried
        .args(as_nobody)
        .args([program, "--version"])
        .output()
        .is_ok_and(|ran| ran.status.success())
    {
        println!("skipped: only root can become another user, by setpriv");
        return Ok(());
    }
    let words = [program, "replay", &trace, "--passes=1", "--threads=4"];
    let ran = std::process::Command::new("prlimit").args(as_nobody).args(words).output()?;
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.starts_with("error: one more thread is not available"), "{said}");
    assert!(said.contains("--threads") && said.lines().count() == 1, "{said}");
    Ok(())
}

/// Malloc, which the pool is compared with, must not take the last of it.
#[cfg(target_os = "linux")]
#[test]
fn a_bound_on_addresses_costs_the_comparison_and_not_the_answer() -> Result {
    let files = Files::new()?;
    let blocks = (0..2000).map(|id| format!("a,{id},2097153,{},{id}\n", id % 7));
    let blocks = format!("op,id,size,stream,t_us\n{}", blocks.collect::<String>());
    let trace = files.add("leak.csv", blocks.as_bytes())?;
    let shell = ["-c", "ulimit -v 3000000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_plimsoll")];
    for packing in ["--no-map", "--tight"] {
        let words = ["replay", &trace, "--passes=2", "--json", packing];
        let ran = std::process::Command::new("bash").args(shell).args(words).output()?;
        assert_eq!(ran.status.code(), Some(0), "{packing}: {}", text(&ran.stderr));
        let report: Value = serde_json::from_slice(&ran.stdout)?;
        assert!(report["malloc_ns_per_event"].is_null(), "{packing}: {report}");
        assert!(report["malloc_note"].is_string(), "{packing}: {report}");
    }
    Ok(())
}

#[test]
fn a_report_has_every_field() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let report = json(&["replay", &trace, "--passes", "2"], 0)?;
    for (key, value) in [
        ("events", Value::from(401)),
        ("streams", 2.into()),
        ("completed", true.into()),
        ("failed_event", Value::Null),
        ("peak_live_bytes", (14u64 << 20).into()),
        ("never_freed_count", 1.into()),
        ("never_freed_bytes", (8u64 << 20).into()),
        ("passes", 2.into()),
        ("threads", 1.into()),
        ("backend", "sim".into()),
        ("packing", "quick".into()),
        ("can_map", true.into()),
        ("latencies", "measured".into()),
        ("device_bytes", (141u64 << 30).into()),
        ("thread_scaling", Value::Null),
        ("smallest_cap_bytes", Value::Null),
    ] {
        assert_eq!(report[key], value, "{key}");
    }
    for key in [
        "cold_ns_per_event",
        "cold_charged_ns_per_event",
        "warm_ns_per_event",
        "warm_unmapped_ns_per_event",
        "peak_reserved_bytes",
        "ratio",
        "pool_hits",
        "cold_pool_misses",
        "cold_taken_from_device",
    ] {
        assert!(above_zero(&report[key]), "{key}: {report}");
    }
    for key in [
        "warm_charged_ns_per_event",
        "remapped_handles",
        "cold_remapped_handles",
        "taken_from_device",
        "returned_to_device",
        "sync_waits",
        "pool_misses",
    ] {
        assert!(report[key].is_number(), "{key}: {report}");
    }
    let calls = report["cold_device_calls"].as_array().ok_or("no calls")?;
    let of = |kind: &str| calls.iter().find(|calls| calls["call"] == kind).map(|of| &of["calls"]);
    assert_eq!(of("create"), Some(&report["cold_taken_from_device"]), "{calls:?}");
    assert_eq!(of("allocate"), None, "nothing was taken unmapped: {calls:?}");
    assert_eq!(report["never_freed_largest"][0]["id"], 1);
    let malloc = &report["malloc_ns_per_event"];
    assert!(above_zero(malloc) || report["malloc_note"].is_string(), "{report}");
    assert_eq!(malloc.is_null(), report["malloc_ratio"].is_null());
    assert!(report["timing"].as_str().is_some_and(|how| how.contains("fastest")));
    Ok(())
}

#[test]
fn the_page_says_how_each_time_was_obtained() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let page = text(&run(&["replay", &trace])?.stdout);
    for part in [
        "401 events on 2 streams",
        "the first pass",
        "the fastest of 5 passes",
        "events that needed nothing from the device",
        "peak live        14.00 MiB",
        "Calls for memory, first pass",
        "memory taken",
        "Never freed",
        "id 1",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    Ok(())
}

#[test]
fn the_device_is_as_asked_for() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let with = |flags: &[&str]| json(&[&["replay", &trace, "--passes", "1"], flags].concat(), 0);
    assert_eq!(with(&["--tight"])?["packing"], "tight");
    assert_eq!(with(&["--no-map"])?["can_map"], false);
    assert_eq!(with(&["--cap", "1GiB"])?["device_bytes"], 1u64 << 30);
    let free = with(&["--latencies", "off"])?;
    assert_eq!(free["latencies"], "off");
    assert_eq!(free["cold_charged_ns_per_event"], 0.0);
    let host = with(&["--backend", "host", "--cap", "256MiB"])?;
    assert_eq!(host["backend"], "cpu");
    assert_eq!(host["latencies"], Value::Null);
    assert_eq!(host["can_map"], false);
    assert_eq!(host["completed"], true);
    Ok(())
}

#[test]
fn a_device_that_is_too_small_is_the_answer_no() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let report = json(&["replay", &trace, "--cap", "12MiB"], 1)?;
    assert_eq!(report["completed"], false);
    // The first block of 5 MiB beside the 8, in the fifth round of the loop.
    assert_eq!(report["failed_event"], 10);
    assert_eq!(report["failure"]["requested_bytes"], 5u64 << 20);
    assert_eq!(report["failure"]["live_bytes"], 8u64 << 20);
    assert!(report["failure"]["reserved_bytes"].as_u64() <= Some(12 << 20));
    assert_eq!(report["warm_ns_per_event"], Value::Null);
    assert_eq!(report["ratio"], Value::Null);
    let page = text(&run(&["replay", &trace, "--cap", "12MiB"])?.stdout);
    for part in ["Does not complete", "10  of 401", "5.00 MiB", "live", "reserved"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let never = json(&["replay", &trace, "--cap", "4MiB"], 1)?;
    assert_eq!(never["failed_event"], 1);
    Ok(())
}

#[test]
fn the_smallest_device_completes_and_a_smaller_one_does_not() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    for flags in [&[][..], &["--tight"], &["--no-map"]] {
        let words = [&["replay", &trace, "--passes", "1"], flags].concat();
        let found = json(&[&words[..], &["--smallest-cap"]].concat(), 0)?;
        let cap = found["smallest_cap_bytes"].as_u64().ok_or("no cap")?;
        assert!((14 << 20..32 << 20).contains(&cap), "{flags:?}: {cap}");
        let ratio = found["smallest_cap_ratio"].as_f64().ok_or("no ratio")?;
        assert!((ratio - cap as f64 / f64::from(14 << 20)).abs() < 1e-9);
        let at = |cap: u64, code| {
            let cap = cap.to_string();
            json(&[&words[..], &["--cap", &cap]].concat(), code)
        };
        at(cap, 0)?;
        at(cap - (2 << 20), 1)?;
    }
    Ok(())
}

#[test]
fn threads_are_compared_with_one() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let report = json(&["replay", &trace, "--passes", "2", "--threads", "3"], 0)?;
    let rows = report["thread_scaling"].as_array().ok_or("no rows")?;
    assert_eq!(report["threads"], 3);
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["ratio"], 1.0);
    assert!(rows.iter().all(|row| above_zero(&row["events_per_s"])), "{rows:?}");
    Ok(())
}

#[test]
fn every_form_is_read() -> Result {
    let files = Files::new()?;
    // Gzip is known by its content, whatever the name.
    let zipped = files.add("trace.bin", &gzip(csv().as_bytes())?)?;
    assert_eq!(json(&["replay", &zipped, "--passes", "1"], 0)?["events"], 401);
    let snapshot = format!("{FIXTURES}/snapshot_p4.pickle");
    let plain = json(&["replay", &snapshot, "--passes", "1"], 0)?;
    assert!(above_zero(&plain["events"]), "{plain}");
    let zipped = files.add("snapshot.gz", &gzip(&fs::read(&snapshot)?)?)?;
    assert_eq!(json(&["replay", &zipped, "--passes", "1"], 0)?["events"], plain["events"]);

    let mut child = plimsoll(&["replay", "-", "--json", "--passes", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(&gzip(csv().as_bytes())?)?;
    let run = child.wait_with_output()?;
    let report: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!((&report["events"], &report["trace"]), (&401.into(), &"stdin".into()));
    Ok(())
}

#[test]
fn a_snapshot_of_several_devices_asks_which() -> Result {
    let snapshot = format!("{FIXTURES}/snapshot_devices.pickle");
    let message = complaint(&["replay", &snapshot])?;
    assert!(message.contains("choose one with --device N"), "{message}");
    let device = message
        .split("devices ")
        .nth(1)
        .and_then(|rest| rest.split([',', ' ']).next())
        .ok_or("no list")?;
    json(&["replay", &snapshot, "--passes", "1", "--device", device], 0)?;
    assert!(complaint(&["replay", &snapshot, "--device", "99"])?.contains("no device 99"));
    Ok(())
}

#[test]
fn bad_input_names_the_file_and_the_place() -> Result {
    let files = Files::new()?;
    let whole = gzip(csv().as_bytes())?;
    let cut = files.add("cut.csv.gz", &whole[..whole.len() / 2])?;
    let garbage = files.add("garbage", &[0xff; 300])?;
    let zip = files.add("archive.zip", b"PK\x03\x04....")?;
    let empty = files.add("empty.csv", b"")?;
    let bad = files.add("bad.csv", csv().replace("a,4,", "x,4,").as_bytes())?;
    let twice = files.add("twice.csv", format!("{}f,3,,0,900\n", csv()).as_bytes())?;
    let good = files.add("good.csv", csv().as_bytes())?;
    let folder = files.0.path().to_str().ok_or("not UTF-8")?;
    for (words, parts) in [
        (&["replay", "/no/such/trace.csv"][..], &["/no/such/trace.csv", "because"][..]),
        (&["replay", folder], &[folder]),
        (&["replay", &cut], &["cut.csv.gz", "cut short"]),
        (&["replay", &garbage], &["garbage", "line 1", "op,id,size,stream,t_us"]),
        (&["replay", &zip], &["archive.zip", "zip"]),
        (&["replay", &empty], &["empty.csv", "empty"]),
        (&["replay", &bad], &["bad.csv, line 7", "it must be a or f"]),
        (&["replay", &twice], &["twice.csv, line 403", "freed before"]),
        (&["replay", &good, "--device", "0"], &["good.csv", "--device"]),
        (&["replay", &good, "--cap", "0"], &["--cap"]),
        (&["replay", &good, "--cap", "9000000TiB"], &["--cap"]),
        (&["replay", &good, "--cap", "1000TiB"], &["--cap"]),
        (&["replay", &good, "--passes", "0"], &["--passes"]),
        (&["replay", &good, "--threads", "0"], &["--threads"]),
        (&["replay", &good, "--backend", "abacus"], &["--backend"]),
        (&["replay", &good, "--latencies", "guessed"], &["--latencies"]),
        (&["replay", &good, "--backend", "host", "--latencies", "off"], &["--latencies", "cpu"]),
        (&["replay", &good, "--backend", "host", "--no-map"], &["--no-map", "leave it out"]),
        (&["replay"], &["TRACE"]),
    ] {
        let message = complaint(words)?;
        for part in parts {
            assert!(message.contains(part), "{words:?}: no {part:?} in {message}");
        }
    }
    Ok(())
}

#[test]
fn hostile_pickles_are_refused_and_do_nothing() -> Result {
    let mut seen = 0;
    for entry in fs::read_dir(FIXTURES)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().display().to_string();
        if !name.starts_with("hostile") {
            continue;
        }
        let message = complaint(&["replay", path.to_str().ok_or("not UTF-8")?])?;
        assert!(message.contains(&name), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        seen += 1;
    }
    assert!(seen > 0);
    Ok(())
}

#[test]
fn a_trace_without_events_has_no_times() -> Result {
    let files = Files::new()?;
    let trace = files.add("none.csv", b"op,id,size,stream,t_us\n")?;
    let report = json(&["replay", &trace], 0)?;
    assert_eq!(report["events"], 0);
    for key in ["cold_ns_per_event", "warm_ns_per_event", "malloc_ratio", "ratio"] {
        assert_eq!(report[key], Value::Null, "{key}");
    }
    Ok(())
}

#[test]
fn a_size_that_nothing_holds_is_the_answer_no() -> Result {
    let files = Files::new()?;
    let csv = format!("op,id,size,stream,t_us\na,1,{},0,0\n", u64::MAX);
    let trace = files.add("huge.csv", csv.as_bytes())?;
    assert_eq!(json(&["replay", &trace], 1)?["failed_event"], 1);
    assert_eq!(json(&["replay", &trace, "--no-map"], 1)?["failed_event"], 1);
    let cap = json(&["replay", &trace, "--smallest-cap"], 1)?;
    assert_eq!(cap["smallest_cap_bytes"], Value::Null);
    Ok(())
}

/// The recorded traces, with the most that may be held for what is live: by default what the
/// best other allocator holds on a GPU, packed tightly, and where nothing can be mapped.
const RECORDED: [(&str, f64, f64, f64); 4] = [
    ("resnet_train", 1.013, 1.02, 1.20),
    ("llama_generate", 1.076, 1.02, 1.20),
    ("detection_infer", 1.068, 1.02, 1.20),
    ("two_streams", 1.099, 1.02, 1.35),
];

#[test]
fn recorded_traces_hold_little_more_than_is_live() -> Result {
    let Some(folder) = shared("traces") else {
        println!("skipped: no recorded traces beside the workspace");
        return Ok(());
    };
    for (name, quick, tight, plain) in RECORDED {
        let path: PathBuf = Path::new(&folder).join(format!("{name}.csv.gz"));
        let path = path.to_str().ok_or("not UTF-8")?;
        for (flag, most) in
            [("--latencies=measured", quick), ("--tight", tight), ("--no-map", plain)]
        {
            let report = json(&["replay", path, "--passes", "1", flag], 0)?;
            let ratio = report["ratio"].as_f64().ok_or("no ratio")?;
            println!("{name} {flag}: {ratio:.4}");
            assert!((1.0..=most).contains(&ratio), "{name} {flag}: {ratio}");
        }
    }
    Ok(())
}

/// As on a GPU, where pointcloud once reserved 1.244 of live from the sixth pass on.
#[test]
fn many_passes_hold_no_more_than_few() -> Result {
    let Some(folder) = shared("traces") else {
        println!("skipped: no recorded traces beside the workspace");
        return Ok(());
    };
    for name in ["pointcloud", "unet_diffusion"] {
        let path: PathBuf = Path::new(&folder).join(format!("{name}.csv.gz"));
        let path = path.to_str().ok_or("not UTF-8")?;
        let report = json(&["replay", path, "--passes", "10"], 0)?;
        let live = report["peak_live_bytes"].as_f64().ok_or("no peak")?;
        let reserved = report["peak_reserved_bytes"].as_f64().ok_or("no peak")?;
        let most = live * 1.05 + f64::from(8 << 20);
        assert!(reserved <= most, "{name}: {:.4}", reserved / live);
    }
    Ok(())
}

#[test]
fn made_up_programs_are_compared_with_the_rules_of_others() -> Result {
    let report = json(&["replay", "--corpus", "2", "--passes", "1"], 0)?;
    assert_eq!((&report["traces"], &report["backend"]), (&2.into(), &"sim".into()));
    let rows = report["rows"].as_array().ok_or("no rows")?;
    assert_eq!(rows.len(), 5);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().ok_or("no figure");
        assert!(1.0 <= figure("ratio_mean")? && figure("ratio_mean")? <= figure("ratio_worst")?);
        let ours = row["who"].as_str().is_some_and(|who| who.starts_with("Plimsoll"));
        assert_eq!(ours, row["over_bound"].is_u64(), "{row}");
        assert_eq!(ours, above_zero(&row["warm_ns_mean"]), "{row}");
    }
    let one = json(&["replay", "corpus:1", "--passes", "1"], 0)?;
    assert_eq!(one["trace"], "corpus:1");
    assert!(complaint(&["replay", "corpus:x"])?.contains("a seed is a whole number"));
    assert!(complaint(&["replay", "--corpus", "2", "--tight"])?.contains("--tight"));
    assert!(complaint(&["replay", "--corpus", "0"])?.contains("--corpus"));
    assert!(complaint(&["replay"])?.contains("--corpus"));
    Ok(())
}

#[test]
fn variants_of_a_recording_have_other_sizes() -> Result {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/training.csv");
    let path = path.to_str().ok_or("not UTF-8")?;
    let report = json(&["replay", path, "--variants", "3", "--passes", "1"], 0)?;
    assert_eq!((&report["traces"], &report["first_seed"]), (&3.into(), &0.into()));
    assert!(report["variants_of"].as_str().is_some_and(|name| name.ends_with("training.csv")));
    let ratios = |first: &str| -> Result<Vec<Value>> {
        let flags = ["replay", path, "--variants", "1", "--passes", "1", "--first-seed", first];
        let rows = json(&flags, 0)?["rows"].clone();
        let rows = rows.as_array().ok_or("no rows")?;
        Ok(rows.iter().map(|row| row["ratio_worst"].clone()).collect())
    };
    assert_eq!(ratios("1")?, ratios("1")?, "a seed is always the same variant");
    assert_ne!(ratios("1")?, ratios("2")?);
    assert!(complaint(&["replay", "--variants", "3"])?.contains("TRACE"));
    assert!(complaint(&["replay", path, "--variants", "3", "--tight"])?.contains("--tight"));
    assert!(complaint(&["replay", "--corpus", "2", "--variants", "3"])?.contains("--corpus"));
    let empty = tempfile::NamedTempFile::new()?;
    fs::write(empty.path(), "op,id,size,stream,t_us\n")?;
    let empty = empty.path().to_str().ok_or("not UTF-8")?;
    assert!(complaint(&["replay", empty, "--variants", "1"])?.contains("no allocation"));
    assert!(complaint(&["replay", path, "--first-seed", "3"])?.contains("--variants"));
    Ok(())
}

#[test]
fn a_recorded_trace_runs_on_system_memory_untouched() -> Result {
    let Some(path) = shared("traces/detection_infer.csv.gz") else {
        println!("skipped: no recorded traces beside the workspace");
        return Ok(());
    };
    let path = path.to_str().ok_or("not UTF-8")?;
    let run = run(&["replay", path, "--backend", "host", "--passes", "1", "--json"])?;
    let report: Value = serde_json::from_slice(&run.stdout)?;
    // A machine with less memory than the trace was recorded with says so.
    let small = report["device_bytes"].as_u64() < report["peak_live_bytes"].as_u64();
    assert!(report["completed"] == true || small || report["failure"].is_object(), "{report}");
    Ok(())
}

/// On a pretend driver, which the memory's own tests have: the same words as on a GPU.
#[test]
fn a_gpu_is_a_device_like_any_other() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memory/tests/fake/cuda.c");
    let built = std::process::Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
        .args([&folder.path().join("libcuda.so.1"), &source])
        .status()?;
    assert!(built.success());
    let words =
        ["replay", &trace, "--backend", "cuda", "--passes", "2", "--smallest-cap", "--json"];
    for more in [&[][..], &["--kernels"], &["--tight"], &["--no-map"]] {
        let run =
            plimsoll(&[&words, more].concat()).env("LD_LIBRARY_PATH", folder.path()).output()?;
        assert!(run.status.success(), "{more:?}: {}", text(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout)?;
        assert_eq!(report["backend"], "cuda:0");
        assert_eq!(report["kernels"], more.contains(&"--kernels"));
        assert_eq!(report["can_map"], !more.contains(&"--no-map"));
        assert_eq!(report["latencies"], Value::Null, "real calls take real time");
        for key in ["warm_ns_per_event", "ratio", "smallest_cap_warm_ns_per_event"] {
            assert!(above_zero(&report[key]), "{key}: {report}");
        }
        assert!(report["smallest_cap_bytes"].as_u64() >= report["peak_live_bytes"].as_u64());
    }
    let wrong = complaint(&["replay", &trace, "--kernels"])?;
    assert!(wrong.contains("--kernels") && wrong.contains("cuda:N"), "{wrong}");
    Ok(())
}

/// Without a driver the files that were tried are named.
#[test]
fn a_missing_driver_is_told() -> Result {
    let files = Files::new()?;
    let trace = files.add("trace.csv", csv().as_bytes())?;
    let run = run(&["replay", &trace, "--backend", "rocm:7"])?;
    let stderr = text(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("not available"), "{stderr}");
    Ok(())
}
