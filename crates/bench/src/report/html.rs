//! `report.html`: one file that opens without a network, in light and dark, and on paper.
//!
//! Every text that came from outside is escaped, and the page forbids itself to load or
//! run anything.

use super::sheet::{DASH, ModelSheet, ReportRow, ReportTone, Sheet};
use super::svg::{self, Series, escape};
use crate::record::{BenchRecord, ModelRecord, Status};
use crate::stats::TimePoint;

/// The look of every report of ours: light, dark and on paper.
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
    /// Windows bitmap: no encoder needed.
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
    let title = escape(&sheet.title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n\
         <header><h1>{title}</h1><p class=\"sub\">{}</p></header>\n",
        escape(&record.summary.text)
    );
    if let Some(why) = &sheet.interruption {
        page += &format!(
            "<p class=\"note bad\"><b>Interrupted</b>: {}. What was measured is kept.</p>\n",
            escape(why)
        );
    }
    page += &safety(&sheet);
    for (model, words) in record.models.iter().zip(&sheet.models) {
        page += &model_section(model, words);
    }
    page += &machine(record, &sheet);
    page += &frames(pictures);
    page += &doubts(&sheet);
    page + &section("About this run", &table(&sheet.about)) + "</main></body></html>\n"
}

fn class(tone: ReportTone) -> (&'static str, &'static str) {
    match tone {
        ReportTone::Good => ("good", "✓"),
        ReportTone::Bad => ("bad", "✗"),
        ReportTone::Unknown => ("unknown", "?"),
    }
}

fn section(name: &str, body: &str) -> String {
    format!("<section><h2>{}</h2>{body}</section>\n", escape(name))
}

fn table(rows: &[ReportRow]) -> String {
    let line = |row: &ReportRow| {
        let value = if row.value.is_empty() { DASH } else { &row.value };
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(&row.label), escape(value))
    };
    format!("<table class=\"facts\">{}</table>", rows.iter().map(line).collect::<String>())
}

fn list(items: &[String]) -> String {
    let item = |text: &String| format!("<li>{}</li>", escape(text));
    format!("<ul>{}</ul>", items.iter().map(item).collect::<String>())
}

fn safety(sheet: &Sheet) -> String {
    let (tone, sign) = class(sheet.status.0);
    let mut body = format!(
        "<p class=\"note {tone}\"><b>{sign}</b> {}</p><div class=\"two\"><div>{}</div><div>",
        escape(&sheet.status.1),
        table(&sheet.safety)
    );
    if !sheet.closest.is_empty() {
        body += &format!("<h3>Models closest to the limit</h3>{}", table(&sheet.closest));
    }
    if !sheet.violations.is_empty() {
        body += &format!("<h3>Violations</h3>{}", list(&sheet.violations));
    }
    section("Memory Safety Summary", &(body + "</div></div>"))
}

fn model_section(model: &ModelRecord, words: &ModelSheet) -> String {
    let tone = match words.status {
        Status::Completed => "good",
        Status::Failed => "bad",
        Status::Skipped | Status::Interrupted => "unknown",
    };
    let mut body = format!(
        "<p>Slot {} <span class=\"pill {tone}\">{}</span>",
        escape(&words.slot),
        words.status
    );
    if let Some(reason) = &words.reason {
        body += &format!(" {}", escape(reason));
    }
    body += "</p>";
    if model.performance.is_some() {
        body += &format!(
            "<div class=\"two\"><div>{}</div><div><h3>{}</h3>{}</div></div>",
            table(&words.facts),
            words.memory_title,
            table(&words.memory)
        );
        body += &latency(words);
        body += &plots(model);
    }
    section(&words.name, &body)
}

fn latency(words: &ModelSheet) -> String {
    let mut lines = words.latency.iter();
    let cells = |line: &[String; 9], tag: &str| {
        let cell = |text: &String| format!("<{tag}>{}</{tag}>", escape(text));
        line.iter().map(cell).collect::<String>()
    };
    let head = lines.next().map(|line| cells(line, "th")).unwrap_or_default();
    let body = lines.map(|line| format!("<tr>{}</tr>", cells(line, "td"))).collect::<String>();
    format!(
        "<div class=\"wide\"><table class=\"numbers\"><thead><tr>{head}</tr></thead>\
         <tbody>{body}</tbody></table></div>"
    )
}

