"""Ray: voxelization and stages that stay within their memory, on many machines (`plimsoll[ray]`).

`Stage` is a function for `map_batches` whose actors each have a memory limit of their own and
choose the sizes of their batches; `voxelize` makes voxel grids of a data set; `voxelize_files`
makes shards of files, as `python -m plimsoll.ray voxelize` does.

Ray itself is imported when one of them is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grids import Grids, voxelize
    from .hard import hard_voxelize
    from .job import voxelize_files
    from .options import JobFailed, JobOptions
    from .report import JobReport
    from .stage import Stage

_LATER = {
    "grids": ("Grids", "voxelize"),
    "hard": ("hard_voxelize",),
    "job": ("voxelize_files",),
    "options": ("JobFailed", "JobOptions"),
    "report": ("JobReport",),
    "stage": ("Stage",),
}


if not TYPE_CHECKING:  # a checker would take every name to be there

    def __getattr__(name: str) -> Any:
        for module, names in _LATER.items():
            if name in names:
                return getattr(importlib.import_module(f".{module}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Grids",
    "JobFailed",
    "JobOptions",
    "JobReport",
    "Stage",
    "hard_voxelize",
    "voxelize",
    "voxelize_files",
]
