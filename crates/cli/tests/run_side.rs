//! `plimsoll run` beside its program: what it takes in, what it survives, what it leaves.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "not every helper is needed here")]
mod common;
#[path = "common/stage.rs"]
mod stage;
#[path = "common/terminal.rs"]
#[expect(dead_code, reason = "no screen is drawn here")]
mod terminal;
#[path = "common/waiting.rs"]
mod waiting;

use std::fs;
use std::io::Read;
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use common::{Result, plimsoll, text};
use plimsoll_guard::ledger::{GuardLedger, flag};
use serde_json::Value;
use stage::{CLIENT, DRIVER, StagePart, answer_of, compile};
use terminal::Terminal;
use waiting::{WAIT_FOR, until};

/// The fake driver, its client, and a program that allocates and frees as often as its argument
/// says.
const PARTS: [StagePart; 3] = [DRIVER, CLIENT, ("../../../cli/tests/run/pairs.c", &[], "pairs")];

fn stage() -> Result<&'static Path> {
    stage::stage(&PARTS)
}

/// `plimsoll run` with these words, and a script with the programs in its path.
fn script(words: &[&str], script: &str) -> Result<Command> {
    let mut command = plimsoll(&["run"]);
    let path = format!("{}:{}", stage()?.display(), std::env::var("PATH")?);
    command.args(words).args(["--", "bash", "-c", &[WAIT_FOR, script].concat()]);
    command.env("LD_LIBRARY_PATH", stage()?).env("PATH", path).env("WAY", "dlsym");
    Ok(command)
}

/// The answer of such a run.
fn answer(words: &[&str], text_of: &str) -> Result<Value> {
    answer_of(&mut script(&[&["--json"], words].concat(), text_of)?)
}

fn warns(answer: &Value, of: &str) -> bool {
    let mut warnings = answer["warnings"].as_array().into_iter().flatten();
    warnings.any(|warning| warning.as_str().is_some_and(|warning| warning.contains(of)))
}

/// A run that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Result<Running> {
        Ok(Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?))
    }

    /// One whose stderr is full when its program ends, so that it stays at its last words.
    fn held_up(words: &[&str], first: &str) -> Result<Running> {
        let fill = "head -c 65536 /dev/zero >&2; echo ended";
        Running::start(script(words, &format!("{first}; {fill}"))?)
    }

    fn send(&self, signal: &str) -> Result {
        Command::new("kill").args(["-s", signal, &self.0.id().to_string()]).status()?;
        Ok(())
    }

    fn end(&mut self) -> Result<ExitStatus> {
        until("its end", || self.0.try_wait().ok().flatten())
    }
}

#[test]
fn a_process_that_has_ended_costs_no_memory() -> Result {
    let each = "for i in 1 2 3 4 5 6 7 8; do client errors >&2; done";
    let none = "none() { ! ls $PLIMSOLL_GUARD | grep -q -e ^log -e ^stacks; }; wait_for none";
    let output = script(&["--json", "--stacks"], &format!("{each}; {none}"))?.output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let processes = answer["processes"].as_array().ok_or("no processes")?;
    assert_eq!(processes.len(), 8);
    assert!(processes.iter().all(|one| one["peak_bytes"].as_u64() > Some(0)), "{answer:#}");
    let stack = answer["largest"][0]["stack"].as_array().ok_or("no stack")?;
    assert!(stack.iter().any(|frame| frame.as_str().is_some_and(|f| f.contains("client"))));
    assert!(!warns(&answer, "missing") && !warns(&answer, "listed"), "{answer:#}");
    Ok(())
}

#[test]
fn all_are_listed_where_there_were_more_than_slots() -> Result {
    let answer = answer(&["--reserve", "0"], "for ((i = 0; i < 530; i++)); do pairs 1; done")?;
    let processes = answer["processes"].as_array().ok_or("no processes")?;
    assert_eq!(processes.len(), 530);
    assert!(processes.iter().all(|one| one["frees"] == 1 && one["peak_bytes"].is_u64()));
    Ok(())
}

