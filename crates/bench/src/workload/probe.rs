//! Reads a slot's memory, once a frame.
//!
//! On a GPU the guard reports it, where the run is under the guard, or else the engine's
//! allocator. On the host it is the resident memory of the process: one read of an open file
//! takes a microsecond or two, so reading it at every frame does not change the figures. What
//! earlier slots have left in the process does not belong to a slot, and is subtracted. Two slots
//! at once would both show the whole process; so each has what the process gained while it alone
//! was loaded and tried.

use plimsoll::Bytes;
pub(super) use plimsoll::probe::Resident;
use plimsoll_infer::Engine;

use super::event::MemoryReporter;
use super::guarded::BenchGuard;

/// The memory of the process before a slot was loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotStart {
    /// Just before.
    pub(super) before: Bytes,
    /// Before the first slot.
    pub(super) base: Bytes,
}

/// Reads a slot's memory.
#[derive(Debug)]
pub(super) struct SlotProbe<'a> {
    pub(super) reporter: MemoryReporter,
    slot: usize,
    guard: Option<&'a dyn BenchGuard>,
    resident: Option<Resident>,
    start: Option<SlotStart>,
    grown: Option<Bytes>,
}

impl<'a> SlotProbe<'a> {
    /// `together` says that two slots run at once.
    pub(super) fn new(
        engine: &dyn Engine,
        start: Option<SlotStart>,
        together: bool,
        slot: usize,
        guard: Option<&'a dyn BenchGuard>,
    ) -> SlotProbe<'a> {
        let on_gpu = !engine.info().device.starts_with("cpu");
        let tells = engine.memory().is_some();
        let resident = Resident::open().filter(|_| start.is_some());
        let guard = guard.filter(|guard| guard.slot(slot).is_some());
        let reporter = match (on_gpu, tells) {
            (true, _) if guard.is_some() => MemoryReporter::Guard,
            (true, true) => MemoryReporter::EngineOnGpu,
            // The memory of the process says nothing about a GPU's.
            (true, false) => MemoryReporter::Nobody,
            // The arena of an engine on the CPU is only a part of its memory. But `echo` only
            // pretends to use memory, so that of the process is not the slot's.
            (false, true) if engine.info().name == "echo" => MemoryReporter::EngineOnHost,
            (false, _) if resident.is_some() && together => MemoryReporter::Growth,
            (false, _) if resident.is_some() => MemoryReporter::Process,
            (false, _) => MemoryReporter::Nobody,
        };
        let now = resident.as_ref().and_then(Resident::read);
        let grown = now.zip(start).map(|(now, start)| now.saturating_sub(start.before));
        SlotProbe { reporter, slot, guard, resident, start, grown }
    }

    /// What the slot uses now.
    pub(super) fn read(&self, engine: &dyn Engine) -> Option<Bytes> {
        match self.reporter {
            MemoryReporter::Nobody => None,
            MemoryReporter::Process => {
                let SlotStart { before, base } = self.start?;
                let grown = self.resident.as_ref()?.read()?.saturating_sub(before);
                Some(base.saturating_add(grown))
            }
            MemoryReporter::Growth => self.grown,
            MemoryReporter::Guard => self.guard?.slot(self.slot).map(|(now, _)| now),
            MemoryReporter::EngineOnGpu | MemoryReporter::EngineOnHost => {
                let memory = engine.memory()?;
                memory.reserved.or(memory.in_use).map(Bytes)
            }
        }
    }

    /// The peak that was counted.
    pub(super) fn peak(&self, engine: &dyn Engine) -> Option<Bytes> {
        match self.reporter {
            MemoryReporter::EngineOnGpu | MemoryReporter::EngineOnHost => {
                engine.memory()?.peak.map(Bytes)
            }
            MemoryReporter::Guard => self.guard?.slot(self.slot).map(|(_, peak)| peak),
            MemoryReporter::Nobody | MemoryReporter::Process | MemoryReporter::Growth => None,
        }
    }
}
