"""Point clouds into voxel grids: arrays of numpy on the host, tensors of PyTorch and CuPy where they
are.

Points are `[N, 3 + F]`, or `[B, N, 3 + F]` for a batch; grids are `[D, H, W]` or `[B, D, H, W]`,
with features `[B, F, D, H, W]`. x counts along the width, y along the height, z along the depth.
The rules are those of the command (`plimsoll voxelize`), and so are the bits of the result.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import tensors
from ._plimsoll import (
    VoxelSpec,
    available_bytes,
    format_bytes,
    suggest_voxelization_chunking,
    voxelize_arrays,
    voxelize_resident,
)
from .errors import NeverFits, OutOfMemory, Unavailable
from .tensors import Cupy, Torch, refuse_complex

Triple = float | Sequence[float]
Dtypes = {"f32": "float32", "u32": "uint32", "u8": "uint8", "bits": "uint8"}
# What is made of tensors where they are.
TENSORS = ("f32", "u32", "u8")
PLAIN = (int, float, tuple)
CHUNKED = "voxelize_chunked makes the result some clouds at a time"
# Results from here on are compared with what is available before they are allocated.
LARGE = 1 << 30
CELLS = {"float32": "f32", "uint32": "u32", "uint8": "u8", "bool": "u8", "bits": "bits"}


def voxelize(
    points: Any,
    grid_size: int | Sequence[int],
    voxel_size: Triple,
    origin: Triple = 0.0,
    *,
    mode: str = "occupancy",
    dtype: Any = None,
    out: Any = None,
    chunk_size: int | None = None,
    device: object = None,
    limit: int | str | None = None,
) -> Any:
    """Voxel grids of point clouds, of the same kind as the points.

    `grid_size` is depth, height and width; `voxel_size` one size or those along x, y and z; `mode`
    is occupancy, count, mean or max (of the features). `dtype` is float32 unless counts are wanted
    (uint32); occupancy can be uint8 or "bits". Points that are not finite or outside are dropped.

    Arrays of numpy are made on the host, or on a `device` ("cuda:0", "opencl:0") that is named, in
    no more of its memory than `limit`. Tensors of PyTorch and CuPy on a GPU stay there: nothing is
    copied, the work is queued on the caller's current stream, and the result is allocated by their
    own library (or is `out`). On a GPU's tensors there is every mode, but not "bits".

    Work that does not fit is done in chunks; the result does not depend on them.

    >>> import numpy as np, plimsoll
    >>> points = np.array([[0.1, 0.2, 0.3], [0.9, 0.2, 0.3]], dtype=np.float32)
    >>> plimsoll.voxelize(points, 2, 0.5).tolist()
    [[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    if chunk_size is not None:
        chunk_size = _at_least_one("chunk_size", chunk_size)
    # Plans are kept for numbers and tuples; lists, arrays and tensors may change.
    if type(grid_size) not in PLAIN or type(voxel_size) not in PLAIN or type(origin) not in PLAIN:
        grid_size = _three("grid_size", grid_size, _whole)
        voxel_size, origin = _three("voxel_size", voxel_size, float), _three("origin", origin, float)
    library = tensors.library(type(points))
    if isinstance(library, Torch) and points.is_cuda:
        return _on_gpu(library, points, grid_size, voxel_size, origin, mode, dtype, out, chunk_size)
    if isinstance(library, Cupy):
        with points.device:
            return _on_gpu(library, points, grid_size, voxel_size, origin, mode, dtype, out, chunk_size)
    what = (grid_size, voxel_size, origin, mode, dtype)
    if isinstance(points, np.ndarray):
        return _on_host(points, *what, out=out, chunk=chunk_size, device=device, limit=limit)
    if library is not None:
        array, own = tensor_floats(points.cpu()), None if out is None else out.numpy()
        made = _on_host(array, *what, out=own, chunk=chunk_size, device=device, limit=limit)
        return library.torch.from_numpy(made) if out is None else out
    if isinstance(points, (list, tuple)) and points and isinstance(points[0], np.ndarray):
        return _on_host(points, *what, out=out, chunk=chunk_size, device=device, limit=limit)
    raise TypeError(
        "points must be an array of numpy (or a list of them, which may differ in length), or a "
        f"tensor of PyTorch or CuPy, not {type(points).__module__}.{type(points).__name__}"
    )


def voxelize_occupancy(
    points: Any, grid_size: int | Sequence[int], voxel_size: Triple, origin: Triple = 0.0, **options: Any
) -> Any:
    """`voxelize` in its usual mode: 1 where a voxel has a point, 0 where it has none.

    >>> import numpy as np, plimsoll
    >>> plimsoll.voxelize_occupancy(np.zeros((1, 3), np.float32), 2, 1.0).sum()
    np.float32(1.0)
    """
    return voxelize(points, grid_size, voxel_size, origin, mode="occupancy", **options)


def voxelize_chunked(
    points: Any,
    grid_size: int | Sequence[int],
    voxel_size: Triple,
    origin: Triple = 0.0,
    *,
    chunk_size: int | None = None,
    **options: Any,
) -> Iterator[Any]:
    """The grids of a batch, some clouds at a time, each chunk where the points are: for results
    that do not fit as a whole. Without `chunk_size`, as many as fit now.

    A chunk whose result does not fit after all is halved; nothing is made twice.

    >>> import numpy as np, plimsoll
    >>> points = np.zeros((5, 4, 3), np.float32)
    >>> [grids.shape for grids in plimsoll.voxelize_chunked(points, 2, 1.0, chunk_size=2)]
    [(2, 2, 2, 2), (2, 2, 2, 2), (1, 2, 2, 2)]
    """
    if isinstance(points, (list, tuple)):
        clouds, each = len(points), max(map(len, points), default=0)
    elif len(getattr(points, "shape", ())) == 3:
        clouds, each = int(points.shape[0]), int(points.shape[1])
    else:
        raise ValueError("points must be a batch: [B, N, 3], or a list of arrays; points[None] is a batch of one cloud")
    where = str(points.device) if hasattr(points, "is_cuda") and points.is_cuda else "cpu"
    if isinstance(tensors.library(type(points)), Cupy):
        where = f"cuda:{points.device.id}"
    if chunk_size is None:
        try:
            depth, height, width = _three("grid_size", grid_size, _whole)
            plan = suggest_voxelization_chunking(clouds, each, depth, height, width, where)
            chunk_size = max(1, plan.chunk_size)
        except NeverFits:
            chunk_size = 1
    chunk_size, at = _at_least_one("chunk_size", chunk_size), 0
    while at < clouds:
        size = min(chunk_size, clouds - at)
        try:
            grids = voxelize(points[at : at + size], grid_size, voxel_size, origin, **options)
        except OutOfMemory:
            if size == 1:
                raise
            chunk_size = max(1, size // 2)
            continue
        yield grids
        at += size


def voxelize_large_batch(
    points: Any,
    grid_size: int | Sequence[int],
    voxel_size: Triple,
    origin: Triple = 0.0,
    chunk_size: int = 16,
    **options: Any,
) -> Any:
    """The grids of a batch as one result, made at most `chunk_size` clouds at a time.

    >>> import numpy as np, plimsoll
    >>> plimsoll.voxelize_large_batch(np.zeros((5, 4, 3), np.float32), 2, 1.0, chunk_size=2).shape
    (5, 2, 2, 2)
    """
    return voxelize(points, grid_size, voxel_size, origin, chunk_size=chunk_size, **options)


def chunk_and_process(
    points: Any, depth: int, height: int, width: int, voxel_size: Triple, origin: Triple = 0.0, **options: Any
) -> list[Any]:
    """The grids of a batch as a list of chunks, each as large as fits now.

    >>> import numpy as np, plimsoll
    >>> len(plimsoll.chunk_and_process(np.zeros((3, 4, 3), np.float32), 2, 2, 2, 1.0))
    1
    """
    grid = (depth, height, width)
    return list(voxelize_chunked(points, grid, voxel_size, origin, **options))


def _at_least_one(name: str, value: Any) -> int:
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return min(number, 2**63)


def _three(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """One number for all three axes, or one for each."""
    given = value.tolist() if hasattr(value, "tolist") else value  # an array or a tensor
    three = (given,) * 3 if isinstance(given, (int, float)) else given
    what = "a whole number from 1 to 8388608" if kind is _whole else "a number"
    wrong = f"{name} is {value!r}; give {what}, or three"
    if isinstance(three, (str, bytes)):
        raise TypeError(wrong)
    try:
        values = tuple(kind(one) for one in three)
    except TypeError:
        raise TypeError(wrong) from None
    except (ValueError, OverflowError):
        raise ValueError(wrong) from None
    if len(values) != 3:
        raise ValueError(wrong)
    return values


def _whole(value: Any) -> int:
    number = int(value)
    if number != value or not 0 <= number < 2**32:
        raise ValueError
    return number


def floats(array: Any) -> npt.NDArray[np.float32]:
    """Numbers as the extension reads them: where they are if they are float32, contiguous and aligned."""
    array = np.asarray(array)
    if array.dtype == np.float32 and array.flags.carray:
        ready: npt.NDArray[np.float32] = array
        return ready
    # Types that other packages add, such as bfloat16, and objects are left to numpy.
    if array.dtype.kind in "cmMSU":
        raise TypeError(f"this is an array of {array.dtype}; it must have real numbers")
    with np.errstate(over="ignore"):  # what float32 has no number for is in no grid
        return np.require(array, np.float32, ("C", "A"))


def tensor_floats(tensor: Any) -> npt.NDArray[np.float32]:
    """The same of a tensor of PyTorch in the host's memory, which may be of a type that numpy has not."""
    refuse_complex(tensor)
    return floats(tensor.detach().float().numpy())


@functools.lru_cache(maxsize=256)
def _made_plan(
    grid: Any, size: Any, origin: Any, mode: str, dtype: Any, features: int
) -> tuple[VoxelSpec, str, tuple[int, int, int]]:
    """What is made, as what, and its three extents."""
    cells = None
    if dtype is not None:
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
        cells = CELLS.get(name.removeprefix("torch."))
        if cells is None:
            raise ValueError(f"dtype is {dtype!r}; it must be float32, uint32, uint8 or 'bits'")
    grid = _three("grid_size", grid, _whole)
    size, origin = _three("voxel_size", size, float), _three("origin", origin, float)
    of_features = features if mode in ("mean", "max") else 0
    spec = VoxelSpec(grid, size, origin, mode, cells, of_features)
    return spec, spec.cells, grid


def _on_host(
    points: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    grid: Any,
    size: Any,
    origin: Any,
    mode: str,
    dtype: Any,
    *,
    out: npt.NDArray[Any] | None,
    chunk: int | None,
    device: object,
    limit: int | str | None,
) -> npt.NDArray[Any]:
    if isinstance(points, np.ndarray) and points.ndim not in (2, 3):
        raise ValueError(f"points has {points.ndim} dimensions; it must be [N, 3] or [B, N, 3]")
    batched = not isinstance(points, np.ndarray) or points.ndim == 3
    if isinstance(points, np.ndarray):
        whole = floats(points)
        clouds, columns = list(whole) if batched else [whole], points.shape[-1]
    else:
        clouds = [floats(one) for one in points]
        columns = min((one.shape[-1] for one in clouds if one.ndim), default=0)
    if columns < 3 or any(one.ndim != 2 for one in clouds):
        raise ValueError("clouds must be arrays of [N, 3], or with more columns: x, y, z and features")
    spec, cells, grid = _made_plan(grid, size, origin, mode, dtype, columns - 3)
    planes: tuple[int, ...] = (spec.planes,) if mode in ("mean", "max") else ()
    voxels: tuple[int, ...] = (-(-grid[0] * grid[1] * grid[2] // 8),) if cells == "bits" else grid
    shape = (*((len(clouds),) if batched else ()), *planes, *voxels)
    if out is None:
        out = _empty(shape, Dtypes[cells])
    elif (
        not isinstance(out, np.ndarray)
        or out.shape != shape
        or out.dtype != Dtypes[cells]
        or not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable)
    ):
        raise ValueError(f"out must be a contiguous, writable array of {Dtypes[cells]} of shape {shape}")
    where = "cpu" if device is None else str(device)
    if clouds:
        voxelize_arrays(clouds, spec, out.reshape(-1).view(np.uint8), where, chunk, limit)
    return out


def _empty(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    size, why = math.prod(shape) * np.dtype(dtype).itemsize, None
    try:
        # The system gives more than it has, and ends a program that then uses it.
        if size < LARGE or size <= _available():
            return np.empty(shape, dtype=dtype)
    except MemoryError as error:
        why = error
    raise OutOfMemory(
        f"out of memory on cpu: the result of shape {shape} takes {format_bytes(size)}; voxelize_chunked makes "
        "some clouds of a batch at a time, and dtype='uint8' or 'bits' takes less"
    ) from why


def _available() -> float:
    try:
        return available_bytes("cpu")
    except Unavailable:
        return math.inf


@functools.lru_cache(maxsize=256)
def _tensor_plan(
    grid: Any, size: Any, origin: Any, mode: str, dtype: Any, columns: int
) -> tuple[VoxelSpec, str, tuple[int, ...], tuple[int, ...]]:
    """What is made of a cloud of so many columns on a GPU, as what, its shape, and the strides of a
    batch of them."""
    spec, cells, grid = _made_plan(grid, size, origin, mode, dtype, columns - 3)
    if cells not in TENSORS:
        raise Unavailable(
            f"{mode} as {cells} on a GPU's tensors is not available: there are kernels for float32, uint32 "
            "and uint8; use an array of numpy (device='cuda:0' keeps the GPU)"
        )
    planes: tuple[int, ...] = (spec.planes,) if mode in ("mean", "max") else ()
    shape = (*planes, *grid)
    strides = (*(math.prod(shape[axis:]) for axis in range(len(shape))), 1)
    return spec, cells, shape, strides


def _on_gpu(
    library: Torch | Cupy,
    points: Any,
    grid: Any,
    size: Any,
    origin: Any,
    mode: str,
    dtype: Any,
    out: Any,
    chunk: int | None,
) -> Any:
    own = points.shape
    if len(own) not in (2, 3) or own[-1] < 3:
        raise ValueError(f"points is {tuple(own)}; it must be [N, 3] or [B, N, 3], or have more columns")
    spec, cells, shape, strides = _tensor_plan(grid, size, origin, mode, dtype, own[-1])
    if len(own) == 3:
        clouds, count, columns = own
        shape = (clouds, *shape)
    else:
        clouds, (count, columns), strides = 1, own, strides[1:]
    kind = library.kinds[Dtypes[cells]]
    points, address, number, stream = library.ready(points, library.floats)
    if out is None:
        out, to = library.empty(shape, strides, kind, number, CHUNKED)
    elif library.holds(out, shape, kind, number):
        to = library.address(out)
    else:
        raise ValueError(f"out must be a contiguous tensor of {kind} on cuda:{number} of shape {shape}")
    voxelize_resident(spec, number, stream, address, to, clouds, count, columns, chunk)
    return out
