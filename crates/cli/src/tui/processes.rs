//! The table of processes: as many columns as the width has room for.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::bars::{command, draw_gauge, gib, held};
use super::palette::{ALARM, FAINT, GPU, MEMORY, STRONG};
use super::view::{LiveView, ProcessSort};
use crate::command::monitor::record::{MonitorProcess, MonitorRecord};
use crate::page::UNKNOWN;

/// The command line has at least this much of the width before a column is left out.
const COMMAND: u16 = 24;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessColumn {
    Pid,
    User,
    /// The number of the GPU, where there are several.
    Device,
    Gpu,
    Resident,
    Share,
    Load,
    /// What the guard has counted, of its limit.
    Guard,
    Container,
    Command,
}

use ProcessColumn::{Command, Container, Device, Gpu, Guard, Load, Pid, Resident, Share, User};

impl ProcessColumn {
    fn width(self, area: u16) -> u16 {
        match self {
            Pid => 7,
            User => 8,
            Device => 3,
            Gpu | Resident => 8,
            // A bar and its figure.
            Share => {
                if area >= 120 {
                    5 + (area / 10).min(30)
                } else {
                    13
                }
            }
            Load => 6,
            Guard => 13,
            Container => 19,
            Command => COMMAND,
        }
    }

    fn head(self) -> &'static str {
        match self {
            Pid => "pid",
            User => "user",
            Device => "GPU",
            Gpu => "GPU GiB",
            Resident => "RAM GiB",
            Share => "share",
            Load => "CPU %",
            Guard => "use/limit GiB",
            Container => "container",
            Command => "command",
        }
    }

    fn is_right(self) -> bool {
        matches!(self, Pid | Device | Gpu | Resident | Load | Guard)
    }

    fn sorts(self) -> Option<ProcessSort> {
        Some(match self {
            Pid => ProcessSort::Pid,
            User => ProcessSort::User,
            Gpu => ProcessSort::Gpu,
            Resident => ProcessSort::Resident,
            Load => ProcessSort::Load,
            Command => ProcessSort::Name,
            Device | Share | Guard | Container => return None,
        })
    }
}

/// What the table has to show, and what it has room for.
struct ProcessTable {
    columns: Vec<(ProcessColumn, u16)>,
    /// What shares are of: GPU memory where anybody's is known, or the system's.
    by_gpu: bool,
    whole: u64,
}

impl ProcessTable {
    fn new(record: &MonitorRecord, width: u16) -> ProcessTable {
        let any = |has: fn(&MonitorProcess) -> bool| record.processes.iter().any(has);
        let by_gpu = any(|process| held(process).is_some());
        let mut columns =
            vec![Pid, User, Device, Gpu, Resident, Share, Load, Guard, Container, Command];
        columns.retain(|column| match column {
            Device => by_gpu && record.gpus.len() > 1,
            Gpu => by_gpu,
            User => any(|process| process.user.is_some()),
            Guard => any(|process| process.limit_bytes.is_some()),
            Container => any(|process| process.container.is_some()),
            _ => true,
        });
        let needed = |columns: &[ProcessColumn]| -> u16 {
            columns.iter().map(|column| column.width(width) + 1).sum()
        };
        // Without these the questions of who and how much are still answered.
        for column in [Load, User, Container, Resident, Share] {
            if needed(&columns) > width + 1 && (column != Resident || by_gpu) {
                columns.retain(|one| *one != column);
            }
        }
        let rest = width.saturating_sub(needed(&columns).saturating_sub(COMMAND + 1));
        let sized = |column: ProcessColumn| {
            (column, if column == Command { rest } else { column.width(width) })
        };
        let columns = columns.into_iter().map(sized).collect();
        ProcessTable { columns, by_gpu, whole: whole(record, by_gpu) }
    }

    fn text(&self, process: &MonitorProcess, column: ProcessColumn) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_string());
        match column {
            Pid => process.pid.to_string(),
            User => or_dash(process.user.clone()),
            Device => or_dash(process.gpu.map(|gpu| gpu.to_string())),
            Gpu => or_dash(held(process).map(gib)),
            Resident => or_dash(process.resident_bytes.map(gib)),
            Load => or_dash(process.cpu_percent.map(|load| format!("{load:.0}"))),
            Guard => or_dash(process.limit_bytes.map(|limit| {
                format!("{}/{}", gib(process.guarded_bytes.unwrap_or(0)), gib(limit))
            })),
            Container => process.container.clone().unwrap_or_default(),
            Share => String::new(),
            Command => command(process),
        }
    }

    fn share(&self, process: &MonitorProcess) -> Option<f64> {
        let bytes = if self.by_gpu { held(process) } else { process.resident_bytes };
        (self.whole > 0).then_some(())?;
        Some(bytes? as f64 / self.whole as f64)
    }
}

