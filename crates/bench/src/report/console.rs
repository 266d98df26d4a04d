//! What a terminal shows: the memory configuration at the start, a short table at the end.

use crate::record::{MeasuredWhat, MemoryArchitecture, MemorySafety, Record, SLOTS};

use plimsoll::text::one_line;

use super::sheet::{DASH, Sheet, gib};

const WIDTH: usize = 60;

/// The memory configuration, shown when a run starts. `backends` says of each slot who
/// runs it, or why nobody does. `workspace` is what a TensorRT engine may take
/// when it is built.
#[must_use]
pub fn start(
    safety: &MemorySafety,
    workspace: Option<plimsoll::Bytes>,
    backends: [&str; 2],
) -> String {
    let line = "=".repeat(WIDTH);
    let methods = match safety.methods_applied.is_empty() {
        true => "none".to_string(),
        false => safety.methods_applied.join(", "),
    };
    let mut text = format!("{line}\nGPU Memory Configuration\n{line}\n");
    text += &format!("Limit: {} (profile {})\n", gib(Some(safety.limit_gb)), safety.profile);
    text += &format!("Effective Limit: {}\n", gib(Some(safety.effective_limit_gb)));
    text += &format!("Limit Type: {}\n", safety.limit_type);
    text += &format!("Methods Applied: {methods}\n");
    text += &format!("Verified: {}\n", if safety.verified { "yes" } else { "no" });
    let workspace = workspace.map_or(DASH.to_string(), |bytes| bytes.to_string());
    text += &format!("Workspace: {workspace}\n");
    for (name, backend) in SLOTS.iter().zip(backends) {
        text += &format!("{name}: {}\n", one_line(backend));
    }
    for warning in &safety.warnings {
        text += &format!("Warning: {}\n", one_line(warning));
    }
    text + &line + "\n"
}

/// One line of progress: `GPU_MEM: 5.23/8.00GiB`.
#[must_use]
pub fn memory_progress(used: Option<plimsoll::Bytes>, limit_gb: f64) -> String {
    let used = used.map_or(DASH.to_string(), |bytes| format!("{:.2}", bytes.as_gib()));
    format!("GPU_MEM: {used}/{limit_gb:.2}GiB")
}

/// The end of a run: a line a slot, memory as it hangs together, doubts.
#[must_use]
pub fn end(record: &Record) -> String {
    let sheet = Sheet::new(record);
    let head = ["model", "status", "frames", "fps", "p50 ms", "p95 ms", "p99 ms", "peak memory"];
    let mut table = vec![head.map(String::from)];
    for (model, words) in record.models.iter().zip(&sheet.models) {
        let number = |value: Option<f64>| value.map_or(DASH.into(), |v| format!("{v:.2}"));
        let p = model.performance.as_ref();
        // The same words as every other format has for the whole frame.
        let whole = words.latency.iter().find(|line| line[0] == "whole");
        let cell = |at: usize| whole.map_or(DASH.to_string(), |line| line[at].clone());
        let peak = words.memory.iter().find(|row| row.label == "Peak");
        table.push([
            one_line(&model.name).into_owned(),
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
        text += &format!("{} {}: {}\n", one_line(&model.name), model.status, one_line(reason));
    }
    text += &format!("\n{}", memory(record));
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

/// Memory as it hangs together: a tree where the GPU's is part of the system's, two
/// figures and a total where it is not.
fn memory(record: &Record) -> String {
    let peaks = |of: fn(&crate::record::GpuMemory) -> Option<f64>| {
        record.models.iter().filter_map(|m| of(&m.gpu_memory)).reduce(f64::max)
    };
    let system = peaks(|m| m.system_peak_gb);
    let own: Vec<f64> = record.models.iter().filter_map(|m| m.gpu_memory.peak_gb).collect();
    // Slots in turn have one model in memory at a time; at once, both count.
    let own = match record.config.parallel {
        true => own.iter().copied().reduce(|a, b| a + b),
        false => own.iter().copied().reduce(f64::max),
    };
    let both = own.zip(system);
    let parts = record.models.iter().any(|m| m.gpu_memory.what == MeasuredWhat::SlotMemory);
    match record.system_metrics.architecture {
        MemoryArchitecture::Unified => format!(
            "System Memory Peak: {}\n  ├─ CUDA Allocator: {} (subset)\n  └─ Other/OS: {}\nArchitecture: Unified Memory\n",
            gib(system),
            gib(own),
            // Samples of two sources at two moments: a negative rest is not known.
            gib(both.map(|(own, system)| system - own).filter(|rest| *rest >= 0.0))
        ),
        MemoryArchitecture::Discrete => format!(
            "GPU VRAM Peak: {}\nSystem RAM Peak: {}\nTotal: {}\nArchitecture: Discrete GPU\n",
            gib(own),
            gib(system),
            gib(both.map(|(own, system)| own + system))
        ),
        MemoryArchitecture::NoGpu if parts => format!(
            "Process Memory Peak: {}\n  ├─ Models: {}\n  └─ Shared: {}\nArchitecture: no GPU in use, so this is the memory of the process\n",
            gib(own.zip(record.shared.peak_gb).map(|(own, shared)| own + shared)),
            gib(own),
            gib(record.shared.peak_gb)
        ),
        MemoryArchitecture::NoGpu => format!(
            "Process Memory Peak: {}\nArchitecture: no GPU in use, so this is the memory of the process\n",
            gib(peaks(|m| m.peak_gb))
        ),
    }
}

fn columns<const N: usize>(table: &[[String; N]]) -> String {
    let wide = |at: usize| table.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(wide).collect();
    let mut text = String::new();
    for line in table {
        let cells = line.iter().enumerate().map(|(at, cell)| match at {
            0 | 1 => format!("{cell:<0$}", widths[at]),
            _ => format!("{cell:>0$}", widths[at]),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A long sentence without its middle: it begins with the fact and ends with the remedy.
/// `report.json` and `run.log` have all of it.
#[must_use]
pub fn shortened(text: &str) -> String {
    const HEAD: usize = 120;
    const TAIL: usize = 120;
    if text.chars().count() <= HEAD + TAIL + 20 {
        return text.to_string();
    }
    let words: Vec<&str> = text.split(' ').collect();
    let fitting = |words: &mut dyn Iterator<Item = &&str>, most: usize| {
        let mut width = 0;
        let fits = |word: &&&str| {
            width += word.chars().count() + 1;
            width <= most
        };
        words.take_while(fits).count()
    };
    let head = fitting(&mut words.iter(), HEAD);
    let tail = fitting(&mut words.iter().rev(), TAIL).min(words.len() - head);
    format!("{} … {}", words[..head].join(" "), words[words.len() - tail..].join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_keeps_its_beginning_and_its_end() {
        assert_eq!(shortened("rten on cpu"), "rten on cpu");
        let long = format!("rten on cpu; looked for {} install it", "/a/library, ".repeat(50));
        let short = shortened(&long);
        assert!(short.chars().count() < 260, "{short}");
        assert!(short.starts_with("rten on cpu") && short.ends_with("install it"), "{short}");
        let one = shortened(&"x".repeat(900));
        assert!(one.chars().count() < 10, "a word that is too long is left out: {one}");
    }
}
