//! `plimsoll export` as a user meets it.
#![expect(clippy::print_stdout, reason = "what is skipped is said")]

#[expect(dead_code, reason = "recordings are for other verbs")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Result, complaint, json, plimsoll, run, text};
use plimsoll_models::onnx::OnnxHeader;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name);
    path.display().to_string()
}

/// A fake library of the inference tests.
fn fake(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../infer/tests/fixtures").join(name);
    path.display().to_string()
}

fn place(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

#[test]
fn a_checkpoint_becomes_onnx() -> Result {
    let folder = tempfile::tempdir()?;
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.onnx"));
    let found = json(&["export", &from, "--to", &to, "--imgsz", "64x96"], 0)?;
    assert_eq!(found["format"], "onnx");
    assert_eq!(found["imgsz"], serde_json::json!([64, 96]));
    assert_eq!((&found["classes"], &found["stride"]), (&3.into(), &16.into()));
    let file = fs::read(&to)?;
    assert_eq!(found["bytes"], file.len());
    let header = OnnxHeader::parse(&file)?;
    assert_eq!(header.metadata["task"], "detect");
    assert_eq!(header.metadata["imgsz"], "[64, 96]");
    assert_eq!(header.inputs[0].shape, Some(vec![Some(1), Some(3), Some(64), Some(96)]));
    let half = place(&folder, "half.onnx");
    let found = json(&["export", &from, "--to", &half, "--half", "--dynamic"], 0)?;
    assert_eq!((&found["half"], &found["imgsz"]), (&true.into(), &serde_json::Value::Null));
    assert!(fs::metadata(&half)?.len() < fs::metadata(&to)?.len() * 2 / 3);
    let page = text(&run(&["export", &from, "--to", &to])?.stdout);
    assert!(page.contains("640x640") && page.contains("32 bits"), "{page}");
    // Nothing else is left there.
    assert_eq!(fs::read_dir(folder.path())?.count(), 2);
    Ok(())
}

#[test]
fn wrong_input_is_named_and_nothing_is_written() -> Result {
    let folder = tempfile::tempdir()?;
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.onnx"));
    fs::write(folder.path().join("hostile.pt"), b"PK\x03\x04 no zip")?;
    let hostile = place(&folder, "hostile.pt");
    let nowhere = place(&folder, "no/such/a.onnx");
    fs::write(&to, b"the old one")?;
    for (words, part) in [
        (vec!["export", &hostile, "--to", &to], "not a PyTorch checkpoint"),
        (vec!["export", "no/such.pt", "--to", &to], "no/such.pt"),
        (vec!["export", &from, "--to", "a.txt"], ".onnx or .engine"),
        (vec!["export", &from, "--to", &nowhere], "no folder"),
        (vec!["export", &from, "--to", &to, "--imgsz", "100"], "multiples of 32"),
        (vec!["export", &from, "--to", &to, "--imgsz", "x"], "--imgsz"),
        (vec!["export", &from, "--to", &to, "--int8"], "--calibration"),
        (vec!["export", &to, "--to", &to], "no checkpoint"),
        (vec!["export", &from, "--to", "a.engine", "--dynamic"], "--dynamic"),
        (vec!["export", &from, "--to", "a.engine", "--int8", "--calibration", "no"], "no folder"),
    ] {
        let message = complaint(&words)?;
        assert!(message.contains(part), "{words:?}: {message}");
    }
    assert_eq!(fs::read(&to)?, b"the old one");
    assert_eq!(fs::read_dir(folder.path())?.count(), 2);
    Ok(())
}

#[test]
fn a_checkpoint_is_told_by_what_is_in_it() -> Result {
    let folder = tempfile::tempdir()?;
    for name in ["WEIGHTS.PT", "weights", "stem.pt"] {
        fs::copy(fixture("small11.pt"), folder.path().join(name))?;
    }
    // What was exported before lies beside its checkpoint.
    fs::write(folder.path().join("stem.onnx"), b"the old one")?;
    fs::write(folder.path().join("stem.engine"), b"an engine")?;
    let to = place(&folder, "stem.onnx");
    for name in ["WEIGHTS.PT", "weights", "stem"] {
        let found = json(&["export", &place(&folder, name), "--to", &to, "--imgsz", "64"], 0)?;
        assert_eq!(found["classes"], 3, "{name}");
    }
    for name in ["stem.onnx", "stem.engine"] {
        let message = complaint(&["export", &place(&folder, name), "--to", &to])?;
        assert!(message.contains("no checkpoint"), "{message}");
    }
    Ok(())
}

/// A file may not grow past a size: as good as a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_the_old_file() -> Result {
    let folder = tempfile::tempdir()?;
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.onnx"));
    fs::write(&to, b"the old one")?;
    let program = env!("CARGO_BIN_EXE_plimsoll");
    // Without the signal that the system sends by default.
    let line = format!("trap '' XFSZ; ulimit -f 100; exec {program} export {from} --to {to}");
    let ran = Command::new("bash").args(["-c", &line]).output()?;
    let message = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{message}");
    assert!(message.contains("nothing was changed"), "{message}");
    assert_eq!(fs::read(&to)?, b"the old one");
    assert_eq!(fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}

#[test]
fn without_tensorrt_the_remedy_is_told() -> Result {
    let folder = tempfile::tempdir()?;
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.engine"));
    let ran = plimsoll(&["export", &from, "--to", &to])
        .env("PLIMSOLL_TENSORRT", "/nowhere/libplimsoll_tensorrt.so")
        .env("PATH", "/nowhere")
        .output()?;
    let message = text(&ran.stderr);
    if Path::new("/usr/src/tensorrt/bin/trtexec").exists() {
        println!("skipped: this machine has trtexec");
        return Ok(());
    }
    assert_eq!(ran.status.code(), Some(3), "{message}");
    for part in ["/nowhere/libplimsoll_tensorrt.so", "plimsoll generate --tensorrt", "trtexec"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!Path::new(&to).exists());
    Ok(())
}

/// A few lines of C that stand in for the library; `None` where nothing compiles them.
fn stand_in(folder: &tempfile::TempDir) -> Result<Option<PathBuf>> {
    let library = folder.path().join("libplimsoll_tensorrt.so");
    let source = fake("fake_tensorrt.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    match compiler.status() {
        Ok(status) if status.success() => Ok(Some(library)),
        Ok(status) => Err(format!("cc: {status}").into()),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            Ok(None)
        }
    }
}

