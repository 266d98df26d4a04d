"""Tensors that say they are on a GPU, on the simulated driver of the memory library's tests, whose kernels
do nothing: which kernels are queued, and what is made of them. What kernels compute is tested on devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: A library that looks like PyTorch as far as it is used, with tensors at made-up addresses.
CHILD = """
import ctypes, sys, types
import plimsoll

class Tensor:
    is_cuda = True
    def __init__(self, shape, dtype, device):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        Tensor.made += 1
        self.at = 0x10000000 * Tensor.made
    def data_ptr(self):
        return self.at
    def is_contiguous(self):
        return True
    def get_device(self):
        return self.device.index
    def resize_(self, *shape):
        self.shape = shape
        return self

Tensor.made = 0
Tensor.__module__ = "torch"
torch = types.ModuleType("torch")
for name in ("float32", "uint8", "uint32", "int32"):
    setattr(torch, name, types.SimpleNamespace(name=name, __name__=name))
device = types.SimpleNamespace(index=0)
torch.empty = lambda shape, dtype, device: Tensor(shape, dtype, types.SimpleNamespace(index=int(device[5:])))
torch.cuda = types.SimpleNamespace(OutOfMemoryError=MemoryError)
torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 0, _cuda_getDevice=lambda: 0)
sys.modules["torch"] = torch
driver = ctypes.CDLL("libcuda.so.1")

def launches(work):
    before = driver.fake_calls(b"cuLaunchKernel")
    made = work()
    return made, driver.fake_calls(b"cuLaunchKernel") - before

points = Tensor((2, 500, 5), torch.float32, device)
for mode, dtype, shape, kernels in [
    # Zeros and counts; as floats they are converted.
    ("count", None, (2, 4, 4, 4), 2),
    ("count", "float32", (2, 4, 4, 4), 3),
    ("max", None, (2, 2, 4, 4, 4), 3),
    # Keys of 8 bits are sorted in two rounds of three kernels.
    ("mean", None, (2, 2, 4, 4, 4), 9),
]:
    for _ in range(2):
        made, queued = launches(lambda: plimsoll.voxelize(points, 4, 0.25, mode=mode, dtype=dtype))
        assert made.shape == shape and queued == kernels, (mode, dtype, made.shape, queued)
    assert made.dtype is (torch.uint32 if (mode, dtype) == ("count", None) else torch.float32)
made, queued = launches(lambda: plimsoll.voxelize(points, 4, 0.25, mode="count", chunk_size=1))
assert queued == 4 and made.shape == (2, 4, 4, 4)
out = Tensor((4, 4, 4), torch.float32, device)
one = Tensor((500, 4), torch.float32, device)
assert plimsoll.voxelize(one, 4, 0.25, mode="count", dtype="float32", out=out) is out
for wrong in ({"mode": "count", "out": out}, {"dtype": "bits"}):
    try:
        plimsoll.voxelize(one, 4, 0.25, **wrong)
    except (ValueError, plimsoll.Unavailable) as error:
        print(type(error).__name__, error)
    else:
        raise SystemExit(f"{wrong} was taken")

layer = plimsoll.Voxelization([0.5, 0.25, 4], [-1, -1, 0, 2, 2, 4], 8, max_voxels=100)
voxels = Tensor((70, 8, 4), torch.float32, device)
coors, counts = Tensor((70, 3), torch.int32, device), Tensor((70,), torch.int32, device)
features, queued = launches(lambda: layer.pillar_features(voxels, coors, counts))
assert features.shape == (70, 8, 10) and queued == 1, (features.shape, queued)
try:
    elsewhere = types.SimpleNamespace(index=1)
    layer.birds_eye(Tensor((70, 64), torch.float32, device), Tensor((70, 3), torch.int32, elsewhere))
except ValueError as error:
    assert "move it there first" in str(error), error
else:
    raise AssertionError("a tensor of another device was given to a kernel")
image, queued = launches(lambda: layer.birds_eye(Tensor((70, 64), torch.float32, device), coors))
assert image.shape == (1, 64, 12, 6) and queued == 3, (image.shape, queued)
places, queued = launches(lambda: plimsoll.Voxelization([0.5, 0.25, 4], [-1, -1, 0, 2, 2, 4], -1)(one))
assert places.shape == (500, 3) and queued == 1

