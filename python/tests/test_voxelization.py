"""Voxelization as mmcv's module is called: against the rule in plain Python, and the command."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import plimsoll
from plimsoll import command

SIZE, RANGE = [0.5, 0.25, 0.5], [-1.0, -1.0, 0.0, 2.0, 2.0, 3.0]
Floats = npt.NDArray[np.float32]


def cloud(points: int, columns: int = 4, seed: int = 1) -> Floats:
    made = np.random.default_rng(seed).uniform(-1.3, 3.2, (points, columns)).astype(np.float32)
    made[::17, 0], made[3::29, 1] = np.nan, np.inf
    # On faces of cells.
    made[5::11, :3] = np.round(made[5::11, :3] * 4) / 4
    return made


def by_rule(points: Floats, most: int, voxels: int) -> tuple[Floats, list[Any], list[int], list[Any]]:
    """The first points of the first voxels, one point after the other; and the voxel of each."""
    size, low = np.array(SIZE, np.float32), np.array(RANGE[:3], np.float32)
    extent = [6, 12, 6]
    numbers: dict[Any, int] = {}
    kept: list[list[Floats]] = []
    places: list[Any] = []
    for point in points:
        with np.errstate(all="ignore"):
            cell = np.floor((point[:3] - low) / size)
        inside = np.isfinite(cell).all() and all(0 <= one < most for one, most in zip(cell, extent, strict=True))
        place = tuple(int(one) for one in cell[::-1]) if inside else (-1, -1, -1)
        places.append(list(place))
        if not inside or (place not in numbers and len(numbers) == voxels):
            continue
        number = numbers.setdefault(place, len(numbers))
        if number == len(kept):
            kept.append([])
        if len(kept[number]) < most:
            kept[number].append(point)
    made = np.zeros((len(kept), most, points.shape[1]), np.float32)
    for voxel, own in zip(made, kept, strict=True):
        voxel[: len(own)] = own
    return made, [list(place) for place in numbers], [len(own) for own in kept], places


@pytest.mark.parametrize(("points", "most", "voxels"), [(0, 2, 5), (700, 3, 1000), (2000, 1, 40)])
def test_it_is_the_rule(points: int, most: int, voxels: int) -> None:
    given = cloud(points)
    made = plimsoll.Voxelization(SIZE, RANGE, most, voxels)(given)
    want = by_rule(given, most, voxels)
    assert [part.dtype for part in made] == [np.float32, np.int32, np.int32]
    assert made[0].tobytes() == want[0].tobytes() and made[0].shape == want[0].shape
    assert made[1].tolist() == want[1] and made[2].tolist() == want[2]
    places = plimsoll.Voxelization(SIZE, RANGE, -1)(given)
    assert places.dtype == np.int32 and places.tolist() == want[3]


def test_the_bits_are_the_commands(tmp_path: Path) -> None:
    given = cloud(3000, 5)
    np.save(tmp_path / "in.npy", given)
    text = [",".join(map(str, numbers)) for numbers in (SIZE, RANGE)]
    flags = ["--hard", "--voxel-size", text[0], "--range", text[1], "--max-points", "4", "--max-voxels", "300"]
    command.ask(["voxelize", tmp_path / "in.npy", *flags, "--backend", "host", "--out", tmp_path / "out.npz"])
    want = np.load(tmp_path / "out.npz")
    made = plimsoll.Voxelization(SIZE, RANGE, 4, 300)(given)
    for part, name in zip(made, ("voxels", "coordinates", "num_points"), strict=True):
        assert part.tobytes() == want[name].tobytes()


def test_training_and_testing_differ_in_their_maxima() -> None:
    given = cloud(1000)
    layer = plimsoll.Voxelization(SIZE, RANGE, max_num_points=2, max_voxels=(7, 9))
    assert len(layer(given)[0]) == 7
    assert len(layer.eval()(given)[0]) == 9 and not layer.training
    assert len(layer.train().forward(given)[0]) == 7
    assert layer.grid_size == [6, 12, 6] and layer.pcd_shape == [1, 12, 6]
    assert repr(layer).startswith("Voxelization(voxel_size=[0.5, 0.25, 0.5], point_cloud_range=")


def test_it_can_be_copied_and_takes_numbers_of_numpy() -> None:
    layer = plimsoll.Voxelization(SIZE, RANGE, 3, (np.int64(5), 9)).eval()
    assert plimsoll.Voxelization(SIZE, RANGE, 3, np.int64(5)).max_voxels == (5, 5)
    for other in [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]:
        assert not other.training and repr(other) == repr(layer)
        for one, same in zip(other(cloud(200)), layer(cloud(200)), strict=True):
            assert np.array_equal(one, same, equal_nan=True)


def test_places_are_integers_that_there_are() -> None:
    layer = plimsoll.Voxelization([0.5, 0.5, 3.0], RANGE, 3, 9)
    values = np.ones((1, 2), np.float32)
    assert layer.birds_eye(values, np.array([[0, 1, 1]]))[0, 0, 1, 1] == 1
    with pytest.raises(ValueError, match="int32"):
        layer.birds_eye(values, np.array([[0, 1, 2**32]]))
    with pytest.raises(TypeError, match="integers"):
        layer.birds_eye(values, np.array([[0.0, 1.9, 1.0]]))


def test_the_order_of_coordinates() -> None:
    given = cloud(400)
    zyx, xyz = (plimsoll.Voxelization(SIZE, RANGE, 2, 50, order=order)(given)[1] for order in ("zyx", "xyz"))
    assert np.array_equal(zyx, xyz[:, ::-1])


def test_other_types_and_layouts_are_converted() -> None:
    given = cloud(500)
    layer = plimsoll.Voxelization(SIZE, RANGE, 3, 100)
    want = layer(given)
    wide = np.zeros((500, 8), np.float32)
    wide[:, ::2] = given
    for other in (given.astype(np.float64), np.asfortranarray(given), wide[:, ::2]):
        assert all(np.array_equal(a, b) for a, b in zip(layer(other), want, strict=True))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ((SIZE, RANGE, 0), "at least 1, or -1"),
        ((SIZE, RANGE, 3, 0), "at least 1, or -1"),
        ((SIZE, RANGE, 3, (1, 2, 3)), "training, testing"),
        ((SIZE[:2], RANGE, 3), "three numbers"),
        ((SIZE, RANGE[:5], 3), "six"),
        (([0.5, -1.0, 0.5], RANGE, 3), "-1"),
    ],
)
def test_what_cannot_be_is_refused(given: tuple[Any, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        plimsoll.Voxelization(*given)


def test_pillars_have_offsets_and_a_place_in_the_image() -> None:
    size, extent = [0.5, 0.25, 4.0], [-1.0, -1.0, -0.5, 2.0, 2.0, 3.5]
    layer = plimsoll.Voxelization(size, extent, 5, 60)
    voxels, coors, num_points = layer(cloud(900))
    features = layer.pillar_features(voxels, coors, num_points)
    assert features.shape == (len(voxels), 5, 10) and features.dtype == np.float32
    low, step = np.array(extent[:3], np.float32), np.array(size, np.float32)
    for own, points, place, count in zip(features, voxels, coors, num_points, strict=True):
        xyz = points[:count, :3]
        total = np.zeros(3)
        for point in xyz:
            total += point.astype(np.float64)
        mean = (total / int(count)).astype(np.float32)
        centre = place[::-1].astype(np.float32) * step + (step / np.float32(2) + low)
        want = np.concatenate([points[:count], xyz - mean, xyz - centre], 1)
        assert own[:count].tobytes() == want.tobytes() and not own[count:].any()
    values = np.arange(len(voxels) * 3, dtype=np.float32).reshape(-1, 3) + 1
    image = layer.birds_eye(values, coors)
    want = np.zeros((1, 3, 12, 6), np.float32)
    want[0][:, coors[:, 1], coors[:, 2]] = values.T
    assert np.array_equal(image, want)
    assert layer.birds_eye(values[:0], coors[:0]).sum() == 0
    with pytest.raises(ValueError, match=r"coors must be \[\d+, 3\]"):
        layer.pillar_features(voxels, coors[1:], num_points)
    with pytest.raises(ValueError, match="voxels is"):
        layer.pillar_features(voxels[:, :3], coors, num_points)
    with pytest.raises(ValueError, match=r"\[M, F\] and \[M, 3\]"):
        layer.birds_eye(values[1:], coors)
    with pytest.raises(ValueError, match="pillars"):
        layer.birds_eye(values[:1], np.array([[0, 12, 0]], np.int32))
    with pytest.raises(ValueError, match="pillars"):
        plimsoll.Voxelization(SIZE, RANGE, 5, 60).birds_eye(values[:1], coors[:1])


NO_ROOM = """
import resource
import numpy as np
import plimsoll