#[test]
fn an_engine_is_built_and_benched() -> Result {
    let folder = tempfile::tempdir()?;
    let Some(library) = stand_in(&folder)? else { return Ok(()) };
    let library = library.display().to_string();
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.engine"));
    let words = ["export", &from, "--to", &to, "--half", "--imgsz", "64", "--library", &library];
    let found = json(&[&words[..], &["--limit", "6GiB"]].concat(), 0)?;
    assert_eq!(found["format"], "engine");
    let by = found["built_by"].as_str().unwrap_or_default();
    assert!(by.contains("TensorRT 8.5.1") && by.contains("workspace 3.00 GiB"), "{by}");
    let warning = found["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("version of TensorRT"), "{warning}");
    let file = String::from_utf8_lossy(&fs::read(&to)?).into_owned();
    assert!(file.contains("fp16=1 int8=0 workspace=3221225472"), "{file}");

    // A graph has the size that it has.
    let (onnx, again) = (place(&folder, "wide.onnx"), place(&folder, "wide.engine"));
    json(&["export", &from, "--to", &onnx, "--imgsz", "64x96"], 0)?;
    let found = json(&["export", &onnx, "--to", &again, "--library", &library], 0)?;
    assert_eq!(found["imgsz"], serde_json::json!([64, 96]));

    let pictures = place(&folder, "pictures");
    fs::create_dir(&pictures)?;
    fs::write(folder.path().join("pictures/a.png"), b"no picture")?;
    let eight = [&words[..], &["--int8", "--calibration", &pictures]].concat();
    let message = complaint(&eight)?;
    assert!(message.contains("no picture for calibration could be read"), "{message}");

    let dir = place(&folder, "outputs");
    let model = place(&folder, "a");
    let bench = ["bench", "--mode", "rgb", "--source", "synthetic:size=64x64", "--model0", &model];
    let flags = ["--library", &library, "--max-frames", "5", "--output-dir", &dir];
    let record = json(&[&bench[..], &flags].concat(), 0)?;
    let slot = &record["models"][0];
    assert_eq!(slot["status"], "completed", "{slot}");
    assert_eq!(slot["model_info"]["engine"], "tensorrt", "{slot}");
    assert_eq!(slot["gpu_memory"]["source"], "tensorrt allocator");
    assert_eq!(slot["gpu_memory"]["obtained"], "counted");
    Ok(())
}

#[test]
fn what_a_build_found_out_is_kept_for_the_next() -> Result {
    let folder = tempfile::tempdir()?;
    let Some(library) = stand_in(&folder)? else { return Ok(()) };
    let library = library.display().to_string();
    let (from, to) = (fixture("small11.pt"), place(&folder, "a.engine"));
    let (ranges, timings) = (place(&folder, "a.ranges"), place(&folder, "timings"));
    let words = ["export", &from, "--to", &to, "--imgsz", "64", "--library", &library];
    let caches = ["--int8", "--calibration-cache", &ranges, "--timing-cache", &timings];
    let words = [&words[..], &caches].concat();
    let message = complaint(&words)?;
    assert!(message.contains("--calibration DIR finds"), "{message}");
    assert!(!Path::new(&to).exists() && !Path::new(&timings).exists());

    let built = |more: &[&str]| -> Result<(String, String)> {
        let found = json(&[&words[..], more].concat(), 0)?;
        let file = text(&fs::read(&to)?);
        let plan = file.split("FAKE").nth(1).unwrap_or_default().to_string();
        Ok((found["built_by"].as_str().unwrap_or_default().to_string(), plan))
    };
    let source = ["--calibration", "synthetic:size=64x64,frames=3"];
    let (by, plan) = built(&source)?;
    assert!(by.ends_with("ranges by 3 frames of synthetic:size=64x64,frames=3"), "{by}");
    assert!(plan.contains("int8=1") && plan.ends_with("pictures=3 timings=0 ranges=0"), "{plan}");
    assert_eq!(fs::read_to_string(&ranges)?, "ranges of 3 pictures");
    // Once they are kept, no frame is needed, and none is looked at.
    for more in [&[][..], &source] {
        let (by, plan) = built(more)?;
        assert!(by.ends_with(&format!("ranges of {ranges}")), "{by}");
        assert!(plan.contains("pictures=0") && plan.ends_with("ranges=20"), "{plan}");
        assert!(!plan.contains("timings=0"), "{plan}");
    }
    // An output is no other file of the command, and an empty cache is none.
    let twice = ["--timing-cache", &to, "--library", &library];
    let message = complaint(&[&["export", &from, "--to", &to][..], &twice].concat())?;
    assert!(message.contains("the same file"), "{message}");
    fs::write(&ranges, "")?;
    assert!(complaint(&words)?.contains("is empty"));
    let onnx = place(&folder, "a.onnx");
    let message = complaint(&["export", &from, "--to", &onnx, "--timing-cache", &timings])?;
    assert!(message.contains("--timing-cache is for engines"), "{message}");
    Ok(())
}

/// The driver, NVRTC and the kernels on the host; `false` where nothing compiles them.
fn stand_in_driver(folder: &Path) -> Result<bool> {
    let library = folder.join("libcuda.so.1");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]);
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(fake("fake_cuda.cpp"));
    match compiler.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("c++: {status}").into()),
        Err(error) => {
            println!("skipped: no C++ compiler: {error}");
            return Ok(false);
        }
    }
    fs::copy(&library, folder.join("libnvrtc.so.13"))?;
    Ok(true)
}

