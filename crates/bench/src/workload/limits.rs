//! The memory limit of a run: who enforces it for each slot, what is compared with it, and how
//! often it was passed.
//!
//! `bench` itself allocates nothing on a GPU; its engines do. So a limit is enforced by the
//! guard, by the driver (an MPS client limit), or by the engine that received it. Otherwise
//! nothing enforces it, and `bench` can only watch. What the record says about a slot is true for
//! the engine and the device that ran it, and is not known before the model is loaded.
//!
//! A limit of GPU memory is compared with what a slot uses on a GPU. A run that was meant for
//! the CPU, or on a machine without a GPU, compares the memory of the process instead. Where a
//! slot fell back from a GPU to the CPU nothing is compared: the memory of the process says
//! nothing about a GPU's.
//!
//! One violation is one time that the memory of a slot, the process, the device or the system
//! rose above its limit.

use std::time::SystemTime;

use plimsoll::backend::{BackendKind, DeviceId, count, open};
use plimsoll::machine::with_timeout;
use plimsoll::{Bytes, GpuMemoryManager, LimitReport, MemoryConfig};
use plimsoll_infer::{EngineChoice, EngineDevice};

use super::event::SlotOutcome;
use super::guarded::{BenchGuard, GuardTotals, Guarded};
use super::plan::BenchPlan;
use super::slot_state::SlotState;
use crate::record::time::rfc3339;
use crate::record::{MemorySafety, ReportLimitType, Status, Violation};

/// The limit of a run.
#[derive(Debug)]
pub(super) struct BenchLimits<'a> {
    plan: &'a BenchPlan,
    /// Watches the system's memory where the GPU shares it.
    manager: GpuMemoryManager,
    /// What was applied, and every violation so far.
    safety: MemorySafety,
    /// The limit that is enforced or watched.
    effective: Bytes,
    /// Whether the driver enforces it for this process; verified by a request.
    by_driver: bool,
    /// Whether the memory of the process is compared with it, for slots on the CPU.
    watches_process: bool,
    /// What was above its limit at the last check.
    above: AboveLimit,
}

/// What was above its limit at the last check. The slots keep their own flag.
#[derive(Debug, Default)]
struct AboveLimit {
    process: bool,
    device: bool,
    system: bool,
}

/// Who enforces the limit for a slot.
struct LimitHolder {
    limit_type: ReportLimitType,
    method: Option<String>,
    verified: bool,
}

impl<'a> BenchLimits<'a> {
    /// Sets the limit, with the guard where there is one.
    pub(super) fn start(plan: &'a BenchPlan) -> plimsoll::Result<BenchLimits<'a>> {
        let manager = GpuMemoryManager::new(MemoryConfig::for_inference())?;
        let mut report = manager.apply_limits(&plan.limit_request()?)?;
        let driver = limit_of_driver(plan);
        let by_driver = driver.as_ref().is_some_and(is_by_driver);
        // What prevents the driver's own limit is worth knowing.
        let more = driver.into_iter().flat_map(|driver| driver.warnings);
        let new: Vec<String> = more.filter(|warning| !report.warnings.contains(warning)).collect();
        report.warnings.extend(new);
        let mut safety = MemorySafety::from(&report);
        let mut effective = report.effective_limit;
        let watches_process = !may_fall_back(plan);
        if let Some(guard) = plan.guard.get() {
            effective = guard.hold(effective, plan.keep_free);
            safety.effective_limit_gb = effective.as_gib();
        }
        let above = AboveLimit::default();
        Ok(BenchLimits { plan, manager, safety, effective, by_driver, watches_process, above })
    }

    /// The limit that is enforced or watched.
    pub(super) fn effective(&self) -> Bytes {
        self.effective
    }

    /// The limit that was asked for, clamped to the profile.
    pub(super) fn requested(&self) -> Bytes {
        Bytes((self.safety.limit_gb * (1u64 << 30) as f64) as u64)
    }

    /// What a slot is compared with: nothing where it fell back to the CPU.
    pub(super) fn of_slot(&self, slot: &SlotState) -> Option<Bytes> {
        (!slot.on_host() || self.watches_process).then_some(self.effective)
    }

    /// What the whole run is compared with, on a GPU or as a process.
    pub(super) fn of_run(&self, with_gpu: bool) -> Option<Bytes> {
        (with_gpu || self.watches_process).then_some(self.effective)
    }

    /// How strictly the limit is enforced for a slot, as far as that is known.
    pub(super) fn type_of_slot(&self, slot: &SlotState) -> ReportLimitType {
        self.holder(slot).limit_type
    }

    /// The guard, unless every slot that was loaded runs on the host, where it enforces nothing.
    pub(super) fn guard(&self, slots: &[SlotState]) -> Option<&'a dyn BenchGuard> {
        let mut loaded = slots.iter().filter(|slot| slot.description.is_some()).peekable();
        let only_host = loaded.peek().is_some() && loaded.all(SlotState::on_host);
        self.plan.guard.get().filter(|_| !only_host)
    }

