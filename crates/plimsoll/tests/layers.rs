//! The sources keep to the order in ARCHITECTURE.md.
//!
//! That file has a fenced block `layers` with a line for each crate: the crates that it may
//! use in brackets, and its modules from left to right. A module may use those to its left;
//! modules that are joined by `+` may use each other. What is read here: every `use` line and
//! every path that begins with `crate::` or with the name of one of our crates. Unit tests may
//! use anything. So may the root of a crate, which puts the modules together.
//!
//! Two more rules of the sources are checked with it: a type's name is defined once in the
//! workspace, and a module with children is `x/mod.rs`, never `x.rs` beside `x/`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that several modules may have for themselves, as the module says whose they are:
/// the arguments and the answer of a verb.
const SHARED_NAMES: [&str; 2] = ["Args", "Answer"];

/// A line of the block.
struct Layers {
    uses: BTreeSet<String>,
    /// Module → its place from the left; those that are joined have the same.
    places: BTreeMap<String, usize>,
}

/// A source file without comments and without its unit tests, as long as it was.
struct Source {
    path: PathBuf,
    krate: String,
    /// `["backend", "cuda", "space"]`; empty for the root of the crate.
    module: Vec<String>,
    code: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split_whitespace().map(str::to_string)
}

fn layers() -> BTreeMap<String, Layers> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let block = text.split("```layers\n").nth(1).expect("ARCHITECTURE.md has a block `layers`");
    let block = block.split("```").next().unwrap_or_default();
    let line = |line: &str| {
        let (head, modules) = line.split_once(':').unwrap_or_else(|| panic!("no colon: {line}"));
        let (name, uses) = head.split_once('(').unwrap_or_else(|| panic!("no brackets: {line}"));
        let uses = words(uses.trim().trim_end_matches(')')).collect();
        let joined = words(modules).enumerate();
        let places = joined
            .flat_map(|(place, group)| {
                group.split('+').map(move |name| (name.to_string(), place)).collect::<Vec<_>>()
            })
            .collect();
        (name.trim().to_string(), Layers { uses, places })
    };
    block.lines().filter(|text| !text.trim().is_empty()).map(line).collect()
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for path in list(folder) {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// All sources of all crates but those that hold unit tests alone.
fn sources() -> Vec<Source> {
    let mut all = Vec::new();
    for folder in list(&root().join("crates")) {
        let (krate, src) = (name(&folder), folder.join("src"));
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        for path in files {
            let inside = path.strip_prefix(&src).unwrap().with_extension("");
            let mut module: Vec<_> =
                inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.iter().any(|part| part == "tests") {
                continue;
            }
            let is_root = module.len() == 1 && ["lib", "main"].contains(&module[0].as_str());
            if is_root || module.last().is_some_and(|last| last == "mod") {
                module.pop();
            }
            let code = without_comments_and_tests(&fs::read_to_string(&path).unwrap());
            all.push(Source { path, krate: krate.clone(), module, code });
        }
    }
    all
}

/// Blanks out comments, and everything from the unit tests on, which end a file. Lines keep
/// their numbers.
fn without_comments_and_tests(text: &str) -> String {
    let mut code = String::new();
    let mut before = "";
    for line in text.lines() {
        let is_test_mark = before.starts_with("#[cfg(") && before.contains("test");
        if is_test_mark && line.starts_with("mod ") && !line.ends_with(';') {
            break;
        }
        let comment = line.find("//").filter(|at| !line[..*at].ends_with([':', '"']));
        code.push_str(&line[..comment.unwrap_or(line.len())]);
        code.push('\n');
        before = line;
    }
    code
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `word` stands by itself.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let (before, after) =
            (code[..*at].bytes().next_back(), code.as_bytes().get(at + word.len()));
        !before.is_some_and(is_word) && !after.copied().is_some_and(is_word)
    })
}

