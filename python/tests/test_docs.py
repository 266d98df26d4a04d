"""Every public name has an example that runs, and so does every example of the guide."""

from __future__ import annotations

import doctest
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import plimsoll
from plimsoll import adaptive, command, files, plot

ROOT = Path(__file__).resolve().parents[2]
# Classes that a call of the same module shows, and modules.
WITHOUT = {
    *("Monitor", "Sample", "TimeLeft", "RunReport", "Estimate", "version", "command"),
    *("BenchReport", "CompareReport", "ExportReport", "ReplayReport", "MemorySnapshot"),
    "FitReport",
}
NAMES = sorted(
    name
    for name in plimsoll.__all__
    if name not in WITHOUT and not (inspect.isclass(one := getattr(plimsoll, name)) and issubclass(one, Exception))
)


def run(text: str, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples, f"{name} has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    run(inspect.getdoc(getattr(plimsoll, name)) or "", name)


@pytest.mark.parametrize(
    "one",
    [command.executable, command.flags, command.environment, adaptive.is_out_of_memory, plot.over_time, files.write_whole],
)
def test_the_modules_own_examples_run(one: Callable[..., object]) -> None:
    run(inspect.getdoc(one) or "", one.__name__)


def test_every_public_thing_says_what_it_is() -> None:
    for name in plimsoll.__all__:
        assert inspect.getdoc(getattr(plimsoll, name)), name


def test_the_examples_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    text = (ROOT / "docs/guide/python.md").read_text(encoding="utf-8")
    blocks = text.split("```python\n")[1:]
    run("\n".join(block.split("```")[0] for block in blocks), "docs/guide/python.md")
    assert os.getcwd() == str(tmp_path)
