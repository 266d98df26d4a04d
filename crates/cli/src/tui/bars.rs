//! How full each memory is, what is left, and when it runs out.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use plimsoll::Bytes;
use plimsoll::probe::Forecast;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::palette::{ALARM, ALERT, FAINT, GPU, MEMORY, STRONG, pressure_colour};
use super::view::LiveView;
use crate::command::monitor::record::{
    MonitorGpu, MonitorPool, MonitorProcess, MonitorRecord, PoolOwner,
};
use crate::command::monitor::table::duration;
use crate::page::UNKNOWN;

/// This many runs have a bar.
const MOST_RUNS: usize = 4;
/// As much of a command line says who holds most.
const LONGEST_NAME: usize = 32;
const MOST: &str = "Most     ";
/// The width of a small terminal.
const NARROW: usize = 80;
const NOT_KNOWN: &str = "     – not known";
const GIB: f64 = (1u64 << 30) as f64;

/// A memory as a bar.
pub(super) struct MemoryBar {
    name: String,
    figures: String,
    /// What is used, and where the limit is, from 0 to 1.
    share: Option<f64>,
    limit: Option<f64>,
    colour: Color,
    /// What stands behind it where there is room.
    words: String,
}

/// The name of a memory in the view.
pub(super) fn name_of(record: &MonitorRecord, owner: PoolOwner) -> String {
    match owner {
        PoolOwner::System if record.unified == Some(true) => "System".to_string(),
        PoolOwner::System => "RAM".to_string(),
        PoolOwner::Gpu(at) => format!("GPU{at}"),
        PoolOwner::Run(..) => owner.to_string(),
    }
}

/// A size in the unit of a table: GiB.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / GIB)
}

/// All memories: GPUs first, with the runs that the guard holds, then the system's.
pub(super) fn bars(record: &MonitorRecord) -> Vec<MemoryBar> {
    let mut bars = Vec::new();
    for (at, gpu) in record.gpus.iter().enumerate().filter(|(_, gpu)| !gpu.unified).take(8) {
        bars.push(pool_bar(&format!("GPU{at}"), record.own(at), GPU, of_gpu(gpu)));
    }
    let runs = record.pools().filter(|pool| matches!(pool.owner, PoolOwner::Run(..)));
    for pool in runs.take(MOST_RUNS) {
        let words = "held by plimsoll run".to_string();
        bars.push(pool_bar(&name_of(record, pool.owner), Some(pool), GPU, words));
    }
    let system = name_of(record, PoolOwner::System);
    bars.push(pool_bar(&system, record.system(), MEMORY, String::new()));
    if record.unified == Some(true) {
        let gpu = record.gpus.iter().find(|gpu| gpu.unified);
        let share = record.memory.gpu_share_bytes.zip(record.memory.total_bytes);
        bars.push(MemoryBar {
            name: "  of it GPU".to_string(),
            figures: share
                .map_or_else(|| NOT_KNOWN.to_string(), |(used, total)| figures(used, total)),
            share: share.map(|(used, total)| ratio(used, total)),
            limit: None,
            colour: GPU,
            words: gpu.map(of_gpu).unwrap_or_default(),
        });
    }
    bars
}

fn ratio(used: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { used as f64 / total as f64 }
}

fn figures(used: u64, total: u64) -> String {
    format!("{:>6} of {:>6} GiB {:>3.0} %", gib(used), gib(total), 100.0 * ratio(used, total))
}

fn pool_bar(name: &str, pool: Option<MonitorPool>, colour: Color, words: String) -> MemoryBar {
    let name = name.to_string();
    let Some(pool) = pool else {
        let (figures, share, limit) = (NOT_KNOWN.to_string(), None, None);
        return MemoryBar { name, figures, share, limit, colour, words };
    };
    let pressure = pool.pressure();
    MemoryBar {
        name,
        figures: figures(pool.used, pool.total),
        share: Some(ratio(pool.used, pool.total)),
        limit: pool.limit.map(|limit| ratio(limit, pool.total)).filter(|at| *at < 1.0),
        colour: pressure_colour(pressure, colour),
        words: format!("{pressure:<8}  {words}").trim_end().to_string(),
    }
}

