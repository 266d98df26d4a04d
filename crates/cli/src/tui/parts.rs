//! The parts of a frame: bars, facts, processes.

use plimsoll::{Bytes, MemoryPressure};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, LineGauge, Row, Table};

use super::draw::{FAINT, STRONG};
use super::view::{LiveView, Sort};
use crate::command::monitor::record::{MonitorGpu, MonitorPool, MonitorRecord};
use crate::command::monitor::table::duration;
use crate::page::{UNKNOWN, or_unknown};

/// A share of a memory.
pub(super) struct Bar {
    name: String,
    text: String,
    share: f64,
    colour: Color,
}

fn colour(pressure: MemoryPressure) -> Color {
    match pressure {
        MemoryPressure::Low => Color::Green,
        MemoryPressure::Medium => Color::Cyan,
        MemoryPressure::High => Color::Yellow,
        MemoryPressure::Critical => Color::Red,
    }
}

/// Memory as the machine has it: the system's with the GPU's share of it, or the system's
/// and each GPU's own.
pub(super) fn bars(record: &MonitorRecord) -> Vec<Bar> {
    let unified = record.unified == Some(true);
    let mut bars = vec![pool_bar(if unified { "System" } else { "RAM" }, record.system())];
    if let Some((used, total)) =
        record.memory.gpu_share_bytes.zip(record.memory.total_bytes).filter(|_| unified)
    {
        bars.push(Bar {
            name: "  of it GPU".to_string(),
            text: format!("{:>10}  {:>3.0} %", Bytes(used).to_string(), percent(used, total)),
            share: percent(used, total) / 100.0,
            colour: Color::Magenta,
        });
    }
    let own = (0..record.gpus.len()).filter(|at| !record.gpus[*at].unified).take(8);
    bars.extend(own.map(|at| pool_bar(&format!("GPU{at} VRAM"), record.own(at))));
    bars
}

fn percent(used: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { used as f64 / total as f64 * 100.0 }
}

fn pool_bar(name: &str, pool: Option<MonitorPool>) -> Bar {
    let Some(pool) = pool else {
        let (text, colour) = (UNKNOWN.to_string(), Color::DarkGray);
        return Bar { name: name.to_string(), text, share: 0.0, colour };
    };
    let full = percent(pool.used, pool.total);
    let (used, total) = (Bytes(pool.used).to_string(), Bytes(pool.total).to_string());
    Bar {
        name: name.to_string(),
        text: format!("{used:>10} / {total:>10}  {full:>3.0} %  {}", pool.pressure()),
        share: full / 100.0,
        colour: colour(pool.pressure()),
    }
}

pub(super) fn draw_bar(frame: &mut Frame<'_>, row: Rect, bar: &Bar) {
    let [name, text, gauge] =
        Layout::horizontal([Constraint::Length(12), Constraint::Length(42), Constraint::Fill(1)])
            .areas(row);
    frame.render_widget(Line::styled(bar.name.clone(), STRONG), name);
    frame.render_widget(Line::raw(bar.text.clone()), text);
    let gauge_widget = LineGauge::default()
        .filled_symbol(symbols::line::THICK_HORIZONTAL)
        .unfilled_symbol(symbols::line::HORIZONTAL)
        .label("")
        .ratio(bar.share.clamp(0.0, 1.0))
        .filled_style(Style::new().fg(bar.colour))
        .unfilled_style(FAINT);
    frame.render_widget(gauge_widget, gauge);
}

/// When memory runs out.
pub(super) fn time_left(record: &MonitorRecord) -> Line<'static> {
    let Some(left) = &record.time_left else {
        return Line::from(vec![Span::styled("Time left   ", STRONG), Span::raw(UNKNOWN)]);
    };
    let soon = if left.seconds <= 60.0 { Color::Red } else { Color::Yellow };
    let latest = left.at_most_s.map_or_else(|| UNKNOWN.to_string(), duration);
    Line::from(vec![
        Span::styled("Time left   ", STRONG),
        Span::styled(duration(left.seconds), Style::new().fg(soon)),
        Span::raw(format!(
            "  ({} to {latest}) until {} memory is full, at {}/s",
            duration(left.at_least_s),
            left.memory,
            Bytes(left.bytes_per_s.max(0.0) as u64)
        )),
    ])
}

