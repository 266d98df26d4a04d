//! Derives the fields of a record that follow from others: within the limit or not, doubts, the
//! summary.
//!
//! The code that fills a record fills in only what was measured. Everything that follows is
//! derived here, once, so that no two places can differ. Deriving it twice changes nothing.

use plimsoll::Bytes;

use super::{
    BenchRecord, Closest, DoubtRecord, HowObtained, MemoryArchitecture, ModelRecord, RecordSummary,
    ReportLimitType, Status,
};
use crate::doubt::{Doubt, of_latency};

impl BenchRecord {
    /// Derives what follows from the other fields. Doubts that only the run itself can know
    /// (drift, throttling, other load) stay as they are.
    pub fn settle(&mut self) {
        for model in &mut self.models {
            let memory = &mut model.gpu_memory;
            memory.within_limit =
                memory.peak_gb.zip(memory.limit_gb).map(|(peak, limit)| peak <= limit);
        }
        self.settle_safety();
        self.settle_usage();
        self.settle_doubts();
        self.settle_summary();
    }

    /// Whether the run has the two slots, and not a row for each model and engine.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.models.iter().any(|model| model.slot_name.is_some())
    }

    /// The slots or rows in which something ran.
    pub fn ran(&self) -> impl Iterator<Item = &ModelRecord> {
        self.models.iter().filter(|model| model.performance.is_some())
    }

    /// The exit code of a program that ran this: 0 success, 1 a violation where the user asked
    /// for that, 2 all slots skipped, 3 one failed and none completed, or in a strict run some
    /// output could not be written or a slot not be judged.
    #[must_use]
    pub fn exit_code(&self, fail_on_violation: bool) -> u8 {
        let RecordSummary { completed, skipped, failed, .. } = self.summary;
        match () {
            () if skipped == self.models.len() => 2,
            () if failed > 0 && completed == 0 => 3,
            () if self.config.strict && self.is_incomplete() => 3,
            () if fail_on_violation && self.memory_safety.all_within_limit == Some(false) => 1,
            () => 0,
        }
    }

    /// Whether something that was asked for could not be written or judged.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        let is_lost = |doubt: &Doubt| {
            matches!(doubt, Doubt::OutputIncomplete { .. } | Doubt::NotJudged { .. })
        };
        self.doubts.iter().any(|doubt| is_lost(&doubt.doubt))
    }

    fn settle_safety(&mut self) {
        let limit = self.memory_safety.effective_limit_gb;
        let mut closest: Vec<Closest> = Vec::new();
        for model in &self.models {
            let compared = model.gpu_memory.limit_gb.is_some();
            if let Some(peak_gb) = model.gpu_memory.peak_gb.filter(|_| compared) {
                let percent_of_limit = if limit > 0.0 { peak_gb / limit * 100.0 } else { 100.0 };
                let (slot, name) = (model.slot, model.name.clone());
                closest.push(Closest { slot, name, peak_gb, percent_of_limit });
            }
        }
        closest.sort_by(|a, b| b.peak_gb.total_cmp(&a.peak_gb));
        let exceeded = self.models.iter().any(|m| m.gpu_memory.within_limit == Some(false));
        let ran: Vec<Option<bool>> = self.ran().map(|m| m.gpu_memory.within_limit).collect();
        let unknown = self.ran().find(|m| m.gpu_memory.within_limit.is_none()).map(|model| {
            let why = model.gpu_memory.unknown.get("within_limit").map(String::as_str);
            format!("{}: {}", model.label(), why.unwrap_or("its memory was not measured"))
        });
        let safety = &mut self.memory_safety;
        safety.closest_to_limit = closest;
        safety.all_within_limit = match () {
            () if exceeded || safety.total_violations > 0 => Some(false),
            () if ran.is_empty() || ran.contains(&None) => None,
            () => Some(true),
        };
        safety.reason = match safety.all_within_limit {
            Some(_) => None,
            None => Some(unknown.unwrap_or_else(|| "no slot ran".to_string())),
        };
    }

    /// The memory of the whole run: violations, and the GPU's share of a unified memory.
    fn settle_usage(&mut self) {
        let system = self.models.iter().filter_map(|m| m.gpu_memory.system_peak_gb);
        let system = system.reduce(f64::max).filter(|used| *used > 0.0);
        let metrics = &mut self.system_metrics;
        let unified = metrics.architecture == MemoryArchitecture::Unified;
        let usage = &mut metrics.gpu_memory;
        usage.violations = self.memory_safety.total_violations;
        let share = usage.peak_gb.zip(system).filter(|_| unified && usage.what.is_gpu());
        usage.percent_of_system_used = share.map(|(own, system)| own / system * 100.0);
        match usage.percent_of_system_used {
            Some(_) => usage.unknown.remove("percent_of_system_used"),
            None => {
                let why = match unified {
                    true => "the GPU's memory or the system's was not measured",
                    false => "the GPU's memory is no part of the system's, or no GPU was used",
                };
                usage.unknown.insert("percent_of_system_used".to_string(), why.to_string())
            }
        };
    }

    fn settle_doubts(&mut self) {
        // What concerns the whole run comes first, then each slot.
        let mut found: Vec<DoubtRecord> = Vec::new();
        let mut add = |slot, doubt| found.push(DoubtRecord::new(slot, doubt));
        let safety = &self.memory_safety;
        match safety.limit_type {
            ReportLimitType::Hard if !safety.verified => add(None, Doubt::LimitNotVerified),
            ReportLimitType::Hard => {}
            other => add(None, Doubt::LimitNotHard { limit_type: other.to_string() }),
        }
        if self.system_metrics.clocks_locked != Some(true) {
            add(None, Doubt::ClocksNotLocked);
        }
        if self.system_metrics.power_mode.is_none() {
            add(None, Doubt::PowerModeUnknown);
        }
        let corrupt = self.input_source.streams.iter().map(|stream| stream.corrupt).sum();
        if corrupt > 0 {
            add(None, Doubt::CorruptFrames { n: corrupt });
        }
        if let Some(n) = self.input_source.unpaired.filter(|n| *n > 0) {
            add(None, Doubt::UnpairedFrames { n });
        }
        for model in &self.models {
            doubts_of(model, |doubt| add(Some(model.slot), doubt));
        }
        for doubt in std::mem::take(&mut self.doubts) {
            if !found.contains(&doubt) && !is_derived(&doubt.doubt) {
                found.push(doubt);
            }
        }
        self.doubts = found;
    }

    fn settle_summary(&mut self) {
        let count = |status| self.models.iter().filter(|m| m.status == status).count();
        let [completed, skipped, failed, interrupted] =
            [Status::Completed, Status::Skipped, Status::Failed, Status::Interrupted].map(count);
        let frames = self.ran().filter_map(|m| m.performance.as_ref()).map(|p| p.frames).sum();
        let safety = &self.memory_safety;
        let memory = match safety.all_within_limit {
            Some(true) => "memory stayed within the limit".to_string(),
            Some(false) => {
                format!("memory exceeded the limit ({} violations)", safety.total_violations)
            }
            None => "whether memory stayed within the limit is not known".to_string(),
        };
        let (all, what) = (self.models.len(), if self.has_slots() { "slot" } else { "row" });
        let s = if all == 1 { "" } else { "s" };
        let text = format!("{completed} of {all} {what}{s} completed, {frames} frames; {memory}");
        let doubts = self.doubts.len();
        self.summary =
            RecordSummary { completed, skipped, failed, interrupted, frames, doubts, text };
    }
}

