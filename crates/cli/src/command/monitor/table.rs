//! Records for people: a line each, or a page for one look.

use plimsoll::Bytes;
use serde::Serialize;

use super::record::{MonitorGpu, MonitorPool, MonitorRecord};
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone, UNKNOWN, or_unknown};

/// The header over the lines.
pub(super) fn header(record: &MonitorRecord) -> String {
    let (first, second) = match record.unified {
        Some(true) => ("System", "of it GPU"),
        Some(false) => ("RAM", "GPU VRAM"),
        None => ("RAM", ""),
    };
    let gpu = if record.unified.is_some() { "  GPU %   GPU MHz" } else { "" };
    let second = if second.is_empty() { String::new() } else { format!("  {second:>21}") };
    format!("{:>9}  {first:>21}{second}{gpu}  CPU %  power W  hottest  time left", "t")
}

/// One record as a line under that header.
pub(super) fn row(record: &MonitorRecord) -> String {
    let pool = |pool: Option<MonitorPool>| {
        let text = pool.map(|pool| format!("{} / {}", Bytes(pool.used), Bytes(pool.total)));
        or_unknown(text)
    };
    let second = match record.unified {
        Some(true) => format!("  {:>21}", or_unknown(record.memory.gpu_share_bytes.map(Bytes))),
        Some(false) => format!("  {:>21}", pool(all_vram(record))),
        None => String::new(),
    };
    let gpu = record.gpus.first();
    let load = match record.unified {
        Some(_) => format!(
            "  {:>5}  {:>8}",
            figure(gpu.and_then(|gpu| gpu.percent), 0),
            figure(gpu.and_then(|gpu| gpu.mhz), 0)
        ),
        None => String::new(),
    };
    let t = figure(record.t, 1);
    let memory = pool(record.system());
    let cpu = figure(record.cpu.percent, 1);
    let power = record.total_power_w.or_else(|| record.gpus.iter().map(|gpu| gpu.power_w).sum());
    let heat = record.hottest().map(|(_, c)| c).or(gpu.and_then(|gpu| gpu.temperature_c));
    let power = figure(power.filter(|_| !record.gpus.is_empty()), 1);
    format!(
        "{t:>9}  {memory:>21}{second}{load}  {cpu:>5}  {power:>7}  {:>7}  {:>9}",
        heat.map_or(UNKNOWN.to_string(), |c| format!("{c:.1} °C")),
        time_left(record),
    )
}

/// The memory of all discrete GPUs together.
fn all_vram(record: &MonitorRecord) -> Option<MonitorPool> {
    let own: Vec<MonitorPool> = (0..record.gpus.len()).filter_map(|at| record.own(at)).collect();
    let sum = |of: fn(&MonitorPool) -> u64| own.iter().map(of).sum();
    let owner = own.first()?.owner;
    Some(MonitorPool { owner, used: sum(|p| p.used), total: sum(|p| p.total), limit: None })
}

fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| UNKNOWN.to_string(), |value| format!("{value:.decimals$}"))
}

/// The time left as people say it.
pub(crate) fn time_left(record: &MonitorRecord) -> String {
    record.time_left.as_ref().map_or_else(|| UNKNOWN.to_string(), |left| duration(left.seconds))
}

/// `28 s`, `12 min`, `3.5 h`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// One look.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Look<'a>(pub(super) &'a MonitorRecord);

impl Answer for Look<'_> {
    /// What is used of what there is: the system, and each GPU that has memory of its own.
    fn bare(&self, page: &mut TextPage) {
        let mut line = |name: &str, pool: Option<MonitorPool>| {
            let used = pool.map(|pool| format!("{} of {}", Bytes(pool.used), Bytes(pool.total)));
            page.raw(&format!("{name}: {} used\n", or_unknown(used)));
        };
        line("system", self.0.system());
        for at in 0..self.0.gpus.len() {
            if let Some(own) = self.0.own(at) {
                line(&format!("gpu{at}"), Some(own));
            }
        }
    }

    fn page(&self, page: &mut TextPage) {
        let record = self.0;
        page.heading("Memory");
        page.table(&memory(record));
        for (at, gpu) in record.gpus.iter().enumerate() {
            let name = gpu.name.as_deref().unwrap_or(UNKNOWN);
            page.heading(&format!("GPU {at}: {name}"));
            page.table(&gpu_rows(gpu));
        }
        page.heading("Machine");
        page.table(&machine(record));
        if !record.processes.is_empty() {
            page.heading("Processes");
            page.table(&processes(record));
        }
        for text in record.missing.iter().chain(&record.warnings) {
            page.advice(text);
        }
    }
}