#[test]
fn many_events_are_read_with_little_memory() -> Result {
    let to = stage()?.join("many");
    let words = ["--reserve", "0", "--report", &to.display().to_string()];
    let first = "export FAKE_QUICK=1; pairs 250000 & pairs 250000; wait";
    let running = Running::held_up(&words, first)?;
    until("report.html", || fs::metadata(to.join("report.html")).ok())?;
    let status = fs::read_to_string(format!("/proc/{}/status", running.0.id()))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let most: u64 = most.trim().trim_end_matches(" kB").parse()?;
    assert!(most < 64 << 10, "{most} KiB");
    let report: Value = serde_json::from_slice(&fs::read(to.join("report.json"))?)?;
    assert_eq!(report["processes"][1]["frees"], 250_000, "{report:#}");
    let trace = fs::read_to_string(to.join("trace.csv"))?;
    assert_eq!(trace.lines().count(), 1_000_001);
    Ok(())
}

#[test]
fn a_signal_ends_it_once_the_program_has_ended() -> Result {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let mut running = Running::held_up(&[], ":")?;
        running.0.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 6])?;
        // The shell ends, and then what it started is looked for.
        let children = format!("/proc/{0}/task/{0}/children", running.0.id());
        until("the program is gone", || {
            fs::read_to_string(&children).is_ok_and(|list| list.trim().is_empty()).then_some(())
        })?;
        // From a moment after that on, signals are for `run` itself.
        thread::sleep(Duration::from_millis(200));
        running.send(name)?;
        let status = running.end()?;
        assert_eq!(status.signal(), Some(number), "{name}: {status}");
    }
    Ok(())
}

