//! `plimsoll run`: any program under a limit.
//!
//! Reads the flags, starts the program by [`plimsoll_guard::launch`], and shows what the guard
//! recorded.
//!
//! stdin, stdout and stderr are the program's. What `run` has to say goes to stderr, as that of
//! `time` does. With `--json` the answer is alone on stdout, and the program's own output goes to
//! stderr.

mod answer;
mod files;
mod flags;
mod flame;
mod frame;
mod html;
mod page;
mod picture;
mod warnings;

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use answer::{RunFacts, RunReport};
use anyhow::Context;
use files::PartialFile;
use plimsoll_guard::launch::{LaunchError, LaunchHistory, Launched, Launcher};

use crate::outcome::Outcome;
use crate::output::{self, Answer, Output};
use crate::page::TextPage;

pub(crate) use flags::Args;

/// Exit codes for errors of `run` itself, the same as those of `env` and `timeout`.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    match guarded(args, out) {
        Ok(code) => Ok(Outcome::Code(code)),
        Err(error) => {
            output::failure(&error, out.is_json());
            Ok(Outcome::Code(FAILED))
        }
    }
}

fn guarded(args: &Args, out: &mut Output) -> anyhow::Result<u8> {
    let limit = args.run_limit()?;
    let program = args.program(limit.mps.as_ref(), out.is_json())?;
    let why_not = program.why_not_guarded();
    if let (true, Some(why)) = (args.strict, &why_not) {
        anyhow::bail!("{why}; without --strict it would run without the limit");
    }
    let launcher = Launcher::prepare(&limit.settings)?;
    args.report.as_deref().map_or(Ok(()), files::prepare)?;
    let notes: Vec<String> = limit.notes.iter().cloned().chain(why_not).collect();
    if !out.is_quiet() {
        notes.iter().for_each(|note| output::note(&format!("plimsoll: {note}")));
    }
    let launched = match launcher.run(&program) {
        Ok(launched) => launched,
        Err(error) => {
            let code = not_started(&error);
            output::failure(&error.into(), out.is_json());
            return Ok(code);
        }
    };
    let (history, traced) = history(&launcher, &launched, args.report.as_deref());
    let facts = RunFacts { args, limit: &limit, notes, launcher: &launcher, launched: &launched };
    let answer = answer::collect(facts, history);
    let written = match args.report.as_deref() {
        Some(folder) => traced.and_then(|()| files::write(&answer, folder)),
        None => traced,
    };
    if launched.left_behind > 0 {
        // The programs that they start look for the guard there.
        let _ = launcher.keep_folders();
    }
    show(&answer, out)?;
    // After the answer: it is complete even where its files could not be written.
    written?;
    if let Some(folder) = args.report.as_ref().filter(|_| !out.is_quiet() && !out.is_json()) {
        output::note(&format!("plimsoll: report in {}", folder.join("report.html").display()));
    }
    Ok(if answer.is_within_limit(args.strict) { launched.code } else { FAILED })
}

/// The exit code for a program that was not started.
fn not_started(error: &LaunchError) -> u8 {
    match error {
        LaunchError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
        LaunchError::Start { .. } => NOT_EXECUTABLE,
        _ => FAILED,
    }
}

/// What the guard recorded, and whether `trace.csv` could be written where there is a folder.
fn history(
    launcher: &Launcher,
    launched: &Launched,
    folder: Option<&Path>,
) -> (LaunchHistory, anyhow::Result<()>) {
    let Some(folder) = folder else { return (launcher.history(launched, None).0, Ok(())) };
    let mut file = match PartialFile::begin(folder, files::TRACE) {
        Ok(file) => file,
        Err(error) => return (launcher.history(launched, None).0, Err(error)),
    };
    let trace: &mut dyn Write = &mut file;
    let (history, written) = launcher.history(launched, Some(trace));
    let written = written.with_context(|| format!("cannot write into {}", folder.display()));
    (history, written.and_then(|()| file.finish()))
}

fn show(answer: &RunReport, out: &mut Output) -> anyhow::Result<()> {
    if out.is_json() {
        out.answer(answer)?;
        return out.finish();
    }
    let terminal = io::stderr().is_terminal();
    let mut page = TextPage::new(output::colour_on(terminal), out.is_quiet());
    page.fit(terminal.then(output::terminal_width));
    match out.is_quiet() {
        true => answer.alarms(&mut page),
        false => answer.page(&mut page),
    }
    output::page_on_stderr(page);
    Ok(())
}
