//! What became of the run, for programs: `report.json` and `--json` are this.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::UNIX_EPOCH;

use plimsoll_guard::ledger::{LedgerDevice, NO_LIMIT};
use plimsoll_guard::watch::GuardWatch;
use serde::Serialize;

use super::child::Ended;
use super::events::{self, Block, History};
use super::flags::{Args, Line};
use super::gather::{Figures, Gathered, Source, Who};
use super::reach::Reach;
use super::stacks::Stacks;
use super::trace::Trace;
use super::tree::Unguarded;
use super::{sys, warnings};

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
    /// Those of the warnings that even a quiet run gives.
    #[serde(skip)]
    pub(super) alarming: Vec<&'static str>,
    /// Why it is not known what the program used, where it is not.
    #[serde(skip)]
    pub(super) passed: Option<&'static str>,
    #[serde(skip)]
    pub(super) history: History,
}

/// What the limit was worth.
#[derive(Debug, Serialize)]
pub(super) struct Limit {
    /// `hard`, `unavailable`, or `none` with `--no-limit`.
    pub(super) limit_type: &'static str,
    pub(super) verified: bool,
    pub(super) methods_applied: Vec<String>,
    pub(super) limit_bytes: Option<u64>,
    /// The least limit of any device that was used: on unified memory never more than the
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
    /// Whether the limit held everybody; asked only where `--strict` wants to know.
    pub(super) fn is_held(&self, strict: bool) -> bool {
        let over = self.devices.iter().any(|device| device.within_limit == Some(false));
        !strict || self.escaped().next().is_none() && !over && self.passed.is_none()
    }

    /// Processes that the guard did not reach and that use the GPU, or may.
    pub(super) fn escaped(&self) -> impl Iterator<Item = &Unguarded> {
        self.unguarded.iter().filter(|process| process.uses_cuda != Some(false))
    }
}

/// What a device is called.
pub(super) fn name(device: u8, watch: &GuardWatch) -> String {
    let known = watch.ledger().devices.get(usize::from(device));
    format!("cuda:{}", known.map_or(u32::from(device), |d| d.ordinal.load(Relaxed)))
}

/// What `run` knows of the program when it has ended.
pub(super) struct Facts<'a> {
    pub(super) args: &'a Args,
    pub(super) line: &'a Line,
    pub(super) reach: &'a Reach,
    pub(super) watch: &'a GuardWatch,
    pub(super) ended: &'a Ended,
    pub(super) gathered: &'a Gathered,
}

/// Reads everything that the guard has left, and writes the trace on the way.
pub(super) fn collect(facts: &Facts<'_>, trace: &mut Trace<'_>) -> Report {
    let Facts { args, line, reach, watch, ended, gathered } = facts;
    let lasted = ended.lasted.as_secs_f64();
    let figures = gathered.processes(watch);
    let sources = gathered.sources(watch, &figures);
    let unified = watch.unified();
    let history = events::merge(&sources, gathered, &unified, watch.clock(), lasted, trace);
    let lists = Lists::of(&sources, &figures);
    let blocks = || history.largest.iter().chain(&history.left.largest);
    let stacks = Stacks::of(blocks(), gathered, watch);
    let shown = |blocks: &[Block]| blocks.iter().map(|b| stacks.report(b, watch)).collect();
    let devices = devices(watch, &history, history.lost == 0 && lists.missing == 0);
    let mut warnings: Vec<String> = line.notes.clone();
    warnings.extend(reach.why_not.clone());
    let said = warnings.len();
    warnings.extend(warnings::all(watch, ended, &history, &lists));
    Report {
        schema_version: 1,
        version: env!("CARGO_PKG_VERSION"),
        program: args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        started_unix_seconds: ended
            .began
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64()),
        duration_seconds: lasted,
        exit_code: ended.code,
        signal: ended.signal,
        limit: limit(line, &devices),
        cuda: cuda(watch, !figures.is_empty()),
        processes: figures.iter().map(|process| report(process, &history)).collect(),
        largest: shown(&history.largest),
        never_freed: NeverFreed {
            bytes: history.left.bytes,
            blocks: history.left.blocks,
            largest: shown(&history.left.largest),
        },
        refused: refusals(watch, &history),
        unguarded: ended.unguarded.clone(),
        warnings,
        said,
        alarming: warnings::alarming(watch),
        passed: warnings::passed(watch),
        devices,
        history,
    }
}

/// Which processes and which lists of events belong together.
pub(super) struct Lists {
    /// Processes without a list.
    pub(super) missing: usize,
    /// Lists whose process is not known any more: another was given its slot.
    pub(super) orphans: usize,
    /// Processes that are known.
    pub(super) listed: usize,
}

impl Lists {
    fn of(sources: &[Source], figures: &[Figures]) -> Lists {
        let listed: HashSet<Who> = figures.iter().map(|process| process.who).collect();
        let noted: HashSet<Who> = sources.iter().map(|source| source.who).collect();
        Lists {
            missing: listed.difference(&noted).count(),
            orphans: noted.difference(&listed).count(),
            listed: figures.len(),
        }
    }
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

fn cuda(watch: &GuardWatch, used: bool) -> Cuda {
    let version = watch.ledger().driver_version.load(Relaxed);
    Cuda {
        used,
        driver_found: used || sys::can_load("libcuda.so.1"),
        driver_version: (version > 0)
            .then(|| format!("CUDA {}.{}", version / 1000, version % 1000 / 10)),
        guarded_programs: watch.ledger().loaded.load(Relaxed),
    }
}

fn devices(watch: &GuardWatch, history: &History, is_whole: bool) -> Vec<DeviceReport> {
    let clock = watch.clock();
    let known = |(_, device): &(u8, &LedgerDevice)| device.state.load(Acquire) == 2;
    let report = |(place, device): (u8, &LedgerDevice)| {
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
            lasting_peak_bytes: is_whole
                .then(|| history.courses.get(&place).map_or(0, |(_, lasting)| *lasting)),
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
    let mut all: Vec<(u8, &LedgerDevice)> =
        (0..).zip(&watch.ledger().devices).filter(known).collect();
    all.sort_by_key(|(_, device)| device.ordinal.load(Relaxed));
    all.into_iter().map(report).collect()
}

fn report(process: &Figures, history: &History) -> ProcessReport {
    let (bytes, blocks) = history.left.by.get(&process.who).copied().unwrap_or_default();
    ProcessReport {
        pid: process.who.0,
        program: process.program.clone(),
        running: process.running,
        allocations: process.allocations,
        frees: process.frees,
        refused: process.refused,
        failed_by_driver: process.failed,
        frees_of_others: process.frees_of_others,
        peak_bytes: history.peaks.get(&process.who).copied(),
        never_freed_bytes: bytes,
        never_freed_blocks: blocks,
    }
}

fn refusals(watch: &GuardWatch, history: &History) -> Vec<RefusalReport> {
    let report = |refusal: &events::Refusal| RefusalReport {
        pid: refusal.pid,
        device: name(refusal.device, watch),
        kind: refusal.kind.name(),
        bytes: refusal.bytes,
        at_seconds: refusal.at,
    };
    history.refused.iter().map(report).collect()
}
