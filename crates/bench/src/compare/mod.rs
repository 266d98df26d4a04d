//! Two runs, and whether the second is faster.
//!
//! Runs of different models, sources or machines are not compared unless the user forces it; the
//! differences are named. The best evidence that both runs have is used: repeats, then the
//! frames in `metrics.jsonl` beside the report, then the summaries, with wider intervals. Where
//! that does not decide, `advice` says what would help.
//!
//! Slots are compared by their place, rows by their names.

mod advice;
mod differences;
mod figures;
mod html;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use plimsoll::files;
use plimsoll::text::one_line;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::measure::FrameLine;
use crate::record::{BenchRecord, ModelRecord, SCHEMA_VERSION, Status};
use crate::stats::verdict::{RUN_TO_RUN, by_frames, by_repeats, by_summary};
use crate::stats::{Judgement, SpeedVerdict};
pub use figures::{CompareTone, FigureChange};

/// A run that was read from its files.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    /// The report that was read.
    pub path: PathBuf,
    /// Its record.
    pub record: BenchRecord,
    /// Whole latencies in milliseconds by slot or row, in the order of time; empty without
    /// `metrics.jsonl`.
    pub frames: Vec<Vec<f64>>,
}

/// Why a run could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}; give a report.json or the folder of a run", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a report.
    #[error("{path} is not a report of this form: {source}", path = .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The report has a form of another time.
    #[error("{path} has the form {found} of a report, and {ours} is read here; {remedy}", path = .path.display(), ours = SCHEMA_VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its form.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// The first thing to read of a report.
#[derive(Deserialize)]
struct ReportForm {
    schema_version: String,
}

/// The first number of a form.
fn major(form: &str) -> Option<u32> {
    form.split('.').next()?.parse().ok()
}

/// Whether a report has a form that is read here; text that is no report is for others to refuse.
fn check_form(path: &Path, text: &str) -> Result<(), ReadError> {
    let Ok(ReportForm { schema_version: found }) = serde_json::from_str(text) else {
        return Ok(());
    };
    let remedy = match major(&found).cmp(&major(SCHEMA_VERSION)) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "it is older: measure again with plimsoll bench",
        std::cmp::Ordering::Greater => "it is newer: read it with the program that wrote it",
    };
    Err(ReadError::Version { path: path.to_path_buf(), found, remedy })
}

/// No report of `bench` is larger.
const LARGEST_REPORT: u64 = 64 << 20;
/// No line of `bench` is longer.
const LONGEST_LINE: u64 = 64 << 10;
/// More frames of a slot do not change a verdict.
const MOST_FRAMES: usize = 4 << 20;

impl RecordedRun {
    /// Reads a run: its folder, or its `report.json`.
    pub fn read(path: &Path) -> Result<RecordedRun, ReadError> {
        let in_folder = path.is_dir();
        let path = if in_folder { path.join("report.json") } else { path.to_path_buf() };
        let io = |source| ReadError::Io { path: path.clone(), source };
        let mut text = String::new();
        // Only a plain file is read from a folder; a report that is named may be a pipe.
        let file = if in_folder { files::open(&path) } else { File::open(&path) };
        let file = file.map_err(io)?;
        file.take(LARGEST_REPORT).read_to_string(&mut text).map_err(io)?;
        check_form(&path, &text)?;
        let record: BenchRecord = serde_json::from_str(&text)
            .map_err(|source| ReadError::Form { path: path.clone(), source })?;
        let frames = match files::open(&path.with_file_name("metrics.jsonl")) {
            Ok(file) => read_frames(BufReader::new(file), record.models.len()),
            Err(_) => vec![Vec::new(); record.models.len()],
        };
        Ok(RecordedRun { path: fs::canonicalize(&path).unwrap_or(path), record, frames })
    }
}

/// The measured frames of `metrics.jsonl`, by slot. Other lines, such as the half line of a
/// killed run, are skipped.
fn read_frames(mut lines: impl BufRead, models: usize) -> Vec<Vec<f64>> {
    let mut frames = vec![Vec::new(); models];
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return frames,
            Ok(_) => {}
        }
        let Ok(frame) = serde_json::from_slice::<FrameLine>(&line) else { continue };
        let Some(slot) = frames.get_mut(frame.slot) else { continue };
        if !frame.warmup && frame.whole_ms > 0.0 && slot.len() < MOST_FRAMES {
            slot.push(frame.whole_ms);
        }
    }
}

/// What counts as a regression, and what may be compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompareOptions {
    /// The share by which the second may be slower.
    pub tolerance: f64,
    /// What two starts of one program may differ by; see [`crate::stats::verdict`].
    pub run_to_run: f64,
    /// Compare runs of different things too.
    pub force: bool,
}

