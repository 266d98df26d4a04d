//! One place for all devices of a program: configuration, pools, limits, figures.
//!
//! # What a limit is worth
//!
//! *Hard* means that an allocation past the limit is refused, whichever code in the
//! process requests it; anything less is *soft*, however well our own part is limited. A pool's
//! budget alone is soft at best: it limits only the code that uses the pool. So a manager takes a
//! device over and lets nothing past but a gate that counts and refuses (its pools stand on the
//! gate, and give it as their device). What remains are ways that we do not see:
//!
//! - the host: every library in the process can call the system's allocator. Soft.
//! - a simulated device: exists only in its handle. If the manager was given the only one,
//!   every way leads through the gate, and the limit is hard. If the program keeps a
//!   handle of its own, it can ask there directly: soft.
//! - any other device: its driver serves every caller. Soft, from inside a process,
//!   unless the driver itself limits the process: an MPS client limit, set before it
//!   started, is tried by a request past the limit that comes by no way of ours.
//!
//! All of this is tested. [`GpuMemoryManager::apply_limits`] asks for a byte
//! more than the limit, by blocks, by pages and through the pool, and sees that each was
//! refused, that the refusals were counted, and that the device was never asked.
//!
//! The limit applies to each device by itself.

mod apply;
mod effective;
mod gate;
mod placed;
mod report;
mod slot;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

pub use effective::{LIMIT_PROFILES, LimitProfile, LimitRequest, effective_limit};
use gate::DeviceGate;
pub use placed::PlacedBlock;
pub use report::{
    DeviceLimit, DeviceUsage, EngineVariable, LimitCheck, LimitReport, LimitType, LimitViolation,
};
use slot::Slot;

use crate::backend::{self, BackendKind, DeviceId, open};
use crate::config::MemoryConfig;
use crate::memory::{Device, DeviceInfo, Memory};
use crate::pressure::MemoryPressure;
use crate::stack::fallback::FallbackCounter;
use crate::stack::pool::Pool;
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::machine::{Machine, MemoryInfo};
use plimsoll_machine::platform::system_memory;
use plimsoll_machine::units::Bytes;

/// All devices of a program, with a pool for each and one limit.
///
/// ```
/// use plimsoll_memory::{Bytes, GpuMemoryManager, LimitRequest, LimitType, Memory, MemoryConfig, Request};
/// use plimsoll_memory::backend::{BackendKind, open};
///
/// let manager = GpuMemoryManager::new(MemoryConfig::for_inference())?;
/// let device = manager.add_device(open(BackendKind::Sim)?);
/// let report = manager.apply_limits(&LimitRequest::new().with_limit(Bytes::gib(2)))?;
/// assert_eq!((report.limit_type, report.verified), (LimitType::Hard, true));
/// assert_eq!(manager.get_tensorrt_workspace_size(), Bytes::gib(1));
///
/// let pool = manager.pool(&device)?;
/// let block = pool.allocate(Request::new(Bytes::gib(1)))?;
/// assert!(pool.allocate(Request::new(Bytes::mib(1025))).is_err());
/// assert_eq!(manager.validate_memory_within_limit().within_limit, Some(true));
/// # let _ = block; Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct GpuMemoryManager {
    config: MemoryConfig,
    machine: Machine,
    state: Mutex<ManagerState>,
}

#[derive(Debug, Default)]
struct ManagerState {
    slots: Vec<Slot>,
    /// What is enforced, once a limit was applied.
    enforced: Option<Bytes>,
    /// On unified memory: what the system may have used before the kernel runs short.
    watch: Option<Bytes>,
    violations: Vec<LimitViolation>,
    /// The devices that were past the limit when last looked at.
    past: Vec<String>,
    /// Where blocks go that find a device full, if the host is not among the devices.
    host: Option<Arc<Pool>>,
    /// How often that happened.
    fallbacks: Arc<FallbackCounter>,
}

