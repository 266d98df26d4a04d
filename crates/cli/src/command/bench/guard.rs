//! The guard around `bench`. Where the run may use CUDA, this process re-executes itself with the
//! guard preloaded, as `plimsoll run` starts other programs. It stays the same process: its
//! number, streams, signals and exit code do not change.
//!
//! A run that cannot be guarded goes on without the guard, and the report says why.

use std::any::Any;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use plimsoll::Bytes;
use plimsoll_bench::workload::{BenchGuard, GuardTotals, Guarded};
use plimsoll_guard::client::GuardClient;
use plimsoll_guard::launch::{self, Launcher};
use plimsoll_guard::ledger::{LedgerProcess, TAGS};
use plimsoll_guard::watch::{GuardSettings, VARIABLE};

/// Set to anything, it does the same as `--no-guard`.
const OFF: &str = "PLIMSOLL_NO_GUARD";
/// What the first execution passes to the second: its process number, and the folders to delete
/// at the end.
const AGAIN: &str = "PLIMSOLL_BENCH_GUARDED";
/// The names of the driver's library.
const DRIVERS: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The folders of the guard. Dropping them deletes them.
#[derive(Debug, Default)]
pub(super) struct Folders(Vec<PathBuf>);

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // Where that fails, a later run removes them.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Re-executes this process with the guard preloaded where it is wanted and not there yet, and then
/// does not return. Otherwise returns the guard's state and the folders to delete at the end.
pub(super) fn restart_under_guard(wanted: bool) -> (Guarded, Folders) {
    if let Some(folders) = started_again() {
        return (found(true), folders);
    }
    if !wanted || std::env::var_os(OFF).is_some() {
        return (Guarded::No, Folders::default());
    }
    if std::env::var_os(VARIABLE).is_some() {
        // Under `plimsoll run` the guard and the limit are there already.
        return (found(false), Folders::default());
    }
    if !DRIVERS.iter().any(|name| launch::can_load(name)) {
        return (Guarded::No, Folders::default());
    }
    let why = match start_again() {
        Ok(never) => match never {},
        Err(error) => format!("{error:#}"),
    };
    (Guarded::Not(why), Folders::default())
}

fn found(ours: bool) -> Guarded {
    match GuardClient::find() {
        Ok(inside) => Guarded::Yes(Arc::new(GuardHere { inside, ours, process: OnceLock::new() })),
        Err(why) => Guarded::Not(why),
    }
}

/// The folders of the first execution, if this is the second.
fn started_again() -> Option<Folders> {
    let note = std::env::var_os(AGAIN)?;
    let mut parts = note.to_str()?.split(':');
    // Child processes inherit the variable, but it is not for them.
    (parts.next()?.parse() == Ok(std::process::id()))
        .then(|| Folders(parts.map(PathBuf::from).collect()))
}

enum Never {}

fn start_again() -> anyhow::Result<Never> {
    let program = std::env::current_exe().context("this program's own file")?;
    if let Some(why) = launch::why_not_guarded(&program) {
        anyhow::bail!(why);
    }
    let settings = GuardSettings { meminfo: "/proc/meminfo".into(), ..GuardSettings::default() };
    let launcher = Launcher::prepare(&settings)?;
    let mut command = Command::new(program);
    let mut words = std::env::args_os();
    command.arg0(words.next().unwrap_or_default()).args(words);
    launcher.guard(&mut command);
    let folders = Folders(launcher.keep_folders());
    command.env(AGAIN, note(&folders.0));
    let error = command.exec();
    drop(folders);
    Err(anyhow::Error::from(error).context("cannot start again under the guard"))
}

fn note(folders: &[PathBuf]) -> OsString {
    let mut text = OsString::from(std::process::id().to_string());
    for folder in folders {
        text.push(":");
        text.push::<&Path>(folder);
    }
    text
}

/// The guard in this process.
#[derive(Debug)]
struct GuardHere {
    inside: GuardClient,
    /// Whether this run sets the limit, and not a `plimsoll run` around it.
    ours: bool,
    process: OnceLock<&'static LedgerProcess>,
}

impl GuardHere {
    /// This process in the ledger; `None` before it has called the driver.
    fn process(&self) -> Option<&'static LedgerProcess> {
        if let Some(process) = self.process.get() {
            return Some(process);
        }
        let process = self.inside.process()?;
        Some(self.process.get_or_init(|| process))
    }
}

/// Slot 0 has the tag 1, because memory without a tag belongs to no slot. There are fewer tags than
/// a run may have rows, which take turns: the tag of a row that has ended serves another.
const fn tag_of(slot: usize) -> usize {
    slot % (TAGS - 1) + 1
}

impl BenchGuard for GuardHere {
    fn hold(&self, limit: Bytes, keep_free: Option<Bytes>) -> Bytes {
        if self.ours {
            // The reserve must not use up a small limit.
            let reserve = Bytes(launch::RESERVE).min(limit / 16);
            let keep_free = keep_free.unwrap_or(Bytes(launch::KEEP_FREE));
            self.inside.set_limit(limit.get(), reserve.get(), keep_free.get());
        }
        self.inside.limit().map_or(limit, |held| limit.min(Bytes(held)))
    }

    fn enter(&self, slot: usize) -> Box<dyn Any> {
        if let Some(process) = self.process() {
            // The peak of the row that had the tag before is no peak of this one.
            let (now, peak) = (&process.tagged[tag_of(slot)], &process.tagged_peak[tag_of(slot)]);
            peak.store(now.load(Relaxed), Relaxed);
        }
        Box::new(self.inside.tag(u32::try_from(tag_of(slot)).unwrap_or(0)))
    }

    fn slot(&self, slot: usize) -> Option<(Bytes, Bytes)> {
        let process = self.process()?;
        let (now, peak) = (&process.tagged, &process.tagged_peak);
        let read = |all: &[std::sync::atomic::AtomicU64]| {
            all.get(tag_of(slot)).map(|bytes| Bytes(bytes.load(Relaxed)))
        };
        read(now).zip(read(peak))
    }

    fn whole(&self) -> Option<GuardTotals> {
        let process = self.process()?;
        let devices = || self.inside.devices();
        devices().next()?;
        let sum =
            |of: fn(&plimsoll_guard::ledger::LedgerDevice) -> u64| devices().map(of).sum::<u64>();
        Some(GuardTotals {
            shared_peak: Bytes(process.tagged_peak[0].load(Relaxed)),
            peak: Bytes(devices().map(|device| device.peak.load(Relaxed)).max().unwrap_or(0)),
            verified: devices().all(|device| device.verified.load(Relaxed) == 1),
            refused: sum(|device| device.refused.load(Relaxed)),
            refused_bytes: Bytes(sum(|device| device.refused_bytes.load(Relaxed))),
        })
    }
}