#[test]
fn a_signal_leaves_no_half_of_a_file() -> Result {
    let to = stage()?.join("halves");
    let words = ["--reserve", "0", "--report", &to.display().to_string()];
    let mut running = Running::held_up(&words, "FAKE_QUICK=1 pairs 300000")?;
    let entries = || fs::read_dir(&to).into_iter().flatten().flatten();
    // It is written for a second or so.
    until("part of a file", || {
        entries().find(|file| file.metadata().is_ok_and(|of| of.len() > 0))
    })?;
    running.send("TERM")?;
    assert_eq!(running.end()?.signal(), Some(15));
    let left: Vec<_> = entries().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn what_a_program_puts_into_the_folder_holds_nobody_up() -> Result {
    let odd = "cd $PLIMSOLL_GUARD; mkfifo log.1.2.3 stacks.1; mkdir log.2.2.3; \
               ln -s /dev/zero log.3.2.3; truncate -s 1T log.4.2.3; exit 4";
    assert_eq!(Running::start(script(&["--quiet"], odd)?)?.end()?.code(), Some(4));
    Ok(())
}

#[test]
fn a_ledger_that_was_cut_is_said_and_survived() -> Result {
    let cut = ": > $PLIMSOLL_GUARD/ledger; read -rt 0.7 <> <(:); exit 6";
    let answer = answer(&[], cut)?;
    assert_eq!(answer["exit_code"], 6, "{answer:#}");
    assert!(warns(&answer, "counters were damaged"), "{answer:#}");
    assert_eq!(script(&["--quiet"], cut)?.status()?.code(), Some(6));
    assert_eq!(script(&["--strict", "--quiet"], cut)?.status()?.code(), Some(125));
    Ok(())
}

#[test]
fn a_folder_that_was_removed_costs_the_timeline_alone() -> Result {
    let remove = "said=$(mktemp); client hold >$said & wait_for grep -q holds $said; rm $said
        rm -r $PLIMSOLL_GUARD; kill -9 $!; wait; exit 7";
    let found = answer(&["--limit", "2GiB"], remove)?;
    assert_eq!(found["exit_code"], 7, "{found:#}");
    assert_eq!(found["processes"][0]["allocations"], 1, "{found:#}");
    assert_eq!(found["devices"][0]["lasting_peak_bytes"], Value::Null);
    assert!(warns(&found, "files were removed"), "{found:#}");
    let strict = script(&["--limit", "2GiB", "--strict"], remove)?.output()?;
    assert_eq!(strict.status.code(), Some(7), "{}", text(&strict.stderr));
    // The counters stay in reach.
    let ledger = "rm -r $PLIMSOLL_GUARD; stat -Lc %s $PLIMSOLL_GUARD_FD";
    let output = script(&["--quiet"], ledger)?.output()?;
    assert_eq!(text(&output.stdout).trim(), size_of::<GuardLedger>().to_string());
    Ok(())
}

#[test]
fn what_the_guard_raises_a_flag_for_is_said() -> Result {
    let raise = |bit: u32| {
        let bytes: String = bit.to_le_bytes().map(|byte| format!("\\x{byte:02x}")).concat();
        let at = offset_of!(GuardLedger, warnings);
        let to = "of=$PLIMSOLL_GUARD/ledger bs=1 conv=notrunc status=none";
        format!("printf '{bytes}' | dd {to} seek={at}; exit 3")
    };
    for (bit, words, strict) in [
        (flag::SEPARATE, "link namespace of its own (dlmopen)", 125),
        (flag::DEEP_BOUND, "RTLD_DEEPBIND", 125),
        (flag::NO_SLOT, "refused all GPU memory", 3),
        (flag::NO_ROOM, "refused all GPU memory", 3),
    ] {
        let found = answer(&[], &raise(bit))?;
        assert!(warns(&found, words) && found["exit_code"] == 3, "{found:#}");
        let output = script(&["--quiet", "--strict"], &raise(bit))?.output()?;
        assert_eq!(output.status.code(), Some(strict), "{words}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    Ok(())
}

/// `setcap` makes the loader leave out the guard, for every user but root.
#[test]
fn a_program_with_capabilities_is_not_held() -> Result {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let (program, command) = (folder.path().join("sleep"), folder.path().join("plimsoll"));
    fs::copy("/bin/sleep", &program)?;
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &command)?;
    let set = Command::new("setcap").arg("cap_net_raw+ep").arg(&program).status();
    if !set.is_ok_and(|status| status.success()) {
        eprintln!("skipped: setcap is not there, or may not be used");
        return Ok(());
    }
    let as_other = ["--reuid", "65534", "--clear-groups", "--"];
    let mut run = Command::new("setpriv");
    run.args(as_other).arg(&command).args(["run", "--strict", "--"]).arg(&program).arg("0");
    let output = run.output()?;
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("capabilities"), "{}", text(&output.stderr));
    Ok(())
}

/// Under a limit of processes too low for the threads that watch it, the program is not started.
#[test]
fn without_threads_to_watch_it_no_program_is_started() -> Result {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let command = folder.path().join("plimsoll");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &command)?;
    // A user that has no processes otherwise: the limit counts all of a user's.
    let as_other = ["--reuid", "64931", "--clear-groups", "--"];
    let mut run = Command::new("prlimit");
    run.args(["--nproc=2", "setpriv"]).args(as_other).arg(&command);
    run.args(["run", "--", "touch", "started"]).current_dir(folder.path());
    let output = run.output()?;
    if text(&output.stderr).contains("setpriv") {
        eprintln!("skipped: only root may become another user");
        return Ok(());
    }
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("ulimit -u"), "{}", text(&output.stderr));
    assert!(!folder.path().join("started").exists());
    Ok(())
}

#[test]
fn a_32_bit_program_is_not_held() -> Result {
    let folder = tempfile::tempdir()?;
    let (source, program) = (folder.path().join("s.c"), folder.path().join("small"));
    fs::write(&source, "#include <unistd.h>\nint main(void) { usleep(1500000); return 5; }")?;
    let runs = compile(&source, &["-m32"], &program).is_ok();
    if !runs {
        // Its head says enough.
        fs::write(&program, [b"\x7fELF\x01\x01\x01".as_slice(), &[0; 57]].concat())?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    }
    let program = program.display().to_string();
    let strict = plimsoll(&["run", "--strict", "--", &program]).output()?;
    assert_eq!(strict.status.code(), Some(125), "{}", text(&strict.stderr));
    assert!(text(&strict.stderr).contains("a 32-bit program"), "{}", text(&strict.stderr));
    if !runs {
        eprintln!("skipped: no 32-bit C library");
        return Ok(());
    }
    let output = plimsoll(&["run", "--", &program]).output()?;
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("a 32-bit program; the guard is 64-bit: not limited"));
    let found = answer(&[], &format!("{program}; true"))?;
    let why = found["unguarded"][0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("a 32-bit program"), "{found:#}");
    Ok(())
}

