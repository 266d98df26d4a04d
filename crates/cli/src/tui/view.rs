//! What there is to show, and how.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::filter::ProcessFilter;
use super::keys::KeyAction;
use crate::command::monitor::record::{MonitorProcess, MonitorRecord, PoolOwner};

/// History older than this is dropped.
const LONGEST_S: f64 = 3600.0;
/// This many points of history are kept: an hour at two a second.
const MOST_POINTS: usize = 7200;
/// This many GPUs have a line in a plot.
pub(super) const MOST_GPUS: usize = 8;
/// The intervals that keys step through.
const INTERVALS_MS: [u64; 8] = [50, 100, 250, 500, 1000, 2000, 5000, 10_000];
/// The spans of the plots that a key steps through, in seconds.
const SPANS_S: [f64; 4] = [120.0, 600.0, 1800.0, 3600.0];

/// A moment in the plots.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlotPoint {
    pub(super) t: f64,
    /// What is used of each memory.
    pub(super) pools: Vec<(PoolOwner, u64)>,
    /// Of the system's: the GPU's share, where memory is unified.
    pub(super) share: Option<u64>,
    pub(super) swap: Option<u64>,
    pub(super) cpu: Option<f64>,
    pub(super) loads: Vec<Option<f64>>,
}

impl PlotPoint {
    fn new(record: &MonitorRecord) -> PlotPoint {
        PlotPoint {
            t: record.t.unwrap_or_default(),
            pools: record.pools().map(|pool| (pool.owner, pool.used)).collect(),
            share: record.memory.gpu_share_bytes,
            swap: record.swap.used_bytes,
            cpu: record.cpu.percent,
            loads: record.gpus.iter().take(MOST_GPUS).map(|gpu| gpu.percent).collect(),
        }
    }

    pub(super) fn used(&self, owner: PoolOwner) -> Option<u64> {
        self.pools.iter().find(|(known, _)| *known == owner).map(|(_, used)| *used)
    }
}

/// What processes are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessSort {
    Gpu,
    Resident,
    Load,
    User,
    Pid,
    Name,
}

impl ProcessSort {
    fn next(self) -> ProcessSort {
        match self {
            ProcessSort::Gpu => ProcessSort::Resident,
            ProcessSort::Resident => ProcessSort::Load,
            ProcessSort::Load => ProcessSort::User,
            ProcessSort::User => ProcessSort::Pid,
            ProcessSort::Pid => ProcessSort::Name,
            ProcessSort::Name => ProcessSort::Gpu,
        }
    }

    fn sort(self, list: &mut [&MonitorProcess]) {
        let size = |bytes: Option<u64>| std::cmp::Reverse(bytes.map_or(-1, i128::from));
        let gpu = |p: &MonitorProcess| size(p.gpu_bytes.or(p.guarded_bytes));
        let load = |p: &MonitorProcess| p.cpu_percent.unwrap_or(-1.0);
        match self {
            ProcessSort::Gpu => list.sort_by_key(|p| (gpu(p), size(p.resident_bytes))),
            ProcessSort::Resident => list.sort_by_key(|p| size(p.resident_bytes)),
            ProcessSort::Load => list.sort_by(|a, b| load(b).total_cmp(&load(a))),
            ProcessSort::User => list.sort_by(|a, b| a.user.cmp(&b.user)),
            ProcessSort::Pid => list.sort_by_key(|p| p.pid),
            ProcessSort::Name => list.sort_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}

/// How a view is shown, apart from what it shows.
#[derive(Debug, Clone)]
pub(crate) struct ViewSettings {
    /// Where records come from, for the title.
    pub(crate) source: String,
    pub(crate) interval: Duration,
    /// Whether colours are wanted.
    pub(crate) colour: bool,
    /// Where the reader is.
    pub(crate) zone: TimeZone,
}

/// The state of the live view.
#[derive(Debug)]
pub(crate) struct LiveView {
    pub(super) settings: ViewSettings,
    pub(super) record: Option<MonitorRecord>,
    pub(super) history: VecDeque<PlotPoint>,
    pub(super) sort: ProcessSort,
    pub(super) filter: ProcessFilter,
    /// The first process that is shown.
    pub(super) scrolled: usize,
    pub(super) span: f64,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) ended: bool,
    /// The last thing that was worth a word; true where it is an alert.
    pub(super) notice: Option<(bool, String)>,
}

impl LiveView {
    pub(crate) fn new(settings: ViewSettings) -> LiveView {
        LiveView {
            settings,
            record: None,
            history: VecDeque::new(),
            sort: ProcessSort::Gpu,
            filter: ProcessFilter::default(),
            scrolled: 0,
            span: SPANS_S[0],
            paused: false,
            help: false,
            ended: false,
            notice: None,
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Whether keys are letters of the filter now.
    pub(crate) fn is_typing(&self) -> bool {
        self.filter.typing
    }

    /// Takes a record in; a view that is paused keeps only its alerts and warnings.
    pub(crate) fn take(&mut self, record: MonitorRecord) {
        if let Some(warning) = record.warnings.last() {
            self.notice = Some((false, warning.clone()));
        }
        if let Some(alert) = record.alerts.last() {
            self.notice = Some((true, alert.clone()));
        }
        if self.paused {
            return;
        }
        let point = PlotPoint::new(&record);
        let old = |first: &PlotPoint| point.t - first.t > LONGEST_S || first.t > point.t;
        while self.history.len() >= MOST_POINTS || self.history.front().is_some_and(old) {
            self.history.pop_front();
        }
        self.history.push_back(point);
        self.record = Some(record);
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
            KeyAction::Faster => self.settings.interval = self.beside(false),
            KeyAction::Slower => self.settings.interval = self.beside(true),
            KeyAction::Zoom => {
                let longer = SPANS_S.into_iter().find(|span| *span > self.span);
                self.span = longer.unwrap_or(SPANS_S[0]);
            }
            KeyAction::Scroll(rows) => {
                self.scrolled = self.scrolled.saturating_add_signed(rows.into());
            }
            KeyAction::Top => self.scrolled = 0,
            KeyAction::Bottom => self.scrolled = usize::MAX,
            KeyAction::Filter(key) => {
                self.filter.press(key);
                self.scrolled = 0;
            }
            KeyAction::Quit | KeyAction::Redraw => {}
        }
        // What cannot be scrolled to is not remembered.
        let all = self.processes().len();
        self.scrolled = self.scrolled.min(all.saturating_sub(1));
    }

    /// Whether Esc ends the program, and not the filter.
    pub(crate) fn quits_on_escape(&self) -> bool {
        !self.filter.is_set()
    }

    fn beside(&self, slower: bool) -> Duration {
        let now = self.settings.interval.as_millis() as u64;
        let mut steps = INTERVALS_MS.into_iter();
        let found = match slower {
            true => steps.find(|ms| *ms > now),
            false => steps.rev().find(|ms| *ms < now),
        };
        found.map_or(self.settings.interval, Duration::from_millis)
    }

    /// The processes that pass the filter, in the order that was asked for.
    pub(super) fn processes(&self) -> Vec<&MonitorProcess> {
        let all = self.record.iter().flat_map(|record| &record.processes);
        let mut list: Vec<&MonitorProcess> =
            all.filter(|process| self.filter.passes(process)).collect();
        self.sort.sort(&mut list);
        list
    }
}
