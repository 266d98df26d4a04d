//! `report.html`: one file that opens without a network, in light and dark, and on paper.
//!
//! The templates are checked when they are compiled, and escape every text. Text from outside
//! also goes through [`one_line`], which removes control characters. The page's own policy
//! forbids it to load or run anything.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plimsoll::text::one_line;

use super::sheet::{DASH, ModelSheet, ReportRow, ReportTone, Sheet};
use super::svg::{self, Series};
use crate::record::{BenchRecord, ModelRecord, Status};
use crate::stats::TimePoint;

/// The page may show its own style and pictures, and load or run nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The style of every HTML report: light, dark and on paper.
pub const STYLE: &str = include_str!("style.css");

/// A frame to show, with what was found in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Its name: which frame of which slot.
    pub name: String,
    /// The encoded picture.
    pub bytes: Vec<u8>,
    /// What it is encoded as.
    pub format: PictureFormat,
    /// Columns of the frame.
    pub width: usize,
    /// Rows of the frame.
    pub height: usize,
    /// What was found: left, top, right, bottom in frame pixels, and a label.
    pub boxes: Vec<([f32; 4], String)>,
}

/// How a picture is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// Windows bitmap, which needs no encoder.
    Bmp,
}

impl PictureFormat {
    fn mime(self) -> &'static str {
        match self {
            PictureFormat::Jpeg => "image/jpeg",
            PictureFormat::Png => "image/png",
            PictureFormat::Bmp => "image/bmp",
        }
    }
}

/// The record as one HTML file.
#[must_use]
pub fn render(record: &BenchRecord, pictures: &[Picture]) -> String {
    let sheet = Sheet::new(record);
    let title = one_line(&sheet.title);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (title) }
                        p.sub { (one_line(&record.summary.text)) }
                    }
                    @if let Some(why) = &sheet.interruption {
                        p.note.bad {
                            b { "Interrupted" } ": " (one_line(why)) ". What was measured is kept."
                        }
                    }
                    (safety(&sheet))
                    @for (model, words) in record.models.iter().zip(&sheet.models) {
                        (model_section(model, words))
                    }
                    (machine(record, &sheet))
                    @if !pictures.is_empty() { (frames(pictures)) }
                    (section("Doubts", &html! {
                        @if sheet.doubts.is_empty() { p { "None." } } @else { (list(&sheet.doubts)) }
                    }))
                    (section("About this run", &table(&sheet.about)))
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn section(name: &str, body: &Markup) -> Markup {
    html! { section { h2 { (one_line(name)) } (body) } }
}

fn table(rows: &[ReportRow]) -> Markup {
    html! {
        table.facts {
            @for row in rows {
                @let value = if row.value.is_empty() { DASH } else { &row.value };
                tr { th scope="row" { (one_line(&row.label)) } td { (one_line(value)) } }
            }
        }
    }
}

fn list(items: &[String]) -> Markup {
    html! { ul { @for item in items { li { (one_line(item)) } } } }
}

/// Two tables side by side, where there is room.
fn two(left: &Markup, right: &Markup) -> Markup {
    html! { div.two { div { (left) } div { (right) } } }
}

fn safety(sheet: &Sheet) -> Markup {
    let (tone, sign) = match sheet.status.0 {
        ReportTone::Good => ("good", "✓"),
        ReportTone::Bad => ("bad", "✗"),
        ReportTone::Unknown => ("unknown", "?"),
    };
    let slots = html! {
        @if !sheet.closest.is_empty() {
            h3 { "Models closest to the limit" } (table(&sheet.closest))
        }
        @if !sheet.violations.is_empty() { h3 { "Violations" } (list(&sheet.violations)) }
    };
    let body = html! {
        p.note.(tone) { b { (sign) } " " (one_line(&sheet.status.1)) }
        (two(&table(&sheet.safety), &slots))
    };
    section("Memory Safety Summary", &body)
}

fn model_section(model: &ModelRecord, words: &ModelSheet) -> Markup {
    let tone = match words.status {
        Status::Completed => "good",
        Status::Failed => "bad",
        Status::Skipped | Status::Interrupted => "unknown",
    };
    let memory = html! { h3 { (words.memory_title) } (table(&words.memory)) };
    let body = html! {
        p {
            "Slot " (one_line(&words.slot)) " "
            span.pill.(tone) { (words.status.to_string()) }
            @if let Some(reason) = &words.reason { " " (one_line(reason)) }
        }
        @if model.performance.is_some() {
            (two(&table(&words.facts), &memory))
            (latency(words))
            (plots(model))
        }
    };
    section(&words.name, &body)
}

