//! `report.html`: one file that opens without a network, in light and dark, on a phone and on
//! paper.
//!
//! It begins with the results (`results`), goes on with the details of each model
//! (`details`), frames, memory and the machine, and ends with the settings. The templates are
//! checked when they are compiled, and escape every text. Text from outside also goes through
//! [`one_line`], which removes control characters. The page's own policy forbids it to load or
//! run anything.

mod details;
mod frames;
mod results;

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plimsoll::text::one_line;

pub use self::frames::{CLASS_COLOURS, Picture, PictureFormat, PictureItem};
use super::accuracy;
use super::headline::Headline;
use super::sheet::{DASH, ReportRow, ReportTone, Sheet};
use super::svg::{self, Series};
use crate::record::BenchRecord;
use crate::stats::TimePoint;

/// The page may show its own style and pictures, and load or run nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The style of every HTML report: light, dark and on paper.
pub const STYLE: &str = include_str!("style.css");

/// A whole page with this title and this body.
#[must_use]
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (one_line(title)) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) } }
        }
    };
    page.into_string() + "\n"
}

/// The record as one HTML file.
#[must_use]
pub fn render(record: &BenchRecord, pictures: &[Picture]) -> String {
    let sheet = Sheet::new(record);
    let headlines = Headline::of(record);
    let body = html! {
        (header(record, &sheet))
        @if let Some(why) = &sheet.interruption {
            p.note.bad {
                b { "Interrupted" } ": " (one_line(why)) ". What was measured is kept."
            }
        }
        (results::results(&headlines))
        (details::accuracy_against_latency(record))
        (accuracy::fusion_html(record))
        @if !pictures.is_empty() { (frames::frames(pictures)) }
        @for (model, words) in record.models.iter().zip(&sheet.models) {
            (details::model(model, words, record.models.len() > results::MOST_CARDS))
        }
        (section("Memory Safety Summary", &safety(&sheet)))
        (machine(record, &sheet))
        (section("Doubts", &html! {
            @if sheet.doubts.is_empty() { p { "None." } } @else { (list(&sheet.doubts)) }
        }))
        (section("Settings", &table(&sheet.about)))
    };
    page(&sheet.title, &body)
}

/// The machine and the run, in two lines.
fn header(record: &BenchRecord, sheet: &Sheet) -> Markup {
    let meta = &record.metadata;
    let machine = [meta.device_name.as_deref(), meta.host.as_deref()];
    let machine: Vec<&str> = machine.into_iter().flatten().collect();
    let (tone, sign) = sign(sheet.status.0);
    html! {
        header {
            h1 { (one_line(&sheet.title)) }
            p.sub {
                b { (one_line(&machine.join(", "))) }
                " · " (one_line(&meta.os)) " " (one_line(&meta.arch)) " · "
                (record.system_metrics.architecture.to_string()) " · " (one_line(&meta.started))
            }
            p.sub {
                (one_line(&record.summary.text)) " "
                span.pill.(tone) title=(one_line(&sheet.status.1)) { (sign) " memory" }
            }
        }
    }
}

fn sign(tone: ReportTone) -> (&'static str, &'static str) {
    match tone {
        ReportTone::Good => ("good", "✓"),
        ReportTone::Bad => ("bad", "✗"),
        ReportTone::Unknown => ("unknown", "?"),
    }
}

/// A part of the page with a heading, which paper does not cut.
#[must_use]
pub fn section(name: &str, body: &Markup) -> Markup {
    html! { section.keep { h2 { (one_line(name)) } (body) } }
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
    let (tone, sign) = sign(sheet.status.0);
    let slots = html! {
        @if !sheet.closest.is_empty() {
            h3 { "Models closest to the limit" } (table(&sheet.closest))
        }
        @if !sheet.violations.is_empty() { h3 { "Violations" } (list(&sheet.violations)) }
    };
    html! {
        p.note.(tone) { b { (sign) } " " (one_line(&sheet.status.1)) }
        (two(&table(&sheet.safety), &slots))
    }
}

/// A plot with its name, a note and, for several lines, a legend; nothing where there is no plot.
pub(super) fn figure(name: &str, plot: Option<&svg::Plot>, legend: &[Series<'_>]) -> Markup {
    html! {
        @if let Some(plot) = plot {
            figure {
                figcaption {
                    (one_line(name))
                    @for (at, series) in legend.iter().enumerate().filter(|_| legend.len() > 1) {
                        " " span class={ "key s" (at % 6) } { (one_line(series.name)) }
                    }
                    @if let Some(note) = &plot.note { span.plot-note { (one_line(note)) } }
                }
                (plot.drawing)
            }
        }
    }
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
    // What the machine does not report is said in one line each, below what it does.
    let (unknown, known): (Vec<ReportRow>, Vec<ReportRow>) =
        sheet.system.iter().cloned().partition(|row| row.value.starts_with(DASH));
    let body = html! {
        (two(
            &html! { (table(&known)) div.plots { @for plot in all { (draw(plot)) } } },
            &html! { (usage) (architecture) }
        ))
        @if !unknown.is_empty() {
            details { summary { "What this machine does not report (" (unknown.len()) ")" } (table(&unknown)) }
        }
    };
    section("System", &body)
}
