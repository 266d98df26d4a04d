//! `plimsoll run`: the program's own streams and code, what is held, what is reported.
#![cfg(target_os = "linux")]

#[path = "run/attack.rs"]
mod attack;
#[path = "run/bench.rs"]
mod bench;
#[expect(dead_code, reason = "its answers are on stdout only when asked for")]
mod common;
#[path = "run/foreign.rs"]
mod foreign;
#[cfg(test)]
#[path = "../../guard/tests/all/needs.rs"]
mod needs;
#[path = "common/stage.rs"]
mod stage;
#[path = "common/waiting.rs"]
mod waiting;
#[path = "run/world.rs"]
mod world;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Result, plimsoll, run, text};
use serde_json::Value;
use stage::{CLIENT, DRIVER, StagePart, answer_of};
use waiting::WAIT_FOR;

/// The fake driver with NVML, and programs that use it.
const PARTS: [StagePart; 5] = [
    DRIVER,
    (
        "cuda.c",
        &["-DNVML", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"],
        "libnvidia-ml.so.1",
    ),
    CLIENT,
    ("attacker.c", &[], "attacker"),
    ("../../../infer/tests/fixtures/fake_tensorrt.c", &["-shared", "-fPIC"], "libfake_tensorrt.so"),
];

fn stage() -> Result<&'static Path> {
    stage::stage(&PARTS)
}

/// `plimsoll run` with the fake driver in reach; `CLIENT` and `ATTACKER` in the words are programs.
fn on_stage(words: &[&str]) -> Result<Command> {
    let stage = stage()?;
    let at = |name: &str| stage.join(name).display().to_string();
    let (client, attacker) = (at("client"), at("attacker"));
    let full = |word: &&str| word.replace("CLIENT", &client).replace("ATTACKER", &attacker);
    let mut command = plimsoll(&["run"]);
    command.args(words.iter().map(full)).env("LD_LIBRARY_PATH", stage).env("WAY", "runtime");
    Ok(command)
}

fn answer(words: &[&str]) -> Result<Value> {
    answer_of(&mut on_stage(&[&["--json"], words].concat())?)
}

/// A script that starts a program which says that it holds memory, and ends it after some of the looks
/// at all processes that come five times a second.
fn held_for_a_while(program: &str) -> String {
    let then = "up() { grep -q holds $said || ! kill -0 $!; }; wait_for up && sleep 1.5";
    format!("{WAIT_FOR}said=$(mktemp); {program} >$said & {then}; rm $said; kill $!; wait; true")
}

#[test]
fn the_code_is_the_programs_own() -> Result {
    for (words, code) in [
        (&["run", "--", "true"][..], 0),
        (&["run", "--", "sh", "-c", "exit 41"], 41),
        (&["run", "sh", "-c", "kill -9 $$"], 137),
        (&["run", "--", "/no/such/program"], 127),
        (&["run", "--", "/etc/passwd"], 126),
        (&["run", "--report", "/proc/nowhere", "--", "true"], 125),
        (&["run", "--report", "/dev/null", "--", "true"], 125),
        (&["run", "--profile", "host", "--keep-free", "9999TiB", "--", "true"], 125),
        (&["run", "--report", "/proc", "--", "sh", "-c", "kill -9 $PPID"], 125),
        (&["run", "--limit", "64MiB", "--", "true"], 125),
        (&["run", "--device-limit", "0=64MiB", "--", "true"], 125),
        (&["run", "--device-limit", "1", "--", "true"], 2),
        (&["run", "--limit", "8", "--", "true"], 2),
        (&["run"], 2),
    ] {
        let output = run(words)?;
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    }
    Ok(())
}

/// A second limit inside the first would let the program out of the first.
#[test]
fn a_run_within_a_run_is_refused() -> Result {
    let inner = env!("CARGO_BIN_EXE_plimsoll");
    let output = run(&["run", "--", inner, "run", "--limit", "99GiB", "--", "true"])?;
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("already runs under `plimsoll run`"));
    Ok(())
}