/// Load, clock, power, temperature and fan of a GPU, what there is of them.
fn of_gpu(gpu: &MonitorGpu) -> String {
    let power = gpu.power_w.map(|watts| match gpu.power_limit_w {
        Some(limit) => format!("{watts:.0}/{limit:.0} W"),
        None => format!("{watts:.0} W"),
    });
    let words = [
        gpu.percent.map(|percent| format!("load {percent:.0} %")),
        gpu.mhz.map(|mhz| format!("{mhz:.0} MHz")),
        power,
        gpu.temperature_c.map(|celsius| format!("{celsius:.0} °C")),
        gpu.fan_percent.map(|percent| format!("fan {percent:.0} %")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// How many columns of bars there are, and how many rows they take.
pub(super) fn shape(bars: usize, width: u16) -> (u16, u16) {
    let columns = if bars > 4 { (width / 40).clamp(1, 4) } else { 1 };
    (columns, (bars as u16).div_ceil(columns))
}

pub(super) fn draw_bars(buffer: &mut Buffer, area: Rect, bars: &[MemoryBar]) {
    let (columns, rows) = shape(bars.len(), area.width);
    let width = area.width / columns;
    for (at, bar) in bars.iter().enumerate() {
        let (column, row) = (at as u16 / rows.max(1), at as u16 % rows.max(1));
        let gap = u16::from(column + 1 < columns);
        let place = Rect::new(area.x + column * width, area.y + row, width - gap, 1);
        if row < area.height {
            draw_bar(buffer, place, bar);
        }
    }
}

fn draw_bar(buffer: &mut Buffer, row: Rect, bar: &MemoryBar) {
    let room = |from: u16| usize::from(row.right().saturating_sub(from));
    let names = if row.width < 60 { 6 } else { 12 };
    buffer.set_stringn(row.x, row.y, &bar.name, names - 1, STRONG);
    let x = row.x + names as u16;
    buffer.set_stringn(x, row.y, &bar.figures, room(x), Style::new());
    let from = x + 27;
    let most = if row.width >= 100 { 60 } else { 9 };
    let words = if row.width < 60 { 0 } else { bar.words.chars().count().min(most) as u16 };
    let to = row.right().saturating_sub(if words > 0 { words.max(9) + 1 } else { 0 });
    let place = Rect::new(from, row.y, to.saturating_sub(from), 1);
    if let Some(share) = bar.share {
        draw_gauge(buffer, place, share, bar.colour);
    }
    if let Some(limit) = bar.limit.filter(|_| place.width > 0) {
        let at = ((limit * f64::from(place.width)) as u16).min(place.width - 1);
        buffer.set_string(place.x + at, place.y, "│", ALERT);
    }
    if words > 0 {
        let style = if bar.colour == ALARM { ALERT } else { Style::new() };
        buffer.set_stringn(to + 1, row.y, &bar.words, room(to + 1), style);
    }
}

/// Eighths of a character.
const PARTS: [&str; 8] = [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A bar that is full from 0 to 1.
pub(super) fn draw_gauge(buffer: &mut Buffer, area: Rect, share: f64, colour: Color) {
    let width = usize::from(area.width);
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    for at in 0..width {
        let (text, style) = match eighths.saturating_sub(at * 8) {
            8.. => ("█", Style::new().fg(colour)),
            0 => ("·", FAINT),
            part => (PARTS[part], Style::new().fg(colour)),
        };
        buffer.set_string(area.x + at as u16, area.y, text, style);
    }
}

/// What is left of the memory that is tightest, when it runs out, and who holds most: the questions
/// that a reader has first.
pub(super) fn headline(view: &LiveView) -> Vec<Line<'static>> {
    let Some(record) = &view.record else { return Vec::new() };
    let pool = record.tightest();
    let mut lines = vec![left(record, pool.as_ref()), runs_out(view, record, pool.as_ref())];
    lines.extend(holds_most(record));
    lines
}

fn holds_most(record: &MonitorRecord) -> Option<Line<'static>> {
    let by_gpu = record.processes.iter().any(|process| held(process).is_some());
    let size = |process: &MonitorProcess| match by_gpu {
        true => held(process),
        false => process.resident_bytes,
    };
    let most = record.processes.iter().max_by_key(|process| size(process))?;
    let (bytes, whole) = (size(most)?, if by_gpu { "GPU memory" } else { "RAM" });
    // The name of an interpreter says little; the word behind it does.
    let command = command(most);
    let name: String = command.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let name: String = name.chars().take(LONGEST_NAME).collect();
    let user = most.user.as_ref().map(|user| format!(", user {user}")).unwrap_or_default();
    let held = format!(" holds {} of {whole} (pid {}{user}", Bytes(bytes), most.pid);
    // A table that is wide enough has the container, too.
    let place = most.container.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
    let long =
        MOST.len() + [&name, &held, &place].map(|part| part.chars().count()).iter().sum::<usize>();
    let place = if long < NARROW { place } else { String::new() };
    Some(Line::from(vec![
        Span::styled(MOST, STRONG),
        Span::styled(name, STRONG),
        Span::raw(format!("{held}{place})")),
    ]))
}

/// The command line without the folder of its program; the name in brackets where there is none.
pub(super) fn command(process: &MonitorProcess) -> String {
    let name = process.name.as_deref().unwrap_or(UNKNOWN);
    let Some(line) = &process.command else { return format!("[{name}]") };
    let (program, rest) = line.split_once(' ').map_or((line.as_str(), ""), |(a, b)| (a, b));
    let program = program.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or(program);
    format!("{program} {rest}").trim_end().to_string()
}

/// GPU memory of a process: what the driver tells, or what the guard has counted.
pub(super) fn held(process: &MonitorProcess) -> Option<u64> {
    process.gpu_bytes.or(process.guarded_bytes)
}

fn left(record: &MonitorRecord, pool: Option<&MonitorPool>) -> Line<'static> {
    let head = Span::styled("Left     ", STRONG);
    let Some(pool) = pool else {
        return Line::from(vec![head, Span::raw("not known: no memory was read")]);
    };
    let name = match pool.owner {
        PoolOwner::System => "system memory".to_string(),
        PoolOwner::Gpu(at) => format!("GPU{at} memory"),
        PoolOwner::Run(..) => format!("GPU memory of {}", name_of(record, pool.owner)),
    };
    let (amount, rest) = match pool.limit {
        Some(limit) if pool.used > limit => (
            format!("nothing: {} above the limit", Bytes(pool.used - limit)),
            format!(" of {}, {name}", Bytes(limit)),
        ),
        Some(limit) => (
            Bytes(pool.free()).to_string(),
            format!(" below the limit of {}, {name}", Bytes(limit)),
        ),
        None => (
            Bytes(pool.free()).to_string(),
            format!(" of {}, {name} (no limit; set one by --limit)", Bytes(pool.total)),
        ),
    };
    let style = if pressure_colour(pool.pressure(), MEMORY) == ALARM { ALERT } else { STRONG };
    Line::from(vec![head, Span::styled(amount, style), Span::raw(rest)])
}

fn why_not_foreseen(view: &LiveView, pool: Option<&MonitorPool>) -> String {
    let seen = view.history.back().zip(view.history.front()).map_or(0.0, |(b, a)| b.t - a.t);
    let step = seen / view.history.len().saturating_sub(1).max(1) as f64;
    let [first, longest] =
        [Forecast::NARROWEST, Forecast::LONGEST_STEP].map(|time| time.as_secs_f64());
    match pool {
        None => "not known".to_string(),
        Some(_) if step > longest => {
            format!("not known: a forecast needs samples at most {longest:.0} s apart")
        }
        Some(_) if seen < first => {
            format!("not known yet: a forecast needs {first:.0} s of samples")
        }
        Some(_) => "not foreseen: no steady growth".to_string(),
    }
}

fn runs_out(view: &LiveView, record: &MonitorRecord, pool: Option<&MonitorPool>) -> Line<'static> {
    let head = Span::styled("Runs out ", STRONG);
    let over = |pool: &&MonitorPool| pool.limit.is_some_and(|limit| pool.used >= limit);
    if pool.filter(over).is_some() {
        return Line::from(vec![head, Span::styled("now: the limit is reached", ALERT)]);
    }
    let Some(left) = &record.time_left else {
        return Line::from(vec![head, Span::raw(why_not_foreseen(view, pool))]);
    };
    let latest = left.at_most_s.map_or_else(|| "never".to_string(), duration);
    let at = clock(record, left.seconds, &view.settings.zone);
    let at = at.map(|at| format!(", about {at}")).unwrap_or_default();
    let soon = if left.seconds <= 60.0 { ALERT } else { STRONG };
    let rate = Bytes(left.bytes_per_s.max(0.0) as u64);
    Line::from(vec![
        head,
        Span::styled(format!("in {}", duration(left.seconds)), soon),
        Span::raw(format!(" ({} to {latest}){at}, growing {rate}/s", duration(left.at_least_s))),
    ])
}

/// The record's time so many seconds on, where its reader is; a log may have no date.
fn clock(record: &MonitorRecord, seconds: f64, zone: &TimeZone) -> Option<String> {
    let then = SignedDuration::try_from_secs_f64(seconds).ok()?;
    let at = record.time.as_ref()?.parse::<Timestamp>().ok()?.checked_add(then).ok()?;
    Some(at.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string())
}

/// The time of a record, where its reader is: with the date where it is recorded.
pub(super) fn local_time(record: &MonitorRecord, zone: &TimeZone) -> String {
    let Some(time) = &record.time else { return String::new() };
    let form = if record.how == "recorded" { "%F %T %Z" } else { "%T %Z" };
    let at = time.parse::<Timestamp>().map(|at| at.to_zoned(zone.clone()));
    at.map_or_else(|_| time.clone(), |at| at.strftime(form).to_string())
}
