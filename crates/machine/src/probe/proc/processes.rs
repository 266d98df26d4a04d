//! The processes of this machine.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

use super::container::container;
use super::identity::{command, uid, users};
use super::ticks::{ProcessStat, parse_process};
use crate::probe::sample::ProcessSample;
use crate::sys::process::page_size;
use crate::units::Bytes;

/// This many are looked at; a machine with more has its rest left out.
const MOST: usize = 4096;
/// This many holders of GPU memory have their share of mapped pages worked out.
const MOST_ROLLUPS: usize = 4;
/// Working it out walks all of a process's memory: not at every look.
const LOOKS_A_ROLLUP: u64 = 5;
/// As much of a command line is kept.
const LONGEST_COMMAND: u64 = 512;

/// What is remembered between two looks.
pub(super) struct Processes {
    found: Vec<ProcessSample>,
    /// Processor time by number, and when it was read.
    ticks: HashMap<u32, u64>,
    at: Option<Instant>,
    holders: Vec<u32>,
    proportional: HashMap<u32, Bytes>,
    looks: u64,
    /// What does not change while a process runs its program, by number.
    details: HashMap<u32, ProcessDetails>,
    /// Names by user number.
    users: HashMap<u32, String>,
}

/// Who a process is: read once, as it costs three more files.
#[derive(Debug, Clone)]
struct ProcessDetails {
    /// When it started, and its name: they tell whether the number has another process now, or
    /// the process another program.
    start: u64,
    name: String,
    user: Option<String>,
    command: Option<String>,
    container: Option<String>,
}

impl ProcessDetails {
    fn read(pid: u32, found: &ProcessStat<'_>, users: &HashMap<u32, String>) -> ProcessDetails {
        let file = |name: &str, most: u64| {
            let mut bytes = Vec::new();
            let file = File::open(format!("/proc/{pid}/{name}")).ok()?;
            file.take(most).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let status = file("status", 4096).unwrap_or_default();
        let groups = file("cgroup", 16 << 10).unwrap_or_default();
        ProcessDetails {
            start: found.start,
            name: found.name.to_string(),
            user: uid(&String::from_utf8_lossy(&status))
                .map(|id| users.get(&id).cloned().unwrap_or_else(|| id.to_string())),
            command: file("cmdline", LONGEST_COMMAND)
                .and_then(|bytes| command(&String::from_utf8_lossy(&bytes))),
            container: container(&String::from_utf8_lossy(&groups)),
        }
    }
}

impl Processes {
    pub(super) fn new() -> Processes {
        Processes {
            found: Vec::new(),
            ticks: HashMap::new(),
            at: None,
            holders: Vec::new(),
            proportional: HashMap::new(),
            looks: 0,
            details: HashMap::new(),
            users: users(&std::fs::read_to_string("/etc/passwd").unwrap_or_default()),
        }
    }

    /// Which processes hold GPU memory, those with the most first.
    pub(super) fn attend(&mut self, holders: &[u32]) {
        self.holders.clear();
        self.holders.extend(holders.iter().take(MOST_ROLLUPS));
    }

    pub(super) fn list(&self) -> Vec<ProcessSample> {
        self.found.clone()
    }

    pub(super) fn look(&mut self) {
        let now = Instant::now();
        let seconds = self.at.map(|at| now.duration_since(at).as_secs_f64());
        let before = std::mem::take(&mut self.ticks);
        self.found.clear();
        let mut buffer = [0u8; 1024];
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids.take(MOST) {
            self.look_at(pid, &mut buffer, &before, seconds);
        }
        self.at = Some(now);
        self.details.retain(|pid, _| self.ticks.contains_key(pid));
        if self.looks.is_multiple_of(LOOKS_A_ROLLUP) || self.proportional.is_empty() {
            self.roll_up();
        }
        self.looks += 1;
        for process in &mut self.found {
            process.proportional = self.proportional.get(&process.pid).copied();
        }
    }

    /// A process may end while it is looked at; then there is nothing to tell. A kernel thread
    /// holds no memory, so it is told only while it works.
    fn look_at(
        &mut self,
        pid: u32,
        buffer: &mut [u8],
        before: &HashMap<u32, u64>,
        seconds: Option<f64>,
    ) -> Option<()> {
        let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        let found = parse_process(&text)?;
        self.ticks.insert(pid, found.ticks);
        let worked = before.get(&pid).and_then(|before| found.ticks.checked_sub(*before));
        let seconds = seconds.filter(|seconds| *seconds > 0.0);
        let cpu_percent = worked.zip(seconds).map(|(ticks, seconds)| ticks as f64 / seconds);
        if found.kernel && cpu_percent.is_none_or(|percent| percent == 0.0) {
            return None;
        }
        let known = self.details.get(&pid);
        if known.is_none_or(|known| known.start != found.start || known.name != found.name) {
            self.details.insert(pid, ProcessDetails::read(pid, &found, &self.users));
        }
        let details = self.details.get(&pid)?;
        self.found.push(ProcessSample {
            pid,
            name: Some(found.name.to_string()),
            user: details.user.clone(),
            command: details.command.clone(),
            container: details.container.clone(),
            resident: found.resident_pages.checked_mul(page_size()).map(Bytes),
            cpu_percent,
            ..ProcessSample::default()
        });
        Some(())
    }

    fn roll_up(&mut self) {
        let shares = self.holders.iter().filter_map(|pid| Some((*pid, proportional(*pid)?)));
        self.proportional = shares.collect();
    }
}

/// `Pss:  1234 kB` of `smaps_rollup`, which only the owner and root may read.
fn proportional(pid: u32) -> Option<Bytes> {
    let mut text = String::new();
    let file = File::open(format!("/proc/{pid}/smaps_rollup")).ok()?;
    file.take(64 << 10).read_to_string(&mut text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1 << 10).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_found_with_its_command_and_kernel_threads_are_not() {
        let mut processes = Processes::new();
        processes.look();
        let list = processes.list();
        let own = list.iter().find(|process| process.pid == std::process::id());
        let command = own.and_then(|own| own.command.clone()).unwrap_or_default();
        assert!(own.is_some_and(|own| own.user.is_some()) && !command.is_empty(), "{own:?}");
        assert!(list.iter().all(|process| process.name.as_deref() != Some("kthreadd")));
    }
}
