//! Checkpoints that somebody made to hurt: each is refused with exit code 2 and a message
//! that names what it tried, within bounded memory and time, and nothing is written.
//!
//! The files are made here, so that each can be read: a pickle by its opcodes, a zip file by
//! what is bent in it. Memory is bounded by the system (`ulimit -v`): a program that asked
//! for more would be ended by it.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "for other verbs")]
mod common;
mod forge;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Result, text};
use forge::{Forged, bombs, bytes, names, zips};

/// All the memory that the program may have, in KiB: half a gibibyte.
const MEMORY: u64 = 512 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// The message with which a file is refused.
fn refused(folder: &Path, case: &Forged) -> Result<String> {
    let (from, to) = (folder.join("hostile.pt"), folder.join("out.onnx"));
    fs::write(&from, &case.file)?;
    let begun = Instant::now();
    let line = format!("ulimit -v {MEMORY}; exec \"$0\" export \"$1\" --to \"$2\"");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let ran = Command::new("bash").args(["-c", &line, program]).args([&from, &to]).output()?;
    let (message, took) = (text(&ran.stderr), begun.elapsed());
    if ran.status.code() != Some(2) || took > PATIENCE || to.exists() || !ran.stdout.is_empty() {
        return Err(format!("{}: {} after {took:?}: {message}", case.what, ran.status).into());
    }
    Ok(message)
}

fn all_refused(cases: Vec<Forged>) -> Result {
    let folder = tempfile::tempdir()?;
    let mut wrong = Vec::new();
    for case in &cases {
        let message = refused(folder.path(), case).unwrap_or_else(|error| error.to_string());
        let whole = message.starts_with("error:") && message.contains(&case.word);
        // Nothing of a stranger's file moves the terminal, and no message is a page long.
        let tame = !message.contains('\u{1b}') && message.len() < 1000;
        if !(whole && tame) {
            wrong.push(format!("{}: {:?} expected: {message}", case.what, case.word));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

#[test]
fn what_would_run_code_is_named() -> Result {
    all_refused(names())
}

#[test]
fn zip_files_that_lie_are_refused() -> Result {
    all_refused(zips())
}

#[test]
fn broken_pickles_are_refused() -> Result {
    all_refused(bytes())
}

#[test]
fn bombs_do_not_go_off() -> Result {
    all_refused(bombs())
}

/// A file of a size that nobody has is not read at all.
#[test]
fn a_file_past_every_size_is_not_read() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("huge.pt");
    fs::File::create(&path)?.set_len(100 << 30)?;
    let begun = Instant::now();
    let to = folder.path().join("out.onnx").display().to_string();
    let message = common::complaint(&["export", &path.display().to_string(), "--to", &to])?;
    assert!(message.contains("107374182400 bytes"), "{message}");
    assert!(begun.elapsed() < PATIENCE);
    Ok(())
}
