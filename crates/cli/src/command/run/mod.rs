//! `plimsoll run`: any program under the line.
//!
//! The guard ([`plimsoll_guard`]) is carried inside this program. It is unpacked into a
//! folder of the user's own, the program is started with it, and this process stays as its
//! parent: it passes signals on, looks now and then for children that the guard does not
//! reach, waits, and reports. What is held to the line is held by the guard; nothing here
//! lies on the way of an allocation.
//!
//! The program's streams are its own. What there is to say goes to stderr, as `time` does;
//! with `--json` the answer has stdout for itself, and the program's own output goes to
//! stderr.

mod answer;
pub(super) mod child;
mod events;
mod files;
mod flags;
pub(super) mod folder;
mod html;
mod page;
pub(super) mod reach;
mod signals;
mod stacks;
pub(super) mod sys;
mod tree;
mod warnings;

use std::path::Path;

use plimsoll_guard::inside::Inside;
use plimsoll_guard::watch::Watch;

use crate::outcome::Outcome;
use crate::output::{self, Answer, Output};
use crate::page::Page;

pub(crate) use flags::{Args, KEEP_FREE, RESERVE};

/// Exit codes of our own, as `env` and `timeout` have them.
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
    if Inside::find().is_ok() {
        // Two lists of counters cannot both be the program's, and the outer line is the law.
        anyhow::bail!(
            "this runs under `plimsoll run` already, whose line holds the whole tree; start the program without another `run`"
        );
    }
    let line = args.line()?;
    let reach = reach::of(&args.program);
    if let (true, Some(why)) = (args.strict, &reach.why_not) {
        anyhow::bail!("{why}; without --strict it would run without the line");
    }
    args.report.as_deref().map_or(Ok(()), files::prepare)?;
    let folder = folder::make()?;
    let watch = Watch::create(folder.path(), &line.settings)?;
    if !out.is_quiet() {
        line.notes
            .iter()
            .chain(&reach.why_not)
            .for_each(|note| output::note(&format!("plimsoll: {note}")));
    }
    let ended = match child::run(args, &line, &folder, &watch, out.is_json()) {
        Ok(ended) => ended,
        Err(problem) => {
            let name = Path::new(&args.program[0]);
            let hint = reach::hint(name).map_or_else(String::new, |hint| format!(": {hint}"));
            let text = format!("cannot run {}{hint}", name.display());
            let error = anyhow::Error::from(problem.error).context(text);
            output::failure(&error, out.is_json());
            return Ok(problem.code);
        }
    };
    sys::outlive_large_files();
    let answer = answer::collect(args, &line, &reach, &watch, &ended)?;
    if ended.left_behind > 0 {
        // What they start looks for the guard there. A later run removes it.
        let _ = folder.into_paths();
    }
    let written = args.report.as_deref().map(|folder| files::write(&answer, folder));
    show(&answer, out)?;
    if let (Some(folder), Some(written)) = (&args.report, written) {
        written?;
        if !out.is_quiet() && !out.is_json() {
            output::note(&format!("plimsoll: report in {}", folder.join("report.html").display()));
        }
    }
    Ok(if answer.is_held(args.strict) { ended.code } else { FAILED })
}

fn show(answer: &answer::Report, out: &mut Output) -> anyhow::Result<()> {
    if out.is_json() {
        out.answer(answer)?;
        return out.finish();
    }
    let mut page = Page::new(output::colour_on(sys::stderr_is_terminal()), out.is_quiet());
    match out.is_quiet() {
        true => answer.alarms(&mut page),
        false => answer.page(&mut page),
    }
    let text = page.into_text();
    if !text.is_empty() {
        output::note(&text);
    }
    Ok(())
}