#[test]
fn a_limit_of_the_environment_is_not_the_programs() -> Result {
    let mut command = script(&["--quiet"], "env | grep ^PLIMSOLL_ | cut -d = -f 1 | sort")?;
    command.env("PLIMSOLL_GPU_MEM_LIMIT", "1GiB").env("PLIMSOLL_GPU_MEM_LIMIT_0", "2GiB");
    // What the tests themselves are told.
    command.env_remove("PLIMSOLL_REQUIRE");
    let said = text(&command.env("PLIMSOLL_KEEP_FREE", "1GiB").output()?.stdout);
    assert_eq!(said, "PLIMSOLL_GUARD\nPLIMSOLL_GUARD_FD\nPLIMSOLL_KEEP_FREE\n");
    Ok(())
}

/// Presses keys, and waits for words.
fn says(terminal: &Terminal, words: &str, keys: &str) -> Result {
    let before = terminal.written().len();
    terminal.press(keys)?;
    until(words, || terminal.written().get(before..)?.contains(words).then_some(()))
        .map_err(|error| format!("{error}: {}", terminal.written()).into())
}

/// A shell with a terminal of its own.
fn in_a_shell(then: impl FnOnce(&Terminal) -> Result) -> Result {
    let terminal = Terminal::open(80, 24)?;
    let mut outer = Command::new("setsid");
    outer.args(["--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"]);
    outer.env("PS1", "outer> ").env_remove("HISTFILE").env("TERM", "dumb");
    outer.env("RUN", format!("{} run --quiet --", env!("CARGO_BIN_EXE_plimsoll")));
    let status = terminal.run(outer, "outer> ", |_, terminal| {
        then(terminal)?;
        terminal.press("exit 0\n")
    })?;
    assert!(status.success(), "{}", terminal.written());
    Ok(())
}

#[test]
fn a_program_that_stops_gives_the_terminal_back() -> Result {
    in_a_shell(|terminal| {
        // By the terminal, and by itself alone, as pagers do.
        let wait = "$RUN bash -c 'echo up $((5 * 9)); read -r; echo got $REPLY'\n";
        says(terminal, "up 45", wait)?;
        says(terminal, "outer> ", "\x1a")?;
        says(terminal, "out 43", "echo out $((6 * 7 + 1))\n")?;
        terminal.press("fg\n")?;
        says(terminal, "got word", "word\n")?;
        says(terminal, "outer> ", "$RUN bash -c 'kill -TSTP $$; echo on $((7 * 9)); exit 4'\n")?;
        says(terminal, "out 43", "echo out $((6 * 7 + 1))\n")?;
        says(terminal, "on 63", "fg\n")?;
        says(terminal, "code 4", "echo code $?\n")
    })
}

#[test]
fn a_shell_that_suspends_itself_gives_the_terminal_back() -> Result {
    in_a_shell(|terminal| {
        says(terminal, "\ninner> ", "PS1='inner> ' $RUN bash --norc --noprofile -i\n")?;
        says(terminal, "at 42", "echo at $((6 * 7))\n")?;
        for _ in 0..2 {
            says(terminal, "outer> ", "suspend\n")?;
            says(terminal, "out 43", "echo out $((6 * 7 + 1))\n")?;
            says(terminal, "Stopped", "jobs\n")?;
            terminal.press("fg\n")?;
            // The shell draws no new prompt; it only listens again.
            says(terminal, "back 44", "echo back $((6 * 7 + 2))\n")?;
        }
        says(terminal, "outer> ", "exit 5\n")?;
        says(terminal, "code 5", "echo code $?\n")
    })
}