fn figure(name: &str, svg: Option<String>, legend: &str) -> String {
    svg.map_or(String::new(), |svg| {
        format!("<figure><figcaption>{}{legend}</figcaption>{svg}</figure>", escape(name))
    })
}

fn plots(model: &ModelRecord) -> String {
    let timeline = &model.timeline;
    let whole = model.performance.as_ref().map(|p| p.whole);
    let marks: Vec<(&str, f64)> = whole
        .iter()
        .flat_map(|w| [("p50", w.p50_ms), ("p95", w.p95_ms), ("p99", w.p99_ms)])
        .collect();
    let series = [Series { name: "whole", points: &timeline.whole_ms }];
    let memory = [Series { name: "memory", points: &timeline.memory_gb }];
    let line = model.gpu_memory.limit_gb;
    let all = [
        (
            "Latency distribution",
            svg::distribution("Latency distribution", &timeline.distribution, &marks),
        ),
        ("Latency over time", svg::over_time("Latency over time", "ms", &series, None)),
        ("Memory over time", svg::over_time("Memory over time", "GiB", &memory, line)),
    ];
    let figures = all.into_iter().map(|(name, svg)| figure(name, svg, ""));
    format!("<div class=\"plots\">{}</div>", figures.collect::<String>())
}

fn machine(record: &BenchRecord, sheet: &Sheet) -> String {
    let timeline = &record.system_metrics.timeline;
    let ram = [("in use".to_string(), timeline.ram_used_gb.clone())].into();
    let all = [
        ("System memory over time", "GiB", &ram),
        ("Temperatures", "°C", &timeline.temperatures_c),
        ("Power", "W", &timeline.power_w),
    ];
    let draw =
        |(name, unit, lines): (&str, &str, &std::collections::BTreeMap<String, Vec<TimePoint>>)| {
            let series: Vec<Series<'_>> =
                lines.iter().map(|(name, points)| Series { name, points }).collect();
            let key = |(at, s): (usize, &Series<'_>)| {
                format!(" <span class=\"key s{}\">{}</span>", at % 6, escape(s.name))
            };
            let legend = series.iter().enumerate().map(key).collect::<String>();
            figure(name, svg::over_time(name, unit, &series, None), &legend)
        };
    let plots = all.into_iter().map(draw).collect::<String>();
    let (_, usage, figures) = &sheet.usage;
    let (architecture, parts) = &sheet.architecture;
    let memory = format!(
        "<div class=\"two\"><div><h3>{}</h3>{}</div><div><h3>{}</h3>{}</div></div>",
        escape(usage),
        table(figures),
        escape(architecture),
        table(parts)
    );
    let rest = format!("{}<div class=\"plots\">{plots}</div>", table(&sheet.system));
    section("System", &(memory + &rest))
}

fn frames(pictures: &[Picture]) -> String {
    if pictures.is_empty() {
        return String::new();
    }
    let one = |picture: &Picture| {
        let (w, h) = (picture.width, picture.height);
        let size = (w as f32 / 40.0).max(6.0);
        let mut boxes = String::new();
        for ([left, top, right, bottom], label) in &picture.boxes {
            boxes += &format!(
                "<rect class=\"box\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
                 <text class=\"box-name\" x=\"{left:.1}\" y=\"{:.1}\" font-size=\"{size:.1}\">{}</text>",
                (right - left).max(0.0),
                (bottom - top).max(0.0),
                (top - size * 0.3).max(size),
                escape(label)
            );
        }
        format!(
            "<figure><figcaption>{}</figcaption><svg class=\"frame\" viewBox=\"0 0 {w} {h}\">\
             <image href=\"data:{};base64,{}\" width=\"{w}\" height=\"{h}\"/>{boxes}</svg></figure>",
            escape(&picture.name),
            picture.format.mime(),
            base64(&picture.bytes)
        )
    };
    let all = pictures.iter().map(one).collect::<String>();
    section("Frames", &format!("<div class=\"plots\">{all}</div>"))
}

fn doubts(sheet: &Sheet) -> String {
    let body = match sheet.doubts.is_empty() {
        true => "<p>None.</p>".to_string(),
        false => list(&sheet.doubts),
    };
    section("Doubts", &body)
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
