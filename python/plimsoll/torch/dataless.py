"""Tensors of a CUDA device without data, and a run that writes down what they would take.

`Dataless` is a meta tensor that says it is on `cuda:0`. Autograd sees its meta device, so that
backward passes run on the calling thread and need neither a GPU nor a build with CUDA; operators
see the keys of CUDA, so that autocast and the choice of kernels go CUDA's way.

`Run` sees every operator below autograd. A storage that appears is an allocation, and its end is
a free.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from . import kernels
from .log import Log
from .values import Values

CUDA = torch.device("cuda", 0)
META = torch.device("meta")

aten = torch.ops.aten


class Dataless(torch.Tensor):
    """A tensor on `cuda:0` of which only the form is there."""

    _run: Run
    _value: Any

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, form: Any, run: Run, value: Any = None) -> Any:
        made = torch.Tensor._make_subclass(cls, form, False, dispatch_device=False, device_for_backend_keys=CUDA)
        made._run, made._value = run, value
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.detach.default:
            run = args[0]._run
            with run.inside_kernel():
                return run.wrapped(func(*args), func)
        raise RuntimeError(f"{func} was called on a tensor that has no data, after the estimate had ended")

    @property
    def device(self) -> Any:
        return META if self._run.in_kernel else CUDA

    @property
    def is_cuda(self) -> bool:
        return not self._run.in_kernel

    @property
    def is_meta(self) -> bool:
        return bool(self._run.in_kernel)

    def get_device(self) -> int:
        return 0

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"tensor(..., device='cuda:0', size={tuple(self.shape)}, dtype={self.dtype}, without data)"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def tolist(self) -> Any:
        return self._run.on_host(self).tolist()

    def __deepcopy__(self, memo: Any) -> Any:
        copy = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copy._is_param = True
        memo[id(self)] = copy
        return copy


_make_subclass = torch.Tensor._make_subclass


def subclassed(kind: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.Tensor._make_subclass`, by which libraries make types of their own, of a tensor without
    data: a type that is both."""
    if not isinstance(data, Dataless):
        return _make_subclass(kind, data, *args, **kwargs)
    run = data._run
    with run.inside_kernel():
        form = torch.Tensor.detach(data)
    both = kind if issubclass(kind, Dataless) else _both(kind)
    made = _make_subclass(both, form, *args, dispatch_device=False, device_for_backend_keys=CUDA)
    made._run, made._value = run, run.value(data)
    run.hold(made)
    return made


@functools.cache
def _both(kind: Any) -> Any:
    return type(kind.__name__, (kind, Dataless), {})