impl ManagerState {
    /// The device's own name, or where another has it the next that is free.
    fn name_for(&self, info: &DeviceInfo) -> String {
        let name = |number: u32| match (info.backend, number) {
            ("cpu", 0) => "cpu".to_string(),
            (backend, number) => format!("{backend}:{number}"),
        };
        let is_free = |name: &String| self.slots.iter().all(|slot| slot.name != *name);
        let next = || (0..=u32::MAX).map(name).find(is_free);
        Some(name(info.number)).filter(is_free).or_else(next).unwrap_or_default()
    }

    /// Notes violations. One that goes on is one violation, at its worst.
    fn note(&mut self, violations: &[LimitViolation]) {
        for violation in violations {
            let last = self.violations.iter_mut().rev().find(|v| v.device == violation.device);
            match last {
                Some(last) if self.past.contains(&violation.device) => {
                    last.held = last.held.max(violation.held);
                }
                _ => self.violations.push(violation.clone()),
            }
        }
        self.past = violations.iter().map(|violation| violation.device.clone()).collect();
    }
}

impl GpuMemoryManager {
    /// A manager without devices. The configuration holds for every pool.
    pub fn new(config: MemoryConfig) -> Result<GpuMemoryManager> {
        GpuMemoryManager::on(Machine::here(), config)
    }

    /// The same on a machine that may be a recorded one: what the system has, whether its
    /// memory is unified and whether an MPS daemon runs is read there.
    pub fn on(machine: Machine, config: MemoryConfig) -> Result<GpuMemoryManager> {
        config.validate()?;
        Ok(GpuMemoryManager { config, machine, state: Mutex::default() })
    }

    /// Takes a device over and returns its name: `cpu`, `sim:0`. Keep no other handle to
    /// it, or a limit on it can be passed by.
    pub fn add_device(&self, device: Arc<dyn Device>) -> String {
        let mut state = self.state();
        let name = state.name_for(device.info());
        let gate = DeviceGate::new(device);
        if let Some(limit) = state.enforced {
            gate.set_limit(limit);
        }
        state.slots.push(Slot {
            name: name.clone(),
            gate: Arc::new(gate),
            pool: None,
            fallback: None,
        });
        name
    }

    /// Opens every device of the machine and takes it over: CUDA, ROCm, Metal, OpenCL and
    /// last the host. Returns the reasons for those that could not be opened.
    pub fn add_all_devices(&self) -> Vec<Error> {
        let mut missing = Vec::new();
        for kind in BackendKind::REAL {
            let opened = match backend::count(kind) {
                Ok(count) => (0..count).map(|number| open(DeviceId { kind, number })).collect(),
                Err(error) => vec![Err(error)],
            };
            for device in opened {
                match device {
                    Ok(device) => drop(self.add_device(device)),
                    Err(error) => missing.push(error),
                }
            }
        }
        missing
    }

    /// The first of the manager's devices, in the order of their kinds, that has this much
    /// free now and may be used so far; of one kind the one with the most free.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] that lists every device with its free memory.
    pub fn device_for_model(&self, bytes: impl Into<Bytes>) -> Result<String> {
        let bytes = bytes.into();
        let state = self.state();
        let free = |slot: &Slot| slot.gate.free_memory().map(|free| free.min(slot.gate.capacity()));
        let all: Vec<(&Slot, Result<Bytes>)> =
            state.slots.iter().map(|slot| (slot, free(slot))).collect();
        let rank = |slot: &Slot| {
            let known = |kind: &BackendKind| kind.name() == slot.gate.info().backend;
            BackendKind::REAL.iter().position(known).unwrap_or(usize::MAX)
        };
        all.iter()
            .filter_map(|(slot, free)| Some((slot, *free.as_ref().ok()?)))
            .filter(|(_, free)| *free >= bytes)
            .min_by_key(|(slot, free)| (rank(slot), std::cmp::Reverse(*free)))
            .map(|(slot, _)| slot.name.clone())
            .ok_or_else(|| nowhere(&all, bytes))
    }

