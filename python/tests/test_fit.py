"""`fit`: the largest setting that fits, estimated and tried."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import plimsoll

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "docs/examples/small8.pt"


@pytest.fixture
def items(fake_driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program whose memory grows with its batch, and a cache folder for this test alone."""
    compiler = shutil.which("cc")
    assert compiler is not None
    program = tmp_path / "items"
    source = ROOT / "crates/cli/tests/fit/items.c"
    subprocess.run([compiler, "-O1", "-w", str(source), "-o", str(program), "-ldl"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program


def test_a_model_file_is_estimated() -> None:
    report = plimsoll.fit(SMALL, limit=4 << 30, vary="batch", engine="pytorch")
    assert report.how == "estimated" and report.proof is None and report.estimate is not None
    assert isinstance(report.largest, int) and report.smallest_failed == report.largest + 1
    assert report.command is not None and f"batch={report.largest}" in report.command
    assert re.search(rf"^  largest batch +{report.largest}$", repr(report), re.MULTILINE)
    assert "<table>" in report._repr_html_()
    larger = plimsoll.fit(SMALL, limit="8GiB", vary="batch", engine="pytorch", reserve=0)
    assert isinstance(larger.largest, int) and larger.largest > report.largest
    assert plimsoll.fit(SMALL, limit="4GiB", vary="dtype", engine="ort").largest == "f32"


def test_what_does_not_fit_is_an_answer() -> None:
    report = plimsoll.fit(SMALL, limit="200MiB", vary="batch")
    assert report.largest is None and "not even batch 1" in (report.why or "")
    with pytest.raises(ValueError, match="only language models"):
        plimsoll.fit(SMALL, limit="4GiB", vary="context")
    with pytest.raises(ValueError, match="missing.onnx"):
        plimsoll.fit("missing.onnx", limit="4GiB", vary="batch")


def test_a_program_is_tried(items: Path) -> None:
    words = [str(items), "{batch}", "plain"]
    report = plimsoll.fit(limit="2GiB", vary="batch=1..4096", program=words, guess=200)
    assert report.how == "tried" and report.proof is not None
    assert isinstance(report.largest, int) and report.smallest_failed == report.largest + 1
    ran = {one.value: one.ran for one in report.proof.tries}
    assert ran[report.largest] and not ran[report.largest + 1] and report.proof.runs <= 8
    again = plimsoll.fit(limit="2GiB", vary="batch=1..4096", program=words)
    assert again.largest == report.largest and again.proof is not None and again.proof.runs == 0
    assert all(one.kept for one in again.proof.tries)


def test_an_error_of_the_program_is_no_answer(items: Path) -> None:
    report = plimsoll.fit(limit="2GiB", vary="batch=1..64", program=[str(items), "{batch}", "broken", "1"])
    assert report.largest is None and report.proof is not None and report.proof.failure is not None
    assert report.proof.failure.exit_code == 7 and "data.bin" in report.proof.failure.output