#[test]
fn streams_are_the_programs_own() -> Result {
    let mut child = plimsoll(&["run", "--", "sh", "-c", "cat; echo done >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(b"one\ntwo\n")?;
    let output = child.wait_with_output()?;
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    let errors = text(&output.stderr);
    assert!(errors.starts_with("done\n") && errors.contains("no program used the CUDA driver"));
    Ok(())
}

#[test]
fn signals_reach_the_program() -> Result {
    for signal in ["TERM", "HUP", "IO", "RTMIN", "RTMAX"] {
        let wait = "for i in {1..200}; do sleep 0.05; done";
        let script = format!("trap 'echo caught; exit 9' {signal}; echo ready; {wait}");
        // What the tests were started to ignore, as by nohup, `run` would leave ignored.
        let mut child = Command::new("env")
            .arg(format!("--default-signal={signal}"))
            .arg(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["run", "--quiet", "--", "bash", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 6])?;
        // The shell's own: it knows all names.
        Command::new("bash").args(["-c", &format!("kill -{signal} {}", child.id())]).status()?;
        let output = child.wait_with_output()?;
        let expected = (Some(9), "caught\n");
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), expected, "{signal}");
    }
    Ok(())
}

#[test]
fn what_was_held_and_refused_is_reported() -> Result {
    let answer =
        answer(&["--limit", "2GiB", "--reserve", "0", "--stacks", "--", "CLIENT", "fill"])?;
    let device = &answer["devices"][0];
    assert_eq!(device["peak_bytes"], 2u64 << 30, "{answer:#}");
    assert!(device["lasting_peak_bytes"].as_u64() <= Some(2 << 30), "{device:#}");
    assert_eq!((&device["refused"], &device["within_limit"]), (&1.into(), &true.into()));
    assert_eq!(answer["limit"]["limit_type"], "hard");
    assert_eq!(answer["limit"]["verified"], true);
    let process = &answer["processes"][0];
    assert_eq!((&process["allocations"], &process["frees"]), (&32.into(), &32.into()));
    assert_eq!(answer["never_freed"]["blocks"], 0);
    assert_eq!(answer["refused"][0]["bytes"], 64u64 << 20);
    let stack = answer["largest"][0]["stack"].as_array().ok_or("no stack")?;
    assert!(stack.iter().any(|frame| frame.as_str().is_some_and(|f| f.contains("client"))));
    Ok(())
}

#[test]
fn a_quiet_run_says_only_what_matters() -> Result {
    let quiet = |words: &[&str], version: &str| -> Result<String> {
        let mut command = on_stage(&[&["--quiet", "--reserve", "0"], words].concat())?;
        let output = command.env("FAKE_VERSION", version).output()?;
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        Ok(text(&output.stderr))
    };
    assert_eq!(
        quiet(&["--limit", "99GiB", "--profile", "orin-nano-8gb", "--", "true"], "13000")?,
        ""
    );
    assert_eq!(quiet(&["--no-limit", "--", "CLIENT", "kinds"], "13000")?, "");
    let refused = "plimsoll: one request for 64.00 MiB was refused\n";
    assert_eq!(quiet(&["--limit", "1GiB", "--", "CLIENT", "fill"], "13000")?, refused);
    let unknown = quiet(&["--limit", "1GiB", "--", "CLIENT", "fill"], "14000")?;
    assert!(unknown.contains("newer than") && unknown.lines().count() == 2, "{unknown}");
    let away = held_for_a_while("env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH WAY=dlsym CLIENT hold");
    let escaped = quiet(&["--", "bash", "-c", &away], "13000")?;
    assert_eq!(escaped.lines().count(), 1, "{escaped}");
    assert!(escaped.contains("did not limit"), "{escaped}");
    Ok(())
}

