//! The private place: where the guard is unpacked and its counters live.
//!
//! It must allow programs to be loaded from it (some mount /tmp or /dev/shm without), its
//! name must survive in `LD_PRELOAD` (no space, no colon), and nobody else may write to it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plimsoll_guard::{process, watch};
use tempfile::TempDir;

use super::sys;

const LIBRARY: &str = "libplimsoll_guard.so";
const PREFIX: &str = "plimsoll-run-";

/// The folders of a run, gone at its end.
pub(in crate::command) struct Folder {
    code: TempDir,
    /// In memory where there is such a place: a list on a disk costs three times as much.
    data: Option<TempDir>,
}

impl Folder {
    /// Where the counters and the lists of events are.
    pub(in crate::command) fn path(&self) -> &Path {
        self.data.as_ref().unwrap_or(&self.code).path()
    }

    /// Where both are; they are the caller's from now on, and stay when they are forgotten.
    pub(in crate::command) fn into_paths(self) -> (PathBuf, Option<PathBuf>) {
        (self.code.keep(), self.data.map(TempDir::keep))
    }

    /// The guard.
    pub(in crate::command) fn library(&self) -> PathBuf {
        self.code.path().join(LIBRARY)
    }
}

/// A folder in memory, if there is room for the lists of a few processes.
fn in_memory() -> Option<TempDir> {
    const ROOM: u64 = 256 << 20;
    let memory = Path::new("/dev/shm");
    sweep(memory);
    let roomy = sys::mount(memory).ok()?.free >= ROOM;
    roomy.then(|| private(memory).ok()).flatten()
}

/// A new folder that nobody else may write to, whatever the user's umask allows: what is in it is
/// loaded into programs. Those that become another user may still load it.
fn private(parent: &Path) -> io::Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().prefix(&prefix()).permissions(mode).tempdir_in(parent)
}

/// Names whose folder it is: the process's number, when it started, and the space in which its
/// number means something, as containers may share a folder.
fn prefix() -> String {
    let me = process::own_pid();
    format!("{PREFIX}{}-{me}-{}-", space(), process::start_time(me))
}

/// The number of the kernel's space of process numbers; 0 where it does not tell.
fn space() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |facts| facts.ino())
}

/// Removes what runs have left behind that were killed, or ended before their programs' children,
/// once those are gone too. What is another user's cannot be removed, and stays.
fn sweep(parent: &Path) {
    let here = space();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let numbers: Vec<u64> = owner.split('-').map_while(|part| part.parse().ok()).collect();
        let [space, pid, start, ..] = numbers[..] else { continue };
        let alive = u32::try_from(pid).is_ok_and(|pid| process::is_alive(pid, start));
        let gone = here != 0 && space == here && !alive;
        if gone && !is_in_use(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a process has a folder in its environment, or something from it in its memory.
fn is_in_use(folder: &Path) -> bool {
    let folder = folder.as_os_str().as_encoded_bytes();
    let has = |file: PathBuf| {
        let bytes = fs::read(file).unwrap_or_default();
        bytes.windows(folder.len()).any(|part| part == folder)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
        .any(|entry| has(entry.path().join("environ")) || has(entry.path().join("maps")))
}

/// Makes it, with the guard in it.
pub(in crate::command) fn make() -> anyhow::Result<Folder> {
    if plimsoll_guard::LIBRARY.is_empty() {
        bail!("`run` needs Linux on x86-64 or aarch64: the guard is not in this build");
    }
    watch::files_may_be_made()?;
    let mut tried = Vec::new();
    for parent in candidates() {
        match try_in(&parent) {
            Ok(folder) => return Ok(folder),
            Err(error) => tried.push(format!("{}: {error:#}", parent.display())),
        }
    }
    bail!(
        "no place to unpack the guard ({}); set TMPDIR to a folder from which libraries may be loaded",
        tried.join("; ")
    )
}

fn candidates() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = variable("HOME").map(|home| home.join(".cache"));
    let named = [
        variable("TMPDIR"),
        variable("XDG_RUNTIME_DIR"),
        Some("/tmp".into()),
        cache,
        Some("/var/tmp".into()),
    ];
    named.into_iter().flatten().collect()
}

fn try_in(parent: &Path) -> anyhow::Result<Folder> {
    let text = parent.to_str().context("its name is not text")?;
    if !parent.is_absolute() || text.contains([' ', ':', '\n', '\t']) || text.len() > 300 {
        bail!("its name cannot stand in LD_PRELOAD");
    }
    if sys::mount(parent)?.noexec {
        bail!("mounted noexec");
    }
    sweep(parent);
    let folder = Folder { code: private(parent)?, data: in_memory() };
    let mut library = OpenOptions::new();
    let mut library = library.write(true).create_new(true).mode(0o644).open(folder.library())?;
    library.write_all(plimsoll_guard::LIBRARY)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_has_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let dead = |space: u64, rest: &str| format!("{PREFIX}{space}-4000000000-7-{rest}");
        let names = [
            dead(space(), "a"),
            dead(space(), "left"),
            dead(space() + 1, "a"),
            format!("{PREFIX}old"),
            format!("{}x", prefix()),
        ];
        names.iter().for_each(|name| fs::create_dir(at(name)).unwrap());
        let left = at(&names[1]);
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").env("OF_A_RUN", &left).spawn().unwrap();
        sweep(parent.path());
        assert_eq!(names.map(|name| at(&name).exists()), [false, true, true, true, true]);
        child.kill().unwrap();
        child.wait().unwrap();
        sweep(parent.path());
        assert!(!left.exists());
    }
}