#[test]
fn frames_are_prepared_and_searched_alike_on_the_device_and_on_the_host() -> Result {
    let folder = tempfile::tempdir()?;
    let Some(library) = stand_in(&folder)? else { return Ok(()) };
    if !stand_in_driver(folder.path())? {
        return Ok(());
    }
    let (library, model) = (library.display().to_string(), place(&folder, "a.engine"));
    let names = r#"{"names": {"0": "a", "1": "b", "2": "c"}}"#;
    let length = (names.len() as i32).to_le_bytes();
    fs::write(&model, [&length, names.as_bytes(), b"FAKE 64 0 1000"].concat())?;
    let bench = |way: &str, device: bool| -> Result<(serde_json::Value, String)> {
        let (dir, found) = (place(&folder, way), place(&folder, &format!("{way}.jsonl")));
        let mut command = plimsoll(&["bench", "--json", "--mode", "rgb", "--no-guard"]);
        command.args(["--source", "synthetic:size=96x96", "--model0", &model, "--max-frames", "5"]);
        command.args(["--engine", "tensorrt", "--library", &library, "--output-dir", &dir]);
        command.args(["--conf", "0.01", "--detections", &found]);
        if device {
            command.env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", "1");
        }
        let ran = command.output()?;
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let record: serde_json::Value = serde_json::from_slice(&ran.stdout)?;
        Ok((record["models"][0].clone(), fs::read_to_string(found)?))
    };
    let ((host, on_host), (device, on_device)) = (bench("host", false)?, bench("device", true)?);
    assert!(on_host.lines().count() == 5 && !on_host.contains("[]"), "{on_host}");
    assert_eq!(on_device, on_host);
    let chosen = device["model_info"]["chosen"].to_string();
    assert!(!chosen.contains("on the CPU"), "{chosen}");
    // The frame, its tables and what was found are counted with the rest.
    let bytes = |slot: &serde_json::Value| -> Option<f64> {
        Some(slot["gpu_memory"]["peak_gb"].as_f64()? * f64::from(1 << 30))
    };
    let more = bytes(&device).zip(bytes(&host)).map(|(device, host)| (device - host).round());
    assert_eq!(more, Some(f64::from(3 * 96 * 96 + (8 + 12) * 64 + 24 * 8)));
    Ok(())
}

