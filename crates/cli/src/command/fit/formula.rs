//! Estimates what fits: the largest setting of a model file, without a GPU.

use std::collections::HashMap;
use std::path::Path;

use plimsoll::Bytes;
use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll_models::search::largest_fitting;
use plimsoll_models::terms::{Runner, Terms, estimate};
use plimsoll_models::{ModelError, ModelResult};

use super::RESERVE_REASON;
use super::answer::{FitAnswer, FitEstimate, FitValue};
use super::paste::PasteRequest;
use super::setting::SettingRow;
use super::vary::VaryFlag;
use crate::model_flags::ModelFlags;
use crate::outcome::OrBadInput;

/// How far beyond the largest that was found others are considered: one part of this many of it.
const FARTHEST: u64 = 4;
/// How many of those are looked at, the largest first.
const LOOKS: usize = 8;

/// A model whose largest setting is to be found.
#[derive(Debug)]
pub(super) struct FormulaRequest<'a> {
    pub(super) model: &'a Path,
    pub(super) flags: &'a ModelFlags,
    pub(super) vary: &'a VaryFlag,
    pub(super) step: Option<u64>,
    pub(super) limit: Bytes,
    pub(super) reserve: Bytes,
}

/// What of an estimate is to fit.
type SettingBytes = fn(&Terms) -> u64;

/// The largest that was found, and a smaller one that does not fit, where there is one.
#[derive(Debug, Clone, Copy)]
struct LargestSetting {
    place: u64,
    gap: Option<u64>,
}

/// The estimates that were made, by the place of their setting.
struct SettingEstimates<'a> {
    model: &'a Path,
    base: &'a ModelFlags,
    row: &'a SettingRow,
    known: HashMap<u64, Terms>,
    /// Whether settings got by with so much, by their place and that.
    met: HashMap<(u64, u64), bool>,
}

