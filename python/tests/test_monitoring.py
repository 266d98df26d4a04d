"""Samples and alerts; nothing hangs when a program ends in the middle of them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plimsoll

ROOT = Path(__file__).resolve().parents[2]


def test_samples_come_one_after_the_other() -> None:
    with plimsoll.monitor("50ms") as samples:
        first, second = next(samples), next(samples)
    assert first.t < second.t
    assert first.system_total_bytes is not None and first.system_used_bytes is not None
    assert 0 < first.system_used_bytes < first.system_total_bytes
    assert first.to_dict()["t"] == first.t
    with pytest.raises(StopIteration):
        next(samples)


def test_a_log_that_runs_out_says_when() -> None:
    log = str(ROOT / "docs/examples/tegrastats.log")
    samples = list(plimsoll.monitor(replay=log, alert_within="30s"))
    left = [sample.time_left for sample in samples if sample.time_left]
    assert left and left[-1].memory == "system" and left[-1].seconds < 5
    assert left[-1].at_least_s <= left[-1].seconds and left[-1].bytes_per_s > 0
    assert sum(len(sample.alerts) for sample in samples) >= 1


def test_bad_arguments_are_value_errors() -> None:
    with pytest.raises(ValueError, match="50ms"):
        next(plimsoll.monitor("1ms"))
    with pytest.raises(ValueError, match="--alert-free"):
        next(plimsoll.monitor(alert_free="much"))


def test_a_watch_calls_back_when_memory_is_short() -> None:
    heard: list[str] = []
    called = threading.Event()

    def callback(sample: plimsoll.Sample, text: str) -> None:
        # A program that runs under a limit meanwhile has alerts of its own.
        assert text in sample.alerts
        heard.append(text)
        called.set()

    with plimsoll.watch(alert_free="100%", callback=callback, interval="50ms") as watched:
        assert called.wait(20)
    assert watched.alerts == heard and "memory" in heard[0]


def test_a_watch_without_reason_is_silent_and_its_errors_are_raised() -> None:
    with plimsoll.watch(alert_free="1B", interval="50ms") as watched:
        time.sleep(0.3)
    assert watched.alerts == []
    called = threading.Event()

    def broken(_: object, __: str) -> None:
        called.set()
        raise LookupError("broken callback")

    with pytest.raises(LookupError, match="broken callback"):
        with plimsoll.watch(alert_free="100%", callback=broken, interval="50ms"):
            assert called.wait(20)
    with pytest.raises(KeyError):  # the block's own error comes first
        with plimsoll.watch(alert_free="1B", interval="50ms"):
            raise KeyError("work")


def test_what_cannot_be_watched_is_known_before_the_block() -> None:
    with pytest.raises(ValueError, match="alert-free"):
        with plimsoll.watch(alert_free="much"):
            raise AssertionError("the block was entered")


ENDS = {
    "in the middle": "samples = plimsoll.monitor('50ms'); next(samples)",
    "inside a watch": "plimsoll.watch(alert_free='1B').__enter__()",
    "by an error": "w = plimsoll.watch(alert_free='1B').__enter__(); raise SystemExit(0)",
    "after a fork": "import os; s = plimsoll.monitor('50ms'); next(s); os.fork() or os._exit(0); os.wait()",
    "with a limit in force": "g = plimsoll.guarded('1GiB').__enter__()",
    "with work under way": (
        "import threading, numpy as np; p = np.zeros((64, 1000, 3), np.float32); "
        "threading.Thread(target=plimsoll.voxelize, args=(p, 64, 1.0), daemon=True).start()"
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_an_interpreter_that_ends_leaves_nothing_running(how: str) -> None:
    code = f"import plimsoll, sys; print(flush=True); {ENDS[how]}"
    words = [sys.executable, "-W", "ignore", "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert ended.returncode == 0, ended.stderr
    assert "Error" not in ended.stderr, ended.stderr


def test_a_monitor_ends_with_its_program() -> None:
    code = "import plimsoll, os, signal\nm = plimsoll.monitor('50ms'); next(m)\nprint(m._child.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(said.stdout)
    until = time.monotonic() + 60
    while runs(pid):
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process has neither gone nor only not been waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Each makes the path of its argument when it has begun.
WAITS = {
    "bench": "plimsoll.bench(max_frames=10**8, mode='rgb', output_dir=sys.argv[1])",
    "run": "plimsoll.run(['sh', '-c', f'touch {sys.argv[1]}; exec sleep 600'], limit=None)",
}


def started_by(pid: int) -> list[int]:
    """The command that a process waits for, and what that has started."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"PLIMSOLL_STARTED_BY={pid}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return [one for one in found if runs(one)]


@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize("how", ["is killed", "ends beside the thread that waits"])
def test_a_command_ends_with_the_program_that_waits_for_it(what: str, how: str, tmp_path: Path) -> None:
    thread = f"threading.Thread(target=lambda: {WAITS[what]}, daemon=True).start()"
    code = f"import plimsoll, sys, threading; {thread}; sys.stdin.readline()"
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    begun = tmp_path / "begun"
    with subprocess.Popen([sys.executable, "-c", code, begun], **streams) as program:
        until = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < until, "it was not started"
            time.sleep(0.05)
        assert started_by(program.pid)
        if how == "is killed":
            program.kill()
        program.communicate(b"\n", timeout=60)
    while left := started_by(program.pid):
        assert time.monotonic() < until, f"{left} still run"
        time.sleep(0.05)


def test_a_monitor_is_closed_by_several_threads_at_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        failures: list[BaseException] = []

        def note(act: Callable[[], object]) -> None:
            try:
                act()
            except BaseException as failure:
                failures.append(failure)

        for _ in range(80):
            samples = plimsoll.monitor("100ms")
            acts = [lambda: list(samples), samples.close, samples.close, samples.close]
            threads = [threading.Thread(target=note, args=(act,)) for act in acts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []
