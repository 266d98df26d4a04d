//! The words cannot drift from the program: every command in README.md and in
//! docs/guide/ is run, and where its output is shown, the output is compared.
//!
//! In a block marked `sh` or `console`, a line `plimsoll …` (or `$ plimsoll …`) is run in
//! a folder that holds docs/examples/ and nothing else, one for each document, so that
//! one command may use what another wrote. `cargo run --release -- …` stands for `plimsoll …`. A command must exit 0, or
//! as its line says at the end: `# exit 1`. In `console` blocks, lines without `$ ` are
//! output and are compared like the blocks below. A line that is neither a command of
//! ours nor on the list of those that are let pass is a mistake.
//!
//! `<!-- output -->` between a block of commands and a block of text or JSON says that the second is
//! what the last command prints. `…` stands for anything within a line, and alone on a
//! line for any number of lines.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What stands in documents and is not ours to run: it needs the network, or is what
/// runs this test.
const LET_PASS: [&str; 9] = [
    "git clone ",
    "cd ",
    "cargo add ",
    "cargo build",
    "cargo install ",
    "cargo test",
    "scripts/",
    "#",
    "export ",
];

/// A command, what it must exit with and what it must print.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    command: String,
    code: i32,
    output: Option<String>,
}

#[derive(Debug)]
struct Fence {
    line: usize,
    language: String,
    body: Vec<String>,
    /// Whether `<!-- output -->`, and nothing else, stands above it.
    is_output: bool,
}

fn fences(text: &str) -> Vec<Fence> {
    let mut fences: Vec<Fence> = Vec::new();
    let mut open = false;
    let mut is_output = false;
    for (number, line) in text.lines().enumerate() {
        match (open, line.trim_start().strip_prefix("```")) {
            (false, Some(language)) => {
                let language = language.trim().to_string();
                fences.push(Fence { line: number + 1, language, body: Vec::new(), is_output });
                (open, is_output) = (true, false);
            }
            (true, Some(_)) => open = false,
            (true, None) => {
                fences.iter_mut().last().into_iter().for_each(|f| f.body.push(line.into()))
            }
            (false, None) if line.trim() == "<!-- output -->" => is_output = true,
            (false, None) if line.trim().is_empty() => {}
            (false, None) => is_output = false,
        }
    }
    fences
}

fn steps(text: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for fence in fences(text) {
        if fence.is_output {
            let step = steps.last_mut().ok_or(format!("line {}: output of what?", fence.line))?;
            step.output = Some(fence.body.join("\n"));
        } else if matches!(fence.language.as_str(), "sh" | "console" | "bash" | "shell") {
            block(&fence, &mut steps)?;
        }
    }
    Ok(steps)
}

fn block(fence: &Fence, steps: &mut Vec<Step>) -> Result {
    let console = fence.language == "console";
    let mut lines = fence.body.iter().enumerate();
    while let Some((index, first)) = lines.next() {
        let line = fence.line + 1 + index;
        let mut text = first.trim().to_string();
        while text.ends_with('\\') {
            let next = lines.next().ok_or(format!("line {line}: goes on nowhere"))?.1;
            text = format!("{} {}", text.trim_end_matches('\\').trim_end(), next.trim());
        }
        match (console, text.strip_prefix("$ ")) {
            (true, None) => {
                let step = steps.last_mut().ok_or(format!("line {line}: output of what?"))?;
                let shown = step.output.get_or_insert_default();
                *shown = if shown.is_empty() { first.clone() } else { format!("{shown}\n{first}") };
            }
            (_, prompt) => steps.extend(step(line, prompt.unwrap_or(&text))?),
        }
    }
    Ok(())
}