    /// Who enforces the limit for a slot, as far as that is known.
    fn holder(&self, slot: &SlotState) -> LimitHolder {
        let by = |limit_type, method: String, verified| LimitHolder {
            limit_type,
            method: Some(method),
            verified,
        };
        let nobody =
            LimitHolder { limit_type: ReportLimitType::Unavailable, method: None, verified: false };
        if slot.on_host() {
            return nobody;
        }
        let engine = slot.description.as_ref().filter(|info| info.limit_applied);
        match (self.plan.guard.get(), engine) {
            (Some(guard), _) => {
                let verified = guard.whole().is_some_and(|whole| whole.verified);
                by(ReportLimitType::Hard, "guard".to_string(), verified)
            }
            (None, _) if self.by_driver => by(ReportLimitType::Hard, "mps".to_string(), true),
            (None, Some(info)) => {
                by(ReportLimitType::Soft, format!("{} arena", info.engine), false)
            }
            (None, None) => nobody,
        }
    }

    /// The limit and its violations so far. It is as strict as for the slot where it is
    /// enforced least.
    pub(super) fn safety(&self, slots: &[SlotState]) -> MemorySafety {
        let mut safety = self.safety.clone();
        let loaded = slots.iter().filter(|slot| slot.description.is_some());
        let mut holders: Vec<LimitHolder> = loaded.map(|slot| self.holder(slot)).collect();
        if holders.is_empty() {
            holders.extend(slots.first().map(|slot| self.holder(slot)));
        }
        let weakest = holders.iter().map(|holder| holder.limit_type).max();
        safety.limit_type = weakest.unwrap_or(ReportLimitType::Unavailable);
        safety.verified = holders.iter().all(|holder| holder.verified);
        for method in holders.into_iter().filter_map(|holder| holder.method).rev() {
            if !safety.methods_applied.contains(&method) {
                safety.methods_applied.insert(0, method);
            }
        }
        safety.warnings.extend(self.guard_warning(slots));
        safety
    }

    /// What the user should know about the guard.
    fn guard_warning(&self, slots: &[SlotState]) -> Option<String> {
        if let Guarded::Not(why) = &self.plan.guard {
            return Some(format!("the guard does not hold this run: {why}"));
        }
        let GuardTotals { refused, refused_bytes, .. } = self.guard(slots)?.whole()?;
        (refused > 0).then(|| {
            format!("the guard refused {refused} requests past the limit, {refused_bytes} in all")
        })
    }

    /// Compares the memory of a slot with the limit. Returns a new violation, in words.
    pub(super) fn check_slot(&mut self, slot: &mut SlotState, used: Bytes) -> Option<String> {
        let limit = self.of_slot(slot)?;
        let above = used > limit;
        let was_above = std::mem::replace(&mut slot.above_limit, above);
        (above && !was_above).then(|| self.violation(Some(slot.slot), &slot.title(), used, limit))
    }

    /// Compares the memory of the whole process, where a slot's memory is only a part of it.
    pub(super) fn check_process(&mut self, used: Bytes) -> Option<String> {
        let above = used > self.effective && self.watches_process;
        let was_above = std::mem::replace(&mut self.above.process, above);
        (above && !was_above).then(|| self.violation(None, "the process", used, self.effective))
    }

    /// Compares the memory of the device, of which the driver takes a part that cannot be
    /// refused. That is a peak, so it is a violation once.
    pub(super) fn check_device(&mut self, slots: &[SlotState]) -> Option<String> {
        let used = self.guard(slots).and_then(BenchGuard::whole)?.peak;
        let rose = used > self.effective && !std::mem::replace(&mut self.above.device, true);
        rose.then(|| self.violation(None, "the device", used, self.effective))
    }

    /// Compares the system's memory with what must stay free, where the GPU shares it.
    pub(super) fn check_system(&mut self) -> Option<String> {
        let check = self.manager.validate_memory_within_limit();
        let found = check.violations.iter().find(|violation| violation.device == "system");
        let was_above = std::mem::replace(&mut self.above.system, found.is_some());
        let found = found.filter(|_| !was_above)?;
        Some(self.violation(None, "the system", found.held, found.limit))
    }