    /// The names of all devices, in the order in which they came.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        self.state().slots.iter().map(|slot| slot.name.clone()).collect()
    }

    /// The pool of a device, made when it is first asked for. `host` is `cpu`.
    pub fn pool(&self, device: &str) -> Result<Arc<Pool>> {
        let state = &mut *self.state();
        let wanted = if device == "host" { "cpu" } else { device };
        let names =
            state.slots.iter().map(|slot| slot.name.as_str()).collect::<Vec<_>>().join(", ");
        let slot = state.slots.iter_mut().find(|slot| slot.name == wanted).ok_or_else(|| {
            let names = if names.is_empty() { "none".to_string() } else { names };
            let what = format!("a pool on {device:?}");
            Error::Unavailable { what, why: format!("the manager's devices are: {names}") }
        })?;
        slot.pool(&self.config, state.enforced)
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &MemoryConfig {
        &self.config
    }

    /// All pools as one, with what fell back to the host. The peak is the largest of any one
    /// pool: the peak of the sum would have to be counted across devices that share nothing.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let (host, fallbacks) = {
            let state = self.state();
            (state.host.clone(), state.fallbacks.get())
        };
        let pools = self.pools().into_iter().map(|(_, pool)| pool).chain(host);
        let sum = pools.fold(MemoryStats::default(), |sum, pool| sum.plus(pool.stats()));
        MemoryStats { cpu_fallbacks: sum.cpu_fallbacks + fallbacks, ..sum }
    }

    /// The worst pressure of any pool, counted against the limit where that is lower than
    /// the pool's budget; `None` before there is a pool.
    #[must_use]
    pub fn pressure(&self) -> Option<MemoryPressure> {
        let of = |(gate, pool): &(Arc<DeviceGate>, Arc<Pool>)| {
            let budget = pool.capacity().min(gate.limit());
            MemoryPressure::of(pool.stats().in_use_bytes, budget)
        };
        self.pools().iter().map(of).max()
    }

    /// Applies the limit to every device, tries it, and reports what it is worth. Devices
    /// that are added later are held too; apply again to have them tried. A new limit
    /// replaces the old one; under pools that were made before it can be lowered, and their
    /// own budget stays where it was.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where no limit can be applied: a limit of nothing, or a `keep_free`
    /// of all there is. A limit that cannot be held is no error: it is in the report.
    pub fn apply_limits(&self, request: &LimitRequest) -> Result<LimitReport> {
        let request = self.complete(request);
        let resolved = effective::resolve(&request)?;
        let mut state = self.state();
        let applied =
            apply::apply(&mut state.slots, &self.config, resolved.effective, &self.machine)?;
        state.enforced = Some(resolved.effective);
        let is_unified = request.is_unified == Some(true);
        // What the system may have used when the watch cries out.
        let keep_free = request.keep_free.unwrap_or(Bytes::ZERO);
        let safe = request.system_total.map(|total| total.saturating_sub(keep_free));
        state.watch = safe.filter(|_| is_unified);
        let mut methods = applied.methods;
        methods.extend(state.watch.map(|_| "watch"));
        let total = state.slots.iter().find(|slot| slot.is_cuda()).map(|s| s.gate.info().total);
        let (devices, warnings) = (applied.devices, [resolved.warnings, applied.warnings].concat());
        let weakest = devices.iter().map(|device| device.limit_type).min();
        Ok(LimitReport {
            limit_type: weakest.unwrap_or(LimitType::Unavailable),
            methods_applied: methods.into_iter().map(String::from).collect(),
            verified: !devices.is_empty() && devices.iter().all(|device| device.verified),
            requested: resolved.requested,
            limit: resolved.limit,
            effective_limit: resolved.effective,
            profile: resolved.profile,
            is_unified,
            devices,
            warnings,
            for_engines: EngineVariable::for_limit(resolved.effective, total),
        })
    }

    /// What TensorRT may use to build an engine: half of the limit. Before one is applied,
    /// that is the configuration's, or else the default limit of 8 GiB.
    #[must_use]
    pub fn get_tensorrt_workspace_size(&self) -> Bytes {
        let default = LimitProfile::default().size.unwrap_or(Bytes::ZERO);
        self.state().enforced.or(self.config.limit).unwrap_or(default) / 2
    }

    /// What is held through this manager on all devices, counted; `None` without a device.
    #[must_use]
    pub fn get_current_gpu_memory_usage(&self) -> Option<Bytes> {
        let state = self.state();
        (!state.slots.is_empty()).then(|| state.slots.iter().map(|slot| slot.gate.held()).sum())
    }

    /// What is held, device by device. Asks each device once what is free.
    #[must_use]
    pub fn usage(&self) -> Vec<DeviceUsage> {
        self.state().slots.iter().map(Slot::usage).collect()
    }

    /// The memory of this machine, with what the manager's GPU pools hold as the
    /// allocator's view. Pools on the host are not the GPU's and are left out.
    #[must_use]
    pub fn memory_info(&self) -> MemoryInfo {
        let gpu: Vec<_> =
            self.pools().into_iter().filter(|(gate, _)| gate.info().backend != "cpu").collect();
        let sum = gpu.iter().fold(MemoryStats::default(), |sum, (_, pool)| sum.plus(pool.stats()));
        let info = self.machine.memory_info();
        match gpu.is_empty() {
            true => info,
            false => info.with_allocator(sum.in_use_bytes, sum.total_allocated_bytes),
        }
    }

    /// Compares what is held through this manager with the limit and, on unified memory,
    /// what the system has left with what must stay free. What is past is logged at ERROR,
    /// recorded, and returned; nothing is stopped for it.
    pub fn validate_memory_within_limit(&self) -> LimitCheck {
        let mut state = self.state();
        let Some(limit) = state.enforced else { return LimitCheck::default() };
        let time = SystemTime::now();
        let past = |(device, held, limit): (String, Bytes, Bytes)| {
            (held > limit).then_some(LimitViolation { time, device, held, limit })
        };
        let system = state.watch.and_then(|safe| {
            let used = system_memory(self.machine.root()).ok()?.used()?;
            Some(("system".to_string(), used, safe))
        });
        let slots = state.slots.iter().map(|slot| (slot.name.clone(), slot.gate.held(), limit));
        let looked_at: Vec<_> = slots.chain(system).collect();
        let within = !looked_at.is_empty();
        let violations: Vec<_> = looked_at.into_iter().filter_map(past).collect();
        let new = violations.iter().filter(|violation| !state.past.contains(&violation.device));
        for LimitViolation { device, held, limit, .. } in new {
            tracing::error!(%device, %held, %limit, "more is reserved than the limit allows");
        }
        state.note(&violations);
        let within_limit = within.then_some(violations.is_empty());
        LimitCheck { within_limit, limit: Some(limit), violations }
    }

    /// Every violation that was ever seen, in the order of time; one that goes on is one,
    /// with the most that was held.
    #[must_use]
    pub fn violations(&self) -> Vec<LimitViolation> {
        self.state().violations.clone()
    }

    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pools(&self) -> Vec<(Arc<DeviceGate>, Arc<Pool>)> {
        let state = self.state();
        let made = |slot: &Slot| Some((Arc::clone(&slot.gate), Arc::clone(slot.pool.as_ref()?)));
        state.slots.iter().filter_map(made).collect()
    }

    /// Fills the gaps of a request from the configuration and from the machine.
    fn complete(&self, request: &LimitRequest) -> LimitRequest {
        let system = || system_memory(self.machine.root()).ok()?.total;
        LimitRequest {
            limit: request.limit.or(self.config.limit),
            keep_free: request.keep_free.or(Some(self.config.min_free_bytes)),
            system_total: request.system_total.or_else(system),
            is_unified: request.is_unified.or_else(|| self.machine.unified().value),
            ..*request
        }
    }
}

fn nowhere(all: &[(&Slot, Result<Bytes>)], bytes: Bytes) -> Error {
    let line = |(slot, free): &(&Slot, Result<Bytes>)| match free {
        Ok(free) => format!("{}: {free} free of {}", slot.name, slot.gate.info().total),
        Err(error) => format!("{}: {error}", slot.name),
    };
    let lines: Vec<_> = all.iter().map(line).collect();
    Error::Unavailable {
        what: format!("a device with {bytes} free"),
        why: if lines.is_empty() { "the manager has no device".into() } else { lines.join("; ") },
    }
}

#[cfg(test)]
mod tests;
