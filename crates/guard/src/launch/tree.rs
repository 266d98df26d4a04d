//! Finds child processes of the program that run without the guard. Nobody counts their GPU
//! memory, so they are reported.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind::PermissionDenied};
use std::path::{Path, PathBuf};

use super::folder::LaunchFolder;
use super::preflight::{is_anothers, why_not_guarded};
use crate::watch::VARIABLE;

/// A process that the guard was not loaded into.
#[derive(Debug, Clone)]
pub struct UnguardedProcess {
    /// Its number.
    pub pid: u32,
    /// Its executable, or its name where only that can be read.
    pub program: String,
    /// Whether it has the CUDA driver loaded; `None` where that could not be read.
    pub uses_cuda: Option<bool>,
    /// Why the guard was not loaded.
    pub why: String,
}

/// A program and its descendants, as far as they were seen.
#[derive(Debug)]
pub(super) struct ProcessTree {
    root: u32,
    library: String,
    /// The ledger's folder.
    data: String,
    /// Every process that was seen to belong to it and still runs, each with when it started: a
    /// parent may end before its children, and numbers are used again.
    members: HashMap<u32, u64>,
    seen: HashMap<(u32, PathBuf), Option<UnguardedProcess>>,
    /// Those that were seen while they were still being loaded: the guard has not started yet.
    loading: HashSet<(u32, PathBuf)>,
}

impl ProcessTree {
    pub(super) fn new(folder: &LaunchFolder) -> ProcessTree {
        let library = folder.library().display().to_string();
        let data = folder.path().display().to_string();
        let (members, seen, loading) = (HashMap::new(), HashMap::new(), HashSet::new());
        ProcessTree { root: 0, library, data, members, seen, loading }
    }

    /// Takes this process for the program.
    pub(super) fn follow(&mut self, root: u32) {
        let state = state(Path::new(&format!("/proc/{root}")));
        self.members.extend(state.map(|state| (root, state.start)));
        self.root = root;
    }

    /// Examines every process of the tree.
    pub(super) fn examine(&mut self) {
        let running: BTreeMap<u32, ProcessState> = processes().collect();
        self.members.retain(|pid, start| running.get(pid).is_some_and(|now| now.start == *start));
        // Mostly a child has a higher number than its parent; a second pass finds the others.
        for _ in 0..2 {
            for (pid, now) in &running {
                if self.members.contains_key(&now.parent) {
                    self.members.insert(*pid, now.start);
                }
            }
        }
        for pid in running.into_keys() {
            if self.members.contains_key(&pid) {
                self.examine_process(pid);
            }
        }
    }

    fn examine_process(&mut self, pid: u32) {
        let program = match fs::read_link(view(pid).join("exe")) {
            Ok(program) => program,
            // Of a program with other rights than ours only the name can be read.
            Err(error) if error.kind() == PermissionDenied => {
                let Ok(name) = fs::read_to_string(view(pid).join("comm")) else { return };
                PathBuf::from(name.trim_end())
            }
            Err(_) => return,
        };
        // Between fork and exec it is still this program, without the guard.
        if program.file_name().is_some_and(|name| name == "plimsoll") && pid == self.root {
            return;
        }
        self.note(pid, program);
    }

    /// Records what is found of a process.
    fn note(&mut self, pid: u32, program: PathBuf) {
        let found = self.find(pid, &program);
        // A process that has ended or become another program meanwhile proves nothing.
        let same = |now: io::Result<PathBuf>| {
            now.map_or_else(|e| e.kind() == PermissionDenied, |now| now == program)
        };
        if found.is_none() || same(fs::read_link(view(pid).join("exe"))) {
            // A program may be seen before its loader has finished: the last result counts.
            self.seen.insert((pid, program), found);
        }
    }

    /// Looks for the guard in a process; nothing where it is there.
    fn find(&mut self, pid: u32, program: &Path) -> Option<UnguardedProcess> {
        let maps = fs::read_to_string(view(pid).join("maps")).ok();
        let has = |text: &str| maps.as_ref().map(|maps| maps.contains(text));
        // Without the ledger, which it finds by its variable, the guard only forwards calls.
        let ledger = format!("{}/ledger", self.data);
        let loaded = has(&self.library).unwrap_or(false);
        let guarded = loaded && has(&ledger).unwrap_or(false);
        // A process that is still being loaded is not reported, as it may end before it is seen
        // again. One in which the guard cannot start is seen in this state twice. The loader
        // loads the guard before the C library.
        let is_loading = match loaded {
            true => self.has_ledger(pid),
            false => has("libc.so") == Some(false) && why_not_guarded(program).is_none(),
        };
        if guarded || is_loading && self.loading.insert((pid, program.to_path_buf())) {
            return None;
        }
        Some(UnguardedProcess {
            pid,
            program: program.display().to_string(),
            uses_cuda: has("libcuda.so").map(|found| found || self.holds_device(pid)),
            why: self.why(pid, program, maps.as_deref()),
        })
    }

