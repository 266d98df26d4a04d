//! The details of a model: what ran, latency by stage, memory, accuracy by class, and plots.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::super::accuracy;
use super::super::sheet::ModelSheet;
use super::super::svg::{self, ScatterPoint, Series};
use super::{figure, section, table, two};
use crate::record::{BenchRecord, ModelRecord};
use crate::stats::TimePoint;

/// Below this a plot of memory is in MiB.
const SMALL_GIB: f64 = 1.0;

/// The details of a model; folded where there are many models.
pub(super) fn model(model: &ModelRecord, words: &ModelSheet, folded: bool) -> Markup {
    if model.performance.is_none() {
        return html! {};
    }
    let memory = html! { h3 { (words.memory_title) } (table(&words.memory)) };
    let facts = html! { h3 { "What ran" } (table(&words.facts)) };
    let body = html! {
        (latency(words))
        (plots(model))
        (accuracy::html(model))
        (two(&facts, &memory))
    };
    let label = model.label();
    match folded {
        false => html! { section { h2 { (one_line(&label)) ": details" } (body) } },
        true => html! {
            section {
                details { summary { h2 { (one_line(&label)) ": details" } } (body) }
            }
        },
    }
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

fn plots(model: &ModelRecord) -> Markup {
    let timeline = &model.timeline;
    let whole = model.performance.as_ref().map(|p| p.whole);
    let marks: Vec<(&str, f64)> = whole
        .iter()
        .flat_map(|w| [("p50", w.p50_ms), ("p95", w.p95_ms), ("p99", w.p99_ms)])
        .collect();
    let series = [Series { name: "whole", points: &timeline.whole_ms }];
    // A small model's memory in GiB would be a row of zeros.
    let most = timeline.memory_gb.iter().map(|point| point.max).fold(0.0, f64::max);
    let (unit, scale) = if most < SMALL_GIB { ("MiB", 1024.0) } else { ("GiB", 1.0) };
    let scaled = |p: &TimePoint| TimePoint {
        t: p.t,
        min: p.min * scale,
        mean: p.mean * scale,
        max: p.max * scale,
    };
    let points: Vec<TimePoint> = timeline.memory_gb.iter().map(scaled).collect();
    let memory = [Series { name: "memory", points: &points }];
    let limit = model.gpu_memory.limit_gb.map(|limit| limit * scale);
    let name = "Latency distribution";
    let all = [
        (name, svg::distribution(name, &timeline.distribution, &marks)),
        ("Latency over time", svg::over_time("Latency over time", "ms", &series, None)),
        ("Memory over time", svg::over_time("Memory over time", unit, &memory, limit)),
    ];
    html! { div.plots { @for (name, plot) in &all { (figure(name, plot.as_ref(), &[])) } } }
}

/// What each model gains in time and loses in accuracy; nothing for fewer than two with both.
pub(super) fn accuracy_against_latency(record: &BenchRecord) -> Markup {
    let points: Vec<ScatterPoint> = record
        .models
        .iter()
        .filter_map(|model| {
            let x = model.performance.as_ref()?.whole.p50_ms;
            Some(ScatterPoint { name: model.label(), x, y: accuracy::map(model)? })
        })
        .collect();
    // The two slots see other frames with other labels, so nothing follows from their difference.
    if points.len() < 2 || record.has_slots() {
        return html! {};
    }
    let name = "mAP against median latency";
    let plot = svg::scatter(name, ("p50, ms", "mAP"), &points);
    let plot = figure("Up is more accurate, left is faster", plot.as_ref(), &[]);
    section("Accuracy against latency", &two(&plot, &losses(&points)))
}

/// What each loses in accuracy and gains in time, against the most accurate.
fn losses(points: &[ScatterPoint]) -> Markup {
    let best = points.iter().max_by(|a, b| a.y.total_cmp(&b.y));
    let Some(best) = best else { return html! {} };
    html! {
        div.wide {
            table.numbers {
                thead { tr { th { "model" } th { "mAP" } th { "lost" } th { "p50 ms" } th { "time" } } }
                tbody {
                    @for point in points {
                        @let lost = point.y - best.y;
                        @let gain = point.x / best.x;
                        tr {
                            td { (one_line(&point.name)) }
                            td { (format!("{:.3}", point.y)) }
                            td { @if lost == 0.0 { "–" } @else { (format!("{lost:+.3}")) } }
                            td { (format!("{:.2}", point.x)) }
                            td { (format!("{gain:.2}×")) }
                        }
                    }
                }
            }
        }
    }
}
