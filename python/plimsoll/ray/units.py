"""A unit of a job: some files that become a shard, and what makes it.

The unit's record is written after its shard and says that it is done. A worker that is killed before
leaves no record, and the unit is made again, with the same bytes; one that is killed after need not
be. So every cloud is in exactly one shard, whatever happens in between.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..adaptive import AdaptiveWork, ItemDoesNotFit
from ..clouds import read_points
from ..errors import NeverFits, Unavailable
from .grids import Array, Cloud, Grids
from .places import InputFile, Place
from .shards import write_shard
from .sizes import MemorySizes, gpu_limit_bytes, gpu_peak_bytes, host_peak_bytes, read_memory

#: Where the records of units are.
RECORDS = "_units"
#: Where a file system fails, a file is read again after so many seconds.
PAUSES = (0.2, 1.0)


@dataclass(frozen=True)
class Unit:
    """Files that become a shard (or more, where files have several clouds)."""

    number: int
    files: tuple[InputFile, ...]


@dataclass
class UnitRecord:
    """What became of a unit."""

    unit: int
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Shards: name, bytes, and the file and number of every cloud."""
    faults: list[dict[str, str]] = field(default_factory=list)
    """Files or clouds that are in no shard, and why."""
    attempts: int = 1
    out_of_memory: int = 0
    read_retries: int = 0
    files: int = 0
    items: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    read_s: float = 0.0
    voxelize_s: float = 0.0
    write_s: float = 0.0
    total_s: float = 0.0
    started_at: float = 0.0
    """By the clock of its node, in seconds since 1970."""
    node: str = ""
    host: str = ""
    process: int = 0
    host_peak_bytes: int = 0
    gpu_peak_bytes: int | None = None
    gpu_limit_bytes: int | None = None

    def to_json(self) -> bytes:
        """The record as a file has it."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> UnitRecord:
        """The record of a file; `ValueError` where it is none."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"this is no record of a unit: {error}") from error


@dataclass(frozen=True)
class UnitWork:
    """What all units of a job have in common."""

    grids: Grids
    form: str
    rows: int
    """Clouds of a shard at most."""
    sources: tuple[Place, ...]
    out: Place
    device: str

    def part_name(self, unit: int, part: int) -> str:
        """The name of a shard."""
        return f"part-{unit:06}-{part:03}.{self.form}"


class UnitMaker:
    """Makes units, one after the other, in the memory that there is."""

    def __init__(self, work: UnitWork, *, share: float = 1.0, node: str = "") -> None:
        self.work, self.node = work, node
        self.share = share
        self.sizes = self._sizes(most=work.rows)

    def _sizes(self, most: int) -> MemorySizes:
        device, share = self.work.device, self.share
        return MemorySizes(most, lambda: read_memory(device, share), self.work.grids.item_bytes)

    def make(self, unit: Unit, attempt: int = 1) -> UnitRecord:
        """Makes a unit's shards and its record. After its worker has died, with one cloud at a time."""
        record = UnitRecord(unit.number, attempts=attempt, files=len(unit.files), started_at=time.time())
        sizes = self.sizes if attempt == 1 else self._sizes(most=1)
        before, start = sizes.retries, time.perf_counter()
        rows: list[tuple[str, int, Array]] = []
        for row in self._grids(unit, record, sizes):
            rows.append(row)
            if len(rows) == self.work.rows:
                self._write(rows, record)
                rows = []
        if rows:
            self._write(rows, record)
        record.out_of_memory = sizes.retries - before
        record.total_s = time.perf_counter() - start
        record.node, record.host, record.process = self.node, socket.gethostname(), os.getpid()
        record.host_peak_bytes = host_peak_bytes()
        record.gpu_peak_bytes, record.gpu_limit_bytes = gpu_peak_bytes(), gpu_limit_bytes()
        (self.work.out / RECORDS / f"{unit.number:06}.json").write(record.to_json())
        return record

    def _grids(
        self, unit: Unit, record: UnitRecord, sizes: MemorySizes
    ) -> Iterator[tuple[str, int, Array]]:
        def make(items: list[tuple[str, int, Cloud]]) -> Sequence[tuple[str, int, Array]]:
            start = time.perf_counter()
            try:
                made = self.work.grids.make([cloud for _, _, cloud in items], self.work.device)
            finally:
                record.voxelize_s += time.perf_counter() - start
            return [(path, number, grid) for (path, number, _), grid in zip(items, made, strict=True)]

        work = AdaptiveWork(make, self._clouds(unit, record), sizes)
        while True:
            try:
                yield from work.results(False)
                return
            except (ItemDoesNotFit, NeverFits) as error:
                path, number, _ = work.skip()
                record.faults.append({"file": path, "why": f"cloud {number} does not fit: {error}"})

    def _clouds(self, unit: Unit, record: UnitRecord) -> Iterator[tuple[str, int, Cloud]]:
        features = self.work.grids.needs_features
        for file in unit.files:
            start = time.perf_counter()
            try:
                data = self._read(file, record)
                record.bytes_read += len(data)
                clouds = read_points(file.path, data, features=features)
                for cloud in clouds:
                    self.work.grids.check(cloud)
            except (ValueError, OSError, Unavailable, MemoryError) as error:
                why = str(error) or type(error).__name__
                record.faults.append({"file": file.path, "why": why})
                continue
            finally:
                record.read_s += time.perf_counter() - start
            yield from ((file.path, number, cloud) for number, cloud in enumerate(clouds))

    def _read(self, file: InputFile, record: UnitRecord) -> bytes:
        place = Place(self.work.sources[file.source].filesystem, file.path)
        for pause in PAUSES:
            try:
                return place.read()
            except (FileNotFoundError, PermissionError):
                raise
            except OSError:
                record.read_retries += 1
                time.sleep(pause)
        return place.read()

    def _write(self, rows: list[tuple[str, int, Array]], record: UnitRecord) -> None:
        start = time.perf_counter()
        files, clouds, grids = zip(*rows, strict=True)
        name = self.work.part_name(record.unit, len(record.parts))
        values = np.stack(grids)
        sizes: list[int] = []
        what = (self.work.form, self.work.grids.column, values, files, clouds)
        (self.work.out / name).write(lambda stream: sizes.append(write_shard(stream, *what)))
        items = [[file, cloud] for file, cloud in zip(files, clouds, strict=True)]
        record.parts.append({"name": name, "bytes": sizes[-1], "items": items})
        record.items += len(rows)
        record.bytes_written += sizes[-1]
        record.write_s += time.perf_counter() - start
