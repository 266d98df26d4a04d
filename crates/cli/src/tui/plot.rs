//! A plot in characters: lines and areas of braille dots, a limit across it, a forecast up to that.
//!
//! The widget of the library draws neither a limit nor a future, puts a box with names over the
//! data, and costs several times as much a frame.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::palette::{ALARM, ALERT, FAINT, STRONG};

/// A line of a plot: what is shown, and a value for each time; an unknown one is a gap.
pub(super) struct PlotSeries {
    pub(super) colour: Color,
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// What is to come: seconds from now.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlotFuture {
    /// When the end is reached.
    pub(super) seconds: f64,
    pub(super) at_least: f64,
    pub(super) at_most: Option<f64>,
    /// The last value, from which it goes on.
    pub(super) from: f64,
}

/// What is plotted.
pub(super) struct TextPlot {
    pub(super) title: String,
    /// What stands on the right of the title.
    pub(super) now: String,
    pub(super) series: Vec<PlotSeries>,
    /// The bottom of the plot: 0, unless the way to the limit would be too low to be seen.
    pub(super) bottom: f64,
    /// The value at the bottom, in words.
    pub(super) bottom_label: String,
    /// The top of the plot.
    pub(super) top: f64,
    /// The value at the top, in words.
    pub(super) top_label: String,
    pub(super) limit: Option<(f64, String)>,
    pub(super) future: Option<PlotFuture>,
    /// How many seconds are shown, up to now.
    pub(super) span: f64,
    /// Now, by the clock of the points.
    pub(super) last: f64,
    /// Whether times stand below it.
    pub(super) axis: bool,
}

/// Dots, two by four in a character.
struct DotCanvas {
    width: usize,
    height: usize,
    dots: Vec<u8>,
    inks: Vec<Color>,
}

/// The bit of a dot, by row and column in its character.
const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl DotCanvas {
    fn new(area: Rect) -> DotCanvas {
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        let cells = width * height;
        DotCanvas { width, height, dots: vec![0; cells], inks: vec![Color::Reset; cells] }
    }

    /// Sets a dot; `y` counts from the bottom.
    fn dot(&mut self, x: usize, y: usize, ink: Color) {
        let (column, rows) = (x / 2, self.height * 4);
        if column < self.width && y < rows {
            let from_top = rows - 1 - y;
            let at = from_top / 4 * self.width + column;
            self.dots[at] |= BITS[from_top % 4][x % 2];
            self.inks[at] = ink;
        }
    }

    fn render(&self, area: Rect, buffer: &mut Buffer) {
        for (at, dots) in self.dots.iter().enumerate().filter(|(_, dots)| **dots != 0) {
            let (x, y) = ((at % self.width) as u16, (at / self.width) as u16);
            if let Some(cell) = buffer.cell_mut((area.x + x, area.y + y)) {
                let braille = char::from_u32(0x2800 + u32::from(*dots)).unwrap_or(' ');
                cell.set_char(braille).set_fg(self.inks[at]);
            }
        }
    }
}

/// The time of a column, and the other way round: the past in its share of the width, the future
/// in the rest.
struct PlotTimes {
    /// The dot of now.
    now: usize,
    end: usize,
    span: f64,
    future: f64,
}

impl PlotTimes {
    fn new(width: usize, plot: &TextPlot) -> PlotTimes {
        let end = width.saturating_mul(2).saturating_sub(1);
        // As far as the range goes, where that is not much farther than the best guess.
        let future = plot.future.map_or(0.0, |future| {
            let seconds = future.seconds.max(1.0);
            future.at_most.unwrap_or(f64::MAX).clamp(1.1 * seconds, 1.6 * seconds)
        });
        // One scale for both as long as both can be seen.
        let share = if future > 0.0 { future / (plot.span + future) } else { 0.0 };
        let share = if future > 0.0 { share.clamp(0.28, 0.5) } else { 0.0 };
        let now = end - (end as f64 * share).round() as usize;
        PlotTimes { now, end, span: plot.span.max(1.0), future }
    }

    fn past(&self, ago: f64) -> Option<usize> {
        let back = ago / self.span * self.now as f64;
        (ago >= 0.0 && back <= self.now as f64).then(|| self.now - back.round() as usize)
    }

    fn ahead(&self, seconds: f64) -> usize {
        let room = (self.end - self.now) as f64;
        let ahead = (seconds / self.future.max(1e-9) * room).round();
        (self.now + ahead.max(0.0) as usize).min(self.end)
    }
}

impl TextPlot {
    /// Draws it, where there is room for anything.
    pub(super) fn render(&self, area: Rect, buffer: &mut Buffer) {
        let below = u16::from(self.axis);
        if area.width < 16 || area.height < 3 + below {
            return;
        }
        buffer.set_stringn(area.x, area.y, &self.title, usize::from(area.width), STRONG);
        let (title, now) = (self.title.chars().count(), self.now.chars().count());
        if title + now + 2 <= usize::from(area.width) {
            buffer.set_string(area.right() - now as u16, area.y, &self.now, Style::new());
        }
        let gutter = self.top_label.chars().count().max(4) as u16 + 1;
        let body = Rect {
            x: area.x + gutter,
            y: area.y + 1,
            width: area.width - gutter,
            height: area.height - 1 - below,
        };
        let label = |buffer: &mut Buffer, y: u16, text: &str| {
            let x = body.x - 1 - (text.chars().count() as u16).min(gutter - 1);
            buffer.set_stringn(x, y, text, usize::from(gutter), FAINT);
        };
        label(buffer, body.y, &self.top_label);
        label(buffer, body.bottom() - 1, &self.bottom_label);
        let times = PlotTimes::new(usize::from(body.width), self);
        let mut canvas = DotCanvas::new(body);
        for series in &self.series {
            self.draw_series(&mut canvas, &times, series, self.series.len() == 1);
        }
        self.draw_future(&mut canvas, &times);
        canvas.render(body, buffer);
        self.draw_limit(body, &times, buffer);
        if self.axis {
            self.draw_axis(body, &times, buffer);
        }
    }

