//! The private place: where the guard is unpacked and its counters live.
//!
//! It must allow programs to be loaded from it (some mount /tmp or /dev/shm without), its
//! name must survive in `LD_PRELOAD` (no space, no colon), and nobody else may write to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
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

    /// Leaves it for those of the program's children that still run: what they start looks
    /// for the guard there.
    pub(in crate::command) fn leave(self) {
        self.into_paths();
    }

    /// Where both are; they are the caller's from now on.
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
    let roomy = sys::mount(memory).ok()?.free >= ROOM;
    roomy.then(|| tempfile::Builder::new().prefix(PREFIX).tempdir_in(memory).ok()).flatten()
}

/// Makes it, with the guard in it.
pub(in crate::command) fn make() -> anyhow::Result<Folder> {
    if plimsoll_guard::LIBRARY.is_empty() {
        bail!("`run` needs Linux on x86-64 or aarch64: the guard is not in this build");
    }
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
    // Made for this user alone, by its own rules.
    let code = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
    let folder = Folder { code, data: in_memory() };
    fs::write(folder.library(), plimsoll_guard::LIBRARY)?;
    Ok(folder)
}
