"""How a job is done, how far it is, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass

from .._plimsoll import parse_bytes
from ..errors import Error
from .grids import Grids
from .shards import FORMATS
from .units import UnitRecord

#: Clouds of a shard at most: a small grid must not make units that take hours.
MOST_ROWS = 256


class JobFailed(Error, RuntimeError):
    """A job that cannot go on. What it has made stays, and the same call goes on from there."""


@dataclass(frozen=True)
class JobOptions:
    """How a job is done. What is made does not depend on it, except for `format` and the shards' size.

    >>> from plimsoll.ray import JobOptions
    >>> JobOptions(format="parquet", num_gpus=0.5).max_attempts
    4
    """

    format: str = "npz"
    shard_size: int | str = "128MiB"
    """Bytes of a shard's grids at most."""
    shard_items: int | None = None
    """Clouds of a shard; by default as many as `shard_size` holds, and no more than 256."""
    workers: int | None = None
    """Actors; by default as many as the cluster has room for."""
    num_cpus: float = 1
    num_gpus: float = 0
    limit: int | str | None = None
    """GPU memory of an actor; by default `num_gpus` of the GPU's."""
    strict: bool = False
    """Whether a file that cannot be read ends the job."""
    retry_faults: bool = False
    """Whether units with such files are made again."""
    max_attempts: int = 4
    """How often a unit is begun whose worker dies."""
    address: str | None = None
    """The cluster ("auto", "ray://…"); by default the one that this process has, or one of its own."""

    def rows(self, grids: Grids) -> int:
        """Clouds of a shard at most."""
        if self.shard_items is not None:
            return self.shard_items
        return max(1, min(MOST_ROWS, parse_bytes(self.shard_size) // grids.item_bytes))

    def check(self) -> None:
        """Raises `ValueError` for what cannot be."""
        if self.format not in FORMATS:
            raise ValueError(f"the format is {self.format!r}; it must be one of {', '.join(FORMATS)}")
        for name in ("shard_items", "workers", "max_attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; give 1 or more")
        if self.num_cpus < 0 or self.num_gpus < 0:
            raise ValueError("num_cpus and num_gpus are 0 or more")


@dataclass
class JobProgress:
    """How far a job is."""

    units: int
    done: int = 0
    found: int = 0
    """Of them, units that an earlier run had done."""
    items: int = 0
    faults: int = 0
    retries: int = 0
    workers: int = 0
    seconds: float = 0.0

    def add(self, record: UnitRecord) -> None:
        """One more unit is done."""
        self.done += 1
        self.items += record.items
        self.faults += len(record.faults)
        self.retries += record.attempts - 1 + record.out_of_memory + record.read_retries
