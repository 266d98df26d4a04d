//! Peaks and means of what was seen.

use std::collections::BTreeMap;

use plimsoll::Bytes;
use serde::Serialize;

use super::record::{MonitorCost, MonitorRecord};
use crate::output::Answer;
use crate::page::{TextCell, TextPage};

/// How many monitoring programs are kept at most: a log may contain anything.
const MOST_PROGRAMS: usize = 8;

/// Peak and mean of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) peak: f64,
    pub(crate) mean: f64,
    samples: u64,
}

/// What a program that watches cost, from the first sample that shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Spent {
    /// Processor time, in seconds.
    pub(crate) cpu_s: f64,
    /// The same in percent of one processor; null where no time passed.
    pub(crate) cpu_percent: Option<f64>,
    /// The most that it had resident.
    pub(crate) resident_bytes: Option<u64>,
    #[serde(skip)]
    first: f64,
    #[serde(skip)]
    last: (u32, f64),
}

impl Spent {
    /// A program that was started again begins to count anew.
    fn take(&mut self, cost: &MonitorCost, t: f64) {
        let (pid, before) = self.last;
        let since = if pid == cost.pid { before } else { 0.0 };
        self.cpu_s += (cost.cpu_s - since).max(0.0);
        self.last = (cost.pid, cost.cpu_s);
        self.resident_bytes = self.resident_bytes.max(cost.resident_bytes);
        let passed = t - self.first;
        self.cpu_percent = (passed > 0.0).then(|| 100.0 * self.cpu_s / passed);
    }
}

/// Everything since the start, in bounded memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct MonitorSummary {
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) alerts: u64,
    pub(crate) figures: BTreeMap<String, Figure>,
    /// What the watching itself cost, by program.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) cost: BTreeMap<String, Spent>,
    #[serde(skip)]
    first: Option<f64>,
}

impl MonitorSummary {
    pub(super) fn take(&mut self, record: &MonitorRecord) {
        self.samples += 1;
        self.alerts += record.alerts.len() as u64;
        if let Some(t) = record.t {
            self.seconds = t - *self.first.get_or_insert(t);
        }
        self.take_cost(record);
        let bytes = |of: Option<u64>| of.map(|bytes| bytes as f64);
        self.add("memory_used_bytes", bytes(record.system().map(|pool| pool.used)));
        self.add("memory_gpu_share_bytes", bytes(record.memory.gpu_share_bytes));
        self.add("swap_used_bytes", bytes(record.swap.used_bytes));
        self.add("cpu_percent", record.cpu.percent);
        self.add("power_w", record.total_power_w);
        self.add("hottest_c", record.hottest().map(|(_, celsius)| celsius));
        for (at, gpu) in record.gpus.iter().enumerate().take(64) {
            if !gpu.unified {
                self.add(&format!("gpu{at}_used_bytes"), bytes(gpu.used_bytes));
            }
            self.add(&format!("gpu{at}_percent"), gpu.percent);
            self.add(&format!("gpu{at}_power_w"), gpu.power_w);
            self.add(&format!("gpu{at}_temperature_c"), gpu.temperature_c);
        }
    }

    fn take_cost(&mut self, record: &MonitorRecord) {
        let t = record.t.unwrap_or_default();
        for cost in record.cost.iter().take(MOST_PROGRAMS) {
            let new = || Spent {
                cpu_s: 0.0,
                cpu_percent: None,
                resident_bytes: None,
                first: t,
                last: (cost.pid, cost.cpu_s),
            };
            if self.cost.len() < MOST_PROGRAMS || self.cost.contains_key(&cost.program) {
                self.cost.entry(cost.program.clone()).or_insert_with(new).take(cost, t);
            }
        }
    }

    fn add(&mut self, name: &str, value: Option<f64>) {
        let Some(value) = value else { return };
        match self.figures.get_mut(name) {
            Some(figure) => {
                figure.samples += 1;
                figure.peak = figure.peak.max(value);
                figure.mean += (value - figure.mean) / figure.samples as f64;
            }
            None => {
                let figure = Figure { peak: value, mean: value, samples: 1 };
                self.figures.insert(name.to_string(), figure);
            }
        }
    }
}

/// A figure with the unit that its name says.
fn with_unit(name: &str, value: f64) -> String {
    match name.rsplit('_').next() {
        Some("bytes") => Bytes(value.max(0.0) as u64).to_string(),
        Some("percent") => format!("{value:.1} %"),
        Some("w") => format!("{value:.1} W"),
        Some("c") => format!("{value:.1} °C"),
        _ => value.to_string(),
    }
}

impl Answer for MonitorSummary {
    /// The samples were the answer.
    fn bare(&self, _: &mut TextPage) {}

    fn page(&self, page: &mut TextPage) {
        let many = if self.samples == 1 { "" } else { "s" };
        page.heading(&format!("{} sample{many} in {:.1} s", self.samples, self.seconds));
        let mut rows = vec![vec!["".into(), right("peak"), right("mean")]];
        rows.extend(self.figures.iter().map(|(name, figure)| {
            let word = name.rsplit_once('_').map_or(name.as_str(), |(word, _)| word);
            let (peak, mean) = (with_unit(name, figure.peak), with_unit(name, figure.mean));
            vec![word.replace('_', " ").into(), right(&peak), right(&mean)]
        }));
        page.table(&rows);
        if !self.cost.is_empty() {
            page.heading("What the watching cost");
            let mut rows = vec![vec!["".into(), right("of a core"), right("resident")]];
            rows.extend(self.cost.iter().map(|(program, spent)| {
                let load = spent.cpu_percent.map(|percent| format!("{percent:.2} %"));
                let memory = spent.resident_bytes.map(Bytes);
                vec![program.as_str().into(), TextCell::figure(load), TextCell::figure(memory)]
            }));
            page.table(&rows);
        }
    }
}

fn right(text: &str) -> TextCell {
    TextCell::figure(Some(text))
}
