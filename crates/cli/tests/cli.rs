//! The program as a user meets it: exit codes, streams, forms.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn plimsoll(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(words).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Result<Output> {
    Ok(plimsoll(words).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A machine as a tree of files.
fn orin_nano() -> Result<tempfile::TempDir> {
    let root = tempfile::tempdir()?;
    for (path, text) in [
        ("etc/nv_tegra_release", "# R36 (release), REVISION: 4.7, GCID: 1, BOARD: generic\n"),
        ("etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 22.04.5 LTS\"\n"),
        ("sys/firmware/devicetree/base/model", "NVIDIA Jetson Orin Nano Developer Kit\0"),
        ("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n"),
        (
            "proc/meminfo",
            "MemTotal: 7802096 kB\nMemAvailable: 4915200 kB\nNvMapMemUsed: 655360 kB\n",
        ),
        ("usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1", ""),
        ("usr/bin/tegrastats", ""),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::write(path, text)?;
    }
    Ok(root)
}

#[test]
fn each_exit_code_is_reached() -> Result {
    let root = orin_nano()?;
    let root = root.path().to_str().ok_or("the path is not UTF-8")?;
    for (words, code) in [
        (&["doctor"][..], 0),
        (&["--version"], 0),
        (&["--help"], 0),
        (&["help", "doctor"], 0),
        (&["doctor", "--root", root, "--require", "host,sim"], 0),
        (&["doctor", "--root", root, "--require", "host,cuda"], 1),
        (&[], 2),
        (&["nonsense"], 2),
        (&["doctor", "--nonsense"], 2),
        (&["doctor", "--quiet", "--verbose"], 2),
        (&["doctor", "--require", "abacus"], 2),
        (&["doctor", "--root", "/no/such/folder"], 2),
        (&["chunk", "--items", "2", "--item-bytes", "1", "--available", "9"], 0),
        (&["chunk", "--items", "2", "--item-bytes", "9", "--available", "9"], 1),
        (&["estimate"], 2),
        (&["replay", "/no/such/trace"], 2),
        (&["generate"], 2),
        (&["generate", "--man", "/dev/null/folder"], 3),
    ] {
        let run = run(words)?;
        assert_eq!(run.status.code(), Some(code), "{words:?}: {}", text(&run.stderr));
    }
    Ok(())
}

#[test]
fn errors_name_their_cause_and_leave_stdout_empty() -> Result {
    let run = run(&["doctor", "--root", "/no/such/folder"])?;
    let stderr = text(&run.stderr);
    assert!(stderr.starts_with("error: --root /no/such/folder"), "{stderr}");
    assert!(stderr.contains("\n  because: "), "{stderr}");
    assert!(run.stdout.is_empty());
    Ok(())
}

#[test]
fn errors_are_json_where_json_was_asked_for() -> Result {
    for (words, kind) in [
        (&["doctor", "--json", "--root", "/no/such/folder"][..], "input"),
        (&["doctor", "--json", "--nonsense"], "usage"),
        (&["--json"], "usage"),
        (&["generate", "--json", "--man", "/dev/null/folder"], "failed"),
    ] {
        let run = run(words)?;
        let error: Value = serde_json::from_slice(&run.stderr)?;
        assert_eq!(error["error"]["kind"], kind, "{words:?}");
        assert!(error["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{words:?}");
        assert!(run.stdout.is_empty(), "{words:?}");
    }
    Ok(())
}

#[test]
fn a_closed_pipe_is_success() -> Result {
    for words in [&["doctor"][..], &["doctor", "--json"], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let run = plimsoll(words).stdout(writer).stderr(Stdio::piped()).output()?;
        assert_eq!(run.status.code(), Some(0), "{words:?}");
        assert_eq!(text(&run.stderr), "", "{words:?}");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() -> Result {
    for words in [&["doctor"][..], &["completions", "bash"], &["--help"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full")?;
        let run = plimsoll(words).stdout(full).stderr(Stdio::piped()).output()?;
        assert_eq!(run.status.code(), Some(3), "{words:?}");
        assert!(text(&run.stderr).contains("cannot write to stdout"), "{words:?}");
    }
    Ok(())
}

#[test]
fn the_doctor_knows_a_jetson_by_its_files() -> Result {
    let root = orin_nano()?;
    let run = plimsoll(&["doctor", "--json", "--root"]).arg(root.path()).output()?;
    let report: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(report["machine"]["jetson"], true);
    assert_eq!(report["machine"]["unified"]["value"], true);
    assert_eq!(report["machine"]["l4t"]["value"], "36.4.7");
    assert_eq!(report["machine"]["cpu_model"]["value"], "Cortex-A78AE");
    assert_eq!(report["memory"]["total_bytes"]["value"], 7_802_096u64 << 10);
    assert_eq!(report["memory"]["total_bytes"]["how"], "recorded");
    assert_eq!(report["memory"]["swap_total_bytes"]["value"], Value::Null);
    assert_eq!(report["libraries"][0]["path"], "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1");
    assert_eq!(report["tools"][0]["path"], "/usr/bin/tegrastats");

    let run = plimsoll(&["doctor", "--root"]).arg(root.path()).output()?;
    let page = text(&run.stdout);
    assert!(page.contains("NVIDIA Jetson Orin Nano Developer Kit"), "{page}");
    assert!(page.contains("Memory (recorded)") && page.contains("7.44 GiB\n"), "{page}");
    assert!(!page.contains('\x1b'), "colours where there is no terminal: {page}");
    // Where each value comes from, and where unknown ones were looked for.
    let run = plimsoll(&["doctor", "--verbose", "--root"]).arg(root.path()).output()?;
    let page = text(&run.stdout);
    assert!(page.contains("7.44 GiB  recorded: /proc/meminfo MemTotal"), "{page}");
    assert!(page.contains("–  unknown: /proc/meminfo SwapTotal"), "{page}");
    Ok(())
}

#[test]
fn quiet_leaves_advice_out_and_verbose_leaves_stdout_alone() -> Result {
    let root = orin_nano()?;
    let page = |flag: &str| -> Result<String> {
        let run = plimsoll(&["doctor", flag, "--root"]).arg(root.path()).output()?;
        Ok(text(&run.stdout))
    };
    assert!(page("-v")?.contains("Looked for as files"));
    assert!(!page("-q")?.contains("Looked for as files"));
    assert_eq!(page("-v")?, page("-vvv")?);
    Ok(())
}

#[test]
fn logs_go_to_stderr_as_loud_as_asked() -> Result {
    let logs = |words: &[&str], wish: &str| -> Result<String> {
        Ok(text(&plimsoll(words).env("RUST_LOG", wish).output()?.stderr))
    };
    assert_eq!(logs(&["doctor"], "")?, "");
    assert!(logs(&["doctor", "-v"], "")?.contains("examining /"));
    assert!(!logs(&["doctor", "-v"], "")?.contains("/proc/cpuinfo"));
    assert!(logs(&["-vv", "doctor"], "")?.contains("/proc/cpuinfo"));
    assert!(logs(&["doctor"], "debug")?.contains("/proc/cpuinfo"));
    assert_eq!(logs(&["doctor", "-q"], "debug")?, "");
    Ok(())
}

#[test]
fn a_bad_rust_log_is_told_and_stops_nothing() -> Result {
    let run = plimsoll(&["doctor"]).env("RUST_LOG", "plimsoll=shouting").output()?;
    assert_eq!(run.status.code(), Some(0));
    assert!(text(&run.stderr).contains("RUST_LOG"), "{}", text(&run.stderr));
    Ok(())
}

/// The verbs that `--help` shows, read from it.
fn verbs() -> Result<Vec<String>> {
    let help = text(&run(&["--help"])?.stdout);
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = verbs.take_while(|line| !line.is_empty()).filter_map(|line| {
        line.strip_prefix("  ").and_then(|line| line.split(' ').next()).filter(|n| !n.is_empty())
    });
    Ok(names.filter(|name| *name != "help").map(String::from).collect())
}

#[test]
fn every_verb_has_examples_and_the_shared_flags() -> Result {
    assert!(verbs()?.contains(&"doctor".to_string()));
    for verb in verbs()? {
        let help = text(&run(&[&verb, "--help"])?.stdout);
        for word in ["Examples:", &format!("  plimsoll {verb}"), "--json", "--quiet", "--verbose"] {
            assert!(help.contains(word), "{verb} --help has no {word:?}: {help}");
        }
    }
    assert!(text(&run(&["--help"])?.stdout).contains("Examples:"));
    Ok(())
}

#[test]
fn man_pages_are_written_for_every_verb() -> Result {
    let folder = tempfile::tempdir()?;
    let run = plimsoll(&["generate", "--json", "--man"]).arg(folder.path()).output()?;
    let answer: Value = serde_json::from_slice(&run.stdout)?;
    let written = answer["written"].as_array().ok_or("no list")?.len();
    // One more for the program itself, and one for what can be estimated.
    assert_eq!(written, verbs()?.len() + 2);
    assert!(folder.path().join("plimsoll-estimate-llm.1").is_file());
    for verb in verbs()? {
        let page = fs::read_to_string(folder.path().join(format!("plimsoll-{verb}.1")))?;
        assert!(page.contains(".TH") && page.contains("Examples:"), "{page}");
    }
    assert!(fs::read_to_string(folder.path().join("plimsoll.1"))?.contains("plimsoll\\-doctor(1)"));
    Ok(())
}

#[test]
fn completions_are_written_for_every_shell() -> Result {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = run(&["completions", shell])?;
        assert_eq!(run.status.code(), Some(0), "{shell}");
        let script = text(&run.stdout);
        for word in ["doctor", "require", "item-bytes", "gpu-mem-limit", "smallest-cap", "generate"]
        {
            assert!(script.contains(word), "{shell} has no {word}: {script}");
        }
        assert!(!script.contains("try-model"), "{shell} offers a verb that help does not");
        assert!(!script.contains("meminfo"), "{shell} offers a flag that help does not");
    }
    let folder = tempfile::tempdir()?;
    let run = plimsoll(&["generate", "--completions"]).arg(folder.path()).output()?;
    assert_eq!(text(&run.stdout).lines().count(), 5);
    Ok(())
}

#[test]
fn the_bash_completion_is_a_bash_script() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("plimsoll.bash");
    fs::write(&path, run(&["completions", "bash"])?.stdout)?;
    match Command::new("bash").arg("-n").arg(&path).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no bash here");
        }
        check => {
            let check = check?;
            assert!(check.status.success(), "{}", text(&check.stderr));
        }
    }
    Ok(())
}
