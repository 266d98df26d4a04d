"""What a job has made: its report and its index."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from .._plimsoll import format_bytes, version
from .options import JobProgress
from .places import Place
from .units import UnitRecord, UnitWork


@dataclass
class NodeReport:
    """What the workers of a node have done."""

    node: str
    host: str
    workers: int = 0
    units: int = 0
    items: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    lost_attempts: int = 0
    """Attempts at units that it made in the end, whose workers died or failed, wherever they were."""
    out_of_memory: int = 0
    read_retries: int = 0
    host_peak_bytes: int = 0
    """The most of one worker, counted by the kernel."""
    gpu_peak_bytes: int | None = None
    """The most under one worker's limit, counted by the guard; None without a limit."""
    gpu_limit_bytes: int | None = None
    read_s: float = 0.0
    voxelize_s: float = 0.0
    write_s: float = 0.0
    total_s: float = 0.0
    """Of all workers together."""


@dataclass
class JobReport:
    """The report of a job, of all its runs."""

    out: str
    made: dict[str, Any]
    format: str
    files: int
    items: int
    shards: int
    bytes_read: int
    bytes_written: int
    faults: list[dict[str, str]]
    lost_attempts: int
    """Attempts at units whose workers died or failed; their units were begun again."""
    out_of_memory: int
    """Batches that ran out of memory and were tried again in halves."""
    read_retries: int
    host_peak_bytes: int
    gpu_peak_bytes: int | None
    units: int
    units_found: int
    """Units that an earlier run had made."""
    workers: int
    seconds: float
    """Of this run, by the clock."""
    startup_s: float
    """Until the first worker was ready."""
    nodes: list[NodeReport] = field(default_factory=list)
    version: str = ""

    @classmethod
    def of(
        cls,
        work: UnitWork,
        done: dict[int, UnitRecord],
        state: JobProgress,
        times: tuple[float, int],
        seconds: float,
    ) -> JobReport:
        """The report of units."""
        records = [done[number] for number in sorted(done)]
        nodes = _nodes(records)
        peaks = [node.gpu_peak_bytes for node in nodes if node.gpu_peak_bytes is not None]
        return cls(
            out=work.out.path,
            made=asdict(work.grids),
            format=work.form,
            files=sum(record.files for record in records),
            items=sum(record.items for record in records),
            shards=sum(len(record.parts) for record in records),
            bytes_read=sum(record.bytes_read for record in records),
            bytes_written=sum(record.bytes_written for record in records),
            faults=[fault for record in records for fault in record.faults],
            lost_attempts=sum(record.attempts - 1 for record in records),
            out_of_memory=sum(record.out_of_memory for record in records),
            read_retries=sum(record.read_retries for record in records),
            host_peak_bytes=max((node.host_peak_bytes for node in nodes), default=0),
            gpu_peak_bytes=max(peaks, default=None),
            units=len(records),
            units_found=state.found,
            workers=times[1],
            seconds=seconds,
            startup_s=times[0],
            nodes=nodes,
            version=version(),
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as report.json has it."""
        return asdict(self)

    def to_json(self) -> str:
        """report.json."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_text(self) -> str:
        """The report for a terminal."""
        lines = [
            f"{self.items} grids of {self.files} files in {self.shards} shards: {self.out}",
            f"  read        {format_bytes(self.bytes_read)}",
            f"  written     {format_bytes(self.bytes_written)}",
            f"  faults      {len(self.faults)}",
            f"  retries     {self.lost_attempts} after a worker died or failed, {self.out_of_memory} out of memory, "
            f"{self.read_retries} reads",
            f"  peak        {format_bytes(self.host_peak_bytes)} host, {_amount(self.gpu_peak_bytes)} GPU, of a worker",
            f"  time        {self.seconds:.1f} s, of them {self.startup_s:.1f} s until the first worker was ready",
        ]
        lines += [f"  left out    {fault['file']}: {fault['why']}" for fault in self.faults[:10]]
        if len(self.faults) > 10:
            lines.append(f"  left out    {len(self.faults) - 10} more: see report.json")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """report.html: one file that opens without a network."""
        return _PAGE.format(
            title=escape(f"{self.items} grids in {self.shards} shards"),
            totals=_table(("", ""), self._totals()),
            nodes=_table(_NODE_HEADINGS, [_node_row(node) for node in self.nodes]),
            bars="".join(_bar(node) for node in self.nodes),
            faults=_table(("file", "why"), [(one["file"], one["why"]) for one in self.faults])
            if self.faults
            else "<p>None: every file was read.</p>",
        )

    def _totals(self) -> list[tuple[str, str]]:
        return [
            ("folder", self.out),
            ("made", ", ".join(f"{name} {value}" for name, value in self.made.items())),
            ("items", f"{self.items} of {self.files} files, in {self.shards} shards ({self.format})"),
            ("read, written", f"{format_bytes(self.bytes_read)}, {format_bytes(self.bytes_written)}"),
            ("units", f"{self.units}, of them {self.units_found} found done by an earlier run"),
            (
                "retries",
                f"{self.lost_attempts} after a worker died or failed, {self.out_of_memory} out of memory, "
                f"{self.read_retries} reads",
            ),
            ("peak of a worker", f"{format_bytes(self.host_peak_bytes)} host, {_amount(self.gpu_peak_bytes)} GPU"),
            ("time of this run", f"{self.seconds:.1f} s; {self.startup_s:.1f} s until the first worker was ready"),
            ("workers, version", f"{self.workers}, plimsoll {self.version}"),
        ]


def _nodes(records: list[UnitRecord]) -> list[NodeReport]:
    found: dict[str, NodeReport] = {}
    processes: dict[str, set[int]] = {}
    for record in records:
        if not record.node and not record.host:
            continue  # a unit that was given up: no node made it
        node = found.setdefault(record.node, NodeReport(record.node, record.host))
        processes.setdefault(record.node, set()).add(record.process)
        node.units += 1
        node.lost_attempts += record.attempts - 1
        for name in ("items", "bytes_read", "bytes_written", "out_of_memory", "read_retries"):
            setattr(node, name, getattr(node, name) + getattr(record, name))
        for name in ("read_s", "voxelize_s", "write_s", "total_s"):
            setattr(node, name, getattr(node, name) + getattr(record, name))
        node.host_peak_bytes = max(node.host_peak_bytes, record.host_peak_bytes)
        for name in ("gpu_peak_bytes", "gpu_limit_bytes"):
            value = getattr(record, name)
            if value is not None:
                setattr(node, name, max(getattr(node, name) or 0, value))
    for name, node in found.items():
        node.workers = len(processes[name])
    return list(found.values())


def write_index(out: Place, done: dict[int, UnitRecord]) -> None:
    """index.jsonl: where the grid of each cloud is."""
    lines = []
    for number in sorted(done):
        for part in done[number].parts:
            for row, (file, cloud) in enumerate(part["items"]):
                lines.append(json.dumps({"file": file, "cloud": cloud, "shard": part["name"], "row": row}))
    (out / "index.jsonl").write("".join(line + "\n" for line in lines).encode())


def _amount(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)


_NODE_HEADINGS = (
    *("node", "host", "workers", "units", "items", "read", "written", "lost attempts", "out of memory"),
    *("peak, host", "peak, GPU", "limit, GPU", "reading", "voxelizing", "writing", "all workers"),
)


def _node_row(node: NodeReport) -> tuple[str, ...]:
    numbers = (node.workers, node.units, node.items)
    retries = (node.lost_attempts, node.out_of_memory)
    seconds = (node.read_s, node.voxelize_s, node.write_s, node.total_s)
    peaks = (node.host_peak_bytes, node.gpu_peak_bytes, node.gpu_limit_bytes)
    return (
        node.node[:12] or "–",
        node.host,
        *map(str, numbers),
        format_bytes(node.bytes_read),
        format_bytes(node.bytes_written),
        *map(str, retries),
        *map(_amount, peaks),
        *(f"{value:.1f} s" for value in seconds),
    )


def _table(headings: tuple[str, ...], rows: list[Any]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in headings) if any(headings) else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _bar(node: NodeReport) -> str:
    parts = (("reading", node.read_s), ("voxelizing", node.voxelize_s), ("writing", node.write_s))
    total = max(node.total_s, 1e-9)
    spans = "".join(
        f'<span class="{name}" style="width:{100 * seconds / total:.1f}%" title="{name} {seconds:.1f} s"></span>'
        for name, seconds in parts
    )
    return f'<p>{escape(node.node[:12] or node.host)}</p><div class="bar">{spans}</div>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} .wide {{ overflow-x: auto; }}
td, th {{ text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
.bar {{ display: flex; height: 1.2rem; background: #8882; }}
.reading {{ background: #4a7fb5; }} .voxelizing {{ background: #d98736; }} .writing {{ background: #5a9e6f; }}
i {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }}
</style></head><body>
<h1>{title}</h1>
{totals}
<h2>By node</h2>
{nodes}
<h2>Where the workers' time went</h2>
<p><i class="reading"></i>reading <i class="voxelizing"></i>voxelizing <i class="writing"></i>writing; the rest of a
bar is copying into shards and records</p>
{bars}
<h2>Files that are in no shard</h2>
{faults}
</body></html>
"""
