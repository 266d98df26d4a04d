//! What the guard holds: limit and use of processes under `plimsoll run`, by their ledgers.

use std::cmp::Reverse;
use std::collections::HashMap;

use plimsoll::probe::GpuSample;
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
    /// Adds to a record of these GPUs what the guard counts for its processes. Ledgers of other
    /// users' processes cannot be read, except by root: then nothing is added.
    pub(super) fn add(&mut self, record: &mut MonitorRecord, gpus: &[GpuSample]) {
        let pids: Vec<u32> = record.processes.iter().map(|process| process.pid).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        let mut runs: Vec<(RunOnDevice, MonitorRun)> = Vec::new();
        let several = record.gpus.len() > 1;
        let number = |share: &GuardShare| number_of(gpus, share);
        for process in &mut record.processes {
            let shares = self.shares(process.pid, process.command.as_ref());
            for share in &shares {
                note(&mut runs, process.pid, number(share), share);
            }
            // A process that uses several GPUs is there once for each.
            let here = |share: &&GuardShare| !several || process.gpu == Some(number(share));
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

/// A run, by the file of its ledger, and a device's place there.
type RunOnDevice = ((u64, u64), usize);

/// The number of a device on this machine: a process that sees some of the GPUs has other numbers.
/// Where no GPU of the record has its UUID, that of the process.
fn number_of(gpus: &[GpuSample], share: &GuardShare) -> usize {
    let same = |gpu: &GpuSample| gpu.uuid.as_ref() == Some(&share.uuid);
    gpus.iter().position(same).unwrap_or(share.ordinal as usize)
}

fn note(runs: &mut Vec<(RunOnDevice, MonitorRun)>, pid: u32, gpu: usize, share: &GuardShare) {
    let device = (share.run, share.place);
    match runs.iter_mut().find(|(known, _)| *known == device) {
        Some((_, run)) => run.pid = run.pid.min(pid),
        None => {
            let (used_bytes, limit_bytes) = (share.run_used, share.limit);
            runs.push((device, MonitorRun { pid, gpu, used_bytes, limit_bytes }));
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

    #[test]
    fn workers_that_see_one_gpu_each_have_the_machines_numbers() {
        let share = |place: usize, uuid: &str| GuardShare {
            run: (1, 2),
            place,
            uuid: uuid.to_string(),
            ordinal: 0,
            limit: Some(8),
            run_used: 3,
            used: 3,
        };
        let gpu = |uuid: &str| GpuSample { uuid: Some(uuid.to_string()), ..GpuSample::default() };
        let gpus = [gpu("GPU-a"), gpu("GPU-b")];
        let mut runs = Vec::new();
        for (pid, share) in [(7, share(0, "GPU-b")), (5, share(1, "GPU-a")), (6, share(1, "GPU-a"))]
        {
            note(&mut runs, pid, number_of(&gpus, &share), &share);
        }
        let found: Vec<_> = runs.iter().map(|(_, run)| (run.pid, run.gpu)).collect();
        assert_eq!(found, [(7, 1), (5, 0)]);
        assert_eq!(number_of(&[], &share(0, "GPU-b")), 0);
    }

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