/// Loads, clocks, power and temperatures, on as few lines as the width allows.
pub(super) fn facts(record: &MonitorRecord, width: u16) -> Vec<Line<'static>> {
    let mut words = vec![
        fact("CPU", record.cpu.percent, 0, "%"),
        fact("swap", record.swap.used_bytes.map(|b| Bytes(b).as_gib()), 2, "GiB"),
    ];
    for (at, gpu) in record.gpus.iter().enumerate().take(8) {
        words.extend(of_gpu(at, gpu));
    }
    words.push(fact("board", record.total_power_w, 1, "W"));
    words.extend(record.power_mode.iter().map(|mode| format!("mode {mode}")));
    if let Some((name, celsius)) = record.hottest() {
        words.push(format!("{name} {celsius:.1} °C"));
    }
    words.extend(throttled_by("clocks", record.throttled_by.as_deref()));
    wrap(words, width)
}

fn of_gpu(at: usize, gpu: &MonitorGpu) -> Vec<String> {
    let mut words =
        vec![fact(&format!("GPU{at}"), gpu.percent, 0, "%"), fact("", gpu.mhz, 0, "MHz")];
    words.extend(gpu.power_w.map(|_| fact("", gpu.power_w, 0, "W")));
    words.extend(gpu.temperature_c.map(|_| fact("", gpu.temperature_c, 0, "°C")));
    words.extend(throttled_by(&format!("GPU{at}"), gpu.throttled_by.as_deref()));
    words
}

fn fact(name: &str, value: Option<f64>, decimals: usize, unit: &str) -> String {
    let value = or_unknown(value.map(|value| format!("{value:.decimals$} {unit}")));
    if name.is_empty() { value } else { format!("{name} {value}") }
}

fn throttled_by(name: &str, by: Option<&[String]>) -> Option<String> {
    by.filter(|by| !by.is_empty()).map(|by| format!("{name} throttled by {}", by.join(", ")))
}

fn wrap(words: Vec<String>, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in words {
        let fits =
            |line: &String| line.chars().count() + 3 + word.chars().count() <= usize::from(width);
        match lines.last_mut().filter(|line| line.is_empty() || fits(line)) {
            Some(line) if line.is_empty() => *line = word,
            Some(line) => *line = format!("{line}   {word}"),
            None => lines.push(word),
        }
    }
    lines.truncate(4);
    lines.into_iter().map(Line::raw).collect()
}

/// Rows that the list would like: a header, and each process.
pub(super) fn list_height(view: &LiveView) -> u16 {
    let n = view.record.as_ref().map_or(0, |record| record.processes.len());
    if n == 0 { 0 } else { n as u16 + 1 }
}

pub(super) fn draw_processes(frame: &mut Frame<'_>, area: Rect, view: &LiveView) {
    if area.height < 2 {
        return;
    }
    let several = view.record.as_ref().is_some_and(|record| record.gpus.len() > 1);
    let heads = [
        (Sort::Pid, "    pid"),
        (Sort::Gpu, if several { "     GPU memory" } else { "GPU memory" }),
        (Sort::Resident, "  resident"),
        (Sort::Load, "  CPU"),
        (Sort::Name, "name"),
    ];
    let head = heads.map(|(sort, text)| {
        let style = if sort == view.sort { STRONG.fg(Color::Cyan) } else { STRONG };
        Cell::new(text).style(style)
    });
    let rows = view.processes().into_iter().take(usize::from(area.height)).map(|process| {
        let size = |bytes: Option<u64>| {
            format!("{:>10}", or_unknown(bytes.map(|bytes| Bytes(bytes).to_string())))
        };
        let load = or_unknown(process.cpu_percent.map(|load| format!("{load:.0} %")));
        let held = match process.gpu {
            Some(gpu) if several => format!("GPU{gpu:<2}{}", size(process.gpu_bytes)),
            _ if several => format!("{:5}{}", "", size(process.gpu_bytes)),
            _ => size(process.gpu_bytes),
        };
        Row::new([
            format!("{:>7}", process.pid),
            held,
            size(process.resident_bytes),
            format!("{load:>5}"),
            process.name.clone().unwrap_or_else(|| UNKNOWN.to_string()),
        ])
    });
    let widths = [
        Constraint::Length(7),
        Constraint::Length(if several { 15 } else { 10 }),
        Constraint::Length(10),
        Constraint::Length(5),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows, widths).header(Row::new(head)).column_spacing(2);
    frame.render_widget(table, area);
}
