//! The limit that this process runs under, and one for the processes that it starts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_guard::client::GuardClient;
use plimsoll_guard::launch::{KEEP_FREE, LaunchError, Launcher, RESERVE};
use plimsoll_guard::ledger::{LedgerDevice, NO_LIMIT, flag};
use plimsoll_guard::watch::GuardSettings;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Amount;
use crate::errors::unavailable;

const HOW_TO_START: &str = "start it under a limit (python -m plimsoll run --gpu-mem-limit 8GiB -- \
                            python train.py), or its children (with plimsoll.guarded('8GiB'):)";

/// The guard in this process. A process is limited from its start or never, so it is looked for
/// once; a child of fork has its parent's.
fn guard() -> PyResult<&'static GuardClient> {
    static FOUND: OnceLock<Result<GuardClient, String>> = OnceLock::new();
    FOUND
        .get_or_init(GuardClient::find)
        .as_ref()
        .map_err(|why| unavailable("a limit of this process", &format!("{why}; {HOW_TO_START}")))
}

fn limit_of(device: &LedgerDevice) -> Option<u64> {
    Some(device.budget.load(Relaxed)).filter(|limit| *limit != NO_LIMIT)
}

/// The limit of this process on a device, in bytes; None where memory is only counted.
///
/// Raises `Unavailable` in a process that is not limited.
///
/// >>> import plimsoll
/// >>> try:
/// ...     plimsoll.limit()
/// ... except plimsoll.Unavailable as error:
/// ...     print("python -m plimsoll run" in str(error))
/// True
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub(crate) fn limit(device: u32) -> PyResult<Option<u64>> {
    let guard = guard()?;
    Ok(match guard.device(device) {
        Some((_, device)) => limit_of(device),
        None => guard.limit_of(device),
    })
}

/// Whether this process runs under a limit, or is only counted.
///
/// >>> import plimsoll
/// >>> plimsoll.is_guarded()
/// False
#[pyfunction]
pub(crate) fn is_guarded() -> bool {
    guard().is_ok()
}

/// What this process holds on a device, as the guard counts it; keys as in
/// `torch.cuda.memory_stats` where they mean the same.
///
/// `reserved_bytes.all.current` is what this process holds from the driver, its own part of the
/// driver included; `num_device_alloc` and `num_device_free` are its calls, `num_refused` those
/// that the limit refused. `charged_bytes.*` is what all processes under the limit hold together.
///
/// Raises `Unavailable` in a process that is not limited.
///
/// >>> import plimsoll
/// >>> try:
/// ...     plimsoll.stats()
/// ... except plimsoll.Unavailable as error:
/// ...     print("python -m plimsoll run" in str(error))
/// True
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub(crate) fn stats(py: Python<'_>, device: u32) -> PyResult<Bound<'_, PyDict>> {
    let guard = guard()?;
    let found = guard.device(device);
    let process = guard.process();
    let held = process.zip(found).map_or(0, |(process, (place, _))| process.used(place));
    let driver = process.zip(found).map_or(0, |(own, (place, _))| own.driver[place].load(Relaxed));
    let number = |of: fn(&LedgerDevice) -> u64| found.map_or(0, |(_, device)| of(device));
    let own = |of: fn(&plimsoll_guard::ledger::LedgerProcess) -> u64| process.map_or(0, of);
    let limit = match found {
        Some((_, device)) => limit_of(device),
        None => guard.limit_of(device),
    };
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "reserved_bytes.all.current"), held)?;
    dict.set_item(intern!(py, "num_device_alloc"), own(|process| process.asked()))?;
    dict.set_item(intern!(py, "num_device_free"), own(|process| process.frees()))?;
    dict.set_item(intern!(py, "num_refused"), own(|process| process.refused.load(Relaxed)))?;
    dict.set_item(intern!(py, "driver_bytes"), driver)?;
    dict.set_item(intern!(py, "charged_bytes.current"), number(|d| d.used.load(Relaxed)))?;
    dict.set_item(intern!(py, "charged_bytes.peak"), number(|d| d.peak.load(Relaxed)))?;
    dict.set_item(intern!(py, "limit_bytes"), limit)?;
    Ok(dict)
}

/// A limit for the processes that are started with its environment.
#[pyclass(name = "GuardedEnvironment", module = "plimsoll._plimsoll", frozen)]
pub(crate) struct PyGuardedEnvironment {
    launcher: Mutex<Option<Launcher>>,
    /// Variables to set, and to remove where there is no value.
    variables: Vec<(OsString, Option<OsString>)>,
    /// Whose it is: a child of fork has a copy, and must not delete its parent's files.
    process: u32,
}

impl PyGuardedEnvironment {
    fn take(&self) -> Option<Launcher> {
        let launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        if self.process == std::process::id() {
            return Some(launcher);
        }
        std::mem::forget(launcher);
        None
    }
}

impl Drop for PyGuardedEnvironment {
    fn drop(&mut self) {
        // Where processes use them, the files stay, and a later launch removes them.
        drop(self.take().map(Launcher::end));
    }
}

/// What the processes under it came to on a device: its number, the most that was charged at
/// once, what is charged now, and how often memory was refused.
type DeviceCharge = (u32, u64, u64, u64);

#[pymethods]
impl PyGuardedEnvironment {
    #[new]
    #[pyo3(signature = (limit, reserve = Amount(plimsoll::Bytes(RESERVE))))]
    fn new(py: Python<'_>, limit: Amount, reserve: Amount) -> PyResult<PyGuardedEnvironment> {
        let (limit, reserve) = (limit.0, reserve.0);
        if limit <= reserve {
            return Err(PyValueError::new_err(format!(
                "a limit of {limit} leaves nothing above the reserve for the driver ({reserve}); \
                 choose a higher limit"
            )));
        }
        let settings = GuardSettings {
            limit: Some(limit.get()),
            reserve: reserve.get(),
            keep_free: KEEP_FREE,
            flags: flag::NO_EVENT_LOG,
            meminfo: "/proc/meminfo".into(),
            ..GuardSettings::default()
        };
        let launcher = py.detach(|| Launcher::prepare(&settings)).map_err(|error| match error {
            LaunchError::NotBuilt | LaunchError::AlreadyGuarded => {
                unavailable("a limit for the processes that are started here", &error.to_string())
            }
            other => PyRuntimeError::new_err(other.to_string()),
        })?;
        let mut child = Command::new("");
        launcher.guard(&mut child);
        let owned = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            (name.to_os_string(), value.map(std::ffi::OsStr::to_os_string))
        };
        let variables = child.get_envs().map(owned).collect();
        let process = std::process::id();
        Ok(PyGuardedEnvironment { launcher: Mutex::new(Some(launcher)), variables, process })
    }

    /// The variables to set; those to remove have no value.
    fn variables(&self) -> Vec<(OsString, Option<OsString>)> {
        self.variables.clone()
    }

    /// What the processes under it came to, by device.
    fn charges(&self) -> Vec<DeviceCharge> {
        let launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(launcher) = &*launcher else { return Vec::new() };
        launcher.watch().reclaim();
        let of = |device: &LedgerDevice| {
            let number = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
            let (peak, now) = (number(&device.peak), number(&device.used));
            (device.ordinal.load(Relaxed), peak, now, number(&device.refused))
        };
        launcher.watch().devices().map(of).collect()
    }

    /// Ends it. Where processes under it still run, their limit stays, and so do its files, which
    /// are returned; a later start removes them.
    fn close(&self) -> Vec<PathBuf> {
        self.take().map_or_else(Vec::new, Launcher::end)
    }
}