#[test]
fn a_board_is_held_below_what_it_has() -> Result {
    let board = "../machine/tests/machines/orin-nano/proc/meminfo";
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join(board).display().to_string();
    let words = ["--meminfo", &board, "--", "CLIENT", "fill"];
    let on_board = |first: &[&str]| -> Result<_> {
        Ok(on_stage(&[first, &words].concat())?.env("FAKE_INTEGRATED", "1").output()?)
    };
    let answer: Value = serde_json::from_slice(&on_board(&["--json"])?.stdout)?;
    let most = (7_802_096_u64 << 10) - (512 << 20);
    assert_eq!(
        (&answer["limit"]["limit_bytes"], &answer["limit"]["effective_limit_bytes"]),
        (&(8_u64 << 30).into(), &most.into())
    );
    assert_eq!(answer["devices"][0]["limit_bytes"], most);
    let page = text(&on_board(&[])?.stderr);
    assert!(page.contains("within 6.94 GiB") && page.contains("8.00 GiB was asked for"), "{page}");
    Ok(())
}

#[test]
fn without_a_limit_it_only_counts() -> Result {
    // Also where the GPU shares the memory of a system that has none left.
    let full = stage()?.join("full").display().to_string();
    fs::write(&full, "MemTotal: 8000000 kB\nMemAvailable: 4 kB\n")?;
    let to = stage()?.join("free").display().to_string();
    let words =
        ["--json", "--no-limit", "--report", &to, "--meminfo", &full, "--", "CLIENT", "fill"];
    let mut command = on_stage(&words)?;
    command.env("FAKE_INTEGRATED", "1").env("FAKE_TOTAL", (4u64 << 30).to_string());
    let output = command.output()?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(answer["devices"][0]["peak_bytes"], 4u64 << 30);
    assert_eq!(
        (&answer["limit"]["limit_type"], &answer["devices"][0]["limit_bytes"]),
        (&"none".into(), &Value::Null)
    );
    let page = fs::read_to_string(format!("{to}/report.html"))?;
    assert!(page.contains("reserved for the driver</th><td>–</td>"), "nothing is held back");
    Ok(())
}

#[test]
fn the_report_is_whole_and_its_trace_replays() -> Result {
    let folder = tempfile::tempdir()?;
    let to = folder.path().join("out").display().to_string();
    let output =
        on_stage(&["--limit", "1GiB", "--reserve", "0", "--report", &to, "--", "CLIENT", "fill"])?
            .output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(format!("{to}/report.json"))?)?;
    assert_eq!(report["devices"][0]["peak_bytes"], 1u64 << 30);
    let (peak_at, lasted) = (&report["devices"][0]["peak_at_seconds"], &report["duration_seconds"]);
    assert!(peak_at.as_f64() <= lasted.as_f64(), "{report:#}");
    let page = fs::read_to_string(format!("{to}/report.html"))?;
    let names = ["data-name=\"peak\"", "@media (max-width:600px)"];
    for part in ["<svg", "limit 1.00 GiB", "prefers-color-scheme:dark", "Largest blocks"]
        .into_iter()
        .chain(names)
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "it must open offline");
    let replay = run(&["replay", &format!("{to}/trace.csv"), "--json", "--passes", "1"])?;
    let replay: Value = serde_json::from_slice(&replay.stdout)?;
    assert_eq!(replay["peak_live_bytes"], 1u64 << 30, "{replay:#}");
    Ok(())
}

/// The program chooses its arguments: they are text in the page, and nothing else.
#[test]
fn what_the_program_is_called_is_escaped_in_the_page() -> Result {
    let to = stage()?.join("escaped").display().to_string();
    let words = ["--report", &to, "--", "sh", "-c", ":", "<script>\"&\u{1b}[2J"];
    let output = on_stage(&words)?.output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(format!("{to}/report.html"))?;
    assert!(page.contains("&lt;script&gt;&quot;&amp;\u{fffd}[2J"), "{page}");
    assert!(!page.contains("<script>") && !page.contains('\u{1b}'), "{page}");
    Ok(())
}

