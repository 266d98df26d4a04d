"""Tensors of a CUDA device without data, and a run that writes down what they would take.

`Dataless` is a meta tensor that says it is on `cuda:0`. Autograd sees its meta device, so that
backward passes run on the calling thread and need neither a GPU nor a build with CUDA; operators
see the keys of CUDA, so that autocast and the choice of kernels go CUDA's way.

`Run` sees every operator below autograd. A storage that appears is an allocation, and its end is
a free. Small integer tensors have values besides, computed on the CPU: masks, positions, and which
expert gets a token decide what a program does next.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from . import kernels

#: What a tensor may have at most to keep its values: integers and truth values, and others.
MOST_INTEGERS, MOST_FLOATS = 1 << 21, 1 << 12

CUDA = torch.device("cuda", 0)
META = torch.device("meta")

aten = torch.ops.aten


@dataclass
class Block:
    """An allocation; `freed` is the number of the event that freed it."""

    size: int
    at: int
    place: tuple[str, int, str]
    operator: str
    freed: int | None = None


@dataclass
class Log:
    """What was allocated and freed, in order: the number of a block, negative minus one when freed;
    None where the program gave back its cache, and a mark where it began to count anew."""

    blocks: list[Block] = field(default_factory=list)
    events: list[int | None] = field(default_factory=list)
    reset_at: int = 0

    def take(self, size: int, place: tuple[str, int, str], operator: str) -> int:
        number = len(self.blocks)
        self.blocks.append(Block(size, len(self.events), place, operator))
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        block = self.blocks[number]
        if block.freed is None:
            block.freed = len(self.events)
            self.events.append(-1 - number)

    def give_back(self) -> None:
        self.events.append(None)

    def count_anew(self) -> None:
        self.reset_at = len(self.events)


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


class Run(TorchDispatchMode):
    """Runs operators on tensors without data, and keeps the log of their storages."""

    def __init__(self, rules: kernels.Rules, libraries: tuple[str, ...]) -> None:
        super().__init__()
        self.log = Log()
        self.rules = rules
        self.in_kernel = False
        self.unknown: Counter[str] = Counter()
        self.stand_ins: dict[Any, Callable[..., Any]] = {}
        self._libraries = libraries
        self._storages: dict[int, tuple[Any, int, int]] = {}
        self._places: dict[int, tuple[str, int, str]] = {}
        self._stale: dict[int, Any] = {}
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
        if composite(func):
            # In inference mode these come whole.
            with self:
                return func.decompose(*args, **kwargs)
        special = SPECIAL.get(func)
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

    # Values.

    def value(self, tensor: Any) -> Any:
        """A tensor's values on the CPU, where they are known."""
        if not isinstance(tensor, Dataless):
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
                    if isinstance(tensor, Dataless) and tensor._value is not None:
                        # Kept, so that no other storage gets its number.
                        storage = tensor._value.untyped_storage()
                        self._stale[storage._cdata] = storage
        out = kwargs.get("out")
        if isinstance(out, Dataless):
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
    return bool(known(name, "CompositeImplicitAutograd")) and not own and func not in SPECIAL


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

#: What would have other values on each call, or none.
UNKNOWN = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}

#: What makes more of its input than it was given.
EXPANDING = {aten.repeat.default, aten.one_hot.default}
