//! Plots as inline SVG: lines with a band from least to most, bars, and the limit as a line.
//!
//! No colour is written here: classes are, and the page gives them colours for light and
//! dark. A plot is 640 × 220 units and scales with the page.

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

/// Text that is safe in HTML and in quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
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

/// A number on an axis: as short as it can be told apart.
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

    fn frame(&self, x_name: &str, y_name: &str) -> String {
        let mut svg = String::new();
        for y in ticks(self.y.0, self.y.1, 5.0) {
            let (at, text) = (self.py(y), label(y, self.y.1 - self.y.0));
            svg += &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 3.5
            );
        }
        for x in ticks(self.x.0, self.x.1, 7.0) {
            let (at, text) = (self.px(x), label(x, self.x.1 - self.x.0));
            svg += &format!(
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                HEIGHT - BOTTOM + 15.0
            );
        }
        svg + &format!(
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text class=\"axis\" x=\"4\" y=\"11\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 4.0,
            escape(x_name),
            escape(y_name)
        )
    }
}

fn page(name: &str, body: &str) -> String {
    format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\
         <title>{0}</title>{body}</svg>",
        escape(name)
    )
}

/// Lines over time, each with a band from least to most; `limit` is drawn as the line.
/// `None` where there is nothing to draw.
#[must_use]
pub fn over_time(name: &str, unit: &str, all: &[Series<'_>], limit: Option<f64>) -> Option<String> {
    let points = || all.iter().flat_map(|series| series.points);
    points().next()?;
    let end = points().map(|p| p.t).fold(0.0, f64::max);
    let start = points().map(|p| p.t).fold(end, f64::min);
    let most = points().map(|p| p.max).fold(limit.unwrap_or(0.0), f64::max);
    let axes = Axes::new((start, end), (0.0, most * 1.08));
    let mut body = axes.frame("s", unit);
    for (at, series) in all.iter().enumerate() {
        let class = at % 6;
        let (mut up, mut down, mut line) = (String::new(), Vec::new(), String::new());
        for p in series.points {
            let x = axes.px(p.t);
            up += &format!("{x:.1},{:.1} ", axes.py(p.max));
            down.push(format!("{x:.1},{:.1}", axes.py(p.min)));
            line += &format!("{x:.1},{:.1} ", axes.py(p.mean));
        }
        down.reverse();
        body += &format!("<polygon class=\"band s{class}\" points=\"{up}{}\"/>", down.join(" "));
        body += &format!("<polyline class=\"line s{class}\" points=\"{}\"/>", line.trim_end());
    }
    if let Some(limit) = limit {
        let y = axes.py(limit);
        body += &format!(
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"limit-name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">limit {limit:.2} {}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT - 4.0,
            y + 13.0,
            escape(unit)
        );
    }
    Some(page(name, &body))
}

/// How many frames took how long, with the percentiles marked. `None` of nothing.
#[must_use]
pub fn distribution(name: &str, bins: &[Bin], marks: &[(&str, f64)]) -> Option<String> {
    let (first, last) = (bins.first()?, bins.last()?);
    let most = bins.iter().map(|bin| bin.frames).max()? as f64;
    // The last bin holds the tail, however far it reaches; it is drawn as wide as others.
    let end = last.from_ms + (first.to_ms - first.from_ms);
    let axes = Axes::new((first.from_ms, end), (0.0, most * 1.08));
    let mut body = axes.frame("ms (the last bar holds all that took longer)", "frames");
    for bin in bins {
        let (x, to) = (axes.px(bin.from_ms), axes.px(bin.to_ms.min(end)));
        let y = axes.py(bin.frames as f64);
        body += &format!(
            "<rect class=\"bar\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\"/>",
            (to - x - 0.6).max(0.4),
            axes.py(0.0) - y
        );
    }
    for (at, (text, value)) in marks.iter().enumerate() {
        let x = axes.px(value.clamp(first.from_ms, end));
        let y = TOP + 8.0 + 12.0 * at as f64;
        let (dx, anchor) = if x > WIDTH - 60.0 { (-4.0, "end") } else { (4.0, "start") };
        body += &format!(
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            axes.py(0.0),
            x + dx,
            escape(text)
        );
    }
    Some(page(name, &body))
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
        assert_eq!(over_time("x", "ms", &[], Some(8.0)), None);
        assert_eq!(distribution("x", &[], &[]), None);
        let points = [TimePoint { t: 0.0, min: 1.0, mean: 2.0, max: 3.0 }];
        let series = [Series { name: "a", points: &points }];
        let svg = over_time("<b>\"", "ms", &series, None).unwrap();
        assert!(svg.contains("&lt;b&gt;&quot;") && !svg.contains("<b>") && !svg.contains("NaN"));
    }
}
