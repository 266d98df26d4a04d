//! The end of a run in the terminal: use over time against the limit, and the places that held the
//! most at the peak.

use super::answer::{PlaceReport, RunDevice, RunReport};
use super::frame::frame_name;
use crate::chart::{bar, letter_plot};
use crate::page::{SizeUnit, TextPage, TextTone, cut};

const GIB: f64 = (1u64 << 30) as f64;
/// The rows of the picture.
const HEIGHT: usize = 6;
/// The columns of the scale beside it, and the most that the picture itself takes.
const SCALE: usize = 14;
const MOST_COLUMNS: usize = 100;
/// How many places are shown, and how many frames of each.
const PLACES: usize = 5;
const FRAMES: usize = 3;

/// What to say where native stacks lack the lines that a Python user looks for.
pub(super) const NO_PYTHON_LINES: &str = "these are native stacks, without Python's lines: \
    plimsoll.torch.record in Python has those";

impl RunReport {
    /// Use over time, where there is a terminal.
    pub(super) fn picture(&self, device: &RunDevice, page: &mut TextPage) {
        let Some(width) = page.width() else { return };
        let columns = width.saturating_sub(SCALE + 2).min(MOST_COLUMNS);
        let Some(course) = self.history.courses.get(&device.place) else { return };
        let values: Vec<(f64, f64)> = course.points.iter().map(|p| (p.seconds, p.max)).collect();
        let limit = device.limit_bytes.map(|limit| limit as f64 / GIB);
        let Some(plot) = letter_plot(&values, limit, (columns, HEIGHT)) else { return };
        let unit = SizeUnit::of([Some((plot.top * GIB) as u64)]);
        let size = |gib: f64| unit.text((gib * GIB) as u64);
        for (at, row) in plot.rows.iter().enumerate() {
            let on_limit = plot.limit_row == Some(at);
            let label = match (at, on_limit) {
                (_, true) => size(limit.unwrap_or(plot.top)),
                (0, false) => size(plot.top),
                _ => String::new(),
            };
            let row = if on_limit { row.replace(' ', "┄") } else { row.clone() };
            let end = if on_limit { " limit" } else { "" };
            let end = if columns + SCALE + 2 + end.len() <= width { end } else { "" };
            page.line(&format!("  {label:>11} │{row}{end}"));
        }
        let end = format!("{:.1} s", values.last().map_or(0.0, |(t, _)| *t));
        page.line(&format!("  {:>11} └{}", "0", "─".repeat(columns)));
        let marks = self.refusal_marks(device, columns, values.last().map_or(0.0, |(t, _)| *t));
        if let Some(marks) = marks {
            page.toned(&format!("  {:>11}  {marks}", "refused"), TextTone::Bad);
        }
        page.line(&format!("  {:>11}  0 s{end:>rest$}", "", rest = columns.saturating_sub(3)));
    }

    /// A mark under each moment at which the limit refused something.
    fn refusal_marks(&self, device: &RunDevice, columns: usize, end: f64) -> Option<String> {
        let mut marks = vec![' '; columns];
        for refusal in self.refused.iter().filter(|refusal| refusal.device == device.device) {
            let at = (refusal.at_seconds / end.max(1e-9) * columns as f64) as usize;
            marks[at.min(columns.checked_sub(1)?)] = '▲';
        }
        marks.contains(&'▲').then(|| marks.into_iter().collect::<String>().trim_end().to_string())
    }

    /// The places that held the most when the charge was highest; only with call stacks.
    pub(super) fn places(&self, device: &RunDevice, page: &mut TextPage) {
        let Some(peak) = &device.at_peak else { return };
        if peak.places.iter().all(|place| place.stack.is_empty()) {
            return;
        }
        let unit = SizeUnit::of([Some(peak.bytes)]);
        let width = page.width().unwrap_or(usize::MAX);
        let (device, at) = (&device.device, peak.at_seconds);
        page.line(&format!(
            "  live at the peak of {device} ({} at {at:.3} s), by place",
            unit.text(peak.bytes)
        ));
        for place in peak.places.iter().take(PLACES) {
            place_lines(place, peak.bytes, unit, width, page);
        }
        if let Some(more @ 1..) = peak.places.len().checked_sub(PLACES) {
            page.advice(&format!("  and {more} more places; --report draws them all"));
        }
    }
}

fn place_lines(place: &PlaceReport, all: u64, unit: SizeUnit, width: usize, page: &mut TextPage) {
    let share = place.bytes as f64 / all.max(1) as f64;
    let blocks = match (place.by_driver, place.blocks) {
        (true, _) => "by the driver itself".to_string(),
        (false, 1) => "in 1 block".to_string(),
        (false, n) => format!("in {n} blocks"),
    };
    let size = unit.text(place.bytes);
    let line = format!("    {:<10} {:>3.0} %  {size:>11}  {blocks}", bar(share, 10), share * 100.0);
    page.line(&line);
    for (at, frame) in place.stack.iter().take(FRAMES).enumerate() {
        let arrow = if at == 0 { "in" } else { "←" };
        page.toned(
            &cut(&format!("      {arrow:>2} {}", frame_name(frame)), width),
            TextTone::Faint,
        );
    }
}
