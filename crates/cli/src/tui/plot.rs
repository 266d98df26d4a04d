//! The history of memory.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, LegendPosition};

use super::draw::FAINT;
use super::view::{Point, View};

/// Lower than this it would show nothing.
const LEAST_ROWS: u16 = 4;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if area.height < LEAST_ROWS || view.history.is_empty() {
        return;
    }
    // Two points stand beside each other on a column.
    let room = usize::from(area.width).saturating_mul(2);
    let skip = view.history.len().saturating_sub(room);
    let points = || view.history.iter().skip(skip);
    let line = |of: fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
        points().filter_map(|point| Some((point.t, of(point)? * 100.0))).collect()
    };
    let (memory, gpu) = (line(|p| p.memory), line(|p| p.gpu));
    let last = view.history.back().map_or(0.0, |point| point.t);
    let first = points().next().map_or(0.0, |point| point.t).min(last - 1.0);
    let set = |name, colour, data| {
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
            .data(data)
    };
    let unified = view.record.as_ref().is_some_and(|record| record.unified == Some(true));
    let names = if unified { ("System", "of it GPU") } else { ("RAM", "GPU VRAM") };
    let mut sets = vec![set(names.0, Color::Green, &memory)];
    if !gpu.is_empty() {
        sets.push(set(names.1, Color::Magenta, &gpu));
    }
    let ago = format!("-{:.0} s", last - first);
    let x = Axis::default().bounds([first, last]).labels([ago, "now".to_string()]).style(FAINT);
    let y = Axis::default().bounds([0.0, 100.0]).labels(["0", "50", "100 %"]).style(FAINT);
    let chart = Chart::new(sets).x_axis(x).y_axis(y);
    frame.render_widget(chart.legend_position(Some(LegendPosition::TopLeft)), area);
}