class Run(Values, TorchDispatchMode):
    """Runs operators on tensors without data, and keeps the log of their storages."""

    def __init__(self, rules: kernels.Rules, libraries: tuple[str, ...]) -> None:
        Values.__init__(self)
        TorchDispatchMode.__init__(self)
        self.log = Log()
        self.rules = rules
        self.in_kernel = False
        self.stand_ins: dict[Any, Callable[..., Any]] = {}
        self.special: dict[Any, Callable[[Run, Any, Any, Any], Any]] = {}
        self._libraries = libraries
        self._storages: dict[int, tuple[Any, int, int]] = {}
        self._places: dict[int, tuple[str, int, str]] = {}
        self._forms: dict[Any, tuple[bool, list[Any]] | None] = {}

    # Storages.

    def hold(self, tensor: Any, operator: str = "") -> None:
        """Writes down the storage of a tensor, unless it is known."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._storages.get(key)
        if known is not None:
            if known[1] == size:
                return
            self.log.free(known[2])
        if size == 0 and known is None:
            return
        number = self.log.take(size, self.place(), operator)
        self._storages[key] = (weakref.ref(storage, lambda _: self._gone(key)), size, number)

    def _gone(self, key: int) -> None:
        known = self._storages.pop(key, None)
        if known is not None:
            self.log.free(known[2])

    def briefly(self, *sizes: int, operator: str = "") -> None:
        """Memory of a kernel's own, which it frees when it is done."""
        place = self.place()
        taken = [self.log.take(int(size), place, operator) for size in sizes if size > 0]
        for number in taken:
            self.log.free(number)

    def for_good(self, size: int, operator: str) -> None:
        """Memory that a library keeps."""
        self.log.take(size, (operator, 0, ""), operator)

    def place(self) -> tuple[str, int, str]:
        """The innermost line of the program's own; in a backward pass, that of the forward one."""
        node = torch._C._current_autograd_node()
        if node is not None:
            known = self._places.get(node._sequence_nr())
            if known is not None:
                return known
        frame: Any = sys._getframe(1)
        first = None
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(self._libraries):
                found = (name, frame.f_lineno, frame.f_code.co_name)
                if node is None:
                    self._places[torch.autograd._get_sequence_nr()] = found
                return found
            first, frame = first or name, frame.f_back
        return (first or "", 0, "")

    # Kernels.

    @contextmanager
    def inside_kernel(self) -> Iterator[None]:
        """Within it tensors are what they are made of, meta tensors, and operators those of meta."""
        before, self.in_kernel = self.in_kernel, True
        meta = torch._C._meta_in_tls_dispatch_include()
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                yield
            finally:
                torch._C._set_meta_in_tls_dispatch_include(meta)
                self.in_kernel = before

    def wrapped(self, out: Any, func: Any, values: Any = None) -> Any:
        """What a kernel gave, as tensors without data whose storages are in the log."""
        flat, form = tree_flatten(out)
        known = tree_leaves(values) if values is not None else []
        if len(known) != len(flat):
            known = [None] * len(flat)
        name = func.name()
        if name in kernels.LAST_FIRST:
            for tensor in reversed(flat):
                self.hold(tensor, name)
        made = []
        for tensor, value in zip(flat, known):
            if isinstance(tensor, torch.Tensor):
                if not isinstance(tensor, Dataless):
                    tensor = Dataless(tensor, self, value)
                elif value is not None:
                    tensor._value = value
                self.hold(tensor, name)
            made.append(tensor)
        return torch.utils._pytree.tree_unflatten(made, form)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        here = any(tensor.is_meta or isinstance(tensor, Dataless) for tensor in tensors)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type in ("cuda", "meta"):
            kwargs["device"] = META
            here = True
        elif here and device is not None:
            return self.copied_to_host(func, args, kwargs)
        if not here:
            return func(*args, **kwargs)
        for tensor in tensors:
            if tensor.is_meta and not isinstance(tensor, Dataless):
                self.hold(tensor, "input")
        if func in self.stand_ins:
            with self:
                return self.stand_ins[func](self, *args, **kwargs)
        if func not in self.special and composite(func):
            # In inference mode these come whole.
            with self:
                return func.decompose(*args, **kwargs)
        special = self.special.get(func)
        if special is not None:
            answer = special(self, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        return self.run_kernel(func, args, kwargs)

    def run_kernel(self, func: Any, args: Any, kwargs: Any) -> Any:
        values = self.values(func, args, kwargs)
        self.rules.before(self, func, args, kwargs)
        try:
            out = self.form(func, args, kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(values, (bool, int, float)):
                return values
            if values is not None and not func._schema.is_mutable:
                with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                    out = tree_map(lambda value: torch.empty_like(value, device=META), values)
            elif isinstance(error, NotImplementedError):
                return self.decomposed(func, args, kwargs)
            else:
                raise
        if func is aten.add.Tensor and self.accumulates(args, out):
            self.take_over(args[0], out)
        made = self.wrapped(out, func, values)
        self.rules.after(self, func, args, kwargs, made)
        return made

    def form(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives, as meta tensors. Layers repeat, so forms of new tensors are kept."""
        key = _key(func, args, kwargs)
        known = self._forms.get(key) if key is not None else None
        with self.inside_kernel():
            if known is not None:
                made = [torch.empty_strided(size, stride, dtype=dtype, device=META) for size, stride, dtype in known[1]]
                return tuple(made) if known[0] else made[0]
            out = func(*args, **kwargs)
            if key is not None:
                self._forms[key] = _forms(out, args)
            return out

    def accumulates(self, args: Any, out: Any) -> bool:
        """Whether autograd adds a gradient to one that nobody else has: it does so in place, but for
        tensors like these makes a new one."""
        if torch.is_grad_enabled() or torch._C._current_autograd_node() is None or not isinstance(args[0], Dataless):
            return False
        first, storage = args[0], args[0].untyped_storage()
        same = first.shape == out.shape and first.dtype == out.dtype
        # The tensor itself, and this look at its storage.
        alone = torch._C._storage_Use_Count(storage._cdata) <= 2
        return bool(alone and same and storage.nbytes() == out.untyped_storage().nbytes())

    def take_over(self, old: Any, new: Any) -> None:
        """The new tensor has the old one's memory."""
        known = self._storages.pop(old.untyped_storage()._cdata, None)
        if known is not None:
            storage = new.untyped_storage()
            key = storage._cdata
            self._storages[key] = (weakref.ref(storage, lambda _: self._gone(key)), known[1], known[2])

    def decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """By simpler operators, where there is none without data; its parts are in the log."""
        with self:
            table = torch._decomp.decomposition_table
            if func in table:
                return table[func](*args, **kwargs)
            out = func.decompose(*args, **kwargs)
        if out is NotImplemented:
            raise NotImplementedError(f"PyTorch has no {func} for tensors without data")
        return out


@functools.cache
def _makes_new(func: Any) -> bool:
    schema = func._schema
    return not schema.is_mutable and all(returned.alias_info is None for returned in schema.returns)


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    """What the form of a result depends on; none where it may be a view, or is not known to be plain."""
    if func.namespace != "aten" or not _makes_new(func):
        return None
    parts: list[Any] = [func]
    for given in (*args, *(item for pair in kwargs.items() for item in pair)):
        if isinstance(given, torch.Tensor):
            parts.append((given.shape, given.stride(), given.dtype, given.storage_offset() == 0, type(given) is torch.Tensor))
        elif isinstance(given, (list, tuple)):
            if any(isinstance(one, (torch.Tensor, list, tuple)) for one in given):
                return None
            parts += [tuple(map(type, given)), tuple(given)]
        else:
            parts += [type(given), given]
    try:
        hash(key := tuple(parts))
    except TypeError:
        return None
    return key


def _forms(out: Any, args: Any) -> tuple[bool, list[Any]] | None:
    """How to make such tensors again, where all of them are new."""
    tensors = list(out) if isinstance(out, (list, tuple)) else [out]
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors) or isinstance(out, list):
        return None
    given = {leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        size = 0 if tensor.numel() == 0 else span * tensor.element_size()
        if storage._cdata in given or storage.nbytes() != size or isinstance(tensor, Dataless):
            return None
    return isinstance(out, tuple), [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


@functools.cache
def composite(func: Any) -> bool:
    """Whether an operator is made of others for every device."""
    name, known = func.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    own = known(name, "CPU") or known(name, "CUDA") or known(name, "CompositeExplicitAutograd")
    return bool(known(name, "CompositeImplicitAutograd")) and not own


