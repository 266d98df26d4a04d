"""Estimates of PyTorch programs without a GPU. Without PyTorch what needs it is skipped;
scripts/check-torch-estimate runs all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll import Unavailable
from plimsoll.torch import AllocationRange, ProgramEstimate, estimate, estimate_model

MIB = 1 << 20


def test_without_pytorch_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="pip install torch"):
        estimate(lambda: None)


def test_the_allocators_rules_are_those_of_the_library() -> None:
    requests = [0, 1, 2, -2, 3, -1, None, -3, -4]
    allocated, reserved = plimsoll._plimsoll.caching_allocator(requests, [40 * MIB, 30 * MIB, 3 * MIB, 29 * MIB])
    assert [size // MIB for size in allocated] == [40, 70, 73, 43, 73, 33, 33, 30, 0], "1 MiB is not cut off"
    assert [size // MIB for size in reserved] == [40, 70, 90, 90, 90, 90, 50, 50, 50], "40 MiB were given back"
    within = plimsoll._plimsoll.caching_within
    sizes = [40 * MIB, 30 * MIB, 20 * MIB, 50 * MIB]
    assert within([0, 1, 2, -1, -2, 3], sizes, 100 * MIB), "40 and 30 MiB are given back for the 50"
    assert not within([0, 1, 2, -1, 3], sizes, 98 * MIB), "50 MiB live, and 50 more do not fit"
    assert plimsoll._plimsoll.expandable_segments([0, 1, -1, -2], [3 * MIB, 30 * MIB]) == 40 * MIB
    with pytest.raises(ValueError, match="no block 7"):
        plimsoll._plimsoll.caching_allocator([7], [1])


def test_a_model_needs_its_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert estimate_model.main([str(tmp_path)]) == 2
    assert "config.json" in json.loads(capsys.readouterr().out)["error"]
    (tmp_path / "config.json").write_text("{}")
    assert estimate_model.main([str(tmp_path)]) == 2
    assert "model_type" in json.loads(capsys.readouterr().out)["error"]


def test_packages_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert estimate_model.main([str(tmp_path)]) == 3
    assert "pip install torch" in json.loads(capsys.readouterr().out)["unavailable"]


def test_an_estimate_prints_and_converts() -> None:
    made = ProgramEstimate(
        total_bytes=700 * MIB,
        range=AllocationRange(690 * MIB, 735 * MIB),
        peak_allocated_bytes=60 * MIB,
        peak_reserved_bytes=79 * MIB,
        context_bytes=621 * MIB,
        allocator="caching",
        allocations=2,
        peak=None,
        lines=(),
        timeline=(),
        attention={},
        assumptions=("numbers read, taken as 1 (2 times)",),
        limit_bytes=1 << 30,
        fits=True,
        runs=True,
    )
    assert repr(made).startswith("<ProgramEstimate 700.00 MiB in all, at most 735.00 MiB")
    assert "fits into 1.00 GiB" in repr(made) and "numbers read" in made._repr_html_()
    assert made.to_dict()["range"] == {"low_bytes": 690 * MIB, "high_bytes": 735 * MIB}
    assert ProgramEstimate.from_dict(made.to_dict()) == made


# From here on with PyTorch.


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", exc_type=ImportError)


def test_a_forward_pass(torch: Any) -> None:
    def step(x: Any) -> Any:
        y = x @ x
        return y.relu()

    made = estimate(step, torch.empty(1024, 1024))
    assert made.peak_allocated_bytes == (3 * 4 + 32) * MIB, "input, product, relu and cuBLAS's workspace"
    assert made.peak_reserved_bytes == (20 + 32) * MIB
    assert made.peak is not None and made.peak.operator == "aten::relu" and made.peak.function == "step"
    assert sum(line.bytes for line in made.lines) == made.peak_allocated_bytes
    own = sorted((line.function, line.bytes) for line in made.lines if line.file == __file__)
    assert own == [("step", 4 * MIB), ("step", 4 * MIB), ("test_a_forward_pass", 4 * MIB)]
    assert made.timeline[-1].reserved_bytes == made.peak_reserved_bytes
    assert "<svg" in made._repr_html_()


def test_a_training_step_leaves_everything_as_it_was(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    before = [parameter.clone() for parameter in model.parameters()]

    def step(x: Any) -> None:
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    made = estimate(step, torch.randn(4096, 512))
    weights = sum(parameter.numel() * 4 for parameter in before)
    assert made.peak_allocated_bytes > 4 * weights + 3 * 4096 * 512 * 4
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert not optimizer.state and all(type(p) is torch.nn.Parameter for p in model.parameters())
    assert optimizer.param_groups[0]["params"][0] is next(model.parameters())


def test_what_a_program_makes_itself_counts(torch: Any) -> None:
    def program() -> float:
        x = torch.ones(1 << 20, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = (x.view(1024, 1024) @ x.view(1024, 1024)).sum()
        y.backward()
        assert x.is_cuda and str(x.device) == "cuda:0" and x.grad.dtype is torch.float32
        return float(y.detach())

    made = estimate(program)
    assert made.peak_allocated_bytes > 2 * 32 * MIB, "a workspace for each of the two threads that CUDA has"
    assert any("numbers read" in note for note in made.assumptions)


def test_a_module_that_moves_to_the_device_is_cast_as_there(torch: Any) -> None:
    def program() -> None:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Conv2d(64, 64, 1))
        weight = model[0].weight
        model.cuda()
        assert model[0].weight is weight and weight.is_cuda, "an optimizer that has it sees it move"
        with torch.autocast("cuda", dtype=torch.float16):
            made = model(torch.zeros(1, 3, 514, 514, device="cuda"))
        assert made.dtype is torch.float16
        made.float().sum().backward()
        assert weight.grad.dtype is torch.float32

    made = estimate(program)
    # Two results of 64 x 512 x 512 in 16 bits, and their sum in 32.
    assert made.peak_allocated_bytes >= (32 + 32 + 64) * MIB


def test_the_attention_that_cuda_would_take(torch: Any) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def kinds(capability: tuple[int, int], dtype: Any, heads: int, kv: int, **more: Any) -> dict[str, int]:
        q, k = torch.empty(1, heads, 256, 64, dtype=dtype), torch.empty(1, kv, 256, 64, dtype=dtype)
        return estimate(lambda q, k: attend(q, k, k, **more), q, k, capability=capability).attention

    half, single = torch.bfloat16, torch.float32
    assert kinds((9, 0), half, 8, 8, is_causal=True) == {"cuDNN": 1}
    assert kinds((8, 0), half, 8, 8, is_causal=True) == {"flash": 1}
    assert kinds((9, 0), single, 8, 8) == {"memory-efficient": 1}
    assert kinds((9, 0), single, 8, 2, enable_gqa=True) == {"math": 1}, "grouped heads in float32 store scores"
    assert kinds((9, 0), half, 8, 1) == {"math": 1}, "heads that are shared without being told"
    assert kinds((9, 0), half, 8, 2, enable_gqa=True) == {"cuDNN": 1}


def test_scores_are_stored_or_not(torch: Any) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def peak(kv: int) -> int:
        q, k = torch.empty(1, 8, 2048, 64), torch.empty(1, kv, 2048, 64)
        return estimate(lambda q, k: attend(q, k, k, is_causal=True, enable_gqa=kv != 8), q, k).peak_allocated_bytes

    scores = 8 * 2048 * 2048 * 4
    assert peak(8) < 32 * MIB < 2 * scores < peak(2)


def test_values_decide_where_they_are_small(torch: Any) -> None:
    def program() -> int:
        mask = torch.zeros(1000, dtype=torch.bool, device="cuda")
        mask[:10] = True
        x = torch.empty(1000, 1 << 18, device="cuda")
        return int(x[mask].shape[0])

    seen = []
    made = estimate(lambda: seen.append(program()))
    assert seen == [10]
    assert made.peak_allocated_bytes - (1000 << 20) in range(10 << 20, 11 << 20)


def test_checkpointing_keeps_less(torch: Any) -> None:
    checkpoint = torch.utils.checkpoint.checkpoint
    layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))

    def block(layer: Any, x: Any) -> Any:
        return torch.nn.functional.gelu(layer(x))

    def run(x: Any, save: bool) -> None:
        for layer in layers:
            x = checkpoint(block, layer, x, use_reentrant=False) if save else block(layer, x)
        x.sum().backward()

    x = torch.empty(8192, 1024, requires_grad=True)
    whole, saved = (estimate(run, x, save).peak_allocated_bytes for save in (False, True))
    assert whole - saved > 5 * 32 * MIB


def test_other_allocators(torch: Any) -> None:
    def program() -> None:
        blocks = [torch.empty(n * MIB, dtype=torch.uint8, device="cuda") for n in (3, 30, 50)]
        del blocks[1]
        torch.empty(31 * MIB, dtype=torch.uint8, device="cuda")

    by = {name: estimate(program, allocator=name) for name in ("caching", "expandable", "plimsoll")}
    assert by["caching"].peak_reserved_bytes == (20 + 30 + 50 + 32) * MIB
    assert by["expandable"].peak_reserved_bytes == 120 * MIB
    assert by["plimsoll"].peak_reserved_bytes >= by["plimsoll"].peak_allocated_bytes
    assert by["plimsoll"].peak_reserved_bytes < by["caching"].peak_reserved_bytes


def test_a_limit_is_compared_with_the_upper_end(torch: Any) -> None:
    x = torch.empty(1024, 1024)
    made = estimate(lambda x: x + 1, x)
    assert not estimate(lambda x: x + 1, x, limit=made.total_bytes).fits
    assert estimate(lambda x: x + 1, x, limit=made.range.high_bytes).fits
    assert estimate(lambda x: x + 1, x, limit=made.total_bytes).runs
    assert not estimate(lambda x: x + 1, x, limit=made.total_bytes - 1).runs
    assert made.runs is None
    assert estimate(lambda x: x + 1, x, limit=made.total_bytes, allocator="expandable").runs is None


def test_an_error_of_the_program_is_its_own(torch: Any) -> None:
    with pytest.raises(RuntimeError, match="reduction dim|shape"):
        estimate(lambda x: x @ x, torch.empty(3, 4))


def test_lines_are_the_programs_where_the_package_is_a_link(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "plimsoll").symlink_to(Path(plimsoll.__file__).parent)
    (tmp_path / "program.py").write_text(
        "import torch, plimsoll.torch\n"
        "made = plimsoll.torch.estimate(lambda x: x + 1, torch.empty(1 << 20))\n"
        "print([line.file for line in made.lines])\n"
    )
    words = [sys.executable, str(tmp_path / "program.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert "program.py" in ran.stdout and "dataless.py" not in ran.stdout, ran.stdout


SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("words", [[], ["--train"], ["--train", "--precision", "amp", "--checkpointing"]])
def test_a_model_from_its_configuration(
    torch: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert estimate_model.main([str(tmp_path), "--context", "128", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["peak_allocated_bytes"] > 1_600_000 * (2 if words == [] else 6)
    assert any("modeling_llama" in line["file"] for line in said["lines"])
    assert said["program"]["tokens"] == 128


def test_an_error_of_a_models_program_is_its_first_line(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: no device\nDevice-side assertions were explicitly omitted")

    monkeypatch.setattr(estimate_model, "of_job", fails)
    assert estimate_model.main([str(tmp_path)]) == 2
    assert json.loads(capsys.readouterr().out) == {"error": "RuntimeError: CUDA error: no device"}


@pytest.mark.filterwarnings("ignore")
def test_families_whose_attention_is_said_to_be_fused_are(torch: Any) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    import transformers

    lists = Path(__file__).parents[2] / "crates/models/src/families"
    fused = set((lists / "fused.txt").read_text().split())
    known = {family: getattr(transformers, CLASSES[family], None) for family in fused & set(CLASSES)}
    stores = {family for family, model in known.items() if model is not None and not model._supports_sdpa}
    assert len(known) > 50 and not stores, f"this Transformers stores their scores: {sorted(stores)}"
