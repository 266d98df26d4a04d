"""Voxels as networks that detect objects in point clouds take them: `Voxelization`, called as the
module of that name in mmcv is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._plimsoll import HardVoxelizer
from .errors import OutOfMemory

DYNAMIC = -1


class Voxelization:
    """The first `max_num_points` points of each of the first `max_voxels` voxels.

    Called with points `[N, C]` (x, y, z, then features), it gives `voxels` [M, P, C], filled up with
    zeros, `coors` [M, 3] of int32 (z, y, x), and `num_points` [M]: voxels in the order of their
    first point, points in their own order, the same bits on the host and on a GPU. With
    `max_num_points` or `max_voxels` of -1 it gives the voxel of every point, [N, 3], -1 where there
    is none. Points that are not finite, or outside the range, have no voxel.

    `max_voxels` is one number, or one for training and one for testing: `eval()` and `train()`
    choose, as in PyTorch. `deterministic` is taken so that code for mmcv runs: the answer always is.

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
        pair = (max_voxels, max_voxels) if isinstance(max_voxels, int) else tuple(max_voxels)
        if len(pair) != 2:
            raise ValueError(f"max_voxels is {max_voxels!r}; it must be one number, or two: training, testing")
        self.max_voxels: tuple[int, int] = (int(pair[0]), int(pair[1]))
        self.deterministic = deterministic
        self.order = order
        self.training = True
        self._made = tuple(self._make(most) for most in self.max_voxels)
        self.grid_size: list[int] = list(self._made[0].grid_size)
        self.pcd_shape: list[int] = [1, self.grid_size[1], self.grid_size[0]]

    def _make(self, max_voxels: int) -> HardVoxelizer:
        size = tuple(float(one) for one in self.voxel_size)
        extent = tuple(float(one) for one in self.point_cloud_range)
        if len(size) != 3 or len(extent) != 6:
            raise ValueError("voxel_size has three numbers, and point_cloud_range six")
        most = (self.max_num_points, max_voxels)
        if any(one < 1 and one != DYNAMIC for one in most):
            raise ValueError(f"max_num_points and max_voxels are {most}; they must be at least 1, or -1")
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
        most = self.max_voxels[0 if self.training else 1]
        made = self._made[0 if self.training else 1]
        if len(points.shape) != 2 or points.shape[1] < 3:
            raise ValueError(f"points is {tuple(points.shape)}; it must be [N, C] with x, y, z and features")
        dynamic = self.max_num_points == DYNAMIC or most == DYNAMIC
        if isinstance(points, np.ndarray):
            array = np.ascontiguousarray(points, dtype=np.float32)
            return made.dynamic(array) if dynamic else made.hard(array)
        library = type(points).__module__.partition(".")[0]
        if library == "cupy":
            with points.device:
                return self._on_gpu(points, made, most, dynamic, *_cupy(points))
        if library != "torch":
            raise TypeError(
                "points must be an array of numpy, or a tensor of PyTorch or CuPy, not "
                f"{type(points).__module__}.{type(points).__name__}"
            )
        if points.is_cuda:
            return self._on_gpu(points, made, most, dynamic, *_torch(points))
        torch = sys.modules["torch"]
        array = np.ascontiguousarray(points.detach().numpy(), dtype=np.float32)
        if dynamic:
            return torch.from_numpy(made.dynamic(array))
        return tuple(torch.from_numpy(one) for one in made.hard(array))

    __call__ = forward

    def _on_gpu(
        self,
        points: Any,
        made: HardVoxelizer,
        most: int,
        dynamic: bool,
        points_of: Any,
        empty: Any,
        pointer: Any,
        where: tuple[int, int],
    ) -> Any:
        """`where` is the number of the device, and its current stream."""
        points = points_of(points)
        count, columns = points.shape
        if dynamic:
            places = empty((count, 3), True)
            if count:
                made.dynamic_resident(*where, pointer(points), count, columns, pointer(places))
            return places
        room = min(count, most)
        voxels = empty((room, self.max_num_points, columns), False)
        coors, num_points = empty((room, 3), True), empty((room,), True)
        if count == 0:
            return voxels, coors, num_points
        total = made.hard_resident(
            *where, pointer(points), count, columns, pointer(voxels), pointer(coors), pointer(num_points)
        )
        return voxels[:total], coors[:total], num_points[:total]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(voxel_size={self.voxel_size}, "
            f"point_cloud_range={self.point_cloud_range}, max_num_points={self.max_num_points}, "
            f"max_voxels={self.max_voxels}, deterministic={self.deterministic})"
        )


def _too_large(shape: tuple[int, ...], device: object) -> OutOfMemory:
    return OutOfMemory(
        f"out of memory on {device}: {shape} cannot be allocated; a smaller max_voxels or "
        "max_num_points takes less"
    )


def _torch(points: Any) -> tuple[Any, Any, Any, tuple[int, int]]:
    """How PyTorch has points as they are needed, memory and addresses; the device and its stream."""
    torch = sys.modules["torch"]
    device = points.device

    def ready(points: Any) -> Any:
        if points.dtype is torch.float32 and points.is_contiguous() and points.data_ptr() % 16 == 0:
            return points
        return points.detach().to(torch.float32, copy=True).contiguous()

    def empty(shape: tuple[int, ...], whole: bool) -> Any:
        try:
            return torch.empty(shape, dtype=torch.int32 if whole else torch.float32, device=device)
        except torch.cuda.OutOfMemoryError as error:
            raise _too_large(shape, device) from error

    stream = torch._C._cuda_getCurrentRawStream(device.index)
    return ready, empty, lambda tensor: tensor.data_ptr(), (device.index, stream)


def _cupy(points: Any) -> tuple[Any, Any, Any, tuple[int, int]]:
    cupy = sys.modules["cupy"]
    device = points.device

    def ready(points: Any) -> Any:
        if points.dtype == "float32" and points.flags.c_contiguous and points.data.ptr % 16 == 0:
            return points
        return cupy.array(points, dtype="float32", order="C", copy=True)

    def empty(shape: tuple[int, ...], whole: bool) -> Any:
        try:
            return cupy.empty(shape, dtype="int32" if whole else "float32")
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise _too_large(shape, device) from error

    return ready, empty, lambda array: array.data.ptr, (device.id, cupy.cuda.get_current_stream().ptr)
