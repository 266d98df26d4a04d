//! `doctor` and `report` on recorded machines, and the self-test on this one.

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;

use std::path::{Path, PathBuf};

use common::{Result, plimsoll};
use serde_json::Value;

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines").join(name)
}

fn json(words: &[&str], root: &Path) -> Result<Value> {
    let run = plimsoll(words).arg("--json").arg("--root").arg(root).output()?;
    assert!(run.status.success(), "{words:?}: {}", String::from_utf8_lossy(&run.stderr));
    Ok(serde_json::from_slice(&run.stdout)?)
}

#[test]
fn every_recorded_machine_is_known() -> Result {
    for (name, unified, jetson, l4t, cpu, gib) in [
        ("nano", true, true, Some("32.7.1"), "Cortex-A57", 3),
        ("orin-nano", true, true, Some("36.4.7"), "Cortex-A78AE", 7),
        ("thor", true, true, Some("38.2.0"), "Neoverse-V3AE", 122),
        ("desktop", false, false, None, "13th Gen Intel(R) Core(TM) i7-13700", 31),
        ("server", false, false, None, "Intel(R) Xeon(R) Platinum 8558", 2015),
    ] {
        let report = json(&["doctor"], &tree(name))?;
        let machine = &report["machine"];
        assert_eq!(machine["unified"]["value"], unified, "{name}");
        assert_eq!(machine["unified"]["how"], "recorded", "{name}");
        assert_eq!(machine["jetson"], jetson, "{name}");
        assert_eq!(machine["l4t"]["value"].as_str(), l4t, "{name}");
        assert_eq!(machine["cpu_model"]["value"], cpu, "{name}");
        let total = report["memory"]["total_bytes"]["value"].as_u64().unwrap_or_default();
        assert_eq!(total >> 30, gib, "{name}");
        // Nothing of a recorded machine was asked or tried.
        assert_eq!(report["limits"]["limit_type"], "unavailable", "{name}");
        assert_eq!(report["gpus"], Value::Null, "{name}");
        let cuda = &report["backends"][2];
        assert_eq!((&cuda["name"], &cuda["available"]), (&"cuda".into(), &false.into()));
        assert!(cuda["why"].as_str().is_some_and(|why| why.contains("recorded")), "{name}");
    }
    Ok(())
}

#[test]
fn what_is_missing_has_a_remedy() -> Result {
    for name in ["nano", "orin-nano", "thor", "desktop", "server"] {
        let report = json(&["doctor"], &tree(name))?;
        for list in ["libraries", "tools"] {
            for item in report[list].as_array().into_iter().flatten() {
                assert_eq!(item["path"].is_null(), item["remedy"].is_string(), "{name}: {item}");
            }
        }
    }
    Ok(())
}

#[test]
fn on_a_board_the_effective_line_is_below_what_the_kernel_has() -> Result {
    let limits = |name| -> Result<(u64, u64)> {
        let report = json(&["doctor"], &tree(name))?;
        let bytes = |field: &str| report["limits"][field].as_u64().unwrap_or_default();
        Ok((bytes("limit_bytes"), bytes("effective_limit_bytes")))
    };
    let (limit, effective) = limits("orin-nano")?;
    assert_eq!((limit, effective), (8 << 30, (7_802_096 << 10) - (512 << 20)));
    let (limit, effective) = limits("desktop")?;
    assert_eq!((limit, effective), (8 << 30, 8 << 30));
    Ok(())
}

#[test]
fn a_report_never_adds_what_is_unified() -> Result {
    for (name, unified) in [("nano", true), ("orin-nano", true), ("thor", true), ("desktop", false)]
    {
        let report = json(&["report"], &tree(name))?;
        assert_eq!(report["unified"], unified, "{name}");
        assert_eq!(report["used_in_all_bytes"], Value::Null, "{name}");
        assert_eq!(report["system"]["how"], "recorded", "{name}");
        assert_eq!(report["system"]["largest_single_bytes"].is_u64(), unified, "{name}");
        let run = plimsoll(&["report", "--root"]).arg(tree(name)).output()?;
        let page = String::from_utf8_lossy(&run.stdout);
        assert_eq!(page.contains("which the GPU shares"), unified, "{page}");
        let nvmap = ["nano", "orin-nano"].contains(&name);
        assert_eq!(page.contains("GPU, codecs, cameras"), nvmap, "{page}");
        let board = report["board"].as_str().unwrap_or("no board");
        assert_eq!(page.contains(&format!("which the GPU shares ({board})")), unified, "{page}");
        assert_eq!(page.contains(" % of what is used"), nvmap, "{page}");
    }
    Ok(())
}

