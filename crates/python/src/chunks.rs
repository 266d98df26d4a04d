//! Work that is larger than memory, cut into chunks that fit.

use plimsoll::{Bytes, ChunkingConfig, SAFETY_MARGIN};
use plimsoll_points::{
    VoxelizationEstimate, VoxelizationShape, estimate_voxelization_memory as estimate,
    suggest_voxelization_chunking as suggest, voxelization_will_oom as will_oom,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyRange};

use crate::arguments::{Amount, Count};
use crate::errors::OrRaise;
use crate::memory::available_bytes;

/// How many chunks, how large, and what one takes.
///
/// >>> import plimsoll
/// >>> plan = plimsoll.calculate_chunking(10, 100, 400, 1.0)
/// >>> plan.num_chunks, plan.chunk_size, plan.last_chunk_size
/// (3, 4, 2)
/// >>> plan.ranges()
/// [range(0, 4), range(4, 8), range(8, 10)]
#[pyclass(name = "ChunkingConfig", module = "plimsoll", frozen, eq)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyChunkingConfig(ChunkingConfig);

#[pymethods]
impl PyChunkingConfig {
    /// How many chunks; 0 where there is nothing to do.
    #[getter]
    fn num_chunks(&self) -> u64 {
        self.0.num_chunks
    }

    /// Items in every chunk but the last.
    #[getter]
    fn chunk_size(&self) -> u64 {
        self.0.chunk_size
    }

    /// Items in the last.
    #[getter]
    fn last_chunk_size(&self) -> u64 {
        self.0.last_chunk_size
    }

    /// What a full chunk takes, in bytes.
    #[getter]
    fn memory_per_chunk(&self) -> u64 {
        self.0.memory_per_chunk.get()
    }

    /// All items.
    #[getter]
    fn total_items(&self) -> u64 {
        self.0.total_items()
    }

    /// The items of each chunk, in order, each item once.
    fn ranges<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyRange>>> {
        let range = |items: std::ops::Range<u64>| {
            PyRange::new(py, items.start as isize, items.end as isize)
        };
        self.0.ranges().map(range).collect()
    }

    /// In words: `4 chunks of 16 items, 2.10 GiB a chunk`.
    #[pyo3(name = "to_string")]
    fn in_words(&self) -> String {
        self.0.to_string()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    /// The same as a dict.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("num_chunks", self.0.num_chunks)?;
        dict.set_item("chunk_size", self.0.chunk_size)?;
        dict.set_item("last_chunk_size", self.0.last_chunk_size)?;
        dict.set_item("memory_per_chunk", self.0.memory_per_chunk.get())?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("ChunkingConfig({})", self.0)
    }
}

