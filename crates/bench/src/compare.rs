//! Two runs, and whether the second is faster.
//!
//! Runs of different models, sources or machines are not compared unless the user forces it; the
//! differences are named. The best evidence that both runs have is used: repeats, then the
//! frames in `metrics.jsonl` beside the report, then the summaries, with wider intervals.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use plimsoll::files;
use plimsoll::text::one_line;
use plimsoll_infer::source::redact;
use serde::Serialize;
use thiserror::Error;

use crate::measure::FrameLine;
use crate::record::model::label;
use crate::record::{BenchRecord, ModelDescription, ModelRecord, Status};
use crate::stats::verdict::{RUN_TO_RUN, by_frames, by_repeats, by_summary};
use crate::stats::{Judgement, SpeedVerdict};

/// A run that was read from its files.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    /// The report that was read.
    pub path: PathBuf,
    /// Its record.
    pub record: BenchRecord,
    /// Whole latencies in milliseconds by slot, in the order of time; empty without
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

/// One slot, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotComparison {
    /// 0 or 1; slots are compared by their place, whatever model is in them.
    pub slot: usize,
    /// The slot's own name; null for a row.
    pub slot_name: Option<String>,
    /// The model of the second run, or of the first where that has none; null where neither has.
    pub name: Option<String>,
    /// The verdict and its interval; null where there is none.
    pub judgement: Option<Judgement>,
    /// What it is based on; null where there is none.
    pub evidence: Option<CompareEvidence>,
    /// Why there is no verdict; null where there is one.
    pub reason: Option<String>,
    /// Median of the whole in the first run.
    pub p50_ms_a: Option<f64>,
    /// Median of the whole in the second run.
    pub p50_ms_b: Option<f64>,
    /// Peak memory of the first run.
    pub peak_gb_a: Option<f64>,
    /// Peak memory of the second run.
    pub peak_gb_b: Option<f64>,
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
    /// Both slots.
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
        text + &self.verdicts()
    }

    /// One line per slot.
    #[must_use]
    pub fn verdicts(&self) -> String {
        self.slots.iter().map(SlotComparison::text).collect()
    }
}

impl SlotComparison {
    fn text(&self) -> String {
        let label = label(self.slot, self.name.as_deref());
        let name = one_line(&label);
        if let Some(why) = &self.broken {
            return format!("{name}: BROKEN in the second run: {}\n", one_line(why));
        }
        let Some(Judgement { verdict, ratio, interval }) = self.judgement else {
            let why = self.reason.as_deref().unwrap_or("no reason given");
            return format!("{name}: cannot say ({})\n", one_line(why));
        };
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let mark = if self.regression { ": REGRESSION" } else { "" };
        let p50 = |ms: Option<f64>| ms.map_or("–".to_string(), |ms| format!("{ms:.3} ms"));
        format!(
            "{name}: {verdict}{mark} (p50 {} → {}, {:+.1} %, between {:+.1} % and {:+.1} %)\n",
            p50(self.p50_ms_a),
            p50(self.p50_ms_b),
            percent(ratio),
            percent(interval.low),
            percent(interval.high)
        )
    }
}

