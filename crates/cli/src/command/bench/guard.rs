//! The guard around `bench`: where the run may use CUDA, the program starts itself once more
//! with the guard loaded, as `plimsoll run` starts others. It stays the same process: its
//! number, its streams, its signals and its exit code are what they were.
//!
//! What cannot be guarded runs as it would without, and the report says why.

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
use plimsoll_guard::inside::Inside;
use plimsoll_guard::ledger::Process;
use plimsoll_guard::watch::{Settings, VARIABLE, Watch};

use crate::command::run::{KEEP_FREE, RESERVE, child, folder, reach, sys};

/// Set to anything, it keeps the guard away; the flag's other spelling.
const OFF: &str = "PLIMSOLL_NO_GUARD";
/// What the first start tells the second: its process, and the folders to remove at the end.
const AGAIN: &str = "PLIMSOLL_BENCH_GUARDED";
/// Any of these is the driver.
const DRIVERS: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The folders of the guard, removed when the run is over.
#[derive(Debug, Default)]
pub(super) struct Folders(Vec<PathBuf>);

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // What is left behind is a few files in a folder for such.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Whether this run is under the guard, and what to remove after it. Starts the program again
/// where it is not yet and should be, and then does not return.
pub(super) fn around(wanted: bool) -> (Guarded, Folders) {
    if let Some(folders) = started_again() {
        return (found(true), folders);
    }
    if !wanted || std::env::var_os(OFF).is_some() {
        return (Guarded::No, Folders::default());
    }
    if std::env::var_os(VARIABLE).is_some() {
        // Under `plimsoll run`: its guard is there already, and so is its line.
        return (found(false), Folders::default());
    }
    if !DRIVERS.iter().any(|name| sys::can_load(name)) {
        return (Guarded::No, Folders::default());
    }
    let why = match start_again() {
        Ok(never) => match never {},
        Err(error) => format!("{error:#}"),
    };
    (Guarded::Not(why), Folders::default())
}

fn found(ours: bool) -> Guarded {
    match Inside::find() {
        Ok(inside) => Guarded::Yes(Arc::new(Here { inside, ours, process: OnceLock::new() })),
        Err(why) => Guarded::Not(why),
    }
}

/// The folders that the first start has left, if this is the second.
fn started_again() -> Option<Folders> {
    let told = std::env::var_os(AGAIN)?;
    let told = told.to_str()?;
    let mut parts = told.split(':');
    // Children see the variable too, and are not meant.
    (parts.next()?.parse() == Ok(std::process::id()))
        .then(|| Folders(parts.map(PathBuf::from).collect()))
}

enum Never {}

fn start_again() -> anyhow::Result<Never> {
    let program = std::env::current_exe().context("this program's own file")?;
    if let Some(why) = reach::why_not(&program) {
        anyhow::bail!(why);
    }
    let folder = folder::make()?;
    let settings = Settings { meminfo: "/proc/meminfo".into(), ..Settings::default() };
    drop(Watch::create(folder.path(), &settings)?);
    let data = folder.path().to_path_buf();
    let mut command = Command::new(program);
    let mut words = std::env::args_os();
    command.arg0(words.next().unwrap_or_default()).args(words);
    command.env("LD_PRELOAD", child::preload(&folder)).env(VARIABLE, &data);
    let (code, memory) = folder.into_paths();
    let folders = Folders([Some(code), memory].into_iter().flatten().collect());
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
struct Here {
    inside: Inside,
    /// Whether the line is ours to draw.
    ours: bool,
    process: OnceLock<&'static Process>,
}

impl Here {
    /// What this process holds; nothing before the driver was called.
    fn process(&self) -> Option<&'static Process> {
        if let Some(process) = self.process.get() {
            return Some(process);
        }
        let process = self.inside.process()?;
        Some(self.process.get_or_init(|| process))
    }
}

/// Slot 0 has the tag 1: without a tag it is nobody's.
const fn tag_of(slot: usize) -> usize {
    slot + 1
}

impl BenchGuard for Here {
    fn hold(&self, limit: Bytes, keep_free: Option<Bytes>) -> Bytes {
        if self.ours {
            // A small line is not used up by what is held back below it.
            let reserve = RESERVE.min(limit / 16);
            let keep_free = keep_free.unwrap_or(KEEP_FREE);
            self.inside.set_limit(limit.get(), reserve.get(), keep_free.get());
        }
        self.inside.limit().map_or(limit, |held| limit.min(Bytes(held)))
    }

    fn enter(&self, slot: usize) -> Box<dyn Any> {
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
        let sum = |of: fn(&plimsoll_guard::ledger::Device) -> u64| devices().map(of).sum::<u64>();
        Some(GuardTotals {
            shared_peak: Bytes(process.tagged_peak[0].load(Relaxed)),
            peak: Bytes(devices().map(|device| device.peak.load(Relaxed)).max().unwrap_or(0)),
            verified: devices().all(|device| device.verified.load(Relaxed) == 1),
            refused: sum(|device| device.refused.load(Relaxed)),
            refused_bytes: Bytes(sum(|device| device.refused_bytes.load(Relaxed))),
        })
    }
}
