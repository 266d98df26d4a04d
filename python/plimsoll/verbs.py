"""Measuring models, replaying recordings: by the command that the package ships."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import command
from .fit_results import FitReport
from .results import BenchReport, CompareReport, ExportReport, ReplayReport

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class BenchConfig:
    """What `bench` measures: the flags of `plimsoll bench`. What is `None` is as the command has it.

    `gpu_mem_limit_gb` is in GiB; `gpu_mem_limit` takes a text such as "7500MB" in its place.

    >>> import plimsoll
    >>> plimsoll.BenchConfig(max_frames=30).gpu_mem_limit_gb
    8.0
    """

    gpu_mem_limit_gb: float = 8.0
    gpu_mem_limit: str | None = None
    mode: str | None = None
    source: PathLike | None = None
    rgb_source: PathLike | None = None
    thermal_source: PathLike | None = None
    sync_tolerance_ms: float | None = None
    model0: PathLike | None = None
    model1: PathLike | None = None
    engine: str | None = None
    device: str | None = None
    library: PathLike | None = None
    strict: bool = False
    load_timeout: str | None = None
    imgsz: int | None = None
    conf: float | None = None
    iou: float | None = None
    max_det: int | None = None
    max_frames: int | None = None
    warmup: int | None = None
    rate: float | None = None
    duration: str | None = None
    parallel: bool = False
    repeat: int | None = None
    profile: str | None = None
    keep_free: str | None = None
    no_guard: bool = False
    fail_on_violation: bool = False
    metrics_interval: float | None = None
    output_dir: PathLike = "outputs"
    run_name: str | None = None
    detections: PathLike | None = None

    def flags(self) -> list[str]:
        """The configuration as the command's flags."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del options["gpu_mem_limit_gb" if self.gpu_mem_limit is not None else "gpu_mem_limit"]
        return command.flags(options)


def bench(config: BenchConfig | None = None, /, **changes: Any) -> BenchReport:
    """Measures one or two detectors: speed, memory, accuracy. Without a model, two small built-in
    ones.

    Takes a `BenchConfig`, its fields by name, or both; the names win. The report's files are in
    `BenchReport.folder`. A model that could not be measured has its `status` and `reason`; where
    none was, that is an error, as is bad input (`ValueError`).

    >>> import plimsoll, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = plimsoll.bench(max_frames=3, warmup=0, mode="rgb", output_dir=folder)
    >>> report.models[0].status, report.models[0].gpu_memory.within_limit
    ('completed', True)
    >>> (report.folder / "report.html").is_file()
    True
    """
    config = dataclasses.replace(config or BenchConfig(), **changes)
    ended = command.run(["bench", *config.flags(), "--json"], stdout=subprocess.PIPE)
    if not ended.stdout:
        raise command.failure(ended.stderr, ended.returncode)
    report = BenchReport.from_dict(json.loads(ended.stdout))
    folder = Path(config.output_dir).absolute() / report.metadata.run_name
    if report.summary.completed == 0:
        why = "; ".join(f"{model.slot_name}: {model.reason}" for model in report.models if model.reason)
        raise command.failure(f"error: no model was measured ({why}); see {folder}", ended.returncode)
    object.__setattr__(report, "_folder", folder)
    return report


