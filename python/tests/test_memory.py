"""The machine's memory, chunk plans and estimates, under their public names."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

import plimsoll
from plimsoll import command

MISTRAL = {"hidden": 4096, "intermediate": 14336, "layers": 32, "vocab": 32000, "heads": 32, "kv_heads": 8}


def test_memory_info_has_the_names_of_the_document() -> None:
    info = plimsoll.get_memory_info()
    names = {"is_unified", "gpu_alloc", "gpu_reserved", "system_total", "system_used", "note"}
    assert names <= info.keys()
    assert info["system_total"] == plimsoll.memory_info().system_total
    assert plimsoll.is_jetson() is False or plimsoll.is_unified() is True


def test_pytorch_counts_in_a_process_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"memory_allocated": 3, "memory_reserved": 4, "max_memory_allocated": 5, "max_memory_reserved": 6}
    cuda = types.SimpleNamespace(**{name: lambda n=n: n for name, n in counts.items()}, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    info = plimsoll.get_memory_info()
    assert (info["gpu_alloc"], info["gpu_reserved"]) == (3, 4)
    assert plimsoll.get_gpu_peaks() == (5, 6)
    cuda.is_initialized = lambda: False
    assert plimsoll.get_memory_info()["gpu_alloc"] is None and plimsoll.get_gpu_peaks() == (0, 0)


def test_available_memory_in_gigabytes_is_decimal() -> None:
    gigabytes = plimsoll.get_available_memory_gb("cpu")
    assert gigabytes == pytest.approx(plimsoll.available_bytes("cpu") / 1e9, rel=0.2)


def test_a_device_that_is_not_here_is_unavailable_and_one_that_cannot_be_a_value_error() -> None:
    with pytest.raises(plimsoll.Unavailable):
        plimsoll.available_bytes("cuda:99")
    with pytest.raises(ValueError, match="cuda:N"):
        plimsoll.available_bytes("gpu")


def test_amounts_are_numbers_or_text_with_a_unit() -> None:
    assert plimsoll.parse_bytes(4096) == 4096
    with pytest.raises(ValueError, match="needs a unit"):
        plimsoll.estimate(MISTRAL, context=8, limit="8")
    wrongs = [("8 apples", ValueError), ("4096", ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)]
    for wrong, error in wrongs:
        with pytest.raises(error):
            plimsoll.parse_bytes(wrong)  # type: ignore[arg-type]


SHAPE = {"hidden": 64, "intermediate": 64, "layers": 1, "vocab": 9, "heads": 1, "kv_heads": 1, "context": -8}
NEGATIVE: list[Callable[[], object]] = [
    lambda: plimsoll.format_bytes(-1),
    lambda: plimsoll.parse_bytes(2**64),
    lambda: plimsoll.auto_chunk(-1, 5, "cpu"),
    lambda: plimsoll.calculate_chunking(2**64, 1, 1),
    lambda: plimsoll.estimate_voxelization_memory(-1, 2, 3, 4, 5),
    lambda: plimsoll.voxelization_will_oom(1, -2, 3, 4, 5, "cpu"),
    lambda: plimsoll.suggest_voxelization_chunking(1, 2, -3, 4, 5, "cpu"),
    lambda: plimsoll.estimate(SHAPE),
    lambda: plimsoll.should_reduce_batch(float("nan")),
]


@pytest.mark.parametrize("ask", NEGATIVE)
def test_numbers_that_cannot_be_are_value_errors(ask: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must|cannot"):
        ask()


def test_every_device_says_what_it_is() -> None:
    host = plimsoll.devices()[-1]
    assert host.id == "cpu" and host.free_bytes is not None and host.free_bytes <= host.total_bytes
    assert host.to_dict()["id"] == "cpu" and "Device('cpu'" in repr(host)


def test_doctor_is_the_commands() -> None:
    assert plimsoll.doctor().keys() == command.ask(["doctor"]).keys()


def test_chunks_cover_every_item_once() -> None:
    plan = plimsoll.calculate_chunking(1000, "3MiB", "100MiB", 0.7)
    items = [item for items in plan.ranges() for item in items]
    assert items == list(range(1000)) and plan.total_items == 1000
    assert plan.memory_per_chunk <= 0.7 * 100 * 2**20
    assert plan == plimsoll.calculate_chunking(1000, 3 * 2**20, 100 * 2**20)
    assert str(plan) == plan.to_string() and plan.to_string() in repr(plan)
    with pytest.raises(plimsoll.NeverFits):
        plimsoll.calculate_chunking(1, "2GiB", "1GiB")
    assert plimsoll.NeverFits.__mro__[1] is plimsoll.Error


def test_chunks_are_the_commands() -> None:
    words = ["chunk", "--items", "64", "--item-bytes", "9MiB", "--available", "200MiB", "--json"]
    said = subprocess.run([command.executable(), *words], capture_output=True, text=True)
    assert said.returncode == 0, said
    plan = plimsoll.calculate_chunking(64, "9MiB", "200MiB")
    assert json.loads(said.stdout)["chunk_size"] == plan.chunk_size


def test_the_estimate_of_a_shape_is_the_commands() -> None:
    ours = plimsoll.estimate(MISTRAL, context=4096, dtype="q4_k_m", limit="8GiB")
    words = command.flags({**MISTRAL, "context": 4096, "dtype": "q4_k_m", "limit": "8GiB"})
    theirs = command.ask(["estimate", "llm", *words])
    for name in ("weights_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes", "fits"):
        assert ours.to_dict()[name] == theirs[name], name
    assert "fits into 8.00 GiB" in repr(ours) and "<table>" in ours._repr_html_()
    with pytest.raises(ValueError, match="kv_heads"):
        plimsoll.estimate({**MISTRAL, "kv_heads": 0}, context=4096)
    with pytest.raises(TypeError):
        plimsoll.estimate(context=4096)


def test_the_estimate_of_a_file_is_the_commands(demo_model: str) -> None:
    ours = plimsoll.estimate(demo_model, engine="ort", device="cpu")
    theirs = command.ask(["estimate", demo_model, "--engine", "ort", "--device", "cpu"])
    assert ours.total_bytes == theirs["total_bytes"] and ours.fits is True
    with pytest.raises(ValueError, match="surely-not"):
        plimsoll.estimate("surely-not-here.onnx")


def test_the_manager_says_how_far_its_limit_holds() -> None:
    manager = plimsoll.GPUMemoryManager("2GiB")
    assert manager.validate_memory_within_limit() is None
    report = manager.apply_limits()
    assert report["limit_bytes"] == 2 * 2**30
    assert set(report["devices"].values()) <= {"hard", "soft", "unavailable"}
    assert manager.validate_memory_within_limit() is True
    assert manager.get_current_gpu_memory_usage() == 0