    fn holds_device(&self, pid: u32) -> bool {
        let files = fs::read_dir(view(pid).join("fd")).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        let mut targets = targets.filter_map(|target| target.to_str().map(String::from));
        targets.any(|target| target.starts_with("/dev/nvidia") && !target.ends_with("ctl"))
    }

    /// How many processes of the tree run now, besides the program. Those whose parents ended
    /// before they were seen are known by their environment.
    pub(super) fn still_running(&self) -> usize {
        let is_member = |pid, now: &ProcessState| self.members.get(&pid) == Some(&now.start);
        let ours = |pid, now: &ProcessState| is_member(pid, now) || self.has_ledger(pid);
        processes().filter(|(pid, now)| *pid != self.root && ours(*pid, now)).count()
    }

    /// Whether a process was started with the name of this ledger.
    fn has_ledger(&self, pid: u32) -> bool {
        has_variable(pid, format!("{VARIABLE}={}", self.data).as_bytes())
    }

    fn why(&self, pid: u32, program: &Path, maps: Option<&str>) -> String {
        if let Some(why) = why_not_guarded(program) {
            return why;
        }
        let Some(maps) = maps else {
            return "it belongs to another user or cannot be examined".to_string();
        };
        let cleared = |name: &str| !has_variable(pid, format!("{name}=").as_bytes());
        if cleared("LD_PRELOAD") {
            "its environment was cleared of LD_PRELOAD".to_string()
        } else if maps.contains(&self.library) && cleared(VARIABLE) {
            format!("its environment was cleared of {VARIABLE}")
        } else if is_anothers(pid) {
            "it became another user, who may not open the ledger; run plimsoll as that user"
                .to_string()
        } else {
            "the guard was not loaded into it".to_string()
        }
    }

    pub(super) fn into_unguarded(self) -> Vec<UnguardedProcess> {
        let mut all: Vec<UnguardedProcess> = self.seen.into_values().flatten().collect();
        all.sort_by_key(|process| process.pid);
        all
    }
}

/// What the kernel says of a process or thread.
#[derive(Debug, Clone, Copy)]
struct ProcessState {
    /// `Z` where it has ended and nobody has asked how.
    letter: char,
    parent: u32,
    /// When it started, in the kernel's clock ticks.
    start: u64,
}

