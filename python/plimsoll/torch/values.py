"""Values of small tensors without data, computed on the CPU: masks, positions, and which expert gets a
token decide what a program does next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

#: What a tensor may have at most to keep its values: integers and truth values, and others.
MOST_INTEGERS, MOST_FLOATS = 1 << 21, 1 << 12

aten = torch.ops.aten

#: What would have other values on each call, or none.
UNKNOWN = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}

#: What makes more of its input than it was given.
EXPANDING = {aten.repeat.default, aten.one_hot.default}


def without_data(tensor: Any) -> bool:
    """Whether a tensor is one whose values are kept aside, if at all."""
    return hasattr(tensor, "_value")


class Values:
    """What is known of tensors; `unknown` counts what had to be taken for granted."""

    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()
        self._stale: dict[int, Any] = {}

    def value(self, tensor: Any) -> Any:
        """A tensor's values on the CPU, where they are known."""
        if not without_data(tensor):
            return None if tensor.is_meta else tensor
        value = tensor._value
        if value is not None and value.untyped_storage()._cdata in self._stale:
            return None
        return value

    def values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives on known values, where it is small; what it writes to others
        makes theirs unknown."""
        flat, form = tree_flatten((args, kwargs))
        known = [self.value(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        missing = any(value is None and isinstance(leaf, torch.Tensor) for value, leaf in zip(known, flat))
        written = func._schema.is_mutable
        if missing or not self.worth(func, flat, kwargs):
            if written:
                self.forget(func, args, kwargs)
            return None
        host_args, host_kwargs = torch.utils._pytree.tree_unflatten(known, form)
        if "device" in host_kwargs:
            host_kwargs["device"] = torch.device("cpu")
        host_kwargs.pop("pin_memory", None)
        try:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
                return func(*host_args, **host_kwargs)
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            if written:
                self.forget(func, args, kwargs)
            return None

    def worth(self, func: Any, flat: list[Any], kwargs: dict[str, Any]) -> bool:
        if func.namespace != "aten" or func in UNKNOWN:
            return False
        tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        if not tensors:
            size = next((leaf for leaf in flat if isinstance(leaf, (list, tuple))), None)
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            if func in (aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default):
                return True
            count = 1
            for leaf in flat if size is None else size:
                count *= leaf if isinstance(leaf, int) and not isinstance(leaf, bool) else 1
            return count <= (MOST_FLOATS if dtype.is_floating_point else MOST_INTEGERS)
        count = 1
        for extents in zip(*[reversed((1,) * (8 - t.dim()) + tuple(t.shape)) for t in tensors if t.dim() <= 8]):
            count *= max(extents)
        repeats = [leaf for leaf in flat if isinstance(leaf, int)]
        integers = all(not t.is_floating_point() for t in tensors)
        if kwargs.get("dtype") is not None and kwargs["dtype"].is_floating_point:
            integers = False
        if func in EXPANDING:
            for repeat in repeats:
                count *= max(repeat, 1)
        return count <= (MOST_INTEGERS if integers else MOST_FLOATS)

    def forget(self, func: Any, args: Any, kwargs: Any) -> None:
        for argument, given in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(given):
                    if without_data(tensor) and tensor._value is not None:
                        # Kept, so that no other storage gets its number.
                        storage = tensor._value.untyped_storage()
                        self._stale[storage._cdata] = storage
        out = kwargs.get("out")
        if out is not None and without_data(out):
            out._value = None

    def on_host(self, tensor: Any) -> Any:
        """A tensor of the CPU: its values where they are known, else zeros."""
        value = self.value(tensor)
        if value is not None:
            return value.clone()
        self.unknown["values copied to the CPU, taken as 0"] += 1
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")

    def copied_to_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            args, kwargs = tree_map(
                lambda leaf: self.on_host(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
            )
            return func(*args, **kwargs)
