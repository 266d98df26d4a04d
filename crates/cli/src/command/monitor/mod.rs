//! `plimsoll monitor`: memory, GPUs and processes, live or from a log.
//!
//! ```text
//! feed ─→ watch ─→ sinks: stdout, log, live page, terminal view
//! Record   time left, alerts, peaks
//! ```
//!
//! A feed gives records, from this machine's probes or from a log; the watch works out what
//! follows from one to the next; the sinks show or keep them. Nothing that a sink does (a
//! slow client, a full disk, a closed pipe) delays the sampling, which has its own thread.
//!
//! # How to add a metric to the monitor
//!
//! 1. `crates/machine/src/probe/sample.rs`: an `Option` field in `MachineSample`, `GpuSample` or
//!    `ProcessSample`, and a line in `merge` or `fill` there. Without that line, the value is
//!    lost when two probes report the same GPU or process.
//! 2. The probe that reads it, in `crates/machine/src/probe`. Its parser takes text; add a recorded
//!    file to `crates/machine/tests/machines`.
//! 3. `record/mod.rs`: the field of the record, and its value in `record/sample.rs`. JSON and logs then have it.
//! 4. The forms that show it, each by itself: `prometheus.rs`, `csv.rs` (header and cells),
//!    `table.rs`, `tui/facts.rs` for the terminal view, `serve/page.html`, and `summary.rs` for the
//!    least, mean and most at the end; `missing.rs` where a reader should learn that it is not
//!    there.
//!
//! For the same metric in `bench`, see `crates/bench/src/measure/mod.rs`.

mod csv;
mod feed;
mod flags;
#[cfg(target_os = "linux")]
mod guarded;
mod live;
mod log;
mod missing;
mod prometheus;
pub(crate) mod record;
mod serve;
pub(crate) mod summary;
pub(crate) mod table;
mod tegrastats;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::probe::Forecast;
use serde_json::json;

use feed::{Item, MonitorFeed};
pub(crate) use flags::Args;
use flags::MonitorFormat;
use live::ReplayPace;
use log::MonitorLog;
use record::MonitorRecord;
use serve::MonitorServer;
use table::TableColumns;
use watch::MonitorWatch;

use crate::outcome::{BadInput, Outcome};
use crate::output::{self, Output};
use crate::output_conflicts;
use crate::stop::{STOPPED, listen_each_time};

/// Everything that a record passes through.
struct Monitor {
    feed: MonitorFeed,
    watch: MonitorWatch,
    log: Option<MonitorLog>,
    server: Option<MonitorServer>,
    start: Instant,
    stop: Arc<AtomicBool>,
}

/// How long to wait for a sample before looking whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Watches.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    check_apart(args)?;
    check_forecast(args)?;
    let (feed, server) = (MonitorFeed::open(args)?, MonitorServer::start(&args.serve)?);
    let mut monitor = Monitor {
        feed,
        watch: MonitorWatch::new(&args.alert, args.limit.limit()),
        // The last, so that what cannot start leaves no log.
        log: args.log.as_deref().map(MonitorLog::open).transpose()?,
        server,
        start: Instant::now(),
        stop: Arc::new(AtomicBool::new(false)),
    };
    listen_each_time(&monitor.stop)?;
    let format = match args.format {
        Some(format) if out.is_json() && !matches!(format, MonitorFormat::Jsonl) => {
            let text = "--json prints JSON; leave out --json, or --format";
            return Err(BadInput::new(text).into());
        }
        None if out.is_json() => MonitorFormat::Jsonl,
        None => MonitorFormat::Table,
        Some(format) => format,
    };
    let bare = args.format.is_none() && !out.is_json();
    if let Some(server) = &monitor.server {
        output::note(&format!("serving {}", server.url()));
    }
    if args.once {
        if !monitor.once(format, out)? {
            return Ok(Outcome::Code(STOPPED));
        }
    } else if bare && output::can_redraw() {
        monitor.live(args)?;
        monitor.end(format, out)?;
    } else {
        // A server without a terminal prints nothing.
        let silent = bare && monitor.server.is_some();
        monitor.stream(args, (!silent).then(|| MonitorLines::new(format)), out)?;
        monitor.end(format, out)?;
        out.finish()?;
        monitor.serve_on(args);
    }
    if let (Some(log), 0) = (&args.replay.file, monitor.watch.summary.samples)
        && !monitor.stop.load(Ordering::Relaxed)
    {
        let text = "has no line of tegrastats, and none that this program logged";
        return Err(BadInput::new(format!("{} {text}", log.display())).into());
    }
    if let Some(why) = monitor.watch.blindness() {
        return match &args.replay.file {
            Some(log) => Err(BadInput::new(format!("{}: {why}", log.display())).into()),
            None => Err(anyhow::anyhow!("{why}; `plimsoll doctor` says which sources are there")),
        };
    }
    Ok(Outcome::from(monitor.watch.raised == 0))
}