# The second kernel of hard voxels may start early, and tells that there are three.
def queued_by(work):
    names = b"cuLaunchKernel", b"cuLaunchKernelEx", b"cuMemsetD8Async"
    before = [driver.fake_calls(name) for name in names]
    made = work()
    return made, [driver.fake_calls(name) - calls for name, calls in zip(names, before)]

def shapes(made):
    return [tensor.shape for tensor in made]

layer(one)
made, queued = queued_by(lambda: layer(one))
assert shapes(made) == [(3, 8, 4), (3, 3), (3,)] and queued == [1, 1, 0], (shapes(made), queued)
assert [tensor.dtype for tensor in made] == [torch.float32, torch.int32, torch.int32]

# Where the results cannot be allocated, what the first kernel left is cleared.
def fails():
    def empty(shape, dtype, device):
        raise MemoryError
    kept, torch.empty = torch.empty, empty
    try:
        layer(one)
    except plimsoll.OutOfMemory as error:
        assert "cuda:0" in str(error) and "max_voxels" in str(error), error
    else:
        raise AssertionError("it was made of nothing")
    finally:
        torch.empty = kept

assert queued_by(fails)[1] == [1, 0, 3]
made, queued = queued_by(lambda: layer(one))
assert shapes(made) == [(3, 8, 4), (3, 3), (3,)] and queued == [1, 1, 0], (shapes(made), queued)
none, queued = queued_by(lambda: layer(Tensor((0, 4), torch.float32, device)))
assert shapes(none) == [(0, 8, 4), (0, 3), (0,)] and queued == [0, 0, 0]

# What PyTorch's compiled code calls is used for tensors of the current device, and for no other.
class Other(Tensor):
    pass

Other.__module__ = "torch"
quick = []
def empty_strided(shape, strides, dtype):
    quick.append((shape, strides))
    return Other(shape, dtype, device)

torch._C._dynamo = types.SimpleNamespace(guards=types.SimpleNamespace(_empty_strided_cuda=empty_strided))
made = plimsoll.voxelize(Other((2, 500, 5), torch.float32, device), (2, 3, 4), 0.25, mode="mean")
assert made.shape == (2, 2, 2, 3, 4) and quick == [((2, 2, 2, 3, 4), (48, 24, 12, 4, 1))], quick
made = plimsoll.voxelize(Other((500, 5), torch.float32, device), (2, 3, 4), 0.25, mode="count")
assert quick[1:] == [((2, 3, 4), (12, 4, 1))], quick
assert shapes(layer(Other((500, 4), torch.float32, device))) == [(3, 8, 4), (3, 3), (3,)]
assert quick[2:] == [((100, 8, 4), (32, 4, 1)), ((100, 3), (3, 1)), ((100,), (1,))], quick
made = plimsoll.voxelize(Other((500, 5), torch.float32, types.SimpleNamespace(index=1)), 4, 0.25, mode="count")
assert len(quick) == 5 and made.get_device() == 1
print("done")
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver and a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler for the simulated driver")
    folder = tmp_path_factory.mktemp("machine")
    driver, nvrtc = ROOT / "crates/memory/tests/fake/cuda.c", ROOT / "crates/cli/tests/kernels/nvrtc.c"
    for source, name in ((driver, "libcuda.so.1"), (nvrtc, "libnvrtc.so.12")):
        words = [compiler, "-shared", "-fPIC", "-O1", "-w", '-DIMAGE="sm_90"', "-o", str(folder / name), str(source)]
        subprocess.run([*words, "-ldl", "-lpthread"], check=True)
    return folder


def test_tensors_on_a_gpu_get_every_mode_and_pillars(machine: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(machine), "XDG_CACHE_HOME": str(machine / "cache")}
    said = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith("ValueError out must be a contiguous tensor"), lines
    assert lines[1].startswith("Unavailable occupancy as bits on a GPU's tensors"), lines
    assert lines[2] == "done"
