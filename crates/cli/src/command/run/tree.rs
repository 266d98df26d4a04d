//! The program's children, looked at now and then from outside: those that run without the
//! guard hold memory that nobody counts, so they are reported.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A process of the tree that the guard is not in.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Unguarded {
    pub(super) pid: u32,
    pub(super) program: String,
    /// Whether the CUDA driver is in it; null where that could not be read.
    pub(super) uses_cuda: Option<bool>,
    pub(super) why: String,
}

/// What is known of the tree.
#[derive(Debug)]
pub(super) struct Tree {
    root: u32,
    library: String,
    /// Everybody who was seen to belong to it: a parent may end before its children.
    members: HashSet<u32>,
    seen: HashMap<(u32, PathBuf), Option<Unguarded>>,
}

impl Tree {
    pub(super) fn new(root: u32, library: &Path) -> Tree {
        let library = library.display().to_string();
        Tree { root, library, members: HashSet::from([root]), seen: HashMap::new() }
    }

    /// Looks at every process that is new, or has become another program.
    pub(super) fn look(&mut self) {
        let mut parents: Vec<(u32, u32)> = processes().collect();
        parents.sort_unstable();
        // Numbers mostly rise from parent to child; twice finds the few that do not.
        for _ in 0..2 {
            for (pid, parent) in &parents {
                if self.members.contains(parent) {
                    self.members.insert(*pid);
                }
            }
        }
        for (pid, _) in parents {
            if self.members.contains(&pid) {
                self.examine(pid);
            }
        }
    }

    fn examine(&mut self, pid: u32) {
        let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return };
        // Still this program: between fork and exec, the guard is not expected.
        if program.file_name().is_some_and(|name| name == "plimsoll") && pid == self.root {
            return;
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok();
        let has = |text: &str| maps.as_ref().map(|maps| maps.contains(text));
        let guarded = has(&self.library).unwrap_or(false);
        let uses_cuda = has("libcuda.so").map(|found| found || self.holds_device(pid));
        let found = (!guarded).then(|| Unguarded {
            pid,
            program: program.display().to_string(),
            uses_cuda,
            why: why(pid, &program, maps.as_deref()),
        });
        // A program is seen before its loader has done its work, too: the last look counts.
        self.seen.insert((pid, program), found);
    }

    fn holds_device(&self, pid: u32) -> bool {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        let mut targets = targets.filter_map(|target| target.to_str().map(String::from));
        targets.any(|target| target.starts_with("/dev/nvidia") && !target.ends_with("ctl"))
    }

    /// How many of the tree run now.
    pub(super) fn still_running(&self) -> usize {
        processes().filter(|(pid, _)| *pid != self.root && self.members.contains(pid)).count()
    }

    pub(super) fn into_unguarded(self) -> Vec<Unguarded> {
        let mut all: Vec<Unguarded> = self.seen.into_values().flatten().collect();
        all.sort_by_key(|process| process.pid);
        all
    }
}

/// Every process with its parent.
fn processes() -> impl Iterator<Item = (u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        (state != "Z").then_some((pid, parent))
    })
}

fn why(pid: u32, program: &Path, maps: Option<&str>) -> String {
    if let Some(why) = super::reach::why_not(program) {
        return why;
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|&byte| byte == 0);
    let preloads = variables.any(|variable| variable.starts_with(b"LD_PRELOAD="));
    match (maps, preloads) {
        (None, _) => "it belongs to another user or cannot be looked into".to_string(),
        (Some(_), false) => "its environment was cleared of LD_PRELOAD".to_string(),
        (Some(_), true) => "the guard was not loaded into it".to_string(),
    }
}