/// Compares two runs; above 1, or slower, is about the second.
#[must_use]
pub fn compare(a: &RecordedRun, b: &RecordedRun, options: &CompareOptions) -> Comparison {
    let differences = differences(&a.record, &b.record);
    let comparable = differences.is_empty() || options.force;
    let slot = |at: usize| {
        let (model_a, model_b) = (&a.record.models[at], &b.record.models[at]);
        let found = match comparable {
            true => judge(a, b, at, options.run_to_run),
            false => Err("the runs are of different things".to_string()),
        };
        let p50 = |model: &ModelRecord| model.performance.as_ref().map(|p| p.whole.p50_ms);
        let (judgement, evidence, reason) = match found {
            Ok((judgement, evidence)) => (Some(judgement), Some(evidence), None),
            Err(why) => (None, None, Some(why)),
        };
        let slower =
            |j: Judgement| j.verdict == SpeedVerdict::Slower && j.ratio > 1.0 + options.tolerance;
        SlotComparison {
            slot: at,
            slot_name: model_b.slot_name.clone(),
            name: model_b.name.clone().or_else(|| model_a.name.clone()),
            judgement,
            evidence,
            reason,
            p50_ms_a: p50(model_a),
            p50_ms_b: p50(model_b),
            peak_gb_a: model_a.gpu_memory.peak_gb,
            peak_gb_b: model_b.gpu_memory.peak_gb,
            regression: judgement.is_some_and(slower),
            broken: broken(model_a, model_b).filter(|_| comparable),
        }
    };
    let slots = (0..a.record.models.len().min(b.record.models.len())).map(slot).collect();
    Comparison { differences, comparable, slots, tolerance: options.tolerance }
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

fn judge(
    a: &RecordedRun,
    b: &RecordedRun,
    slot: usize,
    run_to_run: f64,
) -> Result<(Judgement, CompareEvidence), String> {
    let performance = |run: &RecordedRun, which: &str| {
        let model = &run.record.models[slot];
        let status = model.status;
        model.performance.clone().ok_or_else(|| format!("{which} run: {status}"))
    };
    let (p, q) = (performance(a, "first")?, performance(b, "second")?);
    if let Some(found) = by_repeats(&p.repeats_p50_ms, &q.repeats_p50_ms) {
        return Ok((found, CompareEvidence::Repeats));
    }
    if let Some(found) = by_frames(&a.frames[slot], &b.frames[slot], run_to_run) {
        return Ok((found, CompareEvidence::Frames));
    }
    let found =
        by_summary(&p.whole, &q.whole, run_to_run).map(|found| (found, CompareEvidence::Summary));
    found.ok_or_else(|| "too few frames: at least 20 are needed".to_string())
}

/// What two runs differ in besides their figures, in words.
fn differences(a: &BenchRecord, b: &BenchRecord) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{what}: {a} in the first run, {b} in the second"));
        }
    };
    let (p, q) = (&a.config, &b.config);
    let option = |value: Option<f64>| value.map_or("none".to_string(), |v| v.to_string());
    check("offered rate", option(p.rate_fps), option(q.rate_fps));
    check("mode", p.mode.clone(), q.mode.clone());
    let turn = |parallel| if parallel { "slots at once" } else { "slots in turn" }.to_string();
    check("order", turn(p.parallel), turn(q.parallel));
    check("thresholds", thresholds(p), thresholds(q));
    let source = |record: &BenchRecord| {
        let streams = record.input_source.streams.iter();
        let names = streams.map(|s| format!("{}={}", s.kind, redact(&s.name)));
        names.collect::<Vec<_>>().join(", ")
    };
    check("source", source(a), source(b));
    for (x, y) in a.models.iter().zip(&b.models) {
        let (slot, Some(x), Some(y)) = (x.slot, &x.model_info, &y.model_info) else { continue };
        let mut check = |what: &str, a: String, b: String| {
            check(&format!("{what} of slot {slot}"), a, b);
        };
        check("input size", size(x), size(y));
        // A path may differ where the file does not.
        let file = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or(path).to_string();
        check("model", file(&x.weights), file(&y.weights));
        check("model size in bytes", x.bytes.to_string(), y.bytes.to_string());
        check("engine", x.engine.clone(), y.engine.clone());
        check("device", x.device.clone(), y.device.clone());
    }
    let machine =
        |r: &BenchRecord| r.metadata.host.clone().unwrap_or_else(|| "unknown".to_string());
    check("machine", machine(a), machine(b));
    found
}

fn size(info: &ModelDescription) -> String {
    info.input_size.map_or("unknown".into(), |[rows, columns]| format!("{rows}x{columns}"))
}

fn thresholds(config: &crate::record::BenchConfig) -> String {
    format!("confidence {}, IoU {}, {} at most", config.conf, config.iou, config.max_det)
}
