"""The package as it is installed."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import plimsoll
from plimsoll import command


def test_the_command_is_shipped_and_of_the_same_version() -> None:
    said = subprocess.run([command.executable(), "--version"], capture_output=True, text=True)
    assert said.stdout.split() == ["plimsoll", plimsoll.__version__]


def test_python_m_is_the_command() -> None:
    words = [sys.executable, "-m", "plimsoll", "chunk", "--help"]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 0 and "--json" in said.stdout, said


def test_bad_input_of_the_command_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="--surely-not-a-flag"):
        command.ask(["doctor", "--surely-not-a-flag"])


def test_errors_are_what_python_programs_catch() -> None:
    for error in (plimsoll.OutOfMemory, plimsoll.NeverFits):
        assert issubclass(error, MemoryError) and issubclass(error, plimsoll.Error)
    assert issubclass(plimsoll.Unavailable, RuntimeError)
    failed = pickle.loads(pickle.dumps(plimsoll.CommandFailed("it broke", 3)))
    assert (str(failed), failed.code) == ("it broke", 3)


def test_names_that_are_loaded_later_are_there() -> None:
    assert set(plimsoll.__all__) <= set(dir(plimsoll))
    program = "import plimsoll, sys; print('plimsoll.records' in sys.modules); from plimsoll import bench"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (said.stdout, said.returncode) == ("False\n", 0), said
    with pytest.raises(AttributeError, match="no attribute 'surely_not'"):
        getattr(plimsoll, "surely_not")
