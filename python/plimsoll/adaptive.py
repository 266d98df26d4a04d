"""Work in batches that goes on when memory runs out."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import operator
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from ._plimsoll import BatchSize
from .errors import NeverFits, OutOfMemory

Item = TypeVar("Item")
Result = TypeVar("Result")

#: `batch="auto"` makes no batch larger than this.
MOST_ITEMS = 65_536


class BatchSizes(Protocol):
    """Says how many items the next batch has, and is told how the last one ended."""

    @property
    def size(self) -> int: ...
    def succeeded(self, count: int, seconds: float) -> None: ...
    def failed(self, count: int, seconds: float) -> None: ...


class ItemDoesNotFit(OutOfMemory):
    """One item alone does not fit: `index` says which of `items`, `item` is it.

    Every item before it is done, and its result was yielded.
    """

    def __init__(self, message: str, index: int, item: object) -> None:
        super().__init__(message, index, item)
        self.index = index
        self.item = item

    def __str__(self) -> str:
        return str(self.args[0])


def adaptive_map(
    fn: Callable[[list[Item]], Sequence[Result]],
    items: Iterable[Item],
    batch: int | Literal["auto"] = "auto",
    *,
    max_batch: int = MOST_ITEMS,
    progress: bool | None = None,
) -> Iterator[Result]:
    """Applies `fn` to lists of items and yields the result of each item, in order.

    `fn` takes a list of items and returns as many results: a list, a tuple, an array or a
    tensor. Where it runs out of memory (PyTorch, CuPy, JAX, `MemoryError`,
    `plimsoll.OutOfMemory`), the same items are tried again in halves; what was done is not
    repeated. `plimsoll.NeverFits` and every other error are raised at once.

    `batch` is the most items of a list. A smaller size grows back to it after a few successes.
    With `"auto"` sizes up to `max_batch` are timed while the work runs, most lists get the
    fastest size, and a few larger and smaller ones are tried, in case that changes; with PyTorch
    on a GPU, larger ones where they should fit by what batches have needed. What is timed is `fn`
    alone, so let it wait for its result, for example by `.cpu()`.

    Items are read when they are needed, so `items` may be a generator without an end. An error
    that it raises is raised after the items that it gave before are done.

    Progress is shown where tqdm is installed and somebody can see it (a terminal, a notebook);
    `progress=False` shows none, `progress=True` asks for it anywhere.

    One item that does not fit alone raises `ItemDoesNotFit`, which names it.

    >>> import plimsoll
    >>> def double(numbers):
    ...     if len(numbers) > 3:
    ...         raise MemoryError("more than three")
    ...     return [2 * number for number in numbers]
    >>> list(plimsoll.adaptive_map(double, range(10), batch=8))
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; give a function of a list of items")
    if batch == "auto":
        size = BatchSize.searched(_positive("max_batch", max_batch))
        fn = _telling_room(fn, size)
    else:
        size = BatchSize.given(_positive("batch", batch))
    return AdaptiveWork(fn, items, size).results(progress)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full now, and a smaller request may be granted.

    Knows PyTorch's, CuPy's and JAX's errors without importing them, and Python's.

    >>> from plimsoll.adaptive import is_out_of_memory
    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("out of memory"))
    (True, False)
    """
    if isinstance(error, NeverFits):
        return False
    if isinstance(error, MemoryError):
        return True
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if kinds & _OUT_OF_MEMORY:
        return True
    text = str(error)
    return any(kind in kinds and words in text for kind, words in _BY_TEXT)


#: Errors of frameworks that mean nothing else. CuPy's own is not a `MemoryError` in all versions.
_OUT_OF_MEMORY = {
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "cupy.cuda.memory.OutOfMemoryError",
}

#: Errors that mean other things too, with what they say when memory is full.
_BY_TEXT = (
    ("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED"),
    ("jaxlib.xla_extension.XlaRuntimeError", "RESOURCE_EXHAUSTED"),
    ("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED"),
    # cuBLAS, cuDNN and the driver beneath PyTorch, which ask for memory of their own.
    ("builtins.RuntimeError", "CUDA out of memory"),
    ("builtins.RuntimeError", "CUDA error: out of memory"),
    ("builtins.RuntimeError", "CUBLAS_STATUS_ALLOC_FAILED"),
    ("builtins.RuntimeError", "CUDNN_STATUS_ALLOC_FAILED"),
    # PyTorch on a CPU.
    ("builtins.RuntimeError", "DefaultCPUAllocator: can't allocate memory"),
    ("builtins.RuntimeError", "DefaultCPUAllocator: not enough memory"),
    ("cupy_backends.cuda.api.runtime.CUDARuntimeError", "cudaErrorMemoryAllocation"),
    ("cupy_backends.cuda.api.driver.CUDADriverError", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("cupy_backends.cuda.libs.cublas.CUBLASError", "CUBLAS_STATUS_ALLOC_FAILED"),
)


def _telling_room(
    fn: Callable[[list[Item]], Sequence[Result]], size: BatchSize
) -> Callable[[list[Item]], Sequence[Result]]:
    """`fn`, which also tells the search how many items fit, where a call shows it.

    PyTorch counts the most that its current GPU has held. A call that raises this count shows what
    it needed. The count itself is left as it is.
    """

    def watched(batch: list[Item]) -> Sequence[Result]:
        count, (before, _, _) = len(batch), _torch_memory()
        results = fn(batch)
        peak, held, reserved = _torch_memory()
        if peak > max(before, held):
            free = sys.modules["torch"].cuda.mem_get_info()[0] + reserved - held
            size.set_room(min(2**63, count * max(0, free) // (peak - held)))
        return results

    return watched


def _torch_memory() -> tuple[int, int, int]:
    """What PyTorch counts of its current GPU: the most that tensors held, what they hold, and what it
    has reserved; 0 where it uses none.

    The nested form takes two thirds of the time of `memory_stats`, which makes a flat one of it.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "memory_stats_as_nested_dict") or not cuda.is_initialized():
        return 0, 0, 0
    stats = cuda.memory_stats_as_nested_dict()
    allocated = stats["allocated_bytes"]["all"]
    return allocated["peak"], allocated["current"], stats["reserved_bytes"]["all"]["current"]