/// The first names of a path or of each path of a tree: `a::b` and `{a::b, c}` begin with a,
/// and with a and c.
fn heads(rest: &str) -> Vec<&str> {
    let Some(tree) = rest.strip_prefix('{') else {
        let end = rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        return vec![&rest[..end]];
    };
    let (mut depth, mut starts) = (0, vec![0]);
    for (at, byte) in tree.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            b',' if depth == 0 => starts.push(at + 1),
            _ => {}
        }
    }
    starts.into_iter().flat_map(|at| heads(tree[at..].trim_start())).collect()
}

/// Each name at the top of the crate that a path of this file begins with, and its line.
fn used_modules(source: &Source) -> Vec<(usize, String)> {
    let code = &source.code;
    let line = |at: usize| code[..at].bytes().filter(|byte| *byte == b'\n').count() + 1;
    let mut found = Vec::new();
    let mut add = |at: usize, rest: &str| {
        found.extend(heads(rest).into_iter().map(|head| (line(at), head.to_string())));
    };
    for at in places(code, "crate") {
        if let Some(rest) = code[at..].strip_prefix("crate::") {
            add(at, rest);
        }
    }
    for at in places(code, "super") {
        // Counted from the first of a chain: `super::super::x` is two steps up.
        if code[..at].ends_with("super::") {
            continue;
        }
        let (mut rest, mut up) = (&code[at..], 0);
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, up) = (after, up + 1);
        }
        if up > 0 && up == source.module.len() {
            add(at, rest);
        }
    }
    found
}

/// What the root of each crate exports by a shorter path: crate and name → module.
fn exports(sources: &[Source]) -> BTreeMap<(String, String), String> {
    let mut all = BTreeMap::new();
    for source in sources.iter().filter(|source| source.module.is_empty()) {
        for statement in source.code.split("use ").skip(1) {
            let statement = statement.split(';').next().unwrap_or_default();
            let mut names =
                statement.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let Some(module) = names.next() else { continue };
            for name in names.filter(|name| !name.is_empty()) {
                all.insert((source.krate.clone(), name.to_string()), module.to_string());
            }
        }
    }
    all
}

fn report(what: &str, wrong: &[String]) {
    let mut text = String::new();
    for line in wrong {
        writeln!(text, "  {line}").unwrap();
    }
    assert!(wrong.is_empty(), "{what}:\n{text}");
}

fn shown(path: &Path) -> String {
    let root = root();
    path.strip_prefix(&root).unwrap_or(path).display().to_string()
}

#[test]
fn every_module_is_in_the_order_and_uses_only_those_to_its_left() {
    let layers = layers();
    let sources = sources();
    let exported = exports(&sources);
    let mut wrong = Vec::new();
    for (krate, layers) in &layers {
        let there: BTreeSet<_> = sources
            .iter()
            .filter(|source| source.krate == *krate)
            .filter_map(|source| source.module.first())
            .collect();
        let gone = layers.places.keys().filter(|module| !there.contains(module));
        wrong.extend(gone.map(|module| format!("ARCHITECTURE.md: {krate} has no {module}")));
    }
    for source in &sources {
        let file = shown(&source.path);
        let Some(layers) = layers.get(&source.krate) else {
            wrong.push(format!("{file}:1: ARCHITECTURE.md has no line for {}", source.krate));
            continue;
        };
        let Some(module) = source.module.first() else { continue };
        let Some(own) = layers.places.get(module) else {
            wrong.push(format!("{file}:1: ARCHITECTURE.md has no place for {module}"));
            continue;
        };
        for (line, used) in used_modules(source) {
            let of = |name: &String| layers.places.get(name);
            let export = || exported.get(&(source.krate.clone(), used.clone())).and_then(of);
            if of(&used).or_else(export).is_some_and(|place| place > own) {
                wrong.push(format!("{file}:{line}: {module} uses {used}, which is to its right"));
            }
        }
    }
    report("against the order in ARCHITECTURE.md", &wrong);
}

