"""Operators whose result depends on values, or on where a tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .dataless import META, Dataless, Run
from .values import MOST_FLOATS, MOST_INTEGERS

aten = torch.ops.aten


def scalar(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """A number that the program reads: its value, else 1."""
    tensor = args[0]
    value = run.value(tensor)
    if value is not None:
        return value.item()
    run.unknown["numbers read, taken as 1"] += 1
    return 1.0 if tensor.is_floating_point() else tensor.dtype is torch.bool or 1


def to_copy(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """From the CPU, with its values where it is small."""
    source = args[0]
    if isinstance(source, Dataless) or source.is_meta:
        return NotImplemented
    made = torch._C.DisableTorchFunction()
    with made, run.inside_kernel():
        form = torch.empty_strided(source.size(), source.stride(), dtype=kwargs.get("dtype") or source.dtype, device=META)
    small = source.numel() <= (MOST_FLOATS if form.is_floating_point() else MOST_INTEGERS)
    return run.wrapped(form, func, source.to(form.dtype) if small else None)


def copy_in(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """copy_ between the CPU and the device."""
    target, source = args[0], args[1]
    if not isinstance(target, Dataless) and not target.is_meta:
        target.copy_(run.on_host(source))
        return target
    return NotImplemented


def of_known(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """Operators whose result's size depends on values: of values that are known, else of values
    that are all true."""
    source = args[0]
    value = run.value(source)
    if value is None:
        run.unknown[f"{func.name()} of unknown values, taken as true"] += 1
        if source.numel() > MOST_INTEGERS * 8:
            raise NotImplementedError(f"{func} depends on values that a run without data does not have")
        value = torch.ones(tuple(source.shape), dtype=torch.bool, device="cpu")
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        found = func(value, *[run.on_host(a) if isinstance(a, torch.Tensor) else a for a in args[1:]], **kwargs)
        form = tree_map(lambda t: torch.empty_like(t, device=META), found)
    run.rules.before(run, func, args, kwargs)
    made = run.wrapped(form, func, found)
    run.rules.after(run, func, args, kwargs, made)
    return made


def index(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """Indexing by truth values is indexing by the places where they are true."""
    if not any(isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
        return NotImplemented
    places: list[Any] = []
    for given in args[1]:
        if isinstance(given, torch.Tensor) and given.dtype in (torch.bool, torch.uint8):
            with run:
                places.extend(aten.nonzero.default(given).unbind(1))
        else:
            places.append(given)
    with run:
        return func(args[0], places)


def chosen(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """The largest of unknown values: as if all had the same chance."""
    source = args[0]
    if run.value(source) is not None or source.numel() > MOST_INTEGERS * 8:
        return NotImplemented
    made = run.run_kernel(func, args, kwargs)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        generator = torch.Generator().manual_seed(source.numel())
        guess = torch.rand(tuple(source.shape), generator=generator)
        if func is aten.argmax.default:
            made._value = func(guess, *args[1:], **kwargs)
        else:
            made[1]._value = func(guess, *args[1:], **kwargs)[1]
    run.unknown["choices of the largest, taken as even"] += 1
    return made


def drawn(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """Random integers, which the program may look at."""
    made = run.run_kernel(func, args, kwargs)
    if made.numel() <= MOST_INTEGERS and not made.is_floating_point():
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            low, high = (0, args[0]) if func is aten.randint.default else (args[0], args[1])
            made._value = torch.randint(low, high, tuple(made.shape), generator=torch.Generator().manual_seed(0))
    return made


def equal(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    values = [run.value(tensor) for tensor in args[:2]]
    return torch.equal(*values) if None not in values else args[0].shape == args[1].shape


SPECIAL: dict[Any, Callable[[Run, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: scalar,
    aten._to_copy.default: to_copy,
    aten.copy_.default: copy_in,
    aten.nonzero.default: of_known,
    aten.masked_select.default: of_known,
    aten._unique2.default: of_known,
    aten.unique_dim.default: of_known,
    aten.unique_consecutive.default: of_known,
    aten.repeat_interleave.Tensor: of_known,
    aten.bincount.default: of_known,
    aten.index.Tensor: index,
    aten.topk.default: chosen,
    aten.argmax.default: chosen,
    aten.sort.default: chosen,
    aten.randint.default: drawn,
    aten.randint.low: drawn,
    aten.equal.default: equal,
}
