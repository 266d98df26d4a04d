//! Records for people: a line each, or a page for one look.

use plimsoll::Bytes;
use serde::Serialize;

use super::record::{MonitorGpu, MonitorPool, MonitorRecord, MonitorRun};
use crate::output::Answer;
use crate::page::{TextCell, TextPage, TextTone, UNKNOWN, or_unknown};

/// Which columns lines have, by the GPUs that were seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct TableColumns {
    unified: Option<bool>,
    several: bool,
}

impl TableColumns {
    /// With those that a record needs; one that lacks the GPU takes none away.
    pub(super) fn with(self, record: &MonitorRecord) -> TableColumns {
        TableColumns {
            unified: record.unified.or(self.unified),
            several: self.several || record.gpus.len() > 1,
        }
    }

    /// The header over the lines.
    pub(super) fn header(self) -> String {
        let (first, second) = match self.unified {
            Some(true) => ("System", "of it GPU"),
            Some(false) => ("RAM", "GPU VRAM"),
            None => ("RAM", ""),
        };
        let (load, clock) = if self.several { BUSIEST } else { ONLY };
        let gpu = self.unified.map(|_| format!("  {second:>21}  {load}  {clock:>8}"));
        let gpu = gpu.unwrap_or_default();
        format!("{:>9}  {first:>21}{gpu}  CPU %  power W  hottest  time left", "t")
    }

    /// One record as a line under that header.
    pub(super) fn row(self, record: &MonitorRecord) -> String {
        let gpu = self.unified.map_or_else(String::new, |unified| self.gpu(unified, record));
        let t = figure(record.t, 1);
        let memory = or_unknown(record.system().map(of_all));
        let cpu = figure(record.cpu.percent, 1);
        let power = figure(record.total_power_w.or_else(|| power_of_gpus(record)), 1);
        let heat = hottest(record).map(|celsius| format!("{celsius:.1} °C"));
        format!(
            "{t:>9}  {memory:>21}{gpu}  {cpu:>5}  {power:>7}  {:>7}  {:>9}",
            or_unknown(heat),
            time_left(record),
        )
    }

    fn gpu(self, unified: bool, record: &MonitorRecord) -> String {
        let memory = match unified {
            true => or_unknown(record.memory.gpu_share_bytes.map(Bytes)),
            false => or_unknown(all_vram(record).map(of_all)),
        };
        let (load, _) = if self.several { BUSIEST } else { ONLY };
        let busiest = busiest(record);
        let percent = figure(busiest.and_then(|gpu| gpu.percent), 0);
        let mhz = figure(busiest.and_then(|gpu| gpu.mhz), 0);
        format!("  {memory:>21}  {percent:>0$}  {mhz:>8}", load.len())
    }
}

/// What load and clock are called: of the one GPU, and of the one with the highest load.
const ONLY: (&str, &str) = ("GPU %", "GPU MHz");
const BUSIEST: (&str, &str) = ("max GPU %", "its MHz");

fn of_all(pool: MonitorPool) -> String {
    format!("{} / {}", Bytes(pool.used), Bytes(pool.total))
}

fn busiest(record: &MonitorRecord) -> Option<&MonitorGpu> {
    record.gpus.iter().reduce(|most, gpu| if gpu.percent > most.percent { gpu } else { most })
}

fn power_of_gpus(record: &MonitorRecord) -> Option<f64> {
    let sum: Option<f64> = record.gpus.iter().map(|gpu| gpu.power_w).sum();
    sum.filter(|_| !record.gpus.is_empty())
}

/// The hottest sensor of the board or of a GPU.
fn hottest(record: &MonitorRecord) -> Option<f64> {
    let board = record.hottest().map(|(_, celsius)| celsius);
    let gpus = record.gpus.iter().filter_map(|gpu| gpu.temperature_c);
    board.into_iter().chain(gpus).max_by(f64::total_cmp)
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
        if !record.runs.is_empty() {
            page.heading("Runs, as the guard counts them");
            page.table(&record.runs.iter().map(run).collect::<Vec<_>>());
        }
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

fn run(run: &MonitorRun) -> Vec<TextCell> {
    let limit = run.limit_bytes.map(|limit| format!("of {}", Bytes(limit)));
    vec![
        run.owner().to_string().into(),
        TextCell::figure(Some(Bytes(run.used_bytes))),
        limit.unwrap_or_else(|| "counted, no limit".to_string()).into(),
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
    if record.processes.iter().any(|process| process.guarded_bytes.is_some()) {
        rows[0].insert(2, head("by the guard"));
        for (row, process) in rows[1..].iter_mut().zip(&record.processes) {
            row.insert(2, TextCell::figure(process.guarded_bytes.map(Bytes)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(percent: f64, watts: Option<f64>) -> MonitorGpu {
        let (mhz, temperature_c) = (Some(1000.0 + percent), Some(40.0 + percent / 10.0));
        let percent = Some(percent);
        MonitorGpu { percent, mhz, temperature_c, power_w: watts, ..MonitorGpu::default() }
    }

    #[test]
    fn load_clock_and_heat_are_those_of_the_busiest_gpu() {
        let gpus = vec![gpu(0.0, Some(60.0)), gpu(100.0, Some(300.0)), gpu(7.0, Some(65.0))];
        let record = MonitorRecord { unified: Some(false), gpus, ..MonitorRecord::default() };
        let columns = TableColumns::default().with(&record);
        assert!(columns.header().contains("max GPU %   its MHz  CPU %"), "{}", columns.header());
        let row = columns.row(&record);
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[3..], ["100", "1100", "–", "425.0", "50.0", "°C", "–"], "{row}");
        assert_eq!(row.chars().count(), columns.header().chars().count());
    }

    #[test]
    fn what_a_board_takes_is_shown_without_a_gpu_and_the_sum_of_gpus_only_where_all_tell() {
        let power = |record: &MonitorRecord| {
            let row = TableColumns::default().with(record).row(record);
            row.split_whitespace().rev().nth(2).map(String::from)
        };
        let board = MonitorRecord { total_power_w: Some(17.5), ..MonitorRecord::default() };
        assert_eq!(power(&board).as_deref(), Some("17.5"));
        let gpus = vec![gpu(0.0, Some(60.0)), MonitorGpu::default()];
        let record = MonitorRecord { gpus, ..MonitorRecord::default() };
        assert_eq!(power_of_gpus(&record), None);
        assert_eq!(power_of_gpus(&MonitorRecord::default()), None);
    }
}