#[test]
fn every_crate_uses_only_those_that_it_may() {
    let layers = layers();
    let package = |krate: &str| match krate {
        "plimsoll" => krate.to_string(),
        other => format!("plimsoll-{other}"),
    };
    let mut wrong = Vec::new();
    for krate in layers.keys() {
        let file = root().join("crates").join(krate).join("Cargo.toml");
        let manifest = fs::read_to_string(&file).unwrap();
        let mut is_used = false;
        for (number, line) in manifest.lines().enumerate() {
            if line.starts_with('[') {
                is_used = line.ends_with("dependencies]") && !line.contains("dev-");
            }
            let named = |other: &&String| {
                let rest = line.strip_prefix(package(other).as_str());
                rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
            };
            let Some(used) = layers.keys().find(named).filter(|_| is_used) else { continue };
            if !layers[krate].uses.contains(used) {
                let at = format!("{}:{}", shown(&file), number + 1);
                wrong.push(format!("{at}: {krate} uses {used}, which ARCHITECTURE.md denies it"));
            }
        }
    }
    report("against the order in ARCHITECTURE.md", &wrong);
}

/// The type that a line defines, if any. Types of traits and functions are not looked at.
fn defined(line: &str) -> Option<&str> {
    let mut rest = line;
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(within) => within.split_once(") ")?.1,
            None => public.strip_prefix(' ')?,
        };
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    Some(heads(name)[0])
}

#[test]
fn every_type_has_a_name_of_its_own() {
    let mut all: BTreeMap<String, BTreeMap<PathBuf, usize>> = BTreeMap::new();
    for source in sources() {
        for (number, line) in source.code.lines().enumerate() {
            if let Some(name) = defined(line) {
                // Twice in a file are two forms of one thing, for two systems.
                let files = all.entry(name.to_string()).or_default();
                files.entry(source.path.clone()).or_insert(number + 1);
            }
        }
    }
    let mut wrong = Vec::new();
    for (name, files) in all {
        if files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()) {
            let places: Vec<_> =
                files.iter().map(|(path, line)| format!("{}:{line}", shown(path))).collect();
            wrong.push(format!("{name}: {}", places.join(", ")));
        }
    }
    report("defined more than once; a name says which thing it is without its path", &wrong);
}

#[test]
fn a_module_with_children_is_a_folder_with_mod_rs() {
    let mut wrong = Vec::new();
    for source in sources() {
        let folder = source.path.with_extension("");
        if !source.module.is_empty() && folder.is_dir() {
            wrong.push(format!("{}:1: move it to {}/mod.rs", shown(&source.path), shown(&folder)));
        }
    }
    report("a file beside a folder of its name", &wrong);
}

#[test]
fn the_reader_of_sources_sees_what_it_should() {
    let source = |module: &[&str], code: &str| Source {
        path: PathBuf::new(),
        krate: String::new(),
        module: module.iter().map(ToString::to_string).collect(),
        code: without_comments_and_tests(code),
    };
    let seen = |module: &[&str], code: &str| used_modules(&source(module, code));
    let one = |line: usize, name: &str| (line, name.to_string());
    assert_eq!(seen(&["a"], "use crate::b::C;\n"), [one(1, "b")]);
    let tree = "\nuse crate::{b::{C, d}, e};\nlet x = crate::f::g();\n";
    assert_eq!(seen(&["a"], tree), [one(2, "b"), one(2, "e"), one(3, "f")]);
    assert_eq!(seen(&["a"], "use super::b;\n"), [one(1, "b")]);
    assert_eq!(seen(&["a", "x"], "use super::b;\nuse super::super::c;\n"), [one(2, "c")]);
    assert_eq!(seen(&["a"], "// crate::b\nuse other_crate::b;\n"), []);
    let tests = "use crate::b;\n\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n";
    assert_eq!(seen(&["a"], tests), [one(1, "b")]);
    assert_eq!(defined("pub(crate) struct Name<'a> {"), Some("Name"));
    assert_eq!(defined("pub enum Other {"), Some("Other"));
    assert_eq!(defined("    type Item = u8;"), None);
    assert_eq!(defined("structure"), None);
}
