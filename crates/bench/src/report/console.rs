//! The terminal: the memory configuration at the start, a short table at the end.

use crate::doubt::ReportFigure;
use crate::record::{BenchRecord, MeasuredWhat, MemorySafety, ModelRecord};

use plimsoll::text::one_line;

use super::headline::Headline;
use super::sheet::{DASH, ReportRow, Sheet, gib, limit};

const WIDTH: usize = 60;

/// The memory configuration, shown when a run starts. `on_gpu` says that the user named a GPU;
/// otherwise it is not known yet whether one will be used. `backends` says what runs each slot,
/// or why nothing does; each with the name of its slot or row. `workspace` is what a TensorRT
/// engine may use while it is built.
#[must_use]
pub fn start(
    safety: &MemorySafety,
    on_gpu: bool,
    workspace: Option<plimsoll::Bytes>,
    backends: &[(String, String)],
) -> String {
    let line = "=".repeat(WIDTH);
    let methods = match safety.methods_applied.is_empty() {
        true => "none".to_string(),
        false => safety.methods_applied.join(", "),
    };
    let mut text =
        format!("{line}\n{}Memory Configuration\n{line}\n", if on_gpu { "GPU " } else { "" });
    text += &format!("Limit: {}\n", limit(safety));
    text += &format!("Effective Limit: {}\n", gib(Some(safety.effective_limit_gb)));
    text += &format!("Limit Type: {}\n", safety.limit_type);
    text += &format!("Methods Applied: {methods}\n");
    text += &format!("Verified: {}\n", if safety.verified { "yes" } else { "no" });
    let workspace = workspace.map_or(DASH.to_string(), |bytes| bytes.to_string());
    text += &format!("Workspace: {workspace}\n");
    for (place, backend) in backends {
        text += &format!("{}: {}\n", one_line(place), one_line(backend));
    }
    for warning in &safety.warnings {
        text += &format!("Warning: {}\n", one_line(warning));
    }
    text + &line + "\n"
}

/// One line of progress: `GPU_MEM: 5.23/8.00GiB`, without a GPU `MEM: 5.23/8.00GiB`, and where
/// memory is not compared with the limit `MEM: 5.23GiB`.
#[must_use]
pub fn memory_progress(
    what: MeasuredWhat,
    used: Option<plimsoll::Bytes>,
    limit_gb: Option<f64>,
) -> String {
    let name = if what.is_gpu() { "GPU_MEM" } else { "MEM" };
    let used = used.map_or(DASH.to_string(), |bytes| format!("{:.2}", bytes.as_gib()));
    let limit = limit_gb.map_or(String::new(), |limit| format!("/{limit:.2}"));
    format!("{name}: {used}{limit}GiB")
}

/// The short answer: one line per slot or row, and why one did not complete. In a terminal of
/// less `width` columns that are the same in all lines, or say least, are left out.
#[must_use]
pub fn table(record: &BenchRecord, width: Option<usize>) -> String {
    let mut columns = columns(record);
    let width = width.unwrap_or(usize::MAX);
    for column in SPARE {
        if width_of(&columns) <= width {
            break;
        }
        columns.retain(|(name, cells)| *name != column || !cells.iter().all(|c| c == &cells[0]));
    }
    for column in ["frames", "slot", "status"] {
        if width_of(&columns) > width {
            columns.retain(|(name, _)| *name != column);
        }
    }
    let over = width_of(&columns).saturating_sub(width);
    for (_, cells) in columns.iter_mut().filter(|(name, _)| *name == "model") {
        let room = cells.iter().map(|c| c.chars().count()).max().unwrap_or(0).saturating_sub(over);
        cells.iter_mut().for_each(|cell| *cell = shortened_to(cell, room.max(12)));
    }
    let mut text = lines(&columns);
    for model in record.models.iter().filter(|model| model.reason.is_some()) {
        let reason = model.reason.as_deref().unwrap_or_default();
        let name = one_line(&model.label()).into_owned();
        text += &format!("{name} {}: {}\n", model.status, one_line(reason));
    }
    text
}

