"""What a piece of work takes: pictures of the moment, the peak between them, and a plot."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from . import plot
from ._plimsoll import format_bytes, is_guarded, limit, stats
from .errors import Unavailable
from .files import write_whole

GIB = float(1 << 30)

#: Samples that are kept; beyond it every two become one, and the next come half as often.
MOST_SAMPLES = 4096

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class MemorySnapshot:
    """The GPU memory of this process at one moment, in bytes; `elapsed_s` is since the profiler began."""

    label: str
    time: float
    elapsed_s: float
    allocated: int | None
    """In use by tensors; none where only the driver's side is counted."""
    reserved: int
    """Held from the driver: allocated, cached and lost to rounding."""
    peak: int
    """The most since the last reset: of `allocated` where that is known, else of `reserved`."""
    free: int | None
    """What nobody holds on the device, or within the limit of this process."""
    total: int | None
    source: str
    """Who counted."""

    @property
    def utilization(self) -> float | None:
        """The share of the device, or of the limit, that is not free."""
        return None if not self.total or self.free is None else 1 - self.free / self.total

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "utilization": self.utilization}

    def __str__(self) -> str:
        allocated = "–" if self.allocated is None else format_bytes(self.allocated)
        free = "–" if self.free is None else format_bytes(self.free)
        return (
            f"{self.label}: allocated {allocated}, reserved {format_bytes(self.reserved)}, "
            f"peak {format_bytes(self.peak)}, free {free}"
        )


class _OnClassOrObject(Generic[P, R]):
    """A method that is called on the class too, which then gets `None` for the object."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, owner: object, kind: type) -> Callable[P, R]:
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.method(owner, *args, **kwargs)

        bound.__doc__ = self.__doc__
        return bound


class MemoryProfiler:
    """Follows the GPU memory of this process while a block runs, and plots it.

    Figures are PyTorch's own where it uses CUDA, else those of the limit that this process runs
    under (`plimsoll run`). PyTorch counts its peaks; without it they are the highest sample. The
    plot's lines are samples, one each `interval_s`.

        with plimsoll.MemoryProfiler() as profiler:
            for step, batch in enumerate(batches):
                train(batch)
                profiler.capture(f"step {step}")
        profiler.save("memory.svg")       # in a notebook: the last line `profiler` shows it

    `capture`, `print_summary`, `reset_peak_memory` and `get_peak_memory` also work on the class,
    without a profiler. Where nobody counts, that is said:

    >>> import plimsoll
    >>> plimsoll.MemoryProfiler.capture("now")
    Traceback (most recent call last):
        ...
    plimsoll.errors.Unavailable: the GPU memory of this process is not counted: ...
    """

    def __init__(self, *, device: int | None = None, interval_s: float = 0.02) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s is {interval_s}; give seconds above 0")
        self.snapshots: list[MemorySnapshot] = []
        self._source = _source(device)
        self._interval = interval_s
        self._began = time.perf_counter()
        self._samples: list[tuple[float, int | None, int]] = []
        self._every, self._seen = 1, 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MemoryProfiler:
        if self._thread is not None:
            raise RuntimeError("this profiler has run already; make another")
        self._source.reset()
        self._began = time.perf_counter()
        self._sample()
        self._thread = threading.Thread(target=self._follow, name="plimsoll-profiler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._sample(last=True)

    @_OnClassOrObject
    def capture(self: MemoryProfiler | None, label: str = "") -> MemorySnapshot:
        """The moment as a `MemorySnapshot`; on a profiler also a mark in its plot."""
        source = _source(None) if self is None else self._source
        elapsed = 0.0 if self is None else time.perf_counter() - self._began
        snapshot = source.snapshot(label, elapsed)
        if self is not None:
            self.snapshots.append(snapshot)
        return snapshot

    @staticmethod
    def print_summary(snapshots: Iterable[MemorySnapshot]) -> None:
        """Prints snapshots and the highest peak among them."""
        snapshots = list(snapshots)
        for snapshot in snapshots:
            print(snapshot)
        if snapshots:
            best = max(snapshots, key=lambda one: one.peak)
            print(f'Peak memory: {format_bytes(best.peak)} (by "{best.label}")')

    @_OnClassOrObject
    def reset_peak_memory(self: MemoryProfiler | None) -> None:
        """Begins a new peak at what is in use now."""
        (_source(None) if self is None else self._source).reset()

    @_OnClassOrObject
    def get_peak_memory(self: MemoryProfiler | None) -> int:
        """The most that was in use at once since the last reset, in bytes."""
        return (_source(None) if self is None else self._source).peak()

    def plot(self) -> str:
        """The course of memory as SVG."""
        allocated = [(t, one / GIB) for t, one, _ in self._samples if one is not None]
        lines = [plot.Line("allocated", allocated, stair=True)] if allocated else []
        lines.append(plot.Line("reserved", [(t, r / GIB) for t, _, r in self._samples], stair=True))
        most = max((r for _, _, r in self._samples), default=0)
        line = self._source.limit()
        near = line / GIB if line is not None and most > line / 4 else None
        marks = [(snapshot.elapsed_s, snapshot.label) for snapshot in self.snapshots]
        return plot.over_time("GPU memory", "GiB", lines, limit=near, marks=_readable(marks))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plot as an .svg file: whole, or not at all."""
        if Path(path).suffix != ".svg":
            raise ValueError(f"{os.fspath(path)} must end in .svg, the one format that is written")
        write_whole(path, self.plot().encode())

    def __repr__(self) -> str:
        if not self._samples:
            return "<MemoryProfiler: not run yet; use it as `with MemoryProfiler() as profiler:`>"
        seconds = self._samples[-1][0]
        return f"<MemoryProfiler: peak {format_bytes(self._peak())} in {seconds:.1f} s, {self._source.name}>"

    def _repr_html_(self) -> str:
        peak = f"peak {format_bytes(self._peak())}, {self._source.peak_is}" if self._samples else "not run yet"
        each = f"lines sampled each {self._interval * 1000 * self._every:.0f} ms"
        text = f"{peak}; {each}; by {self._source.name}"
        return f"<div>{self.plot()}<br><small>{html.escape(text)}</small></div>"

    def _peak(self) -> int:
        seen = [r if a is None else a for _, a, r in self._samples]
        return max([self._source.peak(), *seen, *(snapshot.peak for snapshot in self.snapshots)])

    def _follow(self) -> None:
        while not self._ended.wait(self._interval):
            self._sample()

    def _sample(self, *, last: bool = False) -> None:
        self._seen += 1
        if self._seen % self._every and not last:
            return
        allocated, reserved = self._source.now()
        self._samples.append((time.perf_counter() - self._began, allocated, reserved))
        if len(self._samples) >= MOST_SAMPLES:
            # The larger of each two, so that no peak that was seen is lost.
            pairs = zip(self._samples[::2], self._samples[1::2])
            self._samples = [max(pair, key=lambda one: (one[1] or 0, one[2])) for pair in pairs]
            self._every *= 2


