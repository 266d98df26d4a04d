"""What several tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Of the GPU that is simulated for Ray, and of the object store of each node.
GPU_BYTES = 8 << 30
STORE_BYTES = 80 << 20


@pytest.fixture
def demo_model() -> str:
    """A small detector of the repository."""
    return str(ROOT / "crates/infer/models/demo_rgb.onnx")


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the simulated CUDA driver of the guard's tests, and its client."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the simulated driver")
    folder = tmp_path_factory.mktemp("driver")
    sources = ROOT / "crates/guard/tests/fake"
    shared = [compiler, "-O1", "-w", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
    for name, more in [("libcuda.so.1", []), ("libnvidia-ml.so.1", ["-DNVML"])]:
        words = [*shared, *more, f"-Wl,-soname,{name}", str(sources / "cuda.c"), "-o", str(folder / name)]
        subprocess.run([*words, "-ldl", "-lpthread"], check=True)
    client = [compiler, "-O1", "-w", str(sources / "client.c"), "-o", str(folder / "client")]
    subprocess.run([*client, "-ldl", "-lpthread"], check=True)
    yield folder


@pytest.fixture(scope="module")
def cluster(fake_driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes of Ray's; one has a GPU, of 8 GiB, that the guard's tests simulate."""
    import ray
    from ray.cluster_utils import Cluster

    state = tmp_path_factory.mktemp("gpu") / "state"
    simulated = {"LD_LIBRARY_PATH": str(fake_driver), "FAKE_TOTAL": str(GPU_BYTES), "FAKE_CUDA_STATE": str(state)}
    before = {name: os.environ.get(name) for name in simulated}
    os.environ.update(simulated)
    made = Cluster()
    # More processors than there are: a node whose actors have them all could read nothing.
    for resources in ({"num_gpus": 1}, {}, {}):
        made.add_node(num_cpus=4, object_store_memory=STORE_BYTES, **resources)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 files with 48 clouds."""
    import ray_data

    return ray_data.write_clouds(tmp_path_factory.mktemp("clouds"), 40)
