//! Builds the record of a run from what was ingested so far.
//!
//! A slot that has not ended yet is `interrupted` in a report that is written while it runs. If
//! the process is killed and no later report is written, that is the truth.

use std::time::SystemTime;

use plimsoll::Bytes;
use plimsoll_infer::source::redact;

use super::event::MemoryReporter;
use super::guarded::BenchGuard;
use super::ingest::Ingest;
use super::machine;
use super::slot_state::SlotState;
use super::slots::Assignment;
use crate::doubt::Doubt;
use crate::measure::MemorySource;
use crate::record::time::rfc3339;
use crate::record::{
    BenchRecord, DoubtRecord, EnergyOf, GpuMemory, HowObtained, InputSource, InputStream,
    MeasuredWhat, Metadata, ModelRecord, Performance, RecordSummary, SCHEMA_VERSION, SharedMemory,
    Status, SystemMetrics, Unknown,
};
use crate::stats::interval::over_repeats;

/// Other programs may use this much of the processors before it is a doubt, in percent.
const OTHER_LOAD: f64 = 10.0;

/// A run at one moment.
pub(super) struct Snapshot<'s, 'a> {
    data: &'s Ingest<'a>,
}

impl<'s, 'a> Snapshot<'s, 'a> {
    /// What was ingested so far.
    pub(super) fn new(data: &'s Ingest<'a>) -> Snapshot<'s, 'a> {
        Snapshot { data }
    }

    /// The record. `last` is true when the run is over.
    pub(super) fn record(&self, interruption: Option<String>, last: bool) -> BenchRecord {
        let Ingest { run, limits, slots, .. } = self.data;
        let models: Vec<ModelRecord> = (0..slots.len()).map(|slot| self.model(slot)).collect();
        let mut record = BenchRecord {
            schema_version: SCHEMA_VERSION.to_string(),
            metadata: self.metadata(last),
            config: self.data.config(),
            input_source: InputSource { streams: self.streams(), unpaired: run.inputs.unpaired() },
            fusion: self.data.fusion.clone(),
            system_metrics: self.system(&models),
            memory_safety: limits.safety(slots),
            shared: self.shared(),
            doubts: self.doubts(),
            summary: RecordSummary::default(),
            interrupted: interruption.is_some(),
            interruption,
            models,
        };
        record.settle();
        record
    }

    /// One slot of it.
    pub(super) fn model(&self, slot: usize) -> ModelRecord {
        let state = &self.data.slots[slot];
        let layout = &self.data.run.layout.slots[slot];
        let (status, reason) = match (&layout.assignment, &state.status) {
            (Assignment::Skip(why), _) => (Status::Skipped, Some(why.clone())),
            (_, Some((status, reason))) => (*status, reason.clone()),
            (_, None) => {
                let did = match (state.running, state.frames) {
                    (true, _) => "was still running",
                    (false, 0) => "had not begun",
                    (false, _) => "was still being judged",
                };
                (Status::Interrupted, Some(format!("it {did} when this was written")))
            }
        };
        let why = reason.clone().unwrap_or_else(|| "nothing was measured".to_string());
        let mut model = ModelRecord::idle(slot, status, &why, self.slot_memory(state, &why));
        model.reason = reason;
        model.name = state.name();
        if layout.row.is_some() {
            (model.slot_name, model.row) = (None, layout.row.clone());
        }
        model.model_info.clone_from(&state.description);
        match &state.estimate {
            Some(Ok(estimate)) => model.estimate = Some(*estimate),
            Some(Err(why)) => {
                model.unknown.insert("estimate".to_string(), why.clone());
            }
            None => {}
        }
        model.weights_type.clone_from(&state.weights_type);
        model.performance = state.meter.performance();
        let repeats = self.data.run.plan.repeat > 1;
        if let Some(performance) = model.performance.as_mut().filter(|_| repeats) {
            performance.repeats_p50_ms.clone_from(&state.medians);
            performance.repeats_interval_ms = over_repeats(&state.medians);
        }
        if model.performance.is_some() {
            model.detection_summary = Some(state.detections());
            self.accuracy(state, &mut model);
            match self.energy(state, model.performance.as_ref()) {
                Ok((joules, of)) => {
                    (model.energy_per_frame_j, model.energy_of) = (Some(joules), Some(of));
                }
                Err(why) => {
                    for field in ["energy_per_frame_j", "energy_of"] {
                        model.unknown.insert(field.to_string(), why.clone());
                    }
                }
            }
        }
        model.timeline = state.meter.timeline();
        model.forget_reasons_of_known();
        model
    }

