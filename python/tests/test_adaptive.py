"""`adaptive_map` against functions that run out of memory by a rule."""

from __future__ import annotations

import itertools
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plimsoll
from plimsoll.adaptive import ItemDoesNotFit, adaptive_map, is_out_of_memory

Sizes = st.one_of(st.just("auto"), st.integers(1, 40))


class Recorder:
    """Doubles numbers; fails where the sum of a batch's sizes passes what there is."""

    def __init__(self, capacity: Callable[[int], int], error: type[BaseException] = MemoryError) -> None:
        self.capacity = capacity
        self.error = error
        self.calls = 0
        self.done: list[int] = []

    def __call__(self, batch: list[tuple[int, int]]) -> list[int]:
        self.calls += 1
        if sum(size for _, size in batch) > self.capacity(self.calls):
            batch.clear()  # a function may do what it likes with its list
            raise self.error("out of memory")
        self.done += [number for number, _ in batch]
        return [2 * number for number, _ in batch]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10), max_size=200),
    capacities=st.lists(st.integers(10, 100), min_size=1, max_size=20),
    batch=Sizes,
    known=st.booleans(),
)
def test_whatever_fails_nothing_is_lost_or_repeated(
    sizes: list[int], capacities: list[int], batch: int, known: bool
) -> None:
    fn = Recorder(lambda call: capacities[call % len(capacities)])
    items = list(enumerate(sizes))
    results = list(adaptive_map(fn, items if known else iter(items), batch=batch))
    assert results == [2 * number for number in range(len(sizes))]
    assert fn.done == list(range(len(sizes)))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=100), batch=Sizes)
def test_an_item_that_does_not_fit_is_named_after_all_before_it(sizes: list[int], batch: int) -> None:
    fn = Recorder(lambda call: 10)
    results: list[int] = []
    too_large = [index for index, size in enumerate(sizes) if size > 10]
    try:
        results.extend(adaptive_map(fn, enumerate(sizes), batch=batch))
        assert not too_large
    except ItemDoesNotFit as error:
        assert error.index == too_large[0]
        assert error.item == (error.index, sizes[error.index])
        assert len(results) == error.index
        assert str(error).startswith(f"item {error.index} (({error.index}, ")
        assert isinstance(error, plimsoll.OutOfMemory) and isinstance(error.__cause__, MemoryError)