#[test]
fn this_machine_reports() -> Result {
    let run = plimsoll(&["report", "--json", "--device", "cpu"]).output()?;
    let report: Value = serde_json::from_slice(&run.stdout)?;
    let device = &report["devices"][0];
    assert_eq!(device["device"], "cpu");
    for field in ["total_bytes", "used_bytes", "free_bytes"] {
        assert!(device[field].as_u64().is_some_and(|bytes| bytes > 0), "{field}");
    }
    assert_eq!(device["allocator"]["how"], "counted");
    assert!(device["recommendations"].as_array().is_some_and(|advice| !advice.is_empty()));
    assert_eq!(plimsoll(&["report", "--device", "gpu:0"]).output()?.status.code(), Some(2));
    let absent = plimsoll(&["report", "--device", "metal:0"]).output()?;
    if !cfg!(target_os = "macos") {
        assert_eq!(absent.status.code(), Some(3));
    }
    Ok(())
}

#[test]
fn the_self_test_leaves_a_bundle_that_others_can_read() -> Result {
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("a/bundle");
    let run = plimsoll(&["doctor", "--json", "--selftest"]).arg(&bundle).output()?;
    let selftest: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(run.status.code(), Some(0), "{selftest:#}");
    assert_eq!(String::from_utf8_lossy(&run.stderr), "", "what is provoked is no news");
    assert_eq!(selftest["broken"], 0);
    let checks = selftest["checks"].as_array().ok_or("no checks")?;
    for on in ["machine", "sim", "cpu"] {
        assert!(checks.iter().filter(|c| c["on"] == on && c["outcome"] == "kept").count() > 3);
    }
    let hard = checks.iter().any(|c| c["detail"].as_str().is_some_and(|d| d.starts_with("hard")));
    assert!(hard, "the simulated device's limit is hard");
    for file in ["selftest.json", "doctor.json", "bench/report.json"] {
        let text = std::fs::read_to_string(bundle.join(file))?;
        serde_json::from_str::<Value>(&text)?;
    }
    assert!(std::fs::read_to_string(bundle.join("selftest.txt"))?.contains("kept"));
    // The machine can be examined again from its bundle.
    let again = json(&["doctor"], &bundle.join("root"))?;
    let first: Value = serde_json::from_str(&std::fs::read_to_string(bundle.join("doctor.json"))?)?;
    assert_eq!(again["memory"]["total_bytes"]["value"], first["memory"]["total_bytes"]["value"]);

    let run = plimsoll(&["doctor", "--selftest", "/dev/null/x"]).output()?;
    assert_eq!(run.status.code(), Some(2), "{}", String::from_utf8_lossy(&run.stderr));
    Ok(())
}

#[test]
fn a_self_test_that_keeps_all_promises_still_lacks_what_is_required() -> Result {
    let folder = tempfile::tempdir()?;
    let absent = if cfg!(target_os = "macos") { "rocm" } else { "metal" };
    let required = format!("host,{absent}");
    let run = plimsoll(&["doctor", "--json", "--require", &required, "--selftest"])
        .arg(folder.path().join("bundle"))
        .output()?;
    let selftest: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(run.status.code(), Some(1), "{selftest:#}");
    assert_eq!((&selftest["broken"], &selftest["lacks"]), (&0.into(), &vec![absent].into()));
    let page = std::fs::read_to_string(folder.path().join("bundle/selftest.txt"))?;
    assert!(page.contains("Required, and unavailable") && page.contains(absent), "{page}");
    Ok(())
}

/// All that would be said of it are dashes, and what this program can do anywhere.
#[test]
fn a_folder_that_is_no_recording_is_refused() -> Result {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("README.md"), "no machine")?;
    for words in [&["doctor"][..], &["report"], &["monitor", "--once"]] {
        let run = plimsoll(words).arg("--root").arg(folder.path()).output()?;
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{words:?}: {said}");
        assert!(run.stdout.is_empty() && said.contains("is no recorded machine"), "{said}");
        let help = plimsoll(&[words[0], "--help"]).output()?;
        assert!(String::from_utf8_lossy(&help.stdout).contains("--root <DIR>"), "{words:?}");
    }
    Ok(())
}

