//! `run.log`: what the run was asked to do, every warning and every violation, each with its
//! time and level, and what the libraries logged meanwhile.
//!
//! Violations and skipped frames also go to the program's log, under [`TARGET`], so that whoever
//! collects what libraries log ([`Logged`]) can leave them out: they are in the file already.

use std::fmt;
use std::time::SystemTime;

use super::progress::BenchProgress;
use super::recorder::Recorder;
use crate::record::model;

/// The target of events that are in `run.log` already.
pub const TARGET: &str = "plimsoll_bench::run_log";

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Something went wrong, or the limit was passed.
    Error,
    /// A figure may say less than it seems to.
    Warn,
    /// What was done.
    #[default]
    Info,
    /// How it was done.
    Debug,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
        })
    }
}

/// A line that a library logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// When.
    pub time: SystemTime,
    /// How much it matters.
    pub level: Level,
    /// What it says.
    pub text: String,
}

/// Collects what libraries log while a run lasts; the program puts one in.
pub trait Logged: fmt::Debug + Send + Sync {
    /// The lines since the last call.
    fn drain(&self) -> Vec<LogLine>;
}

impl Recorder<'_> {
    /// A line of `run.log`.
    pub(super) fn log(&mut self, progress: &mut dyn BenchProgress, level: Level, text: &str) {
        if level > self.plan.log_level {
            return;
        }
        self.write_log(progress, SystemTime::now(), level, text);
    }

    /// A frame that could not be used.
    pub(super) fn skipped(&mut self, progress: &mut dyn BenchProgress, slot: usize, why: &str) {
        let text = format!("{}: skipped {why}", self.title(slot));
        tracing::warn!(target: TARGET, "{text}");
        self.log(progress, Level::Warn, &text);
    }

    /// What was done.
    pub(super) fn say(&mut self, progress: &mut dyn BenchProgress, text: &str) {
        self.log(progress, Level::Info, text);
    }

    /// How the run was asked for, in a line a subject.
    pub(super) fn log_config(&mut self, progress: &mut dyn BenchProgress) {
        let command = self.plan.command_line.join(" ");
        self.say(progress, &format!("command: {command}"));
        let config = serde_json::to_string(&self.config()).unwrap_or_default();
        self.say(progress, &format!("config: {config}"));
        for stream in self.streams.records() {
            let slots: Vec<String> = stream.slots.iter().map(ToString::to_string).collect();
            let text = format!("source: {} for slot {}", stream.name, slots.join(" and "));
            self.say(progress, &text);
        }
        let safety = self.safety();
        self.say(
            progress,
            &format!(
                "limit: {:.3} GiB, effective {:.3} GiB, profile {}, type {}, verified {}, by {:?}",
                safety.limit_gb,
                safety.effective_limit_gb,
                safety.profile.as_deref().unwrap_or("none"),
                safety.limit_type,
                safety.verified,
                safety.methods_applied
            ),
        );
        self.log_warnings(progress);
    }

    /// The warnings that were not logged yet.
    pub(super) fn log_warnings(&mut self, progress: &mut dyn BenchProgress) {
        for warning in self.safety().warnings {
            if !self.warned.contains(&warning) {
                self.log(progress, Level::Warn, &warning);
                self.warned.push(warning);
            }
        }
    }

    /// What libraries have logged since the last time.
    pub(super) fn log_libraries(&mut self, progress: &mut dyn BenchProgress) {
        let lines = self.plan.logged.as_ref().map(|logged| logged.drain());
        for LogLine { time, level, text } in lines.into_iter().flatten() {
            // A library's warning may be one of ours that came back to us.
            if !self.warned.contains(&text) {
                self.write_log(progress, time, level, &text);
            }
        }
    }

    /// The model of a slot, after its file.
    pub(super) fn name(&self, slot: usize) -> Option<String> {
        let ran = self.pages[slot].description.as_ref().map(|info| info.weights.clone());
        let chosen = || self.layout.slots[slot].weights().map(plimsoll_infer::ModelSource::name);
        let given = || self.plan.models[slot].as_ref().map(|path| path.display().to_string());
        let path = ran.or_else(chosen).or_else(given)?;
        Some(path.rsplit(['/', '\\']).next().unwrap_or(&path).to_string())
    }

    /// A slot and its model, in words.
    pub(super) fn title(&self, slot: usize) -> String {
        model::label(slot, self.name(slot).as_deref())
    }
}
