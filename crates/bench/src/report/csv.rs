//! `summary.csv`: one line per model: the memory columns that fit the machine, speed, accuracy and
//! energy.
//!
//! On unified memory the allocator's figure is a subset of the system's, so there is no
//! total. Without a GPU it is the memory of the process, not of the system. The notes begin
//! with the slot, because two slots may have the same model. An unknown cell is empty. MB are
//! binary (MiB), as everywhere.

use plimsoll::text::one_line;

use super::accuracy;
use crate::record::{BenchRecord, MemoryArchitecture, ModelRecord};

/// The table as CSV.
#[must_use]
pub fn render(record: &BenchRecord) -> String {
    let architecture = record.system_metrics.architecture;
    let memory = match architecture {
        MemoryArchitecture::Unified => "system_memory_mb,cuda_alloc_mb",
        MemoryArchitecture::Discrete => "gpu_memory_mb,system_memory_mb,total_mb",
        MemoryArchitecture::NoGpu => "process_memory_mb",
    };
    let figures = FIGURES.join(",");
    let mut text = format!("model,{memory},{figures},notes\n");
    for model in &record.models {
        let own = model.gpu_memory.peak_gb;
        let system = model.gpu_memory.system_peak_gb;
        let cells = match architecture {
            MemoryArchitecture::Unified => vec![mb(system), mb(own)],
            MemoryArchitecture::Discrete => {
                let total = own.zip(system).map(|(own, system)| own + system);
                vec![mb(own), mb(system), mb(total)]
            }
            MemoryArchitecture::NoGpu => vec![mb(own)],
        };
        let line = [
            vec![cell(model.row.as_deref().or(model.name.as_deref()).unwrap_or_default())],
            cells,
            figures_of(model).to_vec(),
            vec![cell(&notes(model, architecture))],
        ];
        text += &(line.concat().join(",") + "\n");
    }
    text
}

/// The columns that do not depend on the machine.
const FIGURES: [&str; 11] = [
    "engine",
    "device",
    "input_size",
    "frames",
    "fps",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "map",
    "map50",
    "energy_per_frame_j",
];

/// Their cells.
fn figures_of(model: &ModelRecord) -> [String; FIGURES.len()] {
    let number = |value: Option<f64>, digits: usize| {
        value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
    };
    let info = model.model_info.as_ref();
    let speed = model.performance.as_ref();
    let whole = speed.map(|speed| &speed.whole);
    let size = info.and_then(|info| info.input_size);
    [
        cell(info.map_or("", |info| &info.engine)),
        cell(info.map_or("", |info| &info.device)),
        size.map(|[rows, columns]| format!("{rows}x{columns}")).unwrap_or_default(),
        speed.map(|speed| speed.frames.to_string()).unwrap_or_default(),
        number(speed.and_then(|speed| speed.fps), 3),
        number(whole.map(|whole| whole.p50_ms), 4),
        number(whole.map(|whole| whole.p95_ms), 4),
        number(whole.map(|whole| whole.p99_ms), 4),
        number(accuracy::map(model), 5),
        number(accuracy::map50(model), 5),
        number(model.energy_per_frame_j, 5),
    ]
}

fn mb(gib: Option<f64>) -> String {
    gib.map(|gib| format!("{:.1}", gib * 1024.0)).unwrap_or_default()
}

fn notes(model: &ModelRecord, architecture: MemoryArchitecture) -> String {
    let mut notes = vec![model.place()];
    if let Some(reason) = &model.reason {
        notes.push(format!("{}: {reason}", model.status));
    }
    if model.performance.is_some() {
        notes.push(match architecture {
            MemoryArchitecture::Unified => "Unified: CUDA is subset of system".to_string(),
            MemoryArchitecture::Discrete => "Discrete GPU".to_string(),
            MemoryArchitecture::NoGpu => "No GPU in use: memory of the process".to_string(),
        });
    }
    match model.gpu_memory.within_limit {
        Some(false) => notes.push("EXCEEDED THE LIMIT".to_string()),
        None if model.gpu_memory.limit_gb.is_none() => {
            notes.push("not compared with the limit".to_string());
        }
        None if model.performance.is_some() => notes.push("memory not measured".to_string()),
        _ => {}
    }
    notes.join("; ")
}

/// A cell: quoted where necessary, and never a formula that a spreadsheet would run.
fn cell(text: &str) -> String {
    let text = one_line(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    let text = if formula { format!("'{text}") } else { text.into_owned() };
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        assert_eq!(cell("plain"), "plain");
        assert_eq!(cell("a,b"), "\"a,b\"");
        assert_eq!(cell("say \"x\""), "\"say \"\"x\"\"\"");
        assert_eq!(cell("=cmd()"), "'=cmd()");
        assert_eq!(cell("a\x1b[2J\nb\u{202e}"), "a�[2J b�");
    }
}