#[test]
fn a_driver_that_nobody_used_is_told_from_none() -> Result {
    let to = stage()?.join("idle").display().to_string();
    let words = ["--report", &to, "--", "true"];
    let answer = answer(&words)?;
    assert_eq!(answer["cuda"]["used"], false);
    assert_eq!(answer["cuda"]["driver_found"], true, "{answer:#}");
    assert!(fs::read_to_string(format!("{to}/report.html"))?.contains("it was not used"));
    let loader = Command::new("ldconfig").arg("-p").output();
    if loader.is_ok_and(|list| !text(&list.stdout).contains("libcuda.so.1")) {
        let output = on_stage(&words)?.env_remove("LD_LIBRARY_PATH").output()?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        let page = fs::read_to_string(format!("{to}/report.html"))?;
        assert!(page.contains("libcuda.so.1 is not on this machine"), "{page}");
    }
    Ok(())
}

#[test]
fn devices_are_told_by_their_numbers_each_with_its_own() -> Result {
    let to = stage()?.join("two").display().to_string();
    let limits = ["--limit", "2GiB", "--device-limit", "1=1GiB", "--reserve", "0"];
    let script = "DEVICE=1 CLIENT fill; DEVICE=0 CLIENT fill";
    let words = [&limits[..], &["--report", &to, "--", "bash", "-c", script]].concat();
    let output = on_stage(&words)?.env("FAKE_DEVICES", "2").output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(format!("{to}/report.json"))?)?;
    let (first, second) = (&report["devices"][0], &report["devices"][1]);
    assert_eq!((&first["device"], &second["device"]), (&"cuda:0".into(), &"cuda:1".into()));
    assert_eq!(
        (&first["peak_bytes"], &second["peak_bytes"]),
        (&(2u64 << 30).into(), &(1u64 << 30).into())
    );
    let page = fs::read_to_string(format!("{to}/report.html"))?;
    let section = page.split("<h2>cuda:1</h2>").nth(1).ok_or("no second device")?;
    let section = section.split("</section>").next().unwrap_or_default();
    for part in ["<th scope=\"row\">limit</th><td>1.00 GiB</td>", "<svg"] {
        assert!(section.contains(part), "{part}: {section}");
    }
    Ok(())
}

#[test]
fn devices_that_processes_know_by_one_number_are_told_apart() -> Result {
    let to = stage()?.join("visible").display().to_string();
    let script = "FAKE_FIRST=0 CLIENT fill; FAKE_FIRST=1 CLIENT errors; FAKE_FIRST=1 CLIENT fill";
    let limits = ["--limit", "1GiB", "--reserve", "0"];
    let words = [&limits[..], &["--report", &to, "--", "bash", "-c", script]].concat();
    let output = on_stage(&words)?.output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(format!("{to}/report.json"))?)?;
    let names = ["cuda:0 (GPU-01000000)", "cuda:0 (GPU-02000000)"];
    for (place, name) in names.into_iter().enumerate() {
        assert_eq!(report["devices"][place]["device"], name);
        let refused = report["refused"].as_array().ok_or("no list")?;
        let here = refused.iter().filter(|refusal| refusal["device"] == name).count();
        assert_eq!(report["devices"][place]["refused"], here, "{report:#}");
    }
    Ok(())
}

#[test]
fn what_children_do_after_the_program_has_ended_is_in_the_timeline() -> Result {
    let to = stage()?.join("later").display().to_string();
    let script = "(sleep 0.3; CLIENT fill) &";
    let words = ["--limit", "1GiB", "--reserve", "0", "--report", &to, "--", "sh", "-c", script];
    let output = on_stage(&words)?.output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(format!("{to}/report.json"))?)?;
    let lasted = report["duration_seconds"].as_f64().ok_or("no duration")?;
    let watched = report["watched_seconds"].as_f64().ok_or("no end")?;
    let peak_at = report["devices"][0]["peak_at_seconds"].as_f64().ok_or("no peak")?;
    assert!(lasted < peak_at && peak_at <= watched, "{report:#}");
    let page = fs::read_to_string(format!("{to}/report.html"))?;
    assert!(page.contains("limit 1.00 GiB") && page.contains("child processes until"), "{page}");
    Ok(())
}