impl Default for CompareOptions {
    fn default() -> Self {
        CompareOptions { tolerance: 0.05, run_to_run: RUN_TO_RUN, force: false }
    }
}

/// What a verdict is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareEvidence {
    /// Medians of repeats.
    Repeats,
    /// The latencies of all frames.
    Frames,
    /// The summaries in the reports.
    Summary,
}

/// One slot or row, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotComparison {
    /// Its place in the second run, or in the first where only that has it.
    pub slot: usize,
    /// The slot's own name; null for a row.
    pub slot_name: Option<String>,
    /// The model of the second run, or of the first where that has none; null where neither has.
    pub name: Option<String>,
    /// What it is called.
    pub label: String,
    /// The verdict and its interval; null where there is none.
    pub judgement: Option<Judgement>,
    /// What it is based on; null where there is none.
    pub evidence: Option<CompareEvidence>,
    /// Why there is no verdict; null where there is one.
    pub reason: Option<String>,
    /// What would help where the runs cannot be told apart; null where they can.
    pub advice: Option<String>,
    /// The figures of both runs.
    pub figures: Vec<FigureChange>,
    /// Whether the second is slower beyond the tolerance.
    pub regression: bool,
    /// How the slot ended in the second run, where it failed or did not run although it ran in
    /// the first; null otherwise.
    pub broken: Option<String>,
}

/// Two runs, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What the runs differ in besides their figures.
    pub differences: Vec<String>,
    /// Whether they may be compared: no differences, or forced.
    pub comparable: bool,
    /// The two slots, or all rows.
    pub slots: Vec<SlotComparison>,
    /// The tolerance.
    pub tolerance: f64,
}

impl Comparison {
    /// Whether any slot is slower beyond the tolerance: exit code 1.
    #[must_use]
    pub fn regression(&self) -> bool {
        self.slots.iter().any(|slot| slot.regression)
    }

    /// Whether any slot failed in the second run, or did not run there: exit code 1.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.slots.iter().any(|slot| slot.broken.is_some())
    }

    /// The comparison in words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for difference in &self.differences {
            text += &format!("different {}\n", one_line(difference));
        }
        if !self.comparable {
            text += "cannot compare: the runs are of different things (--force compares anyway)\n";
        }
        for slot in &self.slots {
            text += &slot.line();
            let advice = slot.advice.as_deref().map(one_line);
            text += &advice.map_or(String::new(), |advice| format!("  {advice}\n"));
        }
        text
    }

    /// One line per slot.
    #[must_use]
    pub fn verdicts(&self) -> String {
        self.slots.iter().map(SlotComparison::line).collect()
    }
}

impl SlotComparison {
    /// Which way it went, and what the eye should see it as.
    #[must_use]
    pub fn tone(&self) -> CompareTone {
        match self.judgement.map(|judgement| judgement.verdict) {
            _ if self.broken.is_some() || self.regression => CompareTone::Worse,
            Some(SpeedVerdict::Faster) => CompareTone::Better,
            Some(SpeedVerdict::Slower) => CompareTone::Unsure,
            Some(SpeedVerdict::CannotSay) | None => CompareTone::Unsure,
        }
    }

    /// The verdict in a line.
    #[must_use]
    pub fn verdict(&self) -> String {
        if let Some(why) = &self.broken {
            return format!("BROKEN in the second run: {}", one_line(why));
        }
        let Some(Judgement { verdict, ratio, interval }) = self.judgement else {
            let why = self.reason.as_deref().unwrap_or("no reason given");
            return format!("cannot say ({})", one_line(why));
        };
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let mark = if self.regression { ": REGRESSION" } else { "" };
        let p50 = self.figures.iter().find(|change| change.name == "p50");
        let side = |of: fn(&FigureChange) -> Option<f64>| {
            p50.and_then(of).map_or("–".to_string(), |ms| format!("{ms:.3} ms"))
        };
        format!(
            "{verdict}{mark} (p50 {} → {}, {:+.1} %, between {:+.1} % and {:+.1} %)",
            side(|change| change.a),
            side(|change| change.b),
            percent(ratio),
            percent(interval.low),
            percent(interval.high)
        )
    }

    fn line(&self) -> String {
        format!("{}: {}\n", one_line(&self.label), self.verdict())
    }
}

/// The places of what is compared, in the first and in the second run.
type PairPlaces = (Option<usize>, Option<usize>);