impl<'a> SettingEstimates<'a> {
    fn of(model: &'a Path, base: &'a ModelFlags, row: &'a SettingRow) -> SettingEstimates<'a> {
        SettingEstimates { model, base, row, known: HashMap::new(), met: HashMap::new() }
    }

    fn at(&mut self, place: u64) -> ModelResult<&Terms> {
        if !self.known.contains_key(&place) {
            let terms = self.row.flags(self.base, place).terms(self.model)?;
            self.known.insert(place, terms);
        }
        self.known.get(&place).ok_or_else(|| ModelError {
            model: self.model.display().to_string(),
            why: "its estimate is missing".to_string(),
        })
    }

    /// The upper end of the setting after a place, where there is one.
    fn after(&mut self, place: u64) -> ModelResult<Option<u64>> {
        let next = Some(place + 1).filter(|next| *next < self.row.count);
        next.map(|next| self.at(next).map(|terms| terms.range.high_bytes)).transpose()
    }

    /// The largest for which PyTorch need not free its cache.
    fn largest(&mut self, room: u64, bytes: SettingBytes) -> ModelResult<Option<LargestSetting>> {
        let needed = |all: &mut Self, place| all.at(place).map(bytes);
        self.largest_by((0, room), bytes, needed)
    }

    /// The largest that runs, also where PyTorch must free its cache on the way; `from` a place that does.
    fn largest_that_runs(
        &mut self,
        (from, room): (u64, u64),
        bytes: SettingBytes,
    ) -> ModelResult<Option<LargestSetting>> {
        self.largest_by((from, room), bytes, |all, place| all.needed(place, room, bytes))
    }

    fn largest_by(
        &mut self,
        (from, room): (u64, u64),
        bytes: SettingBytes,
        mut needed: impl FnMut(&mut Self, u64) -> ModelResult<u64>,
    ) -> ModelResult<Option<LargestSetting>> {
        let count = self.row.count.saturating_sub(from);
        let found = largest_fitting(count, room, |more| needed(self, from + more))?;
        let Some(found) = found.map(|more| from + more) else { return Ok(None) };
        let end = self.end_beyond(found, room, bytes)?;
        for place in (found + 1..=end).rev().take(LOOKS) {
            if needed(self, place)? <= room {
                let place = self.last_of_run(place, room, &mut needed)?;
                let gap = (place > found + 1).then_some(found + 1);
                return Ok(Some(LargestSetting { place, gap }));
            }
        }
        Ok(Some(LargestSetting { place: found, gap: None }))
    }

    /// From a setting that fits, the last before one that does not.
    fn last_of_run(
        &mut self,
        from: u64,
        room: u64,
        needed: &mut impl FnMut(&mut Self, u64) -> ModelResult<u64>,
    ) -> ModelResult<u64> {
        let count = self.row.count - from;
        let more = largest_fitting(count, room, |more| needed(self, from + more))?;
        Ok(from + more.unwrap_or(0))
    }

    /// What PyTorch holds does not always grow with the setting: a request that just misses a free piece
    /// costs a segment more, and for a larger setting it may fit again. So what fits may go on after
    /// one that does not: up to this place, if reserved ÷ allocated stays what it is for the setting found.
    fn end_beyond(&mut self, found: u64, room: u64, bytes: SettingBytes) -> ModelResult<u64> {
        let Some((reserved, allocated)) =
            self.at(found)?.held.as_ref().map(|held| (held.reserved, held.allocated))
        else {
            return Ok(found);
        };
        let would_need = |terms: &Terms| {
            let Some(held) = &terms.held else { return u64::MAX };
            let same = scaled(held.allocated, reserved, allocated);
            let total = terms.total_bytes.saturating_sub(held.reserved).saturating_add(same);
            scaled(bytes(terms), total, terms.total_bytes)
        };
        let most = self.row.count - 1;
        if found == most || would_need(self.at(found + 1)?) > room {
            return Ok(found);
        }
        let places = (found / FARTHEST).clamp(1, most - found) + 1;
        let end = largest_fitting(places, room, |more| self.at(found + more).map(would_need))?;
        Ok(found + end.unwrap_or(0))
    }

    /// What a setting needs: no more than the room where PyTorch gets by with that.
    fn needed(&mut self, place: u64, room: u64, bytes: SettingBytes) -> ModelResult<u64> {
        let whole = bytes(self.at(place)?);
        let runs = whole > room && self.runs_within(place, room, bytes)?;
        Ok(if runs { room } else { whole })
    }

    /// Whether PyTorch gets by with less than it would hold; `bytes` is how much it may be.
    fn runs_within(&mut self, place: u64, room: u64, bytes: SettingBytes) -> ModelResult<bool> {
        let Some((terms, held)) =
            self.known.get(&place).and_then(|terms| Some((terms, terms.held.as_ref()?)))
        else {
            return Ok(false);
        };
        // What the allocator gets by with is not known where other attention may run.
        if terms.stored_scores.is_some() {
            return Ok(false);
        }
        let besides = terms.total_bytes.saturating_sub(held.reserved);
        let room = scaled(room, terms.total_bytes, bytes(terms)).saturating_sub(besides);
        if held.allocated > room {
            return Ok(false);
        }
        if let Some(met) = self.met.get(&(place, room)) {
            return Ok(*met);
        }
        let mut request = self.row.flags(self.base, place).request();
        request.allocator_room = Some(room);
        let within = estimate(self.model, &request)?;
        let met = within.held.is_some_and(|held| held.met == Some(true));
        self.met.insert((place, room), met);
        Ok(met)
    }

    /// What is to be said of a smaller setting that does not fit.
    fn gap_note(&mut self, name: &str, gap: u64) -> ModelResult<String> {
        let taken = Bytes(self.at(gap)?.range.high_bytes);
        let value = self.row.value(gap);
        Ok(format!(
            "not every smaller {name} fits: PyTorch's allocator holds more for some, such as {value}, which may \
             take {taken}"
        ))
    }
}

impl FormulaRequest<'_> {
    /// Finds it.
    pub(super) fn answer(&self) -> anyhow::Result<FitAnswer> {
        let (base, first, mut notes) = self.base()?;
        let engine = base.engine.unwrap_or(Runner::PyTorch);
        if let Some(why) = unknown(&first) {
            return Ok(self.without_answer(why, notes));
        }
        let row = SettingRow::of(self.vary, self.step, engine, &first)?;
        let (reserve, reserve_reason) = self.reserve(&first, engine);
        let mut all = SettingEstimates::of(self.model, &base, &row);
        let room = self.limit.get().saturating_sub(reserve.get());
        let failed = || "cannot estimate it";
        let upper_end = |terms: &Terms| terms.range.high_bytes;
        let largest = all.largest_that_runs((0, room), upper_end).or_bad_input(failed)?;
        let cached = all.largest(room, upper_end).or_bad_input(failed)?;
        // Each looks beyond what it found by itself.
        let largest = [largest, cached].into_iter().flatten().max_by_key(|found| found.place);
        // What fits by its upper end does so by the estimate, but for what PyTorch frees on the way.
        let from = largest.map_or(0, |found| found.place);
        let likely = all.largest_that_runs((from, room), |terms| terms.total_bytes);
        let likely = likely.or_bad_input(failed)?.or(largest);
        let name = &self.vary.name;
        let Some(LargestSetting { place, gap }) = largest else {
            let why = if row.count == 0 {
                format!("there is no {name} to choose: the file has fewer bits than any")
            } else {
                let least = Bytes(all.at(0).or_bad_input(failed)?.range.high_bytes);
                format!("not even {name} {} fits: it may take {least}", row.value(0))
            };
            let none = self.without_answer(why, notes);
            return Ok(FitAnswer { reserve_bytes: reserve.get(), reserve_reason, ..none });
        };
        let gap = gap.map(|gap| all.gap_note(name, gap)).transpose();
        notes.extend(gap.or_bad_input(failed)?);
        let next = all.after(place).or_bad_input(failed)?;
        let terms = all.at(place).or_bad_input(failed)?;
        let flags = row.flags(&base, place);
        let paste =
            PasteRequest { model: self.model, flags: &flags, engine, terms, limit: self.limit };
        let command = paste.text();
        notes.extend(command.is_none().then(|| without_command(engine)));
        notes.extend(terms.notes.iter().cloned());
        Ok(FitAnswer {
            largest: Some(row.value(place)),
            smallest_failed: next.map(|_| row.value(place + 1)),
            smallest_failed_bytes: next,
            largest_bytes: Some(terms.range.high_bytes.min(room)),
            reserve_bytes: reserve.get(),
            reserve_reason,
            why: next.is_none().then(|| row.end.clone()),
            command,
            estimate: Some(FitEstimate {
                file: self.model.display().to_string(),
                engine: engine.name(),
                total_bytes: terms.total_bytes,
                low_bytes: terms.range.low_bytes,
                high_bytes: terms.range.high_bytes,
                checked: terms.range.checked,
                basis: terms.range.basis.clone(),
                likely_largest: likely.map(|found| row.value(found.place)),
                cached_largest: cached.map(|found| row.value(found.place)),
            }),
            ..self.without_answer(String::new(), notes)
        })
    }

