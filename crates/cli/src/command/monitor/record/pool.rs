//! The memories of a record that can run out.

use plimsoll::probe::{ProbeKind, TimeLeft, is_placeholder};
use plimsoll::{Bytes, MemoryPressure};

use super::{MonitorRecord, MonitorRun, MonitorTimeLeft};

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PoolOwner {
    /// The system's.
    System,
    /// A GPU's own.
    Gpu(usize),
    /// What the guard lets a run have of a GPU: a process of it, and the GPU.
    Run(u32, usize),
}

impl std::fmt::Display for PoolOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PoolOwner::System => f.write_str("system"),
            PoolOwner::Gpu(at) => write!(f, "gpu{at}"),
            PoolOwner::Run(pid, 0) => write!(f, "run {pid}"),
            PoolOwner::Run(pid, gpu) => write!(f, "run {pid} gpu{gpu}"),
        }
    }
}

/// A memory that can run out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MonitorPool {
    pub(crate) owner: PoolOwner,
    pub(crate) used: u64,
    pub(crate) total: u64,
    /// What it is held to, or compared with, where that is less than all of it.
    pub(crate) limit: Option<u64>,
}

impl MonitorPool {
    fn new(owner: PoolOwner, used: u64, total: u64, limit: Option<u64>) -> MonitorPool {
        MonitorPool { owner, used, total, limit: limit.filter(|limit| *limit < total) }
    }

    /// What use may reach: the limit, or all of it.
    pub(crate) fn end(&self) -> u64 {
        self.limit.unwrap_or(self.total)
    }

    /// What is left below that.
    pub(crate) fn free(&self) -> u64 {
        self.end().saturating_sub(self.used)
    }

    pub(crate) fn pressure(&self) -> MemoryPressure {
        MemoryPressure::of(Bytes(self.used), Bytes(self.end()))
    }
}

impl MonitorRun {
    pub(crate) fn owner(&self) -> PoolOwner {
        PoolOwner::Run(self.pid, self.gpu)
    }

    fn pool(&self) -> Option<MonitorPool> {
        let total = self.limit_bytes?;
        let owner = self.owner();
        Some(MonitorPool { owner, used: self.used_bytes, total, limit: Some(total) })
    }
}

impl MonitorTimeLeft {
    pub(in super::super) fn new(pool: &MonitorPool, left: TimeLeft) -> MonitorTimeLeft {
        let tenth = |s: f64| (s * 10.0).round() / 10.0;
        MonitorTimeLeft {
            memory: pool.owner.to_string(),
            limit_bytes: pool.limit,
            seconds: tenth(left.seconds),
            at_least_s: tenth(left.at_least),
            at_most_s: left.at_most.map(tenth),
            bytes_per_s: left.bytes_per_second.round(),
        }
    }
}

impl MonitorRecord {
    /// The system's memory, where it is known.
    pub(crate) fn system(&self) -> Option<MonitorPool> {
        let total = self.memory.total_bytes?;
        let available = self.memory.available_bytes;
        let used = available.map(|free| total.saturating_sub(free)).or(self.memory.used_bytes)?;
        Some(MonitorPool::new(PoolOwner::System, used, total, self.memory.limit_bytes))
    }

    /// A discrete GPU's own memory.
    pub(crate) fn own(&self, at: usize) -> Option<MonitorPool> {
        let gpu = self.gpus.get(at).filter(|gpu| !gpu.unified)?;
        let (used, total) = (gpu.used_bytes?, gpu.total_bytes?);
        Some(MonitorPool::new(PoolOwner::Gpu(at), used, total, gpu.limit_bytes))
    }

    /// All memories that can run out: those of GPUs first, and of runs.
    pub(crate) fn pools(&self) -> impl Iterator<Item = MonitorPool> {
        let own = (0..self.gpus.len()).filter_map(|at| self.own(at));
        own.chain(self.runs.iter().filter_map(MonitorRun::pool)).chain(self.system())
    }

    /// The memory to look at first: the one that runs out first, or the fullest of those with a
    /// limit, or the fullest.
    pub(crate) fn tightest(&self) -> Option<MonitorPool> {
        let named = |pool: &MonitorPool| {
            self.time_left.as_ref().is_some_and(|left| left.memory == pool.owner.to_string())
        };
        let share = |pool: &MonitorPool| pool.used as f64 / (pool.end().max(1)) as f64;
        let rank = |pool: &MonitorPool| (named(pool), pool.limit.is_some());
        self.pools().max_by(|a, b| rank(a).cmp(&rank(b)).then(share(a).total_cmp(&share(b))))
    }

    /// Whether no GPU is seen, and a source that may tell of one was late.
    pub(crate) fn awaits_gpu(&self) -> bool {
        let proc = ProbeKind::Proc.name();
        self.gpus.is_empty() && self.late.iter().any(|source| source != proc)
    }

    /// Whether a GPU tells of memory of its own.
    pub(crate) fn has_own(&self) -> bool {
        (0..self.gpus.len()).any(|at| self.own(at).is_some())
    }

    /// Compares use of GPUs' own memory with this limit.
    pub(crate) fn limit_own(&mut self, limit: u64) {
        for at in 0..self.gpus.len() {
            if self.own(at).is_some() {
                self.gpus[at].limit_bytes = Some(limit);
            }
        }
        self.set_pressure();
    }

    /// Compares use of the system's memory with this limit.
    pub(crate) fn limit_system(&mut self, limit: u64) {
        self.memory.limit_bytes = Some(limit);
        self.set_pressure();
    }

    /// Says of each memory how full it is.
    pub(super) fn set_pressure(&mut self) {
        let pressure = |pool: Option<MonitorPool>| pool.map(|pool| pool.pressure().to_string());
        self.memory.pressure = pressure(self.system());
        for at in 0..self.gpus.len() {
            self.gpus[at].pressure = pressure(self.own(at));
        }
    }

    /// The hottest sensor that measures; a Jetson's PMIC shows a placeholder.
    pub(crate) fn hottest(&self) -> Option<(&str, f64)> {
        let real = self.temperatures_c.iter().filter(|(name, _)| !is_placeholder(name));
        real.filter_map(|(name, celsius)| Some((name.as_str(), (*celsius)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
