//! Files that verbs write: whole or not at all, and no other answer is lost with them.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
#[expect(dead_code, reason = "no script waits here")]
#[path = "common/waiting.rs"]
mod waiting;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use common::{Result, complaint, json, run, text};
use waiting::until;

/// Runs it where no file may grow, as on a full disk.
fn on_a_full_disk(words: &[&str]) -> Result<Output> {
    where_files_end_at(0, words)
}

/// Runs it where no file may have more than so many KiB.
fn where_files_end_at(kib: u32, words: &[&str]) -> Result<Output> {
    let limit = format!("ulimit -f {kib}; exec \"$0\" \"$@\"");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let shell = ["--default-signal=XFSZ", "bash", "-c", &limit, program];
    Ok(Command::new("env").args(shell).args(words).output()?)
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
    names.collect()
}

#[test]
fn a_full_disk_keeps_the_page_that_was_there() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let dir = folder.path().display().to_string();
    let echo =
        ["bench", "--engine=echo", "--model0=echo", "--imgsz=96", "--source=synthetic:size=64x64"];
    for name in ["a", "b"] {
        let flags = ["--max-frames=3", "--quiet", "--run-name", name, "--output-dir", &dir];
        let ran = run(&[&echo[..], &flags].concat())?;
        assert!(ran.status.success(), "{}", text(&ran.stderr));
    }
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/training.csv");
    let (trace, place) = (trace.display().to_string(), folder.path().join("pages"));
    fs::create_dir(&place)?;
    let page = place.join("page.html");
    fs::write(&page, "old")?;
    let (a, b, page_name) = (format!("{dir}/a"), format!("{dir}/b"), page.display().to_string());
    let library = place.join("page.html").display().to_string();
    for words in [
        &["compare", "--tolerance=1000%", &a, &b, "--html", &page_name][..],
        &["replay", &trace, "--html", &page_name],
        &["report", "--device=cpu", "--html", &page_name],
        &["guard", "--to", &library],
    ] {
        let ran = on_a_full_disk(words)?;
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{words:?}: {said}");
        assert!(said.contains("cannot write") && !said.contains(".tmp"), "{words:?}: {said}");
        assert_eq!(fs::read_to_string(&page)?, "old", "{words:?}");
        assert_eq!(entries(&place)?, ["page.html"], "{words:?}");
    }
    for what in ["--completions", "--man"] {
        let ran = on_a_full_disk(&["generate", what, &place.display().to_string()])?;
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{said}");
        assert!(said.contains("cannot write into") && !said.contains("bug"), "{said}");
        assert_eq!(entries(&place)?, ["page.html"], "{what}");
    }
    let place = place.display().to_string();
    let ran = on_a_full_disk(&[&echo[..], &["--max-frames=3", "--output-dir", &place]].concat())?;
    assert_eq!(ran.status.code(), Some(3), "{}", text(&ran.stderr));
    Ok(())
}

/// A program that is started is ended by the signal as it would be without us.
#[test]
fn a_program_that_is_started_meets_the_limit_of_a_files_size_as_ever() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let large = folder.path().join("large").display().to_string();
    let words = [
        "run",
        "--limit=4GiB",
        "--",
        "sh",
        "-c",
        "exec dd if=/dev/zero bs=1M count=100 of=$0",
        &large,
    ];
    let ran = where_files_end_at(64 << 10, &words)?;
    assert_eq!(ran.status.code(), Some(128 + 25), "{}", text(&ran.stderr));
    Ok(())
}

/// Whenever a signal comes, there is a whole file or none, and nothing beside it.
#[test]
fn a_kill_leaves_no_part_of_a_file() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let (place, library) = (folder.path().join("out"), folder.path().join("out/g.so"));
    let to = library.display().to_string();
    fs::create_dir(&place)?;
    let began = Instant::now();
    assert!(run(&["guard", "--to", &to])?.status.success());
    let (lasts, whole) = (began.elapsed(), fs::metadata(&library)?.len());
    for moment in 0..24u32 {
        fs::remove_file(&library).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let mut started = common::plimsoll(&["guard", "--to", &to]);
        let mut started = started.stdout(Stdio::null()).spawn()?;
        std::thread::sleep(lasts * moment / 24);
        let signal = ["-TERM", "-INT", "-HUP"][moment as usize % 3];
        Command::new("kill").args([signal, &started.id().to_string()]).status()?;
        started.wait()?;
        let left = entries(&place)?;
        assert!(left.is_empty() || left == ["g.so"], "{moment} of 24: {left:?}");
        assert!(left.is_empty() || fs::metadata(&library)?.len() == whole, "{moment} of 24");
    }
    Ok(())
}

#[test]
fn a_place_that_cannot_be_is_refused_before_the_work() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/training.csv");
    let trace = trace.display().to_string();
    let (none, there) = (folder.path().join("no/page.html"), folder.path().display().to_string());
    for path in [none.display().to_string(), there] {
        for words in
            [&["replay", &trace, "--html", &path][..], &["report", "--device=cpu", "--html", &path]]
        {
            let said = complaint(words)?;
            assert!(said.contains(&format!("cannot write --html {path}")), "{said}");
        }
        assert!(complaint(&["guard", "--to", &path])?.contains("cannot write --to"));
    }
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