    /// The flags with an engine and a GPU, which the question is about, and their estimate.
    fn base(&self) -> anyhow::Result<(ModelFlags, Terms, Vec<String>)> {
        let mut base = self.flags.clone();
        let mut notes = Vec::new();
        let gpu = DeviceId { kind: BackendKind::Cuda, number: 0 };
        base.device = base.device.or(Some(gpu));
        base.engine = base.engine.or(base.train.train.then_some(Runner::PyTorch));
        base.train.check(base.engine)?;
        let terms = base.terms(self.model).or_bad_input(|| "cannot estimate it")?;
        if base.engine.is_some() {
            return Ok((base, terms, notes));
        }
        let engine = match terms.format {
            "GGUF" => Runner::LlamaCpp,
            "ONNX" => Runner::Ort,
            _ => Runner::PyTorch,
        };
        notes.push(format!("{engine} was taken for the engine; --engine names another"));
        base.engine = Some(engine);
        let terms = base.terms(self.model).or_bad_input(|| "cannot estimate it")?;
        Ok((base, terms, notes))
    }

    /// What must stay free, and why: also the driver's context where no figure for it is on record.
    fn reserve(&self, terms: &Terms, engine: Runner) -> (Bytes, String) {
        let context = Bytes(terms.overhead.kept_free);
        if context == Bytes::ZERO {
            return (self.reserve, RESERVE_REASON.to_string());
        }
        let reason = format!(
            "{RESERVE_REASON}; {context} of it because nothing is on record of what {engine} and \
             the driver take at the start, and PyTorch's 695 MiB on an H200 are the most on record for running a model"
        );
        (Bytes(self.reserve.get().saturating_add(context.get())), reason)
    }

    fn without_answer(&self, why: String, notes: Vec<String>) -> FitAnswer {
        FitAnswer {
            how: "estimated",
            vary: self.vary.name.clone(),
            largest: None,
            smallest_failed: None,
            smallest_failed_bytes: None,
            largest_bytes: None,
            limit_bytes: self.limit.get(),
            reserve_bytes: self.reserve.get(),
            reserve_reason: RESERVE_REASON.to_string(),
            why: Some(why),
            command: None,
            notes,
            estimate: None,
            proof: None,
        }
    }
}

/// Why there is nothing to paste.
fn without_command(engine: Runner) -> String {
    format!(
        "there is no command to paste: `plimsoll bench` runs {engine} with one image at a time, and a batch is for a \
         program of your own"
    )
}

/// A number times one over another.
fn scaled(number: u64, times: u64, over: u64) -> u64 {
    let product = u128::from(number) * u128::from(times) / u128::from(over.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Why nothing can be said of a model, where only its weights are known.
fn unknown(terms: &Terms) -> Option<String> {
    terms.only_weights().then(|| {
        let why = terms.notes.first().map_or("the file has weights alone", String::as_str);
        format!("it cannot be known: {why}")
    })
}

/// The largest as a number to begin tries with.
pub(super) fn number(answer: &FitAnswer) -> Option<u64> {
    let likely = answer.estimate.as_ref().and_then(|estimate| estimate.likely_largest.as_ref());
    match likely.or(answer.largest.as_ref()) {
        Some(FitValue::Number(number)) => Some(*number),
        _ => None,
    }
}
