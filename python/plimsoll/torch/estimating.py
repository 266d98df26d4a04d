"""`plimsoll.torch.estimate`: what a PyTorch program takes on a GPU, without one."""

from __future__ import annotations

import html
import importlib
import os
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import plot
from .._plimsoll import caching_allocator, caching_within, expandable_segments, format_bytes, parse_bytes
from ..errors import Unavailable
from ..records import Record
from .recording import AllocatingLine

#: Points of a timeline.
MOST_POINTS = 1000
MIB = 1 << 20

#: What the driver and the libraries keep besides what PyTorch reserves, as an H200 with driver 580 and
#: CUDA 13 had it: the context, and what is loaded for matrix products, cuDNN, backward passes.
CONTEXT = 621 * MIB
PRODUCTS, BACKWARD_PRODUCTS, INT8_PRODUCTS = 66 * MIB, 64 * MIB, 66 * MIB
CUDNN, CUDNN_BACKWARD = 8 * MIB, 8 * MIB

#: The most by which measured totals were above the estimate, with room.
ABOVE = 0.05

AllocatorName = Literal["caching", "expandable", "plimsoll"]


@dataclass(frozen=True)
class PeakMoment(Record):
    """When the most was allocated: the event, the operator that took the last of it, and the line."""

    event: int
    operator: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} in {self.function}" if self.function else self.file
        return f"{self.operator or 'allocation'} at {where}"


@dataclass(frozen=True)
class AllocationPoint(Record):
    """The most within some events."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class AllocationRange(Record):
    """What a measured peak is expected to lie between."""

    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, repr=False)
class ProgramEstimate(Record):
    """What a program takes, worked out by running it without data.

    `peak_allocated_bytes` is what PyTorch would count as allocated at most, `peak_reserved_bytes` what
    its allocator would hold then for it; `total_bytes` adds `context_bytes`, which the driver and
    libraries keep. `lines` says what was there at the peak by the lines that allocated it.

    With a limit, `fits` is whether the upper end of the range is within it, and `runs` whether the
    program gets through where its allocator may hold no more: PyTorch then gives back what it keeps.
    """

    total_bytes: int
    range: AllocationRange
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int
    allocator: AllocatorName
    allocations: int
    peak: PeakMoment | None
    lines: tuple[AllocatingLine, ...]
    timeline: tuple[AllocationPoint, ...]
    attention: dict[str, int]
    assumptions: tuple[str, ...]
    limit_bytes: int | None
    fits: bool | None
    runs: bool | None

    def _rows(self) -> list[tuple[str, str]]:
        return [(format_bytes(line.bytes), str(line)) for line in self.lines[:10]]

    @property
    def _verdict(self) -> str:
        if self.limit_bytes is None:
            return ""
        return f"; {'fits into' if self.fits else 'does not fit into'} {format_bytes(self.limit_bytes)}"

    @property
    def _head(self) -> str:
        return (
            f"{format_bytes(self.total_bytes)} in all, at most {format_bytes(self.range.high_bytes)}: "
            f"{format_bytes(self.peak_allocated_bytes)} allocated, {format_bytes(self.peak_reserved_bytes)} reserved, "
            f"{format_bytes(self.context_bytes)} for the driver and libraries{self._verdict}"
        )

    def __repr__(self) -> str:
        peak = f"\n  peak at {self.peak}" if self.peak else ""
        rows = "".join(f"\n  {size:>11}  {place}" for size, place in self._rows())
        return f"<ProgramEstimate {self._head}>{peak}{rows}"

    def plots(self) -> list[str]:
        """Allocated and reserved memory over the program's allocations, as SVG."""
        series = {
            "allocated": [(float(p.event), p.allocated_bytes / (1 << 30)) for p in self.timeline],
            "reserved": [(float(p.event), p.reserved_bytes / (1 << 30)) for p in self.timeline],
        }
        if self.allocator != "caching":
            del series["reserved"]
        lines = [plot.Line(name, points) for name, points in series.items()]
        return [svg for svg in [plot.over_time("Memory over allocations and frees", "GiB", lines)] if svg]

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:right">{size}</td>'
            f'<td style="text-align:left"><code>{html.escape(place)}</code></td></tr>'
            for size, place in self._rows()
        )
        peak = f"<div>peak at <code>{html.escape(str(self.peak))}</code></div>" if self.peak else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.assumptions)
        return (
            f"<div><strong>{html.escape(self._head)}</strong>{peak}{''.join(self.plots())}"
            f"<table>{rows}</table><ul>{notes}</ul></div>"
        )


