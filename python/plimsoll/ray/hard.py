"""Hard voxels of the clouds in a data set of Ray's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..voxelization import Voxelization
from .grids import CloudRows
from .stage import Batch, Stage

#: What a cloud becomes: the results of `plimsoll.Voxelization`, in their order.
COLUMNS = ("voxels", "coors", "num_points")


class HardVoxelizeBatch:
    """Rows with clouds into rows with hard voxels."""

    def __init__(self, rows: CloudRows, arguments: tuple[Any, ...], order: str) -> None:
        self.rows, self.layer = rows, Voxelization(*arguments, order=order)

    def __call__(self, batch: Batch) -> Batch:
        made, clouds = self.rows.split(batch)
        results = [self.layer(cloud) for cloud in clouds]
        for number, name in enumerate(COLUMNS):
            # Clouds have different numbers of voxels: an array of arrays, as Ray has ragged tensors.
            made[name] = np.empty(len(results), dtype=object)
            for row, result in enumerate(results):
                made[name][row] = result[number]
        return made


def hard_voxelize(
    dataset: Any,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_num_points: int,
    max_voxels: int,
    *,
    order: str = "zyx",
    column: str = "points",
    on_error: Literal["log", "raise"] = "log",
    **options: Any,
) -> Any:
    """Hard voxels of a data set of Ray's, as detection networks take them: `plimsoll.Voxelization` of
    every cloud.

    Rows are as `plimsoll.ray.voxelize` takes them. In place of the points come `voxels` [M, P, C],
    `coors` [M, 3] and `num_points` [M], of as many voxels as the cloud has. The rest are options of
    `Stage`. The work is done on the host; for points that are to stay on a GPU, call
    `plimsoll.Voxelization` in a stage of your own.

    >>> import ray
    >>> from plimsoll.ray import hard_voxelize
    >>> clouds = ray.data.from_items([{"points": [[0.1, 0.1, 0.9], [0.6, 0.1, 0.1], [0.2, 0.2, 0.8]]}])
    >>> made = hard_voxelize(clouds, [0.5] * 3, [0, 0, 0, 1, 1, 1], 2, 10).take_all()
    >>> made[0]["coors"].tolist(), made[0]["num_points"].tolist()
    ([[1, 0, 0], [0, 0, 1]], [2, 1])
    """
    if max_num_points < 1 or max_voxels < 1:
        raise ValueError("max_num_points and max_voxels are 1 or more")
    arguments = (tuple(voxel_size), tuple(point_cloud_range), max_num_points, max_voxels)
    args = (CloudRows(column, True, on_error), arguments, order)
    return dataset.map_batches(**Stage(HardVoxelizeBatch, args=args, **options))