    /// The joules of a frame of this slot, or why they are not known.
    fn energy(
        &self,
        state: &SlotState,
        performance: Option<&Performance>,
    ) -> Result<(f64, EnergyOf), String> {
        if self.data.run.plan.parallel && self.data.run.layout.running() > 1 {
            return Err("two slots ran at once; system_metrics has the energy of both".to_string());
        }
        let Some((watts, of)) = state.power.mean() else {
            let rail = self.data.machine.facts().whole_rail.is_some();
            let why = match rail || state.on_gpu() {
                true => "no sample of the power was taken while it ran",
                false => "no sensor reports the power of the whole machine",
            };
            return Err(why.to_string());
        };
        let performance = performance.filter(|p| p.frames > 0);
        let performance = performance.ok_or_else(|| "no frame was measured".to_string())?;
        Ok((watts * performance.wall_s / performance.frames as f64, of))
    }

    /// How accurate a slot is, or why that is not known.
    fn accuracy(&self, state: &SlotState, model: &mut ModelRecord) {
        let why = match &state.judged {
            Some(Ok(judged)) => {
                model.accuracy = Some(judged.accuracy.clone());
                model.box_accuracy.clone_from(&judged.boxes);
                ""
            }
            Some(Err(why)) => why,
            None if self.data.run.layout.truth(state.slot).is_some() => "it was not judged",
            None => "there are no labels for these frames (--labels)",
        };
        model.unknown.insert("accuracy".to_string(), why.to_string());
    }

    /// The memory of a slot.
    fn slot_memory(&self, state: &SlotState, why: &str) -> GpuMemory {
        let limits = &self.data.limits;
        let what = state.what();
        let (limit, limit_type) = (limits.of_slot(state), limits.type_of_slot(state));
        let engine = state.description.as_ref().map_or("", |info| info.engine.as_str());
        let (name, obtained) = match state.reporter {
            MemoryReporter::Nobody => {
                let why = match state.description {
                    Some(_) => "the engine does not report what it uses on the device",
                    None => why,
                };
                return GpuMemory::unmeasured(what, limit, limit_type, why);
            }
            MemoryReporter::Process => {
                let name = "/proc/self/statm, less what slots before it left";
                (name.to_string(), HowObtained::Sampled)
            }
            MemoryReporter::Growth => {
                let name = "/proc/self/statm, growth while it alone was loaded and tried";
                (name.to_string(), HowObtained::Sampled)
            }
            MemoryReporter::Guard => ("guard, by the slot's tag".to_string(), HowObtained::Counted),
            MemoryReporter::EngineOnGpu | MemoryReporter::EngineOnHost => {
                (format!("{engine} allocator"), HowObtained::Counted)
            }
        };
        // A peak over all repeats is not in the samples of the last one.
        let counted = obtained == HowObtained::Counted || self.data.run.plan.repeat > 1;
        state.meter.memory(&MemorySource {
            what,
            name,
            obtained,
            limit,
            limit_type,
            counted_peak: state.peak.filter(|_| counted),
            system_peak: state.system_peak.map(|gib| Bytes((gib * (1u64 << 30) as f64) as u64)),
        })
    }

