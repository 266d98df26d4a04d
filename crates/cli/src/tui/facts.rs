//! Processors, engines, power, fans and temperatures, on as many lines as there are.

use plimsoll::Bytes;
use plimsoll::probe::is_placeholder;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::palette::{ALERT, FAINT, LOAD, STRONG};
use crate::command::monitor::record::{MonitorCore, MonitorRecord};
use crate::page::or_unknown;

/// The width of the words in front of a line.
const HEAD: u16 = 10;
/// The least width of a core with its bar and its figure.
const CORE: u16 = 17;
/// Eighths of a character, from the bottom.
const LEVELS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// How many rows the cores take: a bar with its figure each where they fit on a few, otherwise one
/// character each.
pub(super) fn core_rows(record: &MonitorRecord, width: u16, most: u16) -> u16 {
    let (cores, per_row) = (record.cpu.cores.len() as u16, per_row(width));
    let rows = cores.div_ceil(per_row.max(1));
    let characters = cores.div_ceil(width.saturating_sub(HEAD + 8).max(1));
    if rows <= most { rows.max(1) } else { characters.clamp(1, most.max(1)) }
}

fn per_row(width: u16) -> u16 {
    width.saturating_sub(HEAD) / CORE
}

pub(super) fn draw_cores(buffer: &mut Buffer, area: Rect, record: &MonitorRecord) {
    if area.height == 0 {
        return;
    }
    let all = or_unknown(record.cpu.percent.map(|percent| format!("{percent:.0} %")));
    buffer.set_stringn(area.x, area.y, format!("CPU {all}"), usize::from(HEAD), STRONG);
    let cores = &record.cpu.cores;
    let body = Rect { x: area.x + HEAD, width: area.width.saturating_sub(HEAD), ..area };
    let columns = (cores.len() as u16).div_ceil(area.height).max(1);
    if body.width / columns >= CORE {
        draw_wide(buffer, body, cores, columns);
    } else {
        draw_narrow(buffer, body, cores);
    }
}

/// A bar and a figure for each.
fn draw_wide(buffer: &mut Buffer, body: Rect, cores: &[MonitorCore], columns: u16) {
    let width = (body.width / columns).min(40);
    for (at, core) in cores.iter().enumerate() {
        let (x, y) = (at as u16 % columns * width, at as u16 / columns);
        if y >= body.height {
            break;
        }
        let (x, y) = (body.x + x, body.y + y);
        buffer.set_stringn(x, y, format!("{at:>2}"), 3, FAINT);
        let word = match (core.online, core.percent) {
            (false, _) => "off".to_string(),
            (true, percent) => or_unknown(percent.map(|percent| format!("{percent:.0} %"))),
        };
        let bar = width.saturating_sub(10);
        let full = core.percent.unwrap_or(0.0).clamp(0.0, 100.0) / 100.0 * f64::from(bar);
        for dot in 0..bar {
            let on = f64::from(dot) + 0.5 < full;
            let (text, style) = if on { ("■", Style::new().fg(LOAD)) } else { ("·", FAINT) };
            buffer.set_string(x + 3 + dot, y, text, style);
        }
        buffer.set_stringn(x + 3 + bar, y, format!("{word:>6}"), 6, Style::new());
    }
}

/// A character for each, as high as its load.
fn draw_narrow(buffer: &mut Buffer, body: Rect, cores: &[MonitorCore]) {
    for (at, core) in cores.iter().enumerate() {
        let (x, y) = (at as u16 % body.width.max(1), at as u16 / body.width.max(1));
        if y >= body.height {
            break;
        }
        let (text, style) = match (core.online, core.percent) {
            (false, _) => ("×", FAINT),
            (true, None) => ("?", FAINT),
            (true, Some(percent)) => {
                let level = (percent.clamp(0.0, 100.0) / 100.0 * 8.0).round() as usize;
                (LEVELS[level.max(1)], Style::new().fg(LOAD))
            }
        };
        buffer.set_string(body.x + x, body.y + y, text, style);
    }
}

