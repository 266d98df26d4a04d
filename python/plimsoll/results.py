"""What `bench`, `replay`, `export` and `compare` answer: typed, printable, and at home in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import plot
from ._plimsoll import format_bytes
from .records import (
    DoubtRecord,
    Fusion,
    InputSource,
    Interval,
    MemorySafety,
    Metadata,
    ModelRecord,
    Record,
    RecordSummary,
    SharedMemory,
    SystemMetrics,
    TimePoint,
)

UNKNOWN = "–"


@dataclass(frozen=True, repr=False)
class BenchReport(Record):
    """A benchmark: `models` has a record for each slot, `doubts` reasons to trust it less."""

    schema_version: str
    metadata: Metadata
    config: dict[str, Any]
    input_source: InputSource
    models: tuple[ModelRecord, ...]
    system_metrics: SystemMetrics
    memory_safety: MemorySafety
    shared: SharedMemory
    fusion: Fusion | None
    doubts: tuple[DoubtRecord, ...]
    summary: RecordSummary
    interrupted: bool
    interruption: str | None

    @property
    def folder(self) -> Path | None:
        """Where the command left report.html, report.json and the rest; none where this report was
        not made by `bench` in this process."""
        return getattr(self, "_folder", None)

    def __repr__(self) -> str:
        title = f"<BenchReport {self.metadata.run_name}: {self.summary.text}>\n"
        return title + _text([_HEADINGS, *map(_row, self.models)])

    def _repr_html_(self) -> str:
        safety = self.memory_safety
        held = f"limit {safety.effective_limit_gb:.2f} GiB, {_HELD[safety.limit_type]}"
        doubts = "".join(f"<li>{html.escape(doubt.text)}</li>" for doubt in self.doubts)
        return _page(
            f"Benchmark {self.metadata.run_name}",
            f"{self.summary.text}; {held}",
            _table(_HEADINGS, map(_row, self.models)),
            *self.plots(),
            f"<details><summary>{len(self.doubts)} reasons to doubt</summary><ul>{doubts}</ul></details>",
        )

    def plots(self) -> list[str]:
        """Latency and memory over time as SVG, where there were samples."""
        limit = self.memory_safety.effective_limit_gb
        latency = plot.over_time("Latency over time", "ms", _lines(self.models, "whole_ms"))
        memory = _lines(self.models, "memory_gb")
        # Far below the limit the line would only flatten the curve.
        most = max((y for line in memory for _, y in line.points), default=0.0)
        near = limit if most > limit / 4 else None
        return [svg for svg in (latency, plot.over_time("Memory over time", "GiB", memory, limit=near)) if svg]


_HEADINGS = (
    "slot",
    "model",
    "status",
    "frames",
    "fps",
    "p50 ms",
    "p99 ms",
    "mAP",
    "peak memory",
    "within limit",
)


_HELD = {"hard": "enforced", "soft": "partly enforced", "unavailable": "not enforced"}


def _row(model: ModelRecord) -> Sequence[str]:
    speed, memory = model.performance, model.gpu_memory
    within = {True: "yes", False: "no", None: UNKNOWN}[memory.within_limit]
    return (
        model.label,
        model.name or UNKNOWN,
        model.status if model.reason is None else f"{model.status}: {model.reason}",
        UNKNOWN if speed is None else str(speed.frames),
        _number(speed.fps if speed else None, "{:.1f}"),
        _number(speed.whole.p50_ms if speed else None, "{:.2f}"),
        _number(speed.whole.p99_ms if speed else None, "{:.2f}"),
        _number(model.accuracy.map if model.accuracy else None, "{:.3f}"),
        UNKNOWN if memory.peak_gb is None else f"{memory.peak_gb:.2f} GiB, {memory.obtained}",
        f"{within}, {_HELD[memory.limit_type]}",
    )


def _lines(models: Iterable[ModelRecord], field: Literal["whole_ms", "memory_gb"]) -> list[plot.Line]:
    lines = []
    for model in models:
        points: tuple[TimePoint, ...] = getattr(model.timeline, field)
        if points:
            lines.append(plot.Line(model.label, [(point.t, point.max) for point in points]))
    return lines


@dataclass(frozen=True)
class UnfreedBlock(Record):
    id: int
    size_bytes: int


@dataclass(frozen=True)
class ReplayFailure(Record):
    """Where a replay ended, and why; `pass_` 0 is the first, cold one."""

    pass_: int
    event: int
    requested_bytes: int
    live_bytes: int
    reserved_bytes: int
    why: str


@dataclass(frozen=True)
class DeviceCalls(Record):
    """Calls for memory of one kind (`reserve`, `create`, `map`, `unmap`, `destroy`, `allocate`, `free`), and the time of all."""

    call: str
    calls: int
    total_ns: int


@dataclass(frozen=True, repr=False)
class ReplayReport(Record):
    """A recording replayed through the pool. Times are in nanoseconds per event; those of the
    simulated device include what its calls were measured to cost on an H200."""

    trace: str
    events: int
    streams: int
    backend: str
    packing: str
    can_map: bool
    latencies: str | None
    kernels: bool
    device_bytes: int
    passes: int
    threads: int
    completed: bool
    failed_event: int | None
    failure: ReplayFailure | None
    timing: str
    cold_ns_per_event: float | None
    cold_charged_ns_per_event: float | None
    warm_ns_per_event: float | None
    warm_charged_ns_per_event: float | None
    warm_unmapped_ns_per_event: float | None
    malloc_ns_per_event: float | None
    malloc_note: str | None
    malloc_ratio: float | None
    warm_malloc_ratio: float | None
    peak_live_bytes: int
    peak_reserved_bytes: int | None
    ratio: float | None
    remapped_handles: int | None
    taken_from_device: int | None
    returned_to_device: int | None
    sync_waits: int | None
    pool_hits: int | None
    pool_misses: int | None
    cold_remapped_handles: int | None
    cold_taken_from_device: int | None
    cold_returned_to_device: int | None
    cold_sync_waits: int | None
    cold_pool_hits: int | None
    cold_pool_misses: int | None
    cold_device_calls: tuple[DeviceCalls, ...]
    never_freed_count: int
    never_freed_bytes: int
    never_freed_largest: tuple[UnfreedBlock, ...]
    skipped_frees: int
    thread_scaling: tuple[dict[str, Any], ...] | None
    smallest_cap_bytes: int | None
    smallest_cap_ratio: float | None
    smallest_cap_cold_ns_per_event: float | None
    smallest_cap_warm_ns_per_event: float | None

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("device", f"{self.backend}, {_size(self.device_bytes)}"),
            ("completed", "yes" if self.completed else "no"),
            ("cold", _number(self.cold_ns_per_event, "{:.0f} ns an event")),
            ("warm", _number(self.warm_ns_per_event, "{:.0f} ns an event")),
            ("peak live", _size(self.peak_live_bytes)),
            ("peak reserved", _size(self.peak_reserved_bytes)),
            ("reserved / live", _number(self.ratio, "{:.4f}")),
            ("never freed", f"{_size(self.never_freed_bytes)} in {_counted(self.never_freed_count, 'block')}"),
        ]
        if self.failure is not None:
            rows.insert(2, ("why", self.failure.why))
        if self.smallest_cap_bytes is not None:
            rows.append(("smallest device", _size(self.smallest_cap_bytes)))
        return rows

    def __repr__(self) -> str:
        return f"<ReplayReport {self.trace}: {self._events}>\n" + _text(self._rows())

    def _repr_html_(self) -> str:
        return _page(f"Replay of {self.trace}", self._events, _table(None, self._rows()))

    @property
    def _events(self) -> str:
        return f"{_counted(self.events, 'event')} on {_counted(self.streams, 'stream')}"


@dataclass(frozen=True, repr=False)
class ExportReport(Record):
    """A model that was written; `to` is the file."""

    from_: str
    to: str
    format: str
    bytes: int
    imgsz: tuple[int, ...] | None
    half: bool
    int8: bool
    task: str | None
    stride: int | None
    classes: int | None
    built_by: str | None
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<ExportReport {self.to}: {self.format}, {_size(self.bytes)}, {self._image}>"

    @property
    def _image(self) -> str:
        return "any size" if self.imgsz is None else "x".join(map(str, self.imgsz))

    def _repr_html_(self) -> str:
        rows = [
            ("file", self.to),
            ("size", _size(self.bytes)),
            ("image", self._image),
            ("task", self.task or UNKNOWN),
            ("classes", UNKNOWN if self.classes is None else str(self.classes)),
            *(("warning", warning) for warning in self.warnings),
        ]
        return _page(f"Exported as {self.format}", "", _table(None, rows))


@dataclass(frozen=True)
class Judgement(Record):
    """`ratio` is the second run's median over the first's."""

    verdict: Literal["faster", "slower", "cannot_say"]
    ratio: float
    interval: Interval


@dataclass(frozen=True)
class ComparedFigure(Record):
    """A figure of both runs; `change` is relative to the first."""

    name: str
    unit: str
    a: float | None
    b: float | None
    change: float | None
    tone: Literal["better", "worse", "same", "unsure"]


@dataclass(frozen=True)
class SlotComparison(Record):
    """A slot or row of both runs; `advice` says what would help where there is no verdict."""

    slot: int
    slot_name: str | None
    name: str | None
    label: str
    judgement: Judgement | None
    evidence: str | None
    reason: str | None
    advice: str | None
    figures: tuple[ComparedFigure, ...]
    regression: bool
    broken: str | None


@dataclass(frozen=True, repr=False)
class CompareReport(Record):
    """Two runs side by side; `regression` where the second is slower beyond the tolerance."""

    regression: bool
    broken: bool
    comparable: bool
    differences: tuple[str, ...]
    slots: tuple[SlotComparison, ...]
    tolerance: float

    def _rows(self) -> list[tuple[str, ...]]:
        return [row for slot in self.slots for row in _comparison(slot)]

    @property
    def _verdict(self) -> str:
        if self.broken:
            return "the second run failed"
        return f"{'slower' if self.regression else 'not slower'} beyond {self.tolerance:.1%}"

    def __repr__(self) -> str:
        return f"<CompareReport: {self._verdict}>\n" + _text([_COMPARED, *self._rows()])

    def _repr_html_(self) -> str:
        return _page("Comparison", self._verdict, _table(_COMPARED, self._rows()))


_COMPARED = ("slot", "verdict", "ratio", "interval", "figure", "before", "after", "change")


def _comparison(slot: SlotComparison) -> list[tuple[str, ...]]:
    """A line for each figure; what is said of all of them stands in the first."""
    said = slot.judgement
    interval = said and said.interval
    verdict = slot.broken or (said.verdict.replace("_", " ") if said else slot.reason or UNKNOWN)
    first: tuple[str, ...] = (
        slot.label,
        verdict,
        _number(said.ratio if said else None, "{:.3f}"),
        f"{interval.low:.3f} to {interval.high:.3f}" if interval else UNKNOWN,
    )
    rows = []
    for figure in slot.figures:
        unit = f" {figure.unit}" if figure.unit else ""
        values = (_number(value, "{:.4g}" + unit) for value in (figure.a, figure.b))
        rows.append((*first, figure.name, *values, _number(figure.change, "{:+.1%}")))
        first = ("",) * len(first)
    return rows


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def _size(count: int | None) -> str:
    return UNKNOWN if count is None else format_bytes(count)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _text(rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths)] for row in rows)
    return "\n".join("  " + "  ".join(cells).rstrip() for cells in padded)


def _table(headings: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    cell = '<{0} style="text-align:left;padding:2px 10px">{1}</{0}>'
    text = "" if headings is None else "".join(cell.format("th", html.escape(one)) for one in headings)
    body = "".join(
        "<tr>" + "".join(cell.format("td", html.escape(one)) for one in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{text}</tr></thead><tbody>{body}</tbody></table>"


def _page(title: str, subtitle: str, *parts: str) -> str:
    body = "".join(parts)
    return f"<div><strong>{html.escape(title)}</strong><br>{html.escape(subtitle)}{body}</div>"
