//! What once got past `plimsoll run`, told by the driver's own books.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::common::{Result, text};
use super::needs::{has, works};
use super::on_stage;
use super::waiting::WAIT_FOR;

const MIB: u64 = 1 << 20;

/// A run whose driver keeps books that the test can read, and whose folder is among `TMPDIR`'s or
/// /dev/shm's.
struct Books(TempDir);

impl Books {
    fn new() -> Result<Books> {
        Ok(Books(tempfile::tempdir()?))
    }

    fn run(&self, words: &[&str]) -> Result<Command> {
        let mut command = on_stage(&[&["--limit", "1GiB", "--reserve", "0"], words].concat())?;
        command.env("FAKE_CUDA_STATE", self.0.path().join("books")).env("WAY", "dlsym");
        command.env("AT", self.0.path());
        Ok(command)
    }

    fn output(&self, words: &[&str]) -> Result<Output> {
        Ok(self.run(words)?.output()?)
    }

    /// The most that the driver had handed out at once, in MiB.
    fn most(&self) -> Result<u64> {
        let books = fs::read(self.0.path().join("books"))?;
        let word = books.get(24..32).ok_or("no books")?;
        Ok(u64::from_le_bytes(word.try_into()?) / MIB)
    }
}

fn answer(output: &Output) -> Result<Value> {
    let all = || format!("{}{}", text(&output.stdout), text(&output.stderr));
    let from = output.stdout.iter().position(|byte| *byte == b'{').unwrap_or(0);
    Ok(serde_json::from_slice(&output.stdout[from..])
        .map_err(|error| format!("{error}: {}", all()))?)
}

/// Two holders in PID namespaces and one outside.
#[test]
fn a_strict_run_holds_every_namespace() -> Result {
    if !has("namespaces", works("unshare", &["-fp", "--mount-proc", "true"])) {
        return Ok(());
    }
    // Each holder has its memory until its input ends: when those after it have ended.
    let script = "cd $AT; held() { unshare -fp --mount-proc ATTACKER keep 700 >$1; }
        { wait_for grep -qs keeps first
            { wait_for grep -qs keeps second; ATTACKER keep 700 1 0 >&2; } | held second
        } | held first
        exit 7";
    let books = Books::new()?;
    let script = [WAIT_FOR, script].concat();
    let output = books.output(&["--strict", "--json", "--", "bash", "-c", &script])?;
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(books.most()?, 700, "{}", text(&output.stderr));
    let answer = answer(&output)?;
    let device = &answer["devices"][0];
    assert_eq!((&device["peak_bytes"], &device["refused"]), (&(700 * MIB).into(), &2.into()));
    assert_eq!(answer["processes"].as_array().map(Vec::len), Some(3), "{answer:#}");
    Ok(())
}

/// What holds the limit is kept by descriptor, not by name.
#[test]
fn a_shared_folder_that_is_removed_costs_neither_limit_nor_code() -> Result {
    let books = Books::new()?;
    let script = "rm -rf \"$PLIMSOLL_GUARD\"; ATTACKER keep 64 64 0.2; exit 7";
    let output = books.output(&["--", "bash", "-c", script])?;
    let said = text(&output.stderr);
    assert!(books.most()? <= 1024, "{} MiB: {}{said}", books.most()?, text(&output.stdout));
    assert_eq!(output.status.code(), Some(7), "{said}");
    // Programs that run already go on.
    let script = "{ wait_for grep -qs keeps $AT/first; rm -rf \"$PLIMSOLL_GUARD\"
            ATTACKER keep 700 1 0 >&2; } | ATTACKER keep 700 >$AT/first
        exit 7";
    let script = [WAIT_FOR, script].concat();
    let books = Books::new()?;
    let output = books.output(&["--", "bash", "-c", &script])?;
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(books.most()?, 700, "{}", text(&output.stdout));
    Ok(())
}

/// A driver in a link namespace of its own has no guard before it.
#[test]
fn a_driver_opened_apart_is_said_not_to_be_held() -> Result {
    let books = Books::new()?;
    let words = ["--", "ATTACKER", "keep", "64", "64", "0.7"];
    let strict =
        books.run(&[&["--strict"], &words[..]].concat())?.env("WAY", "dlmopen").output()?;
    assert_eq!(strict.status.code(), Some(125), "{}", text(&strict.stderr));
    let output = books.run(&[&["--json"], &words[..]].concat())?.env("WAY", "dlmopen").output()?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let answer = answer(&output)?;
    assert!(answer.to_string().contains("dlmopen"), "it is said: {answer:#}");
    assert_ne!(answer["devices"][0]["within_limit"], true, "nobody knows: {answer:#}");
    Ok(())
}

/// A library that finds the driver before the guard.
#[test]
fn a_library_that_is_bound_deep_is_said_not_to_be_held() -> Result {
    let books = Books::new()?;
    let words = ["--json", "--strict", "--", "ATTACKER", "keep", "64", "64", "0.7"];
    let output = books.run(&words)?.env("WAY", "deepbind").output()?;
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(answer(&output)?.to_string().contains("RTLD_DEEPBIND"));
    Ok(())
}