    /// Where the figures of the whole run come from, and the limit that they are compared with.
    fn run_source(&self, models: &[ModelRecord]) -> MemorySource {
        let Ingest { run, limits, slots, memory, .. } = self.data;
        let with_gpu = memory.with_gpu();
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
        let exact = !run.plan.parallel && all(HowObtained::Counted);
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
    fn shared(&self) -> SharedMemory {
        let Ingest { limits, slots, memory, .. } = self.data;
        if let Some(totals) = limits.guard(slots).and_then(BenchGuard::whole) {
            return shared_memory(
                "context, code and what no slot asked for",
                totals.shared_peak,
                "guard; the driver's own measured around its calls",
                HowObtained::Counted,
            );
        }
        let Some(before) = memory.before else {
            return SharedMemory::unmeasured("no model was loaded, or the system does not tell");
        };
        let (what, peak) = match memory.process_peak {
            Some(whole) => {
                let parts = slots.iter().filter(|slot| slot.reporter == MemoryReporter::Growth);
                let own: u64 = parts.filter_map(|slot| slot.memory).map(Bytes::get).sum();
                let beside = Bytes(whole.get().saturating_sub(own));
                ("the process beside its two models", beside)
            }
            None => ("the process before a model was loaded", before),
        };
        shared_memory(what, peak, "/proc/self/statm", HowObtained::Sampled)
    }

    fn metadata(&self, last: bool) -> Metadata {
        let run = self.data.run;
        let (host, device_name) = machine::names();
        let command = run.plan.command_line.iter();
        Metadata {
            tool: "plimsoll".to_string(),
            tool_version: env!("CARGO_PKG_VERSION").to_string(),
            run_name: self.data.output.folder.name().to_string(),
            started: rfc3339(run.started),
            finished: last.then(|| rfc3339(SystemTime::now())),
            host,
            os: std::env::consts::OS.to_string(),
            arch: std::env::consts::ARCH.to_string(),
            device_name,
            // Passwords and tokens are left out.
            command_line: command.map(|word| redact(word).into_owned()).collect(),
        }
    }

    /// What was read. A frame that no slot can use counts as one that cannot be read.
    fn streams(&self) -> Vec<InputStream> {
        let mut streams = self.data.run.inputs.records();
        for stream in &mut streams {
            let unfit = stream.slots.iter().map(|&slot| self.data.slots[slot].unfit).max();
            stream.corrupt += unfit.unwrap_or(0);
        }
        streams
    }

    fn system(&self, models: &[ModelRecord]) -> SystemMetrics {
        let Ingest { memory, machine, system, .. } = self.data;
        let performances = || models.iter().filter_map(|model| model.performance.as_ref());
        let frames = performances().map(|p| p.frames).sum();
        let wall = performances().map(|p| p.wall_s).sum();
        let usage = system.usage(&self.run_source(models));
        system.metrics(memory.architecture, &machine.facts(), usage, frames, wall)
    }

    fn doubts(&self) -> Vec<DoubtRecord> {
        let Ingest { machine, output, slots, doubts, .. } = self.data;
        let mut doubts = [doubts, output.failures()].concat();
        let others = machine.others().filter(|percent| *percent > OTHER_LOAD);
        if let Some(percent) = others {
            doubts.push(DoubtRecord::new(None, Doubt::OtherLoad { percent }));
        }
        if let Some(why) = machine.throttled_by() {
            doubts.push(DoubtRecord::new(None, Doubt::Throttled { why }));
        }
        for state in slots {
            let about_slot = |doubt| DoubtRecord::new(Some(state.slot), doubt);
            doubts.extend(state.meter.drift().map(about_slot));
            if state.no_number > 0 {
                let (n, frames) = (state.no_number, state.frames);
                doubts.push(about_slot(Doubt::NoNumbers { n, frames }));
            }
            if let Some(Err(why)) = &state.judged {
                doubts.push(about_slot(Doubt::NotJudged { why: why.clone() }));
            }
        }
        doubts
    }
}

fn shared_memory(what: &str, peak: Bytes, source: &str, obtained: HowObtained) -> SharedMemory {
    SharedMemory {
        what: what.to_string(),
        peak_gb: Some(peak.as_gib()),
        source: Some(source.to_string()),
        obtained: Some(obtained),
        unknown: Unknown::new(),
    }
}
