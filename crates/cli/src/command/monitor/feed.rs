//! Where records come from: this machine, or a log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use plimsoll::probe::tegrastats::parse;
use plimsoll::probe::{self, ProbeSettings, Sampler, usual};
use serde_json::Value;

use super::flags::Args;
#[cfg(target_os = "linux")]
use super::guarded::GuardedProcesses;
use super::record::{MonitorCost, MonitorGpu, MonitorMemory, MonitorRecord};
use super::tegrastats;
use crate::outcome::{BadInput, OrBadInput};
use crate::recording;

/// The longest line of a log that is read; ours are a hundredth of it.
const LONGEST: u64 = 1 << 20;
/// How long tegrastats waits between two lines by default.
const USUAL_STEP: f64 = 1.0;

/// Processes are looked at no more often than this.
const PROCESSES_EVERY: Duration = Duration::from_secs(2);

/// What a feed gives.
pub(super) enum Item {
    /// A sample.
    Record(Box<MonitorRecord>),
    /// A line that is none, and why.
    Nonsense { line: u64, why: String },
    /// Nothing yet.
    Nothing,
    /// No more.
    End,
}

/// Where records come from.
pub(super) enum MonitorFeed {
    /// Probes.
    Live(Box<MachineFeed>),
    Log(Box<ReplayLog>),
}

impl MonitorFeed {
    pub(super) fn open(args: &Args) -> anyhow::Result<MonitorFeed> {
        if let Some(path) = &args.replay.file {
            return Ok(MonitorFeed::Log(Box::new(ReplayLog::open(path)?)));
        }
        let kinds = if args.source.is_empty() { usual(&args.root) } else { args.source.clone() };
        recording::check_root(&args.root)?;
        let processes = Some(args.interval.max(PROCESSES_EVERY)).filter(|_| !args.no_processes);
        let settings =
            ProbeSettings { root: args.root.clone(), interval: args.interval, processes };
        let sampler = Sampler::start(&kinds, &args.source, &settings)
            .context("cannot watch what --source names")?;
        Ok(MonitorFeed::Live(Box::new(MachineFeed {
            sampler,
            here: args.root == Path::new("/"),
            #[cfg(target_os = "linux")]
            guarded: GuardedProcesses::default(),
        })))
    }

    /// The next of them; nothing where none comes within this time.
    pub(super) fn next(&mut self, timeout: Duration) -> Item {
        match self {
            MonitorFeed::Live(machine) => machine.next(timeout),
            MonitorFeed::Log(log) => log.next(),
        }
    }

    /// From now on this long between two samples; a log has its own times.
    pub(super) fn set_interval(&self, interval: Duration) {
        if let MonitorFeed::Live(machine) = self {
            machine.sampler.set_interval(interval);
        }
    }

    /// Whether it is a machine that is looked at now.
    pub(super) fn is_live(&self) -> bool {
        matches!(self, MonitorFeed::Live(..))
    }
}

/// A machine that is looked at.
pub(super) struct MachineFeed {
    sampler: Sampler,
    /// Whether it is this one, and not a recorded one.
    here: bool,
    #[cfg(target_os = "linux")]
    guarded: GuardedProcesses,
}

impl MachineFeed {
    fn next(&mut self, timeout: Duration) -> Item {
        let Some(taken) = self.sampler.next(timeout) else { return Item::Nothing };
        let t = taken.since_start.as_secs_f64();
        let how = if self.here { "sampled" } else { "recorded" };
        let mut record = MonitorRecord::live(taken.at, t, how, &taken.sample);
        record.warnings = taken.warnings;
        record.late = taken.late.into_iter().map(String::from).collect();
        let own = probe::HelperCost::of("plimsoll", std::process::id());
        record.cost.splice(..0, own.iter().map(MonitorCost::new));
        #[cfg(target_os = "linux")]
        if self.here {
            self.guarded.add(&mut record, &taken.sample.gpus);
        }
        Item::Record(Box::new(record))
    }
}

/// A log that is read line by line.
pub(super) struct ReplayLog {
    lines: BufReader<File>,
    buffer: Vec<u8>,
    number: u64,
    /// Whether the rest of a line that is too long is skipped.
    skipping: bool,
    clock: ReplayClock,
    /// Of a run of `bench`, whose samples do not repeat it.
    total: Option<u64>,
}

/// The log's own time, in whichever form its lines have it.
#[derive(Default)]
struct ReplayClock {
    t: f64,
    last: Option<(Option<f64>, Option<f64>)>,
}

impl ReplayClock {
    /// Seconds since the first line. `since` is the line's own count of seconds, `calendar`
    /// its date; a line without either comes a usual step after the one before.
    fn advance(&mut self, since: Option<f64>, calendar: Option<f64>) -> f64 {
        let step = match self.last {
            None => 0.0,
            Some((last_since, last_calendar)) => {
                let of = |now: Option<f64>, last: Option<f64>| Some(now? - last?);
                // A count that goes back is a new run in the same file.
                of(since, last_since)
                    .filter(|step| *step >= 0.0)
                    .or_else(|| of(calendar, last_calendar).filter(|step| *step >= 0.0))
                    .unwrap_or(USUAL_STEP)
            }
        };
        self.last = Some((since, calendar));
        self.t += step;
        self.t
    }
}

impl ReplayLog {
    fn open(path: &Path) -> anyhow::Result<ReplayLog> {
        let wrong = || format!("cannot read the log {}", path.display());
        let file = File::open(path).or_bad_input(wrong)?;
        if file.metadata().or_bad_input(wrong)?.is_dir() {
            return Err(BadInput::new(format!("{}: it is a folder", wrong())).into());
        }
        let clock = ReplayClock::default();
        let total = total_of_run(path);
        let lines = BufReader::new(file);
        Ok(ReplayLog { lines, buffer: Vec::new(), number: 0, skipping: false, clock, total })
    }

