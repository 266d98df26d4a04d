//! What there is to show, and how.

use std::collections::VecDeque;
use std::time::Duration;

use super::keys::KeyAction;
use crate::command::monitor::record::{MonitorProcess, MonitorRecord};

/// This many points of history are kept; two stand on one column of a wide window.
const MOST_POINTS: usize = 1024;
/// This many GPUs have a line in the plot.
pub(super) const MOST_GPUS: usize = 8;
/// The intervals that keys step through.
const INTERVALS_MS: [u64; 8] = [50, 100, 250, 500, 1000, 2000, 5000, 10_000];

/// A moment in the plot: shares of the whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlotPoint {
    pub(super) t: f64,
    pub(super) memory: Option<f64>,
    /// Of the system's where a GPU's memory is unified, of its own where it is not.
    pub(super) gpus: [Option<f64>; MOST_GPUS],
}

/// What processes are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Gpu,
    Resident,
    Load,
    Pid,
    Name,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Gpu => Sort::Resident,
            Sort::Resident => Sort::Load,
            Sort::Load => Sort::Pid,
            Sort::Pid => Sort::Name,
            Sort::Name => Sort::Gpu,
        }
    }
}

/// The state of the live view.
#[derive(Debug)]
pub(crate) struct LiveView {
    /// Where records come from, for the title.
    pub(super) source: String,
    pub(super) record: Option<MonitorRecord>,
    pub(super) history: VecDeque<PlotPoint>,
    pub(super) sort: Sort,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) ended: bool,
    /// The last thing that was worth a word.
    pub(super) notice: Option<(bool, String)>,
    pub(crate) interval: Duration,
}

impl LiveView {
    pub(crate) fn new(source: String, interval: Duration) -> LiveView {
        LiveView {
            source,
            record: None,
            history: VecDeque::new(),
            sort: Sort::Gpu,
            paused: false,
            help: false,
            ended: false,
            notice: None,
            interval,
        }
    }

    /// Takes a record in; a view that is paused keeps only its alerts and warnings.
    pub(crate) fn take(&mut self, record: &MonitorRecord) {
        if let Some(warning) = record.warnings.last() {
            self.notice = Some((false, warning.clone()));
        }
        if let Some(alert) = record.alerts.last() {
            self.notice = Some((true, alert.clone()));
        }
        if self.paused {
            return;
        }
        if self.history.len() == MOST_POINTS {
            self.history.pop_front();
        }
        self.history.push_back(point(record));
        self.record = Some(record.clone());
    }

    /// Shows a warning.
    pub(crate) fn warn(&mut self, text: String) {
        self.notice = Some((false, text));
    }

    /// The log has no more records.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Does what a key asks for, where that is the view's to do.
    pub(crate) fn grant(&mut self, wish: KeyAction) {
        match wish {
            KeyAction::Pause => self.paused = !self.paused,
            KeyAction::Sort => self.sort = self.sort.next(),
            KeyAction::Help => self.help = !self.help,
            KeyAction::Faster => self.interval = self.beside(false),
            KeyAction::Slower => self.interval = self.beside(true),
            KeyAction::Quit | KeyAction::Redraw => {}
        }
    }

    fn beside(&self, slower: bool) -> Duration {
        let now = self.interval.as_millis() as u64;
        let mut steps = INTERVALS_MS.into_iter();
        let found = match slower {
            true => steps.find(|ms| *ms > now),
            false => steps.rev().find(|ms| *ms < now),
        };
        found.map_or(self.interval, Duration::from_millis)
    }

    /// The processes in the order that was asked for.
    pub(super) fn processes(&self) -> Vec<&MonitorProcess> {
        let mut list: Vec<&MonitorProcess> =
            self.record.iter().flat_map(|r| &r.processes).collect();
        let size = |bytes: Option<u64>| std::cmp::Reverse(bytes.map_or(-1, i128::from));
        match self.sort {
            Sort::Gpu => list.sort_by_key(|p| (size(p.gpu_bytes), size(p.resident_bytes))),
            Sort::Resident => list.sort_by_key(|p| size(p.resident_bytes)),
            Sort::Load => {
                let load = |p: &MonitorProcess| p.cpu_percent.unwrap_or(-1.0);
                list.sort_by(|a, b| load(b).total_cmp(&load(a)));
            }
            Sort::Pid => list.sort_by_key(|p| p.pid),
            Sort::Name => list.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        list
    }
}

fn point(record: &MonitorRecord) -> PlotPoint {
    let share = |used: u64, total: u64| (total > 0).then(|| used as f64 / total as f64);
    let system = record.system();
    let mut gpus = [None; MOST_GPUS];
    for (at, (slot, gpu)) in gpus.iter_mut().zip(&record.gpus).enumerate() {
        *slot = match gpu.unified {
            true => record
                .memory
                .gpu_share_bytes
                .zip(record.memory.total_bytes)
                .and_then(|(used, total)| share(used, total)),
            false => record.own(at).and_then(|pool| share(pool.used, pool.total)),
        };
    }
    let memory = system.and_then(|pool| share(pool.used, pool.total));
    PlotPoint { t: record.t.unwrap_or_default(), memory, gpus }
}