    fn height_of(&self, value: f64, rows: usize) -> usize {
        let most = (rows * 4).saturating_sub(1) as f64;
        let share = (value - self.bottom) / (self.top - self.bottom).max(1e-9);
        (share * most).round().clamp(0.0, most) as usize
    }

    fn draw_series(
        &self,
        canvas: &mut DotCanvas,
        times: &PlotTimes,
        series: &PlotSeries,
        fill: bool,
    ) {
        let mut before: Option<(usize, usize)> = None;
        for (t, value) in &series.points {
            let place = times.past(self.last - t);
            let (Some(x), Some(value)) = (place, value) else {
                before = None;
                continue;
            };
            let y = self.height_of(*value, canvas.height);
            let (from_x, from_y) = before.unwrap_or((x, y));
            let steps = x.abs_diff(from_x).max(1);
            for step in 0..=steps {
                let at = from_x + step.min(x - from_x.min(x));
                let share = step as f64 / steps as f64;
                let level = from_y as f64 + (y as f64 - from_y as f64) * share;
                let level = level.round() as usize;
                let low = if fill { 0 } else { level };
                (low..=level).for_each(|dot| canvas.dot(at, dot, series.colour));
            }
            // A steep rise within a column is a line too.
            (from_y.min(y)..=from_y.max(y)).for_each(|dot| canvas.dot(x, dot, series.colour));
            before = Some((x, y));
        }
    }

    /// Dashes from now to where it reaches the limit, or the top.
    fn draw_future(&self, canvas: &mut DotCanvas, times: &PlotTimes) {
        let Some(future) = self.future else { return };
        let end = self.limit.as_ref().map_or(self.top, |(limit, _)| *limit);
        let (from, to) = (times.now + 1, times.ahead(future.seconds));
        let rise = end - future.from;
        for x in from..=to {
            let share = (x - times.now) as f64 / (to - times.now).max(1) as f64;
            if (x - from) % 5 < 3 {
                let y = self.height_of(future.from + rise * share, canvas.height);
                canvas.dot(x, y, ALARM);
            }
        }
    }

    fn row_of(&self, value: f64, body: Rect) -> u16 {
        let dots = self.height_of(value, usize::from(body.height));
        body.bottom() - 1 - (dots / 4) as u16
    }

    /// The limit across the plot, and on it when it is reached: from the soonest to the latest.
    fn draw_limit(&self, body: Rect, times: &PlotTimes, buffer: &mut Buffer) {
        let end = self.limit.as_ref().map_or(self.top, |(limit, _)| *limit);
        let y = self.row_of(end, body);
        if let Some((_, text)) = &self.limit {
            for x in body.left()..body.right() {
                buffer.set_string(x, y, "─", Style::new().fg(ALARM));
            }
            let room = usize::from(body.width).saturating_sub(2);
            buffer.set_stringn(body.x + 1, y, format!(" {text} "), room, ALERT);
        }
        let Some(future) = self.future else { return };
        let column = |seconds: f64| body.x + (times.ahead(seconds) / 2) as u16;
        let latest = future.at_most.map_or(body.right() - 1, column);
        for x in column(future.at_least)..=latest.min(body.right() - 1) {
            buffer.set_string(x, y, "═", ALERT);
        }
        buffer.set_string(column(future.seconds).min(body.right() - 1), y, "◆", ALERT);
    }

    fn draw_axis(&self, body: Rect, times: &PlotTimes, buffer: &mut Buffer) {
        let y = body.bottom();
        let past = format!("-{}", short(self.span));
        buffer.set_stringn(body.x, y, &past, usize::from(body.width), FAINT);
        let now = body.x + (times.now / 2) as u16;
        match self.future {
            None => {
                let x = body.right().saturating_sub(3);
                buffer.set_string(x, y, "now", FAINT);
            }
            Some(future) => {
                let latest = future.at_most.map_or("?".to_string(), short);
                let text =
                    format!("+{} ({} to {latest})", short(future.seconds), short(future.at_least));
                let width = text.chars().count() as u16;
                let x = body.right().saturating_sub(width).max(body.x);
                buffer.set_stringn(x, y, &text, usize::from(body.width), ALERT);
                let word = now.saturating_sub(1);
                if word + 4 <= x && word > body.x + past.chars().count() as u16 {
                    buffer.set_string(word, y, "now", FAINT);
                }
            }
        }
    }
}

/// `28 s`, `5 min`, `2.5 h`.
fn short(seconds: f64) -> String {
    crate::command::monitor::table::duration(seconds)
}