/// PyPI has no ONNX Runtime for a Jetson's GPU, and a Jetson's driver no nvidia-compute-utils.
#[test]
fn a_jetsons_remedies_are_those_of_jetpack() -> Result {
    let remedy = |tree_name: &str, list: &str, name: &str| -> Result<String> {
        let doctor = json(&["doctor"], &tree(tree_name))?;
        let all = doctor[list].as_array().ok_or("no list")?.clone();
        let one = all.into_iter().find(|one| one["name"] == name).ok_or("not there")?;
        Ok(one["remedy"].as_str().unwrap_or_default().to_string())
    };
    let ort = remedy("orin-nano", "engines", "ort")?;
    assert!(ort.contains("JetPack") && ort.contains("TensorRT") && !ort.contains("pip"), "{ort}");
    assert_eq!(remedy("desktop", "engines", "ort")?, "pip install onnxruntime-gpu");
    let mps = remedy("orin-nano", "tools", "nvidia-cuda-mps-control")?;
    assert!(!mps.contains("nvidia-compute-utils"), "{mps}");
    let mps = remedy("desktop", "tools", "nvidia-cuda-mps-control")?;
    assert!(mps.contains("nvidia-compute-utils"), "{mps}");
    Ok(())
}

type Maker<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;

/// Trees that nobody would record: no panic, no hang, and nothing made up.
#[test]
fn hostile_trees_are_examined_to_the_end() -> Result {
    const FILES: [&str; 10] = [
        "etc/ld.so.conf.d/a.conf",
        "etc/os-release",
        "proc/cpuinfo",
        "proc/driver/nvidia/gpus/0/information",
        "proc/meminfo",
        "proc/sys/kernel/osrelease",
        "proc/sys/kernel/ostype",
        "sys/firmware/devicetree/base/compatible",
        "sys/firmware/devicetree/base/model",
        "tmp/nvidia-mps/nvidia-cuda-mps-control.pid",
    ];
    let mkfifo = |path: &Path| std::process::Command::new("mkfifo").arg(path).status().map(drop);
    let makers: [(&str, Maker<'_>); 8] = [
        ("empty", &|path| std::fs::write(path, "")),
        ("bytes", &|path| std::fs::write(path, (0..=255).rev().collect::<Vec<u8>>())),
        ("escapes", &|path| std::fs::write(path, "\x1b[31mJetson\x07\r\n\0nvidia,tegra\x1b[0m")),
        ("huge", &|path| std::fs::File::create(path)?.set_len(20 << 30)),
        ("folder", &|path| std::fs::create_dir(path)),
        ("endless", &|path| std::os::unix::fs::symlink("/dev/zero", path)),
        ("circle", &|path| std::os::unix::fs::symlink(path, path)),
        ("pipe", &mkfifo),
    ];
    for (name, make) in makers {
        let root = tempfile::tempdir()?;
        for path in FILES.map(|file| root.path().join(file)) {
            std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
            make(&path)?;
        }
        let doctor = json(&["doctor"], root.path())?;
        for field in ["distribution", "kernel", "board", "cpus", "cpu_model", "unified"] {
            assert_eq!(doctor["machine"][field]["value"], Value::Null, "{name}: {field}");
        }
        assert_eq!(doctor["memory"]["total_bytes"]["value"], Value::Null, "{name}");
        let report = json(&["report"], root.path())?;
        assert_eq!(
            (&report["unified"], &report["system"]["used_bytes"]),
            (&Value::Null, &Value::Null)
        );
        for verb in ["doctor", "report"] {
            let run = plimsoll(&[verb, "--root"]).arg(root.path()).output()?;
            assert!(run.status.success() && run.stderr.is_empty(), "{name}: {run:?}");
            let page = String::from_utf8(run.stdout)?;
            assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "{name}: {page:?}");
        }
    }
    Ok(())
}

#[test]
fn a_line_that_cannot_be_drawn_does_not_end_the_examination() -> Result {
    let root = tempfile::tempdir()?;
    for (file, text) in [("proc/meminfo", "MemTotal: 100 kB\n"), ("etc/nv_tegra_release", "# R36")]
    {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        std::fs::write(path, text)?;
    }
    let limits = &json(&["doctor"], root.path())?["limits"];
    assert_eq!(
        (&limits["limit_type"], &limits["limit_bytes"]),
        (&"unavailable".into(), &Value::Null)
    );
    let why = limits["warnings"][0].as_str().unwrap_or_default();
    assert!(why.contains("keep_free"), "{limits}");
    Ok(())
}
