"""GPU memory: what fits, a hard limit, and honest measurement.

>>> import plimsoll
>>> plimsoll.format_bytes(plimsoll.parse_bytes("1.5GiB"))
'1.50 GiB'

Amounts of memory are numbers of bytes, or text with a unit. A device is named as PyTorch names it
("cuda:0", "cpu") and is the current one where none is named: the first GPU, or the host.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
from .clouds import read_points
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
from .voxelization import Voxelization

if TYPE_CHECKING:
    from . import torch
    from .adaptive import ItemDoesNotFit, adaptive_map
    from .profiler import MemoryProfiler, MemorySnapshot
    from .results import BenchReport, CompareReport, ExportReport, ReplayReport
    from .verbs import BenchConfig, bench, compare, export, read_report, replay

# Loaded when they are first used: their types would take as long to make as all of the rest.
_LATER = {
    "adaptive": ("ItemDoesNotFit", "adaptive_map"),
    "profiler": ("MemoryProfiler", "MemorySnapshot"),
    "results": ("BenchReport", "CompareReport", "ExportReport", "ReplayReport"),
    "torch": ("torch",),
    "verbs": ("BenchConfig", "bench", "compare", "export", "read_report", "replay"),
}

__version__ = version()


if not TYPE_CHECKING:  # a checker would take every name to be there

    def __getattr__(name: str) -> Any:
        for module, names in _LATER.items():
            if name in names:
                found = importlib.import_module(f".{module}", __name__)
                return found if name == module else getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BenchConfig",
    "BenchReport",
    "ChunkingConfig",
    "CommandFailed",
    "CompareReport",
    "Device",
    "Error",
    "Estimate",
    "ExportReport",
    "GPUMemoryManager",
    "ItemDoesNotFit",
    "MemoryInfo",
    "MemoryProfiler",
    "MemorySnapshot",
    "Monitor",
    "NeverFits",
    "OutOfMemory",
    "ReplayReport",
    "RunReport",
    "Sample",
    "TimeLeft",
    "Unavailable",
    "Voxelization",
    "VoxelizationEstimate",
    "adaptive_map",
    "auto_chunk",
    "available_bytes",
    "bench",
    "calculate_chunking",
    "chunk_and_process",
    "command",
    "compare",
    "current_device",
    "devices",
    "doctor",
    "estimate",
    "estimate_voxelization_memory",
    "export",
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
    "read_points",
    "read_report",
    "replay",
    "run",
    "should_reduce_batch",
    "stats",
    "suggest_voxelization_chunking",
    "torch",
    "version",
    "voxelization_will_oom",
    "voxelize",
    "voxelize_chunked",
    "voxelize_large_batch",
    "voxelize_occupancy",
    "watch",
    "will_oom",
]
