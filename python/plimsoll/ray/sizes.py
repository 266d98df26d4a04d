"""Sizes of batches from free memory.

The first batches have 1, 2, 4 … items. What the peak of memory grows by between two of them is what
an item needs, however much a framework or a model takes beside it. A batch is doubled as long as
the items that come with it fit into what is free, less the safety margin that all of this package
has; where memory runs out all the same, it is halved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from .._plimsoll import available_bytes, calculate_chunking, is_guarded, stats
from ..errors import NeverFits
from ..memory import get_gpu_peaks

#: After a failure, so many batches succeed before a size that failed is tried again.
CALM = 32


@dataclass(frozen=True)
class MemoryReading:
    """The most that this process has held, and what is free for it now."""

    peak_bytes: int
    free_bytes: int


class MemorySizes:
    """How many items the next batch has (`plimsoll.adaptive.BatchSizes`).

    >>> from plimsoll.ray.sizes import MemoryReading, MemorySizes
    >>> sizes, reading = MemorySizes(1000, lambda: reading), MemoryReading(500, 1000)
    >>> for peak in (510, 520, 540):  # ten bytes an item, beside 500 that are always there
    ...     reading = MemoryReading(peak, 40)
    ...     sizes.succeeded(sizes.size, 0.0)
    >>> sizes.size  # not 8: of 40 bytes that are free, 28 are for the next items
    6
    """

    def __init__(
        self, most: int, read: Callable[[], MemoryReading], bytes_per_item: float | None = None
    ) -> None:
        self.most = most
        self.retries = 0
        self._read = read
        self._each = bytes_per_item
        self._largest, self._peak = 0, 0
        self._ceiling: int | None = None
        self._calm = 0
        self.size = 1 if bytes_per_item is None else max(1, _fitting(most, bytes_per_item, read().free_bytes))

    def succeeded(self, count: int, seconds: float) -> None:
        """A batch was done."""
        reading = self._read()
        if count > self._largest:
            if self._largest:
                self._each = max(0, reading.peak_bytes - self._peak) / (count - self._largest)
            self._largest, self._peak = count, reading.peak_bytes
        self._calm += 1
        if self._calm >= CALM:
            self._ceiling = None
        if count < self.size:
            return  # the last items of a block: nothing is known of a full batch
        more = self.size if not self._each else _fitting(self.size, self._each, reading.free_bytes)
        most = self.most if self._ceiling is None else min(self.most, self._ceiling)
        self.size = max(self.size, min(self.size + more, most))

    def failed(self, count: int, seconds: float) -> None:
        """A batch ran out of memory."""
        self.retries += 1
        self._calm, self._ceiling = 0, max(1, count - 1)
        self.size = max(1, count // 2)


def _fitting(most: int, each: float, free: int) -> int:
    """How many of `most` items fit into free memory, with the margin that all chunks have."""
    if each <= 0:
        return most
    try:
        return min(most, calculate_chunking(1 << 40, max(1, round(each)), free).chunk_size)
    except (NeverFits, ValueError):
        return 0


def read_memory(device: str, share: float = 1.0) -> MemoryReading:
    """What this process has held at most and what it may still take, on the host or a GPU.

    `share` is this process's part of the host's memory, of which workers beside it take theirs.
    """
    if not device.startswith("cuda"):
        return MemoryReading(host_peak_bytes(), int(available_bytes("cpu") * share))
    if is_guarded():
        counted = stats(int(device.partition(":")[2] or 0))
        limit, held = counted["limit_bytes"], counted["charged_bytes.current"] or 0
        free = available_bytes(device) if limit is None else max(0, limit - held)
        return MemoryReading(counted["charged_bytes.peak"] or 0, free)
    return MemoryReading(get_gpu_peaks()[1], available_bytes(device))


def host_peak_bytes() -> int:
    """The most of the host's memory that this process has held, as the kernel counts it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024


def gpu_peak_bytes() -> int | None:
    """The most of a GPU's memory that this process and its children have held, as its limit counts
    it; None in a process without a limit."""
    return stats()["charged_bytes.peak"] if is_guarded() else None


def gpu_limit_bytes() -> int | None:
    """The limit of this process, where it has one."""
    return stats()["limit_bytes"] if is_guarded() else None


def share_of_node() -> float:
    """The part of its node's processors that this worker of Ray has: its part of the memory too."""
    import ray

    context = ray.get_runtime_context()
    own = context.get_assigned_resources().get("CPU", 1.0)
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    cpus = nodes.get(context.get_node_id(), {}).get("CPU") or os.cpu_count() or 1
    return float(min(1.0, max(own, 1.0) / cpus))
