//! The memory of the whole run: what all slots hold together, once a frame.
//!
//! On a GPU it is what the slots on it hold; without one it is the process. The two are never
//! added: they are different memories, and the limit is about one of them.

use plimsoll::Bytes;

use super::event::MemoryReporter;
use super::probe::Resident;
use super::recorder::Recorder;
use crate::measure::MemorySource;
use crate::record::{HowObtained, MeasuredWhat, MemoryArchitecture, MemoryUsage, ModelRecord};

impl Recorder<'_> {
    /// What all slots hold now, after a frame of this one; nothing where that is not of the
    /// memory that is summed up, or nobody tells.
    pub(super) fn held_together(&self, slot: usize) -> Option<Bytes> {
        let page = &self.pages[slot];
        let with_gpu = self.architecture != MemoryArchitecture::NoGpu;
        if page.on_gpu() != with_gpu {
            return None;
        }
        if page.teller == MemoryReporter::Growth {
            return self.process.as_ref().and_then(Resident::read);
        }
        page.memory?;
        let running = self.pages.iter().filter(|page| page.running && page.on_gpu() == with_gpu);
        running.filter_map(|page| page.memory).reduce(Bytes::saturating_add)
    }

    /// The memory of the whole run so far.
    pub(super) fn usage(&self, models: &[ModelRecord; 2]) -> MemoryUsage {
        let with_gpu = self.architecture != MemoryArchitecture::NoGpu;
        let what = match with_gpu {
            true => MeasuredWhat::GpuAllocations,
            false => MeasuredWhat::ProcessMemory,
        };
        let parts = self.pages.iter().any(|page| page.teller == MemoryReporter::Growth);
        let counted: Vec<&ModelRecord> =
            models.iter().filter(|model| model.gpu_memory.what.is_gpu() == with_gpu).collect();
        let mut sources: Vec<&str> =
            counted.iter().filter_map(|model| model.gpu_memory.source.as_deref()).collect();
        sources.dedup();
        let all = |how| counted.iter().all(|m| m.gpu_memory.obtained.is_none_or(|o| o == how));
        // Two at once are added up at frames: their peaks need not fall together.
        let exact = !self.plan.parallel && all(HowObtained::Counted);
        let pages = self.pages.iter().filter(|page| page.on_gpu() == with_gpu);
        self.system.usage(&MemorySource {
            what,
            name: if parts { "/proc/self/statm".to_string() } else { sources.join(" and ") },
            obtained: if exact { HowObtained::Counted } else { HowObtained::Sampled },
            limit: (with_gpu || self.limits.watches_process).then_some(self.limit),
            limit_type: self.safety().limit_type,
            counted_peak: pages.filter_map(|page| page.peak).max().filter(|_| !parts),
            system_peak: None,
        })
    }
}
