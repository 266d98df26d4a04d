//! The memory of the whole run: what all slots use together, once a frame.
//!
//! On a GPU that is what the slots on it use; without one it is the memory of the process. The
//! two are never added: they are different memories, and the limit is about one of them.

use plimsoll::Bytes;

use super::event::MemoryReporter;
use super::guarded::BenchGuard;
use super::limits::BenchLimits;
use super::probe::Resident;
use super::slot_state::SlotState;
use crate::measure::{MemorySource, SystemMeter};
use crate::record::{
    HowObtained, MeasuredWhat, MemoryArchitecture, ModelDescription, ModelRecord, SharedMemory,
    Unknown,
};

/// The memory of the whole run.
pub(super) struct RunMemory {
    pub(super) architecture: MemoryArchitecture,
    /// Memory of the process before the first model was loaded.
    before: Option<Bytes>,
    process: Option<Resident>,
    /// The peak of the process, where each of two slots at once has a part of it.
    process_peak: Option<Bytes>,
}

impl RunMemory {
    pub(super) fn new() -> RunMemory {
        RunMemory {
            architecture: MemoryArchitecture::NoGpu,
            before: None,
            process: Resident::open(),
            process_peak: None,
        }
    }

    fn with_gpu(&self) -> bool {
        self.architecture != MemoryArchitecture::NoGpu
    }

    /// A model was loaded; `before` is the memory of the process before that.
    pub(super) fn opened(
        &mut self,
        description: &ModelDescription,
        before: Option<Bytes>,
        system: &mut SystemMeter,
    ) {
        self.before = self.before.or(before);
        if !description.on_gpu() {
            return;
        }
        if !self.with_gpu() {
            // What was summed up until now was the memory of the process.
            system.forget_memory();
        }
        self.architecture = match plimsoll::is_unified() {
            Some(true) => MemoryArchitecture::Unified,
            Some(false) | None => MemoryArchitecture::Discrete,
        };
    }

    /// The memory of the whole process now, which counts for its peak.
    pub(super) fn read_process(&mut self) -> Option<Bytes> {
        let used = self.process.as_ref().and_then(Resident::read)?;
        self.process_peak = self.process_peak.max(Some(used));
        Some(used)
    }

    /// What all slots use after a frame of this slot; `None` where the slot is not in the memory
    /// that is summed up, or nobody reports it.
    pub(super) fn used_together(&self, slots: &[SlotState; 2], slot: usize) -> Option<Bytes> {
        let with_gpu = self.with_gpu();
        let current = &slots[slot];
        if current.on_gpu() != with_gpu {
            return None;
        }
        if current.reporter == MemoryReporter::Growth {
            return self.process.as_ref().and_then(Resident::read);
        }
        current.memory?;
        let running = slots.iter().filter(|slot| slot.running && slot.on_gpu() == with_gpu);
        running.filter_map(|slot| slot.memory).reduce(Bytes::saturating_add)
    }

    /// Where the figures of the whole run come from, and the limit that they are compared with.
    pub(super) fn source(
        &self,
        slots: &[SlotState; 2],
        models: &[ModelRecord; 2],
        limits: &BenchLimits<'_>,
        parallel: bool,
    ) -> MemorySource {
        let with_gpu = self.with_gpu();
        let what = match with_gpu {
            true => MeasuredWhat::GpuAllocations,
            false => MeasuredWhat::ProcessMemory,
        };
        let parts = slots.iter().any(|slot| slot.reporter == MemoryReporter::Growth);
        let counted: Vec<&ModelRecord> =
            models.iter().filter(|model| model.gpu_memory.what.is_gpu() == with_gpu).collect();
        let mut sources: Vec<&str> =
            counted.iter().filter_map(|model| model.gpu_memory.source.as_deref()).collect();
        sources.dedup();
        let all = |how| counted.iter().all(|m| m.gpu_memory.obtained.is_none_or(|o| o == how));
        // Two slots at once are added up at frames: their peaks may fall between those.
        let exact = !parallel && all(HowObtained::Counted);
        let summed = slots.iter().filter(|slot| slot.on_gpu() == with_gpu);
        MemorySource {
            what,
            name: if parts { "/proc/self/statm".to_string() } else { sources.join(" and ") },
            obtained: if exact { HowObtained::Counted } else { HowObtained::Sampled },
            limit: limits.of_run(with_gpu),
            limit_type: limits.safety(slots).limit_type,
            counted_peak: summed.filter_map(|slot| slot.peak).max().filter(|_| !parts),
            system_peak: None,
        }
    }

    /// The memory that belongs to no slot.
    pub(super) fn shared(
        &self,
        slots: &[SlotState; 2],
        guard: Option<&dyn BenchGuard>,
    ) -> SharedMemory {
        if let Some(totals) = guard.and_then(BenchGuard::whole) {
            return shared(
                "context, code and what no slot asked for",
                totals.shared_peak,
                "guard; the driver's own measured around its calls",
                HowObtained::Counted,
            );
        }
        let Some(before) = self.before else {
            return SharedMemory::unmeasured("no model was loaded, or the system does not tell");
        };
        let (what, peak) = match self.process_peak {
            Some(whole) => {
                let parts = slots.iter().filter(|slot| slot.reporter == MemoryReporter::Growth);
                let own: u64 = parts.filter_map(|slot| slot.memory).map(Bytes::get).sum();
                let beside = Bytes(whole.get().saturating_sub(own));
                ("the process beside its two models", beside)
            }
            None => ("the process before a model was loaded", before),
        };
        shared(what, peak, "/proc/self/statm", HowObtained::Sampled)
    }
}

fn shared(what: &str, peak: Bytes, source: &str, obtained: HowObtained) -> SharedMemory {
    SharedMemory {
        what: what.to_string(),
        peak_gb: Some(peak.as_gib()),
        source: Some(source.to_string()),
        obtained: Some(obtained),
        unknown: Unknown::new(),
    }
}
