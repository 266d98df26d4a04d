"""Processes under a limit: one that is run to its end, or all that are started in a block."""

from __future__ import annotations

import atexit
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from . import command
from ._plimsoll import GuardedEnvironment, format_bytes, parse_bytes
from .errors import CommandFailed

#: The flags of `plimsoll run` that the arguments of `run` do not have. It takes every other word for
#: the program.
FLAGS = frozenset({"profile", "device_limit", "keep_free", "reserve", "managed", "driver_limit", "stacks", "strict"})

Word = str | os.PathLike[str]
Size = int | str


@dataclass(frozen=True)
class RunReport:
    """What a program did with GPU memory under a limit."""

    exit_code: int
    """The program's own; 128 and the signal's number where one ended it."""
    limit_bytes: int | None
    limit_type: str
    """`hard` where the limit was enforced, `unavailable` where no GPU was used, or `none`."""
    peak_bytes: int | None
    """The most on one device at once, counted; None where no GPU was used."""
    within_limit: bool | None
    refused: int
    """How often memory was refused."""
    devices: list[dict[str, Any]] = field(repr=False)
    warnings: list[str] = field(repr=False)
    report: dict[str, Any] = field(repr=False)
    """All of `report.json`."""
    html: str = field(repr=False)
    """The report as a page, with the picture of memory over time."""

    def to_dict(self) -> dict[str, Any]:
        """All of `report.json`."""
        return self.report

    def check(self) -> RunReport:
        """Raises `subprocess.CalledProcessError` where the program failed; else the report."""
        if self.exit_code != 0:
            raise subprocess.CalledProcessError(self.exit_code, self.report["program"])
        return self

    def _repr_html_(self) -> str:
        import html

        # A page of its own inside the notebook: its styles stay inside.
        page = html.escape(self.html, quote=True)
        style = "width:100%;height:640px;border:0"
        return f'<iframe sandbox style="{style}" srcdoc="{page}"></iframe>'

    @classmethod
    def read(cls, folder: Path) -> RunReport:
        """The report that `plimsoll run --report` wrote into a folder."""
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        devices = report["devices"]
        within = [device["within_limit"] for device in devices]
        return cls(
            exit_code=report["exit_code"],
            limit_bytes=report["limit"]["limit_bytes"],
            limit_type=report["limit"]["limit_type"],
            peak_bytes=max((device["peak_bytes"] for device in devices), default=None),
            within_limit=None if not within or None in within else all(within),
            refused=sum(device["refused"] for device in devices),
            devices=devices,
            warnings=report["warnings"],
            report=report,
            html=(folder / "report.html").read_text(encoding="utf-8"),
        )


def run(
    program: Sequence[Word],
    limit: Size | None = "8GiB",
    *,
    report: Word | None = None,
    cwd: Word | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    **options: object,
) -> RunReport:
    """Runs a program to its end under a limit of GPU memory, and reports what it used.

    The limit holds for the program and all its children; None only counts. `report` names a folder
    to keep the report in. `cwd`, `env`, `stdin`, `stdout` and `stderr` are as in `subprocess`;
    other options are the flags of `plimsoll run` (`strict=True`, `reserve="64MiB"`). Ctrl-C goes to
    the program, and so does SIGTERM when this process ends before it.

    Raises `FileNotFoundError` and `PermissionError` as `subprocess` does, `ValueError` for a limit
    that cannot be, `TypeError` for an option that there is not, `CommandFailed` where the limit cannot be set up.

    >>> import plimsoll, sys
    >>> report = plimsoll.run([sys.executable, "-c", "print(1 + 1)"], limit="2GiB", stdout=-3)
    >>> report.exit_code, report.limit_type, report.peak_bytes
    (0, 'unavailable', None)
    """
    if isinstance(program, (str, bytes, os.PathLike)) or not program:
        raise TypeError("program must be a sequence of words, such as ['python', 'train.py']")
    if unknown := sorted(options.keys() - FLAGS):
        raise TypeError(f"run() got {', '.join(unknown)}; other options are {', '.join(sorted(FLAGS))}")
    given = {"no_limit": True} if limit is None else {"gpu_mem_limit": f"{parse_bytes(limit)}B"}
    with tempfile.TemporaryDirectory(prefix="plimsoll-report-") as scratch:
        folder = Path(report) if report is not None else Path(scratch) / "report"
        words = ["run", "--quiet", *command.flags({**given, "report": folder, **options})]
        line = [command.executable(), *words, "--", *(os.fspath(word) for word in program)]
        pipes = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        environment = command.environment(env)
        code = _wait(subprocess.Popen(line, cwd=cwd, env=environment, **pipes))
        if not (folder / "report.json").is_file():
            name = os.fspath(program[0])
            match code:
                case 126:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
                case 127:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
                case _:
                    raise _why_not(words, cwd, environment)
        return RunReport.read(folder)