class AdaptiveWork(Generic[Item, Result]):
    """The items that were read and not done, and the size of the next batch."""

    def __init__(
        self, fn: Callable[[list[Item]], Sequence[Result]], items: Iterable[Item], size: BatchSizes
    ) -> None:
        self.fn = fn
        self.total = operator.length_hint(items, 0) or None
        self.unread = iter(items)
        self.failed_to_read: Exception | None = None
        self.waiting: deque[Item] = deque()
        self.size = size
        self.done = 0
        self.tried_alone = False

    def results(self, progress: bool | None) -> Iterator[Result]:
        bar = _bar(self.total, progress)
        try:
            while batch := self.next_batch():
                results = self.attempt(batch)
                if results is None:
                    continue
                for _ in batch:
                    self.waiting.popleft()
                self.done += len(batch)
                if bar is not None:
                    bar.update(len(batch))
                yield from results
                # The next batch needs the memory.
                del batch, results
            if self.failed_to_read is not None:
                raise self.failed_to_read
        finally:
            if bar is not None:
                bar.close()

    def skip(self) -> Item:
        """Gives up the item that does not fit; `results` goes on with those after it."""
        self.tried_alone = False
        self.done += 1
        return self.waiting.popleft()

    def next_batch(self) -> list[Item]:
        size = self.size.size
        try:
            self.waiting.extend(itertools.islice(self.unread, max(0, size - len(self.waiting))))
        except Exception as error:
            self.failed_to_read, self.unread = error, iter(())
        return list(itertools.islice(self.waiting, size))

    def attempt(self, batch: list[Item]) -> Sequence[Result] | None:
        """The batch's results, or nothing where a smaller one is to be tried."""
        count, start = len(batch), time.perf_counter()
        try:
            # A copy: a function that changes its list must not change what is tried again.
            results: Sequence[Result] = _finished(self.fn(list(batch)))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self.tried_alone:
                raise self.too_large(batch[0], error) from error
        else:
            self.check(results, count)
            self.tried_alone = False
            self.size.succeeded(count, time.perf_counter() - start)
            return results
        # Here the error is gone, and with it the frames that kept what was allocated. One item is
        # tried once more, when everything has been returned that is only cached.
        self.tried_alone = count == 1
        _release(thoroughly=self.tried_alone)
        self.size.failed(count, time.perf_counter() - start)
        return None

    def too_large(self, item: Item, error: BaseException) -> ItemDoesNotFit:
        shape = getattr(item, "shape", None)
        shown = _short(repr(item)) if shape is None else f"{type(item).__name__}, shape {tuple(shape)}"
        done = f"items 0..{self.done} were done before" if self.done else "nothing was done before"
        why = _short(str(error) or type(error).__name__, 300)
        message = f"item {self.done} ({shown}) does not fit even alone: {why}; {done}"
        return ItemDoesNotFit(message, self.done, item)

    def check(self, results: Sequence[Result], count: int) -> None:
        try:
            got = len(results)
        except TypeError:
            kind = type(results).__name__
            raise TypeError(
                f"fn returned {kind} for a list of {count} items; it must return one result for "
                "each, as a list, a tuple, an array or a tensor"
            ) from None
        if got != count:
            raise ValueError(f"fn returned {got} results for {count} items; it must return one for each")


def _finished(results: Any) -> Any:
    """JAX reports that memory was full when the result is waited for, so that is done here."""
    wait = getattr(sys.modules.get("jax"), "block_until_ready", None)
    return results if wait is None else wait(results)


def _release(*, thoroughly: bool) -> None:
    """Returns what frameworks cache and do not use: what one of them keeps is missing to the others.

    The one that failed has done so before it failed, but then the batch still held parts of what was
    cached, and the next batch would find the rest in pieces. Only the youngest objects are looked
    through for cycles that keep memory, as all of them take a second in a large program; and
    everything is, where one item alone has failed.
    """
    gc.collect(2 if thoroughly else 1)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()


def _bar(total: int | None, progress: bool | None) -> Any:
    in_notebook = _in_notebook()
    seen = in_notebook or (sys.stderr is not None and sys.stderr.isatty())
    if progress is False or (progress is None and not seen):
        return None
    try:
        # The notebook's own bar warns where its widgets are not installed; the plain one does not.
        own = in_notebook and importlib.util.find_spec("ipywidgets") is not None
        tqdm = importlib.import_module("tqdm.notebook" if own else "tqdm").tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="item")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _positive(name: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f'{name} is {value!r}; give a number of items or, for batch, "auto"') from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} is {value!r}; give 1 or more")
    return min(number, 2**63)


def _short(text: str, most: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
