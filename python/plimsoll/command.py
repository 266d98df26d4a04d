"""Starts the command `plimsoll` that the package ships, and reads its JSON."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import CommandFailed, Unavailable

BAD_INPUT = 2

#: How long a command that is told to stop may take for what it writes at the end.
SECONDS_TO_STOP = 10.0


@functools.cache
def executable() -> str:
    """The path of the command: the one that was installed with this package.

    >>> from plimsoll import command
    >>> command.executable().endswith("plimsoll")
    True
    """
    for path in (*_recorded(), Path(sysconfig.get_path("scripts")) / "plimsoll"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("plimsoll")
    if found is None:
        raise Unavailable(
            "the command plimsoll is not available: it was not installed with this package and is "
            "not on PATH; install the package again from its checkout or wheel (pip install "
            "--force-reinstall .)"
        )
    return found


def _recorded() -> Iterable[Path]:
    """Where the package's own record says that the command is."""
    from importlib import metadata

    try:
        files = metadata.files("plimsoll") or []
    except metadata.PackageNotFoundError:
        files = []
    return [Path(str(file.locate())) for file in files if file.name == "plimsoll" and not file.suffix]


def flags(options: Mapping[str, object]) -> list[str]:
    """Keyword arguments as flags: `True` is a bare flag, `None` and `False` none at all, a
    sequence the flag once for each value.

    >>> from plimsoll import command
    >>> command.flags({"max_frames": 30, "quiet": True, "engine": None})
    ['--max-frames=30', '--quiet']
    """
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.strip("_").replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(flag)
            elif one is not None and one is not False:
                words.append(f"{flag}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return words


def ask(words: Iterable[str | os.PathLike[str]], *, no_is_an_answer: bool = True) -> Any:
    """Runs the command with `--json` and returns what it printed.

    Exit code 1 means "no" (it does not fit, it got slower): an answer like any other. Ctrl-C
    stops the command as well.

    Raises `ValueError` for what the command calls bad usage or input, `CommandFailed` for what
    else went wrong.
    """
    ended = run([*words, "--json"], stdout=subprocess.PIPE)
    accepted = (0, 1) if no_is_an_answer else (0,)
    if ended.returncode not in accepted:
        raise failure(ended.stderr, ended.returncode)
    return json.loads(ended.stdout)


def run(words: Iterable[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; what it says on stderr is captured.

    Where this is interrupted, the command is told to stop as by Ctrl-C, and gets the time to write
    what it has. It is also told to stop when this process ends. It runs in a session of its own: with the
    terminal's Ctrl-C it would get two signals, and end at the second without cleaning up.
    """
    line = [executable(), *(os.fspath(word) for word in words)]
    options = {"stderr": subprocess.PIPE, "text": True, "errors": "replace", "env": environment(), **options}
    with subprocess.Popen(line, start_new_session=True, **options) as child:
        try:
            said, complained = child.communicate()
        except BaseException:
            _stop(child)
            raise
    return subprocess.CompletedProcess(line, child.returncode, said, complained)


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command that this thread waits for: it stops when this process ends,
    however that ends.

    >>> from plimsoll import command
    >>> command.environment({"LANG": "C"})
    {'LANG': 'C', 'PLIMSOLL_STARTED_BY': '...'}
    """
    return {**(os.environ if base is None else base), "PLIMSOLL_STARTED_BY": str(os.getpid())}


def _stop(child: subprocess.Popen[str]) -> None:
    for how, patience in ((signal.SIGINT, SECONDS_TO_STOP), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, how)
            # Its last words are read as well: a full pipe would keep it from ending.
            child.communicate(timeout=patience)
        except (subprocess.TimeoutExpired, ValueError):
            continue
        except ProcessLookupError:
            pass
        return


def failure(said: str, code: int) -> Exception:
    """The error for what the command said as it failed: JSON, or text where it could not."""
    found = next((why for line in reversed(said.splitlines()) if (why := _complaint(line))), None)
    text, kind = found or (said.strip() or f"plimsoll ended with exit code {code}", None)
    bad_input = code == BAD_INPUT or kind in ("usage", "input")
    return ValueError(text) if bad_input else CommandFailed(text, code)


def _complaint(line: str) -> tuple[str, str | None] | None:
    """What an error says, and its kind where that is told."""
    if line.startswith("error: "):
        return line.removeprefix("error: "), None
    try:
        error = json.loads(line)["error"]
        return ": ".join([error["message"], *error["causes"]]), error["kind"]
    except (ValueError, LookupError, TypeError):
        return None