points = np.zeros((8_000_000, 3), np.float32)
image = plimsoll.Voxelization([1e-4, 1e-4, 1.0], [0.0, 0.0, 0.0, 800.0, 800.0, 1.0], 32, 100)
ways = [
    lambda: image.birds_eye(np.ones((1, 64), np.float32), np.zeros((1, 3), np.int32)),
    lambda: plimsoll.Voxelization([0.5] * 3, [-1.0] * 3 + [1.0] * 3, -1)(points),
    lambda: plimsoll.Voxelization([0.5] * 3, [-1.0] * 3 + [1.0] * 3, 5, 40_000)(points),
]
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + (48 << 20),) * 2)
for way in ways:
    try:
        way()
    except MemoryError as error:
        print("refused")
"""


def test_no_memory_is_an_error_and_not_the_end() -> None:
    """By one thread, and by several, whose way has tables of its own."""
    for threads in ["1", "4"]:
        ran = subprocess.run(
            [sys.executable, "-c", NO_ROOM],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        refused = ran.stdout.split().count("refused")
        # One thread makes hard voxels of that cloud in little memory.
        assert refused >= (2 if threads == "1" else 3), (threads, ran.stdout)


def test_points_that_are_none_are_refused() -> None:
    layer = plimsoll.Voxelization(SIZE, RANGE, 3)
    with pytest.raises(ValueError, match=r"\[N, C\]"):
        layer(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"\[N, C\]"):
        layer(np.zeros(3, np.float32))


class OnHost:
    """Makes what a GPU is asked for, at the addresses that it is given."""

    def __init__(self, layer: plimsoll.Voxelization, given: Floats) -> None:
        self.layer, self.given = layer, given

    def hard_resident(self, device: int, stream: int, points: int, count: int, columns: int) -> OnHost:
        assert (device, stream, count, columns) == (3, 7, *self.given.shape)
        return self

    def finish(self, *buffers: int) -> int:
        made = self.layer(self.given)
        for part, address in zip(made, buffers, strict=True):
            assert address % 16 == 0
            ctypes.memmove(address, np.ascontiguousarray(part).ctypes.data, part.nbytes)
        return len(made[0])


class Arrays:
    """Arrays of numpy as a library for a GPU has its tensors."""

    floats, words = np.float32, np.int32

    def ready(self, points: Floats, kind: Any) -> tuple[Floats, int, int, int]:
        return points, points.ctypes.data, 3, 7

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], kind: Any, number: int, advice: str) -> Any:
        # Aligned as a GPU's memory is.
        room = np.full(int(np.prod(shape)) + 128, 77, kind)
        start = -(room.ctypes.data % 512) % 512 // 4
        made = room[start : start + int(np.prod(shape))].reshape(shape)
        assert number == 3 and (made.size == 0 or made.strides == tuple(4 * one for one in strides))
        return made, made.ctypes.data

    def cut(self, array: Any, *shape: int) -> Any:
        assert array.shape[1:] == shape[1:]
        return array[: shape[0]]


@pytest.mark.parametrize(("points", "voxels"), [(0, 10), (1, 10), (701, 13), (702, 1000)])
def test_buffers_on_a_gpu_have_their_places(points: int, voxels: int) -> None:
    given = cloud(points)
    layer = plimsoll.Voxelization(SIZE, RANGE, 3, voxels)
    made: Any = OnHost(layer, given)
    arrays: Any = Arrays()
    got = layer._on_gpu(arrays, made, voxels, False, given)
    for part, want in zip(got, layer(given), strict=True):
        assert part.shape == want.shape and part.dtype == want.dtype and part.tobytes() == want.tobytes()


PYTORCH = """
import sys
try:
    import torch
