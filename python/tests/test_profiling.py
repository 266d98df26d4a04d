"""Recording and profiling PyTorch, with a PyTorch that is simulated: tests have no GPU."""

from __future__ import annotations

import gzip
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll.torch import record

MIB = 1 << 20


class FakeTorch(types.ModuleType):
    """As much of PyTorch as is used: blocks are allocated by hand, and recorded as PyTorch does."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.__file__ = "/site/torch/__init__.py"
        self.live: dict[int, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] | None = None
        self.peak = 0
        self.time_us = 1000
        self.version = types.SimpleNamespace(cuda="13.0")
        self._C = types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: self.history is not None)
        memory = types.SimpleNamespace(
            _snapshot=self.snapshot, _record_memory_history=self.record_memory_history
        )
        self.cuda = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            init=lambda: None,
            current_device=lambda: 0,
            device_count=lambda: 1,
            memory=memory,
            memory_stats=lambda device: {
                "allocated_bytes.all.current": self.used(),
                "reserved_bytes.all.current": self.used() + 2 * MIB,
            },
            max_memory_allocated=lambda device: self.peak,
            reset_peak_memory_stats=self.reset,
            mem_get_info=lambda device: (1000 * MIB - self.used(), 1000 * MIB),
            get_device_properties=lambda device: types.SimpleNamespace(total_memory=1000 * MIB),
        )

    def used(self) -> int:
        return sum(block["size"] for block in self.live.values())

    def reset(self, device: int = 0) -> None:
        self.peak = self.used()

    def event(self, action: str, addr: int, size: int, line: int) -> dict[str, Any]:
        self.time_us += 10
        frames: list[dict[str, object]] = [
            {"filename": "/site/torch/nn/functional.py", "line": 1, "name": "linear"},
            {"filename": "train.py", "line": line, "name": "step"},
        ]
        return {
            "action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.time_us,
            "frames": frames if line else [],
        }  # fmt: skip

    def allocate(self, addr: int, size: int, line: int) -> None:
        event = self.event("alloc", addr, size, line)
        self.live[addr] = event
        self.peak = max(self.peak, self.used())
        if self.history is not None:
            self.history.append(event)

    def free(self, addr: int) -> None:
        block = self.live.pop(addr)
        for action in ("free_requested", "free_completed"):
            if self.history is not None:
                self.history.append(self.event(action, addr, block["size"], 0))

    def record_memory_history(self, enabled: str | None, **options: object) -> None:
        self.history = [] if enabled else None

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {"address": addr, "size": 2 * MIB, "requested_size": block["size"],
             "state": "active_allocated", "frames": []}
            for addr, block in self.live.items()
        ]  # fmt: skip
        segment = {"device": 0, "address": 0, "stream": 0, "blocks": blocks}
        return {"segments": [segment], "device_traces": [list(self.history or [])]}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def work(torch: FakeTorch) -> None:
    torch.allocate(1 << 32, 30 * MIB, line=10)
    torch.allocate(2 << 32, 20 * MIB, line=11)
    torch.free(1 << 32)
    torch.allocate(3 << 32, 5 * MIB, line=12)


def test_a_recording_is_replayed_and_names_the_lines(torch: FakeTorch, tmp_path: Path) -> None:
    torch.allocate(9 << 32, 7 * MIB, line=3)
    with record(tmp_path / "trace.pickle") as recording:
        torch.allocate(4 << 32, MIB, line=0)  # in a thread of C++
        work(torch)
    assert torch.history is None, "the recording has ended"
    assert recording.peak_bytes == 58 * MIB
    assert [(line.file, line.line, line.bytes // MIB) for line in recording.lines] == [
        ("train.py", 10, 30),
        ("train.py", 11, 20),
        ("allocated before the recording", 0, 7),
        ("no line of Python: the backward pass, or C++", 0, 1),
    ]
    assert "30.00 MiB  train.py:10 in step" in repr(recording)
    assert "<code>train.py:10 in step</code>" in recording._repr_html_()
    replayed = plimsoll.replay(tmp_path / "trace.pickle", passes=1)
    assert (replayed.peak_live_bytes, replayed.events) == (58 * MIB, 6)
    assert (replayed.never_freed_count, replayed.skipped_frees) == (4, 0)


def test_a_block_that_raises_is_recorded_too(torch: FakeTorch, tmp_path: Path) -> None:
    path = tmp_path / "trace.pickle.gz"
    with pytest.raises(MemoryError), record(path):
        work(torch)
        raise MemoryError
    with gzip.open(path) as file:
        assert len(pickle.load(file)["device_traces"][0]) == 5
    assert plimsoll.replay(path, passes=1).peak_live_bytes == 50 * MIB


def test_a_file_is_whole_or_not_there(
    torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.pickle"
    path.write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pickle, "dump", full)
    with pytest.raises(OSError, match="No space"), record(path):
        work(torch)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    assert torch.history is None


def test_two_recordings_at_once_are_refused(torch: FakeTorch, tmp_path: Path) -> None:
    with record(tmp_path / "a.pickle"), pytest.raises(RuntimeError, match="records its allocations already"):
        record(tmp_path / "b.pickle").__enter__()
    with pytest.raises(FileNotFoundError, match="no folder"):
        record(tmp_path / "none/b.pickle").__enter__()


def test_without_cuda_it_says_what_is_missing(
    torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.is_available = lambda: False
    with pytest.raises(plimsoll.Unavailable, match="sees no CUDA device"):
        record(tmp_path / "t.pickle").__enter__()
    with pytest.raises(plimsoll.Unavailable, match="PyTorch sees no CUDA device"):
        plimsoll.MemoryProfiler()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(plimsoll.Unavailable, match="pip install torch"):
        record(tmp_path / "t.pickle").__enter__()
    with pytest.raises(plimsoll.Unavailable, match="PyTorch is not imported"):
        plimsoll.MemoryProfiler.capture("x")


def test_a_profiler_follows_a_loop_and_draws_it(torch: FakeTorch, tmp_path: Path) -> None:
    with plimsoll.MemoryProfiler(interval_s=0.001) as profiler:
        for step in range(3):
            torch.allocate(step, 100 * MIB, line=step)
            profiler.capture(f"step {step}")
    assert [snapshot.allocated for snapshot in profiler.snapshots] == [n * 100 * MIB for n in (1, 2, 3)]
    assert profiler.get_peak_memory() == 300 * MIB
    assert "peak 300.00 MiB" in repr(profiler)
    page = profiler._repr_html_()
    assert "<polyline" in page and "step 0" in page and "peak 300.00 MiB, counted" in page
    assert "limit 0.9766 GiB" in page, "the device is near enough to be drawn"
    profiler.save(tmp_path / "memory.svg")
    assert (tmp_path / "memory.svg").read_text().startswith("<svg")
    with pytest.raises(ValueError, match="must end in .svg"):
        profiler.save(tmp_path / "memory.png")


def test_a_long_run_keeps_its_peak_in_few_samples(torch: FakeTorch) -> None:
    profiler = plimsoll.MemoryProfiler()
    for step in range(20_000):
        torch.live = {0: {"size": MIB * (500 if step == 7_777 else step % 7)}}
        profiler._sample()
    assert len(profiler._samples) <= 4096
    assert max(allocated or 0 for _, allocated, _ in profiler._samples) == 500 * MIB


def test_the_class_itself_takes_pictures(torch: FakeTorch, capsys: pytest.CaptureFixture[str]) -> None:
    profiler = plimsoll.MemoryProfiler
    baseline = profiler.capture("Baseline")
    profiler.reset_peak_memory()
    torch.allocate(1, 3 * MIB, line=1)
    torch.free(1)
    after = profiler.capture("After voxelization")
    profiler.print_summary([baseline, after])
    assert capsys.readouterr().out.endswith('Peak memory: 3.00 MiB (by "After voxelization")\n')
    assert profiler.get_peak_memory() == 3 * MIB and after.utilization == 0
    assert after.to_dict()["allocated"] == 0
