"""Voxels as networks that detect objects in point clouds take them: `Voxelization`, called as the
module of that name in mmcv is."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from . import tensors
from ._plimsoll import HardVoxelizer
from .points import floats, tensor_floats
from .tensors import Cupy, Torch

DYNAMIC = -1
# The largest blocks that the C library's allocator keeps for the next call; larger ones go back to the system.
REUSED = 32 << 20
SMALLER = "a smaller max_voxels or max_num_points takes less"


class Voxelization:
    """The first `max_num_points` points of each of the first `max_voxels` voxels.

    Called with points `[N, C]` (x, y, z, then features), it gives `voxels` [M, P, C], filled up with
    zeros, `coors` [M, 3] of int32 (z, y, x), and `num_points` [M]: voxels in the order of their
    first point, points in their own order, the same bits on the host and on a GPU. With
    `max_num_points` or `max_voxels` of -1 it gives the voxel of every point, [N, 3], -1 where there
    is none. Points that are not finite, or outside the range, have no voxel.

    `max_voxels` is one number, or one for training and one for testing: `eval()` and `train()`
    choose, as in PyTorch. It is no `torch.nn.Module`, so that it needs no PyTorch: a network that has one
    passes these on in its own `train(mode)`, by `self.voxel_layer.train(mode)`. `deterministic` is
    taken so that code for mmcv runs: the answer always is.

    Arrays of numpy and tensors of the processor are made on the host. Tensors of PyTorch and CuPy on
    a GPU stay there: they are not copied (unless they are not contiguous float32, aligned to 16
    bytes), and the work is queued on the caller's current stream. The call returns when the number
    of voxels is known.

    >>> import numpy as np, plimsoll
    >>> points = np.array([[0.1, 0.1, 0.9, 7], [0.6, 0.1, 0.1, 8], [0.2, 0.2, 0.8, 9]], np.float32)
    >>> layer = plimsoll.Voxelization([0.5, 0.5, 0.5], [0, 0, 0, 1, 1, 1], 2, max_voxels=10)
    >>> voxels, coors, num_points = layer(points)
    >>> voxels.shape, coors.tolist(), num_points.tolist()
    ((2, 2, 4), [[1, 0, 0], [0, 0, 1]], [2, 1])
    >>> plimsoll.Voxelization([0.5, 0.5, 0.5], [0, 0, 0, 1, 1, 1], -1)(points).tolist()
    [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    """

    def __init__(
        self,
        voxel_size: Sequence[float],
        point_cloud_range: Sequence[float],
        max_num_points: int,
        max_voxels: int | tuple[int, int] = 20000,
        deterministic: bool = True,
        *,
        order: str = "zyx",
    ) -> None:
        self.voxel_size = voxel_size
        self.point_cloud_range = point_cloud_range
        self.max_num_points = max_num_points
        pair = (max_voxels, max_voxels) if isinstance(max_voxels, Integral) else tuple(max_voxels)  # type: ignore[arg-type]
        if len(pair) != 2:
            raise ValueError(f"max_voxels is {max_voxels!r}; it must be one number, or two: training, testing")
        self.max_voxels: tuple[int, int] = (int(pair[0]), int(pair[1]))
        self.deterministic = deterministic
        self.order = order
        self.training = True
        self._made = tuple(self._make(most) for most in self.max_voxels)
        self.grid_size: list[int] = list(self._made[0].grid_size)
        self.pcd_shape: list[int] = [1, self.grid_size[1], self.grid_size[0]]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._made = tuple(self._make(most) for most in self.max_voxels)

    def _make(self, max_voxels: int) -> HardVoxelizer:
        size = tuple(float(one) for one in self.voxel_size)
        extent = tuple(float(one) for one in self.point_cloud_range)
        if len(size) != 3 or len(extent) != 6:
            raise ValueError("voxel_size has three numbers, and point_cloud_range six")
        most = (self.max_num_points, max_voxels)
        if any(not 1 <= one < 2**32 and one != DYNAMIC for one in most):
            raise ValueError(f"max_num_points and max_voxels are {most}; they must be at least 1, or -1, and less than 2^32")
        # Where every point has its voxel, neither is a maximum.
        points, voxels = (1, 1) if DYNAMIC in most else most
        return HardVoxelizer((size[0], size[1], size[2]), extent, points, voxels, self.order)

    def train(self, mode: bool = True) -> Voxelization:
        """Uses the first of `max_voxels` from here on, as while a network is trained."""
        self.training = mode
        return self

    def eval(self) -> Voxelization:
        """Uses the second of `max_voxels` from here on."""
        return self.train(False)

    def forward(self, points: Any) -> Any:
        """What a call gives."""
        which = 0 if self.training else 1
        most, made = self.max_voxels[which], self._made[which]
        library = None if isinstance(points, np.ndarray) else _library(points)
        shape = points.shape
        if len(shape) != 2 or shape[1] < 3:
            raise ValueError(f"points is {tuple(shape)}; it must be [N, C] with x, y, z and features")
        dynamic = self.max_num_points == DYNAMIC or most == DYNAMIC
        if library is None:
            return self._on_host(made, most, dynamic, floats(points))
        if isinstance(library, Cupy):
            with points.device:
                return self._on_gpu(library, made, most, dynamic, points)
        if points.is_cuda:
            return self._on_gpu(library, made, most, dynamic, points)
        torch = library.torch
        answer = self._on_host(made, most, dynamic, tensor_floats(points))
        return torch.from_numpy(answer) if dynamic else tuple(torch.from_numpy(one) for one in answer)

    __call__ = forward

    def _on_host(self, made: HardVoxelizer, most: int, dynamic: bool, points: Any) -> Any:
        if dynamic:
            return made.dynamic(points)
        room, columns = min(len(points), most), points.shape[1]
        if room * self.max_num_points * columns * 4 > REUSED:
            return made.hard(points)
        # Allocated by this thread, memory of the last call is used again; the system's pages cost more
        # than the voxels.
        voxels = np.empty((room, self.max_num_points, columns), np.float32)
        coors, num_points = np.empty((room, 3), np.int32), np.empty(room, np.int32)
        total = made.hard_into(points, voxels, coors, num_points)
        return voxels[:total], coors[:total], num_points[:total]

    def pillar_features(self, voxels: Any, coors: Any, num_points: Any) -> Any:
        """The features that PointPillars takes of what a call gave: those of each point, its offset from
        the mean of its pillar's points, and from the pillar's centre: [M, P, C + 6], 0 where there is no
        point. Points of x, y, z and an intensity so get OpenPCDet's ten. No gradient is passed on.

        >>> import numpy as np, plimsoll
        >>> layer = plimsoll.Voxelization([1, 1, 4], [0, 0, -3, 4, 3, 1], 3, max_voxels=9)
        >>> made = layer(np.array([[2.5, 1.25, 0, 0.5], [2.75, 1.5, -1, 0.25]], np.float32))
        >>> layer.pillar_features(*made)[0, 0].tolist()
        [2.5, 1.25, 0.0, 0.5, -0.125, -0.125, 0.5, 0.0, -0.25, 1.0]
        """
        made, shape = self._made[0], tuple(voxels.shape)
        if len(shape) != 3 or shape[1] != self.max_num_points or shape[2] < 3 or self.max_num_points == DYNAMIC:
            raise ValueError(f"voxels is {shape}; it must be [M, {self.max_num_points}, C], as a call gives them")
        if tuple(coors.shape) != (shape[0], 3) or tuple(num_points.shape) != (shape[0],):
            raise ValueError(f"coors must be [{shape[0]}, 3] and num_points [{shape[0]}], as voxels is {shape}")
        _alike(voxels, coors, num_points)
        if isinstance(voxels, np.ndarray):
            return made.pillars(floats(voxels), _numbers(coors), _numbers(num_points))
        library = _library(voxels)
        if isinstance(library, Torch) and not voxels.is_cuda:
            arrays = tensor_floats(voxels), _numbers(coors.numpy()), _numbers(num_points.numpy())
            return library.torch.from_numpy(made.pillars(*arrays))
        with _on_device(voxels) as library:
            voxels, rows, number, stream = library.ready(voxels, library.floats)
            coors, places, *_ = library.ready(coors, library.words)
            num_points, counts, *_ = library.ready(num_points, library.words)
            features, to = _fresh(library, (*shape[:2], shape[2] + 6), number)
            if shape[0]:
                made.pillars_resident(number, stream, shape[0], shape[2], rows, places, counts, to)
            return features

    def birds_eye(self, values: Any, coors: Any) -> Any:
        """The image from above of what a network made of each pillar: a row of `values` [M, F] at the
        place that `coors` says, and 0 elsewhere: [1, F, height, width]. On a GPU, pillars at places that
        there are not are left out; on the host they are a ValueError. No gradient is passed on.

        >>> import numpy as np, plimsoll
        >>> layer = plimsoll.Voxelization([1, 1, 4], [0, 0, -3, 4, 3, 1], 3, max_voxels=9)
        >>> coors = np.array([[0, 1, 2]], np.int32)
        >>> layer.birds_eye(np.array([[7.0]], np.float32), coors)[0, 0].tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        """
        made, shape = self._made[0], tuple(values.shape)
        if len(shape) != 2 or tuple(coors.shape) != (shape[0], 3):
            raise ValueError(f"values is {shape} and coors {tuple(coors.shape)}; they must be [M, F] and [M, 3]")
        _alike(values, coors)
        if isinstance(values, np.ndarray):
            return made.birds_eye(floats(values), _numbers(coors))
        library = _library(values)
        if isinstance(library, Torch) and not values.is_cuda:
            return library.torch.from_numpy(made.birds_eye(tensor_floats(values), _numbers(coors.numpy())))
        with _on_device(values) as library:
            values, rows, number, stream = library.ready(values, library.floats)
            coors, places, *_ = library.ready(coors, library.words)
            image, to = _fresh(library, (1, shape[1], self.grid_size[1], self.grid_size[0]), number)
            made.birds_eye_resident(number, stream, shape[0], shape[1], rows, places, to)
            return image

    def _on_gpu(self, library: Torch | Cupy, made: HardVoxelizer, most: int, dynamic: bool, points: Any) -> Any:
        if dynamic:
            return self._places_on_gpu(library, made, points)
        return self._voxels_on_gpu(library, made, most, points)

    def _places_on_gpu(self, library: Torch | Cupy, made: HardVoxelizer, points: Any) -> Any:
        points, address, number, stream = library.ready(points, library.floats)
        count, columns = points.shape
        places, to = library.empty((count, 3), (3, 1), library.words, number, SMALLER)
        if count:
            made.dynamic_resident(number, stream, address, count, columns, to)
        return places

    def _voxels_on_gpu(self, library: Torch | Cupy, made: HardVoxelizer, most: int, points: Any) -> Any:
        points, address, number, stream = library.ready(points, library.floats)
        count, columns = points.shape
        # The first kernel has no use for the results: it runs while they are allocated.
        call = made.hard_resident(number, stream, address, count, columns) if count else None
        room, each = min(count, most), self.max_num_points
        shape, strides = (room, each, columns), (each * columns, columns, 1)
        voxels, to = library.empty(shape, strides, library.floats, number, SMALLER)
        coors, places = library.empty((room, 3), (3, 1), library.words, number, SMALLER)
        num_points, counts = library.empty((room,), (1,), library.words, number, SMALLER)
        total = call.finish(to, places, counts) if call is not None else 0
        cut = library.cut
        return cut(voxels, total, each, columns), cut(coors, total, 3), cut(num_points, total)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(voxel_size={self.voxel_size}, "
            f"point_cloud_range={self.point_cloud_range}, max_num_points={self.max_num_points}, "
            f"max_voxels={self.max_voxels}, deterministic={self.deterministic})"
        )


def _library(points: Any) -> Torch | Cupy:
    library = tensors.library(type(points))
    if library is None:
        raise TypeError(
            "points must be an array of numpy, or a tensor of PyTorch or CuPy, not "
            f"{type(points).__module__}.{type(points).__name__}"
        )
    return library


@contextlib.contextmanager
def _on_device(points: Any) -> Iterator[Torch | Cupy]:
    """The library of a tensor, with calls for the device where it is."""
    library = _library(points)
    with points.device if library.is_cupy else contextlib.nullcontext():
        yield library


def _fresh(library: Torch | Cupy, shape: tuple[int, ...], number: int) -> tuple[Any, int]:
    """A tensor of floats, and where it is."""
    strides = tuple(math.prod(shape[axis:]) for axis in range(1, len(shape) + 1))
    return library.empty(shape, strides, library.floats, number, SMALLER)


def _alike(first: Any, *others: Any) -> None:
    """Refuses what is on another device than the first, and tensors whose gradient would be lost."""

    def place(array: Any) -> str:
        return f"{type(array).__module__.partition('.')[0]} on {getattr(array, 'device', 'cpu')}"

    for other in others:
        if place(other) != place(first):
            raise ValueError(f"the first is of {place(first)}, another of {place(other)}: move it there first")
    if getattr(first, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise ValueError(
            "its gradient would be lost: call this under torch.no_grad(), or give it tensor.detach()"
        )


def _numbers(array: Any) -> Any:
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise TypeError(f"coors and num_points are integers, not {array.dtype}")
    if array.dtype != np.int32 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise ValueError("coors and num_points must be numbers of int32")
    return np.require(np.asarray(array), np.int32, ("C", "A"))
