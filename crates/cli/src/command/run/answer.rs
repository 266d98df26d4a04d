//! What happened in the run, for programs: `report.json` and `--json` are this.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::UNIX_EPOCH;

use plimsoll_guard::launch::{
    HistoryBlock, HistoryRefusal, LaunchHistory, Launched, Launcher, PeakMemory, PeakPlace,
    ProcessFigures, UnguardedProcess, can_load,
};
use plimsoll_guard::ledger::{LedgerDevice, NO_LIMIT};
use plimsoll_guard::watch::{GuardWatch, LedgerClock};
use serde::Serialize;

use super::flags::{Args, RunLimit};
use super::frame::is_python;
use super::warnings;

#[derive(Debug, Serialize)]
pub(super) struct RunReport {
    pub(super) schema_version: u32,
    pub(super) version: &'static str,
    pub(super) program: Vec<String>,
    pub(super) started_unix_seconds: f64,
    pub(super) duration_seconds: f64,
    /// How long its memory was watched: longer where child processes ran on when it had ended.
    pub(super) watched_seconds: f64,
    pub(super) exit_code: u8,
    pub(super) signal: Option<i32>,
    pub(super) limit: RunLimitReport,
    pub(super) cuda: CudaReport,
    pub(super) devices: Vec<RunDevice>,
    pub(super) processes: Vec<ProcessReport>,
    pub(super) largest: Vec<BlockReport>,
    pub(super) never_freed: NeverFreedReport,
    pub(super) refused: Vec<RefusalReport>,
    pub(super) unguarded: Vec<UnguardedReport>,
    pub(super) warnings: Vec<String>,
    /// How many of them, from the first, were shown before the program began.
    #[serde(skip)]
    pub(super) shown: usize,
    /// Those of the warnings that are shown even with `-q`.
    #[serde(skip)]
    pub(super) alarming: Vec<&'static str>,
    /// Why it is not known what the program used, where it is not.
    #[serde(skip)]
    pub(super) uncounted: Option<&'static str>,
    #[serde(skip)]
    pub(super) history: LaunchHistory,
}

