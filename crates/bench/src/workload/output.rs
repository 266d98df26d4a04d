//! The files of a run, and the user who is told about it while it goes on.
//!
//! Metrics, the log and detections are appended by whole lines; the reports are replaced as a
//! whole. A write error, such as a full disk, does not stop the run, because the results can
//! still be shown. The user is warned once, and it becomes a doubt in the record.

use std::path::Path;
use std::time::SystemTime;

use plimsoll_infer::source::redact;
use serde::Serialize;

use super::BenchError;
use super::log::{Level, LogLine, TARGET};
use super::plan::BenchPlan;
use super::progress::BenchProgress;
use crate::doubt::Doubt;
use crate::record::time::rfc3339;
use crate::record::{BenchRecord, DoubtRecord};
use crate::report::Rendered;
use crate::report::files::{FilesError, Journal, ReportWritten, RunFolder};
use crate::report::html::Picture;

/// The files of a run, and the user.
pub(super) struct RunOutput<'a> {
    plan: &'a BenchPlan,
    pub(super) progress: &'a mut dyn BenchProgress,
    pub(super) folder: RunFolder,
    metrics: Journal,
    log: Journal,
    detections: Option<Journal>,
    /// Warnings that are in the log already.
    warned: Vec<String>,
    /// What could not be written.
    failures: Vec<DoubtRecord>,
    /// Whether a file that the plan asks for by name is among that.
    asked_lost: bool,
}

impl<'a> RunOutput<'a> {
    /// Makes the folder and opens the files.
    pub(super) fn create(
        plan: &'a BenchPlan,
        started: SystemTime,
        progress: &'a mut dyn BenchProgress,
    ) -> Result<RunOutput<'a>, BenchError> {
        let folder = RunFolder::create(&plan.output_dir, plan.run_name.as_deref(), started)?;
        let detections = plan.detections.as_deref().map(emptied).transpose().inspect_err(|_| {
            // There is no run, so there must be no folder of one.
            drop(std::fs::remove_dir(folder.path()));
        })?;
        Ok(RunOutput {
            plan,
            progress,
            metrics: folder.metrics()?,
            log: folder.log()?,
            folder,
            detections,
            warned: Vec::new(),
            failures: Vec::new(),
            asked_lost: false,
        })
    }

    /// Appends a line to `run.log`, unless the plan wants only more severe ones.
    pub(super) fn log(&mut self, level: Level, text: &str) {
        if level <= self.plan.log_level {
            self.append_log(SystemTime::now(), level, text);
        }
    }

    /// Logs what the run did.
    pub(super) fn info(&mut self, text: &str) {
        self.log(Level::Info, text);
    }

    /// Logs a violation, also for the program.
    pub(super) fn violation(&mut self, text: &str) {
        tracing::error!(target: TARGET, "{text}");
        self.log(Level::Error, text);
    }

    /// Logs a frame that could not be used, also for the program.
    pub(super) fn skipped(&mut self, text: &str) {
        tracing::warn!(target: TARGET, "{text}");
        self.log(Level::Warn, text);
    }

    /// Logs an engine's full messages, each line as a line.
    pub(super) fn full_messages(&mut self, title: &str, said: &[String]) {
        for line in said.iter().flat_map(|said| said.lines()) {
            self.info(&format!("{title}: in full: {line}"));
        }
    }

    /// Logs the warnings that are not in the log yet.
    pub(super) fn warn_once(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.warned.contains(&warning) {
                self.log(Level::Warn, &warning);
                self.warned.push(warning);
            }
        }
    }

    /// Logs what libraries have logged since the last call.
    pub(super) fn library_messages(&mut self) {
        let lines = self.plan.logged.as_ref().map(|logged| logged.drain());
        for LogLine { time, level, text } in lines.into_iter().flatten() {
            // A library may repeat a warning that was written here before.
            if !self.warned.contains(&text) {
                self.append_log(time, level, &text);
            }
        }
    }

    fn append_log(&mut self, time: SystemTime, level: Level, text: &str) {
        let done = self.log.line(&format!("{} {level:<5} {}", rfc3339(time), redact(text)));
        self.check(done);
    }

    /// Appends a line to `metrics.jsonl`.
    pub(super) fn metric(&mut self, line: &impl Serialize) {
        let done = self.metrics.json(line);
        self.check(done);
    }

    /// Whether detections are wanted.
    pub(super) fn wants_detections(&self) -> bool {
        self.detections.is_some()
    }

    /// Appends the detections of a frame, where they are wanted.
    pub(super) fn detections(&mut self, line: &impl Serialize) {
        let done = self.detections.as_mut().map_or(Ok(()), |journal| journal.json(line));
        self.check_asked(done);
    }

    /// Writes the rest of the detections.
    pub(super) fn close_detections(&mut self) {
        let done = self.detections.as_mut().map_or(Ok(()), Journal::flush);
        self.check_asked(done);
    }

    /// Writes every report. Returns whether all were written.
    pub(super) fn reports(&mut self, record: &BenchRecord, pictures: &[Picture]) -> bool {
        let written = match Rendered::new(record, pictures) {
            Ok(rendered) => self.folder.write(&rendered),
            Err(error) => {
                let text = format!("the report cannot be rendered: {error}");
                self.progress.warning(&text);
                self.log(Level::Error, &text);
                Ok(ReportWritten::Not)
            }
        };
        match written {
            Ok(written) => written == ReportWritten::Whole,
            Err(error) => {
                self.check(Err(error));
                false
            }
        }
    }

    /// Writes the lines that were gathered. Returns whether that failed for the first time.
    pub(super) fn flush(&mut self) -> bool {
        let before = self.failures.len();
        let done = self.metrics.flush();
        self.check(done);
        let done = self.log.flush();
        self.check(done);
        self.failures.len() > before
    }

    /// What could not be written.
    pub(super) fn failures(&self) -> &[DoubtRecord] {
        &self.failures
    }

    /// Tells the user what could not be written, and keeps it as a doubt.
    fn check(&mut self, done: Result<(), FilesError>) {
        if let Err(error) = done {
            self.lost(error.to_string());
        }
    }

    fn check_asked(&mut self, done: Result<(), FilesError>) {
        if let Err(error) = done {
            self.asked_lost(error.to_string());
        }
    }

    /// Whether every file that the plan asks for by name was written so far.
    pub(super) fn is_complete(&self) -> bool {
        !self.asked_lost
    }

    /// The same for what another part of the run could not write of what the plan asks for.
    pub(super) fn asked_lost(&mut self, why: String) {
        self.asked_lost = true;
        self.lost(why);
    }

    fn lost(&mut self, why: String) {
        self.progress.warning(&why);
        self.log(Level::Error, &why);
        self.failures.push(DoubtRecord::new(None, Doubt::OutputIncomplete { why }));
    }
}

/// A file for detections, emptied if it was there.
fn emptied(path: &Path) -> Result<Journal, BenchError> {
    std::fs::File::create(path).map_err(|e| {
        BenchError::Plan(format!("cannot write --detections {}: {e}", path.display()))
    })?;
    Ok(Journal::of_flag(path, "--detections")?)
}
