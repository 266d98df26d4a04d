//! A frame of the view.

use plimsoll::text::is_steering;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::bars::{self, draw_bars, headline, local_time};
use super::facts::{core_rows, draw_cores, draw_facts, fact_rows};
use super::keys::HELP;
use super::palette::{ALERT, FAINT, HIGH, STRONG, remove_colours};
use super::plots::draw_plots;
use super::processes::{draw_processes, wanted_rows};
use super::view::LiveView;

/// The least rows for the plots, before processes get more than a few.
const LEAST_PLOT: u16 = 7;

/// The rows of each part, from the top.
struct FrameParts {
    title: Rect,
    bars: Rect,
    headline: Rect,
    missing: Rect,
    plots: Rect,
    cores: Rect,
    facts: Rect,
    processes: Rect,
    notice: Rect,
    keys: Rect,
}

impl FrameParts {
    /// What does not fit gives way from the plots first, then the processes.
    fn new(area: Rect, view: &LiveView, bars: usize) -> FrameParts {
        let record = view.record.as_ref();
        let (small, large) = (area.height < 30, area.height >= 50);
        let most = if small {
            (1, 2)
        } else if large {
            (6, 8)
        } else {
            (3, 6)
        };
        let cores = record.map_or(0, |record| core_rows(record, area.width, most.0));
        let facts = record.map_or(0, |record| fact_rows(record, most.1));
        let missing = u16::from(record.is_some_and(|record| !record.missing.is_empty()));
        let headline = 2 + u16::from(wanted_rows(view) > 0);
        let notice = u16::from(view.notice.is_some());
        let (_, bars) = bars::shape(bars, area.width);
        let fixed = 1 + bars + headline + cores + facts + missing + notice + 1;
        let rest = area.height.saturating_sub(fixed);
        let list = wanted_rows(view).min((rest * 2 / 5).max(4)).min(rest);
        // Plots that would be too low leave their rows to the processes.
        let list =
            if rest - list < LEAST_PLOT { wanted_rows(view).min(rest.max(list)) } else { list };
        let fixed = [1, bars, headline, missing].map(Constraint::Length);
        let below = [cores, facts, list, notice, 1].map(Constraint::Length);
        let rows = fixed.into_iter().chain([Constraint::Fill(1)]).chain(below);
        let [title, bars, headline, missing, plots, cores, facts, processes, notice, keys] =
            Layout::vertical(rows).areas(area);
        FrameParts { title, bars, headline, plots, cores, facts, processes, missing, notice, keys }
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &LiveView) {
    let area = frame.area();
    let bars = view.record.as_ref().map(bars::bars).unwrap_or_default();
    let parts = FrameParts::new(area, view, bars.len());
    let clock = clock(view);
    let room = parts.title.width.saturating_sub(clock.width() as u16 + 1);
    frame.render_widget(title(view, room), Rect { width: room, ..parts.title });
    frame.render_widget(clock.right_aligned(), parts.title);
    let buffer = frame.buffer_mut();
    draw_bars(buffer, parts.bars, &bars);
    draw_plots(buffer, parts.plots, view);
    if let Some(record) = &view.record {
        draw_cores(buffer, parts.cores, record);
        draw_facts(buffer, parts.facts, record);
    }
    draw_processes(buffer, parts.processes, view);
    let lines: Vec<Line<'_>> =
        headline(view).into_iter().map(|line| fitted(line, area.width)).collect();
    frame.render_widget(Paragraph::new(lines), parts.headline);
    frame.render_widget(missing(view, parts.missing.width), parts.missing);
    frame.render_widget(fitted(notice(view), area.width), parts.notice);
    frame.render_widget(keys(area.width), parts.keys);
    if view.help {
        help(frame, area, view);
    }
    remove_control_characters(frame);
    if !view.settings.colour {
        remove_colours(frame.buffer_mut());
    }
}

/// Removes control characters from text from outside: one may be in the cell of another character.
fn remove_control_characters(frame: &mut Frame<'_>) {
    for cell in &mut frame.buffer_mut().content {
        if cell.symbol().contains(is_steering) {
            cell.set_symbol("\u{fffd}");
        }
    }
}

/// A line of at most this many columns, with an ellipsis for the words that are left out. A number
/// without its unit would say something else, so it goes with it.
fn fitted(line: Line<'static>, width: u16) -> Line<'static> {
    if line.width() <= usize::from(width) {
        return line;
    }
    let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
    let room = text.char_indices().nth(usize::from(width).saturating_sub(1));
    let mut kept = &text[..room.map_or(text.len(), |(at, _)| at)];
    loop {
        kept = kept.rsplit_once(' ').map_or("", |(before, _)| before.trim_end());
        let last = kept.rsplit(' ').next().unwrap_or_default();
        if !last.starts_with(|first: char| first.is_ascii_digit()) {
            break;
        }
    }
    let mut left = kept.len();
    let mut spans = Vec::new();
    for span in line.spans {
        let part = &span.content[..left.min(span.content.len())];
        left -= part.len();
        spans.push(Span::styled(part.to_string(), span.style));
    }
    spans.push(Span::raw(" …"));
    Line::from(spans)
}

/// What this is, in so many columns: the name of the program gives way first.
fn title(view: &LiveView, width: u16) -> Line<'static> {
    let recorded = view.record.as_ref().is_some_and(|record| record.how == "recorded");
    let state = match (view.paused, view.ended) {
        (true, _) => "PAUSED",
        (_, true) => "END",
        _ => "",
    };
    let style = if recorded { ALERT } else { Style::new() };
    let mut parts =
        vec![("plimsoll monitor", STRONG), (state, ALERT), (view.settings.source.as_str(), style)];
    parts.retain(|(text, _)| !text.is_empty());
    let line = |parts: &[(&str, Style)]| {
        let gaps = std::iter::once("").chain(std::iter::repeat("  "));
        let spans = gaps
            .zip(parts)
            .map(|(gap, (text, style))| Span::styled(format!("{gap}{text}"), *style));
        Line::from_iter(spans)
    };
    let whole = line(&parts);
    let fits = parts.len() == 1 || whole.width() <= usize::from(width);
    fitted(if fits { whole } else { line(&parts[1..]) }, width)
}

/// When it is, where the reader is.
fn clock(view: &LiveView) -> Line<'static> {
    let Some(record) = &view.record else { return Line::styled("waiting for a sample", FAINT) };
    let time = local_time(record, &view.settings.zone);
    let more = match record.how == "recorded" {
        true => record.t.map(|t| format!("  t {t:.1} s")).unwrap_or_default(),
        false => format!("  every {} ms", view.interval().as_millis()),
    };
    Line::from(vec![Span::raw(time), Span::styled(more, FAINT)])
}

