//! `plimsoll run`: any program under a limit.
//!
//! The guard ([`plimsoll_guard`]) is carried inside this program. It is unpacked into a
//! folder of the user's own, the program is started with it, and this process stays as its
//! parent: it passes signals on, looks now and then for children that the guard does not
//! reach and takes in what those leave that have ended, waits, and reports. What is held to the
//! limit is held by the guard; nothing here
//! lies on the way of an allocation.
//!
//! The program's streams are its own. What there is to say goes to stderr, as `time` does;
//! with `--json` the answer has stdout for itself, and the program's own output goes to
//! stderr.

mod answer;
pub(super) mod child;
mod course;
mod events;
mod files;
mod flags;
pub(super) mod folder;
mod gather;
mod html;
mod job;
mod order;
mod page;
pub(super) mod reach;
mod signals;
mod stacks;
pub(super) mod sys;
mod trace;
mod tree;
mod warnings;

use std::path::Path;

use answer::Facts;
use anyhow::Context;
use files::Unfinished;
use plimsoll_guard::client::GuardClient;
use plimsoll_guard::watch::GuardWatch;

use crate::outcome::Outcome;
use crate::output::{self, Answer, Output};
use crate::page::Page;

use trace::Trace;

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
    if GuardClient::find().is_ok() {
        // Two lists of counters cannot both be the program's, and the outer limit is the law.
        anyhow::bail!(
            "this runs under `plimsoll run` already, whose limit holds the whole tree; start the program without another `run`"
        );
    }
    let line = args.line()?;
    let reach = reach::of(&args.program);
    if let (true, Some(why)) = (args.strict, &reach.why_not) {
        anyhow::bail!("{why}; without --strict it would run without the limit");
    }
    args.report.as_deref().map_or(Ok(()), files::prepare)?;
    let folder = folder::make()?;
    let watch = GuardWatch::create(folder.path(), &line.settings)?;
    if !out.is_quiet() {
        line.notes
            .iter()
            .chain(&reach.why_not)
            .for_each(|note| output::note(&format!("plimsoll: {note}")));
    }
    let (ended, gathered) = match child::run(args, &line, &folder, &watch, out.is_json()) {
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
    let (line, reach, watch) = (&line, &reach, &watch);
    let facts = Facts { args, line, reach, watch, ended: &ended, gathered: &gathered };
    let (answer, written) = report(&facts);
    if ended.left_behind > 0 {
        // What they start looks for the guard there. A later run removes it.
        let _ = folder.into_paths();
    }
    show(&answer, out)?;
    written?;
    if let Some(folder) = args.report.as_ref().filter(|_| !out.is_quiet() && !out.is_json()) {
        output::note(&format!("plimsoll: report in {}", folder.join("report.html").display()));
    }
    Ok(if answer.is_held(args.strict) { ended.code } else { FAILED })
}

/// What became of the run, and whether its files could be written: an answer that is there is
/// shown also where they could not.
fn report(facts: &Facts<'_>) -> (answer::Report, anyhow::Result<()>) {
    let Some(folder) = facts.args.report.as_deref() else {
        return (answer::collect(facts, &mut Trace::new(None)), Ok(()));
    };
    let mut file = match Unfinished::begin(folder, "trace.csv") {
        Ok(file) => file,
        Err(error) => return (answer::collect(facts, &mut Trace::new(None)), Err(error)),
    };
    let mut trace = Trace::new(Some(&mut file));
    let answer = answer::collect(facts, &mut trace);
    let written = trace.finish().with_context(|| format!("cannot write into {}", folder.display()));
    let written = written.and_then(|()| file.finish()).and_then(|()| files::write(&answer, folder));
    (answer, written)
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
