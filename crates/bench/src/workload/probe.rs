//! A slot's memory, once a frame.
//!
//! On a GPU the guard is asked, where the run is under it, or else the engine's allocator. On
//! the host it is the resident memory of the process: one read of an open file, a microsecond
//! or two, so that it can be done at every frame without being seen in the figures. What slots
//! before it have left in the process is not a slot's, and is taken off. Two slots at once would
//! both show the whole process: there a slot has what the process gained while it alone was
//! loaded and tried.

use plimsoll::Bytes;
pub(super) use plimsoll::probe::Resident;
use plimsoll_infer::InferenceEngine;

use super::event::Teller;
use super::guarded::Guard;

/// What the process held when a slot was about to be loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// Just then.
    pub(super) before: Bytes,
    /// Before the first slot of all.
    pub(super) base: Bytes,
}

/// Who is asked for a slot's memory.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    pub(super) teller: Teller,
    slot: usize,
    guard: Option<&'a dyn Guard>,
    resident: Option<Resident>,
    start: Option<Start>,
    grown: Option<Bytes>,
}

impl<'a> Probe<'a> {
    /// `together` where two slots run at once.
    pub(super) fn new(
        engine: &dyn InferenceEngine,
        start: Option<Start>,
        together: bool,
        slot: usize,
        guard: Option<&'a dyn Guard>,
    ) -> Probe<'a> {
        let on_gpu = !engine.info().device.starts_with("cpu");
        let tells = engine.memory().is_some();
        let resident = Resident::open().filter(|_| start.is_some());
        let guard = guard.filter(|guard| guard.slot(slot).is_some());
        let teller = match (on_gpu, tells) {
            (true, _) if guard.is_some() => Teller::Guard,
            (true, true) => Teller::EngineOnGpu,
            // The process's memory says nothing about a GPU's.
            (true, false) => Teller::Nobody,
            // A CPU engine's arena is only part of what it takes; but where the engine
            // only claims memory (echo) the process's is not the slot's.
            (false, true) if engine.info().name == "echo" => Teller::EngineOnHost,
            (false, _) if resident.is_some() && together => Teller::Growth,
            (false, _) if resident.is_some() => Teller::Process,
            (false, _) => Teller::Nobody,
        };
        let now = resident.as_ref().and_then(Resident::read);
        let grown = now.zip(start).map(|(now, start)| now.saturating_sub(start.before));
        Probe { teller, slot, guard, resident, start, grown }
    }

    /// What the slot holds now.
    pub(super) fn read(&self, engine: &dyn InferenceEngine) -> Option<Bytes> {
        match self.teller {
            Teller::Nobody => None,
            Teller::Process => {
                let Start { before, base } = self.start?;
                let grown = self.resident.as_ref()?.read()?.saturating_sub(before);
                Some(base.saturating_add(grown))
            }
            Teller::Growth => self.grown,
            Teller::Guard => self.guard?.slot(self.slot).map(|(now, _)| now),
            Teller::EngineOnGpu | Teller::EngineOnHost => {
                let memory = engine.memory()?;
                memory.reserved.or(memory.in_use).map(Bytes)
            }
        }
    }

    /// What was counted as its peak.
    pub(super) fn peak(&self, engine: &dyn InferenceEngine) -> Option<Bytes> {
        match self.teller {
            Teller::EngineOnGpu | Teller::EngineOnHost => engine.memory()?.peak.map(Bytes),
            Teller::Guard => self.guard?.slot(self.slot).map(|(_, peak)| peak),
            Teller::Nobody | Teller::Process | Teller::Growth => None,
        }
    }
}
