"""Puts what a program is given on the device without data, and back where it was."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .dataless import META, Dataless, Run
from .values import MOST_FLOATS, MOST_INTEGERS


class Placing:
    """What was put there, once each, and how to undo it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.made: dict[int, tuple[Any, Any]] = {}
        self.undo: list[Any] = []

    def tensor(self, tensor: Any) -> Any:
        if isinstance(tensor, Dataless):
            return tensor
        if id(tensor) not in self.made:
            with torch.no_grad():
                form = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)
            small = tensor.numel() <= (MOST_FLOATS if tensor.is_floating_point() else MOST_INTEGERS)
            known = tensor.detach().clone() if small and tensor.device.type == "cpu" else None
            placed = Dataless(form, self.run, known)
            self.run.hold(placed, "input")
            placed.requires_grad_(tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter):
                placed._is_param = True
            self.made[id(tensor)] = (tensor, placed)
        return self.made[id(tensor)][1]

    def module(self, module: Any) -> None:
        for part in module.modules():
            for tensors in (part._parameters, part._buffers):
                for name, tensor in list(tensors.items()):
                    if tensor is not None and not isinstance(tensor, Dataless):
                        tensors[name] = self.tensor(tensor)
                        self.undo.append((tensors, name, tensor))

    def optimizer(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            self.undo.append((group, "params", group["params"]))
            group["params"] = [self.tensor(parameter) for parameter in group["params"]]
        states = {
            self.made[id(owner)][1] if id(owner) in self.made else owner: {
                name: self.tensor(value) if isinstance(value, torch.Tensor) and value.dim() else value
                for name, value in state.items()
            }
            for owner, state in optimizer.state.items()
        }
        before = dict(optimizer.state)
        optimizer.state.clear()
        optimizer.state.update(states)
        self.undo.append((optimizer.state, None, before))

    def put_back(self) -> None:
        for where, name, before in reversed(self.undo):
            if name is None:
                where.clear()
                where.update(before)
            else:
                where[name] = before


def _referred(fn: Any) -> list[Any]:
    """What a function refers to besides its arguments: its object, closure and globals."""
    found = [fn, getattr(fn, "__self__", None)]
    function = inspect.unwrap(getattr(fn, "__func__", fn))
    if inspect.isfunction(function):
        outside = inspect.getclosurevars(function)
        found += [*outside.nonlocals.values(), *outside.globals.values()]
    return [leaf for value in found for leaf in tree_leaves(value)]


@contextmanager
def placed(run: Run, fn: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Arguments on the device; modules and optimizers are changed in place, and back at the end."""
    placing = Placing(run)
    given = [*tree_leaves((args, kwargs)), *_referred(fn)]
    try:
        for leaf in given:
            if isinstance(leaf, torch.nn.Module):
                placing.module(leaf)
        for leaf in given:
            if isinstance(leaf, torch.optim.Optimizer):
                placing.optimizer(leaf)
        yield tree_map(lambda leaf: placing.tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
    finally:
        placing.put_back()