#[test]
fn a_library_is_written_only_where_the_loader_finds_it() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["a b.so", "a:b.so", "$LIB.so", "${ORIGIN}.so"] {
        let said = complaint(&["guard", "--to", &at(name)])?;
        assert!(said.contains("without spaces, colons and dollar signs"), "{name}: {said}");
    }
    let gone = folder.path().join("gone");
    fs::create_dir(&gone)?;
    let words = ["-c", "cd \"$1\" && rmdir \"$1\" && exec \"$0\" guard --to g.so"];
    let mut shell = Command::new("sh");
    let ran = shell.args(words).arg(env!("CARGO_BIN_EXE_plimsoll")).arg(&gone).output()?;
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot write --to g.so") && said.contains("is gone"), "{said}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    let ran = run(&["guard", "--to", &at("a;b.so")])?;
    let shown = text(&ran.stdout);
    let line = format!("LD_PRELOAD='{}' ", at("a;b.so"));
    assert!(ran.status.success() && shown.contains(&line), "{shown}{}", text(&ran.stderr));
    Ok(())
}

/// Also what is no answer: times without an end, formats that contradict each other, sums past all bounds.
#[test]
fn what_cannot_be_meant_is_refused() -> Result {
    let huge = "8388608,8388608,8388608";
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small8.pt");
    let model = model.display().to_string();
    let shape = "estimate llm --hidden=64 --intermediate=64 --layers=1 --vocab=9 --heads=1 --kv-heads=1 \
                 --context=8 --head-dim=18446744073709551615";
    let shape: Vec<&str> = shape.split_whitespace().collect();
    for (words, word) in [
        (&["report", "--watch=0s"][..], "at least 50ms"),
        (
            &["fit", "--limit=4GiB", "--vary=batch=1..4", "--timeout=0", "--", "true", "{batch}"],
            "above 0",
        ),
        (&["monitor", "--once", "--json", "--format=csv"], "leave out --json, or --format"),
        (&["cost", "--batch=64", "--points=18446744073709551615", "--grid", huge], "2^64 bytes"),
        (&["cost", "--batch=1", "--grid=128,128,99999999999"], "from 1 to 8388608"),
        (&["cost", "--throughput=1e308", "--price=1"], "from 1e-12 to 1e15"),
        (&["estimate", &model, "--engine=llama.cpp"], "runs language models in GGUF"),
        (&["estimate", &model, "--gpu-layers=3"], "for language models"),
        (&shape, "error: the shape: it takes more than 16 EiB"),
        (&["estimate", &model, "--kv-dtype=q8_0"], "for language models"),
        (&["fit", &model, "--limit=4GiB", "--vary=batch", "--batch=8"], "contradict each other"),
        (&["fit", &model, "--limit=4GiB", "--vary=imgsz", "--imgsz=32"], "contradict each other"),
        (
            &["fit", "--limit=4GiB", "--vary=batch=1..4", "--guess=500", "--", "true", "{batch}"],
            "from 1 to 4",
        ),
        (&["estimate", &model, "--limit", "-8GiB"], "invalid value '-8GiB' for '--"),
        (
            &["voxelize", &model, "--out=a.npy", "--grid", "-1,32,32"],
            "invalid value '-1,32,32' for '--grid",
        ),
        (&["monitor", "--duration=1s", "--speed=2"], "--replay"),
        (&["estimate", "x.pt", "--limit=99999999999999999999GiB"], "below 2^64 bytes"),
    ] {
        let said = complaint(words)?;
        assert!(said.contains(word), "{words:?}: {said}");
    }
    Ok(())
}

#[test]
fn results_are_kept_only_where_there_are_some() -> Result {
    let folder = tempfile::Builder::new().prefix("outputs").tempdir()?;
    let words = ["fit", "--limit=4GiB", "--vary=batch=1..2", "--json", "--", "true", "{batch}"];
    let mut fit = common::plimsoll(&words);
    let ran = fit.env("XDG_CACHE_HOME", folder.path()).output()?;
    let answer: serde_json::Value = serde_json::from_slice(&ran.stdout)?;
    let kept = answer["proof"]["kept_in"].as_str();
    assert_eq!(kept.is_some(), kept.is_some_and(|kept| Path::new(kept).is_file()), "{answer:#}");
    assert_eq!(kept.is_some(), folder.path().join("plimsoll/fit").is_dir(), "{answer:#}");
    Ok(())
}

#[test]
fn a_look_that_was_stopped_is_no_answer() -> Result {
    let mut look = common::plimsoll(&["monitor", "--once", "--interval=100", "--json"]);
    let look = look.stdout(Stdio::piped()).spawn()?;
    let status = format!("/proc/{}/status", look.id());
    until("a handler of SIGINT", || {
        let status = fs::read_to_string(&status).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        (u64::from_str_radix(caught.trim(), 16).ok()? & 2 != 0).then_some(())
    })?;
    let sent = Command::new("kill").args(["-INT", &look.id().to_string()]).status()?;
    assert!(sent.success());
    let ended = look.wait_with_output()?;
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(130), 0));
    // And one that was not is.
    assert!(json(&["monitor", "--once", "--interval=50ms"], 0)?.is_object());
    Ok(())
}
