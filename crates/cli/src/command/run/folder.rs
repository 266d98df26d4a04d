//! The private place: where the guard is unpacked and its counters live.
//!
//! It must allow programs to be loaded from it (some mount /tmp or /dev/shm without), its
//! name must survive in `LD_PRELOAD` (no space, no colon), and nobody else may write to it.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use plimsoll_guard::watch;
use tempfile::TempDir;

use super::sys;

const LIBRARY: &str = "libplimsoll_guard.so";
const PREFIX: &str = "plimsoll-run-";
/// The file of the counters, or a link to it.
const LEDGER: &str = "ledger";

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
    tempfile::Builder::new().prefix(PREFIX).permissions(mode).tempdir_in(parent)
}

/// Removes what runs of this user have left behind that were killed, or ended before their
/// programs' children, once those are gone too.
fn sweep(parent: &Path) {
    /// A run that begins makes its folder first, and then the ledger by which it is known.
    const YOUNG: Duration = Duration::from_secs(60);
    let me = sys::user();
    let is_left = |folder: &PathBuf| {
        let Ok(facts) = fs::symlink_metadata(folder) else { return false };
        let age = facts.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        facts.is_dir()
            && facts.uid() == me
            && age > YOUNG
            && !watch::is_in_use(&folder.join(LEDGER))
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let left: Vec<PathBuf> = ours.map(|entry| entry.path()).filter(is_left).collect();
    for folder in unnamed(left) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Those folders that no process has in its environment, or something of in its memory: the last
/// look before they are removed, as a program that was started may not have come to its ledger.
fn unnamed(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    if folders.is_empty() {
        return folders;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_number = |name: OsString| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    for process in processes.filter(|entry| is_number(entry.file_name())) {
        let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        let texts = ["environ", "maps"].map(read);
        let has = |folder: &[u8]| {
            texts.iter().any(|text| text.windows(folder.len()).any(|part| part == folder))
        };
        folders.retain(|folder| !has(folder.as_os_str().as_encoded_bytes()));
    }
    folders
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
    if let Some(data) = &folder.data {
        // By which it is seen that the library is in use.
        symlink(data.path().join(LEDGER), folder.code.path().join(LEDGER))?;
    }
    let mut library = OpenOptions::new();
    let mut library = library.write(true).create_new(true).mode(0o644).open(folder.library())?;
    library.write_all(plimsoll_guard::LIBRARY)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::chown;
    use std::process::Command;
    use std::time::SystemTime;

    use plimsoll_guard::watch::{GuardSettings, GuardWatch};

    use super::*;

    /// A folder as a run leaves it, an hour ago.
    fn old(parent: &Path, name: &str) -> PathBuf {
        let folder = parent.join(format!("{PREFIX}{name}"));
        fs::create_dir(&folder).unwrap();
        age(&folder);
        folder
    }

    fn age(folder: &Path) {
        let then = SystemTime::now() - Duration::from_secs(3600);
        File::open(folder).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn what_a_killed_run_has_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let (dead, named) = (old(parent, "dead"), old(parent, "named"));
        let (used, linked) = (old(parent, "used"), old(parent, "linked"));
        let watch = GuardWatch::create(&used, &GuardSettings::default()).unwrap();
        std::os::unix::fs::symlink(used.join(LEDGER), linked.join(LEDGER)).unwrap();
        age(&used);
        age(&linked);
        let elsewhere = parent.join("somebodys");
        fs::create_dir(&elsewhere).unwrap();
        age(&elsewhere);
        std::os::unix::fs::symlink(&elsewhere, parent.join(format!("{PREFIX}link"))).unwrap();
        let young = private(parent).unwrap();
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("60").env("OF_A_RUN", &named).spawn().unwrap();
        sweep(parent);
        let there = || [&dead, &named, &used, &linked].map(|folder| folder.exists());
        assert_eq!(there(), [false, true, true, true]);
        assert!(elsewhere.exists() && young.path().exists());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(watch);
        sweep(parent);
        assert_eq!(there(), [false; 4], "nobody has them any more");
    }

    #[test]
    fn folders_of_other_users_cost_nothing_and_stay() {
        let parent = tempfile::tempdir().unwrap();
        let others: Vec<PathBuf> = (0..300).map(|at| old(parent.path(), &at.to_string())).collect();
        if others.iter().any(|folder| chown(folder, Some(65534), None).is_err()) {
            eprintln!("skipped: only root can give a folder away");
            return;
        }
        let began = std::time::Instant::now();
        sweep(parent.path());
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
        assert!(others.iter().all(|folder| folder.exists()));
    }

    #[test]
    fn the_folder_of_the_code_is_in_use_while_the_counters_are() {
        let folder = make().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let code = folder.library().parent().unwrap().join(LEDGER);
        assert!(watch::is_in_use(&code));
        drop(watch);
        assert!(!watch::is_in_use(&code));
    }
}
