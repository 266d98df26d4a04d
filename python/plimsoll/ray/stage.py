"""A stage of Ray Data whose actors stay within their memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .._plimsoll import parse_bytes
from ..adaptive import MOST_ITEMS, AdaptiveWork
from .sizes import MemorySizes, read_memory, share_of_node
from .worker import py_executable, require_limit

#: Rows that Ray hands to a stage on a GPU, where none are named.
GPU_ROWS = 256

#: Rows of a batch: columns of as many values each.
Batch = dict[str, np.ndarray[Any, Any]]


class Stage(Mapping[str, Any]):
    """A function of batches for Ray Data's `map_batches`, in actors that stay within their memory.

    The stage is a mapping of arguments: `dataset.map_batches(**Stage(fn, limit="4GiB"))`.

    `fn` takes a batch (a dict of arrays, as `map_batches` gives it) and returns one, or is a class
    of such objects, made once in each actor with the arguments in `args`.

    Each actor has a limit of GPU memory of its own: `limit`, or `num_gpus` of the size of the GPU
    (0.5 is half of it). The guard enforces it on everything in the actor's process, so a batch that
    is too large fails in this actor and not in the one beside it. An actor that cannot be limited
    raises `plimsoll.Unavailable`.

    What Ray hands over (`batch_size` rows: a block, or 256 on a GPU, unless it is given) is cut into batches that fit: 1, 2, 4 … rows
    as long as free memory allows, from what the batches before were seen to need; or at once from
    `bytes_per_row`. Where one runs out of memory it is tried again in halves. A row that does not
    fit alone raises `plimsoll.ItemDoesNotFit`.

    `workers` is a number of actors, or the least and the most of them; other options go to
    `map_batches`.

    >>> from plimsoll.ray import Stage
    >>> stage = Stage(lambda batch: batch, limit="4GiB", num_gpus=0.5, workers=2)
    >>> sorted(stage)[:3], stage["num_gpus"]
    (['batch_format', 'batch_size', 'compute'], 0.5)
    """

    def __init__(
        self,
        fn: Callable[[Batch], Batch] | type,
        limit: int | str | None = None,
        *,
        num_gpus: float = 0,
        num_cpus: float | None = None,
        workers: int | tuple[int, int] = 1,
        args: tuple[Any, ...] = (),
        batch_size: int | None = None,
        max_rows: int = MOST_ITEMS,
        bytes_per_row: int | None = None,
        device: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        from ray.data import ActorPoolStrategy

        if not callable(fn):
            raise TypeError(f"fn is {fn!r}; give a function of a batch, or a class of such objects")
        limited = limit_text(limit, num_gpus)
        sizes = {"size": workers} if isinstance(workers, int) else dict(zip(("min_size", "max_size"), workers, strict=True))
        self._arguments: dict[str, Any] = {
            "fn": StageActor,
            "fn_constructor_args": (fn, args, limited is not None),
            "fn_constructor_kwargs": {
                "device": device or ("cuda:0" if num_gpus else "cpu"),
                "max_rows": max_rows,
                "bytes_per_row": bytes_per_row,
                "threads": max(1, int(num_cpus or 1)),
            },
            "compute": ActorPoolStrategy(**sizes),
            # Ray wants a number for GPUs, and gathers blocks until it has so many rows.
            "batch_size": GPU_ROWS if num_gpus and batch_size is None else batch_size,
            "batch_format": "numpy",
            "num_gpus": num_gpus,
            **options,
        }
        # Ray advises against both for one stage, so there is a processor by itself only without a GPU.
        if num_cpus is not None or not num_gpus:
            self._arguments["num_cpus"] = 1 if num_cpus is None else num_cpus
        if environment := limited_runtime_env(limited, runtime_env):
            self._arguments["runtime_env"] = environment

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)


def limit_text(limit: int | str | None, num_gpus: float) -> str | None:
    """A limit as the worker takes it: bytes, a share of the GPU, or none on the host.

    >>> from plimsoll.ray.stage import limit_text
    >>> limit_text("1KiB", 0.5), limit_text(None, 0.5), limit_text(None, 0)
    ('1024B', '0.5', None)
    """
    if num_gpus < 0:
        raise ValueError(f"num_gpus is {num_gpus}; give 0 or more")
    if limit is not None:
        return f"{parse_bytes(limit)}B"
    return f"{min(1.0, num_gpus):g}" if num_gpus else None


def limited_runtime_env(limited: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A runtime environment whose workers are limited."""
    environment = dict(given or {})
    if limited is not None:
        if "py_executable" in environment:
            raise ValueError("runtime_env has py_executable, by which a stage with a limit starts its workers")
        environment["py_executable"] = py_executable(limited)
    return environment


class StageActor:
    """What runs in an actor of a stage."""

    def __init__(
        self,
        fn: Callable[[Batch], Batch] | type,
        args: tuple[Any, ...],
        limited: bool,
        *,
        device: str,
        max_rows: int,
        bytes_per_row: int | None,
        threads: int,
    ) -> None:
        if limited:
            require_limit()
        use_threads(threads)
        self.fn: Callable[[Batch], Batch] = fn(*args) if isinstance(fn, type) else fn
        share = share_of_node()
        self.sizes = MemorySizes(max_rows, lambda: read_memory(device, share), bytes_per_row)

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        rows = len(next(iter(batch.values()), ()))
        work = AdaptiveWork(lambda chosen: self.some(batch, chosen), range(rows), self.sizes)
        for made in work.results(False):
            if made is not None:
                yield made

    def some(self, batch: Batch, chosen: list[int]) -> list[Batch | None]:
        """The result of some rows, beside as many blanks as make one for each row."""
        part = {name: column[chosen[0] : chosen[-1] + 1] for name, column in batch.items()}
        return [self.fn(part), *[None] * (len(chosen) - 1)]


def use_threads(count: int) -> None:
    """Makes the library use so many threads in this process, which must not have used it before."""
    os.environ["RAYON_NUM_THREADS"] = str(count)