fn size(name: &str, bytes: Option<u64>, note: &str) -> Vec<TextCell> {
    vec![name.into(), TextCell::figure(bytes.map(Bytes)), TextCell::new(note, TextTone::Faint)]
}

fn memory(record: &MonitorRecord) -> Vec<Vec<TextCell>> {
    let memory = &record.memory;
    let pressure = memory.pressure.as_deref().map(|word| format!("pressure {word}"));
    let mut rows = vec![
        size("total", memory.total_bytes, &record.how),
        size("used", record.system().map(|pool| pool.used), &pressure.unwrap_or_default()),
    ];
    if record.unified == Some(true) {
        rows.push(size("of it GPU", memory.gpu_share_bytes, "with codecs and cameras"));
    }
    rows.extend([
        size("available", memory.available_bytes, ""),
        size("free", memory.free_bytes, ""),
        size("largest block", memory.largest_free_bytes, "free in one piece"),
        size("swap used", record.swap.used_bytes, ""),
    ]);
    rows
}

fn gpu_rows(gpu: &MonitorGpu) -> Vec<Vec<TextCell>> {
    let mut rows = Vec::new();
    if !gpu.unified {
        let pressure = gpu.pressure.as_deref().map(|word| format!("pressure {word}"));
        rows.push(size("total", gpu.total_bytes, ""));
        rows.push(size("used", gpu.used_bytes, &pressure.unwrap_or_default()));
    }
    let with = |name: &str, value: Option<f64>, unit: &str| {
        let text = value.map(|value| format!("{value:.1} {unit}"));
        vec![name.into(), TextCell::figure(text)]
    };
    rows.extend([
        with("load", gpu.percent, "%"),
        with("clock", gpu.mhz, "MHz"),
        with("power", gpu.power_w, "W"),
        with("temperature", gpu.temperature_c, "°C"),
        vec!["throttled by".into(), reasons(gpu.throttled_by.as_deref())],
    ]);
    rows
}

fn reasons(by: Option<&[String]>) -> TextCell {
    let text = by.map(|by| if by.is_empty() { "nothing".to_string() } else { by.join(", ") });
    TextCell::figure(text)
}

fn machine(record: &MonitorRecord) -> Vec<Vec<TextCell>> {
    let with = |value: Option<f64>, unit: &str| value.map(|value| format!("{value:.1} {unit}"));
    let hottest = record.hottest();
    vec![
        vec!["processors".into(), TextCell::figure(with(record.cpu.percent, "%"))],
        vec!["power".into(), TextCell::figure(with(record.total_power_w, "W"))],
        vec!["power mode".into(), TextCell::figure(record.power_mode.as_deref())],
        vec![
            "hottest".into(),
            TextCell::figure(with(hottest.map(|(_, celsius)| celsius), "°C")),
            TextCell::new(hottest.map_or("", |(name, _)| name), TextTone::Faint),
        ],
        vec!["throttled by".into(), reasons(record.throttled_by.as_deref())],
    ]
}

fn processes(record: &MonitorRecord) -> Vec<Vec<TextCell>> {
    let head = |text: &str| TextCell::figure(Some(text));
    let mut rows = vec![vec![head("pid"), head("GPU memory"), head("resident"), "name".into()]];
    rows.extend(record.processes.iter().take(10).map(|process| {
        vec![
            TextCell::figure(Some(process.pid)),
            TextCell::figure(process.gpu_bytes.map(|bytes| match process.gpu {
                Some(gpu) if record.gpus.len() > 1 => format!("{} on GPU{gpu}", Bytes(bytes)),
                _ => Bytes(bytes).to_string(),
            })),
            TextCell::figure(process.resident_bytes.map(Bytes)),
            process.name.as_deref().unwrap_or(UNKNOWN).into(),
        ]
    }));
    rows
}
