//! The terminal: the memory configuration at the start, a short table at the end.

use crate::record::{BenchRecord, MeasuredWhat, MemorySafety, SLOTS};

use plimsoll::text::one_line;

use super::sheet::{DASH, ReportRow, Sheet, gib, limit};

const WIDTH: usize = 60;

/// The memory configuration, shown when a run starts. `on_gpu` says that the user named a GPU;
/// otherwise it is not known yet whether one will be used. `backends` says what runs each slot,
/// or why nothing does. `workspace` is what a TensorRT engine may use while it is built.
#[must_use]
pub fn start(
    safety: &MemorySafety,
    on_gpu: bool,
    workspace: Option<plimsoll::Bytes>,
    backends: [&str; 2],
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
    for (slot, (name, backend)) in SLOTS.iter().zip(backends).enumerate() {
        text += &format!("Slot {slot} ({name}): {}\n", one_line(backend));
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

/// The short answer: one line per slot, and why a slot did not complete.
#[must_use]
pub fn table(record: &BenchRecord) -> String {
    let sheet = Sheet::new(record);
    let head =
        ["slot", "model", "status", "frames", "fps", "p50 ms", "p95 ms", "p99 ms", "peak memory"];
    let mut table = vec![head.map(String::from)];
    for (model, words) in record.models.iter().zip(&sheet.models) {
        let number = |value: Option<f64>| value.map_or(DASH.into(), |v| format!("{v:.2}"));
        let p = model.performance.as_ref();
        // The same words as in every other format.
        let whole = words.latency.iter().find(|line| line[0] == "whole");
        let cell = |at: usize| whole.map_or(DASH.to_string(), |line| line[at].clone());
        let peak = words.memory.iter().find(|row| row.label == "Peak");
        table.push([
            one_line(&model.slot_name).into_owned(),
            model.name.as_deref().map_or(DASH.into(), |name| one_line(name).into_owned()),
            model.status.to_string(),
            p.map_or(DASH.into(), |p| p.frames.to_string()),
            number(p.and_then(|p| p.fps)),
            cell(2),
            cell(4),
            cell(5),
            peak.map_or(DASH.into(), |row| row.value.clone()),
        ]);
    }
    let mut text = columns(&table);
    for model in record.models.iter().filter(|model| model.reason.is_some()) {
        let reason = model.reason.as_deref().unwrap_or_default();
        let name = one_line(&model.label()).into_owned();
        text += &format!("{name} {}: {}\n", model.status, one_line(reason));
    }
    text
}

/// The end of a run: the table, the memory, the doubts.
#[must_use]
pub fn end(record: &BenchRecord) -> String {
    let sheet = Sheet::new(record);
    let mut text = table(record);
    text += &format!("\n{}", memory(&sheet.architecture));
    text += &format!("\nMemory: {}\n", one_line(&sheet.status.1));
    if let Some(why) = &sheet.interruption {
        text += &format!("Interrupted: {}\n", one_line(why));
    }
    if !sheet.doubts.is_empty() {
        text += "Doubts:\n";
        sheet.doubts.iter().for_each(|doubt| text += &format!("  - {}\n", one_line(doubt)));
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

fn columns<const N: usize>(table: &[[String; N]]) -> String {
    let wide = |at: usize| table.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(wide).collect();
    let mut text = String::new();
    for line in table {
        let cells = line.iter().enumerate().map(|(at, cell)| match at {
            0..=2 => format!("{cell:<0$}", widths[at]),
            _ => format!("{cell:>0$}", widths[at]),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
