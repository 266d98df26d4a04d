"""PyTorch's allocations, recorded with the lines that made them: `plimsoll.torch.record`."""

from __future__ import annotations

import gzip
import html
import importlib
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .._plimsoll import format_bytes
from ..errors import Unavailable
from ..files import write_whole
from ..profiler import MemoryProfiler

__all__ = ["AllocatingLine", "MemoryProfiler", "record"]

#: Events that are kept unless told otherwise: the newest. About 2 KB each in memory.
MOST_EVENTS = 1_000_000

#: What is shown in place of a line.
BEFORE = "allocated before the recording"
NO_PYTHON = "no line of Python: the backward pass, or C++"


@dataclass(frozen=True)
class AllocatingLine:
    """A line of Python, and what it had allocated that was in use at the peak."""

    file: str
    line: int
    function: str
    bytes: int
    blocks: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.function else self.file


class record:
    """Records what PyTorch allocates on CUDA devices while a block runs, and writes it as a trace.

    The file is a memory snapshot of PyTorch's: `plimsoll.replay(path)` replays it, and PyTorch's own
    viewer (pytorch.org/memory_viz) shows it. It holds every allocation and free with the Python
    lines that made it. What was allocated before the block comes first, so that the trace begins
    with what the program held. A path that ends in .gz is compressed.

    The file is whole or not there, and is written also where the block raises: a program that ran
    out of memory is worth looking at. Of more than `max_events` events the newest are kept.

    Raises `Unavailable` where there is no PyTorch or no CUDA device.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: int | None = None,
        max_events: int = MOST_EVENTS,
    ) -> None:
        self.path = Path(path)
        self.device = device
        self.max_events = max_events
        self.events = 0
        self.peak_bytes: int | None = None
        self.lines: tuple[AllocatingLine, ...] = ()
        self._memory: Any = None
        self._before: list[list[dict[str, Any]]] = []
        # Frames in these folders are not the program's own.
        self._libraries: tuple[str, ...] = (os.path.dirname(os.path.dirname(__file__)) + os.sep,)

    def __enter__(self) -> record:
        torch = _torch()
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"{self.path.parent} is no folder; make it first")
        self._memory = torch.cuda.memory
        self._libraries += (os.path.dirname(torch.__file__) + os.sep,)
        if getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)():
            raise RuntimeError("PyTorch records its allocations already; end that recording first")
        torch.cuda.init()
        held = self._memory._snapshot()
        self._before = [_live(held, number) for number in range(torch.cuda.device_count())]
        self._memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=self.max_events
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            snapshot = self._memory._snapshot()
        finally:
            self._memory._record_memory_history(enabled=None)
        self._complete(snapshot)
        write_whole(self.path, lambda file: _dump(snapshot, file, self.path))

    def _complete(self, snapshot: dict[str, Any]) -> None:
        """Puts what was live before in front of each device's events, and looks for the peak."""
        most = -1
        for number, events in enumerate(snapshot["device_traces"]):
            if self.device is not None and number != self.device:
                events.clear()
            if not events:
                continue
            before = self._before[number] if number < len(self._before) else []
            for event in before:
                event["time_us"] = events[0].get("time_us", 0)
            # A ring that is full has lost its oldest events; what was live before them may be gone.
            if len(events) < self.max_events:
                events[:0] = before
            self.events += len(events)
            peak, lines = _at_peak(events, self._libraries)
            if peak > most:
                most, self.peak_bytes, self.lines = peak, peak, lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "events": self.events,
            "peak_bytes": self.peak_bytes,
            "lines": [line.to_dict() for line in self.lines],
        }

    def _rows(self) -> Iterator[tuple[str, str]]:
        for line in self.lines[:10]:
            yield format_bytes(line.bytes), str(line)

    def __repr__(self) -> str:
        if self.peak_bytes is None:
            return f"<record {self.path}: no events>"
        head = f"<record {self.path}: {self.events} events, peak {format_bytes(self.peak_bytes)}>"
        return "\n".join([head, *(f"  {size:>11}  {place}" for size, place in self._rows())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:right">{size}</td>'
            f'<td style="text-align:left"><code>{html.escape(place)}</code></td></tr>'
            for size, place in self._rows()
        )
        peak = "no events" if self.peak_bytes is None else f"peak {format_bytes(self.peak_bytes)}"
        head = html.escape(f"{self.path}: {self.events} events, {peak}; in use at the peak, by line")
        return f"<div>{head}<table>{rows}</table></div>"


def _torch() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise Unavailable(f"PyTorch is not available: {error}; pip install torch") from error
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this build of PyTorch has no CUDA" if built is None else "PyTorch sees no CUDA device"
        raise Unavailable(
            f"PyTorch's CUDA allocations cannot be recorded: {why}; run it on a machine with an "
            "NVIDIA GPU (plimsoll doctor says what is found here)"
        )
    return torch


def _live(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    """What is allocated on a device now, as events of a trace."""
    events = []
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            address = start + block["size"]
            if block["state"] == "active_allocated":
                events.append(
                    {
                        "action": "alloc",
                        "addr": start,
                        "size": block.get("requested_size", block["size"]),
                        "stream": segment["stream"],
                        "frames": [{"filename": BEFORE, "line": 0, "name": ""}],
                    }
                )
    return events


def _at_peak(
    events: list[dict[str, Any]], libraries: tuple[str, ...]
) -> tuple[int, tuple[AllocatingLine, ...]]:
    """The most that was live at once, and by which lines."""
    live = peak = at = 0
    sizes: dict[int, int] = {}
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            live += event["size"]
            if live > peak:
                peak, at = live, number
        elif event["action"] == "free_completed":
            live -= sizes.pop(event["addr"], 0)
    owners: dict[int, tuple[int, tuple[str, int, str]]] = {}
    for event in events[: at + 1]:
        if event["action"] == "alloc":
            owners[event["addr"]] = (event["size"], _place(event.get("frames") or [], libraries))
        elif event["action"] == "free_completed":
            owners.pop(event["addr"], None)
    held: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for size, place in owners.values():
        held[place].append(size)
    lines = [AllocatingLine(*place, sum(sizes), len(sizes)) for place, sizes in held.items()]
    return peak, tuple(sorted(lines, key=lambda line: -line.bytes))


def _place(frames: list[dict[str, Any]], libraries: tuple[str, ...]) -> tuple[str, int, str]:
    """The innermost line that is the program's own, else the innermost."""
    program = [frame for frame in frames if not frame["filename"].startswith(libraries)]
    for frame in [*program, *frames]:
        return frame["filename"], frame["line"], frame["name"]
    return NO_PYTHON, 0, ""


def _dump(snapshot: dict[str, Any], file: IO[bytes], path: Path) -> None:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=4) as packed:
            pickle.dump(snapshot, packed)
    else:
        pickle.dump(snapshot, file)
