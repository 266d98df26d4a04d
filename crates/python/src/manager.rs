//! All devices of this process under one limit.

use plimsoll::{Bytes, GpuMemoryManager, LimitRequest, MemoryConfig};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Amount;
use crate::errors::OrRaise;

/// Holds what Plimsoll allocates in this process to a limit, and says how far that holds.
///
/// What other libraries allocate in the same process is not held: `apply_limits()` says so, and
/// gives the settings by which they hold themselves. `plimsoll.run` and `plimsoll.guarded` hold
/// whole processes.
///
/// >>> import plimsoll
/// >>> manager = plimsoll.GPUMemoryManager("4GiB")
/// >>> report = manager.apply_limits()
/// >>> report["limit_type"] in ("hard", "soft", "unavailable")
/// True
/// >>> manager.get_tensorrt_workspace_size() == report["effective_limit_bytes"] // 2
/// True
#[pyclass(name = "GPUMemoryManager", module = "plimsoll", frozen)]
pub(crate) struct PyGpuMemoryManager {
    manager: GpuMemoryManager,
    limit: Bytes,
}

#[pymethods]
impl PyGpuMemoryManager {
    #[new]
    #[pyo3(signature = (limit = Amount(Bytes::gib(8))))]
    fn new(py: Python<'_>, limit: Amount) -> PyResult<PyGpuMemoryManager> {
        let manager = GpuMemoryManager::new(MemoryConfig::default()).or_raise()?;
        // A device that is not here is no error: the report names those that are.
        drop(py.detach(|| manager.add_all_devices()));
        Ok(PyGpuMemoryManager { manager, limit: limit.0 })
    }

    /// Applies the limit to every device, tries it, and says what it is worth.
    fn apply_limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let request = LimitRequest::new().with_limit(self.limit);
        let report = py.detach(|| self.manager.apply_limits(&request)).or_raise()?;
        let dict = PyDict::new(py);
        dict.set_item("limit_type", report.limit_type.to_string())?;
        dict.set_item("methods_applied", report.methods_applied)?;
        dict.set_item("verified", report.verified)?;
        dict.set_item("limit_bytes", report.limit.get())?;
        dict.set_item("effective_limit_bytes", report.effective_limit.get())?;
        dict.set_item("is_unified", report.is_unified)?;
        dict.set_item("warnings", report.warnings)?;
        let engines = PyDict::new(py);
        for variable in report.for_engines {
            engines.set_item(variable.name, variable.value)?;
        }
        dict.set_item("for_engines", engines)?;
        let devices = PyDict::new(py);
        for device in report.devices {
            devices.set_item(device.device, device.limit_type.to_string())?;
        }
        dict.set_item("devices", devices)?;
        Ok(dict)
    }

    /// What TensorRT may use to build an engine: half of the limit.
    fn get_tensorrt_workspace_size(&self) -> u64 {
        self.manager.get_tensorrt_workspace_size().get()
    }

    /// What is held through this manager on all devices, counted; None without a device.
    fn get_current_gpu_memory_usage(&self) -> Option<u64> {
        self.manager.get_current_gpu_memory_usage().map(Bytes::get)
    }

    /// Whether what is held is within the limit; None before a limit was applied.
    fn validate_memory_within_limit(&self, py: Python<'_>) -> Option<bool> {
        py.detach(|| self.manager.validate_memory_within_limit()).within_limit
    }

    fn __repr__(&self) -> String {
        format!("GPUMemoryManager('{}')", self.limit)
    }
}
