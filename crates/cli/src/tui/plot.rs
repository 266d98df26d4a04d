//! The history of memory.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, LegendPosition};

use super::draw::FAINT;
use super::view::{LiveView, MOST_GPUS, PlotPoint};

/// Of the GPUs, the first in front.
const COLOURS: [Color; MOST_GPUS] = [
    Color::Magenta,
    Color::Cyan,
    Color::Yellow,
    Color::Blue,
    Color::LightRed,
    Color::LightGreen,
    Color::LightMagenta,
    Color::LightBlue,
];
/// Lower than this it would show nothing.
const LEAST_ROWS: u16 = 4;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &LiveView) {
    if area.height < LEAST_ROWS || view.history.is_empty() {
        return;
    }
    // Two points stand beside each other on a column.
    let room = usize::from(area.width).saturating_mul(2);
    let skip = view.history.len().saturating_sub(room);
    let points = || view.history.iter().skip(skip);
    let line = |of: &dyn Fn(&PlotPoint) -> Option<f64>| -> Vec<(f64, f64)> {
        points().filter_map(|point| Some((point.t, of(point)? * 100.0))).collect()
    };
    let memory = line(&|point| point.memory);
    let gpus: Vec<_> = (0..MOST_GPUS).map(|at| line(&|point| point.gpus[at])).collect();
    let last = view.history.back().map_or(0.0, |point| point.t);
    let first = points().next().map_or(0.0, |point| point.t).min(last - 1.0);
    let set = |name: String, colour, data| {
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
            .data(data)
    };
    let record = view.record.as_ref();
    let unified = record.is_some_and(|record| record.unified == Some(true));
    let name = if unified { "System" } else { "RAM" };
    let mut sets = vec![set(name.to_string(), Color::Green, &memory)];
    let known = gpus.iter().enumerate().filter(|(_, line)| !line.is_empty());
    let several = known.clone().count() > 1;
    sets.extend(known.map(|(at, line)| {
        let gpu = record.and_then(|record| record.gpus.get(at));
        let name = match gpu.is_some_and(|gpu| gpu.unified) {
            true => "of it GPU".to_string(),
            false if several => format!("GPU{at} VRAM"),
            false => "GPU VRAM".to_string(),
        };
        set(name, COLOURS[at], line)
    }));
    let ago = format!("-{:.0} s", last - first);
    let x = Axis::default().bounds([first, last]).labels([ago, "now".to_string()]).style(FAINT);
    let y = Axis::default().bounds([0.0, 100.0]).labels(["0", "50", "100 %"]).style(FAINT);
    // Which line is whose is worth a corner of the plot.
    let chart = Chart::new(sets)
        .x_axis(x)
        .y_axis(y)
        .hidden_legend_constraints((Constraint::Ratio(1, 2), Constraint::Ratio(3, 4)));
    frame.render_widget(chart.legend_position(Some(LegendPosition::TopLeft)), area);
}
