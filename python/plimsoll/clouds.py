"""Point clouds from files: every format that `plimsoll voxelize` reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ._plimsoll import read_clouds

#: What the names of files that can be read end in.
ENDINGS = (".npy", ".npz", ".ply", ".pcd", ".bin")


def read_points(
    path: str | os.PathLike[str], data: bytes | None = None, *, features: bool = True
) -> list[npt.NDArray[np.float32]]:
    """The clouds of a file (.npy, .npz, .ply, .pcd, KITTI's .bin): one array of `[N, 3 + F]` for each.

    With `data`, those are the bytes of the file, wherever it is, and the name only says how to read
    them. `features=False` leaves out what stands beside coordinates, in formats that name it.

    A file that is not what its name says is a `ValueError` with the place; one whose points can
    never be in memory too.

    >>> import io, numpy as np, plimsoll
    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 5, 3)))
    >>> [cloud.shape for cloud in plimsoll.read_points("clouds.npy", file.getvalue())]
    [(5, 3), (5, 3)]
    """
    return read_clouds(path, Path(path).read_bytes() if data is None else data, features)
