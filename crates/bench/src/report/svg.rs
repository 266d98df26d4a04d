//! Plots as inline SVG: lines with a band from least to most, bars, and the limit as a line.
//!
//! Elements have classes and no colours; the page's style gives them colours for light and
//! dark. A plot is 640 × 220 units and scales with the page.

use maud::{Markup, Render, html};
use plimsoll::text::one_line;

use crate::record::Bin;
use crate::stats::TimePoint;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 34.0;

/// A named line of a plot.
#[derive(Debug, Clone, Copy)]
pub struct Series<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Its points, in the order of time.
    pub points: &'a [TimePoint],
}

/// Text that is safe in HTML and in attributes with double quotes: one line, escaped.
#[must_use]
pub fn escape(text: &str) -> String {
    one_line(text).render().into_string()
}

/// Round numbers that divide a range into about `wanted` steps.
fn ticks(low: f64, high: f64, wanted: f64) -> Vec<f64> {
    let rough = (high - low) / wanted;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough);
    let step = factor.unwrap_or(10.0) * power;
    let first = (low / step).ceil() as i64;
    (first..first + 20).map(|n| n as f64 * step).take_while(|t| *t <= high + step * 1e-9).collect()
}

/// A number on an axis, with as few digits as distinguish it.
fn label(value: f64, range: f64) -> String {
    let digits = if range >= 10.0 { 0 } else { (1.0 - range.max(1e-9).log10().floor()) as usize };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// Where values lie on the page.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn new(x: (f64, f64), y: (f64, f64)) -> Axes {
        let open = |(low, high): (f64, f64)| (low, if high > low { high } else { low + 1.0 });
        Axes { x: open(x), y: open(y) }
    }

    fn px(&self, x: f64) -> f64 {
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - (y - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    /// A line through the means, and a band from least to most.
    fn series(&self, class: usize, points: &[TimePoint]) -> Markup {
        let at = |p: &TimePoint, value: f64| format!("{:.1},{:.1}", self.px(p.t), self.py(value));
        let up = points.iter().map(|p| at(p, p.max));
        let down = points.iter().rev().map(|p| at(p, p.min));
        let band = up.chain(down).collect::<Vec<_>>().join(" ");
        let means = points.iter().map(|p| at(p, p.mean)).collect::<Vec<_>>().join(" ");
        html! {
            polygon class={ "band s" (class) } points=(band) {}
            polyline class={ "line s" (class) } points=(means) {}
        }
    }

    fn frame(&self, x_name: &str, y_name: &str) -> Markup {
        html! {
            @for y in ticks(self.y.0, self.y.1, 5.0) {
                @let at = self.py(y);
                (line("grid", (LEFT, at), (WIDTH - RIGHT, at)))
                (text("tick", (LEFT - 6.0, at + 3.5), "end", &label(y, self.y.1 - self.y.0)))
            }
            @for x in ticks(self.x.0, self.x.1, 7.0) {
                @let at = (self.px(x), HEIGHT - BOTTOM + 15.0);
                (text("tick", at, "middle", &label(x, self.x.1 - self.x.0)))
            }
            (text("axis", (WIDTH - RIGHT, HEIGHT - 4.0), "end", x_name))
            (text("axis", (4.0, 11.0), "start", y_name))
        }
    }
}

/// A coordinate.
fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(tenth(from.0)) x2=(tenth(to.0)) y1=(tenth(from.1)) y2=(tenth(to.1)) {} }
}

fn text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> Markup {
    html! { text class=(class) x=(tenth(x)) y=(tenth(y)) text-anchor=(anchor) { (one_line(text)) } }
}

fn plot(name: &str, body: &Markup) -> Markup {
    let name = one_line(name);
    html! {
        svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(name) {
            title { (name) }
            (body)
        }
    }
}

