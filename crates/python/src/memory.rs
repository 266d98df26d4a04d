//! The memory of the machine, and of its devices.

use plimsoll::backend::{self, BackendKind, DeviceId};
use plimsoll::{Bytes, MemoryInfo, current, generate_memory_report, get_gpu_peaks};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::arguments::{Amount, Count, device};
use crate::errors::{OrRaise, unavailable};

/// The machine's memory: the system's, and the GPU's as a part of it or beside it.
///
/// >>> import plimsoll
/// >>> info = plimsoll.memory_info()
/// >>> info.system_available <= info.system_total
/// True
#[pyclass(name = "MemoryInfo", module = "plimsoll", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyMemoryInfo {
    is_unified: Option<bool>,
    gpu_alloc: Option<u64>,
    gpu_reserved: Option<u64>,
    gpu_codecs_cameras: Option<u64>,
    system_total: Option<u64>,
    system_used: Option<u64>,
    system_available: Option<u64>,
    largest_single: Option<u64>,
    note: String,
}

#[pymethods]
impl PyMemoryInfo {
    /// The same as a dict.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("is_unified", self.is_unified)?;
        dict.set_item("gpu_alloc", self.gpu_alloc)?;
        dict.set_item("gpu_reserved", self.gpu_reserved)?;
        dict.set_item("gpu_codecs_cameras", self.gpu_codecs_cameras)?;
        dict.set_item("system_total", self.system_total)?;
        dict.set_item("system_used", self.system_used)?;
        dict.set_item("system_available", self.system_available)?;
        dict.set_item("largest_single", self.largest_single)?;
        dict.set_item("note", &self.note)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let [total, available] =
            [self.system_total, self.system_available].map(|bytes| shown(bytes.map(Bytes)));
        let unified = match self.is_unified {
            Some(true) => "True",
            Some(false) => "False",
            None => "None",
        };
        format!("MemoryInfo(is_unified={unified}, system {available} of {total} available)")
    }
}

impl From<MemoryInfo> for PyMemoryInfo {
    fn from(info: MemoryInfo) -> PyMemoryInfo {
        let number = |bytes: Option<Bytes>| bytes.map(Bytes::get);
        PyMemoryInfo {
            is_unified: info.is_unified,
            gpu_alloc: number(info.gpu_alloc),
            gpu_reserved: number(info.gpu_reserved),
            gpu_codecs_cameras: number(info.gpu_codecs_cameras),
            system_total: number(info.system_total),
            system_used: number(info.system_used),
            system_available: number(info.system_available),
            largest_single: number(info.largest_single),
            note: info.note,
        }
    }
}

fn shown(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "–".to_string(), |bytes| bytes.to_string())
}

/// The memory of this machine.
///
/// >>> import plimsoll
/// >>> plimsoll.memory_info().to_dict()["system_total"] > 0
/// True
#[pyfunction]
pub(crate) fn memory_info(py: Python<'_>) -> PyMemoryInfo {
    py.detach(plimsoll::memory_info).into()
}

/// Whether this machine is a Jetson, by the files of its board.
///
/// >>> import plimsoll
/// >>> plimsoll.is_jetson() in (True, False)
/// True
#[pyfunction]
pub(crate) fn is_jetson(py: Python<'_>) -> bool {
    py.detach(plimsoll::is_jetson)
}

/// Whether the GPU shares the system's memory; None where nothing tells, as without a GPU.
///
/// >>> import plimsoll
/// >>> plimsoll.is_unified() in (True, False, None)
/// True
#[pyfunction]
pub(crate) fn is_unified(py: Python<'_>) -> Option<bool> {
    py.detach(plimsoll::is_unified)
}

/// The most that the pools of this process had handed out and held on GPUs at once, counted.
///
/// (0, 0) before the first pool on a GPU.
#[pyfunction]
#[pyo3(name = "get_gpu_peaks")]
pub(crate) fn gpu_peaks() -> (u64, u64) {
    get_gpu_peaks().map_or((0, 0), |peaks| (peaks.allocated.get(), peaks.reserved.get()))
}

/// A device, as it is found now.
///
/// >>> import plimsoll
/// >>> host = plimsoll.devices()[-1]
/// >>> host.id
/// 'cpu'
#[pyclass(name = "Device", module = "plimsoll", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyDevice {
    id: String,
    name: String,
    total_bytes: u64,
    free_bytes: Option<u64>,
    is_unified: Option<bool>,
    compute_capability: Option<(u32, u32)>,
}