def _readable(marks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Marks that can be told apart: at most 12, evenly chosen."""
    step = -(-len(marks) // 12) or 1
    return marks[::step]


class _Torch:
    """PyTorch's caching allocator."""

    name = "PyTorch"
    peak_is = "counted"

    def __init__(self, torch: Any, device: int | None) -> None:
        self.cuda = torch.cuda
        self.device = torch.cuda.current_device() if device is None else device

    def now(self) -> tuple[int | None, int]:
        counted = self.cuda.memory_stats(self.device)
        return (
            int(counted.get("allocated_bytes.all.current", 0)),
            int(counted.get("reserved_bytes.all.current", 0)),
        )

    def peak(self) -> int:
        return int(self.cuda.max_memory_allocated(self.device))

    def reset(self) -> None:
        self.cuda.reset_peak_memory_stats(self.device)

    def limit(self) -> int | None:
        return (limit(self.device) if is_guarded() else None) or int(
            self.cuda.get_device_properties(self.device).total_memory
        )

    def snapshot(self, label: str, elapsed: float) -> MemorySnapshot:
        allocated, reserved = self.now()
        free, total = self.cuda.mem_get_info(self.device)
        now = time.time()
        return MemorySnapshot(
            label, now, elapsed, allocated, reserved, self.peak(), free, total, self.name
        )


class _Guard:
    """The limit that this process runs under, which counts what it holds from the driver."""

    name = "the limit of this process"
    peak_is = "sampled"

    def __init__(self, device: int) -> None:
        self.device = device
        self.highest = 0

    def now(self) -> tuple[int | None, int]:
        held = stats(self.device)["reserved_bytes.all.current"] or 0
        self.highest = max(self.highest, held)
        return None, held

    def peak(self) -> int:
        return max(self.highest, self.now()[1])

    def reset(self) -> None:
        self.highest = 0

    def limit(self) -> int | None:
        return limit(self.device)

    def snapshot(self, label: str, elapsed: float) -> MemorySnapshot:
        _, held = self.now()
        most, charged = self.limit(), stats(self.device)["charged_bytes.current"] or 0
        free = None if most is None else max(0, most - charged)
        return MemorySnapshot(
            label, time.time(), elapsed, None, held, self.peak(), free, most, self.name
        )


def _source(device: int | None) -> _Torch | _Guard:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return _Torch(torch, device)
    if is_guarded():
        return _Guard(device or 0)
    why = "PyTorch is not imported" if torch is None else "PyTorch sees no CUDA device"
    raise Unavailable(
        f"the GPU memory of this process is not counted: {why}, and the process does not run under "
        "a limit; import torch on a machine with a CUDA device, or start it by "
        "`python -m plimsoll run -- python …`"
    )
