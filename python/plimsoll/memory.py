"""The memory of the machine, under the names that programs already use."""

from __future__ import annotations

from typing import Any, cast

from . import command
from ._plimsoll import available_bytes, memory_info

GB = 1e9


def get_memory_info() -> dict[str, Any]:
    """What is known of the machine's memory, as a dict; what is not known is None.

    >>> import plimsoll
    >>> info = plimsoll.get_memory_info()
    >>> info["system_used"] <= info["system_total"]
    True
    """
    return memory_info().to_dict()


def get_available_memory_gb(device: object = None) -> float:
    """What can be had on a device now, in decimal gigabytes (`available_bytes()` / 1e9).

    >>> import plimsoll
    >>> plimsoll.get_available_memory_gb("cpu") > 0
    True
    """
    return available_bytes(device) / GB


def get_free_memory(device: object = None) -> int:
    """What can be had on a device now, in bytes; the same as `available_bytes()`.

    >>> import plimsoll
    >>> plimsoll.get_free_memory("cpu") > 0
    True
    """
    return available_bytes(device)


def doctor() -> dict[str, Any]:
    """What this machine can do, and why it cannot do the rest: `plimsoll doctor --json`.

    >>> import plimsoll
    >>> "backends" in plimsoll.doctor()
    True
    """
    return cast("dict[str, Any]", command.ask(["doctor"]))
