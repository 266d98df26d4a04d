"""GPU memory: what fits, a hard limit, and honest measurement.

>>> import plimsoll
>>> plimsoll.format_bytes(plimsoll.parse_bytes("1.5GiB"))
'1.50 GiB'

Amounts of memory are numbers of bytes, or text with a unit. A device is named as PyTorch names it
("cuda:0", "cpu") and is the current one where none is named: the first GPU, or the host.
"""

from . import command
from ._plimsoll import (
    ChunkingConfig,
    Device,
    GPUMemoryManager,
    MemoryInfo,
    VoxelizationEstimate,
    auto_chunk,
    available_bytes,
    calculate_chunking,
    current_device,
    devices,
    estimate_voxelization_memory,
    format_bytes,
    generate_memory_report,
    is_guarded,
    is_jetson,
    is_unified,
    limit,
    memory_info,
    parse_bytes,
    should_reduce_batch,
    stats,
    suggest_voxelization_chunking,
    version,
    voxelization_will_oom,
    will_oom,
)
from .errors import CommandFailed, Error, NeverFits, OutOfMemory, Unavailable
from .estimates import Estimate, estimate
from .limits import RunReport, guarded, run
from .memory import (
    doctor,
    get_available_memory_gb,
    get_free_memory,
    get_gpu_peaks,
    get_memory_info,
)
from .monitoring import Monitor, Sample, TimeLeft, monitor, watch
from .points import (
    chunk_and_process,
    voxelize,
    voxelize_chunked,
    voxelize_large_batch,
    voxelize_occupancy,
)

__version__ = version()

__all__ = [
    "ChunkingConfig",
    "CommandFailed",
    "Device",
    "Error",
    "Estimate",
    "GPUMemoryManager",
    "MemoryInfo",
    "Monitor",
    "NeverFits",
    "OutOfMemory",
    "RunReport",
    "Sample",
    "TimeLeft",
    "Unavailable",
    "VoxelizationEstimate",
    "auto_chunk",
    "available_bytes",
    "calculate_chunking",
    "chunk_and_process",
    "command",
    "current_device",
    "devices",
    "doctor",
    "estimate",
    "estimate_voxelization_memory",
    "format_bytes",
    "generate_memory_report",
    "get_available_memory_gb",
    "get_free_memory",
    "get_gpu_peaks",
    "get_memory_info",
    "guarded",
    "is_guarded",
    "is_jetson",
    "is_unified",
    "limit",
    "memory_info",
    "monitor",
    "parse_bytes",
    "run",
    "should_reduce_batch",
    "stats",
    "suggest_voxelization_chunking",
    "version",
    "voxelization_will_oom",
    "voxelize",
    "voxelize_chunked",
    "voxelize_large_batch",
    "voxelize_occupancy",
    "watch",
    "will_oom",
]
