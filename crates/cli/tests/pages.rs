//! What verbs show of fixed inputs, compared with what they showed when somebody last looked:
//! recorded machines, recorded allocations, made-up clouds. `PLIMSOLL_BLESS=1` writes the files
//! anew; look at the difference before you commit it.

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
#[path = "common/terminal.rs"]
#[expect(dead_code, reason = "each test file uses its own part")]
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Result, plimsoll, text};
use serde_json::Value;
use terminal::Terminal;

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines").join(name)
}

/// Compares with the file of this name.
fn golden(name: &str, shown: &str) -> Result {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        return Ok(fs::write(path, shown)?);
    }
    let kept = fs::read_to_string(&path)?;
    assert_eq!(shown, kept, "{name} is not what it was; PLIMSOLL_BLESS=1 writes it anew");
    Ok(())
}

/// What a verb shows in a terminal of so many columns, without colours.
fn in_terminal(words: &[&str], columns: u16) -> Result<String> {
    let terminal = Terminal::open(columns, 200)?;
    let mut command = plimsoll(words);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    let status = terminal.run(command, "nothing waits for this", |_, _| Ok(()))?;
    assert!(status.success(), "{words:?}: {status}: {}", terminal.written());
    Ok(terminal.written().replace("\r\n", "\n"))
}

#[test]
fn a_report_names_who_holds_the_memory() -> Result {
    for name in ["amd", "agx-xavier", "orin-nano"] {
        let root = tree(name);
        for columns in [80, 200] {
            let shown = in_terminal(&["report", "--root", &root.to_string_lossy()], columns)?;
            golden(&format!("report-{name}-{columns}.txt"), &shown)?;
            let widest = shown.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(usize::from(columns)), "{name}: {widest:?}\n{shown}");
        }
    }
    Ok(())
}

/// Whoever reads only the first four lines knows which process to end, and how.
#[test]
fn the_first_lines_of_a_report_say_which_process_to_end() -> Result {
    for (name, pid, title) in
        [("amd", "1234", "python3 train.py"), ("agx-xavier", "4321", "deepstream-app")]
    {
        let root = tree(name);
        let shown = in_terminal(&["report", "--root", &root.to_string_lossy()], 80)?;
        let first = shown.lines().take(4).collect::<Vec<_>>().join("\n");
        assert!(first.contains(&format!("Process {pid} holds the most: {title}")), "{first}");
        assert!(first.contains(&format!("to end it: kill {pid}")), "{first}");
    }
    Ok(())
}

#[test]
fn a_doctor_ends_with_what_can_be_done_and_what_to_do_next() -> Result {
    for name in ["orin-nano", "desktop"] {
        let root = tree(name);
        let root = root.to_string_lossy();
        for columns in [80, 200] {
            let shown = in_terminal(&["doctor", "--root", &root], columns)?;
            golden(&format!("doctor-{name}-{columns}.txt"), &shown)?;
            let widest = shown.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(usize::from(columns)), "{name}: {widest:?}\n{shown}");
        }
        let run = plimsoll(&["doctor", "--json", "--root", &root]).output()?;
        let report: Value = serde_json::from_slice(&run.stdout)?;
        let steps = report["do_next"].as_array().ok_or("no steps")?;
        assert!((1..=3).contains(&steps.len()), "{steps:?}");
        assert!(steps.iter().all(|step| step["command"].is_string()), "{steps:?}");
        assert!(report["you_can"].as_array().is_some_and(|can| !can.is_empty()));
        let engines = report["engines"].as_array().ok_or("no engines")?;
        let names: Vec<_> = engines.iter().filter_map(|engine| engine["name"].as_str()).collect();
        assert_eq!(names, ["rten", "ort", "tensorrt"]);
    }
    Ok(())
}

/// Without a driver the doctor says what is missing; the files that were tried are for `--verbose`.
#[test]
fn the_files_that_were_tried_are_for_the_curious() -> Result {
    let shown = |words: &[&str]| -> Result<String> {
        let run = plimsoll(words).env("LD_LIBRARY_PATH", "/nowhere").output()?;
        Ok(text(&run.stdout))
    };
    let (short, long) = (shown(&["doctor"])?, shown(&["doctor", "--verbose"])?);
    assert!(!short.contains("cannot open shared object file"), "{short}");
    assert!(long.contains("sampled: /proc/meminfo MemTotal"), "{long}");
    let ends = |page: &str| page.find("You can:") < page.find("Do this next:");
    assert!(ends(&short) && ends(&long) && short.contains("You can:"), "{short}");
    Ok(())
}

/// A tree like another one, in a folder of its own.
fn copy_of(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_of(&entry.path(), &there)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(entry.path(), there)?;
        }
    }
    Ok(())
}

#[test]
fn a_hostile_process_name_is_letters_in_the_terminal_and_on_the_page() -> Result {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    copy_of(&tree("agx-xavier"), &root)?;
    let evil = "</script><script>alert(1)</script>\x1b[31m\"'\0; rm -rf /\0";
    fs::write(root.join("proc/4321/cmdline"), evil)?;
    let page = folder.path().join("memory.html");
    let run = plimsoll(&["report", "--root"]).arg(&root).arg("--html").arg(&page).output()?;
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(!text(&run.stdout).contains('\x1b'));
    let html = fs::read_to_string(&page)?;
    assert!(html.contains("&lt;script&gt;alert(1)") && !html.contains("<script"), "{html}");
    assert!(!html.contains('\x1b') && html.contains("default-src 'none'"));
    let json = plimsoll(&["report", "--json", "--root"]).arg(&root).output()?;
    let report: Value = serde_json::from_slice(&json.stdout)?;
    // What a user may paste into a shell has nothing of it.
    for action in report["actions"].as_array().into_iter().flatten() {
        assert!(!text(action["command"].to_string().as_bytes()).contains("rm -rf"), "{action}");
    }
    assert_eq!(report["most"]["end_command"], "kill 4321");
    Ok(())
}

#[test]
fn a_report_can_be_watched_and_a_page_that_cannot_be_written_is_named() -> Result {
    use std::io::{BufRead, BufReader};
    let root = tree("amd");
    let mut command = plimsoll(&["report", "--watch", "50ms", "--json", "--root"]);
    let mut child = command.arg(&root).stdout(std::process::Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    for line in lines.take(3) {
        let report: Value = serde_json::from_str(&line?)?;
        assert_eq!(report["gpus"][1]["processes"][0]["pid"], 1234);
    }
    // Nobody reads any more: it ends by itself.
    assert!(child.wait()?.success());
    let run =
        plimsoll(&["report", "--html", "/nowhere/at/all.html", "--root"]).arg(&root).output()?;
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("/nowhere/at/all.html"));
    Ok(())
}
