//! What to do about memory, each with the command that does it.
//!
//! A command never contains the text of a process: only its number, which a user can paste into
//! a shell whatever the process is called.

use plimsoll::{Bytes, MemoryPressure};
use serde::Serialize;

use super::answer::SystemReport;
use super::devices::Absent;
use super::holders::{GpuHolders, MemoryHolder};
use crate::reason::brief;

/// Something to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ReportAction {
    /// Why, in words.
    pub(super) why: String,
    /// What to type.
    pub(super) command: String,
}

fn action(why: impl Into<String>, command: impl Into<String>) -> ReportAction {
    ReportAction { why: why.into(), command: command.into() }
}

/// The command that ends a process: with sudo where it is somebody else's.
pub(super) fn end_command(holder: &MemoryHolder, is_here: bool) -> String {
    let ours = rustix::process::geteuid();
    let theirs = is_here && !ours.is_root() && holder.uid.is_some_and(|uid| uid != ours.as_raw());
    format!("{}kill {}", if theirs { "sudo " } else { "" }, holder.pid)
}

/// What the page is about.
pub(super) struct AdviceFacts<'a> {
    pub(super) gpus: &'a [GpuHolders],
    pub(super) system: &'a SystemReport,
    pub(super) unified: Option<bool>,
    pub(super) absent: &'a [Absent],
    /// Whether a driver has a GPU that no probe sees.
    pub(super) other_devices: bool,
    /// Whether it is this machine, and not a recorded one.
    pub(super) is_here: bool,
}

/// All that is worth doing.
pub(super) fn advice(facts: &AdviceFacts<'_>) -> Vec<ReportAction> {
    let mut actions: Vec<ReportAction> =
        facts.gpus.iter().flat_map(|gpu| of_gpu(gpu, facts.is_here)).collect();
    actions.extend(of_system(facts));
    if let Some(gpu) = facts.gpus.iter().find(|gpu| gpu.hides_its_processes()) {
        let why = format!(
            "no process can be seen to hold the memory of GPU {}: the driver shows them to root, and outside of containers",
            gpu.index
        );
        actions.push(action(why, "sudo plimsoll report"));
    }
    let mut unseen = facts.absent.iter().filter(|absent| absent.is_probe).peekable();
    if unseen.peek().is_none() && facts.gpus.is_empty() && !facts.other_devices {
        actions.push(action(
            "no GPU was found: what was tried, and what is missing",
            "plimsoll doctor",
        ));
    }
    actions.extend(unseen.map(|probe| {
        let Absent { backend, why, .. } = probe;
        let why = brief(why);
        action(format!("what {backend} would tell is missing here: {why}"), "plimsoll doctor")
    }));
    if actions.is_empty() {
        actions.push(action(
            "nothing needs to be done: memory use is healthy; to watch it",
            "plimsoll monitor",
        ));
    }
    actions
}

fn of_gpu(gpu: &GpuHolders, is_here: bool) -> Vec<ReportAction> {
    let (Some(used), Some(total)) = (gpu.used_bytes.map(Bytes), gpu.total_bytes.map(Bytes)) else {
        return Vec::new();
    };
    if MemoryPressure::of(used, total) < MemoryPressure::High {
        return Vec::new();
    }
    let left = total.saturating_sub(used);
    let Some(holder) = gpu.processes.iter().find(|holder| holder.can_be_ended()) else {
        let why =
            format!("{left} of GPU {} is left: see how it grows, and when it runs out", gpu.index);
        return vec![action(why, "plimsoll monitor")];
    };
    let (pid, held) = (holder.pid, Bytes(holder.bytes));
    let half = Bytes::gib((total.get() / 2) >> 30).max(Bytes::gib(1));
    vec![
        action(
            format!(
                "{left} of GPU {} is left: end process {pid}, which holds {held} of it",
                gpu.index
            ),
            end_command(holder, is_here),
        ),
        action(
            format!("start it under a limit next time, such as {half}, so that others have room"),
            format!("plimsoll run --gpu-mem-limit {}GiB -- PROGRAM", half.get() >> 30),
        ),
    ]
}

/// Advice about the system's memory, which on unified memory is the GPU's too.
fn of_system(facts: &AdviceFacts<'_>) -> Vec<ReportAction> {
    let system = facts.system;
    let (Some(used), Some(total)) = (system.used_bytes, system.total_bytes) else {
        let why = "the system does not report how much of its memory is used (MemTotal less MemAvailable in /proc/meminfo)";
        return vec![action(why, "plimsoll doctor --verbose")];
    };
    let available = Bytes(total.saturating_sub(used));
    let largest = system.processes.iter().find(|holder| holder.can_be_ended());
    let command = largest.map_or_else(
        || "plimsoll monitor".to_string(),
        |holder| end_command(holder, facts.is_here),
    );
    let whom = largest.map_or_else(String::new, |holder| {
        format!("; process {} holds {} of it", holder.pid, Bytes(holder.bytes))
    });
    let mut actions = match MemoryPressure::of(Bytes(used), Bytes(total)) {
        MemoryPressure::Low | MemoryPressure::Medium => Vec::new(),
        MemoryPressure::High => vec![action(
            format!(
                "{available} of system memory is left: close what is not needed before a large model{whom}"
            ),
            command,
        )],
        MemoryPressure::Critical => vec![action(
            format!(
                "{available} of system memory is left: the kernel may kill a process next{whom}"
            ),
            command,
        )],
    };
    let single = system.largest_single_bytes.map(Bytes).filter(|single| *single < available);
    if let Some(single) = single.filter(|_| facts.unified == Some(true)) {
        actions.push(action(
            format!(
                "a single GPU allocation above {single} may fail though {available} is available: \
                 the page cache is not given up for it; empty the cache first"
            ),
            "sudo sysctl vm.drop_caches=1",
        ));
    }
    actions
}