    fn next(&mut self) -> Item {
        loop {
            if self.skipping {
                self.skip();
                return Item::Nothing;
            }
            match self.line() {
                Err(why) => return Item::Nonsense { line: self.number, why },
                Ok(false) => return Item::End,
                Ok(true) => {}
            }
            let text = String::from_utf8_lossy(&self.buffer).into_owned();
            let found = match text.trim_start().starts_with('{') {
                // A logger's prefix may begin so too.
                true => self
                    .ours(&text)
                    .or_else(|why| self.tegrastats_record(&text).map(Some).or(Err(why))),
                false => self.tegrastats_record(&text).map(Some),
            };
            match found {
                Ok(Some(record)) => return Item::Record(Box::new(record)),
                // A frame of a run of `bench`: no sample of the machine.
                Ok(None) => {}
                Err(why) => return Item::Nonsense { line: self.number, why },
            }
        }
    }

    /// Reads a line into the buffer; false at the end.
    fn line(&mut self) -> Result<bool, String> {
        self.buffer.clear();
        let mut part = self.lines.by_ref().take(LONGEST);
        let read = part.read_until(b'\n', &mut self.buffer).map_err(|error| error.to_string())?;
        self.number += u64::from(read > 0);
        if read as u64 == LONGEST && self.buffer.last() != Some(&b'\n') {
            self.skipping = true;
            return Err(format!("a line longer than {LONGEST} bytes"));
        }
        Ok(read > 0)
    }

    /// Passes over a part of a line that is too long: it may have no end.
    fn skip(&mut self) {
        self.buffer.clear();
        let mut part = self.lines.by_ref().take(LONGEST);
        // A read error is reported for the next line.
        let read = part.read_until(b'\n', &mut self.buffer).unwrap_or_default();
        self.skipping = read as u64 == LONGEST && self.buffer.last() != Some(&b'\n');
    }

    fn tegrastats_record(&mut self, text: &str) -> Result<MonitorRecord, String> {
        let line = parse(text).map_err(|error| error.to_string())?;
        let t = self.clock.advance(None, line.clock_s);
        let mut record = MonitorRecord::new(Some(t), "recorded", &line.to_sample());
        record.time = line.timestamp.map(String::from);
        record.tegrastats = Some(tegrastats::fields(&line));
        Ok(record)
    }

    /// A line of ours, or of the samples of `bench`; `None` for one of its frames.
    fn ours(&mut self, text: &str) -> Result<Option<MonitorRecord>, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if let Some(error) = value.get("error") {
            return Err(error.as_str().map_or_else(|| error.to_string(), String::from));
        }
        if value.get("slot").is_some() {
            return Ok(None);
        }
        let mut record = match value.get("ram_used_gb") {
            Some(_) => of_bench(&value, self.total),
            None => serde_json::from_value(value).map_err(|error| error.to_string())?,
        };
        if record.system().is_none() && record.t.is_none() && record.gpus.is_empty() {
            return Err("neither a sample of the monitor nor one of bench".to_string());
        }
        let calendar = record.time.as_deref().and_then(seconds_of);
        record.t = Some(self.clock.advance(record.t, calendar));
        record.how = "recorded".to_string();
        record.alerts.clear();
        record.time_left = None;
        Ok(Some(record))
    }
}

/// The seconds of `2026-11-15T09:30:00Z`, by the parser of the logs' own prefixes.
fn seconds_of(time: &str) -> Option<f64> {
    parse(&format!("{time} RAM 0/0MB")).ok()?.clock_s
}

/// A run of `bench` keeps the size of the memory in its report, beside the samples.
fn total_of_run(path: &Path) -> Option<u64> {
    if path.file_name()? != "metrics.jsonl" {
        return None;
    }
    let report = plimsoll::files::read(&report_beside(path), 64 << 20).ok()?;
    let report: Value = serde_json::from_slice(&report).ok()?;
    Some(bytes(report["system_metrics"]["ram_total_gb"].as_f64()?))
}

/// Where the report of the run that wrote a log would be.
pub(super) fn report_beside(log: &Path) -> PathBuf {
    log.with_file_name("report.json")
}

fn bytes(gib: f64) -> u64 {
    (gib * (1u64 << 30) as f64).round() as u64
}

fn of_bench(value: &Value, total: Option<u64>) -> MonitorRecord {
    let figure = |name: &str| value.get(name).and_then(Value::as_f64);
    let size = |name: &str| figure(name).map(bytes);
    let map = |name: &str| {
        let entries = value.get(name).and_then(Value::as_object).into_iter().flatten();
        entries.map(|(name, value)| (name.clone(), value.as_f64())).collect()
    };
    let share = size("ram_gpu_share_gb");
    let mut record = MonitorRecord {
        t: figure("t"),
        memory: MonitorMemory {
            total_bytes: total,
            used_bytes: size("ram_used_gb"),
            gpu_share_bytes: share,
            ..MonitorMemory::default()
        },
        temperatures_c: map("temperatures_c"),
        power_w: map("power_w"),
        ..MonitorRecord::default()
    };
    record.cpu.percent = figure("cpu_percent");
    record.swap.used_bytes = size("swap_used_gb");
    let own = size("vram_used_gb");
    if own.is_some() || share.is_some() || figure("gpu_load_percent").is_some() {
        record.gpus.push(MonitorGpu {
            unified: share.is_some(),
            used_bytes: own.or(share),
            percent: figure("gpu_load_percent"),
            mhz: figure("gpu_clock_mhz"),
            ..MonitorGpu::default()
        });
        record.unified = Some(share.is_some());
    }
    record
}
