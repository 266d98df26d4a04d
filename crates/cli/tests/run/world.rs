//! What surrounds a program is as it was, and what it does to the guard is survived and said.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::common::{Result, text};
use super::waiting::until;
use super::{answer, held_for_a_while, on_stage, stage};

/// `plimsoll run` with these words, after a shell has done something to itself.
fn after(shell: &str, words: &[&str]) -> Result<Output> {
    let client = stage()?.join("client").display().to_string();
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{shell}; exec \"$0\" run \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(words.iter().map(|word| word.replace("CLIENT", &client)));
    command.env("LD_LIBRARY_PATH", stage()?).env("WAY", "runtime").stdin(Stdio::null());
    Ok(command.output()?)
}

fn warns(answer: &Value, of: &str) -> bool {
    let mut warnings = answer["warnings"].as_array().into_iter().flatten();
    warnings.any(|warning| warning.as_str().is_some_and(|warning| warning.contains(of)))
}

#[test]
fn ignored_signals_stay_ignored() -> Result {
    let words = ["--quiet", "--", "grep", "SigIgn", "/proc/self/status"];
    let output = text(&after("trap '' HUP INT", &words)?.stdout);
    let mask = u64::from_str_radix(output.trim().rsplit('\t').next().unwrap_or_default(), 16)?;
    let is_ignored = |signal: u32| mask >> (signal - 1) & 1 == 1;
    let (hup, int, pipe, term) = (1, 2, 13, 15);
    assert_eq!([hup, int, pipe, term].map(is_ignored), [true, true, false, false], "{output}");
    Ok(())
}

#[test]
fn a_signal_comes_once_to_whomever_it_is_sent() -> Result {
    let (source, program) = (stage()?.join("counts.c"), stage()?.join("counts"));
    let counts = r#"#include <signal.h>
#include <unistd.h>
static void one(int signal) { write(1, "x", 1); }
static void end(int signal) { _exit(3); }
int main(int count, char **words) {
    signal(SIGTERM, one);
    signal(SIGUSR1, end);
    alarm(120);
    if (count > 1) setpgid(0, 0);
    write(1, "r", 1);
    for (;;) pause();
}"#;
    std::fs::write(&source, counts)?;
    Command::new("cc").arg("-w").arg(&source).arg("-o").arg(&program).status()?;
    let program = program.display().to_string();
    // A program in the group of plimsoll, and one that has left it.
    let start = |words: &[&str]| -> Result<_> {
        let mut command = on_stage(&[&["--quiet", "--", &program], words].concat())?;
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn()?;
        child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 1])?;
        Ok(child)
    };
    let mut children = [start(&[])?, start(&["leave"])?];
    let witnesses = [witness(children[0].id())?, witness(children[1].id())?];
    let send = |signal: &str, sign: &str, children: &[Child]| -> Result {
        let ids = children.iter().map(|child| format!("{sign}{}", child.id()));
        Command::new("kill").args([signal, "--"]).args(ids).status()?;
        Ok(())
    };
    for sign in ["-", "-", "", "-"] {
        send("-TERM", sign, &children)?;
        // A signal that comes while another of its kind waits is none: this one has come to the
        // program, and `run` has asked whether it was sent to the group.
        for (child, witness) in children.iter_mut().zip(&witnesses) {
            child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 1])?;
            until("a question", || has_no_signal(witness).then_some(()))?;
        }
    }
    // One that came twice would come by now.
    std::thread::sleep(Duration::from_millis(200));
    send("-USR1", "", &children)?;
    for child in children {
        let output = child.wait_with_output()?;
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""));
    }
    Ok(())
}

/// Where the kernel tells of the process by which this `run` knows what was sent to its group.
fn witness(run: u32) -> Result<PathBuf> {
    let is_it = |file: &PathBuf| {
        let status = std::fs::read_to_string(file).unwrap_or_default();
        let parent = format!("\nPPid:\t{run}\n");
        status.starts_with("Name:\tplimsoll-signal\n") && status.contains(&parent)
    };
    let folders = || std::fs::read_dir("/proc").into_iter().flatten().flatten();
    until("the witness", || folders().map(|folder| folder.path().join("status")).find(is_it))
}