#[pymethods]
impl PyDevice {
    /// The same as a dict.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("id", &self.id)?;
        dict.set_item("name", &self.name)?;
        dict.set_item("total_bytes", self.total_bytes)?;
        dict.set_item("free_bytes", self.free_bytes)?;
        dict.set_item("is_unified", self.is_unified)?;
        dict.set_item("compute_capability", self.compute_capability)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let free = shown(self.free_bytes.map(Bytes));
        format!("Device('{}', {free} of {} free: {})", self.id, Bytes(self.total_bytes), self.name)
    }
}

fn described(id: DeviceId) -> plimsoll::Result<PyDevice> {
    let opened = backend::open(id)?;
    let info = opened.info();
    Ok(PyDevice {
        id: id.to_string(),
        name: info.name.clone(),
        total_bytes: info.total.get(),
        free_bytes: opened.free_memory().ok().map(Bytes::get),
        is_unified: info.is_unified,
        compute_capability: info.compute_capability,
    })
}

/// The devices of this machine, best first; the host is the last of them.
///
/// Each is opened to be asked, which makes a context on a GPU. `doctor()` also says why a kind of
/// device is not there.
///
/// >>> import plimsoll
/// >>> [device.id for device in plimsoll.devices()][-1]
/// 'cpu'
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<PyDevice> {
    py.detach(|| {
        let numbers = |kind| 0..backend::count(kind).unwrap_or(0);
        let ids = BackendKind::REAL
            .into_iter()
            .flat_map(|kind| numbers(kind).map(move |number| DeviceId { kind, number }));
        ids.filter_map(|id| described(id).ok()).collect()
    })
}

/// What can be had on a device now, in bytes; on the current one where none is named. On unified
/// memory it is what the system has available.
///
/// >>> import plimsoll
/// >>> plimsoll.available_bytes("cpu") > 0
/// True
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn available_bytes(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let id = self::device(device)?;
    Ok(py.detach(|| current::free_memory_on(id)).or_raise()?.available.get())
}

/// Whether less than a share of memory is available: the system's, and on a GPU with memory of
/// its own also that.
///
/// >>> import plimsoll
/// >>> plimsoll.should_reduce_batch(below=0.0)
/// False
#[pyfunction]
#[pyo3(signature = (below = 0.2))]
pub(crate) fn should_reduce_batch(py: Python<'_>, below: f64) -> PyResult<bool> {
    if !(0.0..=1.0).contains(&below) {
        let text = format!("below is {below}; it must be a share of memory, from 0 to 1");
        return Err(PyValueError::new_err(text));
    }
    py.detach(|| current::should_reduce_batch_below(below))
        .ok_or_else(|| unavailable("what is available", "the system does not say"))
}

/// Whether this much is more than the safety margin (70 %) leaves of a device's free memory.
///
/// >>> import plimsoll
/// >>> plimsoll.will_oom("1KiB", "cpu"), plimsoll.will_oom("1TiB", "cpu")
/// (False, True)
#[pyfunction]
#[pyo3(signature = (required_bytes, device = None))]
pub(crate) fn will_oom(
    py: Python<'_>,
    required_bytes: Amount,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    Ok(plimsoll::will_oom(required_bytes.0, Bytes(available_bytes(py, device)?)))
}

/// A report on a device and its memory, as text.
///
/// >>> import plimsoll
/// >>> print(plimsoll.generate_memory_report("sim").splitlines()[2])
/// Device: sim
#[pyfunction]
#[pyo3(name = "generate_memory_report", signature = (device = None))]
pub(crate) fn memory_report(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    let id = self::device(device)?;
    py.detach(|| Ok(generate_memory_report(&*backend::open(id)?).to_string())).or_raise()
}

/// A number of bytes as text with its unit: `1.50 GiB`.
///
/// >>> import plimsoll
/// >>> plimsoll.format_bytes(1536 * 1024**2)
/// '1.50 GiB'
#[pyfunction]
pub(crate) fn format_bytes(n: Count) -> String {
    plimsoll::format_bytes(n.0)
}

/// An amount of memory as a number of bytes: `8GiB` is binary, `8GB` decimal.
///
/// >>> import plimsoll
/// >>> plimsoll.parse_bytes("8GiB"), plimsoll.parse_bytes("8GB")
/// (8589934592, 8000000000)
#[pyfunction]
pub(crate) fn parse_bytes(amount: Amount) -> u64 {
    amount.0.get()
}

/// The name of the device that is meant where none is named.
///
/// >>> import plimsoll
/// >>> ":" in plimsoll.current_device() or plimsoll.current_device() == "cpu"
/// True
#[pyfunction]
pub(crate) fn current_device(py: Python<'_>) -> Bound<'_, PyString> {
    PyString::new(py, &py.detach(current::device).to_string())
}
