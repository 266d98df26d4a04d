//! The limit of a run: who holds it, slot by slot, and what is compared with it.
//!
//! This program allocates nothing on a GPU for itself here; engines do. So a limit is held by the
//! guard, by the driver (an MPS client limit), or by the engine that was handed it; otherwise
//! nobody holds it, and all that is left is to watch. What is said of a slot is what is true of
//! the engine and the device that ran it, and is not known before it is loaded.
//!
//! A limit of GPU memory is compared with what a slot holds on a GPU. A run that was meant for
//! the CPU, or has no GPU to use, holds the process to it instead. Where a GPU is there and the
//! slot fell back from it, nothing is compared: the memory of the process says nothing of a GPU's.

use plimsoll::backend::{BackendKind, DeviceId, count, open};
use plimsoll::machine::patiently;
use plimsoll::{Bytes, GpuMemoryManager, LimitReport, MemoryConfig};
use plimsoll_infer::{EngineChoice, EngineDevice, EngineKind};

use super::end::Ended;
use super::guarded::Guard;
use super::plan::Plan;
use super::recorder::Recorder;
use super::snapshot::Page;
use crate::record::{LimitType, MemorySafety, Status};

/// What a run needs to know of its limit beside its size.
#[derive(Debug)]
pub(super) struct Limits {
    /// Watches the system's memory where the GPU shares it.
    pub(super) manager: GpuMemoryManager,
    /// Whether the driver holds this process, tried.
    by_driver: bool,
    /// Whether a slot on the CPU is held to the limit by the memory of the process.
    pub(super) watches_process: bool,
    /// Whether the system had too little left when last looked at.
    pub(super) system_over: bool,
}

/// Who holds the limit for a slot.
pub(super) struct Holder {
    pub(super) limit_type: LimitType,
    method: Option<String>,
    verified: bool,
}

impl Limits {
    /// Draws the limit. Nothing is held by it yet.
    pub(super) fn start(plan: &Plan) -> plimsoll::Result<(Limits, LimitReport)> {
        let manager = GpuMemoryManager::new(MemoryConfig::for_inference())?;
        let request = plan.limit_request()?;
        let mut report = manager.apply_limits(&request)?;
        let driver = held_by_driver(plan);
        let by_driver = driver.as_ref().is_some_and(is_by_driver);
        // What stands in the way of the driver's own limit is worth knowing.
        let more = driver.into_iter().flat_map(|driver| driver.warnings);
        let new: Vec<String> = more.filter(|warning| !report.warnings.contains(warning)).collect();
        report.warnings.extend(new);
        let watches_process = !may_fall_back(plan);
        let limits = Limits { manager, by_driver, watches_process, system_over: false };
        Ok((limits, report))
    }
}

/// Whether the driver itself holds this process on the GPU that was named: the limit is tried
/// there, by a manager that is gone afterwards.
fn held_by_driver(plan: &Plan) -> Option<LimitReport> {
    let EngineDevice::Cuda(number) = plan.device else { return None };
    let manager = GpuMemoryManager::new(MemoryConfig::for_inference()).ok()?;
    manager.add_device(open(DeviceId { kind: BackendKind::Cuda, number }).ok()?);
    manager.apply_limits(&plan.limit_request().ok()?).ok()
}

fn is_by_driver(report: &LimitReport) -> bool {
    report.methods_applied.iter().any(|method| method == "mps")
}

/// Whether a slot of this plan that runs on the CPU has fallen back from a GPU.
fn may_fall_back(plan: &Plan) -> bool {
    let for_cpu = plan.device == EngineDevice::Cpu
        || matches!(plan.engine, EngineChoice::Kind(EngineKind::Rten | EngineKind::Echo));
    let gpus =
        || patiently(|| count(BackendKind::Cuda)).is_some_and(|gpus| gpus.is_ok_and(|n| n > 0));
    !for_cpu && gpus()
}

impl Recorder<'_> {
    /// The guard, unless every slot that was loaded runs on the host, where it holds nothing.
    pub(super) fn guard(&self) -> Option<&dyn Guard> {
        let mut loaded = self.pages.iter().filter(|page| page.description.is_some()).peekable();
        let only_host = loaded.peek().is_some() && loaded.all(Page::on_host);
        self.plan.guard.get().filter(|_| !only_host)
    }

    /// Who holds the limit for a slot, as far as it is known.
    pub(super) fn holder(&self, page: &Page) -> Holder {
        let nobody = Holder { limit_type: LimitType::Unavailable, method: None, verified: false };
        let held = |limit_type, method: String, verified| Holder {
            limit_type,
            method: Some(method),
            verified,
        };
        if page.on_host() {
            return nobody;
        }
        let engine = page.description.as_ref().filter(|info| info.limit_applied);
        match (self.plan.guard.get(), engine) {
            (Some(guard), _) => {
                let verified = guard.whole().is_some_and(|whole| whole.verified);
                held(LimitType::Hard, "guard".to_string(), verified)
            }
            (None, _) if self.limits.by_driver => held(LimitType::Hard, "mps".to_string(), true),
            (None, Some(info)) => held(LimitType::Soft, format!("{} arena", info.engine), false),
            (None, None) => nobody,
        }
    }

    /// What a slot is compared with: nothing where it fell back to the CPU.
    pub(super) fn limit_of(&self, page: &Page) -> Option<Bytes> {
        (!page.on_host() || self.limits.watches_process).then_some(self.limit)
    }

    /// The limit as it is held, so far: as well as for the slot that is held worst.
    pub(super) fn safety(&self) -> MemorySafety {
        let mut safety = self.safety.clone();
        let loaded = || self.pages.iter().filter(|page| page.description.is_some());
        let mut holders: Vec<Holder> = loaded().map(|page| self.holder(page)).collect();
        if holders.is_empty() {
            holders.push(self.holder(&self.pages[0]));
        }
        let weakest = holders.iter().map(|holder| holder.limit_type).max();
        safety.limit_type = weakest.unwrap_or(LimitType::Unavailable);
        safety.verified = holders.iter().all(|holder| holder.verified);
        for method in holders.into_iter().filter_map(|holder| holder.method).rev() {
            if !safety.methods_applied.contains(&method) {
                safety.methods_applied.insert(0, method);
            }
        }
        safety.warnings.extend(self.guard_warnings());
        safety
    }

    /// Why a slot failed, where that is for want of memory below the limit: what it needed, and
    /// what to do. Memory was refused if the guard says so, or the engine.
    pub(super) fn why_failed(&self, slot: usize, ended: &Ended) -> Option<String> {
        let cause = ended.reason.clone()?;
        let on_host = self.plan.device == EngineDevice::Cpu || self.pages[slot].on_host();
        let refused = ended.out_of_memory || ended.asked_for.is_some();
        if ended.status != Status::Failed || on_host || !refused {
            return Some(cause);
        }
        let estimate = self.pages[slot].estimate.as_ref().and_then(|found| found.as_ref().ok());
        let estimate = estimate.map(|estimate| Bytes(estimate.total_bytes));
        Some(does_not_fit(
            &self.plan.device.to_string(),
            self.limit,
            &cause,
            ended.asked_for,
            estimate,
        ))
    }
}

/// It does not fit, what it needed, what to do.
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