/// What all together may hold: the memory that shares are of.
fn whole(record: &MonitorRecord, by_gpu: bool) -> u64 {
    let own = (0..record.gpus.len()).filter_map(|at| record.own(at)).map(|pool| pool.end()).max();
    let system = record.system().map(|pool| pool.end());
    own.filter(|_| by_gpu).or(system).unwrap_or(0)
}

/// Rows that the table would like: a header, and each process.
pub(super) fn wanted_rows(view: &LiveView) -> u16 {
    let all = view.record.as_ref().map_or(0, |record| record.processes.len());
    if all == 0 { 0 } else { all.min(1000) as u16 + 1 }
}

pub(super) fn draw_processes(buffer: &mut Buffer, area: Rect, view: &LiveView) {
    let Some(record) = view.record.as_ref().filter(|_| area.height >= 2) else { return };
    let table = ProcessTable::new(record, area.width);
    let list = view.processes();
    let rows = usize::from(area.height - 1);
    let top = view.scrolled.min(list.len().saturating_sub(rows));
    draw_head(buffer, area, view, &table, (top, list.len().min(top + rows), list.len()));
    for (row, process) in list.iter().skip(top).take(rows).enumerate() {
        draw_row(buffer, area, area.y + 1 + row as u16, &table, process);
    }
}

fn draw_head(
    buffer: &mut Buffer,
    area: Rect,
    view: &LiveView,
    table: &ProcessTable,
    (top, last, all): (usize, usize, usize),
) {
    let mut x = area.x;
    let by = match view.sort {
        // Without GPU memory, the order is that of the system's.
        ProcessSort::Gpu if !table.by_gpu => ProcessSort::Resident,
        sort => sort,
    };
    for (column, width) in &table.columns {
        let mark = if column.sorts() == Some(by) { "▾" } else { "" };
        let text = format!("{mark}{}", column.head());
        put(buffer, x, area.y, *width, &text, column.is_right(), STRONG);
        x += width + 1;
    }
    let filter = match (view.filter.is_set(), view.filter.typing) {
        (false, _) => String::new(),
        (true, true) => format!("  filter: {}_  ", view.filter.text),
        (true, false) => format!("  filter: {}  ", view.filter.text),
    };
    let place = if top > 0 || last < all {
        format!("{}–{last} of {all}", top + 1)
    } else {
        format!("{all}")
    };
    let text = format!("{filter}{place}");
    let width = (text.chars().count() as u16).min(area.width);
    let style = if view.filter.is_set() { STRONG } else { FAINT };
    buffer.set_stringn(area.right() - width, area.y, &text, usize::from(width), style);
}

fn draw_row(
    buffer: &mut Buffer,
    area: Rect,
    y: u16,
    table: &ProcessTable,
    process: &MonitorProcess,
) {
    let mut x = area.x;
    for (column, width) in &table.columns {
        if *column == Share {
            draw_share(buffer, Rect::new(x, y, *width, 1), table, process);
        } else {
            let text = table.text(process, *column);
            put(buffer, x, y, *width, &text, column.is_right(), Style::new());
        }
        x += width + 1;
    }
}

/// A bar, and its figure.
fn draw_share(buffer: &mut Buffer, area: Rect, table: &ProcessTable, process: &MonitorProcess) {
    let Some(share) = table.share(process) else { return };
    let bar = area.width.saturating_sub(5);
    let over =
        process.limit_bytes.zip(process.guarded_bytes).is_some_and(|(limit, used)| used > limit);
    let colour = if over {
        ALARM
    } else if table.by_gpu {
        GPU
    } else {
        MEMORY
    };
    draw_gauge(buffer, Rect { width: bar, ..area }, share, colour);
    put(buffer, area.x + bar, area.y, 5, &format!("{:.0} %", 100.0 * share), true, Style::new());
}

/// Text in a column; what is too long is cut.
fn put(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, right: bool, style: Style) {
    let length = text.chars().count().min(usize::from(width)) as u16;
    let x = if right { x + width - length } else { x };
    buffer.set_stringn(x, y, text, usize::from(width), style);
}