    /// Counts a violation and returns it in words.
    fn violation(&mut self, slot: Option<usize>, who: &str, used: Bytes, limit: Bytes) -> String {
        let time = rfc3339(SystemTime::now());
        self.safety.violated(Violation { time, slot, bytes: used.get() });
        format!("VIOLATION: {who} holds {used}, more than the limit of {limit}")
    }

    /// Why a slot failed. Where memory was refused, by the guard or by the engine, that is what
    /// it needed and what to do.
    pub(super) fn why_failed(&self, slot: &SlotState, outcome: &SlotOutcome) -> Option<String> {
        let cause = outcome.reason.clone()?;
        let on_host = self.plan.device == EngineDevice::Cpu || slot.on_host();
        let refused = outcome.out_of_memory || outcome.asked_for.is_some();
        if outcome.status != Status::Failed || on_host || !refused {
            return Some(cause);
        }
        let estimate = slot.estimate.as_ref().and_then(|found| found.as_ref().ok());
        let estimate = estimate.map(|estimate| Bytes(estimate.total_bytes));
        let device = self.plan.device.to_string();
        Some(does_not_fit(&device, self.effective, &cause, outcome.asked_for, estimate))
    }
}
/// Whether the driver itself limits this process on the GPU that the user named. A temporary
/// manager verifies that.
fn limit_of_driver(plan: &BenchPlan) -> Option<LimitReport> {
    let EngineDevice::Cuda(number) = plan.device else { return None };
    let manager = GpuMemoryManager::new(MemoryConfig::for_inference()).ok()?;
    manager.add_device(open(DeviceId { kind: BackendKind::Cuda, number }).ok()?);
    manager.apply_limits(&plan.limit_request().ok()?).ok()
}

fn is_by_driver(report: &LimitReport) -> bool {
    report.methods_applied.iter().any(|method| method == "mps")
}

/// Whether a slot of this plan that runs on the CPU has fallen back from a GPU.
fn may_fall_back(plan: &BenchPlan) -> bool {
    let host_only = plan.engines().into_iter().all(EngineChoice::is_host_only);
    let for_cpu = plan.device == EngineDevice::Cpu || host_only;
    let gpus =
        || with_timeout(|| count(BackendKind::Cuda)).is_some_and(|gpus| gpus.is_ok_and(|n| n > 0));
    !for_cpu && gpus()
}

/// The message for a model that does not fit: what it needed, and what to do.
fn does_not_fit(
    device: &str,
    limit: Bytes,
    cause: &str,
    at_least: Option<Bytes>,
    estimate: Option<Bytes>,
) -> String {
    let place = if device == "auto" { "the GPU" } else { device };
    let needed = match (at_least, estimate) {
        (Some(least), _) => format!("it had asked for {least}, context and code included"),
        (None, Some(estimate)) => format!("it needs about {estimate} by the estimate"),
        (None, None) => "what it needs is not known".to_string(),
    };
    // A tenth more, for what the driver takes while it runs.
    let raise = at_least.into_iter().chain(estimate).max();
    let raise = raise.map(|needed| needed.saturating_add(needed / 10)).filter(|size| *size > limit);
    let raise = raise.map_or(String::new(), |size| format!(" to {size} or more"));
    format!(
        "it does not fit on {place} below the limit of {limit}: {needed}; raise \
         --gpu-mem-limit{raise}, or take a smaller model or --device cpu ({cause})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_says_what_it_needed_and_what_to_do() {
        let cause = "CUDA failure 2: out of memory";
        let (limit, least) = (Bytes::mib(700), Bytes::mib(812));
        let counted = does_not_fit("cuda:0", limit, cause, Some(least), Some(Bytes::mib(900)));
        assert_eq!(
            counted,
            "it does not fit on cuda:0 below the limit of 700.00 MiB: it had asked for 812.00 MiB, \
             context and code included; raise --gpu-mem-limit to 990.00 MiB or more, or take a \
             smaller model or --device cpu (CUDA failure 2: out of memory)"
        );
        let guessed = does_not_fit("auto", limit, cause, None, Some(Bytes::mib(900)));
        assert!(
            guessed.contains("on the GPU") && guessed.contains("about 900.00 MiB"),
            "{guessed}"
        );
        let unknown = does_not_fit("cuda:0", limit, cause, None, None);
        assert!(unknown.contains("not known; raise --gpu-mem-limit, or"), "{unknown}");
    }
}