/// Whether no signal waits for a process.
fn has_no_signal(status: &Path) -> bool {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    status.contains("\nShdPnd:\t0000000000000000\n")
}

#[test]
fn nobody_else_may_write_to_what_is_loaded() -> Result {
    let script = "stat -c %a $PLIMSOLL_GUARD ${LD_PRELOAD%/*} ${LD_PRELOAD%%:*}";
    let output = after("umask 0", &["--quiet", "--", "sh", "-c", script])?;
    assert_eq!(text(&output.stdout), "755\n755\n644\n", "{}", text(&output.stderr));
    Ok(())
}

#[test]
fn one_who_becomes_another_user_is_seen() -> Result {
    let script = held_for_a_while("setpriv --reuid 65534 --clear-groups CLIENT hold");
    let answer = answer(&["--", "bash", "-c", &script])?;
    let Some(why) = answer["unguarded"][0]["why"].as_str() else {
        eprintln!("skipped: only root can become another user, by setpriv");
        return Ok(());
    };
    assert!(why.contains("another user"), "{answer:#}");
    Ok(())
}

#[test]
fn a_set_uid_child_is_seen() -> Result {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let elevated = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    for name in ["id", "sleep"] {
        std::fs::copy(format!("/usr/bin/{name}"), at(name))?;
        std::fs::set_permissions(at(name), elevated.clone())?;
    }
    let script = format!("{} -u; {} 1.5", at("id"), at("sleep"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(env!("CARGO_BIN_EXE_plimsoll")).args(["run", "--json", "--", "sh", "-c", &script]);
    let output = command.output();
    let Some(output) = output.ok().filter(|output| output.stderr.starts_with(b"0\n")) else {
        eprintln!("skipped: only root can become another user, by setpriv, where set-uid counts");
        return Ok(());
    };
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let mut all = answer["unguarded"].as_array().ok_or("no list")?.iter();
    let child = all.find(|child| child["program"] == "sleep").ok_or(format!("{answer:#}"))?;
    assert_eq!(child["uses_cuda"], Value::Null, "nobody may look: {child:#}");
    Ok(())
}

#[test]
fn the_code_is_told_also_to_who_is_not_told_of_children() -> Result {
    // A shell takes SIGCHLD back for itself, so another program must ignore it.
    let ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                  os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", ignore, env!("CARGO_BIN_EXE_plimsoll"), "run", "--", "sh", "-c", "exit 5"]);
    match command.output() {
        Ok(output) => assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr)),
        Err(_) => eprintln!("skipped: python3 is not installed"),
    }
    Ok(())
}

#[test]
fn small_files_cost_the_timeline_and_not_the_program() -> Result {
    let output = after("ulimit -f 16", &["--", "true"])?;
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("ulimit -f"), "{}", text(&output.stderr));
    for stacks in [&[][..], &["--stacks"]] {
        let words = ["--limit", "2GiB", "--", "sh", "-c", "ulimit -f 0; exec CLIENT fill"];
        let answer = answer(&[stacks, &words].concat())?;
        assert_eq!(answer["exit_code"], 0, "{answer:#}");
        assert_eq!(answer["processes"][0]["allocations"], 30);
        assert_eq!(answer["processes"][0]["peak_bytes"], Value::Null);
        assert!(warns(&answer, "not every event"), "{answer:#}");
    }
    Ok(())
}

/// What cannot be counted is not handed out.
#[test]
fn a_process_without_room_for_the_list_is_refused() -> Result {
    let books = tempfile::tempdir()?;
    let books = books.path().join("books");
    let words = ["--limit", "2GiB", "--", "sh", "-c", "ulimit -v 40000; exec CLIENT errors"];
    for strict in [&[][..], &["--strict"]] {
        let mut command = on_stage(&[&["--json"], strict, &words[..]].concat())?;
        let output = command.env("FAKE_CUDA_STATE", &books).output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}", text(&output.stderr)))?;
        assert!(warns(&answer, "ulimit -v"), "{answer:#}");
        // It ends as it does by itself where there is no memory: nothing has got past.
        assert!([0, 9].map(Value::from).contains(&answer["exit_code"]), "{answer:#}");
        assert!([Some(0), Some(9)].contains(&output.status.code()), "{}", text(&output.stderr));
        let most = std::fs::read(&books)?.get(24..32).ok_or("no books")?.try_into()?;
        assert_eq!(u64::from_le_bytes(most), 0, "{answer:#}");
    }
    Ok(())
}