/// `None` for a line that is let pass.
fn step(line: usize, text: &str) -> Result<Option<Step>> {
    let command = match text.strip_prefix("cargo run --release -- ") {
        Some(rest) => format!("plimsoll {rest}"),
        None => text.to_string(),
    };
    if command.starts_with("plimsoll ") {
        let code = match command.rsplit_once("# exit ") {
            Some((_, code)) => code.trim().parse()?,
            None => 0,
        };
        return Ok(Some(Step { line, command, code, output: None }));
    }
    if text.is_empty() || LET_PASS.iter().any(|start| text.starts_with(start)) {
        return Ok(None);
    }
    Err(format!("line {line}: neither a plimsoll command nor one that is let pass: {text}").into())
}

/// Whether `found` is what `shown` shows.
fn matches(shown: &[&str], found: &[&str]) -> bool {
    match (shown, found) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=found.len()).any(|skip| matches(rest, &found[skip..])),
        ([line, rest @ ..], [other, others @ ..]) => {
            line_matches(line.trim_end(), other.trim_end()) && matches(rest, others)
        }
        _ => false,
    }
}

fn line_matches(shown: &str, found: &str) -> bool {
    match shown.split_once('…') {
        None => shown == found,
        Some((start, rest)) => found.strip_prefix(start).is_some_and(|tail| {
            let ends = tail.char_indices().map(|(at, _)| at).chain([tail.len()]);
            ends.into_iter().any(|at| line_matches(rest, &tail[at..]))
        }),
    }
}

fn run(step: &Step, folder: &Path) -> Result {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let mut path = OsString::from(program.parent().unwrap_or(Path::new("/")));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let run = Command::new("sh")
        .args(["-c", &step.command])
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()?;
    let stdout = String::from_utf8(run.stdout)?;
    let stderr = String::from_utf8_lossy(&run.stderr);
    if run.status.code() != Some(step.code) {
        return Err(format!("{}, not {}\n{stdout}{stderr}", run.status, step.code).into());
    }
    let Some(shown) = &step.output else { return Ok(()) };
    let found = format!("{stdout}{stderr}");
    let lines = |text: &str| text.trim_end().lines().map(String::from).collect::<Vec<_>>();
    let (shown, found_lines) = (lines(shown), lines(&found));
    let (shown, found_lines): (Vec<&str>, Vec<&str>) = (
        shown.iter().map(String::as_str).collect(),
        found_lines.iter().map(String::as_str).collect(),
    );
    if matches(&shown, &found_lines) { Ok(()) } else { Err(format!("it prints\n{found}").into()) }
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder to run commands in, with the example files where documents name them.
fn workplace() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let examples = Path::new("docs/examples");
    fs::create_dir_all(folder.path().join(examples))?;
    for entry in fs::read_dir(top().join(examples))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.path().join(examples).join(entry.file_name()))?;
    }
    Ok(folder)
}

