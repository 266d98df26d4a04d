//! The figures of two runs beside each other.

use serde::Serialize;

use crate::doubt::ReportFigure;
use crate::record::{HowObtained, ModelRecord};
use crate::report::accuracy;
use crate::stats::{Judgement, SpeedVerdict};

/// How a change should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareTone {
    /// The second run is better.
    Better,
    /// The second run is worse.
    Worse,
    /// They are the same within the tolerance, or one of them is not known.
    Same,
    /// They differ, and it is not known whether that means something.
    Unsure,
}

/// A figure in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FigureChange {
    /// Which: `fps`, `p50`, `p95`, `p99`, `mAP`, `peak memory`, `energy a frame`.
    pub name: &'static str,
    /// Its unit; empty where it has none.
    pub unit: &'static str,
    /// In the first run; null where it is not known.
    pub a: Option<f64>,
    /// In the second run; null where it is not known.
    pub b: Option<f64>,
    /// How much more the second is, as a share of the first; null where either is not known. mAP
    /// is a share itself, so this is the difference.
    pub change: Option<f64>,
    /// How that should look.
    pub tone: CompareTone,
}

impl FigureChange {
    /// A value of it in words.
    #[must_use]
    pub fn text(&self, value: Option<f64>) -> String {
        let digits = match self.name {
            "mAP" => 3,
            "energy a frame" => 4,
            "peak memory" if self.unit == "MiB" => 1,
            _ => 2,
        };
        value.map_or("–".to_string(), |value| format!("{value:.digits$}"))
    }

    /// The change in words.
    #[must_use]
    pub fn change_text(&self) -> String {
        match (self.change, self.name) {
            (None, _) => "–".to_string(),
            (Some(change), "mAP") => format!("{change:+.3}"),
            (Some(change), _) => format!("{:+.1} %", change * 100.0),
        }
    }

    /// Its name with its unit.
    #[must_use]
    pub fn title(&self) -> String {
        if self.unit.is_empty() {
            self.name.to_string()
        } else {
            format!("{} {}", self.name, self.unit)
        }
    }
}

/// What figures that are counted and not timed may change by: rounding.
const EXACT: f64 = 0.005;

/// All figures of a slot. Times look as sure as the verdict is.
pub(super) fn changes(
    a: Option<&ModelRecord>,
    b: Option<&ModelRecord>,
    judgement: Option<Judgement>,
    tolerance: f64,
) -> Vec<FigureChange> {
    let sure = judgement.is_some_and(|found| found.verdict != SpeedVerdict::CannotSay);
    let small =
        [a, b].into_iter().flatten().filter_map(|m| m.gpu_memory.peak_gb).all(|gb| gb < 1.0);
    let order = [
        ReportFigure::Fps,
        ReportFigure::P50,
        ReportFigure::P95,
        ReportFigure::P99,
        ReportFigure::Map,
        ReportFigure::Memory,
        ReportFigure::Energy,
    ];
    let all = order.into_iter().map(|figure| {
        let (unit, scale) = unit(figure, small);
        let of =
            |model: Option<&ModelRecord>| model.and_then(|m| value(m, figure)).map(|v| v * scale);
        let (x, y) = (of(a), of(b));
        let change = x.zip(y).and_then(|(x, y)| match figure {
            ReportFigure::Map => Some(y - x),
            _ => (x != 0.0).then(|| y / x - 1.0),
        });
        let counted = [a, b].into_iter().flatten().all(is_counted);
        let (least, sure) = match figure {
            ReportFigure::Map => (EXACT, true),
            ReportFigure::Memory if counted => (EXACT, true),
            ReportFigure::Memory => (tolerance, true),
            _ => (tolerance, sure),
        };
        let tone = tone(figure, change, least, sure);
        FigureChange { name: figure.name(), unit, a: x, b: y, change, tone }
    });
    all.collect()
}

/// Whether a peak is exact.
fn is_counted(model: &ModelRecord) -> bool {
    model.gpu_memory.obtained == Some(HowObtained::Counted)
}

fn unit(figure: ReportFigure, small: bool) -> (&'static str, f64) {
    match figure {
        ReportFigure::P50 | ReportFigure::P95 | ReportFigure::P99 => ("ms", 1.0),
        ReportFigure::Memory if small => ("MiB", 1024.0),
        ReportFigure::Memory => ("GiB", 1.0),
        ReportFigure::Energy => ("J", 1.0),
        _ => ("", 1.0),
    }
}

fn value(model: &ModelRecord, figure: ReportFigure) -> Option<f64> {
    let performance = model.performance.as_ref();
    match figure {
        ReportFigure::Fps => performance?.fps,
        ReportFigure::P50 => Some(performance?.whole.p50_ms),
        ReportFigure::P95 => Some(performance?.whole.p95_ms),
        ReportFigure::P99 => Some(performance?.whole.p99_ms),
        ReportFigure::Map => accuracy::map(model),
        ReportFigure::Memory => model.gpu_memory.peak_gb,
        ReportFigure::Energy => model.energy_per_frame_j,
        ReportFigure::Engine | ReportFigure::Frames => None,
    }
}

fn tone(figure: ReportFigure, change: Option<f64>, least: f64, sure: bool) -> CompareTone {
    let higher_is_better = matches!(figure, ReportFigure::Fps | ReportFigure::Map);
    match change {
        Some(change) if change.abs() > least => match (sure, (change > 0.0) == higher_is_better) {
            (false, _) => CompareTone::Unsure,
            (true, true) => CompareTone::Better,
            (true, false) => CompareTone::Worse,
        },
        _ => CompareTone::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_better_for_some_figures_and_worse_for_others() {
        let of = |figure, change| tone(figure, Some(change), 0.05, true);
        assert_eq!(of(ReportFigure::Fps, 0.1), CompareTone::Better);
        assert_eq!(of(ReportFigure::P95, 0.1), CompareTone::Worse);
        assert_eq!(of(ReportFigure::Map, -0.1), CompareTone::Worse);
        assert_eq!(of(ReportFigure::Memory, -0.1), CompareTone::Better);
        assert_eq!(of(ReportFigure::Energy, 0.01), CompareTone::Same);
        assert_eq!(tone(ReportFigure::P50, Some(0.3), 0.05, false), CompareTone::Unsure);
        assert_eq!(tone(ReportFigure::P50, None, 0.05, true), CompareTone::Same);
    }
}
