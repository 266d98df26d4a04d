//! Loads the model of a slot, and reads the slot's memory: apart from that of the process and of
//! the other slot.

use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use plimsoll::Bytes;
use plimsoll::platform::give_back_heap;
use plimsoll::probe::ResidentReader;
use plimsoll_infer::{
    Detection, EngineOptions, Frame, InferError, InferenceEngine, Pipeline, Tensor, engine,
};

use super::event::{LoopEnd, MemoryReporter};
use super::guarded::BenchGuard;
use super::job::SlotJob;
use crate::record::ModelDescription;

/// The first engine runs so often before anything is measured: each of its threads must have
/// run once.
const RUNS_TO_SETTLE: u32 = 3;

/// Where two slots run at once, they are loaded one after the other, so that what the process
/// gains meanwhile belongs to one of them, and begin together.
pub(super) struct LoadGate {
    loading: Mutex<()>,
    loaded: Barrier,
}

impl LoadGate {
    /// Waits until all slots have come here.
    pub(super) fn wait(&self) {
        self.loaded.wait();
    }

    pub(super) fn new(slots: usize) -> LoadGate {
        LoadGate { loading: Mutex::new(()), loaded: Barrier::new(slots) }
    }
}

/// Memory of the process without a model, for each engine that has run in it: that of the process
/// before any engine ran, and what this engine left. What other engines left does not count, so
/// that the order of rows does not change their figures.
#[derive(Debug, Default)]
pub(super) struct ProcessBases {
    known: Mutex<Vec<(&'static str, Bytes)>>,
    /// The process before any engine ran.
    clean: OnceLock<Bytes>,
}

impl ProcessBases {
    fn of(&self, engine: &str) -> Option<Bytes> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(name, _)| *name == engine).map(|(_, base)| *base)
    }

    /// An engine has run: the memory of the process before and after.
    fn settled(&self, engine: &'static str, before: Option<Bytes>, after: Option<Bytes>) {
        let Some((before, after)) = before.zip(after) else { return };
        let clean = *self.clean.get_or_init(|| before);
        let base = clean.saturating_add(after.saturating_sub(before));
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push((engine, base));
    }
}

/// A model that is loaded, and what the measuring loop keeps about it.
pub(super) struct LoadedSlot<'a> {
    pub(super) pipeline: Pipeline,
    pub(super) probe: SlotProbe<'a>,
    /// Memory of the process before there was a model.
    pub(super) before: Option<Bytes>,
    /// Frames that were measured.
    pub(super) measured: u64,
    /// The frames that the report will show.
    pub(super) shown: Vec<(Frame, Vec<Detection>)>,
    live: bool,
    /// The start of a live source's clock, by ours: the least delay that was seen.
    capture: Option<Instant>,
}

impl LoadedSlot<'_> {
    /// When a frame was captured, where it comes from a live source; else now. A source's
    /// clock starts at another time; the frame with the least delay sets the difference.
    pub(super) fn captured(&mut self, timestamp: Duration, now: Instant) -> Instant {
        if !self.live {
            return now;
        }
        let Some(origin) = now.checked_sub(timestamp) else { return now };
        let origin = self.capture.map_or(origin, |before| before.min(origin));
        self.capture = Some(origin);
        origin + timestamp
    }

    pub(super) fn describe(&self) -> ModelDescription {
        let engine = self.pipeline.engine();
        let mut description = ModelDescription::new(engine.model(), engine.info());
        let (rows, columns) = self.pipeline.size();
        description.input_size = Some([rows, columns]);
        let classes = self.pipeline.decoder().names().len();
        description.classes = (classes > 0).then_some(classes);
        description
    }
}