#[test]
fn the_library_for_tensorrt_comes_with_its_source() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder, "lib");
    let ran = plimsoll(&["generate", "--tensorrt", &dir]).env("CXX", "/nowhere/c++").output()?;
    let message = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{message}");
    assert!(message.contains("TENSORRT_INCLUDE") && message.contains("/nowhere/c++"), "{message}");
    let named = format!("{dir}/plimsoll_tensorrt.cpp, which stays");
    assert!(message.contains(&named), "{named}: {message}");
    let source = fs::read_to_string(folder.path().join("lib/plimsoll_tensorrt.cpp"))?;
    assert!(source.contains("plimsoll_trt_open"));
    Ok(())
}

/// From the error of `bench` to a library that is found, by the one command that it names.
#[test]
fn the_error_names_the_command_that_builds_the_library() -> Result {
    let folder = tempfile::tempdir()?;
    let (home, engine) = (place(&folder, "home"), place(&folder, "a.engine"));
    fs::create_dir(&home)?;
    fs::write(&engine, b"FAKE 64 0 1000")?;
    let at_home = |words: &[&str]| -> Result<std::process::Output> {
        let mut command = plimsoll(words);
        command.env("HOME", &home).env_remove("PLIMSOLL_TENSORRT").current_dir(folder.path());
        command.env("TENSORRT_INCLUDE", fake("tensorrt"));
        Ok(command.output()?)
    };
    let bench = ["bench", "--mode", "rgb", "--source", "synthetic", "--model0", &engine, "-q"];
    let ran = at_home(&bench)?;
    let message = text(&ran.stderr) + &text(&ran.stdout);
    assert_ne!(ran.status.code(), Some(0), "{message}");
    assert!(message.contains("not built yet"), "{message}");
    assert!(message.contains("build it: `plimsoll generate --tensorrt`"), "{message}");

    let help = text(&run(&["--help"])?.stdout);
    assert!(
        help.contains("\n  generate ") && help.contains("plimsoll generate --tensorrt"),
        "{help}"
    );
    for verb in ["generate", "export", "bench"] {
        // Whatever the terminal's width broke.
        let help = text(&run(&["help", verb])?.stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("plimsoll generate --tensorrt"), "{verb}: {help}");
    }

    if Command::new("c++").arg("--version").output().is_err() {
        println!("skipped: no C++ compiler");
        return Ok(());
    }
    let ran = at_home(&["generate", "--tensorrt", "--json"])?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&ran.stdout)?;
    let library = Path::new(&home).join(".local/lib/libplimsoll_tensorrt.so");
    assert_eq!(answer["written"][1], library.display().to_string());
    assert!(library.is_file());
    // The library is there now; where TensorRT is not, that is what is said.
    let warning = answer["warnings"][0].as_str().unwrap_or_default();
    if answer["tensorrt"].is_null() {
        assert!(warning.contains("libnvinfer") || warning.contains("CUDA"), "{warning}");
        let ran = at_home(&bench)?;
        let message = text(&ran.stderr) + &text(&ran.stdout);
        assert!(!message.contains("generate --tensorrt"), "{message}");
        assert!(message.contains("libnvinfer"), "{message}");
    }
    Ok(())
}
