//! Figures as words, in one place for all formats that people read.

use plimsoll_infer::engine::messages::shortened;

use super::accuracy;
use super::memory::{architecture, memory_rows, usage};
use crate::record::model::label;
use crate::record::{BenchRecord, MemorySafety, ModelRecord, Performance, Spread, Status};
use crate::stats::LatencySummary;

/// How a line is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportTone {
    /// Within the limit.
    Good,
    /// Above the limit.
    Bad,
    /// Unknown.
    Unknown,
}

/// A name and a figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRow {
    /// What it is.
    pub label: String,
    /// How much, with its unit; "–" where it is unknown.
    pub value: String,
}

/// A record in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// The heading.
    pub title: String,
    /// Whether memory stayed within the limit.
    pub status: (ReportTone, String),
    /// The limit.
    pub safety: Vec<ReportRow>,
    /// The slots, closest to the limit first.
    pub closest: Vec<ReportRow>,
    /// The first twenty violations.
    pub violations: Vec<String>,
    /// The slots or rows.
    pub models: Vec<ModelSheet>,
    /// The memory of the whole run against the limit: its tone, heading and figures.
    pub usage: (ReportTone, String, Vec<ReportRow>),
    /// How the GPU's memory relates to the system's, with the board's name, and the peaks of
    /// both; a row that begins with a branch is a part of the first row.
    pub architecture: (String, Vec<ReportRow>),
    /// The machine.
    pub system: Vec<ReportRow>,
    /// What was run, when and where.
    pub about: Vec<ReportRow>,
    /// Reasons to trust figures less.
    pub doubts: Vec<String>,
    /// What stopped the run early.
    pub interruption: Option<String>,
}

/// A slot in words.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSheet {
    /// The model, after its file; the slot where it has none.
    pub name: String,
    /// The slot with its own name, or the row.
    pub place: String,
    /// How it ended.
    pub status: Status,
    /// Why.
    pub reason: Option<String>,
    /// What ran, how fast, what it found.
    pub facts: Vec<ReportRow>,
    /// Latency by stage: the header first; empty where nothing was measured.
    pub latency: Vec<[String; 9]>,
    /// Whether its memory stayed within the limit.
    pub memory_tone: ReportTone,
    /// The heading of its memory, which names a GPU only where one was used.
    pub memory_title: &'static str,
    /// Its memory.
    pub memory: Vec<ReportRow>,
}

/// Shown for what is unknown.
pub const DASH: &str = "–";

pub(super) fn row(label: &str, value: impl Into<String>) -> ReportRow {
    ReportRow { label: label.to_string(), value: value.into() }
}

/// A size given in GiB. A small one is shown in MiB, as two digits would round it away.
pub(super) fn gib(value: Option<f64>) -> String {
    match value {
        None => DASH.to_string(),
        Some(gib) if gib > 0.0 && gib < 0.1 => format!("{:.1} MiB", gib * 1024.0),
        Some(gib) => format!("{gib:.2} GiB"),
    }
}