fn documents() -> Result<Vec<PathBuf>> {
    let top = top();
    let mut documents = vec![top.join("README.md")];
    let guide = top.join("docs/guide");
    if guide.is_dir() {
        for entry in fs::read_dir(guide)? {
            documents.push(entry?.path());
        }
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    Ok(documents)
}

/// On Linux alone, as what is shown names Linux's files.
#[cfg(target_os = "linux")]
#[test]
fn the_commands_in_the_documents_do_what_they_say() -> Result {
    let mut problems = Vec::new();
    let mut ran = 0;
    for document in documents()? {
        let folder = workplace()?;
        let name = document.file_name().unwrap_or_default().display().to_string();
        for step in steps(&fs::read_to_string(&document)?).map_err(|e| format!("{name}: {e}"))? {
            ran += 1;
            if let Err(problem) = run(&step, folder.path()) {
                problems.push(format!("{name}:{}: {}\n{problem}", step.line, step.command));
            }
        }
    }
    assert!(ran > 0, "no document has a command");
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    Ok(())
}

#[test]
fn blocks_become_steps() -> Result {
    let text = "\
```sh
git clone x
cargo run --release -- doctor \\
  --json
plimsoll chunk # exit 1
```

<!-- output -->

```text
no
```
```rust
let x = 1;
```
```console
$ plimsoll a
one
two
```
";
    let step = |line, command: &str, code, output: Option<&str>| Step {
        line,
        command: command.to_string(),
        code,
        output: output.map(String::from),
    };
    let expected = [
        step(3, "plimsoll doctor --json", 0, None),
        step(5, "plimsoll chunk # exit 1", 1, Some("no")),
        step(17, "plimsoll a", 0, Some("one\ntwo")),
    ];
    assert_eq!(steps(text)?, expected);
    Ok(())
}

#[test]
fn an_unknown_line_is_a_mistake() {
    let error = steps("```sh\nsudo rm -rf x\n```\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("sudo"), "{error}");
    assert!(steps("<!-- output -->\n```text\nx\n```\n").is_err());
}

#[test]
fn the_dots_stand_for_anything() {
    for (shown, found, same) in [
        ("a\nb", "a\nb", true),
        ("a", "a\nb", false),
        ("a\n…", "a\nb\nc", true),
        ("a\n…", "a", true),
        ("…\nc", "a\nb\nc", true),
        ("…\nb", "a\nb\nc", false),
        ("total … GiB  …", "total 7.44 GiB  sampled", true),
        ("total … GiB", "total 7.44 MiB", false),
        ("…", "", true),
    ] {
        let lines = |text: &'static str| text.lines().collect::<Vec<_>>();
        assert_eq!(matches(&lines(shown), &lines(found)), same, "{shown:?} {found:?}");
    }
}

/// README, CONTRIBUTING and the workspace name the same minimum Rust.
#[test]
fn the_minimum_rust_is_the_workspaces() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(root.join(path));
    let after = |text: &str, mark: &str| -> Result<String> {
        let rest = text.split(mark).nth(1).ok_or_else(|| format!("no {mark:?}"))?;
        Ok(rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect())
    };
    let wanted = after(&read("Cargo.toml")?, "rust-version = \"")?;
    assert_eq!(wanted, env!("CARGO_PKG_RUST_VERSION"), "the program is built with the workspace's");
    assert_eq!(after(&read("README.md")?, "With Rust ")?, wanted);
    assert_eq!(after(&read("CONTRIBUTING.md")?, "a Rust toolchain (")?, wanted);
    let library = after(&read("crates/memory/Cargo.toml")?, "rust-version = \"")?;
    assert_eq!(after(&read("CONTRIBUTING.md")?, "the memory library alone ")?, library);
    Ok(())
}

/// Later changes add a few lines at most; everything else belongs into the guide.
#[test]
fn the_readme_is_short() -> Result {
    let lines = fs::read_to_string(top().join("README.md"))?.lines().count();
    assert!(lines < 180, "README.md has {lines} lines");
    Ok(())
}

#[test]
fn the_guide_lists_every_page() -> Result {
    let list = fs::read_to_string(top().join("docs/guide/README.md"))?;
    let pages =
        documents()?.into_iter().filter(|path| path.parent().is_some_and(|p| p.ends_with("guide")));
    for page in pages.filter(|path| !path.ends_with("README.md")) {
        let name = page.file_name().unwrap_or_default().display().to_string();
        assert!(list.contains(&format!("]({name})")), "docs/guide/README.md does not list {name}");
    }
    Ok(())
}

/// The targets of links and images: `[text](target)`, outside code.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let targets =
        prose.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    targets.filter(|target| !target.starts_with("http")).map(String::from).collect()
}

/// The anchor that a heading gets on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() -> Result {
    let mut broken = Vec::new();
    let others = ["CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/results/README.md"];
    for document in documents()?.into_iter().chain(others.map(|name| top().join(name))) {
        for link in links(&fs::read_to_string(&document)?) {
            let (path, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap_or(Path::new(".")).join(path),
            };
            let text = fs::read_to_string(&target).unwrap_or_default();
            let headings = text.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            if !target.exists() || !place.is_empty() && !anchors.any(|anchor| anchor == place) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}