def test_results_come_before_later_items_are_read() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    results = adaptive_map(lambda batch: batch, numbers(), batch=4)
    assert [next(results) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert read == list(range(8))


def test_an_error_of_the_items_comes_after_what_was_read() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise OSError("the disk is gone")

    results: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        results.extend(adaptive_map(lambda batch: batch, numbers(), batch=16))
    assert results == [0, 1, 2, 3, 4]


def test_only_the_failed_batch_is_halved_and_sizes_grow_back() -> None:
    counts: list[int] = []

    def fn(batch: list[int]) -> list[int]:
        counts.append(len(batch))
        if len(counts) == 2:
            raise MemoryError
        return batch

    assert list(adaptive_map(fn, range(64), batch=8)) == list(range(64))
    assert counts == [8, 8, 4, 4, 4, 4, 8, 8, 8, 8, 8]


def test_auto_finds_the_fastest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    counts: list[int] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def fn(batch: list[int]) -> list[int]:
        nonlocal now
        now += 0.010 + 0.001 * len(batch) * (1 if len(batch) <= 16 else 3)
        counts.append(len(batch))
        return batch

    assert list(adaptive_map(fn, range(5000))) == list(range(5000))
    assert counts[0] == 1
    at_best = sum(count for count in counts if count == 16)
    assert at_best > 4000, counts


def test_auto_does_not_try_what_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 1,000 bytes, of which 100 are held and an item takes 20: 45 fit."""
    now, peak, failures = 0.0, 150, 0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats_as_nested_dict=lambda: {
            "allocated_bytes": {"all": {"peak": peak, "current": 100}},
            "reserved_bytes": {"all": {"current": peak}},
        },
        mem_get_info=lambda: (1000 - peak, 1000),
        empty_cache=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    counts: list[int] = []

    def fn(batch: list[int]) -> list[int]:
        nonlocal now, peak, failures
        now += 0.010 + 0.001 * len(batch)
        needed = 100 + 20 * len(batch)
        if needed > 1000:
            failures += 1
            raise MemoryError
        peak = max(peak, needed)
        counts.append(len(batch))
        return batch

    results = []
    for result in adaptive_map(fn, range(3000)):
        results.append(result)
        peak = max(peak, 200)
    assert results == list(range(3000))
    # 48 would be the next size. A batch of one needs less than PyTorch held before: nothing is known.
    # What is held between batches says nothing of them.
    assert max(counts) == 32 and failures == 0, counts


def test_what_a_failed_batch_held_is_not_taken_for_the_next_ones_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, peak = 0.0, 100
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats_as_nested_dict=lambda: {
            "allocated_bytes": {"all": {"peak": peak, "current": 100}},
            "reserved_bytes": {"all": {"current": 100}},
        },
        mem_get_info=lambda: (900, 1000),
        empty_cache=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    counts: list[int] = []

    def fn(batch: list[int]) -> list[int]:
        nonlocal now, peak
        now += 0.010 + 0.001 * len(batch)
        if len(batch) > 60:
            peak = 1000
            raise MemoryError
        counts.append(len(batch))
        return batch

    assert list(adaptive_map(fn, range(2000))) == list(range(2000))
    assert max(counts) == 48, counts


@pytest.mark.parametrize("error", [plimsoll.NeverFits, ValueError, KeyboardInterrupt])
def test_other_errors_are_raised_at_once(error: type[BaseException]) -> None:
    fn = Recorder(lambda call: 0, error)
    with pytest.raises(error, match="out of memory"):
        list(adaptive_map(fn, [(0, 1), (1, 1)], batch=2))
    assert fn.calls == 1


def test_a_size_of_one_is_tried_again_once_caches_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = []
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            is_initialized=lambda: True, empty_cache=lambda: emptied.append("torch")
        )
    )
    pool = types.SimpleNamespace(free_all_blocks=lambda: emptied.append("cupy"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    cupy = types.SimpleNamespace(get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    fn = Recorder(lambda call: 0 if call == 1 else 1)
    assert list(adaptive_map(fn, [(7, 1)])) == [14]
    assert emptied == ["torch", "cupy"]


class Held:
    """Stands for a tensor of a batch."""


@pytest.mark.parametrize("module", ["torch", "cupy.cuda.memory", "jax.errors"])
def test_caches_are_emptied_when_the_failed_batch_is_gone(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The framework that failed had emptied its own while the batch still held parts of it."""
    emptied: list[tuple[str, bool]] = []
    tensors: list[weakref.ref[Held]] = []

    def emptying(name: str) -> None:
        emptied.append((name, any(tensor() is not None for tensor in tensors)))

    cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptying("torch"))
    pool = types.SimpleNamespace(free_all_blocks=lambda: emptying("cupy"))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    cupy = types.SimpleNamespace(get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def fn(batch: list[int]) -> list[int]:
        held = Held()
        tensors.append(weakref.ref(held))
        if len(batch) > 1:
            raise made(module, "OutOfMemoryError", MemoryError)
        return batch

    assert list(adaptive_map(fn, [7, 8], batch=2)) == [7, 8]
    assert emptied == [("torch", False), ("cupy", False)]


def made(module: str, name: str, *bases: type[BaseException]) -> type[BaseException]:
    return type(name, bases or (RuntimeError,), {"__module__": module})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (made("torch", "OutOfMemoryError")("CUDA out of memory. Tried …"), True),
        (made("cupy.cuda.memory", "OutOfMemoryError")("Out of memory allocating …"), True),
        (made("jaxlib._jax", "XlaRuntimeError")("RESOURCE_EXHAUSTED: Out of memory"), True),
        (made("jaxlib._jax", "XlaRuntimeError")("INTERNAL: something else"), False),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError(), True),
        (plimsoll.OutOfMemory("full"), True),
        (plimsoll.NeverFits("too large"), False),
        (OSError("out of memory"), False),
    ],
)
def test_out_of_memory_errors_are_told_apart(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_results_of_another_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 results for 4 items"):
        list(adaptive_map(lambda batch: batch[1:], range(8), batch=4))
    with pytest.raises(TypeError, match="fn returned int"):
        list(adaptive_map(len, range(8), batch=4))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "many"])
def test_bad_sizes_are_named_at_once(batch: int) -> None:
    with pytest.raises((TypeError, ValueError), match="batch is "):
        adaptive_map(lambda items: items, range(3), batch=batch)


def test_progress_counts_items(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    assert len(list(adaptive_map(lambda items: items, range(30), batch=4, progress=True))) == 30
    assert "30/30" in capsys.readouterr().err
    list(adaptive_map(lambda items: items, range(30), batch=4))
    assert capsys.readouterr().err == "", "no bar where nobody sees it"
