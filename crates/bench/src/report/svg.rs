//! Plots as inline SVG: lines with a band from least to most, bars, points, and the limit as a
//! line. Scales follow the data. A limit is drawn where the data come near it, and is otherwise a
//! note, as it would flatten everything else.
//!
//! Elements have classes and no colours; the page's style gives them colours for light and
//! dark. A plot is 460 × 200 units and scales with the page.

use maud::{Markup, Render, html};
use plimsoll::text::one_line;

use crate::record::Bin;
use crate::stats::TimePoint;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 200.0;
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

/// A named point of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterPoint {
    /// Its name.
    pub name: String,
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
}

/// A curve: points from left to right.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A moment that a plot over time marks.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeMark {
    /// When.
    pub t: f64,
    /// What happened, in a word or two beside the mark.
    pub label: String,
    /// The same in full, shown when the pointer rests on the mark.
    pub detail: String,
}

/// A plot, and what it does not show.
#[derive(Debug)]
pub struct Plot {
    /// The plot.
    pub drawing: Markup,
    /// What should be known with it, such as a limit that is far away.
    pub note: Option<String>,
}

/// From this share of a limit on, data are near it.
const NEAR: f64 = 0.6;

/// The range of an axis around data: a little more than they take, and from zero where they come
/// near to zero.
fn around(low: f64, high: f64) -> (f64, f64) {
    let span = high - low;
    if span < high.abs() * 0.02 {
        // Next to nothing changes: a magnified axis would show noise.
        let room = (high.abs() * 0.1).max(1e-9);
        return ((low - room).max(0.0), high + room);
    }
    let bottom = if low >= 0.0 && low < high * 0.5 { 0.0 } else { low - span * 0.08 };
    (bottom, high + span * 0.08)
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
            @for x in ticks(self.x.0, self.x.1, 6.0) {
                @let at = (self.px(x), HEIGHT - BOTTOM + 15.0);
                (text("tick", at, "middle", &label(x, self.x.1 - self.x.0)))
            }
            (text("axis", (WIDTH - RIGHT, HEIGHT - 4.0), "end", x_name))
            (text("axis", (LEFT, 10.0), "start", y_name))
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

/// Lines over time, each with a band from least to most. `limit` is drawn as a line where the data
/// are near it. `None` where there is nothing to draw.
#[must_use]
pub fn over_time(name: &str, unit: &str, all: &[Series<'_>], limit: Option<f64>) -> Option<Plot> {
    over_time_with_marks(name, ("s", unit), all, limit, &[])
}

/// The same with moments marked; labels that would cover each other are left out. `axes_names` are
/// the units across and up.
#[must_use]
pub fn over_time_with_marks(
    name: &str,
    axes_names: (&str, &str),
    all: &[Series<'_>],
    limit: Option<f64>,
    marks: &[TimeMark],
) -> Option<Plot> {
    let (x_name, unit) = axes_names;
    let points = || all.iter().flat_map(|series| series.points);
    points().next()?;
    let end = points().map(|p| p.t).fold(0.0, f64::max);
    let start = points().map(|p| p.t).fold(end, f64::min);
    let most = points().map(|p| p.max).fold(f64::MIN, f64::max);
    let least = points().map(|p| p.min).fold(f64::MAX, f64::min);
    // A mark says that the limit was met, however far below it the data stay.
    let drawn = limit.filter(|limit| most >= limit * NEAR || !marks.is_empty());
    let axes = Axes::new((start, end), around(least, drawn.map_or(most, |limit| limit.max(most))));
    let body = html! {
        (axes.frame(x_name, unit))
        @for (at, series) in all.iter().enumerate() { (axes.series(at % 6, series.points)) }
        @if let Some(limit) = drawn {
            @let y = axes.py(limit);
            @let name = format!("limit {limit:.2} {unit}");
            (line("limit", (LEFT, y), (WIDTH - RIGHT, y)))
            (text("limit-name", (WIDTH - RIGHT - 4.0, y + 13.0), "end", &name))
        }
        (time_marks(&axes, marks))
    };
    let far = limit.filter(|_| drawn.is_none());
    let note = far.filter(|limit| *limit > 0.0).map(|limit| {
        format!(
            "the limit of {} is not near: {:.1} % in use",
            amount(limit, unit),
            most / limit * 100.0
        )
    });
    Some(Plot { drawing: plot(name, &body), note })
}

/// Lines from top to bottom with a head that can be pointed at.
fn time_marks(axes: &Axes, marks: &[TimeMark]) -> Markup {
    let mut free_from = LEFT;
    let mut place = |mark: &TimeMark| {
        let x = axes.px(mark.t.clamp(axes.x.0, axes.x.1));
        // A letter is about 7 units wide.
        let width = mark.label.chars().count() as f64 * 7.0 + 8.0;
        let is_left = x + width > WIDTH - RIGHT;
        let from = if is_left { x - width } else { x };
        let has_room = from >= free_from;
        if has_room {
            free_from = from + width;
        }
        (x, has_room.then_some(if is_left { (x - 6.0, "end") } else { (x + 6.0, "start") }))
    };
    html! {
        @for mark in marks {
            @let (x, label) = place(mark);
            g {
                title { (one_line(&mark.detail)) }
                (line("refusal", (x, TOP), (x, HEIGHT - BOTTOM)))
                circle.refusal-head cx=(tenth(x)) cy=(tenth(TOP)) r="4" {}
            }
            @if let Some((at, anchor)) = label {
                (text("limit-name", (at, HEIGHT - BOTTOM - 6.0), anchor, &mark.label))
            }
        }
    }
}

/// A size with its unit; many MiB are GiB.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "MiB" if value >= 1024.0 => format!("{:.2} GiB", value / 1024.0),
        _ => format!("{value:.2} {unit}"),
    }
}

/// Named points. `None` without one.
#[must_use]
pub fn scatter(name: &str, axes_names: (&str, &str), points: &[ScatterPoint]) -> Option<Plot> {
    let range = |of: fn(&ScatterPoint) -> f64| {
        let low = points.iter().map(of).reduce(f64::min)?;
        Some((low, points.iter().map(of).reduce(f64::max)?))
    };
    let wide = |(low, high): (f64, f64)| {
        let (low, high) = around(low, high);
        (low, high + (high - low) * 0.06)
    };
    let axes = Axes::new(wide(range(|p| p.x)?), wide(range(|p| p.y)?));
    let mut places: Vec<(f64, f64)> = Vec::new();
    let body = html! {
        (axes.frame(axes_names.0, axes_names.1))
        @for (at, point) in points.iter().enumerate() {
            @let (x, y) = (axes.px(point.x), axes.py(point.y));
            @let (dx, anchor) = if x > WIDTH * 0.62 { (-9.0, "end") } else { (9.0, "start") };
            @let label = free_place((x + dx, y + 4.0), &mut places);
            circle class={ "dot s" (at % 6) } cx=(tenth(x)) cy=(tenth(y)) r="5" {}
            (text(&format!("dot-name s{}", at % 6), label, anchor, &point.name))
        }
    };
    Some(Plot { drawing: plot(name, &body), note: None })
}

/// A place for a name beside a point that covers no other name.
fn free_place(wanted: (f64, f64), taken: &mut Vec<(f64, f64)>) -> (f64, f64) {
    let free = |y: f64, taken: &[(f64, f64)]| {
        taken.iter().all(|(x, other)| (x - wanted.0).abs() > 170.0 || (y - other).abs() > 12.0)
    };
    let steps = [0.0, -14.0, 14.0, -28.0, 28.0, -42.0, 42.0];
    let y = steps.iter().map(|step| wanted.1 + step).find(|y| free(*y, taken));
    let place = (wanted.0, y.unwrap_or(wanted.1).clamp(TOP + 8.0, HEIGHT - BOTTOM - 2.0));
    taken.push(place);
    place
}

/// Curves between 0 and 1 on both axes. `None` without a point.
#[must_use]
pub fn curves(name: &str, axes_names: (&str, &str), all: &[Curve]) -> Option<Plot> {
    all.iter().flat_map(|curve| &curve.points).next()?;
    let axes = Axes::new((0.0, 1.0), (0.0, 1.05));
    let body = html! {
        (axes.frame(axes_names.0, axes_names.1))
        @for (at, curve) in all.iter().enumerate() {
            @let points = curve.points.iter().map(|(x, y)| format!("{:.1},{:.1}", axes.px(*x), axes.py(*y)));
            @let points = points.collect::<Vec<_>>().join(" ");
            polyline class={ "line s" (at % 6) } points=(points) {}
        }
    };
    Some(Plot { drawing: plot(name, &body), note: None })
}

/// A matrix of counts: rows are the truth, columns what was found. Each row is coloured by its
/// own share. Names and counts are written where they fit. `None` where nothing was counted.
#[must_use]
pub fn matrix(name: &str, names: &[String], counts: &[Vec<u64>]) -> Option<Plot> {
    let n = counts.len();
    counts.iter().flatten().find(|count| **count > 0)?;
    let named = n <= 24;
    let (left, top) = if named { (118.0, 96.0) } else { (18.0, 36.0) };
    let cell = if n <= 12 { 42.0 } else { 560.0 / n as f64 };
    let at = |row: usize, column: usize| (left + column as f64 * cell, top + row as f64 * cell);
    // The names of the last columns lean beyond them.
    let beyond = if named { 60.0 } else { 4.0 };
    let (width, height) = (left + n as f64 * cell + beyond, top + n as f64 * cell + 4.0);
    let word = |number: usize| names.get(number).map_or_else(|| number.to_string(), Clone::clone);
    let square = |row: usize, column: usize, count: u64, all: u64| {
        let (x, y) = at(row, column);
        let share = count as f64 / all.max(1) as f64;
        let class = if row == column { "cell right" } else { "cell wrong" };
        let (low, high) = ("cell-count", "cell-count high");
        html! {
            rect class=(class) x=(tenth(x)) y=(tenth(y)) width=(tenth(cell - 1.0)) height=(tenth(cell - 1.0))
                fill-opacity=(format!("{:.3}", 0.12 + 0.88 * share)) {
                title { (one_line(&format!("{} found as {}: {count}", word(row), word(column)))) }
            }
            @if n <= 12 {
                (text(if share > 0.5 { high } else { low }, (x + cell / 2.0, y + cell / 2.0 + 4.0), "middle", &count.to_string()))
            }
        }
    };
    let drawing = html! {
        svg.matrix viewBox={ "0 0 " (tenth(width)) " " (tenth(height)) } role="img" aria-label=(one_line(name)) {
            title { (one_line(name)) }
            (text("axis", (left, 12.0), "start", "found →"))
            (text("axis", (4.0, top - 6.0), "start", "truth ↓"))
            @if named {
                @for number in 0..n {
                    @let (x, y) = (at(0, number).0 + cell / 2.0, at(number, 0).1 + cell / 2.0 + 4.0);
                    (text("tick", (left - 6.0, y), "end", &word(number)))
                    text.tick transform={ "translate(" (tenth(x + 3.0)) " " (tenth(top - 6.0)) ") rotate(-50)" } { (one_line(&word(number))) }
                }
            }
            @for (row, line) in counts.iter().enumerate() {
                @let all = line.iter().sum::<u64>();
                @for (column, count) in line.iter().enumerate().filter(|(_, count)| **count > 0) {
                    (square(row, column, *count, all))
                }
            }
        }
    };
    Some(Plot { drawing, note: None })
}

/// How many frames took how long, with the percentiles marked. `None` without frames.
#[must_use]
pub fn distribution(name: &str, bins: &[Bin], marks: &[(&str, f64)]) -> Option<Plot> {
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
        (axes.frame("ms (last bar: all that took longer)", "frames"))
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
    Some(Plot { drawing: plot(name, &body), note: None })
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
        let svg = over_time("<b>\"", "ms", &series, None).unwrap().drawing.into_string();
        assert!(svg.contains("&lt;b&gt;&quot;") && !svg.contains("<b>") && !svg.contains("NaN"));
    }

    #[test]
    fn scales_follow_the_data_and_a_limit_is_drawn_when_it_is_near() {
        let points = [TimePoint { t: 0.0, min: 40.0, mean: 41.0, max: 43.0 }];
        let series = [Series { name: "a", points: &points }];
        let far = over_time("x", "MiB", &series, Some(8192.0)).unwrap();
        assert_eq!(far.note.as_deref(), Some("the limit of 8.00 GiB is not near: 0.5 % in use"));
        let drawing = far.drawing.into_string();
        assert!(!drawing.contains("limit-name") && drawing.contains(">42<"), "{drawing}");
        let near = over_time("x", "MiB", &series, Some(50.0)).unwrap();
        assert_eq!(near.note, None);
        assert!(near.drawing.into_string().contains("limit 50.00 MiB"));
        assert_eq!(around(0.0, 10.0), (0.0, 10.8));
        assert!(around(40.0, 43.0).0 > 39.0);
        assert_eq!(around(5.0, 5.0), (4.5, 5.5), "a flat line lies in the middle");
    }

    #[test]
    fn moments_are_marked_and_their_labels_do_not_cover_each_other() {
        let points = [0.0, 10.0].map(|t| TimePoint { t, min: 1.0, mean: 2.0, max: 3.0 });
        let series = [Series { name: "a", points: &points }];
        let mark = |t: f64| TimeMark { t, label: format!("{t} GiB"), detail: format!("<b>{t}") };
        let marks = [mark(1.0), mark(1.01), mark(9.99), mark(99.0)];
        let far = over_time_with_marks("x", ("s", "GiB"), &series, Some(9.0), &marks).unwrap();
        assert!(far.note.is_none() && far.drawing.into_string().contains("limit 9.00 GiB"));
        let plot = over_time_with_marks("x", ("s", "GiB"), &series, None, &marks).unwrap();
        let svg = plot.drawing.into_string();
        assert_eq!(svg.matches("refusal-head").count(), 4);
        assert_eq!(svg.matches("limit-name").count(), 2, "{svg}");
        assert!(svg.contains("&lt;b&gt;1.01") && !svg.contains("<b>"), "{svg}");
    }

    #[test]
    fn names_of_points_do_not_cover_each_other() {
        let mut taken = Vec::new();
        let places: Vec<_> = (0..4).map(|_| free_place((100.0, 100.0), &mut taken)).collect();
        for (at, place) in places.iter().enumerate() {
            assert!(places[..at].iter().all(|other| (other.1 - place.1).abs() > 12.0));
        }
        let point = |name: &str, x, y| ScatterPoint { name: name.into(), x, y };
        let all = [point("a<b", 1.0, 0.5), point("c", 4.0, 0.6)];
        let drawing = scatter("x", ("ms", "mAP"), &all).unwrap().drawing.into_string();
        assert!(drawing.contains("a&lt;b") && !drawing.contains("NaN"), "{drawing}");
        assert!(scatter("x", ("ms", "mAP"), &[]).is_none());
        assert!(matrix("x", &[], &[vec![0]]).is_none());
        let counts = vec![vec![3, 1], vec![0, 2]];
        let names = ["dog".to_string(), "nothing".to_string()];
        let drawing = matrix("x", &names, &counts).unwrap().drawing.into_string();
        assert!(drawing.contains("dog found as nothing: 1"), "{drawing}");
    }
}
