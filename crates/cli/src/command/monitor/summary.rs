//! Peaks and means of what was seen.

use std::collections::BTreeMap;

use plimsoll::Bytes;
use serde::Serialize;

use super::record::Record;
use crate::output::Answer;
use crate::page::{Cell, Page};

/// Peak and mean of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) peak: f64,
    pub(crate) mean: f64,
    samples: u64,
}

/// Everything since the start, in bounded memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) alerts: u64,
    pub(crate) figures: BTreeMap<String, Figure>,
    #[serde(skip)]
    first: Option<f64>,
}

impl Summary {
    pub(super) fn take(&mut self, record: &Record) {
        self.samples += 1;
        self.alerts += record.alerts.len() as u64;
        if let Some(t) = record.t {
            self.seconds = t - *self.first.get_or_insert(t);
        }
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

impl Answer for Summary {
    fn page(&self, page: &mut Page) {
        page.heading(&format!("{} samples in {:.1} s", self.samples, self.seconds));
        let mut rows = vec![vec!["".into(), right("peak"), right("mean")]];
        rows.extend(self.figures.iter().map(|(name, figure)| {
            let word = name.rsplit_once('_').map_or(name.as_str(), |(word, _)| word);
            let (peak, mean) = (with_unit(name, figure.peak), with_unit(name, figure.mean));
            vec![word.replace('_', " ").into(), right(&peak), right(&mean)]
        }));
        page.table(&rows);
    }
}

fn right(text: &str) -> Cell {
    Cell::figure(Some(text))
}