impl<'a> SlotJob<'a> {
    /// Loads the model while no other slot does, and waits until the other slot has loaded its
    /// own; `None` where the run was stopped.
    pub(super) fn load(&self, live: bool) -> Option<Result<LoadedSlot<'a>, LoopEnd>> {
        let alone = self.gate.map(|gate| gate.loading.lock());
        let opened = (!self.stopped()).then(|| self.open(live));
        drop(alone);
        if let Some(gate) = self.gate {
            gate.wait();
        }
        opened
    }

    fn open(&self, live: bool) -> Result<LoadedSlot<'a>, LoopEnd> {
        if let Some(why) = self.refused {
            return Err(LoopEnd::Refused(format!("model {}: {why}", self.weights.name())));
        }
        let options = self.plan.engine_options(self.limit);
        let (mut engine, before) = self.open_engine(&options)?;
        if self.gate.is_some() {
            // Some engines allocate at the first run, and that memory is the slot's.
            run_once(&mut *engine, &options)?;
        }
        let base = self.bases.of(engine.info().name).or(before);
        let start = before.zip(base).map(|(before, base)| SlotStart { before, base });
        let (together, guard) = (self.gate.is_some(), self.plan.guard.get());
        let probe = SlotProbe::new(&*engine, start, together, self.slot, guard);
        let pipeline = Pipeline::new(engine, options.open_size(), self.plan.thresholds())?;
        Ok(LoadedSlot {
            pipeline,
            probe,
            before: base,
            measured: 0,
            shown: Vec::new(),
            live,
            capture: None,
        })
    }

    /// Opens the engine. Also returns the memory of the process before that.
    ///
    /// The first run of an engine on the host leaves memory in the process that does not belong
    /// to its model: threads, code, fragments of the heap. So it is opened, run and closed once
    /// before it counts. Equal models then have equal figures, whichever is first.
    fn open_engine(
        &self,
        options: &EngineOptions,
    ) -> Result<(Box<dyn InferenceEngine>, Option<Bytes>), InferError> {
        let process = || ResidentReader::open().and_then(|resident| resident.read());
        let open = || engine::open(self.engine, &self.weights, options);
        // Memory that others have freed must neither count for this slot nor hide its own.
        give_back_heap();
        let before = process();
        let mut first = open()?;
        let name = first.info().name;
        let on_host = first.info().device.starts_with("cpu");
        if self.bases.of(name).is_some() || !on_host {
            return Ok((first, before));
        }
        for _ in 0..RUNS_TO_SETTLE {
            run_once(&mut *first, options)?;
        }
        drop(first);
        give_back_heap();
        let after = process();
        self.bases.settled(name, before, after);
        Ok((open()?, after))
    }
}

/// Runs a model on zeros.
fn run_once(engine: &mut dyn InferenceEngine, options: &EngineOptions) -> Result<(), InferError> {
    let (rows, columns) = engine.model().input_size.unwrap_or(options.open_size());
    engine.run(&Tensor::zeros(&[1, 3, rows, columns])).map(drop)
}

/// The memory of the process before a slot was loaded.
#[derive(Debug, Clone, Copy)]
struct SlotStart {
    /// Just before.
    before: Bytes,
    /// Before the first slot.
    base: Bytes,
}

/// Reads a slot's memory, once a frame.
///
/// On a GPU the guard reports it, where the run is under the guard, or else the engine's
/// allocator. On the host it is the resident memory of the process: one read of an open file
/// takes a microsecond or two, so reading it at every frame does not change the figures. What
/// earlier slots have left in the process does not belong to a slot, and is subtracted. Two slots
/// at once would both show the whole process; so each has what the process gained while it alone
/// was loaded and tried.
#[derive(Debug)]
pub(super) struct SlotProbe<'a> {
    pub(super) reporter: MemoryReporter,
    slot: usize,
    guard: Option<&'a dyn BenchGuard>,
    resident: Option<ResidentReader>,
    start: Option<SlotStart>,
    grown: Option<Bytes>,
}

impl<'a> SlotProbe<'a> {
    /// `together` says that two slots run at once.
    fn new(
        engine: &dyn InferenceEngine,
        start: Option<SlotStart>,
        together: bool,
        slot: usize,
        guard: Option<&'a dyn BenchGuard>,
    ) -> SlotProbe<'a> {
        let on_gpu = !engine.info().device.starts_with("cpu");
        let tells = engine.memory().is_some();
        let resident = ResidentReader::open().filter(|_| start.is_some());
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
        let now = resident.as_ref().and_then(ResidentReader::read);
        let grown = now.zip(start).map(|(now, start)| now.saturating_sub(start.before));
        SlotProbe { reporter, slot, guard, resident, start, grown }
    }

    /// What the slot uses now.
    pub(super) fn read(&self, engine: &dyn InferenceEngine) -> Option<Bytes> {
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
    pub(super) fn peak(&self, engine: &dyn InferenceEngine) -> Option<Bytes> {
        match self.reporter {
            MemoryReporter::EngineOnGpu | MemoryReporter::EngineOnHost => {
                engine.memory()?.peak.map(Bytes)
            }
            MemoryReporter::Guard => self.guard?.slot(self.slot).map(|(_, peak)| peak),
            MemoryReporter::Nobody | MemoryReporter::Process | MemoryReporter::Growth => None,
        }
    }
}
