//! `plimsoll fit` as a user meets it: programs are tried under the guard, with a simulated driver.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "not every test asks for a complaint")]
mod common;
#[expect(dead_code, reason = "the programs here are others")]
#[path = "common/stage.rs"]
mod stage;

#[path = "common/waiting.rs"]
#[expect(dead_code, reason = "no shell waits here")]
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Result, complaint, plimsoll, text};
use serde_json::{Value, json};
use stage::{DRIVER, StagePart};
use tempfile::TempDir;
use waiting::until;

const PARTS: [StagePart; 2] = [DRIVER, ("../../../cli/tests/fit/items.c", &[], "items")];
/// What allocations may reach: the limit less the reserve, less what the simulated context takes.
const LIMIT: [&str; 4] = ["--limit", "2GiB", "--reserve", "128MiB"];

/// A user with a cache folder of their own, so that tests do not see each other's results.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Result<User> {
        Ok(User { home: tempfile::tempdir()? })
    }

    fn runs_file(&self) -> PathBuf {
        self.home.path().join("runs")
    }

    /// The batches that were tried, in order.
    fn runs(&self) -> Vec<u64> {
        let text = fs::read_to_string(self.runs_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Whether a try is where it does not end.
    fn hangs(&self) -> bool {
        fs::read_to_string(self.runs_file()).is_ok_and(|text| text.contains("hangs"))
    }

    /// `plimsoll fit` with the simulated driver in reach.
    fn command(&self, flags: &[&str], program: &[&str]) -> Result<Command> {
        let stage = stage::stage(&PARTS)?;
        let items = stage.join("items").display().to_string();
        let mut command = plimsoll(&[&["fit"], &LIMIT[..], flags, &["--", &items]].concat());
        command.args(program).env("LD_LIBRARY_PATH", stage).env("RUNS", self.runs_file());
        command.env("XDG_CACHE_HOME", self.home.path().join("cache"));
        Ok(command)
    }

    fn fit(&self, flags: &[&str], program: &[&str]) -> Result<Output> {
        Ok(self.command(flags, program)?.output()?)
    }

    fn answer(&self, flags: &[&str], program: &[&str], code: i32) -> Result<Value> {
        let output = self.fit(&[flags, &["--json"]].concat(), program)?;
        if output.status.code() != Some(code) {
            return Err(format!("{}: {}", output.status, text(&output.stderr)).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The file of kept results; there must be one.
    fn kept(&self) -> Result<PathBuf> {
        let mut files = fs::read_dir(self.home.path().join("cache/plimsoll/fit"))?;
        Ok(files.next().ok_or("no results were kept")??.path())
    }
}

const BATCHES: [&str; 2] = ["--vary", "batch=1..4096"];

#[test]
fn the_largest_batch_is_found_exactly_in_at_most_eight_runs() -> Result {
    let user = User::new()?;
    let answer = user.answer(&BATCHES, &["{batch}", "plain"], 0)?;
    let largest = answer["largest"].as_u64().ok_or("no answer")?;
    assert_eq!(answer["smallest_failed"], largest + 1);
    let tried = user.runs();
    assert!(tried.len() <= 8, "{tried:?}");
    assert!(tried.contains(&largest) && tried.contains(&(largest + 1)), "{tried:?}");
    // 64 MiB, 8 MiB an item and the context are below what may be allocated, and one more is not.
    let peak = answer["largest_bytes"].as_u64().ok_or("no peak")?;
    let room = (2048 - 128) << 20;
    assert!(peak <= room && peak + (8 << 20) > room, "{peak}");
    assert_eq!(answer["proof"]["runs"], tried.len());
    assert_eq!(answer["how"], "tried");
    assert!(
        answer["command"].as_str().is_some_and(|line| line.ends_with(&format!("{largest} plain")))
    );
    assert!(answer["proof"]["tries"].as_array().is_some_and(|tries| {
        tries.iter().all(|one| (one["ran"] == false) == (one["exit_code"] == 3))
    }));
    Ok(())
}

#[test]
fn a_program_that_recovers_has_run() -> Result {
    let user = User::new()?;
    let plain = user.answer(&BATCHES, &["{batch}", "plain"], 0)?;
    let cache = user.answer(&BATCHES, &["{batch}", "cache", "1"], 0)?;
    // With its cache freed it needs no more than the plain one.
    assert_eq!(cache["largest"], plain["largest"]);
    let tries = cache["proof"]["tries"].as_array().ok_or("no tries")?;
    let largest = tries.iter().find(|one| one["value"] == cache["largest"]).ok_or("not tried")?;
    assert!(largest["refused"].as_u64() > Some(0) && largest["ran"] == true, "{largest:#}");
    let notes = cache["notes"].to_string();
    assert!(notes.contains("recovered"), "{notes}");
    let page = user.fit(&BATCHES, &["{batch}", "cache", "1"])?;
    assert!(text(&page.stdout).contains("refused; the program went on"), "{}", text(&page.stdout));
    Ok(())
}

#[test]
fn an_error_of_the_program_is_not_taken_for_memory() -> Result {
    let user = User::new()?;
    let answer = user.answer(&BATCHES, &["{batch}", "broken", "20"], 1)?;
    let failure = &answer["proof"]["failure"];
    assert_eq!((&failure["value"], &failure["exit_code"]), (&json!(26), &json!(7)), "{answer:#}");
    assert!(failure["output"].as_str().is_some_and(|said| said.contains("no such file: data.bin")));
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("error of the program")));
    assert_eq!((&answer["largest"], &answer["smallest_failed"]), (&json!(1), &Value::Null));
    // What it printed is shown, and it is tried again once it is put right.
    let page = user.fit(&BATCHES, &["{batch}", "broken", "20"])?;
    assert_eq!(page.status.code(), Some(1));
    assert!(text(&page.stdout).contains("| no such file: data.bin"), "{}", text(&page.stdout));
    assert_eq!(user.runs(), [1, 26, 26]);
    Ok(())
}

#[test]
fn what_uses_no_gpu_cannot_be_known() -> Result {
    let user = User::new()?;
    let answer = user.answer(&BATCHES, &["{batch}", "idle"], 1)?;
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("used no GPU memory")));
    assert_eq!(answer["largest"], Value::Null);
    let mut full = user.command(&BATCHES, &["{batch}", "plain"])?;
    let output = full.env("FAKE_FAIL", "cuMemAlloc_v2:1").output()?;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("the driver itself refused"), "{}", text(&output.stdout));
    Ok(())
}