def estimate(
    fn: Callable[..., Any],
    *inputs: Any,
    allocator: AllocatorName = "caching",
    limit: int | str | None = None,
    capability: tuple[int, int] = (9, 0),
    multiprocessors: int = 132,
    **named: Any,
) -> ProgramEstimate:
    """What `fn(*inputs, **named)` takes on a CUDA device, by running it without one.

    `fn` is any function of PyTorch's tensors, a forward pass or whole training steps. Tensors, modules
    and optimizers among its inputs, and modules and optimizers that it refers to, are on the device
    while it runs, without data, and as they were after it. What it makes with `device="cuda"` or
    `.cuda()` is there too, so that a program can also make its model itself. Backward passes,
    autocast, checkpointing and PyTorch's optimizers run as they do on CUDA.

    `allocator` is PyTorch's caching allocator, the same with expandable segments, or the pool of
    this library. `capability` and `multiprocessors` say which GPU: those of an H100 or H200 unless told.
    With a `limit`, `fits` says whether the upper end of the range is within it.

    Raises `Unavailable` where PyTorch is not installed.

    >>> import plimsoll, plimsoll.torch
    >>> plimsoll.torch.estimate(lambda: None)       # doctest: +SKIP
    """
    torch = _torch()
    simulated = importlib.import_module("plimsoll.torch.simulated")
    dataless = importlib.import_module("plimsoll.torch.dataless")
    kernels = importlib.import_module("plimsoll.torch.kernels")
    inputs_module = importlib.import_module("plimsoll.torch.placing")
    run = dataless.Run(kernels.Rules(capability, multiprocessors), _libraries(torch))
    most = 1 << 62 if limit is None else parse_bytes(limit)
    with inputs_module.placed(run, fn, inputs, named) as (args, kwargs), simulated.cuda_device(run, most):
        fn(*args, **kwargs)
        args, kwargs = (), {}
    return _answer(run, allocator, None if limit is None else most)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise Unavailable(f"PyTorch is not available: {error}; pip install torch") from error


def _libraries(torch: Any) -> tuple[str, ...]:
    """Where the lines are that are not the program's own: PyTorch, this package, Python."""
    # As frames name them, which may be reached through a link.
    own = Path(__file__).parent
    names = ("__init__", "dataless", "estimating", "kernels", "operators", "placing", "simulated", "values")
    paths = [str(own / f"{name}.py") for name in names]
    paths += [os.path.dirname(torch.__file__) + os.sep, sysconfig.get_paths()["stdlib"] + os.sep + "contextlib"]
    return (*paths, "<")


def _answer(run: Any, allocator: AllocatorName, limit: int | None) -> ProgramEstimate:
    log = run.log
    allocated, reserved = caching_allocator(log.events, [block.size for block in log.blocks])
    start = log.reset_at
    span = range(start, len(allocated))
    at = max(span, key=allocated.__getitem__, default=None)
    peak_allocated = allocated[at] if at is not None else 0
    if allocator == "caching":
        peak_reserved = max((reserved[event] for event in span), default=0)
    else:
        peak_reserved = _reserved_otherwise(log, allocator)
    context = context_bytes(run)
    total = peak_reserved + context
    high = total + int(total * ABOVE)
    return ProgramEstimate(
        total_bytes=total,
        range=AllocationRange(peak_allocated + context, high),
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=peak_reserved,
        context_bytes=context,
        allocator=allocator,
        allocations=len(log.blocks),
        peak=_moment(log, at),
        lines=_lines(log, at),
        timeline=_timeline(allocated, reserved, start),
        attention=dict(run.rules.attention),
        assumptions=tuple(f"{what} ({count} times)" for what, count in run.unknown.items()),
        limit_bytes=limit,
        fits=None if limit is None else high <= limit,
        runs=None if limit is None else _runs(log, allocator, limit - context),
    )


