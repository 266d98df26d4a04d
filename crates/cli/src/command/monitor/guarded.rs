//! What the guard holds: limit and use of processes under `plimsoll run`, by their ledgers.

use std::cmp::Reverse;
use std::collections::HashMap;

use plimsoll_guard::watch::{GuardShare, GuardedProcess};

use super::record::{MonitorProcess, MonitorRecord, MonitorRun};

/// The processes whose ledgers are known, by number.
#[derive(Default)]
pub(super) struct GuardedProcesses {
    /// With the command line that it had then: a process may become another program.
    known: HashMap<u32, (Option<String>, Option<GuardedProcess>)>,
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
        let known = self.known.get(&pid).filter(|(before, _)| before.as_ref() == command);
        if known.is_none() {
            self.known.insert(pid, (command.cloned(), GuardedProcess::find(pid)));
        }
        let guarded = self.known.get(&pid).and_then(|(_, guarded)| guarded.as_ref());
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
