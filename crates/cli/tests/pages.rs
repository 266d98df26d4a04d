//! What verbs show of fixed inputs, compared with what they showed when somebody last looked:
//! recorded machines, recorded allocations, made-up clouds. `PLIMSOLL_BLESS=1` writes the files
//! anew; look at the difference before you commit it.

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
#[path = "common/stage.rs"]
#[expect(dead_code, reason = "each test file uses its own part")]
mod stage;
#[path = "common/terminal.rs"]
#[expect(dead_code, reason = "each test file uses its own part")]
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Result, plimsoll, text};
use serde_json::Value;
use stage::{DRIVER, StagePart, answer_of};
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

/// Words are not broken at the edge of the terminal, and a file has whole lines.
#[test]
fn long_cells_are_folded_where_the_terminal_is_narrow() -> Result {
    let example = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
        folder.join(name).display().to_string()
    };
    let (model, trace) = (example("small8.pt"), example("training.csv"));
    let estimate = ["estimate", &model, "--engine", "ort", "--limit", "8GiB"];
    for words in [&estimate[..], &["replay", &trace]] {
        for columns in [60, 80] {
            let shown = in_terminal(words, columns)?;
            // A path has no blank to be broken at.
            let lines = shown.lines().filter(|line| !line.contains(&example("")));
            let widest = lines.map(|line| line.chars().count()).max();
            assert!(widest <= Some(usize::from(columns)), "{words:?}: {widest:?}\n{shown}");
        }
        let piped = text(&plimsoll(words).output()?.stdout);
        assert!(piped.lines().any(|line| line.chars().count() > 80), "{words:?}: {piped}");
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

/// A page is passed on: nobody's password, and no row that fills a screen.
#[test]
fn command_lines_are_shown_without_passwords_and_not_endless() -> Result {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    copy_of(&tree("agx-xavier"), &root)?;
    let env = "A_VARIABLE:1,".repeat(400);
    let line =
        format!("python3\0serve.py\0--api-key=hunter2\0rtsp://ada:hunter2@cam/1\0--env\0{env}\0");
    fs::write(root.join("proc/4321/cmdline"), line)?;
    let page = folder.path().join("memory.html");
    let run = plimsoll(&["report", "--root"]).arg(&root).arg("--html").arg(&page).output()?;
    let json = plimsoll(&["report", "--json", "--root"]).arg(&root).output()?;
    let html = fs::read_to_string(&page)?;
    for shown in [&html, &text(&run.stdout), &text(&json.stdout)] {
        assert!(shown.contains("serve.py --api-key=*** rtsp://***@cam/1"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert!(html.matches("A_VARIABLE").count() < 40, "{html}");
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

/// Old figures beside new ones would be taken for new.
#[test]
fn a_watched_report_shows_no_figure_of_a_device_twice() -> Result {
    use std::io::{BufRead, BufReader};
    let watch = |more: &[&str]| -> Result<Vec<String>> {
        let words = [&["report", "--watch", "50ms", "--device", "cpu"], more].concat();
        let mut child = plimsoll(&words).stdout(std::process::Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        let is_table = |line: &String| line.trim_start().starts_with(['{', 'd']);
        let rows = lines.map_while(std::io::Result::ok).filter(is_table).take(3).collect();
        child.wait()?;
        Ok(rows)
    };
    let mut rounds = watch(&["--json"])?.into_iter();
    let mut device = || -> Result<Value> {
        let round: Value = serde_json::from_str(&rounds.next().ok_or("it ended")?)?;
        Ok(round["devices"][0].clone())
    };
    let first = device()?;
    assert!(first["used_bytes"].is_u64() && first["pressure"].is_string(), "{first}");
    for later in [device()?, device()?] {
        assert_eq!(later["total_bytes"], first["total_bytes"]);
        for name in ["used_bytes", "free_bytes", "utilisation", "pressure"] {
            assert_eq!(later[name], Value::Null, "{name}: {later}");
        }
    }
    let tables = watch(&["--verbose"])?;
    assert!(tables[0].contains("pressure") && !tables[1].contains("pressure"), "{tables:?}");
    Ok(())
}

/// The fake driver, and a program that uses it as a training run does.
const PARTS: [StagePart; 2] = [DRIVER, ("worker.c", &["-rdynamic"], "worker")];

/// `plimsoll run` of the worker, which asks for more than 3 GiB once.
fn worker(words: &[&str]) -> Result<std::process::Command> {
    let stage = stage::stage(&PARTS)?;
    let limits = ["--limit", "3GiB", "--reserve", "0"];
    let mut command = plimsoll(&[&["run"], &limits[..], words].concat());
    command.arg("--").arg(stage.join("worker"));
    command.env("LD_LIBRARY_PATH", stage).env("WAY", "runtime");
    Ok(command)
}

#[test]
fn what_was_live_at_the_peak_is_known_by_its_place() -> Result {
    let answer = answer_of(&mut worker(&["--json", "--stacks"])?)?;
    let (device, peak) = (&answer["devices"][0], &answer["devices"][0]["at_peak"]);
    assert_eq!(peak["bytes"], device["peak_bytes"], "{device:#}");
    let places = peak["places"].as_array().ok_or("no places")?;
    let bytes: u64 = places.iter().filter_map(|place| place["bytes"].as_u64()).sum();
    assert_eq!(Some(bytes), peak["bytes"].as_u64(), "all of the peak has a place");
    let of = |name: &str| {
        let has = |place: &&Value| place["stack"][0].as_str().is_some_and(|f| f.contains(name));
        places.iter().find(has).ok_or(format!("no place in {name}: {places:#?}"))
    };
    assert_eq!(of("load_layer")?["bytes"], (16u64 * 96) << 20);
    assert_eq!(of("load_layer")?["blocks"], 16);
    assert!(of("mlp")?["bytes"].as_u64() > of("attention")?["bytes"].as_u64());
    let without = answer_of(&mut worker(&["--json"])?)?;
    let places = without["devices"][0]["at_peak"]["places"].as_array().ok_or("no places")?;
    assert!(places.iter().all(|place| place["stack"].as_array().is_some_and(Vec::is_empty)));
    Ok(())
}

#[test]
fn a_run_ends_with_a_picture_and_the_places_that_held_the_most() -> Result {
    for columns in [80, 200] {
        let terminal = Terminal::open(columns, 60)?;
        let mut command = worker(&["--stacks"])?;
        command.env("NO_COLOR", "1").env("TERM", "xterm");
        let status = terminal.run(command, "nothing waits for this", |_, _| Ok(()))?;
        let shown = terminal.written();
        assert!(status.success(), "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        let limit = lines.iter().find(|line| line.contains("3.00 GiB │")).ok_or("no limit")?;
        assert!(limit.contains('┄'), "{shown}");
        assert_eq!(lines.iter().filter(|line| line.contains('│')).count(), 6, "{shown}");
        assert!(lines.iter().any(|line| line.contains("refused") && line.contains('▲')), "{shown}");
        let places = shown.find("live at the peak of cuda:0").ok_or("no places")?;
        let first = shown[places..].find("load_layer (worker)");
        assert!(first.is_some() && first < shown[places..].find("mlp (worker)"), "{shown}");
        let plot = lines.iter().filter(|line| line.contains(['│', '└', '▲']));
        assert!(plot.clone().all(|line| line.chars().count() <= usize::from(columns)), "{shown}");
    }
    // A log of a program that is not in a terminal stays short.
    let run = worker(&[])?.output()?;
    assert!(!text(&run.stderr).contains('│'), "{}", text(&run.stderr));
    Ok(())
}

#[test]
fn the_page_of_a_run_has_the_flame_graph_and_what_was_refused() -> Result {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let run = worker(&["--quiet", "--stacks", "--report", &out.to_string_lossy()])?.output()?;
    assert!(run.status.success(), "{}", text(&run.stderr));
    let html = fs::read_to_string(out.join("report.html"))?;
    for words in [
        "Live memory at the peak by call stack",
        "load_layer (worker): 1.50 GiB",
        "<title>80.00 MiB by cuMemAlloc was refused at ",
        "refused: 80.00 MiB",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    assert!(!html.contains("plimsoll.torch.record"), "there is no Python in it");
    let without = worker(&["--quiet", "--report", &out.to_string_lossy()])?.output()?;
    assert!(without.status.success());
    let html = fs::read_to_string(out.join("report.html"))?;
    assert!(html.contains("With --stacks this is drawn by call stack"), "{html}");
    Ok(())
}

/// A program of this name stands for the interpreter: only its name is looked at.
#[test]
fn a_python_program_is_told_where_its_own_lines_are() -> Result {
    let stage = stage::stage(&PARTS)?;
    let folder = tempfile::tempdir()?;
    let python = folder.path().join("python3");
    fs::copy(stage.join("worker"), &python)?;
    let mut command = plimsoll(&["run", "--limit", "3GiB", "--reserve", "0", "--stacks", "--"]);
    command.arg(&python).env("LD_LIBRARY_PATH", stage).env("WAY", "runtime");
    let shown = text(&command.output()?.stderr);
    assert!(shown.contains("plimsoll.torch.record"), "{shown}");
    Ok(())
}

/// A trace whose figures are known: ten blocks of 1 MiB, one of 64 MiB, of which half are freed.
fn trace() -> String {
    let mut csv = "op,id,size,stream,t_us\n".to_string();
    (0..10).for_each(|id| csv += &format!("a,{id},1048576,0,{}\n", id * 1000));
    csv += "a,99,67108864,0,20000\n";
    (0..5).for_each(|id| csv += &format!("f,{id},1048576,0,{}\n", 30_000 + id * 1000));
    csv
}

#[test]
fn a_replay_becomes_a_page_with_its_course_and_the_blocks_at_the_peak() -> Result {
    let folder = tempfile::tempdir()?;
    let (file, page) = (folder.path().join("<b>trace.csv"), folder.path().join("trace.html"));
    fs::write(&file, trace())?;
    let run = plimsoll(&["replay", "--html"]).arg(&page).arg(&file).output()?;
    assert!(run.status.success(), "{}", text(&run.stderr));
    let html = fs::read_to_string(&page)?;
    for words in [
        "Live and reserved memory",
        "11 blocks are live at event 11, 74.00 MiB in all",
        "64.00 MiB</td><td data-name=\"blocks\">1</td>",
        "1.00 MiB</td><td data-name=\"blocks\">10</td><td data-name=\"together\">10.00 MiB</td>",
        "It completes on a device",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    assert!(!html.contains("<b>trace") && html.contains("&lt;b&gt;trace.csv"));
    // One that does not fit ends where it ends, and is drawn so far.
    let run = plimsoll(&["replay", "--cap", "32MiB", "--html"]).arg(&page).arg(&file).output()?;
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
    let html = fs::read_to_string(&page)?;
    assert!(
        html.contains("It does not complete: event 11 of 16") && html.contains(">ends<"),
        "{html}"
    );
    // The page must not replace the recording.
    let run = plimsoll(&["replay", "--html"]).arg(&file).arg(&file).output()?;
    assert_eq!(run.status.code(), Some(2));
    assert_eq!(fs::read_to_string(&file)?, trace());
    Ok(())
}

#[test]
fn the_tables_of_cost_need_nothing_else_to_be_read() -> Result {
    let shown = in_terminal(&["cost", "--table"], 80)?;
    golden("cost-table-80.txt", &shown)?;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    Ok(())
}

/// Points of a LiDAR on a flat field: 150 m wide, 4 m high; in KITTI's form.
fn flat_cloud(to: &Path) -> Result {
    let mut bytes = Vec::new();
    for n in 0..20_000u32 {
        let (angle, far) = (n as f32 * 0.0137, 4.0 + (n % 640) as f32 * 0.11);
        let point = [far * angle.cos(), far * angle.sin(), -1.8 + (n % 37) as f32 * 0.1, 0.5];
        point.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    }
    Ok(fs::write(to, bytes)?)
}

#[test]
fn a_grid_that_holds_next_to_nothing_is_warned_of_with_one_that_holds_all() -> Result {
    let folder = tempfile::tempdir()?;
    let (cloud, out) = (folder.path().join("cloud.bin"), folder.path().join("grid.npy"));
    flat_cloud(&cloud)?;
    let voxelize = |flags: &[&str]| -> Result<std::process::Output> {
        let mut command = plimsoll(&["voxelize", "--grid", "10,400,352", "--out"]);
        command.arg(&out).arg(&cloud).args(["--backend", "host"]).args(flags);
        Ok(command.output()?)
    };
    let run = voxelize(&["--origin", "900,0,0", "--voxel-size", "0.1"])?;
    let shown = text(&run.stdout);
    assert!(shown.contains("warning: most points were dropped: 100.0 % lie outside"), "{shown}");
    let flags = shown.lines().find_map(|line| line.split_once("hold all of them: "));
    let flags: Vec<&str> = flags.ok_or("no flags")?.1.split(' ').collect();
    let run = voxelize(&[&flags[..], &["--json"]].concat())?;
    let answer: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(answer["dropped"]["out_of_range"], 0, "{flags:?}: {answer:#}");
    assert_eq!(answer["extent"], Value::Null, "there is nothing to say");
    let shown = text(&voxelize(&flags)?.stdout);
    assert!(!shown.contains("warning"), "{shown}");
    Ok(())
}

/// Help begins with the commonest uses, in every verb and at the top.
#[test]
fn help_begins_with_what_people_type() -> Result {
    let top = text(&plimsoll(&["--help"]).output()?.stdout);
    assert!(top.find("Examples:") < top.find("Usage:") && top.contains("Examples:"), "{top}");
    let verbs = top.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
    // A verb begins two columns in; its description may go on below it.
    let lines = verbs.unwrap_or_default().lines().filter(|line| !line.starts_with("   "));
    let verbs = lines.filter_map(|line| line.split_whitespace().next());
    for verb in verbs.filter(|verb| *verb != "help") {
        let help = text(&plimsoll(&[verb, "--help"]).output()?.stdout);
        let first = help.find("Examples:\n  ").ok_or(format!("{verb}: {help}"))?;
        assert!(Some(first) < help.find("Usage:"), "{verb}: {help}");
        let before = &help[first..help.find("Usage:").unwrap_or(first)];
        let examples =
            before.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        assert!((1..=3).contains(&examples.count()), "{verb}: {before}");
    }
    Ok(())
}

/// The scripts that shells read have the values of flags.
#[test]
fn shells_complete_the_values_of_flags() -> Result {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&plimsoll(&["completions", shell]).output()?.stdout);
        for value in ["thermal", "tensorrt", "agx-orin-64gb", "occupancy", "llama.cpp"] {
            assert!(script.contains(value), "{shell}: {value}");
        }
    }
    Ok(())
}

/// The pictures in docs/images carry a mark of what they show.
#[test]
fn pictures_show_what_the_program_shows() -> Result {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-verb-images");
    let mut command = std::process::Command::new("python3");
    command.arg(&script).arg("--check").arg(env!("CARGO_BIN_EXE_plimsoll"));
    let Ok(run) = command.output() else {
        println!("skipped: no python3 here");
        return Ok(());
    };
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
    Ok(())
}
