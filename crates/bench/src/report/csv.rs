//! `summary.csv`: one line per model, with the memory columns that fit the machine.
//!
//! On unified memory the allocator's figure is a subset of the system's, so there is no
//! total. Without a GPU it is the memory of the process, not of the system. The notes begin
//! with the slot, because two slots may have the same model. An unknown cell is empty. MB are
//! binary (MiB), as everywhere.

use plimsoll::text::one_line;

use crate::record::{BenchRecord, MemoryArchitecture, ModelRecord};

/// The table as CSV.
#[must_use]
pub fn render(record: &BenchRecord) -> String {
    let architecture = record.system_metrics.architecture;
    let header = match architecture {
        MemoryArchitecture::Unified => "model,system_memory_mb,cuda_alloc_mb,notes",
        MemoryArchitecture::Discrete => "model,gpu_memory_mb,system_memory_mb,total_mb,notes",
        MemoryArchitecture::NoGpu => "model,process_memory_mb,notes",
    };
    let mut text = format!("{header}\n");
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
            vec![cell(model.name.as_deref().unwrap_or_default())],
            cells,
            vec![cell(&notes(model, architecture))],
        ];
        text += &(line.concat().join(",") + "\n");
    }
    text
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
