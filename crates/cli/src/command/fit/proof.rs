//! Proves what fits: runs the program under the guard at one value after the other.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll::{Bytes, text};

use super::RESERVE_REASON;
use super::answer::{FitAnswer, FitEstimate, FitProof, FitValue, TryFailure};
use super::attempt::{AttemptEnd, AttemptResult, FitAttempt};
use super::kept::{KeptTries, TryConditions, TryRecord};
use super::search::{FitRange, FitSearch, NextTry, SearchPoint};
use super::vary::VaryFlag;
use crate::outcome::Outcome;
use crate::output::{self, Output};
use crate::shell::quoted;
use crate::stop;

/// A program whose largest value is to be found.
#[derive(Debug)]
pub(super) struct ProofRequest<'a> {
    pub(super) words: &'a [OsString],
    pub(super) vary: &'a VaryFlag,
    pub(super) range: FitRange,
    pub(super) guess: Option<u64>,
    /// Where the guess is from, if a model was named.
    pub(super) estimate: Option<FitEstimate>,
    pub(super) limit: Bytes,
    pub(super) reserve: Bytes,
    pub(super) timeout: Duration,
    pub(super) forget: bool,
}

/// What ended a search before it found its answer.
enum SearchCut {
    Failure(TryFailure),
    Interrupted,
}

/// Tries values until the largest is found.
pub(super) fn run(request: &ProofRequest<'_>, out: &mut Output) -> anyhow::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    stop::listen_each_time(&stop)?;
    let conditions =
        TryConditions::of(request.words, &request.vary.name, request.limit, request.reserve);
    let kept = KeptTries::of(conditions);
    let mut notes = Vec::new();
    let known = known(request, &kept, &mut notes)?;
    let of_range = |record: &TryRecord| request.range.has(record.value);
    let (mut tries, others): (Vec<_>, Vec<_>) = known.into_iter().partition(of_range);
    let cut = loop {
        match request.search(&tries, &points(&tries)).next() {
            NextTry::Found { .. } => break None,
            NextTry::Value(value) => {
                say_begin(request, &tries, value, out);
                let result = request.attempt(value, &stop)?;
                add_warnings(&mut notes, &result);
                match result.end {
                    AttemptEnd::Ran | AttemptEnd::TooLarge => tries.push(record(value, &result)),
                    AttemptEnd::Stopped => break Some(SearchCut::Interrupted),
                    AttemptEnd::Unknown(_) => break Some(failure(value, result)),
                }
                if let Err(error) = kept.write(&[&tries[..], &others].concat()) {
                    add(&mut notes, format!("{error:#}"));
                }
            }
        }
        if stop.load(Ordering::Relaxed) {
            break Some(SearchCut::Interrupted);
        }
    };
    let answer = answer(request, tries, cut, &kept, notes);
    out.answer(&answer)?;
    Ok(match &answer.proof {
        Some(proof) if proof.interrupted => Outcome::Code(stop::STOPPED),
        _ => Outcome::from(answer.largest.is_some() && !is_cut(&answer)),
    })
}

fn is_cut(answer: &FitAnswer) -> bool {
    answer.proof.as_ref().is_some_and(|proof| proof.interrupted || proof.failure.is_some())
}

/// The results of earlier calls.
fn known(
    request: &ProofRequest<'_>,
    kept: &KeptTries,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<TryRecord>> {
    if request.forget {
        kept.forget()?;
    }
    let read = kept.read().unwrap_or_else(|why| {
        let path = kept.path().map(|path| path.display().to_string()).unwrap_or_default();
        let note = format!("{path} {why}; all values are tried anew");
        output::note_line(&format!("plimsoll: {note}"));
        notes.push(note);
        Vec::new()
    });
    if kept.path().is_none() {
        notes.push("results are not kept: neither HOME nor XDG_CACHE_HOME is set".to_string());
    }
    Ok(consistent(read))
}

/// Results that fit together. A value that failed although a larger one ran means that memory does
/// not grow with the value, or that something else has changed since: then all are tried anew.
fn consistent(tries: Vec<TryRecord>) -> Vec<TryRecord> {
    let failed = tries.iter().filter(|record| !record.ran).map(|record| record.value).min();
    let ran = tries.iter().filter(|record| record.ran).map(|record| record.value).max();
    if failed.zip(ran).is_some_and(|(failed, ran)| failed < ran) { Vec::new() } else { tries }
}

fn points(tries: &[TryRecord]) -> Vec<SearchPoint> {
    let point = |record: &TryRecord| SearchPoint {
        value: record.value,
        ran: record.ran.then(|| record.peak_bytes.unwrap_or(0)),
        refused: record.refused > 0,
    };
    tries.iter().map(point).collect()
}

impl ProofRequest<'_> {
    fn search<'a>(&self, tries: &[TryRecord], points: &'a [SearchPoint]) -> FitSearch<'a> {
        // Where the GPU shares the system's memory, the guard may have enforced less.
        let enforced = tries.iter().filter_map(|record| record.limit_bytes).min();
        let limit = enforced.map_or(self.limit.get(), |limit| limit.min(self.limit.get()));
        let room = limit.saturating_sub(self.reserve.get());
        FitSearch { range: self.range, room, guess: self.guess, tries: points }
    }

    /// The program's words for a value.
    fn filled(&self, value: u64) -> Vec<OsString> {
        let value = value.to_string();
        self.words.iter().map(|word| self.vary.with(word, &value)).collect()
    }

    fn attempt(&self, value: u64, stop: &AtomicBool) -> anyhow::Result<AttemptResult> {
        let words = self.filled(value);
        let (limit, reserve, timeout) = (self.limit, self.reserve, self.timeout);
        FitAttempt { words: &words, limit, reserve, timeout, stop }.run()
    }

    /// The command line for a value, to paste.
    fn command(&self, value: u64) -> String {
        let words = self.filled(value);
        let words: Vec<String> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        words.join(" ")
    }
}