fn latency(words: &ModelSheet) -> Markup {
    let Some((head, lines)) = words.latency.split_first() else { return Markup::default() };
    html! {
        div.wide {
            table.numbers {
                thead { tr { @for cell in head { th { (one_line(cell)) } } } }
                tbody {
                    @for line in lines { tr { @for cell in line { td { (one_line(cell)) } } } }
                }
            }
        }
    }
}

/// A plot with its name and, for several lines, a legend; nothing where there is no plot.
fn figure(name: &str, plot: Option<&Markup>, legend: &[Series<'_>]) -> Markup {
    html! {
        @if let Some(plot) = plot {
            figure {
                figcaption {
                    (one_line(name))
                    @for (at, series) in legend.iter().enumerate() {
                        " " span class={ "key s" (at % 6) } { (one_line(series.name)) }
                    }
                }
                (plot)
            }
        }
    }
}

fn plots(model: &ModelRecord) -> Markup {
    let timeline = &model.timeline;
    let whole = model.performance.as_ref().map(|p| p.whole);
    let marks: Vec<(&str, f64)> = whole
        .iter()
        .flat_map(|w| [("p50", w.p50_ms), ("p95", w.p95_ms), ("p99", w.p99_ms)])
        .collect();
    let series = [Series { name: "whole", points: &timeline.whole_ms }];
    let memory = [Series { name: "memory", points: &timeline.memory_gb }];
    let limit = model.gpu_memory.limit_gb;
    let name = "Latency distribution";
    let all = [
        (name, svg::distribution(name, &timeline.distribution, &marks)),
        ("Latency over time", svg::over_time("Latency over time", "ms", &series, None)),
        ("Memory over time", svg::over_time("Memory over time", "GiB", &memory, limit)),
    ];
    html! { div.plots { @for (name, plot) in &all { (figure(name, plot.as_ref(), &[])) } } }
}

fn machine(record: &BenchRecord, sheet: &Sheet) -> Markup {
    let timeline = &record.system_metrics.timeline;
    let ram = [("in use".to_string(), timeline.ram_used_gb.clone())].into();
    let all = [
        ("System memory over time", "GiB", &ram),
        ("Temperatures", "°C", &timeline.temperatures_c),
        ("Power", "W", &timeline.power_w),
    ];
    let draw = |(name, unit, lines): (&str, &str, &BTreeMap<String, Vec<TimePoint>>)| {
        let series: Vec<Series<'_>> =
            lines.iter().map(|(name, points)| Series { name, points }).collect();
        figure(name, svg::over_time(name, unit, &series, None).as_ref(), &series)
    };
    let (_, usage, figures) = &sheet.usage;
    let (architecture, parts) = &sheet.architecture;
    let usage = html! { h3 { (one_line(usage)) } (table(figures)) };
    let architecture = html! { h3 { (one_line(architecture)) } (table(parts)) };
    let body = html! {
        (two(&usage, &architecture))
        (table(&sheet.system))
        div.plots { @for plot in all { (draw(plot)) } }
    };
    section("System", &body)
}

fn frames(pictures: &[Picture]) -> Markup {
    let body = html! { div.plots { @for picture in pictures { (frame(picture)) } } };
    section("Frames", &body)
}

/// A picture with its boxes.
fn frame(picture: &Picture) -> Markup {
    let (w, h) = (picture.width, picture.height);
    let size = (w as f32 / 40.0).max(6.0);
    let place = |value: f32| format!("{value:.1}");
    html! {
        figure {
            figcaption { (one_line(&picture.name)) }
            svg.frame viewBox={ "0 0 " (w) " " (h) } {
                image href={ "data:" (picture.format.mime()) ";base64," (base64(&picture.bytes)) }
                    width=(w) height=(h) {}
                @for ([left, top, right, bottom], label) in &picture.boxes {
                    rect.box x=(place(*left)) y=(place(*top))
                        width=(place((right - left).max(0.0)))
                        height=(place((bottom - top).max(0.0))) {}
                    text.box-name x=(place(*left)) y=(place((top - size * 0.3).max(size)))
                        font-size=(place(size)) { (one_line(label)) }
                }
            }
        }
    }
}

/// Bytes as base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let all = a << 16 | b << 8 | c;
        for at in 0..4 {
            let letter = LETTERS[(all >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_as_in_the_standard() {
        let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let want = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(cases.map(|text| base64(text.as_bytes())), want);
    }
}
