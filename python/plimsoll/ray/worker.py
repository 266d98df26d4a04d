"""Starts a worker of Ray under a limit of GPU memory: `python -m plimsoll.ray.worker LIMIT WORKER…`.

Ray starts it in place of the interpreter (`py_executable` of a runtime environment), so it runs on
the worker's own node. There it writes the guard's library, works out the limit, and becomes the
worker. It must not fail: Ray would start it again and again. What went wrong is left in the
environment, and the actor raises it (`require_limit`).
"""

from __future__ import annotations

import ctypes
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .. import command
from .._plimsoll import is_guarded, parse_bytes
from ..errors import Unavailable

WHY = "PLIMSOLL_RAY_WHY"


def py_executable(limit: str) -> str:
    """What Ray starts in place of Python, for a limit such as "8GiB", or "0.5" of a GPU.

    >>> from plimsoll.ray.worker import py_executable
    >>> py_executable("0.5").endswith("-m plimsoll.ray.worker 0.5")
    True
    """
    return f"{shlex.quote(sys.executable)} -m plimsoll.ray.worker {shlex.quote(limit)}"


def require_limit() -> None:
    """Raises `Unavailable` in a worker that should have a limit and has none."""
    if why := os.environ.get(WHY):
        raise Unavailable(f"a memory limit for this actor is not available: {why}")
    if not is_guarded():
        raise Unavailable(
            "a memory limit for this actor is not available: the worker was not started by "
            "plimsoll.ray.worker; leave py_executable of the runtime environment to the stage"
        )


def limited_environment(limit: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that puts a process under the limit."""
    library = str(_library())
    before = environment.get("LD_PRELOAD")
    return {
        **environment,
        "LD_PRELOAD": f"{library} {before}" if before else library,
        "PLIMSOLL_GPU_MEM_LIMIT": f"{limit_bytes(limit)}B",
    }


def limit_bytes(limit: str) -> int:
    """A limit in bytes: a size, or a share of the smallest GPU that this node has.

    >>> from plimsoll.ray.worker import limit_bytes
    >>> limit_bytes("2GiB")
    2147483648
    """
    try:
        share = float(limit)
    except ValueError:
        return parse_bytes(limit)
    return int(share * min(_gpu_sizes()))


def _gpu_sizes() -> list[int]:
    """The memory of every GPU of this node. Asked of the driver itself, as `plimsoll.devices()` would
    make a context on each of them."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable(f"a share of a GPU needs one, and this node has no CUDA driver: {error}") from error
    count, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if (code := cuda.cuInit(0)) != 0 or (code := cuda.cuDeviceGetCount(ctypes.byref(count))) != 0:
        raise Unavailable(f"a share of a GPU needs one, and this node's driver fails with code {code}")
    sizes = []
    for number in range(count.value):
        found = cuda.cuDeviceGet(ctypes.byref(device), number) == 0
        if found and cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0:
            sizes.append(size.value)
    if not sizes:
        raise Unavailable("a share of a GPU needs one, and this node has none")
    return sizes


def _library() -> Path:
    """The guard's library, written anew: programs that have loaded the one before keep it."""
    folder = Path(tempfile.gettempdir()) / f"plimsoll-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to somebody else; set TMPDIR to a folder of your own")
    library = folder / "libplimsoll_guard.so"
    command.ask(["guard", "--to", library])
    return library


def main() -> None:
    """Becomes the worker."""
    limit, *worker = sys.argv[1:]
    environment = dict(os.environ)
    if not is_guarded():
        try:
            environment = limited_environment(limit, environment)
        except Exception as error:
            environment[WHY] = str(error) or type(error).__name__
    os.execve(sys.executable, [sys.executable, *worker], environment)


if __name__ == "__main__":
    main()