/// Every process of which a thread runs.
fn processes() -> impl Iterator<Item = (u32, ProcessState)> {
    numbers(Path::new("/proc")).filter_map(|pid| {
        let state = state(Path::new(&format!("/proc/{pid}")))?;
        (state.letter != 'Z' || other_thread(pid).is_some()).then_some((pid, state))
    })
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn state(of: &Path) -> Option<ProcessState> {
    let stat = fs::read_to_string(of.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let (letter, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    Some(ProcessState { letter, parent, start: fields.nth(17)?.parse().ok()? })
}

/// A thread that runs in a process whose main thread has ended.
fn other_thread(pid: u32) -> Option<PathBuf> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let threads = numbers(&folder).filter(|thread| *thread != pid);
    let mut threads = threads.map(|thread| folder.join(thread.to_string()));
    threads.find(|thread| state(thread).is_some_and(|now| !matches!(now.letter, 'Z' | 'X')))
}

/// Where /proc shows a process: where its main thread has ended, that of another thread.
fn view(pid: u32) -> PathBuf {
    let main = PathBuf::from(format!("/proc/{pid}"));
    match state(&main) {
        Some(ProcessState { letter: 'Z', .. }) => other_thread(pid).unwrap_or(main),
        _ => main,
    }
}

/// Whether a process was started with a variable that begins with this text.
fn has_variable(pid: u32, text: &[u8]) -> bool {
    let environment = fs::read(view(pid).join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(text))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::folder;
    use super::*;
    use crate::watch::tests::soon;

    type TestResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

    /// Looks twice at a program that stays as it is once this is mapped; what was found each time.
    fn twice(program: &mut Command, folder: &LaunchFolder, mapped: &str) -> TestResult<[usize; 2]> {
        let mut program = program.spawn()?;
        let mut tree = ProcessTree::new(folder);
        tree.follow(program.id());
        let maps = format!("/proc/{}/maps", program.id());
        assert!(soon(|| fs::read_to_string(&maps).is_ok_and(|maps| maps.contains(mapped))));
        tree.examine();
        let first = tree.seen.values().flatten().count();
        tree.examine();
        program.kill()?;
        program.wait()?;
        Ok([first, tree.into_unguarded().len()])
    }

    #[test]
    fn a_program_whose_loader_is_at_work_is_no_finding() -> TestResult {
        // Without a ledger there it stays as it is in that moment: loaded, and not begun.
        let folder = folder::make()?;
        let mut program = Command::new("sleep");
        program.arg("9").env("LD_PRELOAD", folder.library()).env(VARIABLE, folder.path());
        let library = folder.library().display().to_string();
        assert_eq!(twice(&mut program, &folder, &library)?, [0, 1], "it stays so, and is reported");
        Ok(())
    }

    #[test]
    fn nor_is_one_whose_loader_has_not_come_to_the_guard() -> TestResult {
        // The loader waits for what it is to load first.
        let folder = folder::make()?;
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status()?.success());
        let mut program = Command::new("sleep");
        program.arg("9").env("LD_PRELOAD", &pipe);
        assert_eq!(twice(&mut program, &folder, "sleep")?, [0, 1], "it stays so, and is reported");
        Ok(())
    }

    #[test]
    fn one_whose_main_thread_has_ended_is_looked_at_and_runs() -> TestResult {
        let folder = folder::make()?;
        let source = folder.path().join("leader.c");
        let program = folder.path().join("leader");
        let text = "#include <pthread.h>\n#include <unistd.h>\n\
            static void *rest(void *a) { sleep(60); return a; }\n\
            int main(void) { pthread_t t; pthread_create(&t, 0, rest, 0); pthread_exit(0); }\n";
        fs::write(&source, text)?;
        let mut compile = Command::new("cc");
        compile.arg("-w").arg(&source).arg("-o").arg(&program).arg("-lpthread");
        assert!(compile.status()?.success());
        let mut program = Command::new(&program).spawn()?;
        let pid = program.id();
        let main = PathBuf::from(format!("/proc/{pid}"));
        assert!(soon(|| state(&main).is_some_and(|now| now.letter == 'Z')));
        let mut tree = ProcessTree::new(&folder);
        tree.follow(std::process::id());
        tree.examine();
        tree.examine();
        // Those of other tests are children of this process, too.
        let found: Vec<u32> = tree.seen.values().flatten().map(|process| process.pid).collect();
        let runs = processes().any(|(running, _)| running == pid);
        program.kill()?;
        program.wait()?;
        assert!(found.contains(&pid) && runs, "{found:?}");
        Ok(())
    }

    #[test]
    fn a_stranger_with_the_number_of_one_that_has_ended_is_no_finding() -> TestResult {
        let folder = folder::make()?;
        let mut stranger = Command::new("sleep").arg("60").spawn()?;
        let pid = stranger.id();
        // A tree that belongs to nobody, with a process of this number that started before.
        let mut tree = ProcessTree::new(&folder);
        let now = state(Path::new(&format!("/proc/{pid}"))).ok_or("it runs")?;
        tree.members.insert(pid, now.start - 1);
        assert_eq!(tree.still_running(), 0);
        tree.examine();
        tree.examine();
        stranger.kill()?;
        stranger.wait()?;
        assert!(tree.into_unguarded().is_empty());
        Ok(())
    }

    #[test]
    fn one_that_ends_meanwhile_is_no_finding() -> TestResult {
        let folder = folder::make()?;
        let mut program = Command::new("sleep").arg("0").spawn()?;
        let mut tree = ProcessTree::new(&folder);
        tree.follow(program.id());
        let gone = |link: &str| fs::read_link(link).is_err();
        assert!(soon(|| gone(&format!("/proc/{}/exe", program.id()))));
        tree.note(program.id(), Path::new("/usr/bin/sleep").into());
        program.wait()?;
        assert!(tree.into_unguarded().is_empty());
        Ok(())
    }
}