fn check_apart(args: &Args) -> anyhow::Result<()> {
    if let Some(log) = &args.replay.file {
        output_conflicts::check_stdout("--replay", log)?;
    }
    let log = args.log.iter().map(|path| ("--log", path.clone()));
    output_conflicts::check(&log.collect::<Vec<_>>(), || {
        let read = args.replay.file.iter();
        read.flat_map(|path| [path.clone(), feed::report_beside(path)])
            .map(|path| ("--replay, or the report beside it", path))
            .collect::<Vec<_>>()
    })
}

/// `--alert-within` judges nothing before so long, which leaves a forecast time for its samples.
const SHORTEST_WATCH: Duration = Duration::from_secs(30);

/// A forecast needs many samples in the time that it looks back; a log has its own steps.
fn check_forecast(args: &Args) -> anyhow::Result<()> {
    if args.alert.alert_within.is_none() {
        return Ok(());
    }
    let live = args.replay.file.is_none();
    let longest = Forecast::LONGEST_STEP;
    if live && args.interval > longest {
        let text = "--alert-within needs an --interval of at most";
        return Err(BadInput::new(format!("{text} {}s", longest.as_secs())).into());
    }
    let first = Forecast::first_after(if live { args.interval } else { Duration::ZERO });
    let least = SHORTEST_WATCH.max(first).as_secs_f64().ceil();
    let text = format!("--alert-within needs a --duration of {least}s or more");
    let first = first.as_secs_f64().ceil();
    let why = format!("a forecast is made from {first} s of samples");
    match args.duration {
        _ if args.once => {
            Err(BadInput::new(format!("{text} in the place of --once: {why}")).into())
        }
        Some(duration) if duration.as_secs_f64() < least => {
            Err(BadInput::new(format!("{text}: {why}")).into())
        }
        _ => Ok(()),
    }
}

impl Monitor {
    /// The next record, with all that follows from it, logged and handed to clients.
    fn next(&mut self, timeout: Duration) -> Item {
        let mut item = self.feed.next(timeout);
        if let Item::Record(record) = &mut item {
            self.pass(record);
        }
        item
    }

    /// Whether `--duration` has passed: by the clock, or by a log's own time.
    fn is_over(&self, args: &Args) -> bool {
        let summary = &self.watch.summary;
        let passed = match self.feed.is_live() {
            true => Some(self.start.elapsed().as_secs_f64()),
            false => (summary.samples > 0).then_some(summary.seconds),
        };
        args.duration.is_some_and(|duration| passed >= Some(duration.as_secs_f64()))
    }

    fn pass(&mut self, record: &mut MonitorRecord) {
        self.watch.take(record);
        if let Some(log) = &mut self.log {
            let line = serde_json::to_string(record).unwrap_or_default();
            record.warnings.extend(log.append(&line));
        }
        if let Some(server) = &self.server {
            server.publish(record, &self.watch.summary);
        }
    }

    /// One look; loads are known only after two. `false` where it was stopped before.
    fn once(&mut self, format: MonitorFormat, out: &mut Output) -> anyhow::Result<bool> {
        let mut warnings = None;
        while !self.stop.load(Ordering::Relaxed) {
            let Item::Record(mut record) = self.feed.next(POLL_INTERVAL) else { continue };
            let Some(first) = warnings.take() else {
                warnings = Some(std::mem::take(&mut record.warnings));
                continue;
            };
            record.warnings.splice(..0, first);
            self.pass(&mut record);
            show_warnings(&record, out);
            return self.show_one(&record, format, out).map(|()| true);
        }
        Ok(false)
    }

    fn show_one(
        &self,
        record: &MonitorRecord,
        format: MonitorFormat,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        match format {
            MonitorFormat::Table => out.answer(&table::Look(record)),
            MonitorFormat::Jsonl if out.is_json() => out.answer(&table::Look(record)),
            _ => {
                let mut lines = MonitorLines::new(format);
                out.line(&lines.of(record, &self.watch)).map(|_| ())
            }
        }
    }