/// What is missing, as much of it as fits; the help has all.
fn missing(view: &LiveView, width: u16) -> Line<'static> {
    let Some(record) = view.record.as_ref().filter(|r| !r.missing.is_empty()) else {
        return Line::default();
    };
    let text = record.missing.join("; ");
    let room = usize::from(width).saturating_sub(9);
    let text = match text.chars().count() > room {
        true => text.chars().take(room.saturating_sub(9)).chain("… (? all)".chars()).collect(),
        false => text,
    };
    Line::from(vec![Span::styled("Missing  ", STRONG), Span::styled(text, Style::new().fg(HIGH))])
}

fn notice(view: &LiveView) -> Line<'static> {
    match &view.notice {
        Some((true, text)) => Line::styled(format!("alert: {text}"), ALERT),
        Some((false, text)) => Line::styled(format!("warning: {text}"), Style::new().fg(HIGH)),
        None => Line::default(),
    }
}

/// The keys that there is room for, the last of which tells of the others.
fn keys(width: u16) -> Line<'static> {
    let mut keys = vec![
        "q quit",
        "space pause",
        "s sort",
        "/ filter",
        "↑↓ scroll",
        "z zoom",
        "+ - interval",
        "? help",
    ];
    while keys.len() > 1 && Line::raw(keys.join("  ")).width() > usize::from(width) {
        keys.remove(keys.len() - 2);
    }
    Line::styled(keys.join("  "), FAINT)
}

fn help(frame: &mut Frame<'_>, area: Rect, view: &LiveView) {
    let mut lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| {
            Line::from(vec![Span::styled(format!(" {key:<9} "), STRONG), Span::raw(*what)])
        })
        .collect();
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 4;
    let missing = view.record.iter().flat_map(|record| &record.missing);
    lines.extend(missing.map(|text| Line::raw(format!(" missing: {text}"))));
    let height = lines.len() as u16 + 3;
    let [_, middle, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(height), Constraint::Fill(1)])
            .areas(area);
    let [_, place, _] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width), Constraint::Fill(1)])
            .areas(middle);
    frame.render_widget(Clear, place);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(text.block(Block::bordered().title(" Keys ")), place);
}
