//! The machine as the kernel tells it, until the monitor's sensors come.

use std::path::Path;

use plimsoll::Bytes;
use plimsoll::platform::{MemInfo, system_memory};

use crate::measure::{SystemFacts, SystemSample};
use crate::record::{MemoryArchitecture, Unknown};

/// Why most of the machine is not known.
const LATER: &str = "not known yet: sensors come with the monitor";

/// Ticks are hundredths of a second, of each processor.
const FEW_TICKS: u64 = 50;

/// Processor time so far, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    fn read() -> Option<Ticks> {
        let all = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (all, busy) = parse_stat(&all)?;
        Some(Ticks { all, busy, own: parse_own(&own)? })
    }
}

/// All and busy ticks of the first line.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    // user nice system idle iowait irq softirq steal; guest time is in user's already.
    let all = ticks.iter().take(8).sum();
    let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
    Some((all, all - idle))
}

/// This process's ticks. The name in the middle may hold anything, brackets too.
fn parse_own(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Looks at the machine again and again.
#[derive(Debug)]
pub(super) struct Machine {
    first: Option<Ticks>,
    last: Option<Ticks>,
}

impl Machine {
    pub(super) fn new() -> Machine {
        let now = Ticks::read();
        Machine { first: now, last: now }
    }

    /// The machine now, `t` seconds into the run.
    pub(super) fn sample(&mut self, t: f64) -> SystemSample {
        let now = Ticks::read();
        let memory = memory();
        let cpu_percent = self.last.zip(now).and_then(|(last, now)| {
            let all = now.all.checked_sub(last.all).filter(|all| *all > 0)?;
            Some(now.busy.saturating_sub(last.busy) as f64 / all as f64 * 100.0)
        });
        self.last = now;
        SystemSample {
            t,
            cpu_percent,
            ram_used_gb: memory.used().map(Bytes::as_gib),
            ram_gpu_share_gb: memory.nvmap_used.map(Bytes::as_gib),
            swap_used_gb: memory.swap_used().map(Bytes::as_gib),
            ..SystemSample::default()
        }
    }

    /// The share of all processors that others used since the start, in percent. A few
    /// ticks say nothing: they are counted to whoever runs when the clock strikes.
    pub(super) fn others(&self) -> Option<f64> {
        let (first, last) = self.first.zip(self.last)?;
        let all = last.all.checked_sub(first.all).filter(|all| *all >= FEW_TICKS)?;
        let busy = last.busy.saturating_sub(first.busy);
        let own = last.own.saturating_sub(first.own);
        Some(busy.saturating_sub(own) as f64 / all as f64 * 100.0)
    }
}

/// The system's memory; unknown in every field where it does not tell.
pub(super) fn memory() -> MemInfo {
    system_memory(Path::new("/")).unwrap_or_default()
}

/// What is known once, and why the rest is not.
pub(super) fn facts(architecture: MemoryArchitecture) -> SystemFacts {
    let mut fields = vec![
        "cpu_clock_mhz",
        "clocks_locked",
        "power_mode",
        "temperatures_c",
        "power_w",
        "energy_per_frame_j",
    ];
    if architecture != MemoryArchitecture::NoGpu {
        fields.extend(["gpu_load_percent", "gpu_clock_mhz"]);
    }
    if architecture == MemoryArchitecture::Discrete {
        fields.push("vram_used_gb");
    }
    let unknown: Unknown =
        fields.into_iter().map(|field| (field.to_string(), LATER.to_string())).collect();
    SystemFacts {
        ram_total_gb: memory().total.map(Bytes::as_gib),
        unknown,
        ..SystemFacts::default()
    }
}

/// The machine's name and board, where it tells.
pub(super) fn names() -> (Option<String>, Option<String>) {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_string();
        (!text.is_empty()).then_some(text)
    };
    let cpu = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    (read("/proc/sys/kernel/hostname"), read("/proc/device-tree/model").or_else(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_the_kernel_writes_them() {
        let text = "cpu  10 1 5 80 4 0 0 0 3 0\ncpu0 1 1 1 1\n";
        assert_eq!(parse_stat(text), Some((100, 16)));
        assert_eq!(parse_stat("cpu0 1 2"), None);
        let own = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 1 0";
        assert_eq!(parse_own(own), Some(12));
    }
}
