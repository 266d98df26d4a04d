//! The extension module of the Python package `plimsoll`: the library's calls under the names that
//! Python's users know.
//!
//! It has no logic of its own: arguments become the library's, errors become Python's, and the
//! interpreter is released while the library works. What the package does by starting the command
//! is in Python (`python/plimsoll/command.py`).

mod arguments;
mod batch;
mod chunks;
mod errors;
mod estimates;
mod limits;
mod manager;
mod memory;
mod points;
mod torch;

use pyo3::prelude::*;

#[pymodule]
mod _plimsoll {
    use super::*;

    #[pymodule_export]
    use crate::batch::BatchSize;
    #[pymodule_export]
    use crate::chunks::{
        PyChunkingConfig, PyVoxelizationEstimate, auto_chunk, calculate_chunking,
        estimate_voxelization_memory, suggest_voxelization_chunking, voxelization_will_oom,
    };
    #[pymodule_export]
    use crate::estimates::{estimate_file, estimate_shape};
    #[pymodule_export]
    use crate::limits::{PyGuardedEnvironment, is_guarded, limit, stats};
    #[pymodule_export]
    use crate::manager::PyGpuMemoryManager;
    #[pymodule_export]
    use crate::memory::{
        PyDevice, PyMemoryInfo, available_bytes, current_device, devices, format_bytes, gpu_peaks,
        is_jetson, is_unified, memory_info, memory_report, parse_bytes, should_reduce_batch,
        will_oom,
    };

    #[pymodule_export]
    use crate::points::cuda::voxelize_resident;
    #[pymodule_export]
    use crate::points::hard::{PyHardCall, PyHardVoxelizer};
    #[pymodule_export]
    use crate::points::read::read_clouds;
    #[pymodule_export]
    use crate::points::{PyVoxelSpec, voxelize_arrays};

    #[pymodule_export]
    use crate::torch::{caching_allocator, caching_within, expandable_segments};

    /// The version of the package.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}
