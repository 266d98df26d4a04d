"""What several tests need."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
