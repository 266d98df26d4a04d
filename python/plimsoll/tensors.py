"""Tensors of PyTorch and CuPy on a GPU: how they are made ready for kernels, allocated and addressed.

The kernels of one cloud are over in microseconds, so each look-up and each call of these libraries
counts. What does not depend on a tensor is looked up once; where PyTorch has functions that its own
compiled code calls, which skip its dispatcher, they are used.
"""

from __future__ import annotations

import sys
from typing import Any

from .errors import OutOfMemory

Shape = tuple[int, ...]


class Torch:
    """PyTorch."""

    is_cupy = False

    def __init__(self, torch: Any) -> None:
        own, guards = torch._C, getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self.torch = torch
        self.floats, self.words = torch.float32, torch.int32
        # Older versions have not all of them.
        self.kinds = {name: getattr(torch, name, None) for name in ("float32", "uint32", "uint8")}
        self._stream_of: Any = getattr(own, "_cuda_getCurrentRawStream", None)
        # They are not public, and so may be missing: what is public takes longer.
        self._current_device: Any = getattr(own, "_cuda_getDevice", None)
        self._empty: Any = getattr(guards, "_empty_strided_cuda", None) if self._current_device else None

    def ready(self, tensor: Any, kind: Any) -> tuple[Any, int, int, int]:
        """The tensor as kernels read it: itself if it is of this kind, contiguous and aligned, otherwise a
        copy. With it, where it is, the number of its device, and the current stream there."""
        number, at = tensor.get_device(), tensor.data_ptr()
        if tensor.dtype is not kind or at % 16 or not tensor.is_contiguous():
            refuse_complex(tensor)
            tensor = tensor.detach().to(kind, copy=True).contiguous()
            at = tensor.data_ptr()
        return tensor, at, number, self._stream_of(number)

    def empty(self, shape: Shape, strides: Shape, kind: Any, number: int, advice: str) -> tuple[Any, int]:
        """A fresh contiguous tensor, whose strides these are, on the device of a number; and where it is."""
        try:
            if self._empty is not None and self._current_device() == number:
                made = self._empty(shape, strides, kind)
            else:
                made = self.torch.empty(shape, dtype=kind, device=f"cuda:{number}")
        except self.torch.cuda.OutOfMemoryError as error:
            raise _too_large(shape, number, advice) from error
        return made, made.data_ptr()

    def holds(self, out: Any, shape: Shape, kind: Any, number: int) -> bool:
        """Whether a result can be written to it as it is."""
        fits = out.shape == shape and out.dtype is kind and out.is_contiguous()
        return bool(fits and out.get_device() == number)

    def cut(self, tensor: Any, *shape: int) -> Any:
        """A fresh tensor cut to this shape, which has fewer rows. In place, as a slice takes longer (and so
        does a tuple here)."""
        return tensor.resize_(*shape)

    def address(self, tensor: Any) -> int:
        """Where it is."""
        return int(tensor.data_ptr())


class Cupy:
    """CuPy; its calls are for the current device, which is that of the tensor."""

    is_cupy = True

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.floats, self.words = "float32", "int32"
        self.kinds = {name: name for name in ("float32", "uint32", "uint8")}

    def ready(self, tensor: Any, kind: Any) -> tuple[Any, int, int, int]:
        if tensor.dtype != kind or not tensor.flags.c_contiguous or tensor.data.ptr % 16:
            tensor = self.cupy.array(tensor, dtype=kind, order="C", copy=True)
        return tensor, tensor.data.ptr, tensor.device.id, self.cupy.cuda.get_current_stream().ptr

    def empty(self, shape: Shape, strides: Shape, kind: Any, number: int, advice: str) -> tuple[Any, int]:
        try:
            made = self.cupy.empty(shape, dtype=kind)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise _too_large(shape, number, advice) from error
        return made, made.data.ptr

    def holds(self, out: Any, shape: Shape, kind: Any, number: int) -> bool:
        fits = out.shape == shape and out.dtype == kind and out.flags.c_contiguous
        return bool(fits and out.device.id == number)

    def cut(self, tensor: Any, *shape: int) -> Any:
        return tensor[: shape[0]]

    def address(self, tensor: Any) -> int:
        return int(tensor.data.ptr)


_KNOWN: dict[type, Torch | Cupy] = {}


def library(kind: type) -> Torch | Cupy | None:
    """The library whose tensors are of this type."""
    known = _KNOWN.get(kind)
    if known is None:
        name = kind.__module__.partition(".")[0]
        if name not in ("torch", "cupy"):
            return None
        known = Torch(sys.modules["torch"]) if name == "torch" else Cupy(sys.modules["cupy"])
        _KNOWN[kind] = known
    return known


def refuse_complex(tensor: Any) -> None:
    """PyTorch would drop the imaginary part."""
    if tensor.is_complex():
        raise TypeError(f"this is a tensor of {tensor.dtype}; it must have real numbers")


def _too_large(shape: Shape, number: int, advice: str) -> OutOfMemory:
    return OutOfMemory(f"out of memory on cuda:{number}: {shape} cannot be allocated; {advice}")
