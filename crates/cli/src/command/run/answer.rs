//! What became of the run, for programs: `report.json` and `--json` are this.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::UNIX_EPOCH;

use plimsoll_guard::ledger::{Device, NO_LIMIT, Process, flag, state};
use plimsoll_guard::watch::{Clock, Log, Watch};
use serde::Serialize;

use super::child::Ended;
use super::events::{self, Block, History};
use super::flags::{Args, Line};
use super::reach::Reach;
use super::stacks::Stacks;
use super::tree::Unguarded;
use super::{sys, warnings};

/// How many of a kind are listed; all are counted.
const LISTED: usize = 20;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema_version: u32,
    pub(super) version: &'static str,
    pub(super) program: Vec<String>,
    pub(super) started_unix_seconds: f64,
    pub(super) duration_seconds: f64,
    pub(super) exit_code: u8,
    pub(super) signal: Option<i32>,
    pub(super) limit: Limit,
    pub(super) cuda: Cuda,
    pub(super) devices: Vec<DeviceReport>,
    pub(super) processes: Vec<ProcessReport>,
    pub(super) largest: Vec<BlockReport>,
    pub(super) never_freed: NeverFreed,
    pub(super) refused: Vec<RefusalReport>,
    pub(super) unguarded: Vec<Unguarded>,
    pub(super) warnings: Vec<String>,
    /// How many of them, the first, were said before the program began.
    #[serde(skip)]
    pub(super) said: usize,
    /// Those of the warnings by which memory may have passed the line uncounted.
    #[serde(skip)]
    pub(super) uncounted: Vec<&'static str>,
    /// Whether a process that used the driver could not be counted at all.
    #[serde(skip)]
    pub(super) passed: bool,
    #[serde(skip)]
    pub(super) history: History,
}