def read_report(path: PathLike) -> BenchReport:
    """The report of a run that `bench` or the command made: of its folder, or its report.json.

    >>> import plimsoll, tempfile
    >>> report = plimsoll.bench(max_frames=1, warmup=0, mode="rgb", output_dir=tempfile.mkdtemp())
    >>> plimsoll.read_report(report.folder) == report
    True
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    with open(folder / "report.json" if place.is_dir() else place, encoding="utf-8") as file:
        report = BenchReport.from_dict(json.load(file))
    object.__setattr__(report, "_folder", folder.absolute())
    return report


def compare(
    a: PathLike | BenchReport,
    b: PathLike | BenchReport,
    *,
    tolerance: str | float | None = None,
    force: bool = False,
) -> CompareReport:
    """Whether the second run is slower than the first: folders of runs, or their reports.

    `tolerance` is a share such as "5%" or 0.05. Two runs of different things are a `ValueError`
    unless `force` is given.

    >>> import plimsoll, tempfile
    >>> report = plimsoll.bench(max_frames=1, warmup=0, mode="rgb", output_dir=tempfile.mkdtemp())
    >>> plimsoll.compare(report, report.folder).regression
    False
    """
    options = command.flags({"tolerance": tolerance, "force": force})
    return CompareReport.from_dict(command.ask(["compare", *map(_place, (a, b)), *options]))


def _place(run: PathLike | BenchReport) -> PathLike:
    if not isinstance(run, BenchReport):
        return run
    if run.folder is None:
        raise ValueError("the report has no folder to compare; give the folder of its run")
    return run.folder


def export(
    model: PathLike,
    to: PathLike,
    *,
    imgsz: int | tuple[int, int] | None = None,
    dynamic: bool = False,
    half: bool = False,
    int8: bool = False,
    calibration: PathLike | None = None,
    gpu_mem_limit: str | None = None,
    library: PathLike | None = None,
) -> ExportReport:
    """Writes a checkpoint (.pt) as .onnx, or a model as .engine where TensorRT is; `to` says which.

    `imgsz` is the side of the image, or rows and columns. A file that was there is kept unless
    the new one is whole.

    >>> import plimsoll
    >>> plimsoll.export("missing.pt", to="missing.onnx")
    Traceback (most recent call last):
        ...
    ValueError: ...missing.pt...
    """
    size = "x".join(map(str, imgsz)) if isinstance(imgsz, tuple) else imgsz
    options = {"to": to, "imgsz": size, "dynamic": dynamic, "half": half, "int8": int8}
    options |= {"calibration": calibration, "gpu_mem_limit": gpu_mem_limit, "library": library}
    return ExportReport.from_dict(command.ask(["export", model, *command.flags(options)]))


def replay(
    trace: PathLike,
    *,
    backend: str | None = None,
    tight: bool = False,
    no_map: bool = False,
    cap: str | int | None = None,
    device: int | None = None,
    threads: int | None = None,
    passes: int | None = None,
    latencies: str | None = None,
    smallest_cap: bool = False,
    kernels: bool = False,
) -> ReplayReport:
    """Replays recorded allocations through the pool: what they cost, what it reserves, what leaks.

    `trace` is what `plimsoll.torch.record` wrote, a snapshot of PyTorch's, or a csv; the other
    arguments are the flags of `plimsoll replay`. A trace that does not fit into `cap` is an answer:
    `completed` is false.

    >>> import pathlib, plimsoll, tempfile
    >>> trace = pathlib.Path(tempfile.mkdtemp()) / "trace.csv"
    >>> _ = trace.write_text("op,id,size,stream,t_us\\na,1,1000000,0,5\\nf,1,1000000,0,9\\n")
    >>> replayed = plimsoll.replay(trace, passes=1)
    >>> replayed.completed, replayed.peak_live_bytes
    (True, 1000000)
    """
    options = {"backend": backend, "tight": tight, "no_map": no_map, "cap": cap, "device": device}
    options |= {"threads": threads, "passes": passes, "latencies": latencies}
    options |= {"smallest_cap": smallest_cap, "kernels": kernels}
    return ReplayReport.from_dict(command.ask(["replay", trace, *command.flags(options)]))


def fit(
    model: PathLike | None = None,
    *,
    limit: str | int,
    vary: str,
    program: Sequence[PathLike] | None = None,
    step: int | None = None,
    reserve: str | int | None = None,
    guess: int | None = None,
    timeout: str | float | None = None,
    forget: bool = False,
    **flags: Any,
) -> FitReport:
    """The largest batch, context, image or type that fits into `limit`.

    From a `model` file alone it is estimated, without a GPU: `vary` is "batch", "context", "imgsz",
    "gpu-layers" or "dtype", and `flags` are those of `plimsoll estimate`, such as `engine` and
    `context`. With a `program` it is proved: `vary` names the values, as in "batch=1..4096", the
    program's words have "{batch}" where the value goes, and each try runs under the limit. Nothing
    that fits, and what cannot be known, are answers: `largest` is None, and `why` says it.

    >>> import plimsoll
    >>> report = plimsoll.fit("docs/examples/small8.pt", limit="4GiB", vary="batch")
    >>> report.how, report.largest is not None
    ('estimated', True)
    >>> report.largest_bytes + report.reserve_bytes <= report.limit_bytes
    True
    """
    options: dict[str, object] = {"gpu_mem_limit": _bytes(limit), "vary": vary, "step": step}
    options |= {"reserve": _bytes(reserve), "guess": guess, "timeout": timeout, "forget": forget}
    options |= flags
    words: list[PathLike] = ["fit", *([] if model is None else [model])]
    words += [*command.flags(options), "--json"]
    if program is not None:
        words += ["--", *program]
    ended = command.run(words, stdout=subprocess.PIPE)
    if ended.returncode not in (0, 1):
        raise command.failure(ended.stderr, ended.returncode)
    return FitReport.from_dict(json.loads(ended.stdout))


def _bytes(size: str | int | None) -> str | None:
    """A size as the command takes it: a bare number is bytes, however small."""
    return f"{size}B" if isinstance(size, int) else size
