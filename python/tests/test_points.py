"""Voxels: the same bits as the command's, in chunks, from threads, forked and interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import plimsoll
from plimsoll import command

GRID, SIZE, ORIGIN = (8, 9, 10), (0.3, 0.2, 0.1), (-1.0, -0.9, -0.4)


def clouds(shape: tuple[int, ...], seed: int = 1) -> npt.NDArray[np.float32]:
    points = np.random.default_rng(seed).uniform(-1.2, 2.2, shape).astype(np.float32)
    points.reshape(-1)[:: 97] = np.nan
    points.reshape(-1)[:: 131] = np.inf
    return points


def of_command(points: npt.NDArray[np.float32], folder: Path, *words: str) -> npt.NDArray[Any]:
    np.save(folder / "in.npy", points)
    text = [",".join(map(str, three)) for three in (GRID, SIZE, ORIGIN)]
    flags = ["--grid", text[0], "--voxel-size", text[1], "--origin", text[2], "--backend", "host"]
    command.ask(["voxelize", folder / "in.npy", *flags, *words, "--out", folder / "out.npy"])
    made: npt.NDArray[Any] = np.load(folder / "out.npy")
    return made


@pytest.mark.parametrize("shape", [(500, 3), (3, 500, 3), (3, 500, 5)])
@pytest.mark.parametrize(
    ("mode", "dtype", "cells"),
    [
        ("occupancy", None, "f32"),
        ("occupancy", np.uint8, "u8"),
        ("occupancy", "bits", "bits"),
        ("count", None, "u32"),
        ("mean", None, "f32"),
        ("max", "float32", "f32"),
    ],
)
def test_the_bits_are_the_commands(
    shape: tuple[int, ...], mode: str, dtype: Any, cells: str, tmp_path: Path
) -> None:
    points = clouds(shape)
    if mode in ("mean", "max") and shape[-1] == 3:
        with pytest.raises(ValueError):
            plimsoll.voxelize(points, GRID, SIZE, ORIGIN, mode=mode, dtype=dtype)
        return
    ours = plimsoll.voxelize(points, GRID, SIZE, ORIGIN, mode=mode, dtype=dtype)
    theirs = of_command(points, tmp_path, "--mode", mode, "--dtype", cells)
    assert ours.dtype == theirs.dtype
    assert ours.tobytes() == theirs.tobytes()
    assert cells == "bits" or ours.shape == theirs.shape


def test_chunks_do_not_show_in_the_result() -> None:
    points = clouds((7, 300, 3))
    whole = plimsoll.voxelize(points, GRID, SIZE, ORIGIN)
    assert np.array_equal(plimsoll.voxelize_large_batch(points, GRID, SIZE, ORIGIN, chunk_size=2), whole)
    parts = list(plimsoll.voxelize_chunked(points, GRID, SIZE, ORIGIN, chunk_size=3))
    assert [len(part) for part in parts] == [3, 3, 1] and np.array_equal(np.concatenate(parts), whole)
    parts = plimsoll.chunk_and_process(points, *GRID, SIZE, ORIGIN)
    assert np.array_equal(np.concatenate(parts), whole)
    tight = plimsoll.voxelize(points, GRID, SIZE, ORIGIN, limit="24KiB")
    assert np.array_equal(tight, whole)


def test_clouds_of_different_length_and_other_types() -> None:
    points = clouds((2, 300, 3))
    ragged = [points[0], points[1][:100]]
    made = plimsoll.voxelize(ragged, GRID, SIZE, ORIGIN)
    assert np.array_equal(made[1], plimsoll.voxelize(points[1][:100], GRID, SIZE, ORIGIN))
    turned = np.asfortranarray(points.astype(np.float64))
    assert np.array_equal(plimsoll.voxelize(turned, GRID, SIZE, ORIGIN), plimsoll.voxelize(points, GRID, SIZE, ORIGIN))
    empty = plimsoll.voxelize(np.empty((0, 3), np.float32), GRID, SIZE)
    assert empty.shape == GRID and empty.sum() == 0


def test_a_result_goes_where_it_is_wanted() -> None:
    points, out = clouds((100, 3)), np.full(GRID, 7, np.float32)
    assert plimsoll.voxelize(points, GRID, SIZE, ORIGIN, out=out) is out
    assert set(np.unique(out)) == {0.0, 1.0}
    for wrong in (np.empty((1, 2, 3), np.float32), np.empty(GRID, np.uint8), np.empty(GRID, np.float32, order="F")):
        with pytest.raises(ValueError, match="out must be"):
            plimsoll.voxelize(points, GRID, SIZE, ORIGIN, out=wrong)


def test_what_is_wrong_is_said() -> None:
    points = clouds((10, 3))
    wrongs: list[tuple[Callable[[], Any], type[Exception]]] = [
        (lambda: plimsoll.voxelize(points[:, :2], GRID, SIZE), ValueError),
        (lambda: plimsoll.voxelize(points[0], GRID, SIZE), ValueError),
        (lambda: plimsoll.voxelize(points, (0, 1, 1), SIZE), ValueError),
        (lambda: plimsoll.voxelize(points, GRID, -1.0), ValueError),
        (lambda: plimsoll.voxelize(points, GRID, SIZE, mode="median"), ValueError),
        (lambda: plimsoll.voxelize(points, GRID, SIZE, dtype="int64"), ValueError),
        (lambda: plimsoll.voxelize("points", GRID, SIZE), TypeError),
        (lambda: plimsoll.voxelize(points, GRID, SIZE, device="cuda:99"), plimsoll.Unavailable),
        (lambda: plimsoll.voxelize(points, (1 << 20, 1 << 20, 1), SIZE), plimsoll.OutOfMemory),
    ]
    for wrong, error in wrongs:
        with pytest.raises(error):
            wrong()


def test_arrays_of_every_layout_are_read() -> None:
    points = clouds((500, 3))
    wanted = plimsoll.voxelize(points, GRID, SIZE, ORIGIN)
    misaligned = np.ndarray(points.shape, np.float32, buffer=bytearray(points.nbytes + 1), offset=1)
    misaligned[:] = points
    wide = np.hstack([points, points])
    same = (np.asfortranarray(points), points[::-1], wide[:, :3], misaligned, points.astype(">f4"), points.astype("f8"))
    for other in same:
        assert np.array_equal(plimsoll.voxelize(other, GRID, SIZE, ORIGIN), wanted), other.flags
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plimsoll.voxelize(np.array([[1e300, 0, 0], [0.1, 0.1, 0.1]]), 2, 1.0).sum() == 1


def test_a_batch_without_clouds_has_no_grids() -> None:
    assert plimsoll.voxelize(np.empty((0, 5, 3), np.float32), 4, 1.0).shape == (0, 4, 4, 4)
    assert list(plimsoll.voxelize_chunked(np.empty((0, 5, 3), np.float32), 4, 1.0)) == []


POINTS = np.zeros((4, 3), np.float32)
READ_ONLY = np.zeros((2, 2, 2), np.float32)
READ_ONLY.setflags(write=False)
SHARED = np.zeros((4, 3), np.float32)
WRONG: list[tuple[type[Exception], str, Any, Any, dict[str, Any]]] = [
    (ValueError, "grid_size is -1; give", POINTS, -1, {}),
    (ValueError, "grid_size is 2.5; give a whole number", POINTS, 2.5, {}),
    (ValueError, "grid_size is 4294967296; give", POINTS, 2**32, {}),
    (ValueError, "grid_size is inf; give", POINTS, float("inf"), {}),
    (TypeError, "grid_size is None; give", POINTS, None, {}),
    (TypeError, "grid_size is '222'; give", POINTS, "222", {}),
    (ValueError, r"grid_size is \(2, 2\); give", POINTS, (2, 2), {}),
    (TypeError, "origin is None; give a number", POINTS, 2, {"origin": None}),
    (ValueError, "chunk_size is -1", POINTS[None], 2, {"chunk_size": -1}),
    (TypeError, "array of complex64", POINTS.astype("c8"), 2, {}),
    (TypeError, "array of datetime64", POINTS.astype("M8[s]"), 2, {}),
    (ValueError, r"arrays of \[N, 3\]", POINTS[:, :2], 2, {"mode": "mean"}),
    (ValueError, r"arrays of \[N, 3\]", [POINTS[0]], 2, {}),
    (ValueError, r"arrays of \[N, 3\]", [POINTS, POINTS[None]], 2, {}),
    (ValueError, "out must be", POINTS, 2, {"out": [1.0]}),
    (ValueError, "out must be .* writable", POINTS, 2, {"out": READ_ONLY}),
    (ValueError, "shares memory with points", SHARED, 2, {"out": SHARED.reshape(-1)[:8].reshape(2, 2, 2)}),
]


@pytest.mark.parametrize(("kind", "said", "points", "grid", "options"), WRONG)
def test_what_cannot_be_is_one_clear_error(
    kind: type[Exception], said: str, points: Any, grid: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=said):
        plimsoll.voxelize(points, grid, 1.0, **options)


def test_objects_that_are_numbers_are_points_and_unknown_memory_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(device: object) -> int:
        raise plimsoll.Unavailable("the system does not say")

    want = plimsoll.voxelize(POINTS, 2, 1.0)
    monkeypatch.setattr("plimsoll.points.available_bytes", unknown)
    monkeypatch.setattr("plimsoll.points.LARGE", 0)
    assert np.array_equal(plimsoll.voxelize(POINTS.astype(object), 2, 1.0), want)


def test_a_result_that_is_larger_than_what_is_available_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.points.available_bytes", lambda device: 1 << 30)
    with pytest.raises(plimsoll.OutOfMemory, match="takes 4.00 GiB; voxelize_chunked"):
        plimsoll.voxelize(POINTS, 1024, 1.0)


def test_chunks_are_of_batches_and_lists_and_never_of_one_cloud() -> None:
    batch = [clouds((50, 3)), clouds((20, 3)), clouds((0, 3))]
    made = np.concatenate(list(plimsoll.voxelize_chunked(batch, GRID, SIZE, ORIGIN, chunk_size=2)))
    assert np.array_equal(made, plimsoll.voxelize(batch, GRID, SIZE, ORIGIN))
    with pytest.raises(ValueError, match=r"points\[None\] is a batch of one cloud"):
        next(plimsoll.voxelize_chunked(clouds((50, 3)), GRID, SIZE, ORIGIN, chunk_size=8))



def test_opencl_makes_the_same_bits() -> None:
    if not any(device.id.startswith("opencl") for device in plimsoll.devices()):
        pytest.skip("there is no OpenCL device")
    points = clouds((3, 200, 3))
    whole = plimsoll.voxelize(points, GRID, SIZE, ORIGIN)
    assert np.array_equal(plimsoll.voxelize(points, GRID, SIZE, ORIGIN, device="opencl:0"), whole)


def test_tensors_of_pytorch_on_the_host_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    points = clouds((2, 100, 3))
    made = plimsoll.voxelize(torch.from_numpy(points), GRID, SIZE, ORIGIN)
    assert isinstance(made, torch.Tensor)
    assert np.array_equal(made.numpy(), plimsoll.voxelize(points, GRID, SIZE, ORIGIN))
    with pytest.raises(TypeError, match="tensor of torch.complex64; it must have real numbers"):
        plimsoll.voxelize(torch.from_numpy(points).cfloat(), GRID, SIZE, ORIGIN)
    short = torch.from_numpy(points).bfloat16()  # numpy has no such numbers
    made = plimsoll.voxelize(short, GRID, SIZE, ORIGIN)
    assert np.array_equal(made.numpy(), plimsoll.voxelize(short.float().numpy(), GRID, SIZE, ORIGIN))


def test_other_threads_run_meanwhile() -> None:
    points, stop, turns = clouds((200_000, 3)), threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns[0]
        for _ in range(20):
            plimsoll.voxelize(points, 64, 0.05, -1.0)
        assert turns[0] > before + 20, "the interpreter was held all the time"
    finally:
        stop.set()
        thread.join()


FORKED = """
import os, sys, numpy as np, plimsoll
points = np.zeros((4, 1000, 3), np.float32)
assert plimsoll.voxelize(points, 16, 1.0).sum() == 4
child = os.fork()
if child == 0:
    made = plimsoll.voxelize(points, 16, 1.0).sum()
    os._exit(0 if made == 4 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert plimsoll.voxelize(points, 16, 1.0).sum() == 4
print("done")
"""


def test_a_child_of_fork_has_threads_of_its_own() -> None:
    words = [sys.executable, "-W", "ignore", "-c", FORKED]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert said.stdout == "done\n", said


LONG = """
import numpy as np, plimsoll
points = np.zeros((64, 1000, 3), np.float32)
print("on", flush=True)
while True:
    plimsoll.voxelize(points, 128, 1.0, chunk_size=1)
"""


def test_ctrl_c_is_heard_during_work() -> None:
    words = [sys.executable, "-c", LONG]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "on\n"
    time.sleep(0.7)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert "KeyboardInterrupt" in said and "voxelize" in said
    assert child.returncode in (-signal.SIGINT, 130, 1)
    assert os.getpid() != child.pid
