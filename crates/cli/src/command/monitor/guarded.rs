//! What the guard holds: limit and use of processes under `plimsoll run`, by their ledgers.

use std::cmp::Reverse;
use std::collections::HashMap;

use plimsoll_guard::watch::{GuardShare, GuardedProcess};

use super::record::{MonitorProcess, MonitorRecord, MonitorRun};

/// The processes whose ledgers are known, by number.
#[derive(Default)]
pub(super) struct GuardedProcesses {
    known: HashMap<u32, KnownProcess>,
}

/// `LOOKS`: a process is looked at so many times for a guard, which starts a moment after its program.
const LOOKS: u32 = 4;

#[derive(Default)]
struct KnownProcess {
    /// The command line that it had then: a process may become another program.
    command: Option<String>,
    guarded: Option<GuardedProcess>,
    looks: u32,
}

impl GuardedProcesses {
    /// Adds to a record what the guard counts for its processes. Ledgers of other users' processes
    /// cannot be read, except by root: then nothing is added.
    pub(super) fn add(&mut self, record: &mut MonitorRecord) {
        let pids: Vec<u32> = record.processes.iter().map(|process| process.pid).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        let mut runs: Vec<((u64, u64), MonitorRun)> = Vec::new();
        let several = record.gpus.len() > 1;
        for process in &mut record.processes {
            let shares = self.shares(process.pid, process.command.as_ref());
            for share in &shares {
                note(&mut runs, process.pid, share);
            }
            // A process that uses several GPUs is there once for each.
            let here =
                |share: &&GuardShare| !several || process.gpu == Some(share.ordinal as usize);
            let share = shares.iter().find(here).or(shares.first());
            process.guarded_bytes = share.map(|share| share.used);
            process.limit_bytes = share.and_then(|share| share.limit);
        }
        // Those that hold GPU memory stay first, also where only the guard knows of it.
        let held = |process: &MonitorProcess| process.gpu_bytes.or(process.guarded_bytes);
        record.processes.sort_by_key(|process| Reverse(held(process)));
        record.runs = runs.into_iter().map(|(_, run)| run).collect();
    }

    fn shares(&mut self, pid: u32, command: Option<&String>) -> Vec<GuardShare> {
        let known = self.known.entry(pid).or_default();
        if known.command.as_ref() != command {
            *known = KnownProcess { command: command.cloned(), ..KnownProcess::default() };
        }
        if known.guarded.is_none() && known.looks < LOOKS {
            known.guarded = GuardedProcess::find(pid);
            known.looks += 1;
        }
        let guarded = known.guarded.as_ref();
        guarded.and_then(|guarded| guarded.shares().ok()).unwrap_or_default()
    }
}

fn note(runs: &mut Vec<((u64, u64), MonitorRun)>, pid: u32, share: &GuardShare) {
    let gpu = share.ordinal as usize;
    match runs.iter_mut().find(|(run, known)| *run == share.run && known.gpu == gpu) {
        Some((_, run)) => run.pid = run.pid.min(pid),
        None => {
            let (used_bytes, limit_bytes) = (share.run_used, share.limit);
            runs.push((share.run, MonitorRun { pid, gpu, used_bytes, limit_bytes }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};
    use std::thread;
    use std::time::{Duration, Instant};

    use plimsoll_guard::watch::{GuardSettings, GuardWatch, VARIABLE};

    use super::*;

    /// A program whose environment the kernel shows already.
    fn started(program: &mut Command) -> Child {
        let child = program.arg("60").spawn().unwrap();
        let environment = format!("/proc/{}/environ", child.id());
        let until = Instant::now() + Duration::from_secs(30);
        while fs::read(&environment).unwrap().is_empty() {
            assert!(Instant::now() < until, "it has an environment");
            thread::sleep(Duration::from_millis(1));
        }
        child
    }

    #[test]
    fn one_whose_guard_starts_after_the_first_look_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = started(Command::new("sleep").env(VARIABLE, folder.path()));
        let mut all = GuardedProcesses::default();
        let mut is_found = || {
            let shares = all.shares(child.id(), Some(&"sleep 60".to_string()));
            assert_eq!(shares, [], "it has not called the driver");
            all.known[&child.id()].guarded.is_some()
        };
        assert!(!is_found());
        let _ledger = GuardWatch::create(folder.path(), &GuardSettings::default()).unwrap();
        assert!(is_found());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
