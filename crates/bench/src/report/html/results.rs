//! The first screen: what ran, and its figures with the doubts beside them.
//!
//! One or two models have a card each, more have a line each in a table. Over the table, a doubt
//! about the whole run stands once, beside the name of its figure.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::super::headline::{Badge, Headline, HeadlineFigure};
use super::super::sheet::DASH;
use crate::doubt::ReportFigure;
use crate::record::Status;

/// More models than this are a table.
pub(super) const MOST_CARDS: usize = 2;

pub(super) fn results(headlines: &[Headline]) -> Markup {
    match headlines.len() <= MOST_CARDS {
        true => html! { @for line in headlines { (card(line)) } },
        false => table(headlines),
    }
}

/// How a status is coloured.
pub(super) fn tone(status: Status) -> &'static str {
    match status {
        Status::Completed => "good",
        Status::Failed => "bad",
        Status::Skipped | Status::Interrupted => "unknown",
    }
}

fn status(line: &Headline) -> Markup {
    html! {
        span.pill.(tone(line.status)) { (line.status.to_string()) }
        @if let Some(reason) = &line.reason { " " span.why { (one_line(reason)) } }
    }
}

fn badges<'a>(all: impl IntoIterator<Item = &'a Badge>) -> Markup {
    html! {
        @for badge in all {
            " " span.badge title=(one_line(&badge.text)) { (badge.short) }
        }
    }
}

fn card(line: &Headline) -> Markup {
    html! {
        section.result.keep {
            h2 { (one_line(&line.label)) " " (status(line)) }
            @if ran(line) {
                p.what {
                    b { (one_line(&line.engine)) } " · input " b { (line.size) } " · "
                    @if let Some(weights) = &line.weights { (one_line(weights)) " weights · " }
                    (line.frames) " frames · " (one_line(&line.place)) (badges(&line.badges))
                }
                div.tiles { @for figure in &line.figures { (tile(line, figure)) } }
            } @else {
                p.what { (one_line(&line.place)) }
            }
        }
    }
}

fn tile(line: &Headline, figure: &HeadlineFigure) -> Markup {
    let bar = line.memory_share.filter(|_| figure.figure == ReportFigure::Memory);
    html! {
        div.tile.unknown-value[figure.value == DASH] {
            div.name { (figure.figure.name()) }
            div.value { (figure.value) @if !figure.unit.is_empty() { span.unit { " " (figure.unit) } } }
            @if let Some(share) = bar { (meter(share)) }
            @if let Some(note) = &figure.note { div.small { (one_line(note)) } }
            @if !figure.badges.is_empty() { div.badges { (badges(&figure.badges)) } }
        }
    }
}

/// A bar that is as full as the limit.
fn meter(share: f64) -> Markup {
    let tone = if share > 1.0 { "bad" } else { "good" };
    let width = format!("width:{:.1}%", share.clamp(0.004, 1.0) * 100.0);
    html! { div.meter aria-hidden="true" { div.(tone) style=(width) {} } }
}

fn table(headlines: &[Headline]) -> Markup {
    html! {
        section.result.keep {
            h2 { "Results" }
            (doubts_of_run(headlines))
            table.results {
                thead {
                    tr {
                        th { "model" }
                        @for figure in ReportFigure::SHOWN { th { (figure.name()) } }
                    }
                }
                tbody { @for line in headlines { (table_row(line, headlines)) } }
            }
        }
    }
}

/// The doubts that concern a figure of every row, beside its name.
fn doubts_of_run(headlines: &[Headline]) -> Markup {
    let of_run = |badges: &[Badge]| badges.iter().filter(|b| b.of_run).cloned().collect::<Vec<_>>();
    // They are the same in every row that ran.
    let Some(line) = headlines.iter().find(|line| ran(line)) else { return html! {} };
    let figures = line.figures.iter().map(|one| (one.figure.name(), of_run(&one.badges)));
    let frames = (ReportFigure::Frames.name(), of_run(&line.badges));
    let all: Vec<(&str, Vec<Badge>)> =
        figures.chain([frames]).filter(|(_, badges)| !badges.is_empty()).collect();
    html! {
        @if !all.is_empty() {
            p.what {
                "In all rows: "
                @for (at, (name, of_figure)) in all.iter().enumerate() {
                    @if at > 0 { " · " }
                    (name) (badges(of_figure))
                }
            }
        }
    }
}

fn ran(line: &Headline) -> bool {
    line.figures.iter().any(|figure| figure.value != DASH)
}

fn table_row(line: &Headline, all: &[Headline]) -> Markup {
    if !ran(line) {
        let columns = line.figures.len();
        return html! {
            tr { th scope="row" { (one_line(&line.label)) } td.did-not colspan=(columns) { (status(line)) } }
        };
    }
    html! {
        tr {
            th scope="row" {
                (one_line(&line.label)) " "
                @if line.status != Status::Completed { (status(line)) }
                div.small {
                    (one_line(&line.engine)) ", " (line.size) ", "
                    @if let Some(weights) = &line.weights { (one_line(weights)) ", " }
                    (line.frames) " frames"
                    (badges(line.badges.iter().filter(|badge| !badge.of_run)))
                }
            }
            @for (at, figure) in line.figures.iter().enumerate() {
                td data-name=(figure.figure.name()) title=[figure.note.as_deref().map(one_line)] class=[is_best(at, line, all).then_some("best")] {
                    (figure.value)
                    @if !figure.unit.is_empty() { span.unit { " " (figure.unit) } }
                    @if let Some(share) = line.memory_share.filter(|_| figure.figure == ReportFigure::Memory) {
                        (meter(share))
                    }
                    div { (badges(figure.badges.iter().filter(|badge| !badge.of_run))) }
                }
            }
        }
    }
}

/// Whether a line has the best value of a column in which lines differ.
fn is_best(at: usize, line: &Headline, all: &[Headline]) -> bool {
    let figure = &line.figures[at];
    let amount = |one: &HeadlineFigure| {
        let scale = if one.unit == "GiB" { 1024.0 } else { 1.0 };
        one.value.parse::<f64>().ok().map(|value| value * scale)
    };
    let high = matches!(figure.figure, ReportFigure::Fps | ReportFigure::Map);
    let signed = |one: &HeadlineFigure| amount(one).map(|value| if high { -value } else { value });
    let Some(own) = signed(figure) else { return false };
    let others: Vec<f64> = all.iter().filter_map(|line| signed(&line.figures[at])).collect();
    others.iter().all(|other| own <= *other) && others.iter().any(|other| own < *other)
}
