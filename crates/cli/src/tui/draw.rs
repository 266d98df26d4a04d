//! A frame of the view.

use plimsoll::text::is_steering;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::keys::HELP;
use super::view::LiveView;
use super::{parts, plot};

pub(super) const FAINT: Style = Style::new().fg(Color::DarkGray);
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws everything; what does not fit gives way from the plot first, then the processes.
pub(super) fn draw(frame: &mut Frame<'_>, view: &LiveView) {
    let area = frame.area();
    let bars = view.record.as_ref().map(parts::bars).unwrap_or_default();
    let facts =
        view.record.as_ref().map(|record| parts::facts(record, area.width)).unwrap_or_default();
    let left = area.height.saturating_sub(4 + (bars.len() + facts.len()) as u16);
    let list = parts::list_height(view).min(left / 2);
    let [title, top, time, picture, middle, processes, notice, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(bars.len() as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(facts.len() as u16),
        Constraint::Length(list),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(head(view), title);
    for (bar, row) in bars.iter().zip(top.rows()) {
        parts::draw_bar(frame, row, bar);
    }
    if let Some(record) = &view.record {
        frame.render_widget(parts::time_left(record), time);
    }
    plot::draw(frame, picture, view);
    frame.render_widget(Paragraph::new(facts), middle);
    parts::draw_processes(frame, processes, view);
    frame.render_widget(word(view), notice);
    frame.render_widget(keys(), foot);
    if view.help {
        help(frame, area);
    }
    remove_control_characters(frame);
}

/// Removes control characters from text from outside: one may be in the cell of another character.
fn remove_control_characters(frame: &mut Frame<'_>) {
    for cell in &mut frame.buffer_mut().content {
        if cell.symbol().contains(is_steering) {
            cell.set_symbol("\u{fffd}");
        }
    }
}

fn head(view: &LiveView) -> Line<'static> {
    let record = view.record.as_ref();
    let t = record.and_then(|r| r.t).map_or_else(String::new, |t| format!("  {t:.1} s"));
    let time = record.and_then(|r| r.time.clone()).unwrap_or_default();
    let recorded = record.is_some_and(|record| record.how == "recorded");
    let every = match recorded {
        true => String::new(),
        false => format!("  every {} ms", view.interval.as_millis()),
    };
    let state = match (view.paused, view.ended) {
        (true, _) => "  paused",
        (_, true) => "  end of the log",
        _ => "",
    };
    Line::from(vec![
        Span::styled("plimsoll monitor", STRONG),
        Span::raw(format!("  {}", view.source)),
        Span::styled(format!("  {time}{t}{every}"), FAINT),
        Span::styled(state, Style::new().fg(Color::Yellow)),
    ])
}

fn word(view: &LiveView) -> Line<'static> {
    match &view.notice {
        Some((true, text)) => {
            Line::styled(format!("alert: {text}"), Style::new().fg(Color::Red).patch(STRONG))
        }
        Some((false, text)) => Line::styled(text.clone(), Style::new().fg(Color::Yellow)),
        None => Line::default(),
    }
}

fn keys() -> Line<'static> {
    Line::styled("q quit   space pause   s sort   + - interval   ? help", FAINT)
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| {
            Line::from(vec![Span::styled(format!(" {key:<8} "), STRONG), Span::raw(*what)])
        })
        .collect();
    let height = lines.len() as u16 + 2;
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 4;
    let [_, middle, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(height), Constraint::Fill(1)])
            .areas(area);
    let [_, place, _] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width), Constraint::Fill(1)])
            .areas(middle);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys ")), place);
}
