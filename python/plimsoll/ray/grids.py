"""Voxel grids of the clouds in a data set of Ray's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .._plimsoll import VoxelSpec
from ..clouds import read_points
from ..errors import Unavailable
from ..points import CELLS, Dtypes, voxelize as voxelize_points
from .stage import Batch, Stage

Cloud = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Grids:
    """What is made of a cloud: the arguments of `plimsoll.voxelize`.

    `features` is how many numbers points have beside coordinates, for means and maxima.

    >>> from plimsoll.ray import Grids
    >>> Grids((4, 8, 8), 0.5).item_bytes
    1024
    """

    grid: tuple[int, int, int]
    voxel_size: float | tuple[float, float, float]
    origin: float | tuple[float, float, float] = 0.0
    mode: str = "occupancy"
    dtype: str | None = None
    features: int = 0

    #: The array of a shard.
    column = "grids"

    def __post_init__(self) -> None:
        self._spec()  # raises ValueError for what cannot be made

    def _spec(self) -> VoxelSpec:
        size, origin = (
            value if isinstance(value, tuple) else (value,) * 3 for value in (self.voxel_size, self.origin)
        )
        if self.dtype is not None and self.dtype not in CELLS:
            raise ValueError(f"dtype is {self.dtype!r}; it must be {', '.join(CELLS)}")
        cells = None if self.dtype is None else CELLS[self.dtype]
        features = self.features if self.needs_features else 0
        return VoxelSpec(self.grid, size, origin, self.mode, cells, features)

    @property
    def needs_features(self) -> bool:
        """Whether features are read: a mean or a maximum is of them."""
        return self.mode in ("mean", "max")

    @property
    def item_bytes(self) -> int:
        """Bytes of a cloud's grid."""
        return self._spec().cloud_bytes

    @property
    def array_dtype(self) -> str:
        """What numpy calls the numbers of a grid."""
        return Dtypes[self._spec().cells]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a cloud's grid."""
        spec = self._spec()
        if spec.cells == "bits":
            return (spec.cloud_bytes,)
        return (spec.planes, *self.grid) if self.needs_features else self.grid

    def check(self, cloud: Cloud) -> None:
        """Raises `ValueError` for a cloud that has other features than the result is for."""
        if self.needs_features and cloud.shape[1] - 3 != self.features:
            raise ValueError(
                f"its points have {cloud.shape[1] - 3} features, where this job's have {self.features}; "
                "a mean or a maximum wants as many in each"
            )

    def make(self, clouds: Sequence[Cloud], device: str) -> Array:
        """The grids of some clouds, one after the other."""
        where = None if device == "cpu" else device
        what = (self.grid, self.voxel_size, self.origin)
        made = voxelize_points(list(clouds), *what, mode=self.mode, dtype=self.dtype, device=where)
        return cast("Array", made)


class CloudRows:
    """The clouds of rows: points, or the bytes and the path of a file, which may have several."""

    def __init__(
        self, column: str, features: bool, on_error: str, check: Callable[[Cloud], object] = id
    ) -> None:
        if on_error not in ("log", "raise"):
            raise ValueError(f"on_error is {on_error!r}; it must be 'log' or 'raise'")
        self.column, self.features, self.on_error, self.check = column, features, on_error, check

    def split(self, batch: Batch) -> tuple[Batch, list[Cloud]]:
        """The other columns, with a row for each cloud, and the clouds."""
        if self.column in batch:
            others = {name: values for name, values in batch.items() if name != self.column}
            return others, [_points(one) for one in batch[self.column]]
        if not {"bytes", "path"} <= batch.keys():
            raise ValueError(
                f"rows have {', '.join(sorted(batch)) or 'no columns'}; give rows with {self.column!r}, or with "
                "'bytes' and 'path' as ray.data.read_binary_files(include_paths=True) gives them"
            )
        read = list(self._read(batch))
        rows = [row for row, _ in read]
        others = {name: values[rows] for name, values in batch.items() if name != "bytes"}
        return others, [cloud for _, cloud in read]

    def _read(self, batch: Batch) -> Iterator[tuple[int, Cloud]]:
        for row, (path, data) in enumerate(zip(batch["path"], batch["bytes"], strict=True)):
            try:
                clouds = read_points(str(path), bytes(data), features=self.features)
                for cloud in clouds:
                    self.check(cloud)
            except (ValueError, Unavailable) as error:
                if self.on_error == "raise":
                    raise
                logging.getLogger("plimsoll.ray").warning("left out: %s: %s", path, error)
                continue
            yield from ((row, cloud) for cloud in clouds)


def _points(value: Any) -> Cloud:
    """The points of a row: an array, or what Ray makes of lists of lists, which is an array of arrays."""
    rows = np.asarray(value)
    if rows.dtype == object:
        rows = np.stack(list(rows)) if len(rows) else np.empty((0, 3))
    return np.ascontiguousarray(rows, dtype=np.float32)


class VoxelizeBatch:
    """Rows with clouds into rows with grids."""

    def __init__(self, grids: Grids, rows: CloudRows, into: str, device: str) -> None:
        self.grids, self.rows, self.into, self.device = grids, rows, into, device

    def __call__(self, batch: Batch) -> Batch:
        made, clouds = self.rows.split(batch)
        if clouds:
            made[self.into] = self.grids.make(clouds, self.device)
        else:
            made[self.into] = np.empty((0, *self.grids.shape), self.grids.array_dtype)
        return made


def voxelize(
    dataset: Any,
    grid_size: int | Sequence[int],
    voxel_size: float | Sequence[float],
    origin: float | Sequence[float] = 0.0,
    *,
    mode: str = "occupancy",
    dtype: str | None = None,
    features: int = 0,
    column: str = "points",
    into: str = "grid",
    on_error: Literal["log", "raise"] = "log",
    limit: int | str | None = None,
    num_gpus: float = 0,
    **options: Any,
) -> Any:
    """Voxel grids of a data set of Ray's: a lazy data set again, as `map_batches` gives it.

    Rows have `points` of `[N, 3 + F]`, which may differ in length, or the `bytes` and `path` of a file
    that `plimsoll.read_points` reads (`ray.data.read_binary_files(…, include_paths=True)`); a file with
    several clouds becomes several rows. The grid comes in their place, as `into`; other columns stay.

    The arguments up to `dtype` are those of `plimsoll.voxelize`; `features` is how many features points
    have where `mode` is mean or max. A file that cannot be read is logged and left out, or raised with
    `on_error="raise"`. The rest are options of `Stage`: with `num_gpus=0.5` actors work on half a GPU
    each, and are limited to half of its memory.

    The bits are those of `plimsoll.voxelize`, however many actors there are.
    """
    grids = Grids(_triple(grid_size), _triple(voxel_size), _triple(origin), mode, dtype, features)
    device = "cuda:0" if num_gpus else "cpu"
    options = {"bytes_per_row": grids.item_bytes, **options}
    args = (grids, CloudRows(column, grids.needs_features, on_error, grids.check), into, device)
    return dataset.map_batches(**Stage(VoxelizeBatch, limit, num_gpus=num_gpus, args=args, **options))


def _triple(value: Any) -> Any:
    return (value,) * 3 if isinstance(value, (int, float)) else tuple(value)