/// This many items of this many bytes into what a device has free, with the safety margin.
///
/// >>> import plimsoll
/// >>> plimsoll.auto_chunk(64, "1KiB", "cpu").num_chunks
/// 1
#[pyfunction]
#[pyo3(signature = (total_batch_size, bytes_per_item, device = None))]
pub(crate) fn auto_chunk(
    py: Python<'_>,
    total_batch_size: Count,
    bytes_per_item: Amount,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyChunkingConfig> {
    let free = Bytes(available_bytes(py, device)?);
    plimsoll::auto_chunk(total_batch_size.0, bytes_per_item.0, free)
        .or_raise()
        .map(PyChunkingConfig)
}

/// This many items of this many bytes into so much memory, of which a share may be used.
///
/// >>> import plimsoll
/// >>> plimsoll.calculate_chunking(64, "9.5MiB", "220MiB").to_string()
/// '4 chunks of 16 items, 152.00 MiB a chunk'
#[pyfunction]
#[pyo3(signature = (total_items, bytes_per_item, available_memory, safety_margin = SAFETY_MARGIN))]
pub(crate) fn calculate_chunking(
    total_items: Count,
    bytes_per_item: Amount,
    available_memory: Amount,
    safety_margin: f64,
) -> PyResult<PyChunkingConfig> {
    let (item, available) = (bytes_per_item.0, available_memory.0);
    let plan = plimsoll::calculate_chunking(total_items.0, item, available, safety_margin);
    plan.or_raise().map(PyChunkingConfig)
}

/// What voxelizing a batch takes, in bytes.
///
/// >>> import plimsoll
/// >>> plimsoll.estimate_voxelization_memory(1, 1000, 8, 8, 8).points_bytes
/// 12000
#[pyclass(name = "VoxelizationEstimate", module = "plimsoll", frozen, eq)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyVoxelizationEstimate(VoxelizationEstimate);

#[pymethods]
impl PyVoxelizationEstimate {
    /// Coordinates and features.
    #[getter]
    fn points_bytes(&self) -> u64 {
        self.0.points.get()
    }

    /// The grids.
    #[getter]
    fn output_bytes(&self) -> u64 {
        self.0.output.get()
    }

    /// What is needed between the two.
    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.0.workspace.get()
    }

    /// All of it.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.0.total().get()
    }

    /// The same as a dict.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("points_bytes", self.points_bytes())?;
        dict.set_item("output_bytes", self.output_bytes())?;
        dict.set_item("workspace_bytes", self.workspace_bytes())?;
        dict.set_item("total_bytes", self.total_bytes())?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let VoxelizationEstimate { points, output, workspace, .. } = self.0;
        let total = self.0.total();
        format!(
            "VoxelizationEstimate({total}: points {points}, output {output}, workspace {workspace})"
        )
    }
}

/// What voxelizing a batch takes on the device that does it.
///
/// >>> import plimsoll
/// >>> plimsoll.estimate_voxelization_memory(64, 100_000, 128, 128, 128).output_bytes
/// 536870912
#[pyfunction]
#[pyo3(
    signature = (batch_size, num_points, depth, height, width, feature_dim = Count(0)),
    text_signature = "(batch_size, num_points, depth, height, width, feature_dim=0)",
)]
pub(crate) fn estimate_voxelization_memory(
    batch_size: Count,
    num_points: Count,
    depth: Count,
    height: Count,
    width: Count,
    feature_dim: Count,
) -> PyVoxelizationEstimate {
    let shape = VoxelizationShape::new(batch_size.0, num_points.0, [depth.0, height.0, width.0]);
    PyVoxelizationEstimate(estimate(&shape.with_features(feature_dim.0)))
}

/// Whether voxelizing a batch takes more than the safety margin leaves of a device's free memory.
///
/// >>> import plimsoll
/// >>> plimsoll.voxelization_will_oom(2**40, 100_000, 128, 128, 128, "cpu")
/// True
#[pyfunction]
#[pyo3(signature = (batch_size, num_points, depth, height, width, device = None))]
pub(crate) fn voxelization_will_oom(
    py: Python<'_>,
    batch_size: Count,
    num_points: Count,
    depth: Count,
    height: Count,
    width: Count,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    let shape = VoxelizationShape::new(batch_size.0, num_points.0, [depth.0, height.0, width.0]);
    Ok(will_oom(&shape, Bytes(available_bytes(py, device)?)))
}

/// How many clouds at a time fit into what a device has free.
///
/// >>> import plimsoll
/// >>> plimsoll.suggest_voxelization_chunking(4, 1000, 8, 8, 8, "cpu").num_chunks
/// 1
#[pyfunction]
#[pyo3(signature = (batch_size, num_points, depth, height, width, device = None))]
pub(crate) fn suggest_voxelization_chunking(
    py: Python<'_>,
    batch_size: Count,
    num_points: Count,
    depth: Count,
    height: Count,
    width: Count,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyChunkingConfig> {
    let shape = VoxelizationShape::new(batch_size.0, num_points.0, [depth.0, height.0, width.0]);
    suggest(&shape, Bytes(available_bytes(py, device)?)).or_raise().map(PyChunkingConfig)
}
