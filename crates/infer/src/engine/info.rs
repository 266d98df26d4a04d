//! What an engine reports: what it is, how it was set up, and its memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll::{Budget, Bytes};

/// What an engine is and how it was set up.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct EngineInfo {
    /// As users name it: `rten`, `ort`, `tensorrt`, `echo`.
    pub name: &'static str,
    /// The version that it reports.
    pub version: Option<String>,
    /// The library that it was loaded from, where it was loaded at run time.
    pub library: Option<PathBuf>,
    /// Where it runs: `cpu`, `cuda:0`.
    pub device: String,
    /// Why this engine and this device, in words for the report.
    pub chosen: String,
    /// The number of threads that it computes with, where one was set.
    pub threads: Option<usize>,
    /// How many nodes of the model each provider ran, where the engine reports it.
    pub nodes_by_provider: BTreeMap<String, u64>,
    /// What differs from the request, in words for the report.
    pub fallbacks: Vec<String>,
    /// The full messages of the engine, where the words above have only the cause; for a log.
    pub messages: Vec<String>,
    /// Whether the engine was given the memory limit.
    pub limit_applied: bool,
}

/// The figures of an engine's own allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EngineMemory {
    /// Bytes in use now.
    pub in_use: Option<u64>,
    /// The most that was in use.
    pub peak: Option<u64>,
    /// Bytes that the allocator has reserved from the device, in use or not.
    pub reserved: Option<u64>,
    /// The limit that it was given.
    pub limit: Option<u64>,
}

impl EngineMemory {
    /// What is in use and the most that was.
    #[must_use]
    pub fn new(in_use: u64, peak: u64) -> EngineMemory {
        EngineMemory { in_use: Some(in_use), peak: Some(peak), ..EngineMemory::default() }
    }

    /// What was reserved from a budget: sizes as they were asked for.
    pub(super) fn of(budget: &Budget) -> EngineMemory {
        let reserved = Some(budget.reserved().get());
        let limit = Some(budget.limit()).filter(|&limit| limit < Bytes::MAX);
        EngineMemory {
            in_use: reserved,
            peak: Some(budget.peak().get()),
            reserved,
            limit: limit.map(Bytes::get),
        }
    }
}