pub(super) fn ms(value: f64) -> String {
    match value.abs() {
        small if small < 1.0 => format!("{value:.3}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn yes_no(value: Option<bool>) -> String {
    value.map_or(DASH, |yes| if yes { "yes" } else { "no" }).to_string()
}

fn spread(value: Option<Spread>, digits: usize, unit: &str) -> String {
    let text = |s: Spread| {
        let Spread { mean, min, max } = s;
        format!("{mean:.digits$} {unit} (min {min:.digits$}, max {max:.digits$})")
    };
    value.map_or_else(|| DASH.to_string(), text)
}

impl Sheet {
    /// The words of a record.
    #[must_use]
    pub fn new(record: &BenchRecord) -> Sheet {
        let safety = &record.memory_safety;
        let closest = safety.closest_to_limit.iter().map(|closest| {
            let percent = closest.percent_of_limit;
            let model = record.models.get(closest.slot);
            let name = model
                .map_or_else(|| label(closest.slot, closest.name.as_deref()), ModelRecord::label);
            row(&name, format!("{} ({percent:.1} % of limit)", gib(Some(closest.peak_gb))))
        });
        let violation = |v: &crate::record::Violation| {
            let place = match v.slot {
                Some(slot) if !record.has_slots() => format!("row {}", slot + 1),
                Some(slot) => format!("slot {slot}"),
                None => format!("slot {DASH}"),
            };
            format!("{}: {place}, {}", v.time, plimsoll::Bytes(v.bytes))
        };
        Sheet {
            title: format!("Benchmark {}", record.metadata.run_name),
            status: status(record),
            safety: safety_rows(record),
            closest: closest.collect(),
            violations: safety.violation_details.iter().take(20).map(violation).collect(),
            models: record.models.iter().map(model_sheet).collect(),
            usage: usage(record),
            architecture: architecture(record),
            system: system_rows(record),
            about: about_rows(record),
            doubts: record.doubts.iter().map(|doubt| doubt_text(record, doubt)).collect(),
            interruption: record
                .interrupted
                .then(|| record.interruption.clone().unwrap_or_else(|| "no reason given".into())),
        }
    }
}

fn doubt_text(record: &BenchRecord, doubt: &crate::record::DoubtRecord) -> String {
    match doubt.slot.and_then(|slot| record.models.get(slot)) {
        Some(model) => format!("{}: {}", model.label(), doubt.text),
        None => doubt.text.clone(),
    }
}

fn status(record: &BenchRecord) -> (ReportTone, String) {
    let safety = &record.memory_safety;
    let limit = gib(Some(safety.effective_limit_gb));
    match safety.all_within_limit {
        Some(true) => (ReportTone::Good, format!("All models stayed within the limit of {limit}")),
        Some(false) => (ReportTone::Bad, format!("The limit of {limit} was exceeded")),
        None => {
            let why = safety.reason.as_deref().unwrap_or("no reason given");
            (ReportTone::Unknown, format!("Not known: {why}"))
        }
    }
}

pub(super) fn tone(within_limit: Option<bool>) -> ReportTone {
    match within_limit {
        Some(true) => ReportTone::Good,
        Some(false) => ReportTone::Bad,
        None => ReportTone::Unknown,
    }
}

/// The limit, and the profile that it comes from.
pub(super) fn limit(safety: &MemorySafety) -> String {
    let profile =
        safety.profile.as_ref().map_or(String::new(), |name| format!(" (profile {name})"));
    gib(Some(safety.limit_gb)) + &profile
}

fn safety_rows(record: &BenchRecord) -> Vec<ReportRow> {
    let safety = &record.memory_safety;
    let methods = match safety.methods_applied.is_empty() {
        true => "none".to_string(),
        false => safety.methods_applied.join(", "),
    };
    let mut rows = vec![
        row("Limit", limit(safety)),
        row("Effective limit", gib(Some(safety.effective_limit_gb))),
        row("Limit type", safety.limit_type.to_string()),
        row("Verified", yes_no(Some(safety.verified))),
        row("Methods applied", methods),
        row("Total violations", safety.total_violations.to_string()),
        row("Architecture", record.system_metrics.architecture.to_string()),
        row(&format!("Shared ({})", record.shared.what), gib(record.shared.peak_gb)),
    ];
    rows.extend(safety.warnings.iter().map(|warning| row("Warning", warning.clone())));
    rows
}

fn model_sheet(model: &ModelRecord) -> ModelSheet {
    let performance = model.performance.as_ref();
    ModelSheet {
        name: model.name.clone().unwrap_or_else(|| model.label()),
        place: model.place(),
        status: model.status,
        reason: model.reason.clone(),
        facts: facts(model),
        latency: performance.map(latency).unwrap_or_default(),
        memory_tone: tone(model.gpu_memory.within_limit),
        memory_title: model.gpu_memory.what.title(),
        memory: memory_rows(model),
    }
}

fn facts(model: &ModelRecord) -> Vec<ReportRow> {
    let mut rows = Vec::new();
    if let Some(info) = &model.model_info {
        let version = info.engine_version.as_deref().unwrap_or_default();
        rows.push(row("Weights", info.weights.clone()));
        rows.push(row("Engine", format!("{} {version}", info.engine).trim().to_string()));
        rows.push(row("Device", info.device.clone()));
        let size = info.input_size.map(|[rows, columns]| format!("{rows}x{columns}"));
        rows.push(row("Input size", size.unwrap_or(DASH.into())));
        let chosen = Some(shortened(&info.chosen)).filter(|why| !why.is_empty());
        rows.push(row("Chosen", chosen.as_deref().unwrap_or(DASH)));
    }
    if let Some(performance) = &model.performance {
        rows.extend(speed_rows(performance));
    }
    if let Some(found) = &model.detection_summary {
        let mean = found.per_frame_mean.map_or(DASH.to_string(), |mean| format!("{mean:.2}"));
        rows.push(row("Detections", format!("{} ({mean} per frame)", found.total)));
        let classes = found.per_class.iter().map(|(name, n)| format!("{name} {n}"));
        let classes = classes.collect::<Vec<_>>().join(", ");
        rows.push(row("By class", if classes.is_empty() { DASH.into() } else { classes }));
    }
    rows.extend(accuracy::rows(model));
    rows
}

fn speed_rows(performance: &Performance) -> Vec<ReportRow> {
    let Performance { frames, warmup_frames, wall_s, .. } = performance;
    let fps = performance.fps.map_or(DASH.to_string(), |fps| format!("{fps:.2}"));
    let mut rows = vec![
        row("Frames", format!("{frames} measured, {warmup_frames} for warm-up")),
        row("FPS", format!("{fps} by the wall clock ({wall_s:.2} s)")),
    ];
    if let Some(offered) = performance.offered_fps {
        let count = |n: Option<u64>| n.map_or(DASH.to_string(), |n| n.to_string());
        let (late, dropped) = (count(performance.late), count(performance.dropped));
        rows.push(row("Offered", format!("{offered:.2} fps, {late} late, {dropped} dropped")));
    }
    let parts = &performance.parts;
    let all = [("Cold", &parts.cold), ("Steady", &parts.steady), ("Throttled", &parts.throttled)];
    if parts.cold.is_some() || parts.throttled.is_some() {
        for (name, part) in all.iter().filter_map(|(name, part)| Some((name, part.as_ref()?))) {
            let p50 = ms(part.whole.p50_ms);
            rows.push(row(name, format!("{} frames, p50 {p50} ms", part.frames)));
        }
    }
    if let Some(interval) = &performance.repeats_interval_ms {
        let (low, high) = (ms(interval.low), ms(interval.high));
        let n = performance.repeats_p50_ms.len();
        rows.push(row("p50 over repeats", format!("{low} to {high} ms ({n} repeats, 95 %)")));
    }
    rows
}

fn latency(performance: &Performance) -> Vec<[String; 9]> {
    let header = ["ms", "mean", "p50", "p90", "p95", "p99", "min", "max", "std"];
    let line = |name: &str, s: &LatencySummary| {
        let rest =
            [s.mean_ms, s.p50_ms, s.p90_ms, s.p95_ms, s.p99_ms, s.min_ms, s.max_ms, s.std_ms];
        let mut cells = rest.map(ms).to_vec();
        cells.insert(0, name.to_string());
        <[String; 9]>::try_from(cells).unwrap_or_default()
    };
    let mut lines = vec![
        header.map(String::from),
        line("prepare", &performance.prepare),
        line("inference", &performance.inference),
        line("decode", &performance.decode),
        line("whole", &performance.whole),
    ];
    lines.extend(performance.decode_ahead.as_ref().map(|s| line("read ahead", s)));
    lines
}

fn system_rows(record: &BenchRecord) -> Vec<ReportRow> {
    let m = &record.system_metrics;
    let joules = m.energy_per_frame_j.map_or(DASH.to_string(), |j| format!("{j:.3} J"));
    let mut rows = vec![
        row("CPU", spread(m.cpu_percent, 1, "%")),
        row("CPU clock", spread(m.cpu_clock_mhz, 0, "MHz")),
        row("RAM in use", spread(m.ram_used_gb, 2, "GiB")),
        row("RAM, all", gib(m.ram_total_gb)),
        row("GPU's share of RAM", spread(m.ram_gpu_share_gb, 2, "GiB")),
        row("VRAM in use", spread(m.vram_used_gb, 2, "GiB")),
        row("Swap in use", spread(m.swap_used_gb, 2, "GiB")),
        row("GPU load", spread(m.gpu_load_percent, 1, "%")),
        row("GPU clock", spread(m.gpu_clock_mhz, 0, "MHz")),
        row("Clocks locked", yes_no(m.clocks_locked)),
        row("Power mode", m.power_mode.clone().unwrap_or(DASH.into())),
        row("Energy per frame", joules),
    ];
    let fields = [
        "cpu_percent",
        "cpu_clock_mhz",
        "ram_used_gb",
        "ram_total_gb",
        "ram_gpu_share_gb",
        "vram_used_gb",
        "swap_used_gb",
        "gpu_load_percent",
        "gpu_clock_mhz",
        "clocks_locked",
        "power_mode",
        "energy_per_frame_j",
    ];
    for (row, field) in rows.iter_mut().zip(fields) {
        if let Some(why) = m.unknown.get(field).filter(|_| row.value == DASH) {
            row.value = format!("{DASH} ({why})");
        }
    }
    for (name, value) in &m.temperatures_c {
        rows.push(row(&format!("Temperature {name}"), spread(Some(*value), 1, "°C")));
    }
    for (name, value) in &m.power_w {
        rows.push(row(&format!("Power {name}"), spread(Some(*value), 2, "W")));
    }
    rows
}

fn about_rows(record: &BenchRecord) -> Vec<ReportRow> {
    let (meta, config) = (&record.metadata, &record.config);
    let streams = record.input_source.streams.iter();
    let source = streams.map(|s| format!("{} ({}, {} read)", s.name, s.kind, s.read));
    let host = meta.host.as_deref().unwrap_or(DASH);
    vec![
        row("Started", meta.started.clone()),
        row("Finished", meta.finished.clone().unwrap_or(DASH.into())),
        row("Machine", format!("{host}, {} {}", meta.os, meta.arch)),
        row("Program", format!("{} {}", meta.tool, meta.tool_version)),
        row("Command", meta.command_line.join(" ")),
        row("Mode", config.mode.clone()),
        row("Source", source.collect::<Vec<_>>().join("; ")),
        row("Thresholds", format!("confidence {}, IoU {}", config.conf, config.iou)),
        row(
            if record.has_slots() { "Slots" } else { "Rows" },
            if config.parallel { "at once" } else { "in turn" },
        ),
    ]
}