/// Lines over time, each with a band from least to most; `limit` is drawn as a line.
/// `None` where there is nothing to draw.
#[must_use]
pub fn over_time(name: &str, unit: &str, all: &[Series<'_>], limit: Option<f64>) -> Option<Markup> {
    let points = || all.iter().flat_map(|series| series.points);
    points().next()?;
    let end = points().map(|p| p.t).fold(0.0, f64::max);
    let start = points().map(|p| p.t).fold(end, f64::min);
    let most = points().map(|p| p.max).fold(limit.unwrap_or(0.0), f64::max);
    let axes = Axes::new((start, end), (0.0, most * 1.08));
    let body = html! {
        (axes.frame("s", unit))
        @for (at, series) in all.iter().enumerate() { (axes.series(at % 6, series.points)) }
        @if let Some(limit) = limit {
            @let y = axes.py(limit);
            @let name = format!("limit {limit:.2} {unit}");
            (line("limit", (LEFT, y), (WIDTH - RIGHT, y)))
            (text("limit-name", (WIDTH - RIGHT - 4.0, y + 13.0), "end", &name))
        }
    };
    Some(plot(name, &body))
}

/// How many frames took how long, with the percentiles marked. `None` without frames.
#[must_use]
pub fn distribution(name: &str, bins: &[Bin], marks: &[(&str, f64)]) -> Option<Markup> {
    let (first, last) = (bins.first()?, bins.last()?);
    let most = bins.iter().map(|bin| bin.frames).max()? as f64;
    // The last bin has the whole tail, and is drawn as wide as the others.
    let end = last.from_ms + (first.to_ms - first.from_ms);
    let axes = Axes::new((first.from_ms, end), (0.0, most * 1.08));
    let bar = |bin: &Bin| {
        let (x, to) = (axes.px(bin.from_ms), axes.px(bin.to_ms.min(end)));
        let y = axes.py(bin.frames as f64);
        [x, y, (to - x - 0.6).max(0.4), axes.py(0.0) - y].map(|value| format!("{value:.2}"))
    };
    let mark = |at: usize, value: f64| {
        let x = axes.px(value.clamp(first.from_ms, end));
        let (dx, anchor) = if x > WIDTH - 60.0 { (-4.0, "end") } else { (4.0, "start") };
        (x, (x + dx, TOP + 8.0 + 12.0 * at as f64), anchor)
    };
    let body = html! {
        (axes.frame("ms (the last bar has all that took longer)", "frames"))
        @for bin in bins {
            @let [x, y, width, height] = bar(bin);
            rect.bar x=(x) y=(y) width=(width) height=(height) {}
        }
        @for (at, (name, value)) in marks.iter().enumerate() {
            @let (x, place, anchor) = mark(at, *value);
            (line("mark", (x, TOP), (x, axes.py(0.0))))
            (text("tick", place, anchor, name))
        }
    };
    Some(plot(name, &body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 8.6, 4.0), [0.0, 5.0]);
        assert_eq!(ticks(0.0, 1.0, 4.0), [0.0, 0.5, 1.0]);
        assert_eq!(ticks(3.0, 3.0, 4.0), [3.0]);
        assert_eq!(ticks(0.0, f64::NAN, 4.0), [0.0]);
        assert_eq!((label(0.5, 1.0), label(20.0, 40.0)), ("0.5".into(), "20".into()));
    }

    #[test]
    fn nothing_to_draw_is_none_and_names_are_escaped() {
        assert!(over_time("x", "ms", &[], Some(8.0)).is_none());
        assert!(distribution("x", &[], &[]).is_none());
        let points = [TimePoint { t: 0.0, min: 1.0, mean: 2.0, max: 3.0 }];
        let series = [Series { name: "a", points: &points }];
        let svg = over_time("<b>\"", "ms", &series, None).unwrap().into_string();
        assert!(svg.contains("&lt;b&gt;&quot;") && !svg.contains("<b>") && !svg.contains("NaN"));
    }
}