    /// Handles record after record until it is stopped.
    fn stream(
        &mut self,
        args: &Args,
        mut lines: Option<MonitorLines>,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        // A log that is only looked at over the network is shown as if live; one that is
        // converted goes as fast as it can.
        let shown = !self.feed.is_live() && lines.is_none();
        let mut pace = shown.then(|| ReplayPace::new(args.replay.speed));
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(wait) = pace.as_ref().and_then(ReplayPace::wait) {
                std::thread::sleep(wait.min(POLL_INTERVAL));
                continue;
            }
            let text = match self.next(POLL_INTERVAL) {
                Item::End => break,
                Item::Nothing => None,
                Item::Nonsense { line, why } => lines.as_mut().map(|all| all.nonsense(line, &why)),
                Item::Record(record) => {
                    show_warnings(&record, out);
                    pace.iter_mut().for_each(|pace| pace.follow(&record));
                    lines.as_mut().map(|lines| lines.of(&record, &self.watch))
                }
            };
            if let Some(text) = text.filter(|text| !text.is_empty())
                && !out.line(&text)?
            {
                break;
            }
            if self.is_over(args) {
                break;
            }
        }
        if let Some(more) = lines.map(|lines| lines.silently_skipped()).filter(|more| *more > 0) {
            tracing::warn!("{more} more lines are no record either");
        }
        Ok(())
    }

    /// Serves a log that has ended until it is stopped, as the live view shows it until the user
    /// quits; with a duration it ends with the log.
    fn serve_on(&self, args: &Args) {
        let wanted = self.server.is_some() && !self.feed.is_live() && args.duration.is_none();
        while wanted && self.watch.summary.samples > 0 && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Peaks and means: with the table on stdout, otherwise beside the samples.
    fn end(&self, format: MonitorFormat, out: &mut Output) -> anyhow::Result<()> {
        let summary = &self.watch.summary;
        if summary.samples == 0 {
            return Ok(());
        }
        match format {
            MonitorFormat::Table => out.answer(summary),
            _ => {
                out.answer_on_stderr(summary);
                Ok(())
            }
        }
    }
}

/// Shows warnings and alerts.
fn show_warnings(record: &MonitorRecord, out: &Output) {
    if !out.is_quiet() {
        record.warnings.iter().for_each(|text| output::note_line(&format!("warning: {text}")));
    }
    let t = record.t.unwrap_or_default();
    let at = record.time.as_ref().map(|time| format!(" ({time})")).unwrap_or_default();
    record
        .alerts
        .iter()
        .for_each(|text| output::note_line(&format!("alert at t={t:.1}{at}: {text}")));
}

/// Records as lines of a format.
struct MonitorLines {
    format: MonitorFormat,
    /// How many GPUs the header of CSV has columns for, once it is out.
    gpus: Option<usize>,
    /// What the last header of a table has.
    columns: Option<TableColumns>,
    /// Lines of a log that were no record.
    nonsense: u64,
}

/// How many of those are complained of one by one.
const COMPLAINTS: u64 = 5;

impl MonitorLines {
    fn new(format: MonitorFormat) -> MonitorLines {
        MonitorLines { format, gpus: None, columns: None, nonsense: 0 }
    }

    fn of(&mut self, record: &MonitorRecord, watch: &MonitorWatch) -> String {
        match self.format {
            MonitorFormat::Jsonl => serde_json::to_string(record).unwrap_or_default(),
            MonitorFormat::Prometheus => prometheus::text(record, &watch.summary),
            MonitorFormat::Csv => self.csv(record),
            MonitorFormat::Table => self.table(record),
        }
    }

    fn csv(&mut self, record: &MonitorRecord) -> String {
        let first = self.gpus.is_none();
        let gpus = *self.gpus.get_or_insert(record.gpus.len());
        under(first.then(|| csv::header(gpus)), csv::row(record, gpus))
    }

    /// The header comes again where columns change.
    fn table(&mut self, record: &MonitorRecord) -> String {
        let columns = self.columns.unwrap_or_default().with(record);
        let new = self.columns.replace(columns) != Some(columns);
        under(new.then(|| columns.header()), columns.row(record))
    }

    /// A line of a log that is no record: an error in JSON, a warning in other formats.
    fn nonsense(&mut self, line: u64, why: &str) -> String {
        if self.format == MonitorFormat::Jsonl {
            return json!({"line": line, "error": why}).to_string();
        }
        self.nonsense += 1;
        if self.nonsense <= COMPLAINTS {
            tracing::warn!("line {line}: {why}");
        }
        String::new()
    }

    /// How many lines were skipped without a warning.
    fn silently_skipped(&self) -> u64 {
        self.nonsense.saturating_sub(COMPLAINTS)
    }
}

fn under(header: Option<String>, row: String) -> String {
    header.map(|header| format!("{header}\n{row}")).unwrap_or(row)
}
