"""Limits, on the simulated driver of the guard's tests."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plimsoll
from plimsoll import command
from plimsoll.limits import FLAGS

GIB = 2**30
# Loads the driver as libraries do, allocates, and says what the guard counted.
LIMITED = """
import ctypes, json, plimsoll
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
before = plimsoll.stats()
codes = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2**30)) for _ in range(3)]
# Ordered on a stream, which takes the guard operations of its own.
codes.append(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(2**30), None))
print(json.dumps({"limit": plimsoll.limit(), "codes": codes, "before": before, "after": plimsoll.stats()}))
"""


@pytest.fixture
def environment(fake_driver: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(fake_driver), "WAY": "dlsym"}


def test_a_program_is_held_at_its_limit_and_reported(
    fake_driver: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    client: list[str | Path] = [fake_driver / "client", "fill"]
    report = plimsoll.run(
        client, limit="2GiB", reserve=0, env=environment, stdout=subprocess.DEVNULL, report=tmp_path / "r"
    )
    assert (report.exit_code, report.limit_type, report.limit_bytes) == (0, "hard", 2 * GIB)
    assert report.within_limit is True and report.refused >= 1
    assert report.peak_bytes is not None and 1.9 * GIB < report.peak_bytes <= 2 * GIB
    assert report.to_dict()["devices"] == report.devices
    assert "<svg" in report.html and report._repr_html_().startswith("<iframe")
    assert (tmp_path / "r/report.html").is_file() and report.check() is report


def test_what_cannot_run_is_as_in_subprocess(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="surely-not"):
        plimsoll.run(["surely-not-a-program"], stderr=subprocess.DEVNULL)
    (tmp_path / "data").write_text("no program")
    with pytest.raises(PermissionError):
        plimsoll.run([tmp_path / "data"], stderr=subprocess.DEVNULL)
    with pytest.raises(TypeError, match="sequence of words"):
        plimsoll.run("python train.py")
    with pytest.raises(ValueError, match="size"):
        plimsoll.run(["true"], limit="eight")
    for wrong, why in (({"limit": "100MiB"}, "reserve"), ({"limit": 8}, "reserve|unit"), ({"profile": "foo"}, "foo")):
        with pytest.raises(ValueError, match=why):
            plimsoll.run([sys.executable, "-c", "print('never')"], **wrong)
    with pytest.raises(TypeError, match=r"got reserves; .* reserve"):
        plimsoll.run(["true"], reserves="64MiB")
    with pytest.raises(subprocess.CalledProcessError):
        plimsoll.run(["false"], limit=None).check()


def test_every_flag_of_run_is_an_option() -> None:
    said = subprocess.run([command.executable(), "run", "--help"], capture_output=True, text=True).stdout
    flags = {flag.replace("-", "_") for flag in re.findall(r"^ +(?:-\w, )?--([a-z-]+)", said, re.MULTILINE)}
    own = {"gpu_mem_limit", "gpu_mem_limit_gb", "no_limit", "report"}
    assert flags - own - {"help", "json", "quiet", "verbose"} == FLAGS


def test_a_process_that_is_not_limited_says_how_to_start() -> None:
    assert plimsoll.is_guarded() is False
    for ask in (plimsoll.limit, plimsoll.stats):
        with pytest.raises(plimsoll.Unavailable, match="python -m plimsoll run"):
            ask()


def test_processes_started_inside_share_one_limit_and_count(
    fake_driver: Path, environment: dict[str, str]
) -> None:
    before = dict(os.environ)
    with plimsoll.guarded("2GiB", reserve=0) as limited:
        inside = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver), "WAY": "dlsym"}
        said = subprocess.run([fake_driver / "client", "fill"], env=inside, capture_output=True, text=True)
        # It knows another device as number 0, as with CUDA_VISIBLE_DEVICES.
        other = {**inside, "FAKE_FIRST": "1"}
        child = subprocess.run([sys.executable, "-c", LIMITED], env=other, capture_output=True, text=True)
    assert dict(os.environ) == before
    assert "code 2" in said.stdout, said
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert found["limit"] == 2 * GIB and found["codes"] == [0, 0, 2, 2]
    assert found["before"]["charged_bytes.peak"] < GIB, "that of its own device"
    rose = found["after"]["reserved_bytes.all.current"] - found["before"]["reserved_bytes.all.current"]
    assert rose == 2 * GIB
    assert found["after"]["num_device_alloc"] == 4
    assert found["after"]["num_refused"] - found["before"]["num_refused"] == 2
    assert found["after"]["limit_bytes"] == 2 * GIB
    assert found["after"]["charged_bytes.peak"] <= 2 * GIB
    assert limited.refused >= 2 and GIB < limited.peak_bytes <= 2 * GIB and limited.used_bytes == 0


def limit_of_child(_: int) -> int | None:
    return plimsoll.limit()


def test_children_of_spawn_are_limited() -> None:
    with plimsoll.guarded("3GiB"), multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(limit_of_child, [0]) == [3 * GIB]


def test_a_limit_inside_a_limit_and_one_below_the_reserve_are_refused() -> None:
    with pytest.raises(ValueError, match="reserve"):
        plimsoll.guarded("64MiB").__enter__()
    code = "import plimsoll\nwith plimsoll.guarded('1GiB'): pass"
    with plimsoll.guarded("2GiB"):
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Unavailable" in child.stderr and "already runs under" in child.stderr


def test_a_process_that_outlives_the_block_stays_limited(
    fake_driver: Path, environment: dict[str, str]
) -> None:
    with plimsoll.guarded("2GiB", reserve=0):
        inside = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver), "WAY": "dlsym"}
        words = ["sh", "-c", f"sleep 1; exec {fake_driver}/client fill"]
        child = subprocess.Popen(words, env=inside, stdout=subprocess.PIPE, text=True)
    said, _ = child.communicate(timeout=60)
    assert "count 32 code 2" in said


def test_ctrl_c_ends_the_program_that_runs() -> None:
    code = "import plimsoll\nprint('on', flush=True)\nplimsoll.run(['sleep', '600'], limit=None)"
    words = [sys.executable, "-c", code]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "on\n"
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said and child.returncode != 0
