//! The folders of a launch: one for the guard's library file, one for the ledger.
//!
//! The loader must be allowed to load libraries from the folder of the library (some systems
//! mount /tmp or /dev/shm `noexec`), its name must be valid in `LD_PRELOAD` (no space, no colon),
//! and no other user may write to it.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{LaunchError, system};
use crate::{sys, watch};

const LIBRARY: &str = "libplimsoll_guard.so";
const PREFIX: &str = "plimsoll-run-";
/// The ledger's file, or a link to it.
pub(super) const LEDGER: &str = "ledger";

/// The folders of a launch. Dropping them deletes them.
#[derive(Debug)]
pub(super) struct LaunchFolder {
    /// For the library; also for the ledger, where there is no other.
    code: TempDir,
    /// In memory where the system has such a folder: to note an event in a file on a disk costs
    /// three times as much.
    data: Option<TempDir>,
}

impl LaunchFolder {
    /// Where the ledger and the lists of events are.
    pub(super) fn path(&self) -> &Path {
        self.data.as_ref().unwrap_or(&self.code).path()
    }

    /// Keeps the folders when this is dropped, and says which.
    pub(super) fn keep(self) -> Vec<PathBuf> {
        [Some(self.code), self.data].into_iter().flatten().map(TempDir::keep).collect()
    }

    /// The guard's library.
    pub(super) fn library(&self) -> PathBuf {
        self.code.path().join(LIBRARY)
    }
}

/// A folder in memory, if it has room for the lists of a few processes.
fn in_memory() -> Option<TempDir> {
    const ROOM: u64 = 256 << 20;
    let memory = Path::new("/dev/shm");
    sweep(memory);
    let has_room = system::mount_facts(memory).ok()?.free >= ROOM;
    has_room.then(|| private(memory).ok()).flatten()
}

/// A new folder that nobody else may write to, whatever the user's umask is, because the library
/// in it is loaded into programs. Programs that become another user may still load it.
fn private(parent: &Path) -> io::Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().prefix(PREFIX).permissions(mode).tempdir_in(parent)
}

/// Removes the folders that earlier launches of this user left because they were killed, or ended
/// before the children of their programs, once nobody uses them.
fn sweep(parent: &Path) {
    /// A launch creates its folder before the ledger by which its use is known.
    const YOUNG: Duration = Duration::from_secs(60);
    let me = sys::effective_user();
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

/// Those folders that no process names in its environment or has mapped a file of. This is the
/// last check before they are removed: a program that was just started may not have opened its
/// ledger yet.
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

/// Creates the folders and writes the library file.
pub(super) fn make() -> Result<LaunchFolder, LaunchError> {
    if crate::LIBRARY.is_empty() {
        return Err(LaunchError::NotBuilt);
    }
    watch::files_may_be_made().map_err(LaunchError::Ledger)?;
    let mut tried = Vec::new();
    for parent in candidates() {
        match try_in(&parent) {
            Ok(folder) => return Ok(folder),
            Err(error) => tried.push((parent, error.to_string())),
        }
    }
    Err(LaunchError::NoFolder(tried))
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

fn try_in(parent: &Path) -> io::Result<LaunchFolder> {
    let text = parent.to_str().ok_or_else(|| io::Error::other("its name is not UTF-8"))?;
    if !parent.is_absolute() || text.contains([' ', ':', '$', '\n', '\t']) || text.len() > 300 {
        return Err(io::Error::other("its name is not valid in LD_PRELOAD"));
    }
    if system::mount_facts(parent)?.noexec {
        return Err(io::Error::other("mounted noexec"));
    }
    sweep(parent);
    let folder = LaunchFolder { code: private(parent)?, data: in_memory() };
    if let Some(data) = &folder.data {
        // By this link `sweep` sees that the library is in use.
        symlink(data.path().join(LEDGER), folder.code.path().join(LEDGER))?;
    }
    let mut library = OpenOptions::new();
    let mut library = library.write(true).create_new(true).mode(0o644).open(folder.library())?;
    library.write_all(crate::LIBRARY)?;
    Ok(folder)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::chown;
    use std::process::Command;
    use std::time::SystemTime;

    use crate::watch::tests::soon;
    use crate::watch::{GuardSettings, GuardWatch};

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
        let environment = format!("/proc/{}/environ", child.id());
        let name = named.display().to_string();
        let is_shown = || String::from_utf8_lossy(&fs::read(&environment).unwrap()).contains(&name);
        assert!(soon(is_shown), "the kernel shows its environment");
        sweep(parent);
        let there = || [&dead, &named, &used, &linked].map(|folder| folder.exists());
        assert_eq!(there(), [false, true, true, true]);
        assert!(elsewhere.exists() && young.path().exists());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(watch);
        let are_gone = || {
            sweep(parent);
            there() == [false; 4]
        };
        assert!(soon(are_gone), "nobody has them any more: {:?}", there());
    }

    /// What this thread has taken of the processor: a busy machine adds nothing to it.
    fn processor_time() -> Duration {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn folders_of_other_users_cost_nothing_and_stay() {
        let parent = tempfile::tempdir().unwrap();
        let others: Vec<PathBuf> = (0..300).map(|at| old(parent.path(), &at.to_string())).collect();
        if others.iter().any(|folder| chown(folder, Some(65534), None).is_err()) {
            eprintln!("skipped: only root can give a folder away");
            return;
        }
        let began = processor_time();
        sweep(parent.path());
        let took = processor_time() - began;
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert!(others.iter().all(|folder| folder.exists()));
    }

    #[test]
    fn the_folder_of_the_code_is_in_use_while_the_counters_are() {
        let folder = make().unwrap();
        let watch = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        let code = folder.library().parent().unwrap().join(LEDGER);
        assert!(watch::is_in_use(&code));
        drop(watch);
        assert!(soon(|| !watch::is_in_use(&code)));
    }
}