/// What the line was worth.
#[derive(Debug, Serialize)]
pub(super) struct Limit {
    /// `hard`, `unavailable`, or `none` with `--no-limit`.
    pub(super) limit_type: &'static str,
    pub(super) verified: bool,
    pub(super) methods_applied: Vec<String>,
    pub(super) limit_bytes: Option<u64>,
    /// The least line of any device that was used: on unified memory never more than the
    /// system has, less `keep_free_bytes`.
    pub(super) effective_limit_bytes: Option<u64>,
    pub(super) reserve_bytes: u64,
    pub(super) keep_free_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Cuda {
    /// Whether any process of the tree used the driver through the guard.
    pub(super) used: bool,
    /// Whether the loader finds the driver at all, for a program that would use it.
    pub(super) driver_found: bool,
    pub(super) driver_version: Option<String>,
    /// Programs that the guard was loaded into.
    pub(super) guarded_programs: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceReport {
    /// Where the guard keeps it, by which its history is found.
    #[serde(skip)]
    pub(super) place: u8,
    pub(super) device: String,
    pub(super) total_bytes: u64,
    pub(super) unified: bool,
    pub(super) limit_bytes: Option<u64>,
    pub(super) peak_bytes: u64,
    pub(super) peak_at_seconds: f64,
    /// The most that was charged for 20 ms at a stretch, as one who samples sees it; null where
    /// events are missing.
    pub(super) lasting_peak_bytes: Option<u64>,
    /// Of it, what the driver took for itself at most.
    pub(super) driver_bytes: u64,
    pub(super) refused: u64,
    pub(super) refused_bytes: u64,
    pub(super) within_limit: Option<bool>,
    pub(super) verified: bool,
    /// What the driver reported beyond others' and ours at most; null where it was not read.
    pub(super) residue_bytes: Option<u64>,
    /// Still charged at the end, by processes that still run.
    pub(super) held_at_end_bytes: u64,
    pub(super) source: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ProcessReport {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) running: bool,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) refused: u64,
    pub(super) failed_by_driver: u64,
    pub(super) frees_of_others: u64,
    /// The most that it held at once; null where events of it are missing.
    pub(super) peak_bytes: Option<u64>,
    pub(super) never_freed_bytes: u64,
    pub(super) never_freed_blocks: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct BlockReport {
    pub(super) pid: u32,
    pub(super) device: String,
    pub(super) kind: &'static str,
    pub(super) bytes: u64,
    pub(super) from_seconds: f64,
    pub(super) to_seconds: Option<f64>,
    pub(super) stack: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct NeverFreed {
    pub(super) bytes: u64,
    pub(super) blocks: usize,
    pub(super) largest: Vec<BlockReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct RefusalReport {
    pub(super) pid: u32,
    pub(super) device: String,
    pub(super) kind: &'static str,
    pub(super) bytes: u64,
    pub(super) at_seconds: f64,
}

impl Report {
    /// Whether the line held everybody; asked only where `--strict` wants to know.
    pub(super) fn is_held(&self, strict: bool) -> bool {
        let over = self.devices.iter().any(|device| device.within_limit == Some(false));
        !strict || self.escaped().next().is_none() && !over && !self.passed
    }

    /// Processes that the guard did not reach and that use the GPU, or may.
    pub(super) fn escaped(&self) -> impl Iterator<Item = &Unguarded> {
        self.unguarded.iter().filter(|process| process.uses_cuda != Some(false))
    }
}

/// What a device is called.
pub(super) fn name(device: u8, watch: &Watch) -> String {
    let known = watch.ledger().devices.get(usize::from(device));
    format!("cuda:{}", known.map_or(u32::from(device), |d| d.ordinal.load(Relaxed)))
}

/// Reads everything that the guard has left.
pub(super) fn collect(
    args: &Args,
    line: &Line,
    reach: &Reach,
    watch: &Watch,
    ended: &Ended,
) -> anyhow::Result<Report> {
    let ledger = watch.ledger();
    ledger.reclaim();
    let clock = watch.clock();
    let logs = watch.logs()?;
    let history = events::merge(&logs, clock, &ends(watch, &logs));
    let mut stacks = Stacks::new(watch);
    let devices = devices(watch, clock, &history, ended.lasted.as_secs_f64());
    let mut left: Vec<&Block> = history.blocks.iter().filter(|block| block.to.is_none()).collect();
    left.sort_by_key(|block| std::cmp::Reverse(block.bytes));
    let mut largest: Vec<&Block> = history.blocks.iter().collect();
    largest.sort_by_key(|block| std::cmp::Reverse(block.bytes));
    let mut warnings = warnings::all(line, reach, watch, ended, &history);
    let listed = taken(watch).count();
    if logs.len() > listed {
        let all = logs.len();
        warnings.push(format!("{all} processes used the GPU; {listed} of them are listed"));
    }
    let report = Report {
        schema_version: 1,
        version: env!("CARGO_PKG_VERSION"),
        program: args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        started_unix_seconds: ended
            .began
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64()),
        duration_seconds: ended.lasted.as_secs_f64(),
        exit_code: ended.code,
        signal: ended.signal,
        limit: limit(line, &devices),
        cuda: cuda(watch),
        processes: processes(watch, &history, &left),
        largest: largest.iter().take(LISTED).map(|b| stacks.report(b)).collect(),
        never_freed: NeverFreed {
            bytes: left.iter().map(|block| block.bytes).sum(),
            blocks: left.len(),
            largest: left.iter().take(LISTED).map(|b| stacks.report(b)).collect(),
        },
        refused: refusals(watch, &history),
        unguarded: ended.unguarded.clone(),
        warnings,
        said: line.notes.iter().chain(&reach.why_not).count(),
        uncounted: warnings::uncounted(watch).collect(),
        passed: ledger.warnings.load(Relaxed) & (flag::NO_SLOT | flag::NO_ROOM) != 0,
        devices,
        history,
    };
    Ok(report)
}

fn limit(line: &Line, devices: &[DeviceReport]) -> Limit {
    let used = !devices.is_empty();
    let mut methods_applied = Vec::new();
    if line.limit.is_some() && used {
        methods_applied.push("guard".to_string());
    }
    if let (Some((pipes, value)), true) = (&line.mps, used) {
        methods_applied.push(format!("MPS client limit {value} ({})", pipes.display()));
    }
    Limit {
        limit_type: match (line.limit, used) {
            (None, _) => "none",
            (Some(_), true) => "hard",
            (Some(_), false) => "unavailable",
        },
        verified: used && devices.iter().all(|device| device.verified),
        methods_applied,
        limit_bytes: line.limit.map(plimsoll::Bytes::get),
        effective_limit_bytes: devices.iter().filter_map(|device| device.limit_bytes).min(),
        reserve_bytes: line.settings.reserve,
        keep_free_bytes: line.settings.keep_free,
    }
}

fn cuda(watch: &Watch) -> Cuda {
    let version = watch.ledger().driver_version.load(Relaxed);
    let used = taken(watch).next().is_some();
    Cuda {
        used,
        driver_found: used || sys::can_load("libcuda.so.1"),
        driver_version: (version > 0)
            .then(|| format!("CUDA {}.{}", version / 1000, version % 1000 / 10)),
        guarded_programs: watch.ledger().loaded.load(Relaxed),
    }
}

fn taken(watch: &Watch) -> impl Iterator<Item = &Process> {
    let known = |p: &&Process| matches!(p.state.load(Acquire), state::LIVE | state::DEAD);
    watch.ledger().processes.iter().filter(known)
}

/// When each list's process was found dead. A process that became another program has two
/// slots and two lists; when it attached tells them apart.
fn ends(watch: &Watch, logs: &[Log]) -> Vec<Option<u64>> {
    let end = |log: &Log| {
        let mine =
            |p: &&Process| (p.pid.load(Relaxed), p.since.load(Relaxed)) == (log.pid, log.since);
        match taken(watch).find(mine) {
            Some(process) => Some(process.until.load(Relaxed)).filter(|until| *until > 0),
            // It was gone, and its slot was given to another.
            None => log.events.last().map(|event| event.at),
        }
    };
    logs.iter().map(end).collect()
}

fn devices(watch: &Watch, clock: Clock, history: &History, end: f64) -> Vec<DeviceReport> {
    const LASTING: f64 = 0.02;
    let known = |(_, device): &(u8, &Device)| device.state.load(Acquire) == 2;
    let report = |(place, device): (u8, &Device)| {
        let budget = device.budget.load(Relaxed);
        let peak = device.peak.load(Relaxed);
        let limit = (budget != NO_LIMIT).then_some(budget);
        let observed =
            device.baseline.load(Relaxed) != u64::MAX && device.observed.load(Relaxed) > 0;
        DeviceReport {
            place,
            device: name(place, watch),
            total_bytes: device.total.load(Relaxed),
            unified: device.integrated.load(Relaxed) != 0,
            limit_bytes: limit,
            peak_bytes: peak,
            peak_at_seconds: match peak {
                0 => 0.0,
                _ => clock.since_start(device.peak_at.load(Relaxed)).as_secs_f64(),
            },
            lasting_peak_bytes: (history.lost == 0)
                .then(|| events::lasting(history.course_of(place), end, LASTING)),
            driver_bytes: device.driver_peak.load(Relaxed),
            refused: device.refused.load(Relaxed),
            refused_bytes: device.refused_bytes.load(Relaxed),
            within_limit: limit.map(|limit| peak <= limit),
            verified: device.verified.load(Relaxed) == 1,
            residue_bytes: observed.then(|| device.residue_most.load(Relaxed)),
            held_at_end_bytes: device.used.load(Relaxed),
            source: "counted by the guard; the driver's own measured around its calls",
        }
    };
    // The guard keeps them by when they were first used.
    let mut all: Vec<(u8, &Device)> = (0..).zip(&watch.ledger().devices).filter(known).collect();
    all.sort_by_key(|(_, device)| device.ordinal.load(Relaxed));
    all.into_iter().map(report).collect()
}

fn processes(watch: &Watch, history: &History, left: &[&Block]) -> Vec<ProcessReport> {
    let report = |process: &Process| {
        let pid = process.pid.load(Relaxed);
        let name = process.name_bytes();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let (refused, failed) = (process.refused.load(Relaxed), process.failed.load(Relaxed));
        let asked = process.allocs().saturating_sub(process.own.load(Relaxed));
        let since = process.since.load(Relaxed);
        let mine = left.iter().filter(|b| (b.pid, b.since) == (pid, since));
        let mine: Vec<u64> = mine.map(|b| b.bytes).collect();
        ProcessReport {
            pid,
            program: String::from_utf8_lossy(name).into_owned(),
            running: plimsoll_guard::watch::is_live(process),
            allocations: asked.saturating_sub(refused).saturating_sub(failed),
            frees: process.frees(),
            refused,
            failed_by_driver: failed,
            frees_of_others: process.foreign_frees.load(Relaxed),
            peak_bytes: history.peaks.get(&(pid, since)).copied(),
            never_freed_bytes: mine.iter().sum(),
            never_freed_blocks: mine.len(),
        }
    };
    taken(watch).map(report).collect()
}

fn refusals(watch: &Watch, history: &History) -> Vec<RefusalReport> {
    let report = |refusal: &events::Refusal| RefusalReport {
        pid: refusal.pid,
        device: name(refusal.device, watch),
        kind: refusal.kind.name(),
        bytes: refusal.bytes,
        at_seconds: refusal.at,
    };
    history.refused.iter().take(LISTED).map(report).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_guard::log::{Kind, Op};
    use plimsoll_guard::watch::{Event, Settings};

    use super::*;

    #[test]
    fn a_process_whose_slot_is_anothers_ended_with_its_last_event() {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::create(folder.path(), &Settings::default()).unwrap();
        let (op, kind) = (Op::Allocate, Kind::Linear);
        let (bytes, charge) = (512, 512);
        let (key, device, tag, stream, stack) = (1, 0, 0, 0, 0);
        let event = Event { at: 70, op, kind, device, tag, key, bytes, charge, stream, stack };
        let log = |pid| Log { pid, since: 5, events: vec![event], lost: 0 };
        let slot = &watch.ledger().processes[0];
        slot.pid.store(8, Relaxed);
        slot.since.store(5, Relaxed);
        slot.state.store(state::LIVE, Relaxed);
        assert_eq!(ends(&watch, &[log(7), log(8)]), [Some(70), None]);
    }
}