except ImportError as error:
    sys.exit(f"skipped: {error}")
import numpy as np, plimsoll
sys.path.insert(0, sys.argv[1])
from test_voxelization import RANGE, SIZE, cloud

given = cloud(5000, 5)
layer = plimsoll.Voxelization(SIZE, RANGE, 3, 300)
places = plimsoll.Voxelization(SIZE, RANGE, -1)
want, where = layer(given), places(given)
tensor = torch.from_numpy(given)
for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
    on = tensor.to(device)
    for points in (on, on.double(), on.t().contiguous().t(), torch.cat([on[:1], on])[1:]):
        made = layer(points)
        assert all(part.device.type == device for part in made)
        assert all(a.cpu().numpy().tobytes() == b.tobytes() for a, b in zip(made, want, strict=True)), device
        assert np.array_equal(places(points).cpu().numpy(), where)
    assert [len(part) for part in layer(on[:0])] == [0, 0, 0]
    features = layer.pillar_features(*layer(on))
    assert features.device.type == device
    assert features.cpu().numpy().tobytes() == layer.pillar_features(*want).tobytes(), device
    flat = plimsoll.Voxelization([0.5, 0.25, 4], [-1, -1, 0, 2, 2, 4], 3, 300)
    coors = flat(on)[1]
    values = torch.arange(len(coors) * 7, dtype=torch.float32, device=device).reshape(-1, 7)
    image = flat.birds_eye(values, coors)
    assert image.device.type == device
    assert np.array_equal(image.cpu().numpy(), flat.birds_eye(values.cpu().numpy(), coors.cpu().numpy())), device
    print("same on", device)
"""


def test_tensors_of_pytorch_stay_where_they_are() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PYTORCH, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    if "skipped" in said.stderr:
        pytest.skip(said.stderr.strip())
    assert said.returncode == 0, said.stderr
    assert "same on cpu" in said.stdout


def test_threads_share_one_module() -> None:
    # In a process of its own, as threads that wait for each other for ever would stay.
    program = """
import threading
import numpy as np
import plimsoll
points = np.random.default_rng(3).uniform(0, 9, (60_000, 4)).astype(np.float32)
both = [plimsoll.Voxelization([size] * 3, [0, 0, 0, 9, 9, 9], 5, 50_000) for size in (0.3, 0.008)]
want = [module(points) for module in both]
def work():
    for turn in range(30):
        for module, one in zip(both, want):
            assert all(np.array_equal(a, b) for a, b in zip(module(points), one))
            done.append(turn)
done = []
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done))
"""
    environment = {**os.environ, "RAYON_NUM_THREADS": "3"}
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment
    )
    assert (made.returncode, made.stdout.strip()) == (0, str(4 * 30 * 2)), made.stderr