def _why_not(words: list[str], cwd: Word | None, environment: Mapping[str, str]) -> Exception:
    """Why the command cannot start programs so. It has said that on the caller's stderr, and says it
    again for a program that does nothing."""
    line = [command.executable(), *words, "--json", "--", sys.executable, "-c", ""]
    again = subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment, stdin=subprocess.DEVNULL)
    if again.returncode == 0:
        return CommandFailed("plimsoll run could not start it; see its message on stderr", again.returncode)
    return command.failure(again.stderr, again.returncode)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Waits for the end. Ctrl-C reaches a program on the same terminal by itself; elsewhere, as in
    a notebook, it is passed on. The report is written either way."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait()
        raise


class guarded:
    """Limits the GPU memory of the processes that are started inside, all together.

    For subprocess, multiprocessing with spawn, and everything else that takes the environment:
    the limit is in the environment while the block runs. This process itself is not limited, and
    neither are children of fork. Processes that outlive the block stay limited.

    >>> import plimsoll, subprocess, sys
    >>> with plimsoll.guarded("2GiB") as limited:
    ...     child = [sys.executable, "-c", "import plimsoll; print(plimsoll.limit())"]
    ...     print(subprocess.run(child, capture_output=True, text=True).stdout.strip())
    2147483648
    """

    def __init__(self, limit: Size = "8GiB", *, reserve: Size | None = None) -> None:
        self.limit_bytes: int = parse_bytes(limit)
        self._reserve = {} if reserve is None else {"reserve": reserve}
        self._guard: GuardedEnvironment | None = None
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> guarded:
        if self._guard is not None:
            raise RuntimeError("this limit is in force already; make another guarded()")
        _sweep(older_than_s=10.0)
        self._guard = GuardedEnvironment(self.limit_bytes, **self._reserve)
        variables = self._guard.variables()
        self._before = {name: os.environ.get(name) for name, _ in variables}
        _set(dict(variables))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _set(self._before)
        if self._guard is not None:
            # A process that was started a moment ago may not have joined yet.
            _ended.append((time.monotonic(), self._guard))

    @property
    def peak_bytes(self) -> int:
        """The most that the processes inside held on one device at once."""
        return max((peak for _, peak, _, _ in self._charges()), default=0)

    @property
    def used_bytes(self) -> int:
        """What they hold now, on all devices."""
        return sum(used for _, _, used, _ in self._charges())

    @property
    def refused(self) -> int:
        """How often memory was refused."""
        return sum(refused for _, _, _, refused in self._charges())

    def _charges(self) -> list[tuple[int, int, int, int]]:
        return [] if self._guard is None else self._guard.charges()

    def __repr__(self) -> str:
        return f"guarded('{format_bytes(self.limit_bytes)}')"


_ended: list[tuple[float, GuardedEnvironment]] = []


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _sweep(older_than_s: float) -> None:
    """Removes the files of limits that nobody uses any more."""
    now = time.monotonic()
    for entry in [entry for entry in _ended if now - entry[0] >= older_than_s]:
        _ended.remove(entry)
        entry[1].close()


atexit.register(_sweep, 0.0)