/// How the limit was enforced.
#[derive(Debug, Serialize)]
pub(super) struct RunLimitReport {
    /// `hard`, `unavailable`, or `none` with `--no-limit`.
    pub(super) limit_type: &'static str,
    pub(super) verified: bool,
    pub(super) methods_applied: Vec<String>,
    pub(super) limit_bytes: Option<u64>,
    /// The lowest limit of any device that was used: on unified memory at most the system's memory
    /// less `keep_free_bytes`.
    pub(super) effective_limit_bytes: Option<u64>,
    pub(super) reserve_bytes: u64,
    pub(super) keep_free_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct CudaReport {
    /// Whether any process used the driver through the guard.
    pub(super) used: bool,
    /// Whether the loader finds the driver at all.
    pub(super) driver_found: bool,
    pub(super) driver_version: Option<String>,
    /// Programs that the guard was loaded into.
    pub(super) guarded_programs: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct RunDevice {
    /// Its place in the ledger, by which its history is found.
    #[serde(skip)]
    pub(super) place: u8,
    pub(super) device: String,
    pub(super) total_bytes: u64,
    pub(super) unified: bool,
    pub(super) limit_bytes: Option<u64>,
    pub(super) peak_bytes: u64,
    pub(super) peak_at_seconds: f64,
    /// The highest charge that lasted for 20 ms, as a tool that samples sees it; null where events
    /// are missing.
    pub(super) lasting_peak_bytes: Option<u64>,
    /// The peak of the driver's own memory, which is part of the peak.
    pub(super) driver_bytes: Option<u64>,
    pub(super) refused: u64,
    pub(super) refused_bytes: u64,
    pub(super) within_limit: Option<bool>,
    pub(super) verified: bool,
    /// The most that the driver reported beyond what was counted; null where it was not read.
    pub(super) residue_bytes: Option<u64>,
    /// Still charged at the end, by processes that still run.
    pub(super) held_at_end_bytes: u64,
    pub(super) source: &'static str,
    /// What was live when the charge was highest; null where events are missing.
    pub(super) at_peak: Option<PeakReport>,
}

/// What was live at the peak of a device, by the place that allocated it.
#[derive(Debug, Serialize)]
pub(super) struct PeakReport {
    pub(super) at_seconds: f64,
    pub(super) bytes: u64,
    pub(super) places: Vec<PlaceReport>,
    /// What places hold that are not listed.
    pub(super) elsewhere_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct PlaceReport {
    pub(super) pid: u32,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
    /// Whether the driver took it for itself.
    pub(super) by_driver: bool,
    /// Native frames, the innermost first; empty without `--stacks`.
    pub(super) stack: Vec<String>,
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
    /// The most that it had allocated at once; null where events of it are missing.
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
pub(super) struct NeverFreedReport {
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

/// A process that the guard was not loaded into.
#[derive(Debug, Serialize)]
pub(super) struct UnguardedReport {
    pub(super) pid: u32,
    pub(super) program: String,
    /// Whether it has the CUDA driver loaded; null where that could not be read.
    pub(super) uses_cuda: Option<bool>,
    pub(super) why: String,
}

impl From<&UnguardedProcess> for UnguardedReport {
    fn from(process: &UnguardedProcess) -> UnguardedReport {
        let UnguardedProcess { pid, program, uses_cuda, why } = process.clone();
        UnguardedReport { pid, program, uses_cuda, why }
    }
}

impl RunReport {
    /// Whether all GPU memory is known to have stayed within the limit; only `--strict` asks.
    pub(super) fn is_within_limit(&self, strict: bool) -> bool {
        let reached = self.cuda.guarded_programs > 0;
        let held = || self.escaped().next().is_none() && !self.is_over();
        !strict || reached && held() && self.uncounted.is_none()
    }

    /// The devices on which more was counted than their limit.
    pub(super) fn over(&self) -> impl Iterator<Item = &RunDevice> {
        self.devices.iter().filter(|device| device.within_limit == Some(false))
    }

    pub(super) fn is_over(&self) -> bool {
        self.over().next().is_some()
    }

    /// Whether call stacks were kept, and some of them are of the Python interpreter: native
    /// stacks do not have Python's own lines.
    pub(super) fn lacks_python_lines(&self) -> bool {
        let at_peak = self.devices.iter().filter_map(|device| device.at_peak.as_ref());
        let places = at_peak.flat_map(|peak| peak.places.iter().map(|place| &place.stack));
        let blocks = self.largest.iter().map(|block| &block.stack);
        places.chain(blocks).flatten().any(|frame| is_python(frame))
    }

    /// Processes that the guard was not loaded into and that use the GPU, or may.
    pub(super) fn escaped(&self) -> impl Iterator<Item = &UnguardedReport> {
        self.unguarded.iter().filter(|process| process.uses_cuda != Some(false))
    }
}

/// The name of a device, by its place in the ledger: its number in the process that used it first.
/// Where processes see different devices under one number, with a part of its UUID.
fn name(device: u8, watch: &GuardWatch) -> String {
    let number = |device: &LedgerDevice| device.ordinal.load(Relaxed);
    let Some(known) = watch.ledger().devices.get(usize::from(device)) else {
        return format!("cuda:{device}");
    };
    let name = format!("cuda:{}", number(known));
    if watch.devices().filter(|other| number(other) == number(known)).count() < 2 {
        return name;
    }
    let uuid = known.uuid[0].load(Relaxed).to_le_bytes();
    format!("{name} (GPU-{:08x})", u32::from_be_bytes([uuid[0], uuid[1], uuid[2], uuid[3]]))
}

/// What `run` knows of a program that has ended, besides its history.
pub(super) struct RunFacts<'a> {
    pub(super) args: &'a Args,
    pub(super) limit: &'a RunLimit,
    /// What was shown before the program began.
    pub(super) notes: Vec<String>,
    pub(super) launcher: &'a Launcher,
    pub(super) launched: &'a Launched,
}

/// Puts the report together.
pub(super) fn collect(facts: RunFacts<'_>, history: LaunchHistory) -> RunReport {
    let RunFacts { args, limit, notes, launcher, launched } = facts;
    let watch = launcher.watch();
    let blocks =
        |blocks: &[HistoryBlock]| blocks.iter().map(|block| block_report(block, watch)).collect();
    let devices = devices(watch, launched.clock, &history);
    let began = launched.began.duration_since(UNIX_EPOCH);
    let shown = notes.len();
    let mut warnings = notes;
    warnings.extend(warnings::all(launcher, launched, &history));
    RunReport {
        schema_version: 1,
        version: env!("CARGO_PKG_VERSION"),
        program: args.words().iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        started_unix_seconds: began.map_or(0.0, |since| since.as_secs_f64()),
        duration_seconds: launched.lasted.as_secs_f64(),
        watched_seconds: launched.watched.as_secs_f64(),
        exit_code: launched.code,
        signal: launched.signal,
        limit: limit_report(limit, &devices),
        cuda: cuda_report(watch, !history.processes.is_empty()),
        processes: history.processes.iter().map(|p| process_report(p, &history)).collect(),
        largest: blocks(&history.largest),
        never_freed: NeverFreedReport {
            bytes: history.never_freed.bytes,
            blocks: history.never_freed.blocks,
            largest: blocks(&history.never_freed.largest),
        },
        refused: history.refused.iter().map(|refusal| refusal_report(refusal, watch)).collect(),
        unguarded: launched.unguarded.iter().map(UnguardedReport::from).collect(),
        warnings,
        shown,
        alarming: warnings::alarming(launcher),
        uncounted: warnings::uncounted(launcher),
        devices,
        history,
    }
}

fn limit_report(limit: &RunLimit, devices: &[RunDevice]) -> RunLimitReport {
    let used = !devices.is_empty();
    let mut methods_applied = Vec::new();
    if limit.limit.is_some() && used {
        methods_applied.push("guard".to_string());
    }
    if let (Some(mps), true) = (&limit.mps, used) {
        methods_applied.push(format!("MPS client limit {} ({})", mps.value, mps.pipes.display()));
    }
    RunLimitReport {
        limit_type: match (limit.limit, used) {
            (None, _) => "none",
            (Some(_), true) => "hard",
            (Some(_), false) => "unavailable",
        },
        verified: used && devices.iter().all(|device| device.verified),
        methods_applied,
        limit_bytes: limit.limit.map(plimsoll::Bytes::get),
        effective_limit_bytes: devices.iter().filter_map(|device| device.limit_bytes).min(),
        reserve_bytes: limit.settings.reserve,
        keep_free_bytes: limit.settings.keep_free,
    }
}

fn cuda_report(watch: &GuardWatch, used: bool) -> CudaReport {
    let version = watch.ledger().driver_version.load(Relaxed);
    CudaReport {
        used,
        driver_found: used || can_load("libcuda.so.1"),
        driver_version: (version > 0)
            .then(|| format!("CUDA {}.{}", version / 1000, version % 1000 / 10)),
        guarded_programs: watch.ledger().loaded.load(Relaxed),
    }
}

/// What the driver took for itself at most; `None` where no context could be measured, nor
/// anything that came after it.
fn driver_bytes(device: &LedgerDevice) -> Option<u64> {
    let most = device.driver_peak.load(Relaxed);
    (most > 0 || device.context.load(Relaxed) != u64::MAX).then_some(most)
}

fn devices(watch: &GuardWatch, clock: LedgerClock, history: &LaunchHistory) -> Vec<RunDevice> {
    let is_complete = history.lost == 0 && history.lists.missing == 0;
    let known = |(_, device): &(u8, &LedgerDevice)| device.state.load(Acquire) == 2;
    let report = |(place, device): (u8, &LedgerDevice)| {
        let budget = device.budget.load(Relaxed);
        let peak = device.peak.load(Relaxed);
        let limit = (budget != NO_LIMIT).then_some(budget);
        let observed =
            device.baseline.load(Relaxed) != u64::MAX && device.observed.load(Relaxed) > 0;
        RunDevice {
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
            lasting_peak_bytes: is_complete
                .then(|| history.courses.get(&place).map_or(0, |course| course.lasting_peak)),
            driver_bytes: driver_bytes(device),
            refused: device.refused.load(Relaxed),
            refused_bytes: device.refused_bytes.load(Relaxed),
            within_limit: limit.map(|limit| peak <= limit),
            verified: device.verified.load(Relaxed) == 1,
            residue_bytes: observed.then(|| device.residue_most.load(Relaxed)),
            held_at_end_bytes: device.used.load(Relaxed),
            source: "counted by the guard; the driver's own measured around its calls",
            at_peak: history.at_peak.get(&place).filter(|_| is_complete).map(peak_report),
        }
    };
    // In the ledger they are in the order of their first use.
    let mut all: Vec<(u8, &LedgerDevice)> =
        (0..).zip(&watch.ledger().devices).filter(known).collect();
    all.sort_by_key(|(_, device)| device.ordinal.load(Relaxed));
    all.into_iter().map(report).collect()
}

fn peak_report(peak: &PeakMemory) -> PeakReport {
    let place = |place: &PeakPlace| PlaceReport {
        pid: place.who.0,
        bytes: place.bytes,
        blocks: place.blocks,
        by_driver: place.is_drivers,
        stack: place.stack.clone(),
    };
    PeakReport {
        at_seconds: peak.at,
        bytes: peak.bytes,
        places: peak.places.iter().map(place).collect(),
        elsewhere_bytes: peak.elsewhere,
    }
}

fn process_report(process: &ProcessFigures, history: &LaunchHistory) -> ProcessReport {
    let never_freed = history.never_freed.by_process.get(&process.who);
    let (bytes, blocks) = never_freed.copied().unwrap_or_default();
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

fn block_report(block: &HistoryBlock, watch: &GuardWatch) -> BlockReport {
    BlockReport {
        pid: block.who.0,
        device: name(block.device, watch),
        kind: block.kind.name(),
        bytes: block.bytes,
        from_seconds: block.from,
        to_seconds: block.to,
        stack: block.stack.clone(),
    }
}

fn refusal_report(refusal: &HistoryRefusal, watch: &GuardWatch) -> RefusalReport {
    RefusalReport {
        pid: refusal.pid,
        device: name(refusal.device, watch),
        kind: refusal.kind.name(),
        bytes: refusal.bytes,
        at_seconds: refusal.at,
    }
}