/// A line of facts: what they are about, and each; true where one is a warning.
type FactLine = (&'static str, Vec<(bool, String)>);

/// What the machine or board has, those first that limit what can be done.
fn lines(record: &MonitorRecord) -> Vec<FactLine> {
    let plain = |words: Vec<String>| words.into_iter().map(|word| (false, word)).collect();
    let all = [
        ("Slowed", slowed(record).into_iter().map(|word| (true, word)).collect()),
        ("GPU", plain(gpu(record))),
        ("Power", plain(power(record))),
        ("Engines", plain(engines(record))),
        ("Heat", plain(heat(record))),
        ("Fans", plain(fans(record))),
        ("Memory", plain(memory(record))),
    ];
    all.into_iter().filter(|(_, words): &FactLine| !words.is_empty()).collect()
}

fn slowed(record: &MonitorRecord) -> Vec<String> {
    let by = |name: String, by: &Option<Vec<String>>| {
        let by = by.as_ref().filter(|by| !by.is_empty())?;
        Some(format!("{name} throttled by {}", by.join(", ")))
    };
    let board = by("clocks".to_string(), &record.throttled_by);
    let gpus = record.gpus.iter().enumerate();
    board
        .into_iter()
        .chain(gpus.filter_map(|(at, gpu)| by(format!("GPU{at}"), &gpu.throttled_by)))
        .collect()
}

/// Of the GPUs: their bars have the rest.
fn gpu(record: &MonitorRecord) -> Vec<String> {
    let several = record.gpus.len() > 1;
    let one = |(at, gpu): (usize, &crate::command::monitor::record::MonitorGpu)| {
        let figures = [
            gpu.percent.map(|percent| format!("{percent:.0} %")),
            gpu.mhz.map(|mhz| format!("{mhz:.0} MHz")),
            gpu.power_w.map(|watts| format!("{watts:.0} W")),
            gpu.temperature_c.map(|celsius| format!("{celsius:.0} °C")),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let name = if several { format!("{at}: ") } else { String::new() };
        (!figures.is_empty()).then(|| format!("{name}{}", figures.join(" ")))
    };
    record.gpus.iter().enumerate().take(8).filter_map(one).collect()
}

fn power(record: &MonitorRecord) -> Vec<String> {
    let board = record.total_power_w.map(|watts| format!("board {watts:.1} W"));
    let mode = record.power_mode.as_ref().map(|mode| format!("mode {mode}"));
    let rails = record.power_w.iter();
    let rail = |(name, watts): (&String, &Option<f64>)| Some(format!("{name} {:.1} W", (*watts)?));
    board.into_iter().chain(mode).chain(rails.filter_map(rail)).collect()
}

fn engines(record: &MonitorRecord) -> Vec<String> {
    let one = |(name, engine): (&String, &crate::command::monitor::record::MonitorEngine)| {
        if engine.off {
            return format!("{name} off");
        }
        let load = engine.percent.map(|percent| format!(" {percent:.0} %"));
        let clock = engine.mhz.map(|mhz| format!(" {mhz:.0} MHz"));
        format!("{name}{}{}", load.unwrap_or_default(), clock.unwrap_or_default())
    };
    record.engines.iter().map(one).collect()
}

fn fans(record: &MonitorRecord) -> Vec<String> {
    let one = |(name, fan): (&String, &crate::command::monitor::record::MonitorFan)| {
        let driven = fan.percent.map(|percent| format!(" {percent:.0} %"));
        let turns = fan.rpm.map(|rpm| format!(" {rpm:.0} rpm"));
        format!("{name}{}{}", driven.unwrap_or_default(), turns.unwrap_or_default())
    };
    record.fans.iter().map(one).collect()
}

/// The hottest first; a placeholder is no temperature.
fn heat(record: &MonitorRecord) -> Vec<String> {
    let real = record.temperatures_c.iter().filter(|(name, _)| !is_placeholder(name));
    let mut known: Vec<(&String, f64)> =
        real.filter_map(|(name, celsius)| Some((name, (*celsius)?))).collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    known.into_iter().map(|(name, celsius)| format!("{name} {celsius:.0} °C")).collect()
}

fn memory(record: &MonitorRecord) -> Vec<String> {
    let largest = record.memory.largest_free_bytes;
    let largest = largest.map(|bytes| format!("largest free block {}", Bytes(bytes)));
    let swap = record.swap.total_bytes.filter(|total| *total > 0).zip(record.swap.used_bytes);
    let swap = swap.map(|(total, used)| format!("swap {} of {}", Bytes(used), Bytes(total)));
    swap.into_iter().chain(largest).collect()
}

/// How many rows the facts would take.
pub(super) fn fact_rows(record: &MonitorRecord, most: u16) -> u16 {
    (lines(record).len() as u16).min(most)
}

/// A line for each group where there are rows enough; otherwise all of them, one after the other.
pub(super) fn draw_facts(buffer: &mut Buffer, area: Rect, record: &MonitorRecord) {
    let lines = lines(record);
    let groups = lines.len() as u16;
    let (mut x, mut y) = (area.x, area.y);
    let mut put = |head: Option<&str>, warning: bool, word: &str, fresh: bool| {
        let width = head.map_or(0, |head| head.len() + 1) + word.chars().count();
        let cramped = usize::from(area.right().saturating_sub(x)) < width;
        if x > area.x && (fresh || cramped) && y + 1 < area.bottom() {
            (x, y) = (area.x, y + 1);
        } else if x > area.x && cramped {
            // The last line: what does not fit is in the help and in --once.
            x = area.right();
            return;
        }
        if y >= area.bottom() {
            return;
        }
        if let Some(head) = head {
            let head =
                if groups <= area.height { format!("{head:<9}") } else { format!("{head} ") };
            (x, _) = buffer.set_stringn(x, y, head, usize::from(area.right() - x), STRONG);
        }
        let style = if warning { ALERT } else { Style::new() };
        (x, _) = buffer.set_stringn(x, y, word, usize::from(area.right().saturating_sub(x)), style);
        x = (x + 3).min(area.right());
    };
    for (head, words) in &lines {
        for (at, (warning, word)) in words.iter().enumerate() {
            let first = at == 0;
            put(first.then_some(*head), *warning, word, first && groups <= area.height);
        }
    }
}
