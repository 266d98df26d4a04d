//! The processes of this machine.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

use super::ticks::parse_process;
use crate::probe::sample::ProcessSample;
use crate::sys::process::page_size;
use crate::units::Bytes;

/// This many are looked at; a machine with more has its rest left out.
const MOST: usize = 4096;
/// This many holders of GPU memory have their share of mapped pages worked out.
const MOST_ROLLUPS: usize = 4;
/// Working it out walks all of a process's memory: not at every look.
const LOOKS_A_ROLLUP: u64 = 5;

/// What is remembered between two looks.
#[derive(Default)]
pub(super) struct Processes {
    found: Vec<ProcessSample>,
    /// Processor time by number, and when it was read.
    ticks: HashMap<u32, u64>,
    at: Option<Instant>,
    holders: Vec<u32>,
    proportional: HashMap<u32, Bytes>,
    looks: u64,
}

impl Processes {
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
            if let Some((process, ticks)) = one(pid, &mut buffer, &before, seconds) {
                self.ticks.insert(pid, ticks);
                self.found.push(process);
            }
        }
        self.at = Some(now);
        if self.looks.is_multiple_of(LOOKS_A_ROLLUP) || self.proportional.is_empty() {
            self.roll_up();
        }
        self.looks += 1;
        for process in &mut self.found {
            process.proportional = self.proportional.get(&process.pid).copied();
        }
    }

    fn roll_up(&mut self) {
        let shares = self.holders.iter().filter_map(|pid| Some((*pid, proportional(*pid)?)));
        self.proportional = shares.collect();
    }
}

/// A process may end while it is looked at; then there is nothing to tell.
fn one(
    pid: u32,
    buffer: &mut [u8],
    before: &HashMap<u32, u64>,
    seconds: Option<f64>,
) -> Option<(ProcessSample, u64)> {
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let found = parse_process(&text)?;
    let worked = before.get(&pid).and_then(|before| found.ticks.checked_sub(*before));
    let cpu_percent =
        worked.zip(seconds.filter(|s| *s > 0.0)).map(|(ticks, seconds)| ticks as f64 / seconds);
    let process = ProcessSample {
        pid,
        name: Some(found.name.to_string()),
        resident: found.resident_pages.checked_mul(page_size()).map(Bytes),
        cpu_percent,
        ..ProcessSample::default()
    };
    Some((process, found.ticks))
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
