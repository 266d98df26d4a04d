//! Point clouds into voxel grids: arrays of numpy here, tensors on a GPU in `cuda`.

#![expect(unsafe_code, reason = "arrays of numpy are read and written without the interpreter")]

pub(crate) mod cuda;
pub(crate) mod hard;
pub(crate) mod read;
mod workers;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll::{Bytes, Error};
use plimsoll_points::backend::Filled;
use plimsoll_points::job::{VoxelJob, VoxelReport};
use plimsoll_points::open::{self, VoxelizeBackend};
use plimsoll_points::write::Sink;
use plimsoll_points::{Batch, Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Amount;
use crate::errors::OrRaise;

/// What is made of clouds: a grid, what is told of a voxel, and how it is written down.
#[pyclass(name = "VoxelSpec", module = "plimsoll._plimsoll", frozen)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PyVoxelSpec(VoxelSpec);

#[pymethods]
impl PyVoxelSpec {
    #[new]
    #[pyo3(signature = (grid_size, voxel_size, origin, mode, cells, features))]
    fn new(
        grid_size: [u32; 3],
        voxel_size: [f32; 3],
        origin: [f32; 3],
        mode: &str,
        cells: Option<&str>,
        features: usize,
    ) -> PyResult<PyVoxelSpec> {
        let grid = VoxelGrid::new(grid_size, voxel_size, origin).or_raise()?;
        let mode: VoxelMode = mode.parse().or_raise()?;
        let cells = cells.map_or_else(|| Ok(Cells::of(mode)), str::parse).or_raise()?;
        VoxelSpec::new(grid, mode, cells, features).or_raise().map(PyVoxelSpec)
    }

    /// Planes of a cloud's result: one, or one for each feature.
    #[getter]
    fn planes(&self) -> u64 {
        self.0.planes()
    }

    /// Bytes of a cloud's result.
    #[getter]
    fn cloud_bytes(&self) -> u64 {
        self.0.cloud_bytes(self.0.grid().voxels())
    }

    /// How a voxel is written down: f32, u32, u8 or bits.
    #[getter]
    fn cells(&self) -> String {
        self.0.cells().to_string()
    }
}

/// The floats of an array that is held for as long as the call lasts.
struct ArrayFloats {
    first: *const f32,
    count: usize,
}

// SAFETY: plain floats; the array is borrowed for reading while this lives.
unsafe impl Send for ArrayFloats {}
// SAFETY: as above.
unsafe impl Sync for ArrayFloats {}

impl AsRef<[f32]> for ArrayFloats {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: the array is contiguous, of that many floats, and outlives the call that made
        // this value and drops it before it ends.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

fn cloud(array: &PyReadonlyArray2<'_, f32>) -> PyResult<Cloud> {
    let floats = array.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let features = array.shape().get(1).and_then(|columns| columns.checked_sub(3));
    let features = features.ok_or_else(|| {
        PyValueError::new_err("points must have at least three columns: x, y and z")
    })?;
    let floats = ArrayFloats { first: floats.as_ptr(), count: floats.len() };
    Cloud::from_shared(Box::new(floats), features).or_raise()
}

/// A result that is made where it will lie.
struct ArraySink<'a>(&'a mut [u8]);

impl ArraySink<'_> {
    fn range(&mut self, at: u64, bytes: u64) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        self.0.get_mut(at..at.checked_add(usize::try_from(bytes).ok()?)?)
    }
}

impl Sink for ArraySink<'_> {
    fn dense(&mut self, at: u64, bytes: &[u8]) -> plimsoll::Result<()> {
        let to = self.range(at, bytes.len() as u64).ok_or_else(|| Error::Config {
            field: "out",
            value: format!("{} bytes", bytes.len()),
            range: "an array as large as the result",
        })?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    fn in_place(&mut self, at: u64, bytes: u64) -> Option<&mut [u8]> {
        self.range(at, bytes)
    }

    fn sparse(&mut self, _: u64, _: &Filled) -> plimsoll::Result<()> {
        Err(Error::Unavailable {
            what: "a sparse result as an array".to_string(),
            why: "the command writes it: plimsoll voxelize --dtype sparse".to_string(),
        })
    }
}

/// How long a reading of the host's free memory is good for work that is small beside it: to read
/// it takes as long as to voxelize thousands of points.
const READING_LASTS: Duration = Duration::from_millis(100);
/// Work up to here is small.
const SMALL_BYTES: u64 = 64 << 20;