#[test]
fn a_guard_that_lost_its_counters_is_seen() -> Result {
    let script = held_for_a_while("env -u PLIMSOLL_GUARD -u PLIMSOLL_GUARD_FD CLIENT hold");
    let answer = answer(&["--", "bash", "-c", &script])?;
    let why = answer["unguarded"][0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("PLIMSOLL_GUARD"), "{answer:#}");
    Ok(())
}

#[test]
fn a_daemon_is_seen_to_go_on() -> Result {
    let script = "(sleep 2 </dev/null >/dev/null 2>&1 &)";
    let answer = answer(&["--", "bash", "-c", script])?;
    assert!(warns(&answer, "still runs"), "{answer:#}");
    Ok(())
}

#[test]
fn a_script_that_names_no_shell_is_the_shells() -> Result {
    let script = stage()?.join("script");
    std::fs::write(&script, "echo $1; exit 6\n")?;
    Command::new("chmod").arg("+x").arg(&script).status()?;
    let output = on_stage(&["--quiet", "--", &script.display().to_string(), "word"])?.output()?;
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(6), "word\n"));
    Ok(())
}

#[test]
fn a_sanitizer_does_not_mind_the_guard() -> Result {
    let mut command = on_stage(&["--quiet", "--", "sh", "-c", "echo $ASAN_OPTIONS"])?;
    let said = text(&command.env("ASAN_OPTIONS", "detect_leaks=0").output()?.stdout);
    assert_eq!(said, "verify_asan_link_order=0:detect_leaks=0\n");
    let (source, program) = (stage()?.join("sane.c"), stage()?.join("sane"));
    std::fs::write(&source, "int main(void) { return 5; }")?;
    let mut compile = Command::new("cc");
    compile.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program).stderr(Stdio::null());
    if !compile.status()?.success() {
        eprintln!("skipped: no AddressSanitizer");
        return Ok(());
    }
    let output = on_stage(&["--quiet", "--", &program.display().to_string()])?.output()?;
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    Ok(())
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_of_ours_and_costs_no_report() -> Result {
    let to = stage()?.join("kept");
    let words = ["--json", "--report", &to.display().to_string(), "--", "true"];
    let mut command = on_stage(&words)?;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
    assert_eq!(command.stdout(full).stderr(Stdio::null()).status()?.code(), Some(125));
    assert!(to.join("report.json").exists());
    Ok(())
}

#[test]
fn a_folder_that_the_program_removed_is_made_again() -> Result {
    let to = stage()?.join("removed");
    let shown = to.display().to_string();
    let script = "rm -r $0; exit 7";
    let output = on_stage(&["--report", &shown, "--", "sh", "-c", script, &shown])?.output()?;
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(to.join("report.html").exists());
    Ok(())
}

#[test]
fn a_daemon_of_the_drivers_is_told_the_limit_of_each_device() -> Result {
    let pipes = stage()?.join("pipes");
    std::fs::create_dir_all(&pipes)?;
    for name in ["control", "nvidia-cuda-mps-control.pid"] {
        std::fs::write(pipes.join(name), [])?;
    }
    let told = |words: &[&str]| -> Result<String> {
        let program = ["--quiet", "--", "sh", "-c", "echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"];
        let mut command = on_stage(&[words, &program].concat())?;
        Ok(text(&command.env("CUDA_MPS_PIPE_DIRECTORY", &pipes).output()?.stdout))
    };
    assert_eq!(told(&["--limit", "2GiB"])?, "0=2048M\n");
    assert_eq!(
        told(&["--device-limit", "1=4GiB", "--device-limit", "0=16GiB"])?,
        "0=16384M,1=4096M\n"
    );
    assert_eq!(told(&["--limit", "2GiB", "--driver-limit", "off"])?, "\n");
    Ok(())
}