#[test]
fn of_many_processes_a_page_shows_some() -> Result {
    let script = "for i in {1..23}; do CLIENT errors; done";
    let output = on_stage(&["--limit", "2GiB", "--", "bash", "-c", script])?.output()?;
    let page = text(&output.stderr);
    assert_eq!(page.matches("client errors").count(), 20, "{page}");
    assert!(page.contains("and 3 more"), "{page}");
    Ok(())
}

#[test]
fn a_program_answers_for_what_it_left_itself_and_not_the_one_it_became() -> Result {
    let answer = answer(&["--limit", "2GiB", "--", "CLIENT", "exec"])?;
    let left = |place: usize| &answer["processes"][place]["never_freed_bytes"];
    assert_eq!((left(0), left(1)), (&(1u64 << 30).into(), &0.into()), "{answer:#}");
    Ok(())
}

#[test]
fn one_budget_holds_the_tree() -> Result {
    let script = "CLIENT race 4 1 & CLIENT race 4 1 & wait";
    let answer = answer(&["--limit", "1GiB", "--reserve", "0", "--", "bash", "-c", script])?;
    let peak = answer["devices"][0]["peak_bytes"].as_u64().ok_or("no peak")?;
    assert!(peak <= 1 << 30 && peak > 1 << 28, "{peak}");
    assert_eq!(answer["processes"].as_array().map(Vec::len), Some(2), "{answer:#}");
    assert_eq!(answer["devices"][0]["held_at_end_bytes"], 0);
    Ok(())
}

#[test]
fn what_the_guard_does_not_reach_is_said() -> Result {
    let away = held_for_a_while("env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH WAY=dlsym CLIENT hold");
    let answer = answer(&["--", "bash", "-c", &away])?;
    let escaped = answer["unguarded"].as_array().ok_or("no list")?;
    let client =
        escaped.iter().find(|p| p["program"].as_str().is_some_and(|p| p.ends_with("client")));
    let client = client.ok_or(format!("{answer:#}"))?;
    assert_eq!(client["uses_cuda"], true);
    assert!(client["why"].as_str().is_some_and(|why| why.contains("LD_PRELOAD")));

    let folder = tempfile::tempdir()?;
    let (source, program) = (folder.path().join("s.c"), folder.path().join("static"));
    fs::write(&source, "int main(void) { return 0; }")?;
    if !Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).status()?.success() {
        eprintln!("skipped: no static C library");
        return Ok(());
    }
    let program = program.display().to_string();
    let output = run(&["run", "--", &program])?;
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("statically linked").count(), 1, "it is said once: {said}");
    let strict = run(&["run", "--strict", "--", &program])?;
    assert_eq!(strict.status.code(), Some(125), "{}", text(&strict.stderr));
    Ok(())
}

#[test]
fn a_set_uid_program_is_seen() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("true");
    fs::copy("/bin/true", &program)?;
    let given = Command::new("chown").arg("65534").arg(&program).stderr(Stdio::null()).status()?;
    if !given.success() {
        eprintln!("skipped: only root can make a program another user's");
        return Ok(());
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let program = program.display().to_string();
    let output = run(&["run", "--", &program])?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("set-uid"), "{}", text(&output.stderr));
    assert_eq!(run(&["run", "--strict", "--", &program])?.status.code(), Some(125));
    Ok(())
}

#[test]
fn an_unknown_driver_is_warned_of_and_refused_when_strict() -> Result {
    let new = |words: &[&str]| -> Result<_> {
        Ok(on_stage(&[words, &["--", "CLIENT", "fill"]].concat())?
            .env("FAKE_VERSION", "14000")
            .output()?)
    };
    let output = new(&["--limit", "1GiB"])?;
    assert!(
        output.status.success() && text(&output.stderr).contains("newer than what the guard knows")
    );
    let strict = new(&["--limit", "1GiB", "--strict"])?;
    assert_eq!(
        strict.status.code(),
        Some(9),
        "the program finds no driver: {}",
        text(&strict.stdout)
    );
    Ok(())
}
