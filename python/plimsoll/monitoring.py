"""Samples of the machine while a program works, and alerts before memory runs out.

The command's `monitor` takes the samples in a process of its own, so a program that is busy, or
holds the interpreter, does not delay them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from . import command
from .errors import CommandFailed

Callback = Callable[["Sample", str], object]


@dataclass(frozen=True)
class TimeLeft:
    """When a memory runs out at its present growth."""

    memory: str
    """Which: `system`, or a GPU."""
    seconds: float
    at_least_s: float
    at_most_s: float | None
    bytes_per_s: float


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment."""

    t: float
    """Seconds since the monitor was started."""
    system_total_bytes: int | None
    system_used_bytes: int | None
    gpus: list[dict[str, Any]]
    processes: list[dict[str, Any]]
    time_left: TimeLeft | None
    """Of the memory that runs out first; None while none does."""
    alerts: list[str]
    warnings: list[str]
    record: dict[str, Any] = field(repr=False)
    """All of it, as `plimsoll monitor --format jsonl` prints it."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, as `plimsoll monitor --format jsonl` prints it."""
        return self.record

    @classmethod
    def of(cls, record: dict[str, Any]) -> Sample:
        """A sample of a line that the command printed."""
        memory = record.get("memory") or {}
        left = record.get("time_left")
        names = ("memory", "seconds", "at_least_s", "at_most_s", "bytes_per_s")
        return cls(
            t=float(record.get("t") or 0.0),
            system_total_bytes=memory.get("total_bytes"),
            system_used_bytes=memory.get("used_bytes"),
            gpus=record.get("gpus") or [],
            processes=record.get("processes") or [],
            time_left=TimeLeft(**{name: left[name] for name in names}) if left else None,
            alerts=record.get("alerts") or [],
            warnings=record.get("warnings") or [],
            record=record,
        )


class Monitor:
    """An iterator of samples, until it is closed; also a context manager.

    It ends by itself with the program: the command stops when nobody reads it any more.
    """

    def __init__(self, words: list[str]) -> None:
        line = [command.executable(), "monitor", "--format", "jsonl", *words]
        # What it says beside the samples is kept for an error; a file never makes it wait.
        self._said = tempfile.TemporaryFile("w+", errors="replace")
        # One thread may close it while another reads the last sample.
        self._files = threading.Lock()
        self._child = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=self._said, text=True, errors="replace"
        )

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        assert self._child.stdout is not None
        try:
            line = self._child.stdout.readline()
        except ValueError:  # closed
            line = ""
        if line:
            return Sample.of(json.loads(line))
        code = self._child.wait()
        failure: BaseException = StopIteration()
        with self._files:
            if code in (2, 3) and not self._said.closed:
                self._said.seek(0)
                failure = command.failure(self._said.read(), code)
        self.close()
        raise failure

    def close(self) -> None:
        """Ends it."""
        if self._child.poll() is None:
            self._child.terminate()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        with self._files:
            if self._child.stdout is not None:
                self._child.stdout.close()
            self._said.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_child"):
            self.close()


def monitor(
    interval: str = "500ms",
    *,
    duration: str | None = None,
    alert_free: str | None = None,
    alert_within: str | None = None,
    replay: str | None = None,
) -> Monitor:
    """Samples of this machine, one after the other, each with the time left.

    `alert_free` ("10%", "1GiB") and `alert_within` ("30s") put texts into a sample's `alerts`.
    `replay` reads a recorded log (tegrastats' lines, or the monitor's own) instead.

    >>> import plimsoll
    >>> with plimsoll.monitor("100ms", duration="300ms") as samples:
    ...     seen = [sample.system_used_bytes for sample in samples]
    >>> all(used > 0 for used in seen) and len(seen) >= 2
    True
    """
    options = {"interval": interval, "duration": duration, "alert_free": alert_free}
    return Monitor(command.flags({**options, "alert_within": alert_within, "replay": replay}))


class watch:
    """Calls `callback(sample, text)` on a thread when memory becomes short, while a block runs.

    The block begins when the first sample is there, so what cannot be watched is known before it.
    Without a callback an alert is a Python warning. `alerts` has the texts afterwards.

    >>> import plimsoll
    >>> with plimsoll.watch(alert_free="1B", interval="100ms") as watched:
    ...     pass  # the work
    >>> watched.alerts
    []
    """

    def __init__(
        self,
        alert_free: str | None = "10%",
        callback: Callback | None = None,
        *,
        alert_within: str | None = None,
        interval: str = "500ms",
    ) -> None:
        self._options = {"alert_free": alert_free, "alert_within": alert_within}
        self._interval = interval
        self._callback = callback
        self._monitor: Monitor | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.alerts: list[str] = []
        """The texts of all alerts so far."""

    def __enter__(self) -> watch:
        self._monitor = monitor(self._interval, **self._options)
        first = next(self._monitor, None)
        if first is None:
            code = self._monitor._child.returncode
            raise CommandFailed(f"plimsoll monitor ended before its first sample, with exit code {code}", code)
        samples = itertools.chain([first], self._monitor)
        self._thread = threading.Thread(
            target=self._follow, args=(samples,), daemon=True, name="plimsoll-watch"
        )
        self._thread.start()
        return self

    def _follow(self, samples: Iterator[Sample]) -> None:
        try:
            for sample in samples:
                for text in sample.alerts:
                    self.alerts.append(text)
                    if self._callback is None:
                        warnings.warn(text, ResourceWarning, stacklevel=1)
                    else:
                        self._callback(sample, text)
        except BaseException as error:  # raised where the block ends
            self._failure = error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if self._monitor is not None and self._thread is not None:
            self._monitor.close()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=5)
        if self._failure is not None and error is None:
            raise self._failure
        return False
