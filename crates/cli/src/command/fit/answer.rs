//! What fits, for programs and people.

use plimsoll::Bytes;
use serde::Serialize;

use super::kept::TryRecord;
use super::search::FitRange;
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone};

/// A value of what is varied: a number, or the name of a type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum FitValue {
    Number(u64),
    Name(String),
}

impl std::fmt::Display for FitValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FitValue::Number(number) => number.fmt(f),
            FitValue::Name(name) => f.write_str(name),
        }
    }
}

/// The largest setting that fits, and how that is known.
#[derive(Debug, Serialize)]
pub(super) struct FitAnswer {
    /// `estimated` from a model file, or `tried` with a program.
    pub(super) how: &'static str,
    pub(super) vary: String,
    /// Null where none fits, or where it cannot be known.
    pub(super) largest: Option<FitValue>,
    /// The next one, which does not; null where the values end before.
    pub(super) smallest_failed: Option<FitValue>,
    /// The upper end of its estimate; null for what was tried.
    pub(super) smallest_failed_bytes: Option<u64>,
    /// What the largest takes: its counted peak, or the upper end of its estimate.
    pub(super) largest_bytes: Option<u64>,
    pub(super) limit_bytes: u64,
    pub(super) reserve_bytes: u64,
    pub(super) reserve_reason: String,
    /// Why there is no answer, or what ended the search where that was not memory.
    pub(super) why: Option<String>,
    /// The command line for the largest, to paste.
    pub(super) command: Option<String>,
    pub(super) notes: Vec<String>,
    pub(super) estimate: Option<FitEstimate>,
    pub(super) proof: Option<FitProof>,
}

/// The estimate of the largest.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FitEstimate {
    pub(super) file: String,
    pub(super) engine: &'static str,
    pub(super) total_bytes: u64,
    pub(super) low_bytes: u64,
    pub(super) high_bytes: u64,
    /// Whether models of this kind were measured, and where.
    pub(super) checked: bool,
    pub(super) basis: String,
    /// What would fit if the estimate were exact.
    pub(super) likely_largest: Option<FitValue>,
    /// The largest for which PyTorch need not free its cache on the way; null where not even the
    /// smallest is.
    pub(super) cached_largest: Option<FitValue>,
}

/// How a program was tried.
#[derive(Debug, Serialize)]
pub(super) struct FitProof {
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) step: u64,
    pub(super) guess: Option<u64>,
    /// In the order in which they were made.
    pub(super) tries: Vec<TryRecord>,
    /// How many of them this call made.
    pub(super) runs: usize,
    /// Where the results are kept; null where they are not.
    pub(super) kept_in: Option<String>,
    /// What says nothing about memory, where it ended the search.
    pub(super) failure: Option<TryFailure>,
    pub(super) interrupted: bool,
}

/// A try that did not show whether it fits.
#[derive(Debug, Serialize)]
pub(super) struct TryFailure {
    pub(super) value: u64,
    pub(super) why: String,
    pub(super) exit_code: u8,
    pub(super) signal: Option<i32>,
    /// The end of what the program printed.
    pub(super) output: String,
}

impl Answer for FitAnswer {
    fn page(&self, page: &mut TextPage) {
        if let Some(proof) = &self.proof {
            proof.page(page, self);
        }
        self.verdict(page);
        for note in &self.notes {
            page.advice(&format!("note: {note}"));
        }
        if let Some(command) = &self.command {
            page.raw("\n");
            let line = |line| page.unbroken(&format!("  {line}"), TextTone::Plain);
            command.lines().for_each(line);
        }
        if let Some(kept) = self.proof.as_ref().and_then(|proof| proof.kept_in.as_ref()) {
            page.raw("\n");
            page.advice(&format!("results are kept in {kept}; --forget tries all anew"));
        }
    }

    fn bare(&self, page: &mut TextPage) {
        match (&self.largest, &self.why) {
            (Some(largest), _) => page.line(&largest.to_string()),
            (None, Some(why)) => page.line(why),
            (None, None) => {}
        }
    }
}