/// Whether [`BenchRecord::settle`] derives this doubt itself and so replaces an old one.
fn is_derived(doubt: &Doubt) -> bool {
    matches!(
        doubt,
        Doubt::TooFewFrames { .. }
            | Doubt::ClocksNotLocked
            | Doubt::PowerModeUnknown
            | Doubt::ProviderFallback { .. }
            | Doubt::NoMemorySample { .. }
            | Doubt::MemorySampled { .. }
            | Doubt::CorruptFrames { .. }
            | Doubt::DroppedFrames { .. }
            | Doubt::UnpairedFrames { .. }
            | Doubt::LimitNotHard { .. }
            | Doubt::LimitNotVerified
            | Doubt::EstimateTooLow { .. }
    )
}

/// The estimate, the peak and the limit, where the estimate is below the limit and the peak
/// above.
fn too_low(model: &ModelRecord) -> Option<(f64, f64, f64)> {
    let estimate = Bytes(model.estimate.as_ref()?.total_bytes).as_gib();
    let (peak, limit) = model.gpu_memory.peak_gb.zip(model.gpu_memory.limit_gb)?;
    (estimate <= limit && peak > limit).then_some((estimate, peak, limit))
}

fn doubts_of(model: &ModelRecord, mut add: impl FnMut(Doubt)) {
    for what in model.model_info.iter().flat_map(|info| info.fallbacks.clone()) {
        add(Doubt::ProviderFallback { what });
    }
    let Some(performance) = &model.performance else { return };
    // All stages have as many frames as the whole, so one doubt covers all of them.
    if let Some(doubt) = of_latency("every stage", &performance.whole) {
        add(doubt);
    }
    if let Some(n) = performance.dropped.filter(|n| *n > 0) {
        add(Doubt::DroppedFrames { n, offered: n + performance.frames });
    }
    let memory = &model.gpu_memory;
    if let Some((estimate, peak_gb, limit_gb)) = too_low(model) {
        add(Doubt::EstimateTooLow { estimate_gb: estimate, peak_gb, limit_gb });
    }
    match (memory.peak_gb, memory.obtained) {
        (None, _) => {
            let why = memory.unknown.get("peak_gb").cloned();
            add(Doubt::NoMemorySample { why: why.unwrap_or_else(|| "no reason given".into()) });
        }
        (Some(_), Some(HowObtained::Sampled)) => {
            add(Doubt::MemorySampled { samples: memory.samples });
        }
        _ => {}
    }
}