/// Which model of the first run is compared with which of the second: slots by their place, rows
/// by their names.
fn pairs(a: &BenchRecord, b: &BenchRecord) -> Vec<PairPlaces> {
    if a.has_slots() && b.has_slots() {
        return (0..a.models.len()).map(|slot| (Some(slot), Some(slot))).collect();
    }
    let of_b = |one: &ModelRecord| b.models.iter().position(|other| other.label() == one.label());
    let mut all: Vec<PairPlaces> =
        a.models.iter().enumerate().map(|(at, one)| (Some(at), of_b(one))).collect();
    let taken: Vec<usize> = all.iter().filter_map(|(_, at)| *at).collect();
    let rest = (0..b.models.len()).filter(|at| !taken.contains(at));
    all.extend(rest.map(|at| (None, Some(at))));
    all
}

/// Compares two runs; above 1, or slower, is about the second.
#[must_use]
pub fn compare(a: &RecordedRun, b: &RecordedRun, options: &CompareOptions) -> Comparison {
    let pairs = pairs(&a.record, &b.record);
    let differences = differences::differences(&a.record, &b.record, &pairs);
    let comparable = differences.is_empty() || options.force;
    let slots = pairs
        .into_iter()
        .filter_map(|pair| compare_pair(a, b, pair, options, comparable))
        .collect();
    Comparison { differences, comparable, slots, tolerance: options.tolerance }
}

fn compare_pair(
    a: &RecordedRun,
    b: &RecordedRun,
    pair: PairPlaces,
    options: &CompareOptions,
    comparable: bool,
) -> Option<SlotComparison> {
    let model_a = pair.0.and_then(|at| a.record.models.get(at));
    let model_b = pair.1.and_then(|at| b.record.models.get(at));
    let shown = model_b.or(model_a)?;
    let found = match (comparable, pair) {
        (true, (Some(x), Some(y))) => judge((a, x), (b, y), options.run_to_run),
        (true, (Some(_), None)) => Err("it is only in the first run".to_string()),
        (true, _) => Err("it is only in the second run".to_string()),
        (false, _) => Err("the runs are of different things".to_string()),
    };
    let (judgement, evidence, reason) = match found {
        Ok((judgement, evidence)) => (Some(judgement), Some(evidence), None),
        Err(why) => (None, None, Some(why)),
    };
    let slower =
        |j: Judgement| j.verdict == SpeedVerdict::Slower && j.ratio > 1.0 + options.tolerance;
    let both = model_a.zip(model_b);
    let advice = both
        .filter(|_| comparable)
        .and_then(|(x, y)| advice::advice(judgement, evidence, (&a.record, x), (&b.record, y)));
    Some(SlotComparison {
        slot: shown.slot,
        slot_name: shown.slot_name.clone(),
        name: shown.name.clone().or_else(|| model_a?.name.clone()),
        label: both.map_or_else(|| shown.label(), |(x, y)| label_of(x, y)),
        judgement,
        evidence,
        reason,
        advice,
        figures: figures::changes(model_a, model_b, judgement, options.tolerance),
        regression: judgement.is_some_and(slower),
        broken: both.and_then(|(x, y)| broken(x, y)).filter(|_| comparable),
    })
}

/// The name of a pair: that of the second run, or of the first where the slot of the second has no
/// model.
fn label_of(a: &ModelRecord, b: &ModelRecord) -> String {
    if b.name.is_none() && b.row.is_none() { a.label() } else { b.label() }
}

/// How a slot ended in the second run, where it failed or has no figures although the first run
/// has some.
fn broken(a: &ModelRecord, b: &ModelRecord) -> Option<String> {
    let lost = a.performance.is_some() && b.performance.is_none();
    (b.status == Status::Failed || lost).then(|| {
        let why = b.reason.as_deref().map_or(String::new(), |why| format!(": {why}"));
        format!("{}{why}", b.status)
    })
}

/// Judges a slot of each run by the best evidence that both have.
fn judge(
    (a, at_a): (&RecordedRun, usize),
    (b, at_b): (&RecordedRun, usize),
    run_to_run: f64,
) -> Result<(Judgement, CompareEvidence), String> {
    let performance = |run: &RecordedRun, at: usize, which: &str| {
        let model = &run.record.models[at];
        let status = model.status;
        model.performance.clone().ok_or_else(|| format!("{which} run: {status}"))
    };
    let (p, q) = (performance(a, at_a, "first")?, performance(b, at_b, "second")?);
    if let Some(found) = by_repeats(&p.repeats_p50_ms, &q.repeats_p50_ms) {
        return Ok((found, CompareEvidence::Repeats));
    }
    if let Some(found) = by_frames(&a.frames[at_a], &b.frames[at_b], run_to_run) {
        return Ok((found, CompareEvidence::Frames));
    }
    let found =
        by_summary(&p.whole, &q.whole, run_to_run).map(|found| (found, CompareEvidence::Summary));
    found.ok_or_else(|| "too few frames: at least 20 are needed".to_string())
}