impl FitAnswer {
    fn verdict(&self, page: &mut TextPage) {
        let limit = Bytes(self.limit_bytes);
        let row = |name: &str, value: String, note: &str| {
            vec![name.into(), TextCell::from(value), TextCell::new(note, TextTone::Faint)]
        };
        let is_tried = self.proof.is_some();
        let mut rows = Vec::new();
        if let Some(largest) = &self.largest {
            let name = format!("largest {} that {}", self.vary, ran_or_fits(is_tried));
            let bytes = self.largest_bytes.map(Bytes);
            let note = match (is_tried, bytes) {
                (true, Some(peak)) => format!("peak {peak}, counted"),
                (false, Some(high)) => format!("it may take up to {high}"),
                (_, None) => String::new(),
            };
            rows.push(row(&name, largest.to_string(), &note));
        }
        if let Some(failed) = &self.smallest_failed {
            let name = if is_tried { "smallest that failed" } else { "next that may not" };
            let bytes = self.smallest_failed_bytes.map(Bytes);
            let note = bytes.map_or_else(String::new, |high| format!("it may take up to {high}"));
            rows.push(row(name, failed.to_string(), &note));
        }
        if let Some(estimate) = self.estimate.as_ref().filter(|_| !is_tried) {
            let ends = [estimate.low_bytes, estimate.total_bytes, estimate.high_bytes];
            let [low, total, high] = ends.map(Bytes);
            let said = if estimate.checked { "checked" } else { "not checked" };
            let note = format!("{low} to {high}; {said}: {}", estimate.basis);
            rows.push(row("estimate", total.to_string(), &note));
            if let Some(likely) = &estimate.likely_largest {
                rows.push(row("if it is exact", likely.to_string(), "would fit; try it to know"));
            }
            if estimate.cached_largest != self.largest {
                let cached = estimate.cached_largest.as_ref();
                let note = "above it PyTorch frees its cache on the way, which costs time";
                let value = cached.map_or_else(|| "none".to_string(), FitValue::to_string);
                rows.push(row("without pressure", value, note));
            }
        }
        rows.push(row("limit", limit.to_string(), ""));
        rows.push(row("kept free", Bytes(self.reserve_bytes).to_string(), &self.reserve_reason));
        page.table(&rows);
        if let Some(why) = &self.why {
            let tone = if self.largest.is_some() { TextTone::Plain } else { TextTone::Doubt };
            page.toned(&format!("  {why}"), tone);
        }
    }
}

fn ran_or_fits(is_tried: bool) -> &'static str {
    if is_tried { "ran" } else { "fits" }
}

impl FitProof {
    fn page(&self, page: &mut TextPage, answer: &FitAnswer) {
        if let Ok(range) = FitRange::new(self.low, self.high, self.step) {
            page.heading(&format!("{} {range}, each tried under the limit", answer.vary));
        }
        let rows: Vec<_> = self.tries.iter().map(|record| try_row(&answer.vary, record)).collect();
        page.table(&rows);
        if let Some(failure) = &self.failure {
            page.table(&[vec![
                format!("{} {}", answer.vary, failure.value).into(),
                TextCell::new("not known", TextTone::Doubt),
            ]]);
            if !failure.output.trim().is_empty() {
                page.raw("\n");
                let lines: Vec<&str> = failure.output.trim_end().lines().collect();
                let first = lines.len().saturating_sub(SHOWN_LINES);
                for line in &lines[first..] {
                    page.unbroken(&format!("  | {line}"), TextTone::Plain);
                }
            }
        }
        page.raw("\n");
    }
}

/// How many lines of a program's output are shown; JSON has more.
const SHOWN_LINES: usize = 20;

fn try_row(vary: &str, record: &TryRecord) -> Vec<TextCell> {
    let how = match record.ran {
        true => TextCell::new("ran", TextTone::Good),
        false => TextCell::new("failed", TextTone::Doubt),
    };
    let requests = match record.refused {
        1 => "1 request".to_string(),
        n => format!("{n} requests"),
    };
    let bytes = Bytes(record.refused_bytes);
    let mut note = match (record.ran, record.refused) {
        (true, 0) => String::new(),
        (true, _) => format!("{requests} for {bytes} refused; the program went on"),
        (false, 0) => "the driver itself took memory past the limit".to_string(),
        (false, _) => format!("{requests} for {bytes} refused; exit code {}", record.exit_code),
    };
    if record.kept {
        note = if note.is_empty() { "kept".to_string() } else { format!("kept; {note}") };
    }
    vec![
        format!("{vary} {}", record.value).into(),
        how,
        TextCell::figure(record.peak_bytes.map(Bytes)),
        TextCell::figure(Some(format!("{:.1} s", record.seconds))),
        TextCell::new(note, TextTone::Faint),
    ]
}
