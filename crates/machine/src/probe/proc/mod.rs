//! Linux's own files: memory, processors, fragmentation, processes.
//!
//! The files that matter at every sample stay open and are read in place. Processes are
//! looked at less often: one file each, and the expensive one (`smaps_rollup`, which walks all
//! of a process's memory) only for the few that hold the most GPU memory.

mod container;
mod cost;
mod identity;
mod processes;
mod resident;
mod ticks;

use std::time::{Duration, Instant};

pub use identity::ProcessIdentity;
pub use resident::ResidentReader;
pub use ticks::Ticks;

use super::Probe;
use super::jetson::{is_jetson, thermal};
use super::open_file::OpenFile;
use super::sample::{CoreSample, MachineSample};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::platform::parse_meminfo;
use crate::sys::process::page_size;
use crate::units::Bytes;
use processes::Processes;

/// Clocks are asked of this many processors at most: on a large server each answer costs.
const MOST_CLOCKS: usize = 32;

/// The probe.
pub(super) struct Proc {
    meminfo: OpenFile,
    stat: Option<OpenFile>,
    buddyinfo: Option<OpenFile>,
    /// The clock of a processor, by its number.
    clocks: Vec<(usize, OpenFile)>,
    zones: Vec<(String, OpenFile)>,
    /// How many processors there can be, on or off.
    cores: usize,
    last: Option<Vec<Ticks>>,
    processes: Option<(Processes, Duration, Option<Instant>)>,
    buffer: Vec<u8>,
}

impl Proc {
    pub(super) fn open(machine: &Machine, processes: Option<Duration>) -> Result<Proc> {
        let meminfo = OpenFile::open_or_say(machine, "/proc/meminfo").map_err(|error| {
            Error::Unavailable {
                what: "system memory".to_string(),
                why: format!("{}: {error}", machine.on_disk("/proc/meminfo").display()),
            }
        })?;
        let possible = machine.read("/sys/devices/system/cpu/possible").unwrap_or_default();
        let cores = possible.rsplit(['-', ',']).next().and_then(|last| last.parse().ok());
        let clock = |core: usize| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq");
            Some((core, OpenFile::open(machine, &path)?))
        };
        let cores = cores.map_or(0, |last: usize| last.min(4095) + 1);
        Ok(Proc {
            meminfo,
            stat: OpenFile::open(machine, "/proc/stat"),
            buddyinfo: OpenFile::open(machine, "/proc/buddyinfo"),
            clocks: (0..cores.min(MOST_CLOCKS)).filter_map(clock).collect(),
            // A Jetson's own probe reports them.
            zones: if is_jetson(machine) { Vec::new() } else { thermal::zones(machine) },
            cores,
            last: None,
            // The processes of a recorded machine are not there any more.
            processes: processes
                .filter(|_| machine.is_here())
                .map(|every| (Processes::default(), every, None)),
            buffer: Vec::new(),
        })
    }

    fn processors(&mut self, sample: &mut MachineSample) -> Option<()> {
        let text = self.stat.as_ref()?.read(&mut self.buffer).ok()?;
        let now = ticks::parse(text)?;
        if let Some(last) = &self.last {
            sample.cpu_percent = now.first().zip(last.first()).and_then(|(n, l)| n.since(*l));
        }
        let known = now.iter().filter_map(|ticks| ticks.core).map(|core| core + 1).max();
        let mut cores = vec![CoreSample::default(); self.cores.max(known.unwrap_or(0))];
        for ticks in &now {
            let Some(core) = ticks.core else { continue };
            let before = self.last.iter().flatten().find(|last| last.core == ticks.core);
            let percent = before.and_then(|last| ticks.since(*last));
            cores[core] = CoreSample { online: true, percent, mhz: None };
        }
        for (core, held) in &self.clocks {
            if let Some(core) = cores.get_mut(*core).filter(|core| core.online) {
                core.mhz = held.number().map(|khz| khz as f64 / 1000.0);
            }
        }
        sample.cores = cores;
        self.last = Some(now);
        Some(())
    }

    fn look_at_processes(&mut self, sample: &mut MachineSample) {
        let Some((processes, every, last)) = &mut self.processes else { return };
        // A little early is better than a whole sample late.
        if last.is_none_or(|last| last.elapsed() + Duration::from_millis(20) >= *every) {
            *last = Some(Instant::now());
            processes.look();
        }
        sample.processes = processes.list();
    }
}

impl Probe for Proc {
    fn read(&mut self, sample: &mut MachineSample) -> Result<()> {
        let text = self.meminfo.read(&mut self.buffer).map_err(|error| Error::Unavailable {
            what: "system memory".to_string(),
            why: format!("{}: {error}", self.meminfo.path().display()),
        })?;
        sample.memory = parse_meminfo(text);
        if let Some(text) = self.buddyinfo.as_ref().and_then(|f| f.read(&mut self.buffer).ok()) {
            sample.largest_free = largest_free(text);
        }
        sample.temperatures = thermal::temperatures(&self.zones);
        let _ = self.processors(sample);
        self.look_at_processes(sample);
        Ok(())
    }

    fn attend(&mut self, holders: &[u32]) {
        if let Some((processes, ..)) = &mut self.processes {
            processes.attend(holders);
        }
    }
}

/// The largest order of which a zone has a free block: `Node 0, zone Normal 5 3 0 1`.
fn largest_free(text: &str) -> Option<Bytes> {
    let largest = |line: &str| {
        let counts = line.split_once("zone")?.1.split_whitespace().skip(1);
        let free = counts.enumerate().filter(|(_, n)| n.parse::<u64>().is_ok_and(|n| n > 0));
        free.map(|(order, _)| order).last()
    };
    let order = text.lines().filter_map(largest).max()?;
    page_size().checked_shl(u32::try_from(order).ok()?).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_block_is_the_highest_order_that_is_not_empty() {
        let text = "Node 0, zone      DMA      1      0      2      0\n\
                    Node 0, zone   Normal     10      5      0      0\n";
        assert_eq!(largest_free(text), Some(Bytes(page_size() << 2)));
        assert_eq!(largest_free("Node 0, zone DMA 0 0 0"), None);
        assert_eq!(largest_free("nonsense"), None);
    }
}