/// The loader's own `dlsym`, asked for at the C library.
#[test]
fn who_asks_the_c_library_for_dlsym_is_held() -> Result {
    let books = Books::new()?;
    let output =
        books.run(&["--", "ATTACKER", "keep", "64", "64", "0.7"])?.env("WAY", "libc").output()?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(books.most()? <= 1024, "{} MiB", books.most()?);
    Ok(())
}

/// It says hello, and opens the driver if it is told to.
const OF_32_BITS: &str = r#"
int puts(const char *);
int fflush(void *);
int usleep(unsigned);
void *dlopen(const char *, int);
int main(int count, char **words) {
    if (count > 1 && !dlopen("libcuda.so.1", 2)) return 9;
    puts("hello");
    fflush(0);
    usleep(1500000);
    return 5;
}
"#;

#[test]
fn a_program_of_32_bits_is_said_not_to_be_held() -> Result {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("p.c"), OF_32_BITS)?;
    fs::write(at("cuda.c"), "int cuInit(unsigned flags) { return 0; }")?;
    let compile = |words: &[&str]| works("cc", &[&["-m32", "-w"], words].concat());
    let there = compile(&[&at("p.c"), "-o", &at("p"), "-ldl"])
        && compile(&["-shared", "-fPIC", &at("cuda.c"), "-o", &at("libcuda.so.1")])
        && Command::new(at("p")).output().is_ok_and(|output| output.status.code() == Some(5));
    if !has("32-bit", there) {
        return Ok(());
    }
    let program = at("p");
    let child = format!("LD_LIBRARY_PATH={} {program} cuda; exit 5", folder.path().display());
    for words in [&["--", &program][..], &["--", "bash", "-c", &child]] {
        let books = Books::new()?;
        let output = books.output(words)?;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{words:?}: {said}");
        assert_eq!(text(&output.stdout), "hello\n", "{words:?}");
        assert!(said.contains("32-bit"), "{words:?}: {said}");
        let strict = books.output(&[&["--strict"], words].concat())?;
        assert_eq!(strict.status.code(), Some(125), "{words:?}: {}", text(&strict.stderr));
    }
    Ok(())
}

/// While the run goes on: what has ended is folded into the report, and its memory freed.
#[test]
fn short_processes_leave_no_memory_behind_while_the_run_goes_on() -> Result {
    let books = Books::new()?;
    let script = "for i in {1..100}; do ATTACKER keep 1 1 0 >/dev/null; done; sleep 0.5
        du -sk \"$PLIMSOLL_GUARD\" | cut -f1; ls \"$PLIMSOLL_GUARD\" | wc -l";
    let to = books.0.path().join("report").display().to_string();
    let output = books.output(&["--report", &to, "--", "bash", "-c", script])?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // The ledger and the library, and room for some that have just ended.
    assert!(numbers[0] < 16 << 10, "{} KiB in {} files", numbers[0], numbers[1]);
    let report: Value = serde_json::from_slice(&fs::read(Path::new(&to).join("report.json"))?)?;
    let all = report["processes"].as_array().ok_or("no processes")?;
    assert_eq!(all.len(), 100, "each is in the report");
    assert!(all.iter().all(|process| process["allocations"] == 1), "{:#}", all[0]);
    Ok(())
}

#[test]
fn contexts_of_ended_processes_are_not_added_up() -> Result {
    let books = Books::new()?;
    let script = "for i in {1..10}; do ATTACKER keep 10 1 0 >&2; done";
    let mut command = books.run(&["--json", "--", "bash", "-c", script])?;
    let output = command.env("FAKE_CONTEXT", (40 * MIB).to_string()).output()?;
    let answer = answer(&output)?;
    let device = &answer["devices"][0];
    assert_eq!(device["peak_bytes"], 50 * MIB, "{answer:#}");
    assert_eq!(device["driver_bytes"], 40 * MIB, "{device:#}");
    Ok(())
}

/// A ledger that somebody cuts short costs neither the program nor the run.
#[test]
fn a_ledger_that_is_cut_short_ends_nothing_by_a_signal() -> Result {
    let books = Books::new()?;
    let script = ": > \"$PLIMSOLL_GUARD/ledger\"; sleep 0.5; exit 7";
    let output = books.output(&["--", "bash", "-c", script])?;
    let code = output.status.code();
    assert!(code == Some(7) || code == Some(125), "{}: {}", output.status, text(&output.stderr));
    Ok(())
}

/// Something in the folder that never answers is no reason to wait.
#[test]
fn a_pipe_in_the_folder_does_not_hold_the_run_up() -> Result {
    let books = Books::new()?;
    let script = "mkfifo \"$PLIMSOLL_GUARD/log.1.2.3\" \"$PLIMSOLL_GUARD/stacks.1\"; exit 7";
    let mut command = Command::new("timeout");
    let run = books.run(&["--", "bash", "-c", script])?;
    command.args(["-s", "KILL", "60"]).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output()?;
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    Ok(())
}