/// A column of the table: its name, and a cell for each slot or row.
type TableColumn = (&'static str, Vec<String>);

/// The columns that go first where a terminal is narrow and all their cells are equal.
const SPARE: [&str; 4] = ["status", "frames", "J/frame", "mAP"];

/// The columns of the table: their names, and a cell for each slot or row.
fn columns(record: &BenchRecord) -> Vec<TableColumn> {
    let headlines = Headline::of(record);
    let one = |text: &str| one_line(text).into_owned();
    let mut columns: Vec<TableColumn> = Vec::new();
    if record.has_slots() {
        let slot = |m: &ModelRecord| m.slot_name.as_deref().map_or(DASH.to_string(), one);
        columns.push(("slot", record.models.iter().map(slot).collect()));
        let name = |m: &ModelRecord| m.name.as_deref().map_or(DASH.to_string(), one);
        columns.push(("model", record.models.iter().map(name).collect()));
    } else {
        columns.push(("model", headlines.iter().map(|line| one(&line.label)).collect()));
    }
    columns.push(("status", headlines.iter().map(|line| line.status.to_string()).collect()));
    columns.push(("frames", headlines.iter().map(|line| line.frames.clone()).collect()));
    for figure in ReportFigure::SHOWN {
        let (name, with_unit) = match figure {
            ReportFigure::P50 => ("p50 ms", false),
            ReportFigure::P95 => ("p95 ms", false),
            ReportFigure::P99 => ("p99 ms", false),
            ReportFigure::Energy => ("J/frame", false),
            other => (other.name(), true),
        };
        let cell = |line: &Headline| match with_unit {
            true => line.text(figure),
            false => line
                .figures
                .iter()
                .find(|f| f.figure == figure)
                .map_or(DASH.into(), |f| f.value.clone()),
        };
        columns.push((name, headlines.iter().map(cell).collect()));
    }
    columns
}

/// A text that is cut to a number of characters, with a mark where it was.
fn shortened_to(text: &str, room: usize) -> String {
    match text.chars().count() > room {
        true => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_string(),
    }
}

/// The end of a run: the table, the memory, the doubts.
#[must_use]
pub fn end(record: &BenchRecord, width: Option<usize>) -> String {
    let sheet = Sheet::new(record);
    let mut text = table(record, width);
    text += &format!("\n{}", memory(&sheet.architecture));
    text += &format!("\nMemory: {}\n", one_line(&sheet.status.1));
    if let Some(why) = &sheet.interruption {
        text += &format!("Interrupted: {}\n", one_line(why));
    }
    if !sheet.doubts.is_empty() {
        text += "Doubts:\n";
        for doubt in &sheet.doubts {
            text += &(wrapped(&format!("  - {}", one_line(doubt)), width, "    ") + "\n");
        }
    }
    text
}

/// A line that breaks between words where it is longer than `width`; what follows is indented.
#[must_use]
pub fn wrapped(line: &str, width: Option<usize>, indent: &str) -> String {
    let width = width.unwrap_or(usize::MAX);
    let mut text = String::new();
    let mut column = 0;
    for (at, word) in line.split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && column + 1 + length > width && column > indent.len() {
            text = text.trim_end().to_string() + "\n" + indent;
            column = indent.len();
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text
}

/// The GPU's memory beside the system's.
fn memory((title, rows): &(String, Vec<ReportRow>)) -> String {
    let line = |ReportRow { label, value }: &ReportRow| match label.starts_with(['├', '└']) {
        true => format!("  {label}: {}\n", one_line(value)),
        false => format!("{label}: {}\n", one_line(value)),
    };
    let rows = rows.iter().map(line).collect::<String>();
    format!("{rows}Architecture: {}\n", one_line(title))
}

/// How wide a column is.
fn wide((name, cells): &TableColumn) -> usize {
    let cells = cells.iter().map(|cell| cell.chars().count());
    cells.chain([name.chars().count()]).max().unwrap_or(0)
}

fn width_of(columns: &[TableColumn]) -> usize {
    columns.iter().map(|column| wide(column) + 2).sum::<usize>().saturating_sub(2)
}

fn lines(columns: &[TableColumn]) -> String {
    let rows = columns.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    let line = |cell: &dyn Fn(&TableColumn) -> String| {
        let cells = columns.iter().map(|column| match column.0 {
            "slot" | "model" | "status" => format!("{:<1$}", cell(column), wide(column)),
            _ => format!("{:>1$}", cell(column), wide(column)),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    let mut text = line(&|(name, _)| (*name).to_string());
    for row in 0..rows {
        text += &line(&|(_, cells)| cells.get(row).cloned().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_between_words() {
        let line = "  - the memory limit was not enforced, only watched";
        assert_eq!(wrapped(line, None, "    "), line);
        let broken = wrapped(line, Some(24), "    ");
        assert_eq!(broken, "  - the memory limit was\n    not enforced, only\n    watched");
        assert_eq!(wrapped("averylongword", Some(4), "  "), "averylongword");
        assert_eq!(shortened_to("yolo11n-640.onnx", 8), "yolo11n…");
    }
}
