"""A job: files into shards, by workers of Ray that may die while they work.

The plan follows from the files and what is made of them, and not from the cluster: files in their
order, so many to a unit. It is written down first (job.json), so that a job that was interrupted goes
on with the units that have no record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ..clouds import read_points
from ..errors import Unavailable
from .grids import Grids
from .options import JobFailed, JobOptions, JobProgress
from .places import InputFile, Place, find
from .pool import WorkerPool
from .report import JobReport, write_index
from .units import RECORDS, Unit, UnitRecord, UnitWork

PLAN = "job.json"
#: So many files are looked at for the features of their points.
LOOKED_AT = 16


def voxelize_files(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    grids: Grids,
    options: JobOptions | None = None,
    *,
    filesystem: Any = None,
    progress: Callable[[JobProgress], object] | None = None,
) -> JobReport:
    """Makes shards of voxel grids of files, on the workers of a cluster of Ray's.

    `inputs` are files, folders and patterns as `plimsoll voxelize` takes them, and URIs that pyarrow
    opens; `out` is the folder of the shards. With `filesystem` (pyarrow's) both are paths on it.

    Every cloud is in exactly one shard, which is whole or not there, with the bits of
    `plimsoll.voxelize`. Called again after an interruption, it goes on with what is missing; a folder
    with another job's shards is a `ValueError`. Files that cannot be read are in the report's `faults`.

    >>> import numpy as np, pathlib, plimsoll.ray, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "cloud.npy", np.random.default_rng(1).random((100, 3), dtype=np.float32))
    >>> made = plimsoll.ray.Grids((8, 8, 8), 1 / 8)
    >>> report = plimsoll.ray.voxelize_files([folder / "*.npy"], folder / "out", made)
    >>> report.items, report.faults
    (1, [])
    """
    options = options or JobOptions()
    options.check()
    start = time.perf_counter()
    places = [Place.of(name) if filesystem is None else Place(filesystem, os.fspath(name)) for name in (*inputs, out)]
    work, files = _work(tuple(places[:-1]), places[-1], grids, options)
    units = _units(files, work.rows)
    done = _begin(work, files, units, options.retry_faults)
    state = JobProgress(len(units))
    for record in done.values():
        state.add(record)
    state.found = len(done)

    def finished(record: UnitRecord) -> None:
        state.add(record)
        done[record.unit] = record
        if options.strict and record.faults:
            first = record.faults[0]
            raise JobFailed(f"{first['file']}: {first['why']} (without strict the job would go on)")

    def tick(workers: int) -> None:
        state.workers, state.seconds = workers, time.perf_counter() - start
        if progress is not None:
            progress(state)

    if options.strict:
        _check_strict(done.values())
    missing = [unit for unit in units if unit.number not in done]
    tick(0)
    times = WorkerPool(work, options).run(missing, finished, tick) if missing else (0.0, 0)
    report = JobReport.of(work, done, state, times, time.perf_counter() - start)
    return _end(work, done, report)


def _work(
    sources: tuple[Place, ...], out: Place, grids: Grids, options: JobOptions
) -> tuple[UnitWork, list[InputFile]]:
    """What is to be made, of which files."""
    files = find(sources)
    if grids.needs_features and not grids.features:
        grids = replace(grids, features=_features(files, sources))
    device = "cuda:0" if options.num_gpus else "cpu"
    return UnitWork(grids, options.format, options.rows(grids), sources, out, device), files


def _check_strict(records: Iterable[UnitRecord]) -> None:
    for record in records:
        for fault in record.faults:
            raise JobFailed(f"{fault['file']}: {fault['why']} (found by an earlier run; retry_faults tries again)")


def _end(work: UnitWork, done: dict[int, UnitRecord], report: JobReport) -> JobReport:
    write_index(work.out, done)
    for name, text in (("report.json", report.to_json()), ("report.html", report.to_html())):
        (work.out / name).write(text.encode())
    for folder in (work.out, work.out / RECORDS):
        folder.remove_unfinished()
    return report


def _units(files: Sequence[InputFile], size: int) -> list[Unit]:
    starts = range(0, len(files), size)
    return [Unit(number, tuple(files[at : at + size])) for number, at in enumerate(starts)]


def _features(files: Sequence[InputFile], sources: Sequence[Place]) -> int:
    """The features of points, from the first file that can be read."""
    why = "there is no file"
    for file in files[:LOOKED_AT]:
        try:
            clouds = read_points(file.path, Place(sources[file.source].filesystem, file.path).read())
        except (ValueError, OSError, Unavailable) as error:
            why = str(error)
            continue
        if clouds:
            return int(clouds[0].shape[1] - 3)
    raise ValueError(f"the features of points are not known, as none of the first files can be read: {why}")


def _begin(
    work: UnitWork, files: Sequence[InputFile], units: Sequence[Unit], retry_faults: bool
) -> dict[int, UnitRecord]:
    """Writes down what the job is, or finds that it has begun before; what is done of it."""
    made = json.loads(json.dumps(asdict(work.grids)))
    plan = {"made": made, "format": work.form, "rows": work.rows, "files": [file.stamp() for file in files]}
    place = work.out / PLAN
    try:
        before = json.loads(place.read())
    except FileNotFoundError:
        (work.out / RECORDS).make_folder()
        place.write(json.dumps(plan).encode())
        return {}
    done = {number: record for number, record in _records(work.out).items() if number < len(units)}
    if retry_faults:
        done = {number: record for number, record in done.items() if not record.faults}
    _check_same(work.out.path, before, plan, units, done)
    place.write(json.dumps(plan).encode())
    sizes = {one.base_name: one.size for one in work.out.files()}

    def is_whole(record: UnitRecord) -> bool:
        return all(sizes.get(part["name"]) == part["bytes"] for part in record.parts)

    return {number: record for number, record in done.items() if is_whole(record)}


def _check_same(
    out: str, before: dict[str, Any], plan: dict[str, Any], units: Sequence[Unit], done: dict[int, UnitRecord]
) -> None:
    for name, what in (("made", "what is made"), ("format", "the format"), ("rows", "the size of shards")):
        if before.get(name) != plan[name]:
            raise ValueError(
                f"{out} has the shards of another job ({what} was {before.get(name)}, and is {plan[name]}); "
                "give another folder, or remove this one"
            )
    was, now = before.get("files", []), plan["files"]
    if [one[0] for one in was] != [one[0] for one in now]:
        raise ValueError(
            f"{out} has the shards of other files ({len(was)}, and now there are {len(now)}); give another folder"
        )
    at = 0
    for unit in units:
        for file in unit.files:
            if unit.number in done and was[at] != now[at]:
                raise ValueError(
                    f"{file.path} has changed since its shard was made; give another folder"
                    " (or retry_faults, where it is one that could not be read)"
                )
            at += 1


def _records(out: Place) -> dict[int, UnitRecord]:
    found = {}
    for one in (out / RECORDS).files():
        if one.base_name.endswith(".json") and not one.base_name.startswith("."):
            record = UnitRecord.from_json(Place(out.filesystem, one.path).read())
            found[record.unit] = record
    return found
