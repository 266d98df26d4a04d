//! The first thing that every report shows of a model: what ran, and seven figures, each with the
//! doubts that concern it.

use plimsoll::text::one_line;

use super::sheet::{DASH, gib, ms};
use crate::doubt::ReportFigure;
use crate::record::{BenchRecord, DoubtRecord, ModelRecord, Status};

/// A model in seven figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Headline {
    /// What no other model of the run is called.
    pub label: String,
    /// The slot with its name, or the row.
    pub place: String,
    /// How it ended.
    pub status: Status,
    /// Why, where it did not complete.
    pub reason: Option<String>,
    /// The engine, with its version and device.
    pub engine: String,
    /// The size of its input.
    pub size: String,
    /// What its weights are stored as.
    pub weights: Option<String>,
    /// Measured frames.
    pub frames: String,
    /// Doubts about the engine and the frames.
    pub badges: Vec<Badge>,
    /// The figures, in the order of [`ReportFigure::SHOWN`].
    pub figures: Vec<HeadlineFigure>,
    /// Peak memory as a share of the limit; `None` where it is not compared.
    pub memory_share: Option<f64>,
}

/// A figure with its doubts.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadlineFigure {
    /// Which.
    pub figure: ReportFigure,
    /// How much, without its unit; "–" where it is unknown.
    pub value: String,
    /// Its unit.
    pub unit: &'static str,
    /// What it is compared with or of, or why it is unknown.
    pub note: Option<String>,
    /// Reasons to trust it less.
    pub badges: Vec<Badge>,
}

/// A doubt beside a figure: a few words, and the whole sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Badge {
    /// A few words.
    pub short: String,
    /// The sentence.
    pub text: String,
    /// Whether it is about the whole run, and so about every model of it.
    pub of_run: bool,
}

impl Headline {
    /// All models of a run.
    #[must_use]
    pub fn of(record: &BenchRecord) -> Vec<Headline> {
        record.models.iter().map(|model| Headline::new(record, model)).collect()
    }

    fn new(record: &BenchRecord, model: &ModelRecord) -> Headline {
        let info = model.model_info.as_ref();
        let engine = info.map_or(DASH.to_string(), |info| {
            let version = info.engine_version.as_deref().unwrap_or_default();
            let engine = format!("{} {version}", info.engine);
            format!("{} on {}", engine.trim(), info.device)
        });
        let size = info.and_then(|info| info.input_size);
        let badges = |figure| badges(record, model, figure);
        let memory = &model.gpu_memory;
        Headline {
            label: model.label(),
            place: model.place(),
            status: model.status,
            reason: model.reason.clone(),
            engine,
            size: size.map_or(DASH.to_string(), |[rows, columns]| format!("{columns}×{rows}")),
            weights: model.weights_type.clone(),
            frames: model.performance.as_ref().map_or(DASH.into(), |p| p.frames.to_string()),
            badges: [badges(ReportFigure::Engine), badges(ReportFigure::Frames)].concat(),
            figures: ReportFigure::SHOWN
                .into_iter()
                .map(|figure| HeadlineFigure { badges: badges(figure), ..value(model, figure) })
                .collect(),
            memory_share: memory.peak_gb.zip(memory.limit_gb).map(|(peak, limit)| peak / limit),
        }
    }

    /// The value of a figure, with its unit.
    #[must_use]
    pub fn text(&self, figure: ReportFigure) -> String {
        let found = self.figures.iter().find(|one| one.figure == figure);
        found.map_or(DASH.to_string(), HeadlineFigure::text)
    }
}

impl HeadlineFigure {
    /// The value with its unit.
    #[must_use]
    pub fn text(&self) -> String {
        match self.value == DASH || self.unit.is_empty() {
            true => self.value.clone(),
            false => format!("{} {}", self.value, self.unit),
        }
    }
}

fn value(model: &ModelRecord, figure: ReportFigure) -> HeadlineFigure {
    let whole = model.performance.as_ref().map(|p| &p.whole);
    let unknown = |field: &str| model.unknown.get(field).cloned();
    let with = |value: Option<String>, unit, note| HeadlineFigure {
        figure,
        unit: if value.is_some() { unit } else { "" },
        value: value.unwrap_or(DASH.into()),
        note,
        badges: Vec::new(),
    };
    match figure {
        ReportFigure::Fps => {
            let fps = model.performance.as_ref().and_then(|p| p.fps);
            with(fps.map(|fps| format!("{fps:.2}")), "", None)
        }
        ReportFigure::P50 => with(whole.map(|w| ms(w.p50_ms)), "ms", None),
        ReportFigure::P95 => with(whole.map(|w| ms(w.p95_ms)), "ms", None),
        ReportFigure::P99 => with(whole.map(|w| ms(w.p99_ms)), "ms", None),
        ReportFigure::Map => {
            let note = match super::accuracy::note(model) {
                Some(note) => Some(note),
                None => unknown("accuracy"),
            };
            with(super::accuracy::map(model).map(|map| format!("{map:.3}")), "", note)
        }
        ReportFigure::Energy => {
            let of = model.energy_of.map(|of| of.to_string());
            let note = of.or_else(|| unknown("energy_per_frame_j"));
            with(model.energy_per_frame_j.map(joules), "J", note)
        }
        ReportFigure::Memory => {
            let (value, unit) = size(model.gpu_memory.peak_gb);
            with(value, unit, memory_note(model))
        }
        ReportFigure::Engine | ReportFigure::Frames => with(None, "", None),
    }
}

/// Joules with as many digits as tell something.
pub(super) fn joules(value: f64) -> String {
    let digits = if value < 0.1 { 4 } else { 3 };
    format!("{value:.digits$}")
}

fn size(gb: Option<f64>) -> (Option<String>, &'static str) {
    let text = gib(gb);
    match text.split_once(' ') {
        Some((value, "MiB")) => (Some(value.to_string()), "MiB"),
        Some((value, _)) => (Some(value.to_string()), "GiB"),
        None => (None, ""),
    }
}

fn memory_note(model: &ModelRecord) -> Option<String> {
    let memory = &model.gpu_memory;
    match (memory.peak_gb, memory.limit_gb) {
        (Some(peak), Some(limit)) if limit > 0.0 => {
            let share = percent(peak / limit);
            Some(format!("{share} of the limit of {}", gib(Some(limit))))
        }
        (Some(_), _) => Some("not compared with the limit".to_string()),
        (None, _) => memory.unknown.get("peak_gb").cloned(),
    }
}

/// A share in percent, with a digit where it is small.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        small if small < 10.0 => format!("{small:.1} %"),
        large => format!("{large:.0} %"),
    }
}

/// The doubts about a figure of a model, those of the whole run included.
fn badges(record: &BenchRecord, model: &ModelRecord, figure: ReportFigure) -> Vec<Badge> {
    let concerns = |doubt: &&DoubtRecord| {
        doubt.slot.is_none_or(|slot| slot == model.slot) && doubt.doubt.concerns().contains(&figure)
    };
    let ran = model.performance.is_some();
    record.doubts.iter().filter(|_| ran).filter(concerns).map(Badge::of).collect()
}

impl Badge {
    /// A doubt in a few words and as a sentence.
    #[must_use]
    pub fn of(doubt: &DoubtRecord) -> Badge {
        Badge {
            short: one_line(&doubt.doubt.badge()).into_owned(),
            text: doubt.text.clone(),
            of_run: doubt.slot.is_none(),
        }
    }
}