#[test]
fn a_try_that_takes_too_long_is_ended_and_decides_nothing() -> Result {
    let user = User::new()?;
    let began = Instant::now();
    let flags = [&BATCHES[..], &["--timeout", "4s", "--json"]].concat();
    let output = user.command(&flags, &["{batch}", "slow", "20"])?.env("HANG", "1").output()?;
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let why = answer["why"].as_str().ok_or("no reason")?;
    assert!(why.contains("had not ended after 4 s") && why.contains("--timeout"), "{why}");
    assert_eq!(answer["proof"]["failure"]["value"], 26);
    assert_eq!(answer["smallest_failed"], Value::Null);
    assert_eq!(running(&["26", "slow", "20"]), 0);
    Ok(())
}

/// How many of the test's programs run with these words.
fn running(words: &[&str]) -> usize {
    let wanted = format!("/items\0{}\0", words.join("\0"));
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = folders.filter_map(|folder| fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| text(line).contains(&wanted)).count()
}

#[test]
fn results_are_kept_until_they_are_forgotten() -> Result {
    let user = User::new()?;
    let program = ["{batch}", "plain"];
    let first = user.answer(&BATCHES, &program, 0)?;
    let made = user.runs().len();
    let second = user.answer(&BATCHES, &program, 0)?;
    assert_eq!((user.runs().len(), &second["largest"]), (made, &first["largest"]));
    assert_eq!(second["proof"]["runs"], 0);
    assert_eq!(second["proof"]["kept_in"], user.kept()?.display().to_string());
    // Other ends of the values are the same question.
    let part = user.answer(&["--vary", "batch=1..64"], &program, 0)?;
    assert_eq!(part["largest"], 64, "{part:#}");
    let several = user.runs().len();
    let forgotten = user.answer(&[&BATCHES[..], &["--forget"]].concat(), &program, 0)?;
    assert_eq!(forgotten["proof"]["runs"].as_u64(), Some((user.runs().len() - several) as u64));
    assert_eq!(forgotten["largest"], first["largest"]);
    Ok(())
}

#[test]
fn damaged_results_are_reported_and_not_used() -> Result {
    let user = User::new()?;
    let program = ["{batch}", "plain"];
    let first = user.answer(&BATCHES, &program, 0)?;
    let (made, path) = (user.runs().len(), user.kept()?);
    let whole = fs::read_to_string(&path)?;
    for damaged in
        [whole.replace("\"ran\": false", "\"ran\": true"), whole[..99].into(), String::new()]
    {
        fs::write(&path, damaged)?;
        let before = user.runs().len();
        let again = user.answer(&BATCHES, &program, 0)?;
        assert!(again["notes"].to_string().contains("is damaged and was not used"), "{again:#}");
        assert_eq!((&again["largest"], user.runs().len() - before), (&first["largest"], made));
    }
    Ok(())
}

