"""The memory of the machine, under the names that programs already use."""

from __future__ import annotations

import sys
from typing import Any, cast

from . import _plimsoll, command
from ._plimsoll import available_bytes, memory_info

GB = 1e9


def _torch_cuda() -> Any:
    """PyTorch's part for CUDA where this process has used it; never imported for this."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def get_memory_info() -> dict[str, Any]:
    """What is known of the machine's memory, as a dict; what is not known is None.

    `gpu_alloc` and `gpu_reserved` are what PyTorch counts, in a process that uses CUDA by it.

    >>> import plimsoll
    >>> info = plimsoll.get_memory_info()
    >>> info["system_used"] <= info["system_total"]
    True
    """
    info = memory_info().to_dict()
    if (cuda := _torch_cuda()) is not None:
        info["gpu_alloc"], info["gpu_reserved"] = cuda.memory_allocated(), cuda.memory_reserved()
    return info


def get_gpu_peaks() -> tuple[int, int]:
    """The most that was allocated and reserved on GPUs at once: as PyTorch counts it for its current
    device in a process that uses CUDA by it, else as the pools of this package do.

    What other libraries allocate is in neither; in a limited process `stats()` counts all of it.

    >>> import plimsoll
    >>> allocated, reserved = plimsoll.get_gpu_peaks()
    >>> allocated <= reserved
    True
    """
    if (cuda := _torch_cuda()) is not None:
        return int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved())
    return _plimsoll.get_gpu_peaks()


def get_available_memory_gb(device: object = None) -> float:
    """What can be had on a device now, in decimal gigabytes (`available_bytes()` / 1e9).

    >>> import plimsoll
    >>> plimsoll.get_available_memory_gb("cpu") > 0
    True
    """
    return available_bytes(device) / GB


def get_free_memory(device: object = None) -> int:
    """What can be had on a device now, in bytes; the same as `available_bytes()`.

    >>> import plimsoll
    >>> plimsoll.get_free_memory("cpu") > 0
    True
    """
    return available_bytes(device)


def doctor() -> dict[str, Any]:
    """What this machine can do, and why it cannot do the rest: `plimsoll doctor --json`.

    >>> import plimsoll
    >>> "backends" in plimsoll.doctor()
    True
    """
    return cast("dict[str, Any]", command.ask(["doctor"]))