/// The host as a backend.
fn host(limit: Option<Bytes>, bytes: u64) -> plimsoll::Result<Arc<VoxelizeBackend>> {
    type Reading = (Instant, Option<Bytes>, Arc<VoxelizeBackend>);
    static LAST: Mutex<Option<Reading>> = Mutex::new(None);
    // Never waited for: in a child of fork nobody may be left to unlock it.
    let mut last = LAST.try_lock().ok();
    let known = last.as_ref().and_then(|last| last.as_ref());
    if let Some((at, of, backend)) = known
        && *of == limit
        && bytes <= SMALL_BYTES
        && at.elapsed() < READING_LASTS
    {
        return Ok(Arc::clone(backend));
    }
    let backend = Arc::new(open::open(Some(BackendKind::Host.into()), limit)?);
    if let Some(last) = &mut last {
        **last = Some((Instant::now(), limit, Arc::clone(&backend)));
    }
    Ok(backend)
}

/// The backend of a device. Each is opened once and kept: to compile kernels and to pin memory
/// takes long.
fn backend_of(
    device: DeviceId,
    limit: Option<Bytes>,
    bytes: u64,
) -> plimsoll::Result<Arc<VoxelizeBackend>> {
    type Opened = Vec<(DeviceId, Option<Bytes>, Arc<VoxelizeBackend>)>;
    static OPENED: Mutex<Opened> = Mutex::new(Vec::new());
    if device.kind == BackendKind::Host {
        return host(limit, bytes);
    }
    check_fork()?;
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = all.iter().find(|(id, of, _)| (*id, *of) == (device, limit));
    if let Some((.., backend)) = known {
        return Ok(Arc::clone(backend));
    }
    let opened = Arc::new(open::open(Some(device), limit)?);
    all.push((device, limit, Arc::clone(&opened)));
    Ok(opened)
}

/// Drivers do not survive fork: a child whose parent has used one is told so, as locks that its
/// parent held would stay locked for ever.
fn check_fork() -> plimsoll::Result<()> {
    static USER: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    match USER.compare_exchange(0, process, AcqRel, Acquire) {
        Err(other) if other != process => Err(Error::Unavailable {
            what: "a GPU in a child of fork whose parent has used it".to_string(),
            why: "drivers do not survive fork; start the child with spawn \
                  (multiprocessing.set_start_method('spawn'))"
                .to_string(),
        }),
        _ => Ok(()),
    }
}

/// Makes dense grids of clouds that are arrays, in an array of bytes.
#[pyfunction]
#[pyo3(signature = (clouds, spec, out, device = "cpu", chunk = None, limit = None))]
pub(crate) fn voxelize_arrays<'py>(
    py: Python<'py>,
    clouds: Vec<PyReadonlyArray2<'py, f32>>,
    spec: &PyVoxelSpec,
    out: &Bound<'py, PyArray1<u8>>,
    device: &str,
    chunk: Option<u64>,
    limit: Option<Amount>,
) -> PyResult<Bound<'py, PyDict>> {
    let device: DeviceId = device.parse().or_raise()?;
    let batch = Batch::of(clouds.iter().map(cloud).collect::<PyResult<_>>()?, true);
    let mut written = out.try_readwrite().map_err(|error| {
        let why = "shares memory with points, or another thread writes to it";
        PyValueError::new_err(format!("out {why}; give another array ({error})"))
    })?;
    let bytes = written.as_slice_mut().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let wanted = spec.cloud_bytes().saturating_mul(batch.clouds());
    if bytes.len() as u64 != wanted || bytes.as_ptr().align_offset(4) != 0 {
        let text =
            format!("out must be an aligned array of {wanted} bytes, and has {}", bytes.len());
        return Err(PyValueError::new_err(text));
    }
    let (limit, made) = (limit.map(|limit| limit.0), spec.0);
    let report = workers::interruptible(py, |is_stopped| {
        let opened = backend_of(device, limit, wanted)?;
        let job = VoxelJob {
            batch: &batch,
            spec: made,
            backend: &*opened.backend,
            or_host: false,
            chunk,
            available: opened.available,
            room: opened.room,
        };
        job.run(&mut ArraySink(bytes), &mut |_, _| !is_stopped())
    })?;
    tally(py, &report)
}

fn tally<'py>(py: Python<'py>, report: &VoxelReport) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("points", report.tally.points)?;
    dict.set_item("not_finite", report.tally.not_finite)?;
    dict.set_item("outside", report.tally.outside)?;
    dict.set_item("occupied", report.tally.occupied)?;
    dict.set_item("chunks", report.chunks)?;
    dict.set_item("retries", report.retries)?;
    dict.set_item("backend", &report.backend)?;
    dict.set_item("fallback", report.fallback.as_deref())?;
    Ok(dict)
}