#[test]
fn an_interrupted_search_goes_on_where_it_was() -> Result {
    let user = User::new()?;
    let program = ["{batch}", "slow", "21"];
    let mut command = user.command(&[&BATCHES[..], &["--json"]].concat(), &program)?;
    command.env("HANG", "1").stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn()?;
    // It hangs at the second value.
    let until = Instant::now() + Duration::from_secs(60);
    while user.runs().len() < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(130));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&answer["proof"]["interrupted"], &answer["largest"]), (&json!(true), &json!(1)));
    assert_eq!(running(&["26", "slow", "21"]), 0);
    // The next call has the result of the first.
    let rest = user.answer(&BATCHES, &program, 0)?;
    assert_eq!(user.runs()[..3], [1, 26, 26]);
    assert_eq!(rest["proof"]["tries"][0]["kept"], true, "{rest:#}");
    let plain = user.answer(&BATCHES, &["{batch}", "plain"], 0)?;
    assert_eq!(rest["largest"], plain["largest"]);
    Ok(())
}

/// Nothing is left of a try whose search was killed, also not of a program that does not listen.
#[test]
fn a_killed_search_leaves_nothing_behind() -> Result {
    for (how, from) in [("slow", "22"), ("deaf", "23")] {
        let user = User::new()?;
        let mut command = user.command(&BATCHES, &["{batch}", how, from])?;
        command.env("HANG", "1").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let words = ["26", how, from];
        until("a try that hangs", || user.hangs().then_some(()))?;
        child.kill()?;
        child.wait()?;
        until("the end of the try", || (running(&words) == 0).then_some(()))?;
    }
    Ok(())
}

#[test]
fn steps_guesses_and_ends_of_the_range() -> Result {
    let user = User::new()?;
    let program = ["{batch}", "plain"];
    let exact = user.answer(&BATCHES, &program, 0)?["largest"].as_u64().ok_or("none")?;
    let flags = ["--vary", "batch=16..4096", "--step", "16", "--guess", &exact.to_string()];
    let stepped = user.answer(&flags, &program, 0)?;
    assert_eq!(stepped["largest"], exact / 16 * 16);
    let none = user.answer(&["--vary", "batch=1000..4096"], &program, 1)?;
    assert_eq!(none["why"], "not even batch 1000 fits");
    let quiet = user.fit(&["--vary", "batch=1..32", "-q"], &program)?;
    assert_eq!((text(&quiet.stdout).as_str(), text(&quiet.stderr).as_str()), ("32\n", ""));
    let all = user.fit(&["--vary", "batch=1..32"], &program)?;
    assert!(text(&all.stdout).contains("a larger batch may run too"), "{}", text(&all.stdout));
    Ok(())
}

/// With a model, its estimate is where the tries begin.
#[test]
fn a_model_gives_the_first_value() -> Result {
    let user = User::new()?;
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/small8.pt");
    let flags = ["--vary", "batch=1..4096", "--engine", "pytorch", small];
    let answer = user.answer(&flags, &["{batch}", "plain"], 0)?;
    let guess = &answer["proof"]["guess"];
    assert_eq!(guess, &answer["estimate"]["likely_largest"]);
    assert_eq!(guess, &answer["proof"]["tries"][0]["value"]);
    assert_eq!(answer["largest"], user.answer(&BATCHES, &["{batch}", "plain"], 0)?["largest"]);
    Ok(())
}

#[test]
fn progress_says_what_is_left() -> Result {
    let user = User::new()?;
    let output = user.fit(&BATCHES, &["{batch}", "plain"])?;
    let said = text(&output.stderr);
    assert!(said.starts_with("plimsoll: trying batch 1; about 7 tries left\n"), "{said}");
    assert!(
        said.contains("plimsoll: batch 1 ran, peak ") && said.contains(" tries left, "),
        "{said}"
    );
    Ok(())
}

#[test]
fn bad_input_is_refused_before_anything_runs() -> Result {
    fn program<'a>(words: &[&'a str]) -> Vec<&'a str> {
        [&["fit"], words, &["--", "true", "{batch}"]].concat()
    }
    for (words, says) in [
        (program(&["--vary", "batch=1..4"]), "--limit"),
        (program(&["--limit", "8GiB", "--vary", "batch"]), "batch=1..4096"),
        (program(&["--limit", "8GiB", "--vary", "batch=4..1"]), "say 1..4"),
        (program(&["--limit", "8GiB", "--vary", "batch=0..4"]), "above 0"),
        (program(&["--limit", "8GiB", "--vary", "context=1..4"]), "{context}"),
        (program(&["--limit", "100MiB", "--vary", "batch=1..4"]), "--reserve"),
        (program(&["--limit", "8GiB"]), "--vary"),
        (vec!["fit", "--limit", "8GiB", "--vary", "batch=1..4"], "model file"),
    ] {
        let said = complaint(&words)?;
        assert!(said.contains(says), "{words:?}: {said}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_started_is_an_error() -> Result {
    let user = User::new()?;
    let mut command = plimsoll(&["fit", "--limit", "2GiB", "--vary", "batch=1..4", "--"]);
    command.args(["/no/such/program", "{batch}"]).env("XDG_CACHE_HOME", user.home.path());
    let output = command.output()?;
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("/no/such/program"), "{}", text(&output.stderr));
    assert!(!Path::new(&user.home.path().join("plimsoll/fit")).exists());
    Ok(())
}
