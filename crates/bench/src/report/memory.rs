//! Memory in words: of the whole run, beside the system's, and of a slot.

use super::sheet::{DASH, ReportRow, ReportTone, gib, row, tone, yes_no};
use crate::record::{BenchRecord, MeasuredWhat, MemoryArchitecture, ModelRecord};

/// The memory of the whole run against the limit.
pub(super) fn usage(record: &BenchRecord) -> (ReportTone, String, Vec<ReportRow>) {
    let usage = &record.system_metrics.gpu_memory;
    let source = match (&usage.source, usage.obtained) {
        (Some(name), Some(how)) => format!("{name}, {how}, {} samples", usage.samples),
        _ => DASH.to_string(),
    };
    let mut rows = vec![
        row("What", format!("{}, all slots together", usage.what)),
        row("Limit", gib(usage.limit_gb)),
        row("Peak usage", gib(usage.peak_gb)),
        row("Mean usage", gib(usage.mean_gb)),
        row("Min usage", gib(usage.min_gb)),
        row("Data source", source),
        row("Violations", usage.violations.to_string()),
    ];
    if let Some(why) = usage.unknown.get("peak_gb") {
        rows.push(row("Not measured", why.clone()));
    }
    let within = tone(record.memory_safety.all_within_limit);
    (within, format!("{} Usage", usage.what.title()), rows)
}

/// The GPU's memory beside the system's: a tree where it is part of the system's, two figures
/// and a total where it is not.
pub(super) fn architecture(record: &BenchRecord) -> (String, Vec<ReportRow>) {
    let metrics = &record.system_metrics;
    let system = record.models.iter().filter_map(|m| m.gpu_memory.system_peak_gb);
    let system = system.reduce(f64::max);
    let own = metrics.gpu_memory.peak_gb;
    let both = own.zip(system);
    match metrics.architecture {
        MemoryArchitecture::Unified => {
            let board = record.metadata.device_name.as_deref().unwrap_or("board not known");
            let share = metrics.gpu_memory.percent_of_system_used;
            let share = share.map_or(String::new(), |p| format!(", {p:.1} % of system used"));
            // The two are sampled at different moments, so a negative rest is unknown.
            let rest = both.map(|(own, system)| system - own).filter(|rest| *rest >= 0.0);
            let rows = vec![
                row("System Memory Peak", gib(system)),
                row("├─ CUDA Allocator", format!("{} (subset{share})", gib(own))),
                row("└─ Other/OS", gib(rest)),
            ];
            (format!("Unified Memory ({board})"), rows)
        }
        MemoryArchitecture::Discrete => {
            let total = both.map(|(own, system)| own + system);
            let rows = vec![
                row("GPU VRAM Peak", gib(own)),
                row("System RAM Peak", gib(system)),
                row("Total", gib(total)),
            ];
            ("Discrete GPU".to_string(), rows)
        }
        MemoryArchitecture::NoGpu => {
            let mut rows = vec![row("Process Memory Peak", gib(own))];
            let slots = record.models.iter().map(|model| &model.gpu_memory);
            let parts = slots.filter(|memory| memory.what == MeasuredWhat::SlotMemory);
            if let Some(models) = parts.filter_map(|m| m.peak_gb).reduce(|a, b| a + b) {
                rows.push(row("├─ Models", gib(Some(models))));
                rows.push(row("└─ Shared", gib(record.shared.peak_gb)));
            }
            ("no GPU in use, so this is the memory of the process".to_string(), rows)
        }
    }
}

/// The memory of a slot.
pub(super) fn memory_rows(model: &ModelRecord) -> Vec<ReportRow> {
    let memory = &model.gpu_memory;
    let source = match (&memory.source, memory.obtained) {
        (Some(name), Some(how)) => format!("{name}, {how}, {} samples", memory.samples),
        _ => DASH.to_string(),
    };
    let mut rows = vec![
        row("What", memory.what.to_string()),
        row("Limit", gib(memory.limit_gb)),
        row("Peak", gib(memory.peak_gb)),
        row("Mean", gib(memory.mean_gb)),
        row("Min", gib(memory.min_gb)),
        row("Within limit", yes_no(memory.within_limit)),
        row("Limit type", memory.limit_type.to_string()),
        row("Source", source),
        row("System memory, peak", gib(memory.system_peak_gb)),
    ];
    rows.extend(estimate_row(model));
    if let Some(why) = memory.unknown.get("peak_gb") {
        rows.push(row("Not measured", why.clone()));
    }
    rows
}

/// The estimate beside what was measured. They have a difference in percent only where the
/// estimate includes the engine's overhead; otherwise they are of different things.
fn estimate_row(model: &ModelRecord) -> Option<ReportRow> {
    let estimate = model.estimate.as_ref()?;
    let total = plimsoll::Bytes(estimate.total_bytes).as_gib();
    let estimated = gib(Some(total));
    let against = match model.gpu_memory.peak_gb.filter(|peak| *peak > 0.0) {
        Some(peak) if estimate.overhead_bytes > 0 => {
            let off = 100.0 * (total - peak) / peak;
            format!("{estimated} against {} measured ({off:+.0} %)", gib(Some(peak)))
        }
        Some(peak) => format!(
            "{estimated} for weights and activations only; {} were measured, including the \
             engine's overhead",
            gib(Some(peak))
        ),
        None => format!("{estimated}; nothing was measured"),
    };
    Some(row("Estimated before loading", against))
}