def _runs(log: Any, allocator: AllocatorName, room: int) -> bool | None:
    """Whether all requests are met by this much memory; only the caching allocator's rule is known."""
    if allocator != "caching":
        return None
    return room > 0 and caching_within(log.events, [block.size for block in log.blocks], room)


def context_bytes(run: Any) -> int:
    """What the driver and libraries keep for what the program used."""
    used = run.rules.used
    total = CONTEXT
    total += PRODUCTS if "product" in used else 0
    total += BACKWARD_PRODUCTS if "backward product" in used else 0
    total += CUDNN if "cudnn" in used else 0
    total += CUDNN_BACKWARD if "cudnn backward" in used else 0
    total += INT8_PRODUCTS if "int8 product" in used else 0
    return total


def _since(log: Any) -> tuple[list[int | None], list[int]]:
    """What lived when the program began to count anew, and what came after."""
    sizes = [block.size for block in log.blocks]
    before = [
        number
        for number, block in enumerate(log.blocks)
        if block.at < log.reset_at and (block.freed is None or block.freed >= log.reset_at)
    ]
    return [*before, *(event for event in log.events[log.reset_at :] if event is not None)], sizes


def _reserved_otherwise(log: Any, allocator: AllocatorName) -> int:
    events, sizes = _since(log)
    if allocator == "expandable":
        return expandable_segments(events, sizes)
    from ..verbs import replay

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        rows = ["op,id,size,stream,t_us"]
        for time, event in enumerate(events):
            number = event if event is not None and event >= 0 else -1 - (event or 0)
            rows.append(f"{'a' if event is not None and event >= 0 else 'f'},{number},{sizes[number]},0,{time}")
        trace.write_text("\n".join([*rows, ""]))
        replayed = replay(trace, passes=1)
    if replayed.peak_reserved_bytes is None:
        raise Unavailable("the pool's peak is not known: the replay did not complete")
    return replayed.peak_reserved_bytes


def _moment(log: Any, at: int | None) -> PeakMoment | None:
    event = log.events[at] if at is not None else None
    if at is None or event is None or event < 0:
        return None
    block = log.blocks[event]
    return PeakMoment(at, block.operator, *block.place)


def _lines(log: Any, at: int | None) -> tuple[AllocatingLine, ...]:
    held: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for block in log.blocks if at is not None else []:
        if block.at <= at and (block.freed is None or block.freed > at):
            held[block.place].append(block.size)
    lines = [AllocatingLine(*place, sum(sizes), len(sizes)) for place, sizes in held.items()]
    return tuple(sorted(lines, key=lambda line: -line.bytes))


def _timeline(allocated: list[int], reserved: list[int], start: int) -> tuple[AllocationPoint, ...]:
    step = max(1, -(-(len(allocated) - start) // MOST_POINTS))
    return tuple(
        AllocationPoint(at, max(allocated[at : at + step]), max(reserved[at : at + step]))
        for at in range(start, len(allocated), step)
    )


def of_job(job: Mapping[str, Any], **options: Any) -> ProgramEstimate:
    """What a job of `plimsoll.torch.programs` takes: its fields, and `train` for which."""
    _torch()
    programs = importlib.import_module("plimsoll.torch.programs")
    fields = {key: value for key, value in job.items() if key != "train"}
    made = (programs.Training if job.get("train") else programs.Inference)(**fields)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    return estimate(programs.program(made), **options)