/// Says what is tried now, what the last try gave, and how long the rest may take.
fn say_begin(request: &ProofRequest<'_>, tries: &[TryRecord], value: u64, out: &Output) {
    if out.is_quiet() {
        return;
    }
    let name = &request.vary.name;
    let last = tries.last().map_or_else(String::new, |last| {
        let peak =
            last.peak_bytes.map_or_else(String::new, |peak| format!(", peak {}", Bytes(peak)));
        let how = if last.ran { "ran" } else { "failed" };
        format!("{name} {} {how}{peak}; ", last.value)
    });
    let made: Vec<f64> = tries.iter().map(|record| record.seconds).collect();
    let left = request.search(tries, &points(tries)).tries_left();
    let time = match made.len() {
        0 => String::new(),
        count => {
            let each = made.iter().sum::<f64>() / count as f64;
            format!(", {:.0} s", (each * f64::from(left)).ceil())
        }
    };
    let tries = if left == 1 { "1 try".to_string() } else { format!("{left} tries") };
    output::note_line(&format!("plimsoll: {last}trying {name} {value}; about {tries} left{time}"));
}

fn record(value: u64, result: &AttemptResult) -> TryRecord {
    let figures = &result.figures;
    TryRecord {
        value,
        ran: result.end == AttemptEnd::Ran,
        peak_bytes: figures.peak_bytes,
        limit_bytes: figures.limit_bytes,
        refused: figures.refused,
        refused_bytes: figures.refused_bytes,
        exit_code: figures.exit_code,
        seconds: figures.seconds,
        kept: false,
    }
}

fn failure(value: u64, result: AttemptResult) -> SearchCut {
    let AttemptEnd::Unknown(why) = result.end else { return SearchCut::Interrupted };
    SearchCut::Failure(TryFailure {
        value,
        why,
        exit_code: result.figures.exit_code,
        signal: result.figures.signal,
        output: text::lines(&result.output).into_owned(),
    })
}

fn add(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

/// What `run` warned of, and a limit that it lowered.
fn add_warnings(notes: &mut Vec<String>, result: &AttemptResult) {
    result.figures.warnings.iter().for_each(|warning| add(notes, warning.clone()));
}

fn answer(
    request: &ProofRequest<'_>,
    tries: Vec<TryRecord>,
    cut: Option<SearchCut>,
    kept: &KeptTries,
    mut notes: Vec<String>,
) -> FitAnswer {
    let largest = tries.iter().filter(|record| record.ran).max_by_key(|record| record.value);
    let failed = tries.iter().filter(|record| !record.ran).map(|record| record.value).min();
    let name = &request.vary.name;
    let why = match (&cut, largest, failed) {
        (Some(SearchCut::Interrupted), ..) => {
            Some("stopped before the answer was found; the same command goes on from here".into())
        }
        (Some(SearchCut::Failure(failure)), ..) => {
            Some(format!("it cannot be known: at {name} {} {}", failure.value, failure.why))
        }
        (None, None, _) => Some(format!("not even {name} {} fits", request.range.low())),
        (None, Some(_), None) => Some(format!(
            "all values up to {} ran; a larger {name} may run too",
            request.range.high()
        )),
        (None, Some(_), Some(_)) => None,
    };
    if largest.is_some_and(|record| record.refused > 0) {
        notes.push(format!(
            "at the largest {name} the program was refused memory and recovered: it has no room left"
        ));
    }
    let (failure, interrupted) = match cut {
        Some(SearchCut::Failure(failure)) => (Some(failure), false),
        Some(SearchCut::Interrupted) => (None, true),
        None => (None, false),
    };
    FitAnswer {
        how: "tried",
        vary: name.clone(),
        largest: largest.map(|record| FitValue::Number(record.value)),
        smallest_failed: failed.map(FitValue::Number),
        smallest_failed_bytes: None,
        largest_bytes: largest.and_then(|record| record.peak_bytes),
        limit_bytes: request.limit.get(),
        reserve_bytes: request.reserve.get(),
        reserve_reason: RESERVE_REASON.to_string(),
        why,
        command: largest.map(|record| request.command(record.value)),
        notes,
        estimate: request.estimate.clone(),
        proof: Some(FitProof {
            low: request.range.low(),
            high: request.range.high(),
            step: request.range.step(),
            guess: request.guess,
            runs: tries.iter().filter(|record| !record.kept).count()
                + usize::from(failure.is_some()),
            tries,
            kept_in: kept
                .path()
                .filter(|path| path.is_file())
                .map(|path| path.display().to_string()),
            failure,
            interrupted,
        }),
    }
}
